"""Two clients on the same objects: one on a storage that lets a test act between its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from shardstore._sync import run_sync
from shardstore.engine.actions import SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.model.ranges import EVERYTHING
from tests.engine.hooked import HookedStorage, document, fresh_memory


def play(scenario: Callable[[HookedStorage, Engine, Engine], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run a scenario with a hooked storage, its engine, and the engine of another client on the same objects."""

    async def run() -> None:
        memory = fresh_memory()
        storage = HookedStorage(memory)
        chosen = replace(EngineOptions(chunks_per_shard=(4,), metadata_ttl=1000.0), **options)

        async def no_sleep(_: float) -> None:
            await asyncio.sleep(0)

        mine = Engine(storage, chosen, sleep=no_sleep)
        other = Engine(memory, chosen, sleep=no_sleep)
        await mine.update(("a/zarr.json", SetValue(document((16,), (1,)))))
        storage.seen.clear()
        await scenario(storage, mine, other)

    run_sync(run())


async def get(engine: Engine, key: str) -> bytes | None:
    value = await engine.get((key, EVERYTHING))
    return None if value is None else bytes(value)


async def put(engine: Engine, **chunks: bytes) -> None:
    errors = await engine.update_many([(f"a/c/{name[1:]}", SetValue(data)) for name, data in chunks.items()])
    for error in errors:
        if error is not None:
            raise error
