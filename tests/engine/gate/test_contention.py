"""Writers that hammer one shard, in virtual time: everybody gets on, and nobody gives up."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from shardstore.engine.actions import SetValue
from shardstore.engine.contention import Contention
from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.errors import Conflict
from shardstore.model.capabilities import Capabilities
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.wrappers import Counters
from shardstore.testing.latency import LatencyStorage
from tests.engine.hooked import HookedStorage, document, fresh_memory
from tests.harness.virtual_time import run_in_virtual_time

LATENCY = 0.02


class NoCompose(LatencyStorage):
    """What is kept of a shard is read, and written with the rest, as with all object stores."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, compose=False)


def client(
    place: MemoryStorage, seed: int, kind: type[LatencyStorage] = LatencyStorage, jitter: float = 0.5, per_shard: int = 4096
) -> Engine:
    """A client of its own, over a network whose requests take 10 to 30 ms."""
    rng = random.Random(seed)

    async def on_the_way(seconds: float) -> None:
        await asyncio.sleep(seconds * rng.uniform(1 - jitter, 1 + jitter))

    storage = kind(place, LATENCY, sleep=on_the_way)
    return Engine(storage, EngineOptions(chunks_per_shard=(per_shard,)), clock=asyncio.get_running_loop().time, rng=rng)


async def new_array(place: MemoryStorage, chunks: int, per_shard: int = 4096) -> None:
    await client(place, 0, per_shard=per_shard).update(("a/zarr.json", SetValue(document((chunks,), (1,)))))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sixteen_writers_hammer_one_shard(seed: int) -> None:
    writers, each = 16, 20

    async def hammer() -> None:
        place = fresh_memory()
        await new_array(place, writers * each)
        engines = [client(place, 1000 * seed + i) for i in range(writers)]
        done = [0] * writers
        at_half_time: list[int] = []
        most_losses = 0

        async def write(i: int) -> None:
            nonlocal most_losses
            for k in range(each):
                before = engines[i].counters.conflicts
                await engines[i].update((f"a/c/{i * each + k}", SetValue(bytes([i]))))
                most_losses = max(most_losses, engines[i].counters.conflicts - before)
                done[i] += 1
                if sum(done) == writers * each // 2:
                    at_half_time.extend(done)

        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(write(i) for i in range(writers)))
        took = asyncio.get_running_loop().time() - began
        assert min(at_half_time) >= 3  # without manners some have stored nothing by now
        assert most_losses <= 30  # of the 100 that are allowed
        assert sum(engine.counters.conflicts for engine in engines) <= 4 * writers * each
        assert took < 5 * writers * each * LATENCY  # one at a time would take 2
        reader = client(place, 5)
        for chunk in range(writers * each):
            value = await reader.get((f"a/c/{chunk}", EVERYTHING))
            assert value is not None
            assert bytes(value) == bytes([chunk // each])

    run_in_virtual_time(hammer())


def test_one_write_beside_a_writer_that_never_stops() -> None:
    async def beside() -> None:
        place = fresh_memory()
        await new_array(place, 4096)
        rival, mine = client(place, 1), client(place, 2)

        async def hammer() -> None:
            for k in range(4000):
                await rival.update((f"a/c/{k}", SetValue(b"r")))

        hammering = asyncio.ensure_future(hammer())
        for k in range(20):
            await mine.update((f"a/c/{4095 - k}", SetValue(b"m")))
        hammering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hammering
        assert mine.counters.commits == 20
        assert mine.counters.conflicts <= 20 * 15

    run_in_virtual_time(beside())


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("late", [1, 4])
@pytest.mark.parametrize("whole", [False, True])
def test_one_write_beside_a_writer_that_is_always_faster(seed: int, late: int, whole: bool) -> None:
    """Who has written the shard last has its index: two requests a commit, where who comes late needs three. It never sees that it wins."""

    slots = 24

    async def beside() -> None:
        place = fresh_memory()
        await new_array(place, slots, per_shard=slots)
        rival = client(place, seed, NoCompose, 0.0, slots)
        others = [client(place, 100 * seed + i, NoCompose, 0.0, slots) for i in range(late)]
        everything = [(f"a/c/{k}", SetValue(b"r")) for k in range(slots)]
        is_over = False
        most_losses = 0

        async def write(i: int, value: int) -> None:
            nonlocal most_losses
            before = others[i].counters.conflicts
            await others[i].update((f"a/c/{16 + i}", SetValue(bytes([value]))))
            most_losses = max(most_losses, others[i].counters.conflicts - before)

        async def hammer() -> None:
            while not is_over:
                await rival.update_many(everything if whole else [everything[rival.counters.commits % 16]])

        hammering = asyncio.ensure_future(hammer())
        await asyncio.sleep(1.0)
        try:
            for k in range(5):
                await asyncio.gather(*(write(i, k) for i in range(late)))
        finally:
            is_over = True
        await hammering
        assert most_losses <= 60  # of the 100 that are allowed

    run_in_virtual_time(beside())


def test_who_is_alone_loses_little_time() -> None:
    """Letting others go first now and then takes about an eighth of the time of a writer that nobody waits for."""

    async def alone() -> None:
        place = fresh_memory()
        await new_array(place, 4096)
        mine = client(place, 1, NoCompose, 0.0)
        await mine.update(("a/c/0", SetValue(b"m")))
        began = asyncio.get_running_loop().time()
        for k in range(1000):
            await mine.update((f"a/c/{k % 16}", SetValue(b"m")))
        took = asyncio.get_running_loop().time() - began
        assert 1000 * 2 * LATENCY < took < 1000 * 2 * LATENCY * 1.17

    run_in_virtual_time(alone())


def test_it_is_bounded() -> None:
    async def lose() -> None:
        place = fresh_memory()
        await new_array(place, 4096)
        hooked, rival = HookedStorage(place), client(place, 1)
        mine = Engine(hooked, EngineOptions(chunks_per_shard=(4096,), commit_attempts=3), clock=asyncio.get_running_loop().time)

        async def too_late(operation: str, key: str) -> None:
            if operation in ("write", "compose"):
                await rival.update((f"a/c/{hooked.count(operation)}", SetValue(b"r")))

        hooked.before = too_late
        with pytest.raises(Conflict, match="'a/c/0'"):
            await mine.update(("a/c/100", SetValue(b"m")))
        assert mine.counters.conflicts == 3
        assert await rival.get(("a/c/100", EVERYTHING)) is None

    run_in_virtual_time(lose())


def test_who_is_alone_never_waits() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def alone() -> None:
        contention = Contention(100, Counters(), lambda: 0.0, sleep)
        for _ in range(10):
            turn = contention.turn("a")
            await turn.start()
            turn.won()
        assert slept == []

    run_in_virtual_time(alone())


def test_manners_fade() -> None:
    """Who was alone again for some writes is not slowed down any more."""
    slept: list[float] = []
    now = 0.0

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def run() -> None:
        nonlocal now
        contention = Contention(100, Counters(), lambda: now, sleep, random.Random(1))
        turn = contention.turn("a")
        await turn.start()
        for _ in range(5):
            now += 1.0
            await turn.lost("it", Exception())
        turn.won()
        assert len(slept) == 5
        assert max(slept) <= 5.0
        for _ in range(20):
            turn = contention.turn("a")
            await turn.start()
            turn.won()
        assert 5 < len(slept) < 20
        other = contention.turn("b")
        slept.clear()
        await other.start()
        assert slept == []

    run_in_virtual_time(run())


def test_who_has_lost_often_waits_less() -> None:
    slept: list[float] = []
    now = 0.0

    class Longest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def run() -> None:
        nonlocal now
        contention = Contention(100, Counters(), lambda: now, sleep, Longest())
        old, young = contention.turn("a"), contention.turn("a")
        for _ in range(20):
            now += 0.1
            await old.lost("it", Exception())
            young = contention.turn("a")
            now += 0.1
            await young.lost("it", Exception())
        assert slept[-2] < slept[-1] / 2
        assert max(slept) <= 16 * 0.2

    run_in_virtual_time(run())
