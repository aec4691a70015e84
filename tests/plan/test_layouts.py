"""``"auto"`` and ``advise`` on the layouts that arrays really have: both go in the same direction."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import pytest

from shardstore.engine.options import EngineOptions
from shardstore.maintenance.advice import ArrayFacts, advise, evaluate, parse_access
from shardstore.plan.policy import ArrayInfo, automatic


@dataclass(frozen=True, slots=True)
class Layout:
    """An array, and the ways in which it is read, all equally often. ``grows``: the axes along which a shard holds several chunks."""

    name: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    item_nbytes: int
    accesses: tuple[str, ...]
    grows: tuple[int, ...]

    @property
    def info(self) -> ArrayInfo:
        return ArrayInfo(self.name, self.shape, self.chunks, self.item_nbytes, {})

    @property
    def facts(self) -> ArrayFacts:
        """With chunks that are compressed to the half."""
        decoded = prod(self.chunks) * self.item_nbytes
        return ArrayFacts(self.shape, self.chunks, self.item_nbytes, max(1, decoded // 2))

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunks, strict=True))


LAYOUTS = [
    Layout("climate, a field per step", (5000, 45, 90), (1, 45, 90), 4, ("1,:,:", ":,1,1"), (0,)),
    Layout("climate, boxes", (36500, 180, 360), (365, 45, 90), 4, ("30,:,:", ":,1,1"), (0, 1, 2)),
    Layout("reanalysis, a map per hour", (8760, 721, 1440), (1, 721, 1440), 4, ("1,:,:", "24,:,:"), (0,)),
    Layout("OME pyramid, level 0", (1, 2, 60, 2048, 2048), (1, 1, 1, 512, 512), 2, ("1,1,1,1024,1024", "1,:,1,:,:"), (1, 2, 3, 4)),
    Layout("OME pyramid, a small level", (1, 2, 60, 256, 256), (1, 1, 1, 256, 256), 2, ("1,1,1,:,:", "1,1,:,:,:"), (1, 2)),
    Layout("microscopy, xyz", (1024, 1024, 1024), (64, 64, 64), 1, ("256,256,256", "1,:,:"), (0, 1, 2)),
    Layout("table, a column of 10 million rows", (10_000_000,), (100_000,), 8, ("1000000",), (0,)),
    Layout("table, all columns of some rows a chunk", (50_000, 2000), (1000, 2000), 4, ("1000,:",), (0,)),
    Layout("time series of a probe", (100_000_000, 64), (30_000, 64), 2, ("30000,:", "1000000,1"), (0,)),
    Layout("sparse, chunks of 800 B", (1_000_000,), (100,), 8, ("1000",), (0,)),
    Layout("six dimensions", (2, 3, 40, 30, 512, 512), (1, 1, 1, 1, 256, 256), 2, ("1,1,1,1,:,:", "1,1,:,:,:,:"), (0, 1, 2, 3, 4, 5)),
    Layout("a coordinate", (365,), (365,), 8, (":",), ()),
    Layout("a mask in one chunk", (45, 90), (45, 90), 1, (":,:",), ()),
    Layout("0-d", (), (), 8, (), ()),
]


@pytest.mark.parametrize("kind", ["s3", "local"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_auto_and_advise_agree(layout: Layout, kind: str) -> None:
    decided = automatic(layout.info, may_grow=False)
    limits = EngineOptions().read_limits(kind)
    accesses = [parse_access(text) for text in layout.accesses]
    advice = advise(layout.facts, accesses, limits) if accesses else None
    if decided is None:
        assert layout.grows == ()
        assert advice is None or not advice.candidates
        return
    assert tuple(axis for axis, count in enumerate(decided) if count > 1) == layout.grows
    assert advice is not None
    best, mine = advice.candidates[0], evaluate(layout.facts, decided, accesses, limits)
    assert best.chunks_per_shard is not None
    assert {axis for axis, count in enumerate(best.chunks_per_shard) if count > 1} <= set(layout.grows)
    assert mine.cost <= 1.5 * best.cost
    assert best.objects / 8 <= mine.objects <= 2 * best.objects
    # Less than unsharded, and less than the same number of chunks along the other axes, if the shape has any.
    unsharded = evaluate(layout.facts, None, accesses, limits)
    assert mine.objects * 4 <= unsharded.objects
    assert mine.cost <= 1.5 * unsharded.cost


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_what_is_created_is_sharded_as_what_is_packed(layout: Layout) -> None:
    """A store that creates the array does not know whether it grows; for an array of its final shape that makes no difference."""
    created, packed = automatic(layout.info), automatic(layout.info, may_grow=False)
    if packed is not None:
        assert created == packed


def test_the_index_of_small_fields_does_not_dominate_scattered_reads() -> None:
    """Shards of 16 × 16 × 16 chunks would hold 16 fields, with an index of 64 KiB: five times the bytes of a chunk."""
    layout = LAYOUTS[0]
    limits = EngineOptions().read_limits("local")
    scattered = [parse_access("1,:,:")]
    decided = automatic(layout.info)
    assert decided is not None
    mine, cube = (evaluate(layout.facts, c, scattered, limits) for c in (decided, (16, 16, 16)))
    assert mine.nbytes < 0.4 * cube.nbytes
    assert mine.objects == 5
    assert cube.objects == 313
