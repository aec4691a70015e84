"""``ShardedFileSystem``: the fsspec protocol ``sharded``, for URL chains such as ``sharded::s3://bucket/data.zarr``."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fsspec.asyn import get_loop, sync
from fsspec.compression import compr
from fsspec.core import get_compression
from fsspec.implementations.chained import ChainedFileSystem
from fsspec.json import FilesystemJSONEncoder
from fsspec.spec import make_instance

from shardstore._sync import as_known, on_io_loop, run_async
from shardstore.adapters.fsspec.file import PackedFile, ShardedFile, ShardedTransaction, TextFile
from shardstore.adapters.fsspec.lookups import FileLookups
from shardstore.adapters.fsspec.root import Root, link_below, options_of_links, without_protocol
from shardstore.adapters.fsspec.transfers import FileTransfers
from shardstore.adapters.handle import FilesystemFace, Handle, given_bytes, raise_failed, raise_first, takes_store_options
from shardstore.adapters.own_shards import seen_shape, set_value
from shardstore.engine.actions import ERASE, Action, SetValue
from shardstore.errors import InvalidInput, NotFound, ReadOnly, SnapshotExpired
from shardstore.extras import imported_zarr
from shardstore.format.store_keys import ancestors, join
from shardstore.model.options import check_flags
from shardstore.model.ranges import EVERYTHING, ByteOffset, ByteRange, ByteRequest, ByteSuffix
from shardstore.opening.snapshot_place import Pinned
from shardstore.presented.flavours import Presented
from shardstore.storage.generic.calls import ABSENT_ERRORS
from shardstore.storage.wrappers import Counters

_FSSPEC_OPTIONS = ("use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache")


class ShardedFileSystem(FilesystemFace, FileLookups, FileTransfers, ChainedFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A filesystem whose files are the presented keys of a store: documents without sharding, and single chunks.

    Paths are those of the filesystem below, as in every chain: ``bucket/data.zarr/ct/c/0/0`` over S3. A path that does not
    start with the root of the store is relative to it, so ``ct/c/0/0`` names the same file. There are no empty directories.
    Instances on the same place with the same options share one engine, with zarr's stores and mappings too.

    Args:
        fo: the root of the store, in the chain below.
        target_protocol: the protocol below, as fsspec gives it.
        target_options: the options of ``target_protocol``.
        fs: a filesystem, or a storage, below, in place of ``target_protocol`` and ``target_options``.
        read_only: refuse every write.
        pipeline: hand zarr's whole selections and assignments to the engine, if zarr opens arrays through this.
        snapshot: what the name behind an ``@`` in ``fo`` stands for, as ``main@1CZ3…``: that snapshot is shown, wherever the branch points
            by now. Pickles and JSON of a filesystem that shows a snapshot hold it.
        options: those of ``shardstore.open``.

    Raises:
        InvalidInput: an option is unknown or has an invalid value, or there is nothing below.
    """

    protocol = "sharded"
    root_marker = ""
    transaction_type = ShardedTransaction
    everything = EVERYTHING
    storage_options: dict[str, Any]

    @takes_store_options
    def __init__(
        self,
        fo: str = "",
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        fs: Any = None,
        *,
        read_only: bool = False,
        pipeline: bool = True,
        snapshot: str | None = None,
        asynchronous: bool = False,
        loop: Any = None,
        batch_size: int | None = None,
        **options: Any,
    ) -> None:
        fsspec_options = {name: options.pop(name) for name in _FSSPEC_OPTIONS if name in options}
        super().__init__(asynchronous=asynchronous, loop=loop, batch_size=batch_size, **fsspec_options)
        check_flags(read_only=read_only, pipeline=pipeline)
        options, options_below = options_of_links(options, fo, target_protocol, target_options, fs)
        pinned = None if snapshot is None else Pinned.parse(snapshot)
        self._root = Root(link_below(fo, target_protocol, options_below, fs), options, pinned, self._show_snapshot)
        self.read_only = read_only
        self._pipeline = pipeline
        self._given_loop = loop
        # fsspec strips paths by a class method, which cannot know the root, everywhere; on an instance it can.
        self._strip_protocol = self._full_path  # type: ignore[method-assign]

    # fsspec makes instances by a call of the metaclass, which takes anything.
    __signature__ = inspect.Signature([*inspect.signature(__init__).parameters.values()][1:])

    # -- paths -----------------------------------------------------------------------------------------------------

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return without_protocol(path)

    def _full_path(self, path: Any) -> Any:
        """Return the full path of one, or of each of a list. A mapper of fsspec asks for it when it is made, and so shows one snapshot from
        then on, as all that is opened over it.
        """
        if not self.asynchronous and not on_io_loop():
            self._settle_snapshot()
        return self._root.full_path(path)

    def key_of(self, path: str) -> str:
        """Return the presented key that a path names; ``""`` for the root."""
        self._settle_snapshot()
        return self._root.key_of(path)

    async def find_root(self) -> None:
        await self._root.settle()

    def settle(self) -> None:
        """Find out where the hierarchy begins, before anything is done with paths."""
        sync(self.loop, self._root.settle)

    def _settle_snapshot(self) -> None:
        """Find out whether the URL names a snapshot, for those who ask for keys and the engine before they have read anything."""
        if self._root.may_be_snapshot:
            self.settle()

    async def _key(self, path: str) -> str:
        await self._root.settle()
        return self._root.key_of(path)

    async def _file_key(self, path: str, *, to_create: bool = False) -> str:
        key = await self._key(path)
        if not key and to_create:
            await self._root.settle(to_create=True)
            key = self._root.key_of(path)
        if not key and not await self._has_any(""):
            await self._root.settle(again=True)  # a hierarchy may have been made around it since then
            key = self._root.key_of(path)
            if not key:
                raise NotFound(f"there is nothing at {self.handle.url}")
        if not key:
            raise IsADirectoryError(f"{self._root.path!r} is the root of the store, not a file in it")
        return key

    async def _file_keys(self, paths: Iterable[str], *, to_create: bool = False) -> list[str]:
        await self._root.settle()
        return [self._root.key_of(path) or await self._file_key(path, to_create=to_create) for path in paths]

    async def _expand_path(self, path: Any, *args: Any, **kwargs: Any) -> list[str]:
        await self._root.settle()  # fsspec strips paths before it asks for anything
        paths: list[str] = await super()._expand_path(path, *args, **kwargs)
        return paths

    # -- about -----------------------------------------------------------------------------------------------------

    @property
    def loop(self) -> Any:
        """The loop of synchronous calls; after a fork, the child's own."""
        return self._given_loop if self._given_loop is not None else get_loop()

    @property
    def handle(self) -> Handle:
        """The recipe and the engine, which this shares with the other faces on the same place."""
        return self._root.handle

    @property
    def engine(self) -> Presented:
        """The engine of this process; its coroutines run on fsspec's IO loop only."""
        if self._pipeline and imported_zarr() is not None:  # zarr's arrays over this read and write in batches
            from shardstore.adapters.zarr.pipeline import install_pipeline

            install_pipeline()
        self._settle_snapshot()
        return self._root.handle.engine

    @property
    def counters(self) -> Counters:
        """The counters of the engine: requests, bytes, commits, conflicts, index hits."""
        return self._root.handle.engine.counters

    @property
    def uses_pipeline(self) -> bool:
        """True if zarr hands whole selections and assignments to the engine."""
        return self._pipeline

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._root.handle.url!r})"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return make_instance, (type(self), self.storage_args, self._pinned_options())

    def _pinned_options(self) -> dict[str, Any]:
        """Return the options that a copy is made by: it shows the same snapshot."""
        if self._root.pinned is None and not on_io_loop():
            self._settle_snapshot()
        return self.storage_options

    def _show_snapshot(self) -> None:
        """Have copies show the snapshot that this shows, zarr's too, which are made of these options; and fsspec make a new instance when
        the branch is asked for again: this one will not show what follows.
        """
        if "snapshot" not in self.storage_options:
            type(self)._cache.pop(self._fs_token, None)
            self.storage_options = {**self.storage_options, "snapshot": str(self._root.pinned)}

    def to_dict(self, *, include_password: bool = True) -> dict[str, Any]:
        """Return what JSON makes this instance again from; as fsspec's, which knows no options that are ``None``."""
        options = {k: v for k, v in self._pinned_options().items() if include_password or k != "password"}
        encoder = _JSONEncoder()
        return {
            "cls": f"{type(self).__module__}:{type(self).__name__}",
            "protocol": self.protocol,
            "args": encoder.make_serializable(self.storage_args),
            **encoder.make_serializable(options),
        }

    @property
    def async_impl(self) -> bool:
        """``True``. zarr looks at this before it makes a store of a filesystem, so that is when it is made to ask before it creates."""
        if imported_zarr() is not None:
            from shardstore.adapters.zarr.arrays import replace_methods

            replace_methods()
        return True

    def check_writable(self) -> None:
        """Raise ``ReadOnly`` if this instance may not write."""
        if self.read_only:
            raise ReadOnly(f"{self.handle.url} was opened read-only: open it with read_only=False to write")

    def invalidate_cache(self, path: str | None = None) -> None:
        """Do nothing: there is no listing cache, and every read validates the indices."""

    # -- reading ---------------------------------------------------------------------------------------------------

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Return the bytes of one file from ``start`` to ``end`` (exclusive); negative numbers count from its end."""
        key = await self._file_key(path)
        request, part = _byte_request(start, end)
        value = await run_async(self.engine.get((key, request)))
        if value is None:
            raise await self._absence(key)
        return bytes(value[part])

    async def _cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        batch_size: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[bytes | Exception]:
        """Return ranges of many files, in one batch of two rounds of requests. The engine chooses ``max_gap`` itself."""
        if not isinstance(paths, list):
            raise TypeError("paths must be a list")
        starts = list(starts) if isinstance(starts, Iterable) else [starts] * len(paths)
        ends = list(ends) if isinstance(ends, Iterable) else [ends] * len(paths)
        if len(starts) != len(paths) or len(ends) != len(paths):
            raise ValueError(f"{len(paths)} paths, {len(starts)} starts and {len(ends)} ends: give one start and one end for each path")
        await self._root.settle()
        out: list[bytes | Exception | None] = [None] * len(paths)
        wanted: list[tuple[int, str, ByteRequest, slice]] = []
        for i, (path, start, end) in enumerate(zip(paths, starts, ends, strict=True)):
            try:
                wanted.append((i, self._root.key_of(path) or await self._file_key(path), *_byte_request(start, end)))
            except (NotFound, IsADirectoryError) as exc:  # of the root, which has no value
                out[i] = exc
        results = await self._parts_of([(key, request, part) for _, key, request, part in wanted])
        for (i, *_), result in zip(wanted, results, strict=True):
            out[i] = result
        found = [value for value in out if value is not None]
        if on_error != "return":
            raise_first(found)
        return found

    async def _parts_of(self, wanted: Sequence[tuple[str, ByteRequest, slice]]) -> list[bytes | Exception]:
        """Return the part of each value that the slice of a request's answer gives, or the error."""
        values = await run_async(self.engine.get_many([(key, request) for key, request, _ in wanted]))
        for value in values:
            if isinstance(value, SnapshotExpired):
                raise value  # of all files: a caller that leaves out what is returned would take it for absent
        absences = iter(await self._absences([key for (key, *_), value in zip(wanted, values, strict=True) if value is None]))
        return [
            next(absences) if value is None else as_known(value) if isinstance(value, Exception) else bytes(value[part])
            for (_, _, part), value in zip(wanted, values, strict=True)
        ]

    async def _cat(
        self, path: Any, recursive: bool = False, on_error: str = "raise", batch_size: int | None = None, **kwargs: Any
    ) -> bytes | dict[str, bytes | Exception]:
        """Return whole files in one batch: one file as bytes, many as a dictionary by path. With ``recursive``, directories are left out;
        with ``on_error``, the error of one path is returned, or left out, as those of many are.

        With ``on_error="omit"`` directories and files that do not exist are left out, and other errors are raised: a damaged chunk is not
        an absent one.
        """
        paths = await self._expand_path(path, recursive=recursive)
        if recursive:
            directories = {p.rpartition("/")[0] for p in paths}
            paths = [p for p in paths if (p not in directories if len(paths) > 1 else await self._isfile(p))]
        values = await self._cat_ranges(paths, None, None, on_error="raise" if on_error == "raise" else "return")
        if on_error == "omit":
            raise_first([value for value in values if not isinstance(value, ABSENT_ERRORS)])
        if len(paths) == 1 and isinstance(path, str) and paths[0] == self._root.full_path(path):
            if isinstance(values[0], Exception):
                return {} if on_error == "omit" else {paths[0]: values[0]}
            return values[0]
        return {p: v for p, v in zip(paths, values, strict=True) if on_error != "omit" or not isinstance(v, Exception)}

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Open a file; what is written to it is stored when it is closed, and not by a block that fails.

        This holds for text and compressed files too, but not for ``fsspec.open``, which closes its files after an exception as usual.
        """
        self.settle()
        binary = mode if "b" in mode else mode.replace("t", "") + "b"
        of_text = {} if "b" in mode else {name: kwargs.pop(name) for name in ("encoding", "errors", "newline") if name in kwargs}
        file: ShardedFile = super().open(path, binary, block_size, cache_options, **kwargs)
        opened: Any = file
        if (packing := get_compression(path, compression)) is not None:
            opened = compr[packing](file, mode=binary[0])
            if binary != "rb":
                opened = PackedFile(opened, file)
        return opened if "b" in mode else TextFile(opened, file, **of_text)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> ShardedFile:
        if mode != "rb":
            self.check_writable()
        options = {"block_size": block_size, "autocommit": autocommit, "cache_options": cache_options, **kwargs}
        key = sync(self.loop, self._file_key, path, to_create=mode != "rb")
        try:
            return ShardedFile(self, self._root.path_of(key), self.engine, key, mode, **options)
        except NotFound as exc:
            raise sync(self.loop, self._absence, key) from exc

    # -- writing ---------------------------------------------------------------------------------------------------

    async def _update(self, updates: Sequence[tuple[str, Action]]) -> None:
        self.check_writable()
        raise_failed(await run_async(self.engine.update_many(updates)))

    async def _pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        """Store a file; durable on return. With ``mode="create"`` an existing file is kept, and ``FileExistsError`` raised."""
        self.check_writable()
        key = await self._file_key(path, to_create=True)
        if mode == "create":
            if not await run_async(self.engine.create(key, given_bytes(value, key))):
                raise FileExistsError(f"{key!r} exists in {self.handle.url} already")
        elif mode == "overwrite":
            await run_async(set_value(self.engine, key, given_bytes(value, key), seen_shape.get()))
        else:
            raise InvalidInput(f"mode {mode!r} is neither 'overwrite' nor 'create'")

    async def _pipe(self, path: Any, value: Any = None, batch_size: int | None = None, **kwargs: Any) -> None:
        """Store files in one batch: one commit a shard, metadata first."""
        if isinstance(path, str):
            await self._pipe_file(path, value, **kwargs)
        elif not isinstance(path, dict):
            raise ValueError("path must be a string or a dictionary of values by path")
        elif kwargs.get("mode", "overwrite") != "overwrite":
            await asyncio.gather(*(self._pipe_file(p, v, **kwargs) for p, v in path.items()))
        else:
            keys = await self._file_keys(path, to_create=True)
            await self._update([(key, SetValue(given_bytes(value, key))) for key, value in zip(keys, path.values(), strict=True)])

    async def _rm_file(self, path: str, **kwargs: Any) -> None:
        self.check_writable()
        key = await self._file_key(path)
        if await self._is_only_directory(path):
            raise await self._absence(key)
        await run_async(self.engine.update((key, ERASE)))

    async def _rm(
        self, path: Any, recursive: bool = False, batch_size: int | None = None, maxdepth: int | None = None, **kwargs: Any
    ) -> None:
        """Erase files in one batch; with ``recursive`` directories too, whole shards unread and metadata last.

        Paths are taken as they stand: this is what zarr calls, whose arrays may be named ``a[1]``. A file that is not there is
        not an error, as on object stores.
        """
        self.check_writable()
        paths = [path] if isinstance(path, str) else list(path)
        if recursive and maxdepth is None:
            await self._rm_trees([await self._key(p) for p in paths])
            return
        if recursive:
            paths = [found for p in paths for found in await self._find(p, maxdepth=maxdepth)]
        keys = [key for p in paths if (key := await self._key(p))]
        await self._update([(key, ERASE) for key in keys])

    async def _rm_trees(self, keys: Sequence[str]) -> None:
        """Erase files, in one batch, and directories. Of several keys, those that are not there are left out, as fsspec does it.

        Raises:
            NotFound: none of them is there.
        """
        directories: dict[str, None] = {}
        candidates: list[str] = []
        for key in sorted(set(keys)):  # a directory comes before what is in it
            if key and any(above in directories for above, _ in ancestors(key)):
                continue
            if await self._is_directory(key):
                directories[key] = None
            if key:
                candidates.append(key)
        are_files = await asyncio.gather(*(run_async(self.engine.exists(key)) for key in candidates))
        files = [key for key, is_file in zip(candidates, are_files, strict=True) if is_file]
        if not files and not directories:
            raise self._missing(keys[0]) if len(keys) == 1 else NotFound(f"none of {len(keys)} paths exists in {self.handle.url}")
        await self._update([(key, ERASE) for key in files])
        for key in directories:
            await run_async(self.engine.erase_prefix(join(key, "")))

    async def _rm_expanded(self, path: Any, recursive: bool, maxdepth: int | None) -> None:
        paths = await self._expand_path(path)
        if not recursive:
            for p in paths:
                if not await self._isfile(p):
                    await self._info(p)
                    raise IsADirectoryError(f"{self.key_of(p)!r} is a directory: rm(…, recursive=True) removes it with what is in it")
        await self._rm(paths, recursive, maxdepth=maxdepth)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Erase files, by path or glob; directories with ``recursive``: whole shards unread, metadata last.

        Raises:
            NotFound: there is no such file.
            IsADirectoryError: it is a directory, and ``recursive`` was not asked for.
        """
        sync(self.loop, self._rm_expanded, path, recursive, maxdepth)

    async def _mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Check that nothing is there; a directory exists once something is in it."""
        self.check_writable()
        if await self._exists(path):
            raise FileExistsError(f"{self.key_of(path)!r} exists in {self.handle.url} already")

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        if not exist_ok:
            await self._mkdir(path)

    async def _rmdir(self, path: str) -> None:
        """Refuse a directory that is not empty; an empty one does not exist."""
        self.check_writable()
        key = await self._key(path)
        if await self._has_any(join(key, "")):
            raise OSError(f"{key!r} of {self.handle.url} is not empty: rm(…, recursive=True) removes it")

    def rmdir(self, path: str) -> None:
        """Do nothing. Raises ``OSError`` if the directory is not empty."""
        sync(self.loop, self._rmdir, path)

    def start_transaction(self) -> ShardedTransaction:
        """Hold back writes until ``end_transaction``; ``with fs.transaction:`` is safer, which ends it in any case."""
        transaction: ShardedTransaction = self.transaction
        transaction.start()
        return transaction


class _JSONEncoder(FilesystemJSONEncoder):  # type: ignore[misc]  # fsspec has no types
    def make_serializable(self, obj: Any) -> Any:
        return None if obj is None else super().make_serializable(obj)


def _byte_request(start: int | None, end: int | None) -> tuple[ByteRequest, slice]:
    """Return the request that covers ``start`` to ``end``, and the part of its answer that is wanted.

    Negative bounds count from the end of the value. They are resolved on the bytes of one read, without asking for
    the size first.
    """
    start = start or 0
    if end is not None and end >= 0:
        if start < 0:  # only the whole value gives both
            return EVERYTHING, slice(start, end)
        return ByteRange(start, max(start, end)), slice(None)
    request: ByteRequest = EVERYTHING if start == 0 else ByteOffset(start) if start > 0 else ByteSuffix(-start)
    return request, slice(None, end)
