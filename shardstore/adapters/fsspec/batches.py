"""Many values from one place to another, in batches of bounded memory, metadata first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from shardstore.adapters.batch_values import raise_failed
from shardstore.engine.actions import Action, SetValue
from shardstore.errors import NotFound
from shardstore.format.store_keys import metadata_path
from shardstore.model.ranges import EVERYTHING
from shardstore.presented.flavours import Presented

_READ_AT_ONCE = 64

Pair = tuple[str, str]


async def copied_in_batches(engine: Presented, pairs: Sequence[Pair], *, missing_ok: bool = False) -> None:
    """Copy values from keys to keys of one store.

    Raises:
        NotFound: a key has no value, unless ``missing_ok``; those before it may be copied.
    """
    batch = _Batch(engine)
    for part in _parts(sorted(pairs, key=lambda pair: metadata_path(pair[1]) is None)):
        values = await engine.get_many([(source, EVERYTHING) for source, _ in part])
        for (source, target), value in zip(part, values, strict=True):
            if isinstance(value, Exception):
                raise value
            if value is not None:
                await batch.add(target, bytes(value))
            elif not missing_ok:
                raise NotFound(f"{source!r} does not exist in {engine.storage.url}")
    await batch.flush()


async def uploaded_in_batches(engine: Presented, pairs: Sequence[Pair], callback: Any = None) -> None:
    """Store local files, ``(path, key)`` each; ``callback`` is fsspec's."""
    if callback is not None:
        callback.set_size(len(pairs))
    batch = _Batch(engine)
    for path, key in sorted(pairs, key=lambda pair: metadata_path(pair[1]) is None):
        await batch.add(key, await asyncio.to_thread(Path(path).read_bytes))
        if callback is not None:
            callback.relative_update(1)
    await batch.flush()


async def downloaded_in_batches(engine: Presented, pairs: Sequence[Pair], callback: Any = None) -> None:
    """Fetch values into local files, ``(key, path)`` each.

    Raises:
        NotFound: a key has no value.
    """
    if callback is not None:
        callback.set_size(len(pairs))
    for part in _parts(pairs):
        values = await engine.get_many([(key, EVERYTHING) for key, _ in part])
        for (key, path), value in zip(part, values, strict=True):
            if isinstance(value, Exception):
                raise value
            if value is None:
                raise NotFound(f"{key!r} does not exist in {engine.storage.url}")
            await asyncio.to_thread(Path(path).write_bytes, value)
        if callback is not None:
            callback.relative_update(len(part))


def _parts(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    pairs = list(pairs)
    return (pairs[start : start + _READ_AT_ONCE] for start in range(0, len(pairs), _READ_AT_ONCE))


class _Batch:
    """Updates that go to the engine together, so that each shard is committed once, up to its bound on memory."""

    def __init__(self, engine: Presented) -> None:
        self._engine = engine
        self._updates: list[tuple[str, Action]] = []
        self._held = 0

    async def add(self, key: str, data: bytes) -> None:
        self._updates.append((key, SetValue(data)))
        self._held += len(data)
        if self._held > self._engine.options.max_memory:
            await self.flush()

    async def flush(self) -> None:
        updates, self._updates, self._held = self._updates, [], 0
        raise_failed(await self._engine.update_many(updates))
