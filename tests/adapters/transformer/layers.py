"""Transformers one upon the other, with the calls counted that each makes of the store below it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shardstore import ShardingTransformer
from shardstore.plan.policy import ArrayInfo
from shardstore.storage.base import Read, ReadOutcome, Storage
from shardstore.storage.wrappers import StorageWrapper


def _counted(name: str, call: str) -> Callable[..., Any]:
    def method(self: CountedCalls, *args: Any) -> Any:
        self.calls[call] += 1
        return getattr(self.inner, name)(*args)

    return method


class CountedCalls(StorageWrapper):
    """Counts calls: one of ``read`` is what the draft calls one ``get_partial_values``, however many keys and ranges it has."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self.read_keys: list[str] = []

    @contextmanager
    def block(self) -> Iterator[Counter[str]]:
        """The calls that the block makes."""
        self.calls.clear()
        self.read_keys.clear()
        yield self.calls

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        self.calls["get_partial_values"] += 1
        self.read_keys += [read.key for read in reads]
        return await self.inner.read(reads)

    write: Any = _counted("write", "set")
    compose: Any = _counted("compose", "set")
    copy: Any = _counted("copy", "copy")
    rename_prefix: Any = _counted("rename_prefix", "rename")
    delete: Any = _counted("delete", "erase")
    delete_many: Any = _counted("delete_many", "erase_values")
    stat: Any = _counted("stat", "stat")
    list: Any = _counted("list", "list_prefix")
    list_dir: Any = _counted("list_dir", "list_dir")


def two_a_side(array: ArrayInfo) -> tuple[int, ...]:
    return (2,) * len(array.shape)


def layered(storage: Storage, layers: int, **options: Any) -> tuple[ShardingTransformer, CountedCalls]:
    """The transformer on top, on the draft's keys, and what it calls: the one below it, or ``storage``."""
    given: dict[str, Any] = {"present": "draft", "chunks_per_shard": two_a_side, "metadata_ttl": math.inf} | options
    counted = CountedCalls(storage)
    for _ in range(layers - 1):
        counted = CountedCalls(ShardingTransformer(counted, **given).as_storage())
    return ShardingTransformer(counted, **given), counted


def document(shape: tuple[int, ...], chunks: tuple[int, ...], *, separator: str = "/", compressed: bool = False, **given: Any) -> bytes:
    """Of an array of bytes, as zarr-python 2.18 writes it."""
    compressor = {"compressor": {"codec": "https://purl.org/zarr/spec/codec/zlib/1.0", "configuration": {"level": 1}}} if compressed else {}
    members = {
        "attributes": {},
        "chunk_grid": {"chunk_shape": list(chunks), "separator": separator, "type": "regular"},
        "chunk_memory_layout": "C",
        "data_type": "|u1",
        "dimension_separator": separator,
        "extensions": [],
        "fill_value": 0,
        "shape": list(shape),
    }
    return json.dumps(members | compressor | given, indent=4, sort_keys=True).encode()


class Store:
    """The draft's interface over a dictionary, as briefly as it can be written. Ranges may count from the end."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.calls: Counter[str] = Counter()

    def get_partial_values(self, key_ranges: Sequence[tuple[str, tuple[int, int | None]]]) -> list[bytes | None]:
        self.calls["get_partial_values"] += 1
        return [
            None if key not in self.values else self.values[key][start:] if length is None else self.values[key][start:][:length]
            for key, (start, length) in key_ranges
        ]

    def set(self, key: str, value: bytes) -> None:
        self.calls["set"] += 1
        self.values[key] = value

    def erase(self, key: str) -> None:
        self.calls["erase"] += 1
        del self.values[key]

    def list_prefix(self, prefix: str) -> Iterable[str]:
        assert not prefix or prefix.endswith("/"), "the draft leaves it undefined"
        return [key for key in self.values if key.startswith(prefix)]

    def list_dir(self, prefix: str) -> tuple[list[str], list[str]]:
        below = [key[len(prefix) :].partition("/") for key in self.list_prefix(prefix)]
        return [prefix + name for name, slash, _ in below if not slash], sorted({f"{prefix}{name}/" for name, slash, _ in below if slash})
