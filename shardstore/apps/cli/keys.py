"""``shardstore ls`` and ``cat``: keys as a client sees them, with their sizes, and the bytes of one."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated

from shardstore._sync import iterate, run_sync
from shardstore.adapters.store_paths import StorePath
from shardstore.apps.cli.arguments import AsJson, Recursive, StorageOptions, Url, argument
from shardstore.apps.cli.output import JsonList, first_error
from shardstore.errors import Corruption, InvalidInput, NotFound
from shardstore.format.store_keys import check_prefix, join, metadata_key
from shardstore.model.options import CommandOption
from shardstore.presented.flavours import Presented

_SIZE_COLUMNS = 14


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key relative to the store's root, or a directory, whose name ends with ``/`` and which has no size."""

    key: str
    nbytes: int | None = None


def ls(
    *,
    url: Url,
    prefix: Annotated[str | None, argument("PREFIX", "A directory or key below URL.")] = None,
    recursive: Recursive = False,
    long: Annotated[bool, CommandOption("Show sizes in bytes too.", flags=("--long", "-l"))] = False,
    stored: Annotated[bool, CommandOption("List the stored objects, which are shards, instead of chunks.")] = False,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """List keys: metadata documents, chunks, and other objects. Names are relative to URL, and directories end with /.

    Chunks are found by the indices of the shards, with one request for each shard.

    Examples:
      shardstore ls data.zarr
      shardstore ls -l s3://bucket/data.zarr ct/c/0
      shardstore ls -r --json s3://bucket/data.zarr/ct
      shardstore ls -r -l --stored data.zarr
    """
    target = storage.resolve(url)
    path = check_prefix(join(target.path, (prefix or "").strip("/"))).strip("/")
    # Names are what can be given to other commands behind the same URL; a URL that is a key itself is named by it.
    base = join(target.path, "")
    documents = JsonList()
    found = False

    def put(entry: ListedKey) -> None:
        nonlocal found
        found = True
        name = entry.key.removeprefix(base)
        if as_json:
            kind = "directory" if entry.key.endswith("/") else "key"
            documents.add({"name": name, "key": entry.key, "type": kind, "nbytes": entry.nbytes})
        else:
            size = f"{'-' if entry.nbytes is None else entry.nbytes:>{_SIZE_COLUMNS}}  " if long else ""
            sys.stdout.write(f"{size}{name}\n")

    source = _Source(target.engine, stored, sizes=long or as_json)
    try:
        asyncio.run(_list(source, path, recursive, put))
    except Exception as exc:
        if not isinstance(error := first_error(exc), Corruption) or stored:
            raise
        # Chunks of a damaged index cannot be listed; stored objects can.
        raise Corruption(f"{error}. shardstore ls --stored lists the stored objects, and shardstore info the damaged shards") from exc
    if not found:
        raise NotFound(f"there is nothing at {target.shown(path)}: list the directory above it, or check the spelling")
    if as_json:
        documents.end()


async def _list(source: _Source, path: str, recursive: bool, put: Callable[[ListedKey], None]) -> None:
    async for entry in iterate(lambda: source.everything(path) if recursive else source.level(path)):
        put(entry)


class _Source:
    """Entries of one store, presented or stored. Runs on the IO loop."""

    def __init__(self, engine: Presented, stored: bool, *, sizes: bool) -> None:
        self._engine = engine
        self._stored = stored
        self._sizes = sizes

    async def everything(self, path: str) -> AsyncIterator[ListedKey]:
        """Yield the key ``path`` itself, and everything below it, in the order of discovery."""
        if (itself := await self._itself(path)) is not None:
            yield itself
        below = join(path, "")
        if self._stored:
            async for info in self._engine.storage.list(below):
                yield ListedKey(info.key, info.nbytes)
            return
        async for value in self._engine.list(below):
            yield ListedKey(value.key, await self._nbytes(value.key, value.nbytes))

    async def level(self, path: str) -> AsyncIterator[ListedKey]:
        """Yield the key ``path`` itself, and its direct children: directories first, then keys, in order."""
        if (itself := await self._itself(path)) is not None:
            yield itself
        below = join(path, "")
        values: list[tuple[str, int | None]]
        if self._stored:
            objects = await self._engine.storage.list_dir(below)
            prefixes, values = objects.prefixes, [(info.key, info.nbytes) for info in objects.objects]
        else:
            listed = await self._engine.list_dir(below)
            prefixes, values = listed.prefixes, [(value.key, value.nbytes) for value in listed.values]
        for prefix in sorted(prefixes, key=_in_order):
            yield ListedKey(prefix)
        for key, nbytes in sorted(values, key=lambda value: _in_order(value[0])):
            yield ListedKey(key, await self._nbytes(key, nbytes))

    async def _itself(self, path: str) -> ListedKey | None:
        if not path:
            return None
        if self._stored:
            info = await self._engine.storage.stat(path)
            return None if info is None else ListedKey(path, info.nbytes)
        nbytes = await self._engine.size(path)
        return None if nbytes is None else ListedKey(path, nbytes)

    async def _nbytes(self, key: str, nbytes: int | None) -> int | None:
        """Return the size of an entry, if sizes are wanted: a document's presented size is known only after reading it."""
        return await self._engine.size(key) if nbytes is None and self._sizes else nbytes


def _in_order(key: str) -> list[tuple[int, int | str]]:
    """Return a sort key with numbers in numerical order: ``c/2`` before ``c/10``."""
    parts = key.replace(".", "/").split("/")
    return [(0, int(part)) if part.isascii() and part.isdecimal() else (1, part) for part in parts]


_PIECE_NBYTES = 16 * 2**20

_RANGE = re.compile(r"(?P<start>-?[0-9]+)?:(?P<end>-?[0-9]+)?", re.ASCII)


def cat(
    *,
    url: Url,
    key: Annotated[str | None, argument("KEY", "A key below URL.")] = None,
    byte_range: Annotated[
        str | None, CommandOption("Bytes from A to before B, as in Python: 0:100, 100:, -16:.", "A:B", flags=("--range",))
    ] = None,
    storage: StorageOptions,
) -> None:
    """Write the bytes of a chunk, a metadata document or another object to stdout. They are as a client sees them.

    Examples:
      shardstore cat s3://bucket/data.zarr ct/zarr.json
      shardstore cat s3://bucket/data.zarr/ct/c/0/3/1 > chunk.bin
      shardstore cat data.zarr ct/c/0/0/0 --range 0:16 | xxd
    """
    wanted = parse_range(byte_range)
    target = storage.resolve(url).as_key()
    path = join(target.path, key.strip("/")) if key else target.path
    run_sync(write_out(target, path, wanted))
    sys.stdout.flush()


def parse_range(text: str | None) -> slice:
    """Return the slice for ``a:b``, as in Python.

    Raises:
        InvalidInput: the text has another form.
    """
    match = _RANGE.fullmatch(text if text is not None else ":")
    if match is None:
        raise InvalidInput(f"range {text!r} is not of the form A:B, such as 0:100, 100: or -16:")
    start, end = match["start"], match["end"]
    return slice(None if start is None else int(start), None if end is None else int(end))


async def write_out(target: StorePath, path: str, wanted: slice, piece_nbytes: int = _PIECE_NBYTES) -> None:
    """Write a value in pieces, all of one version, so that an object of any size fits into memory."""
    value = await target.engine.pin(path) if path else None
    if value is None:
        raise NotFound(await _why_not(target, path))
    start, end, _ = wanted.indices(value.nbytes)
    for piece in range(start, end, piece_nbytes):
        sys.stdout.buffer.write(await value.read(piece, min(end, piece + piece_nbytes)))


async def _why_not(target: StorePath, path: str) -> str:
    where = target.shown(path)
    if await target.engine.is_node(path):
        return f"{where} is a node, not a key: its document is {metadata_key(path)!r}"
    listed = await target.engine.list_dir(path)
    if listed.values or listed.prefixes:
        return f"{where} is a directory, not a key: shardstore ls shows what is in it"
    return f"there is no key at {where}; a chunk that was never written does not exist, and reads as the fill value"
