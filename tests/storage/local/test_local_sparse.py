"""Holes of a file stay holes when it is copied or rewritten."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from shardstore.model.generation import IfGeneration
from shardstore.model.ranges import CopiedRange, NewBytes, Segment
from shardstore.storage.base import ConditionFailed
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.local.temporary import Extents
from shardstore.testing.storage_suite import SyncStorage
from tests.harness.system_calls import SystemCalls

MIB = 1 << 20
DATA = os.urandom(MIB // 2)

# Data and holes by turns: (offset, bytes of DATA there); the length of the file.
SHAPES: dict[str, tuple[list[tuple[int, int]], int]] = {
    "hole in the middle": ([(0, 100_000), (5 * MIB, MIB // 2)], 5 * MIB + MIB // 2),
    "hole at the end": ([(4096, 300_000)], 7 * MIB + 3),
    "hole at the start": ([(6 * MIB + 5, 100)], 6 * MIB + 105),
    "many holes": ([(i * MIB, 5000) for i in range(12)], 12 * MIB),
    "nothing but a hole": ([], 9 * MIB),
    "no hole": ([(i * MIB // 2, MIB // 2) for i in range(6)], 3 * MIB),
    "a small one": ([(0, 10)], 10),
}


@pytest.fixture
def s(tmp_path: Path) -> SyncStorage:
    return SyncStorage(LocalStorage(tmp_path, fsync=False))


@pytest.fixture(params=["in the kernel", "across devices", "through memory", "without holes"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the system can do."""

    def unable(number: int) -> Callable[..., int]:
        def call(*_: object) -> int:
            raise OSError(number, os.strerror(number))

        return call

    match request.param:
        case "across devices":
            monkeypatch.setattr(os, "copy_file_range", unable(errno.EXDEV))
        case "through memory":
            monkeypatch.delattr(os, "copy_file_range")
        case "without holes":
            original = os.lseek

            def lseek(fd: int, offset: int, how: int) -> int:
                return original(fd, offset, how) if how == os.SEEK_CUR else unable(errno.EINVAL)()

            monkeypatch.setattr(os, "lseek", lseek)
    way: str = request.param
    return way


def make(path: Path, pieces: list[tuple[int, int]], nbytes: int) -> bytes:
    with path.open("wb") as file:
        for offset, count in pieces:
            file.seek(offset)
            file.write(DATA[:count])
        file.truncate(nbytes)
    return path.read_bytes()


def allocated(path: Path) -> int:
    return path.stat().st_blocks * 512


def composed(segments: list[Segment], old: bytes) -> bytes:
    return b"".join(
        old[s.offset : s.offset + s.nbytes] if isinstance(s, CopiedRange) else bytes(s.data) if isinstance(s, NewBytes) else bytes(s.nbytes)
        for s in segments
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_rewriting(s: SyncStorage, tmp_path: Path, way: str, shape: str) -> None:
    pieces, nbytes = SHAPES[shape]
    old = make(tmp_path / "a", pieces, nbytes)
    info = s.stat("a")
    assert info is not None
    assert info.generation is not None
    half = nbytes // 2
    segments: list[Segment] = [CopiedRange(half + 1, nbytes - half - 1), NewBytes(b"new"), CopiedRange(3, half), CopiedRange(0, nbytes)]
    s.compose("a", info.generation, segments, IfGeneration(info.generation))
    assert (tmp_path / "a").read_bytes() == composed(segments, old)
    data = sum(count for _, count in pieces)
    if way != "without holes":
        # Every piece of data is copied twice, and may touch another block at either end.
        assert allocated(tmp_path / "a") <= 2 * data + (4 * len(pieces) + 8) * 8192
    s.copy("a", "b")
    assert (tmp_path / "b").read_bytes() == composed(segments, old)
    if way != "without holes":
        assert allocated(tmp_path / "b") <= allocated(tmp_path / "a") + 65536


@pytest.mark.parametrize("seed", range(6))
def test_segments_in_any_order(s: SyncStorage, tmp_path: Path, seed: int) -> None:
    """Among them ones that start or end inside of a hole."""
    rng = random.Random(seed)
    pieces = sorted((rng.randrange(0, 8 * MIB), rng.randrange(1, MIB // 4)) for _ in range(rng.randrange(1, 6)))
    old = make(tmp_path / "a", pieces, 9 * MIB)
    info = s.stat("a")
    assert info is not None
    assert info.generation is not None
    segments: list[Segment] = []
    for _ in range(20):
        offset = rng.randrange(len(old))
        segments.append(CopiedRange(offset, rng.randrange(0, min(MIB, len(old) - offset + 1))))
        if rng.random() < 0.2:
            segments.append(NewBytes(rng.randbytes(rng.randrange(5))))
    s.compose("a", info.generation, segments, IfGeneration(info.generation))
    assert (tmp_path / "a").read_bytes() == composed(segments, old)


def test_a_file_that_is_cut_while_its_hole_is_copied(s: SyncStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "a", *SHAPES["hole at the end"])
    info = s.stat("a")
    assert info is not None
    assert info.generation is not None
    original = os.lseek

    def lseek(fd: int, offset: int, how: int) -> int:
        os.truncate(tmp_path / "a", 1000)
        return original(fd, offset, how)

    monkeypatch.setattr(os, "lseek", lseek)
    with pytest.raises(ConditionFailed):
        s.compose("a", info.generation, [CopiedRange(6 * MIB, MIB), NewBytes(b"x")], IfGeneration(info.generation))


def test_what_lies_behind_the_end_is_no_hole(tmp_path: Path) -> None:
    make(tmp_path / "a", *SHAPES["hole at the end"])
    with (tmp_path / "a").open("rb") as file:
        extents = Extents(file.fileno(), os.fstat(file.fileno()))
        assert [(piece.nbytes, piece.is_data) for piece in extents.within(6 * MIB, 2 * MIB)] == [(MIB + 3, False), (MIB - 3, True)]
        assert [piece.is_data for piece in extents.within(8 * MIB, 1)] == [True]


def test_a_file_without_holes_is_not_asked_for_them(s: SyncStorage, tmp_path: Path) -> None:
    old = s.put("a", os.urandom(3 * MIB))
    with SystemCalls(threads="shardstore-write") as counted:
        s.compose("a", old, [CopiedRange(i * 1000, 1000) for i in range(1, 1000)], IfGeneration(old))
    assert "lseek" not in counted.calls
    make(tmp_path / "a", *SHAPES["hole in the middle"])
    with (tmp_path / "a").open("rb") as file:
        extents = Extents(file.fileno(), os.fstat(file.fileno()))
        with SystemCalls() as counted:
            pieces = [piece for i in range(1000) for piece in extents.within(5 * MIB + i * 100, 100)]
    assert counted.calls == ["lseek", "lseek"]
    assert all(piece.is_data and piece.nbytes == 100 for piece in pieces)
