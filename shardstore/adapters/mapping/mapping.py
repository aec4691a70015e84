"""``ShardedMap``: presented keys and their bytes as a mapping."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Literal, Unpack

from shardstore._sync import as_known, run_sync
from shardstore.adapters.handle import Handle, StoreOptions, SynchronousFace, given_bytes, takes_store_options
from shardstore.engine.actions import ERASE, SetValue
from shardstore.errors import InvalidInput, NotFound
from shardstore.format.store_keys import join
from shardstore.model.options import check_flags
from shardstore.model.ranges import EVERYTHING, BytesLike

OnError = Literal["raise", "omit", "return"]


class ShardedMap(SynchronousFace, MutableMapping[str, bytes]):
    """A mapping from the presented keys of a store, of documents and single chunks, to their bytes.

    Single operations are batches of one; ``getitems``, ``setitems`` and ``delitems`` take many: two rounds of requests for
    a read, one commit a shard for a write. Maps on the same place with the same options share one engine, with zarr's
    stores and fsspec's filesystems too.

    Args:
        url: what ``shardstore.open`` takes.
        read_only: refuse every write.
        storage_options: for the filesystem that the URL names.
        options: those of ``shardstore.open``.
    """

    @takes_store_options
    def __init__(
        self, url: Any, *, read_only: bool = False, storage_options: dict[str, Any] | None = None, **options: Unpack[StoreOptions]
    ) -> None:
        check_flags(read_only=read_only)
        self._handle = Handle.find(url, storage_options, options)
        self._read_only = read_only

    # -- about -----------------------------------------------------------------------------------------------------

    def prefetch(self, path: str, region: Sequence[slice] | None = None) -> int:
        """Load the shard indices of a region of an array; see ``ShardedStore.prefetch``."""
        return run_sync(self.engine.prefetch(path.strip("/"), region))

    # -- many keys -------------------------------------------------------------------------------------------------

    def getitems(self, keys: Iterable[str], on_error: OnError = "raise") -> dict[str, bytes | Exception]:
        """Return the values of many keys, in one batch.

        ``on_error`` is for a key that is missing or cannot be read. ``"raise"``: the first error is raised; ``"omit"``: a missing key
        is left out, other errors are raised; ``"return"``: the error takes the place of the value.

        Raises:
            NotFound: (``"raise"``) a key does not exist.
            Corruption: the shard or the entry of a key is damaged.
        """
        if on_error not in ("raise", "omit", "return"):
            raise InvalidInput(f"on_error={on_error!r} is not 'raise', 'omit' or 'return'")
        wanted = list(dict.fromkeys(keys))
        found: dict[str, bytes | Exception] = {}
        for key, value in zip(wanted, run_sync(self.engine.get_many([(key, EVERYTHING) for key in wanted])), strict=True):
            if value is None:
                if on_error == "omit":
                    continue
                outcome: bytes | Exception = self._missing(key)
            else:
                outcome = as_known(value) if isinstance(value, Exception) else bytes(value)
            if isinstance(outcome, Exception) and on_error != "return":
                raise outcome
            found[key] = outcome
        return found

    def setitems(self, values: Mapping[str, BytesLike]) -> None:
        """Store the values of many keys in one batch; durable on return. One commit a shard, metadata first.

        Raises:
            InvalidInput: a key or a document is refused; the rest may be stored, a note says how many.
            Conflict: other processes kept changing a shard.
        """
        self._update([(key, SetValue(given_bytes(value, key))) for key, value in values.items()])

    def delitems(self, keys: Iterable[str]) -> None:
        """Erase many keys in one batch; a missing key is not an error. Metadata is erased last."""
        self._update([(key, ERASE) for key in keys])

    # -- single keys -----------------------------------------------------------------------------------------------

    def __getitem__(self, key: str) -> bytes:
        value = self.engine.short_value(_checked(key), EVERYTHING)
        if value is None:
            value = run_sync(self.engine.get((key, EVERYTHING)))
        if value is None:
            raise self._missing(key)
        return bytes(value)

    def __setitem__(self, key: str, value: BytesLike) -> None:
        self._update([(_checked(key), SetValue(given_bytes(value, key)))])

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise self._missing(key)
        self._update([(key, ERASE)])

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(key) and run_sync(self.engine.exists(key))

    def __iter__(self) -> Iterator[str]:
        return iter(self.list_prefix(""))

    def __len__(self) -> int:
        return len(self.list_prefix(""))

    def clear(self) -> None:
        """Remove everything, whole shards unread."""
        self._check_writable()
        run_sync(self.engine.erase_prefix(""))

    # -- below a prefix --------------------------------------------------------------------------------------------

    def getsize(self, key: str) -> int:
        """Return the size of a value in bytes; only a document is read for it.

        Raises:
            NotFound: there is no such key.
        """
        nbytes = run_sync(self.engine.size(_checked(key)))
        if nbytes is None:
            raise self._missing(key)
        return nbytes

    def listdir(self, path: str = "") -> list[str]:
        """Return the names directly below a path, sorted; ``[]`` if there are none."""
        prefix = join(path.strip("/"), "")
        listed = run_sync(self.engine.list_dir(prefix))
        return sorted({key[len(prefix) :].rstrip("/") for key in (*listed.keys, *listed.prefixes)})

    def rename(self, src_path: str, dst_path: str) -> None:
        """Move a node, or everything below a path, by its stored objects.

        Raises:
            InvalidInput: there is something at ``dst_path`` already, or nothing at ``src_path``.
        """
        self._check_writable()
        run_sync(self.engine.move_prefix(src_path.strip("/"), dst_path.strip("/")))

    def rmdir(self, path: str) -> None:
        """Remove a node, or everything below a path: whole shards unread, metadata last."""
        self._check_writable()
        run_sync(self.engine.erase_prefix(join(path.strip("/"), "")))

    # -- the rest --------------------------------------------------------------------------------------------------

    def _missing(self, key: str) -> NotFound:
        return NotFound(f"{key!r} does not exist in {self.url}")


def _checked(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidInput(f"a key has to be a string, not {key!r}")
    return key
