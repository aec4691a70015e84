"""``ShardingTransformer``: the operations of the 2022 storage transformer, on Zarr v3 keys.

Specification: sharding storage transformer 1.0 (draft), "API implementation"; Zarr v3, "Abstract store interface".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from operator import itemgetter
from typing import Any, Unpack

from shardstore._sync import run_sync
from shardstore.adapters.handle import Handle, StoreOptions, SynchronousFace, given_bytes, takes_store_options, values_of
from shardstore.engine.actions import ERASE, Action, Patch, SetValue
from shardstore.errors import InvalidInput
from shardstore.model.options import check_flags
from shardstore.model.ranges import EVERYTHING, ByteOffset, ByteRange, ByteRequest, BytesLike, ByteSuffix
from shardstore.presented.engine_storage import EngineStorage
from shardstore.storage.base import Storage
from shardstore.storage.python_stores import WITHOUT_VERSIONS, PartialAccessStorage

Range = tuple[int, int | None] | None
"""``(start, length)`` in bytes, that is ``value[start:][:length]``; a length of ``None``: to the end; ``None``: all.

A negative start counts from the end (which the draft does not have), and never reaches before the value's first byte.
"""

Keys = list[str]


class ShardingTransformer(SynchronousFace):
    """A store of presented keys over shards, synchronous and thread-safe.

    Keys are those of a Zarr v3 hierarchy without sharding: ``ct/zarr.json``, ``ct/c/0/3/1``. Takes the same arguments as
    ``shardstore.open``, but for ``pipeline``.
    """

    @takes_store_options
    def __init__(
        self, target: Any, *, read_only: bool = False, storage_options: dict[str, Any] | None = None, **options: Unpack[StoreOptions]
    ) -> None:
        check_flags(read_only=read_only)
        self._handle = Handle.find(target, storage_options, options)
        self._read_only = read_only

    def as_storage(self) -> Storage:
        """Return what this presents, as the storage below another transformer, or whatever else takes a target."""
        if self.engine.storage.kind == WITHOUT_VERSIONS:
            return PartialAccessStorage(self)  # versions of a chunk that have one size differ by their bytes alone
        return EngineStorage(self.engine, read_only=self._read_only)

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, or ``None`` if there is none.

        Raises:
            Corruption: the shard or its index is damaged.
        """
        return self.get_partial_values([(key, None)])[0]

    def get_partial_values(self, key_ranges: Iterable[tuple[str, Range]]) -> list[bytes | None]:
        """Return the bytes of each ``(key, (start, length))``, in order; ``None`` for a key without a value.

        Ranges are clipped to the value; a key may occur many times. Two rounds of requests: indices, then chunks.
        """
        wanted = list(key_ranges)
        values = run_sync(self.engine.get_many([(key, _byte_request(given)) for key, given in wanted]))
        return [None if value is None else _cut(value, given) for value, (_, given) in zip(values_of(values), wanted, strict=True)]

    def set(self, key: str, value: BytesLike) -> None:
        """Store a value; durable on return."""
        self._update([(key, SetValue(given_bytes(value, key)))])  # a copy of what could change, where it is not bytes already

    def set_partial_values(self, key_start_values: Iterable[tuple[str, int, BytesLike]]) -> None:
        """Store bytes from ``start`` of each key's value; one commit a shard.

        A value grows where they reach past its end. A start of 0 of a key without a value creates it. Where every chunk of a shard is
        given from its first byte, the shard is built of what is given, and nothing is read (the draft's own rule): then nothing is left of
        longer chunks that were there. Chunks of an array without compressor are all of one size: there, only values of that size are
        whole chunks, and every other one is a part of a chunk that exists.

        Raises:
            InvalidInput: a start lies behind the end of the value, ranges of one key overlap, or a chunk would have another size than
                the array's codecs give to each.
        """
        spans: dict[str, list[tuple[int, bytes]]] = {}
        for key, start, value in key_start_values:
            spans.setdefault(key, []).append((start, given_bytes(value, key)))
        updates: list[tuple[str, Action]] = []
        for key, mine in spans.items():
            mine = sorted((span for span in mine if span[1]), key=itemgetter(0)) or mine[:1]
            if any(start + len(value) > after for (start, value), (after, _) in pairwise(mine)):
                raise InvalidInput(f"the ranges to set of {key!r} overlap")
            updates += [(key, Patch(start, value, may_be_whole=True)) for start, value in _joined(mine)]
        self._update(updates)

    def erase(self, key: str) -> None:
        """Erase a value; nothing happens if there is none."""
        self.erase_values([key])

    def erase_values(self, keys: Iterable[str]) -> None:
        """Erase values, one commit a shard; a shard left without chunks is removed."""
        self._update([(key, ERASE) for key in keys])

    def erase_prefix(self, prefix: str) -> None:
        """Erase everything below ``prefix``, which is ``""`` or ends with ``/``; a node's metadata goes last."""
        self._check_writable()
        run_sync(self.engine.erase_prefix(prefix))

    def list(self) -> Keys:
        """Return all keys, sorted."""
        return self.list_prefix("")

    def list_dir(self, prefix: str) -> tuple[Keys, Keys]:
        """Return ``(keys, prefixes)`` directly below ``prefix``, sorted.

        Keys are exact. Prefixes below an array are those of all chunks of its grid that its shards there could hold, and of those beyond
        the grid that exist.
        """
        listed = run_sync(self.engine.list_dir(prefix, approximate=True))
        return sorted(listed.keys), sorted(listed.prefixes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.list())


def _joined(spans: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Yield ranges in their order; ranges that touch become one."""
    pieces: list[bytes] = []
    first = end = 0
    for start, value in spans:
        if pieces and start != end:
            yield first, b"".join(pieces)
            pieces = []
        if not pieces:
            first = start
        pieces.append(value)
        end = start + len(value)
    if pieces:
        yield first, b"".join(pieces)


def _byte_request(wanted: Range) -> ByteRequest:
    if wanted is None:
        return EVERYTHING
    start, length = wanted
    if length is not None and length < 0:
        raise InvalidInput(f"range ({start}, {length}) has a negative length")
    if start < 0:
        return ByteSuffix(-start)
    return ByteOffset(start) if length is None else ByteRange(start, start + length)


def _cut(value: memoryview, wanted: Range) -> bytes:
    """Return the bytes of a range from those that its request brought: if its start counts from the end, these reach to the end."""
    return bytes(value if wanted is None or wanted[0] >= 0 or wanted[1] is None else value[: wanted[1]])
