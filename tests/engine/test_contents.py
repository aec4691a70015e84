"""Whole shards that are made while they are stored are those that updates of their chunks store, in turn with these."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shardstore._sync import run_sync
from shardstore.engine.actions import SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.engine.writing.contents import NotMade, ShardContents
from shardstore.errors import NoSpace
from shardstore.plan.commits import Rewrite
from shardstore.storage.local.storage import LocalStorage
from tests.engine.clients import get, put
from tests.engine.hooked import document, fresh_memory

OPTIONS = EngineOptions(chunks_per_shard=(4,), metadata_ttl=1000.0)
CHUNKS = {0: b"0", 1: b"1", 2: None, 3: b"3"}


@dataclass
class Given(ShardContents):
    chunks: dict[int, bytes | None] = field(default_factory=lambda: dict(CHUNKS))
    error: Exception | None = None
    before: Callable[[], object] = lambda: None

    def write(self, file: int, slots: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        self.before()
        chunks = [self.chunks[slot] for slot in slots.tolist()]
        os.write(file, b"".join(chunk for chunk in chunks if chunk is not None))
        if self.error is not None:
            raise self.error
        return np.array([-1 if chunk is None else len(chunk) for chunk in chunks])


def play(root: Path, scenario: Callable[[Engine], Coroutine[Any, Any, None]], start: bytes | None = None, **options: Any) -> None:
    """Run a scenario with an array of four shards of four bytes, each a chunk; ``start`` is what the first shard holds already."""

    async def run() -> None:
        engine = Engine(LocalStorage(root, fsync=False), replace(OPTIONS, **options))
        await engine.update(("a/zarr.json", SetValue(document((16,), (1,)))))
        if start is not None:
            await put(engine, **{f"c{i}": start[i : i + 1] for i in range(4)})
        await scenario(engine)
        await engine.close()

    run_sync(run())


async def replace_first(engine: Engine, contents: ShardContents) -> dict[Any, Exception | None]:
    layout = await engine.layout("a")
    assert layout is not None
    return await engine.replace_shards("a", layout, {(0,): contents})


async def values(engine: Engine) -> list[bytes | None]:
    return [await get(engine, f"a/c/{i}") for i in range(4)]


@pytest.mark.parametrize("strategy", ["rewrite", "append"])
@pytest.mark.parametrize("start", [None, b"abcd"])
def test_the_shard_and_what_is_counted_are_those_of_updates(tmp_path: Path, strategy: str, start: bytes | None) -> None:
    found: list[tuple[bytes, Any]] = []

    async def made(engine: Engine) -> None:
        await engine.layout("a")
        engine.counters.reset()
        layout = engine.hierarchy._nodes["a"].layout
        assert layout is not None
        assert await engine.replace_shards("a", layout, {(0,): Given()}) == {(0,): None}
        note(engine, tmp_path / "made")
        assert await values(engine) == [b"0", b"1", None, b"3"]

    async def updated(engine: Engine) -> None:
        await engine.layout("a")
        engine.counters.reset()
        updates = [(f"a/c/{i}", SetValue(data)) for i, data in CHUNKS.items() if data is not None]
        await engine.update_many([*updates, ("a/c/2", SetValue(b"2"))])
        await engine.erase_many(["a/c/2"])
        note(engine, tmp_path / "updated")

    def note(engine: Engine, root: Path) -> None:
        counters = engine.counters
        found.append(((root / "a/c/0").read_bytes(), (counters.requests, counters.bytes_written, counters.commits)))

    play(tmp_path / "made", made, start, strategy=strategy)
    play(tmp_path / "updated", updated, start, strategy="rewrite")
    assert found[0][0] == found[1][0]
    assert found[0][1] == (1, len(found[0][0]), 1)


def test_a_shard_without_chunks_is_removed(tmp_path: Path) -> None:
    async def scenario(engine: Engine) -> None:
        assert await replace_first(engine, Given(dict.fromkeys(range(4)))) == {(0,): None}
        assert await values(engine) == [None] * 4

    play(tmp_path, scenario, b"abcd")
    assert not (tmp_path / "a/c").exists()


@pytest.mark.parametrize("contents", [Given(error=NotMade()), Given({**CHUNKS, 1: b"long"})], ids=["not encoded", "of another size"])
def test_what_cannot_be_made_is_left_to_updates(tmp_path: Path, contents: Given) -> None:
    async def scenario(engine: Engine) -> None:
        await engine.update(("a/zarr.json", SetValue(document((16,), (1,), codecs=[{"name": "bytes"}]))))
        await put(engine, c0=b"a", c1=b"b", c2=b"c", c3=b"d")
        assert await replace_first(engine, contents) == {}
        assert await values(engine) == [b"a", b"b", b"c", b"d"]

    play(tmp_path, scenario)


def test_an_error_of_the_system_leaves_what_was_there(tmp_path: Path) -> None:
    async def scenario(engine: Engine) -> None:
        outcomes = await replace_first(engine, Given(error=OSError(28, "No space left on device")))
        assert isinstance(outcomes[0,], NoSpace)
        assert await values(engine) == [b"a", b"b", b"c", b"d"]

    play(tmp_path, scenario, b"abcd")


class Own(Rewrite):
    """A strategy that is none of the package's."""


@pytest.mark.parametrize("options", [{"strategy": Own()}, {"index_location": "start"}], ids=["own strategy", "index at the start"])
def test_other_shards_are_left_to_updates(tmp_path: Path, options: dict[str, Any]) -> None:
    async def scenario(engine: Engine) -> None:
        assert await replace_first(engine, Given()) == {}
        assert await values(engine) == [None] * 4

    play(tmp_path, scenario, **options)


def test_another_layout_and_other_storages_are_left_to_updates(tmp_path: Path) -> None:
    async def scenario(engine: Engine) -> None:
        layout = await engine.layout("a")
        assert layout is not None
        assert await engine.replace_shards("a", replace(layout, chunk_shape=(2,)), {(0,): Given()}) == {}
        assert await engine.replace_shards("b", layout, {(0,): Given()}) == {}
        memory = Engine(fresh_memory(), OPTIONS)
        await memory.update(("a/zarr.json", SetValue(document((16,), (1,)))))
        assert await replace_first(memory, Given()) == {}
        await engine.begin()
        assert await engine.replace_shards("a", layout, {(0,): Given()}) == {}
        await engine.rollback()
        assert await values(engine) == [None] * 4

    play(tmp_path, scenario)


def test_updates_take_turns_with_it(tmp_path: Path) -> None:
    """What is asked for first is stored first, in commits of their own."""

    async def scenario(engine: Engine) -> None:
        started, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            started.set()
            go_on.wait(10)

        first = asyncio.ensure_future(replace_first(engine, Given(before=hold)))
        assert await asyncio.to_thread(started.wait, 10)
        (queue,) = engine._writer._queues.values()

        async def waiting(coroutine: Coroutine[Any, Any, Any], count: int) -> asyncio.Future[Any]:
            task = asyncio.ensure_future(coroutine)
            while len(queue.waiting) < count:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.001)
            return task

        before = await waiting(put(engine, c0=b"x", c1=b"y"), 1)
        second = await waiting(replace_first(engine, Given({**CHUNKS, 0: b"z"})), 2)
        after = await waiting(put(engine, c3=b"w"), 3)
        engine.counters.reset()
        go_on.set()
        assert await first == await second == {(0,): None}
        await asyncio.gather(before, after)
        assert await values(engine) == [b"z", b"1", None, b"w"]
        assert engine.counters.commits == 4

    play(tmp_path, scenario)
