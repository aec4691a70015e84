"""Fuzz the kernel: ``SHARDSTORE_KERNEL_FILE=libkernel.2.so python -m tests.native.fuzz SECONDS SEED``.

Each round encodes chunks with numcodecs, damages some of them, and reads selections of them: from files that are cut or change while they
are read, with descriptors that are closed, and with numbers that Python never passes. Checked are: nothing is written but the selected
elements; a chunk of status 0 is what numcodecs decodes of the same bytes; a chunk that is whole has status 0. Some rounds encode instead.

``gate/test_kernel_fuzz.py`` runs it on a kernel that is compiled with sanitizers. Then each byte that the kernel touches is checked, too.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs import GZip, blosc, zstd

from shardstore.native.kernel import ChunkParams, Codec, Kernel, SelectedAlong, ShardVersion, kernel
from tests.native.reading import CHUNK_DTYPE, read_chunks

Bytes = npt.NDArray[np.uint8]

UNTOUCHED = 0x55
LARGEST_CHUNK_NBYTES = 1_500_000
LARGEST_ROUND_NBYTES = 4_000_000
HUGE = 2**62
EMPTY = 2**64 - 1


@dataclass
class Round:
    """Chunks of one shape, read by one call."""

    shape: tuple[int, ...]
    itemsize: int
    codec: Codec
    has_crc: bool
    values: bytes
    """The elements of each chunk."""
    first: list[int]
    count: list[int]
    step: list[int]
    strides: list[int]
    """Of the elements of one chunk in the caller's memory."""
    chunk_extent: int
    """The bytes from one chunk to the next one there."""
    stored: list[bytes]
    is_damaged: list[bool]

    @property
    def nbytes(self) -> int:
        return len(self.values)

    def place(self, memory: Bytes, i: int, dtype: Any, last: tuple[int, ...] = ()) -> npt.NDArray[Any]:
        """Return where the elements of the chunk ``i`` belong in the caller's memory."""
        strides = (*self.strides, *(1 for _ in last))
        return np.ndarray((*self.count, *last), dtype, memory, self.chunk_extent * i, strides)

    def selected(self, decoded: bytes) -> bytes:
        chunk = np.frombuffer(decoded, f"V{self.itemsize}").reshape(self.shape)
        slices = (slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(self.first, self.count, self.step, strict=True))
        return chunk[tuple(slices)].tobytes()


@dataclass
class StoredArray:
    """A selection of an array of chunks in files, and what it gives."""

    chunk: tuple[int, ...]
    itemsize: int
    codec: Codec
    has_crc: bool
    fill: bytes
    along: list[SelectedAlong]
    shards: list[ShardVersion | None]
    inside: bytes | None
    counts: list[int]
    strides: list[int]
    out_nbytes: int
    expected: bytes
    stored: tuple[int, int]
    is_damaged: bool


def version_of(entries: npt.NDArray[np.uint64], path: bytes) -> ShardVersion:
    """Return a shard as it is now. It seems to be old, so that each change of it gives it another time."""
    os.utime(path, ns=(1, 10**18 + 123_456_789))
    status = os.stat(path)
    numbers = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return ShardVersion(entries, status.st_size, path, numbers)


def decoded_by_numcodecs(codec: Codec, data: bytes) -> bytes | None:
    """Return what else decodes the bytes of a chunk, in the same way; ``None`` if it refuses them."""
    try:
        match codec:
            case Codec.NONE:
                return data
            case Codec.ZSTD:
                return bytes(zstd.decompress(data))
            case Codec.BLOSC:
                return bytes(blosc.decompress(data))
            case Codec.GZIP:
                member = zlib.decompressobj(31)
                decoded = member.decompress(data)
                return decoded if member.eof else None
    except Exception:  # noqa: BLE001  (of any kind)
        return None


class Fuzzer:
    def __init__(self, fuzzed: Kernel, seed: int) -> None:
        self.kernel = fuzzed
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.seen: Counter[str] = Counter()
        """What happened, and how often."""
        self._disk = tempfile.TemporaryFile()  # noqa: SIM115  (kept)
        self._files = [os.memfd_create("fuzz"), self._disk.fileno()]
        self._directory = tempfile.TemporaryDirectory()

    # -- what is stored --

    def shape_and_item(self) -> tuple[tuple[int, ...], int]:
        pick = self.random
        ndim = pick.choice([0, 1, 1, 2, 2, 3, 3, 4, 5, 8, 16])
        itemsize = pick.choice([1, 2, 3, 4, 5, 7, 8, 12, 16])
        most = pick.choice([40, 2000, 300_000])
        longest = int(most ** (1 / max(1, ndim)) * pick.choice([1, 1, 2]))
        shape = [pick.randint(1, max(1, min(70 if ndim > 1 else most, longest))) for _ in range(ndim)]
        while prod(shape) * itemsize > LARGEST_CHUNK_NBYTES:
            shape[shape.index(max(shape))] //= 2
        return tuple(shape), itemsize

    def values(self, nbytes: int) -> bytes:
        """Noise, what compresses well, or zeros."""
        kind = self.random.random()
        if kind < 0.4:
            return self.numbers.bytes(nbytes)
        if kind < 0.8:
            return np.repeat(self.numbers.integers(0, 5, nbytes // 7 + 1, "u1"), 7)[:nbytes].tobytes()
        return bytes(nbytes)

    def encoded(self, codec: Codec, values: bytes, itemsize: int) -> bytes:
        pick = self.random
        match codec:
            case Codec.NONE:
                return values
            case Codec.ZSTD:
                if pick.random() < 0.03:  # two frames go the usual way
                    half = len(values) // 2
                    return bytes(zstd.compress(values[:half], 1)) + bytes(zstd.compress(values[half:], 1))
                return bytes(zstd.compress(values, pick.choice([-5, 1, 3, 9]), pick.random() < 0.3))
            case Codec.BLOSC:
                sizes = [1, itemsize, *([2 * itemsize] if len(values) % (2 * itemsize) == 0 else [])]
                typed = np.frombuffer(values, f"V{pick.choice(sizes)}")
                compressor = pick.choice([b"lz4", b"lz4hc", b"blosclz", b"zlib", b"zstd"])
                return bytes(
                    blosc.compress(typed, compressor, pick.choice([0, 1, 5, 9]), pick.choice([0, 1, 2]), pick.choice([0, 0, 512, 4096]))
                )
            case Codec.GZIP:
                return bytes(GZip(pick.choice([0, 1, 6])).encode(np.frombuffer(values, "u1")))

    def damaged(self, data: bytes, codec: Codec) -> bytes:
        pick = self.random
        changed = bytearray(data)
        if not changed:
            return data
        match pick.choice(["bit", "bit", "bytes", "cut", "longer", "header", "header", "size", "size", "zeros", "turned"]):
            case "bit":
                changed[pick.randrange(len(changed))] ^= 1 << pick.randrange(8)
            case "bytes":
                for _ in range(pick.randint(2, 40)):
                    changed[pick.randrange(len(changed))] = pick.randrange(256)
            case "cut":
                del changed[pick.randrange(len(changed)) :]
            case "longer":
                changed += pick.randbytes(pick.randint(1, 40))
            case "header":
                changed[pick.randrange(min(24, len(changed)))] = pick.choice([0, 1, 127, 128, 255, pick.randrange(256)])
            case "size" if len(changed) >= 16:
                self._other_size(changed, codec)
            case "zeros":
                start = pick.randrange(len(changed))
                end = min(len(changed), start + pick.randint(1, 64))
                changed[start:end] = bytes(end - start)
            case "turned":
                middle = pick.randrange(len(changed))
                changed = changed[middle:] + changed[:middle]
        return bytes(changed)

    def _other_size(self, data: bytearray, codec: Codec) -> None:
        pick = self.random
        match codec:
            case Codec.BLOSC:
                at = pick.choice([4, 8, 12])
                data[at : at + 4] = pick.choice([0, 1, 2**31 - 1, 2**32 - 1, 2**31, pick.randrange(2**32)]).to_bytes(4, "little")
            case Codec.ZSTD:
                data[4] = pick.randrange(256)
                data[5:13] = pick.choice([b"\xff" * 8, bytes(8), pick.randbytes(8)])
            case _:
                data[-4:] = pick.randbytes(4)

    # -- what is asked for --

    def selection(self, shape: tuple[int, ...]) -> tuple[list[int], list[int], list[int]]:
        pick = self.random
        first: list[int] = []
        count: list[int] = []
        step: list[int] = []
        for length in shape:
            if pick.random() < 0.4:
                chosen = (0, length, 1)
            else:
                start, stride = pick.randrange(length), pick.choice([1, 1, 1, 2, 3, length, length + 5])
                most = -((start - length) // stride)
                chosen = (start, pick.randint(1, most) if pick.random() < 0.7 else most, stride)
            for numbers, number in zip((first, count, step), chosen, strict=True):
                numbers.append(number)
        return first, count, step

    def round(self) -> Round:
        pick = self.random
        shape, itemsize = self.shape_and_item()
        codec, has_crc = pick.choice(list(Codec)), pick.random() < 0.3
        values = self.values(prod(shape) * itemsize)
        n = pick.choice([1, 1, 2, 9, 40])
        if n * len(values) > LARGEST_ROUND_NBYTES:
            n = 1
        good = self.encoded(codec, values, itemsize)
        may_damage = pick.random() < 0.6
        stored = [self.stored(good, codec, has_crc, may_damage and pick.random() < 0.7) for _ in range(n)]
        whole = good + crc_of(good) if has_crc else good
        first, count, step = self.selection(shape)
        strides, extent = self.strides(count, itemsize)
        return Round(
            shape, itemsize, codec, has_crc, values, first, count, step, strides, extent, stored, [data != whole for data in stored]
        )

    def stored(self, data: bytes, codec: Codec, has_crc: bool, is_damaged: bool) -> bytes:
        pick = self.random
        if is_damaged and (not has_crc or pick.random() < 0.5):
            data = self.damaged(data, codec)
        if has_crc:
            data += crc_of(data)
            if is_damaged and pick.random() < 0.5:
                data = self.damaged(data, codec)
        return data

    def strides(self, count: list[int], itemsize: int) -> tuple[list[int], int]:
        """Return how the elements of a chunk lie in the caller's memory: dimensions in any order, perhaps with gaps."""
        axes = list(range(len(count)))
        if self.random.random() < 0.3:
            self.random.shuffle(axes)
        strides, extent = [0] * len(count), itemsize * self.random.choice([1, 1, 1, 2])
        for axis in reversed(axes):
            strides[axis] = extent
            extent *= count[axis]
            if self.random.random() < 0.1:
                extent += itemsize
        return strides, extent

    # -- a read --

    def read(self) -> None:
        pick = self.random
        made = self.round()
        n, ndim = len(made.stored), len(made.shape)
        file = pick.choice(self._files)
        chunks, end = self.write(file, made)
        selections = np.empty((n, 3, ndim), np.int64)
        selections[:] = np.array([made.first, made.count, made.step], np.int64).reshape(3, ndim)
        memory = np.full(made.chunk_extent * n + pick.choice([0, 0, 0, 13]), UNTOUCHED, "u1")
        out = np.ndarray((len(memory) // made.itemsize,), f"V{made.itemsize}", memory)
        params = self.kernel.chunk_params(
            made.shape, made.itemsize, made.codec, has_crc=made.has_crc, partial=pick.random() < 0.7
        ).with_strides(made.strides)
        files = np.array([file], np.int32)
        is_usual, behind = self.trick(params, files, chunks, selections, end, out.nbytes)
        bad = read_chunks(self.kernel, params, files, chunks, selections, out, pick.choice([1, 1, 2, 3]))
        if behind is not None:
            behind()
        assert bad == np.count_nonzero(chunks["status"])
        if is_usual:
            for i in range(n):
                self.check(made, i, int(chunks["status"][i]), made.place(memory, i, f"V{made.itemsize}").tobytes())
        touched = np.zeros(len(memory), bool)
        for i in range(n):
            made.place(touched.view("u1"), i, bool, (made.itemsize,))[...] = True
        assert (memory[~touched] == UNTOUCHED).all(), "written outside of the selected elements"

    def write(self, file: int, made: Round) -> tuple[npt.NDArray[Any], int]:
        """Write the chunks into a file; return their table, and where the file ends."""
        chunks = np.zeros(len(made.stored), CHUNK_DTYPE)
        end = self.random.randrange(64)
        os.ftruncate(file, 0)
        for i, data in enumerate(made.stored):
            os.pwrite(file, data, end)
            chunks[i] = (end, len(data), made.chunk_extent * i, 0, 0)
            end += len(data)
        os.ftruncate(file, end)
        if self.random.random() < 0.05 and file == self._disk.fileno():
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            self.seen["not in memory"] += 1
        return chunks, end

    def check(self, made: Round, i: int, status: int, got: bytes) -> None:
        is_damaged = made.is_damaged[i]
        self.seen[f"{made.codec.name}, {'damaged' if is_damaged else 'whole'}, status {status}"] += 1
        assert 0 <= status <= 4, status
        data = made.stored[i]
        if status:
            is_two_frames = made.codec is Codec.ZSTD and status == 4
            assert is_damaged or is_two_frames, (made.codec, status, made.shape, made.itemsize)
            return
        if made.has_crc:
            assert crc_of(data[:-4]) == data[-4:]
            data = data[:-4]
        decoded = decoded_by_numcodecs(made.codec, data) if is_damaged else made.values
        if decoded is None or len(decoded) != made.nbytes:
            assert made.codec in (Codec.NONE, Codec.BLOSC), "decoded, where numcodecs refuses"
            assert made.count != list(made.shape), "decoded whole, where numcodecs refuses"
            self.seen[f"{made.codec.name}, damaged where no element is selected"] += 1
        else:
            assert got == made.selected(decoded), (made.codec, made.shape, made.itemsize, made.first, made.count, made.step, is_damaged)

    # -- what should not happen --

    def trick(
        self,
        params: ChunkParams,
        files: npt.NDArray[np.int32],
        chunks: npt.NDArray[Any],
        selections: npt.NDArray[np.int64],
        end: int,
        out_nbytes: int,
    ) -> tuple[bool, Callable[[], None] | None]:
        """Now and then, make arguments or the file wrong; return False if the results say nothing then, and what to do afterwards."""
        pick = self.random
        file, chosen = int(files[0]), pick.random()
        if chosen < 0.03:
            os.ftruncate(file, max(0, end - pick.randint(1, 200)))
            self.seen["a file that is cut"] += 1
            return False, None
        if chosen < 0.05:
            files[0] = pick.choice([-1, 987_654])
            self.seen["no file"] += 1
            return False, None
        if chosen < 0.13:
            self.bad_number(params, chunks, selections, out_nbytes)
            return False, None
        if chosen < 0.16:
            return False, self.race(files, end)
        return True, None

    def bad_number(self, params: ChunkParams, chunks: npt.NDArray[Any], selections: npt.NDArray[np.int64], out_nbytes: int) -> None:
        pick = self.random
        structure = params._structure
        axis = pick.randrange(len(params.shape)) if params.shape else None
        names = ["at", "nbytes", "offset", "file", "ndim", "itemsize", "codec"]
        name = pick.choice(names if axis is None else [*names, "first", "count", "step", "chunk_shape", "strides"])
        self.seen[f"bad {name}"] += 1
        length = params.shape[axis] if axis is not None else 0
        one_too_many = 0 if axis is None else -((int(selections[0, 0, axis]) - length) // int(selections[0, 2, axis])) + 1
        match name:
            case "at" | "nbytes" | "offset" | "file":
                few = [-1, 2**31 - 1, 7] if name == "file" else [-1, -(10**9), 2**40, HUGE, 2**63 - 1, -(2**63)]
                if name == "at":  # its last element ends one byte behind the array
                    extents = (int(n - 1) * stride for n, stride in zip(selections[0, 1], structure.strides, strict=False))
                    few += [out_nbytes - params.itemsize - sum(extents) + 1] * 3
                chunks[name][0] = pick.choice(few)
            case "ndim":
                structure.ndim = pick.choice([-1, 17, 100, 2**31 - 1, -(2**31)])
            case "itemsize":
                structure.itemsize = pick.choice([0, -1, params.itemsize + 1, 2**31 - 1])
            case "codec":
                structure.codec = pick.choice([-1, 4, 2**31 - 1])
            case "first":
                selections[0, 0, axis] = pick.choice([-1, length, HUGE, -HUGE, 2**63 - 1])
            case "count":
                selections[0, 1, axis] = pick.choice([0, -1, one_too_many, one_too_many, HUGE, 2**63 - 1, -(2**63)])
            case "step":
                selections[0, 2, axis] = pick.choice([0, -1, HUGE, 2**63 - 1])
            case "chunk_shape":
                structure.chunk_shape[axis] = pick.choice([0, -1, length + 1, 2**40, 2**63 - 1])
            case "strides":
                for each in range(len(params.shape)) if pick.random() < 0.5 else (axis,):
                    structure.strides[each] = pick.choice([-1, 2**58, HUGE - 1, HUGE, 2**63 - 1, -(2**63)])

    def race(self, files: npt.NDArray[np.int32], end: int) -> Callable[[], None]:
        """Close, cut or change a file while it is read; return what waits for that."""
        pick = self.random
        file, duplicate = int(files[0]), os.dup(int(files[0]))
        files[0] = duplicate
        kind = pick.choice(["closed", "cut", "changed"])
        self.seen[f"{kind} while it is read"] += 1
        noise, at = pick.randbytes(200), pick.randrange(end + 1)

        def disturb() -> None:
            if kind == "closed":
                os.close(duplicate)
            elif kind == "cut":
                os.ftruncate(file, end // 2)
            else:
                os.pwrite(file, noise, at)

        thread = threading.Thread(target=disturb)
        thread.start()

        def wait() -> None:
            thread.join()
            with suppress(OSError):
                os.close(duplicate)

        return wait

    # -- selections of arrays --

    def select(self) -> None:
        pick = self.random
        made = self.array()
        memory = np.full(made.out_nbytes + pick.choice([0, 13]), UNTOUCHED, "u1")
        out = np.ndarray(made.counts, f"V{made.itemsize}", memory, 0, made.strides)
        params = self.kernel.chunk_params(made.chunk, made.itemsize, made.codec, has_crc=made.has_crc, partial=pick.random() < 0.7)
        along, shards = list(made.along), list(made.shards)
        what, behind = self.disturbed_selection(along, shards)
        arguments = (params, along, shards, made.inside, made.fill, made.strides, out, pick.choice([1, 1, 2, 3]))
        found = self.kernel.read_selection(*arguments)
        got = out.tobytes()
        behind()
        self.seen[f"a selection, {what}{', not read' if found is None else ''}"] += 1
        assert what != "whole" or (found is None) == made.is_damaged, made
        if found is not None and what != "wrong":
            assert found == made.stored, (found, made.stored)
            assert got == made.expected, made
        touched = np.zeros(len(memory), bool)
        np.ndarray((*made.counts, made.itemsize), bool, touched, 0, (*made.strides, 1))[...] = True
        assert (memory[~touched] == UNTOUCHED).all(), "written outside of the selected elements"

    def array(self) -> StoredArray:
        """Store an array in files of shards: chunks are missing, shards are missing, and now and then an index is damaged."""
        pick = self.random
        ndim, itemsize, codec = pick.choice([0, 1, 1, 2, 2, 3, 4]), pick.choice([1, 2, 3, 4, 8, 16]), pick.choice(list(Codec))
        has_crc, fill = pick.random() < 0.2, pick.randbytes(itemsize)
        chunk, per_shard, grid = ([pick.randint(1, most) for _ in range(ndim)] for most in (pick.choice([3, 9]), 3, 3))
        wide = [c * n for c, n in zip(chunk, per_shard, strict=True)]
        whole = (
            np.frombuffer(fill * prod(wide) * prod(grid), f"V{itemsize}").copy().reshape([w * n for w, n in zip(wide, grid, strict=True)])
        )
        files: dict[tuple[int, ...], ShardVersion] = {}
        for at in np.ndindex(*grid):
            if pick.random() < 0.9:
                box = tuple(slice(a * w, a * w + w) for a, w in zip(at, wide, strict=True))
                files[at] = self.shard(len(files), whole[box] if box else whole, chunk, per_shard, codec, has_crc)
        chosen = [self.along(n) for n in whole.shape]
        stored, is_damaged = self.damaged_indices(files, chosen, chunk, per_shard)
        touched = [list(dict.fromkeys(i // w for i in each)) for each, w in zip(chosen, wide, strict=True)]
        along: list[SelectedAlong] = []
        slot_stride = shard_stride = 1
        for each, n, numbers in zip(reversed(chosen), reversed(per_shard), reversed(touched), strict=True):
            along.insert(0, SelectedAlong(each.start, len(each), each.step, n, slot_stride, shard_stride))
            slot_stride, shard_stride = slot_stride * n, shard_stride * len(numbers)
        counts = [len(each) for each in chosen]
        strides, out_nbytes = self.strides(counts, itemsize)
        expected = whole[np.ix_(*map(list, chosen))].tobytes() if ndim else whole.tobytes()
        inside = pick.choice([b"", os.fsencode(os.path.realpath(self._directory.name) + "/")]) or None
        shards = [files.get(at) for at in product(*touched)]
        return StoredArray(
            tuple(chunk), itemsize, codec, has_crc, fill, along, shards, inside, counts, strides, out_nbytes, expected, stored, is_damaged
        )

    def shard(
        self, number: int, values: npt.NDArray[Any], chunk: list[int], per_shard: list[int], codec: Codec, has_crc: bool
    ) -> ShardVersion:
        """Store a shard with values of which some are replaced by random ones."""
        pick = self.random
        entries, body = np.full((prod(per_shard), 2), EMPTY, np.uint64), bytearray(pick.randbytes(pick.randrange(9)))
        for slot, inside in enumerate(np.ndindex(*per_shard)):
            if pick.random() < 0.2:
                continue
            elements = self.values(prod(chunk) * values.itemsize)
            box = tuple(slice(i * c, i * c + c) for i, c in zip(inside, chunk, strict=True))
            values[box] = np.frombuffer(elements, values.dtype).reshape(chunk)
            data = bytes(zstd.compress(elements, 1)) if codec is Codec.ZSTD else self.encoded(codec, elements, values.itemsize)
            data += crc_of(data) if has_crc else b""
            entries[slot] = len(body), len(data)
            body += data
        path = os.fsencode(os.path.join(self._directory.name, str(number)))
        with open(path, "wb") as file:
            file.write(body)
        return version_of(entries, path)

    def damaged_indices(
        self, files: dict[tuple[int, ...], ShardVersion], chosen: list[range], chunk: list[int], per_shard: list[int]
    ) -> tuple[tuple[int, int], bool]:
        """Damage some entries of selected chunks; return the number of those that are stored, their bytes, and whether one is damaged."""
        pick = self.random
        count = nbytes = 0
        is_damaged = False
        for at in product(*[list(dict.fromkeys(i // c for i in each)) for each, c in zip(chosen, chunk, strict=True)]):
            shard = files.get(tuple(i // n for i, n in zip(at, per_shard, strict=True)))
            slot = 0
            for i, n in zip(at, per_shard, strict=True):
                slot = slot * n + i % n
            if shard is None or shard.entries[slot, 0] == EMPTY:
                continue
            count, nbytes = count + 1, nbytes + int(shard.entries[slot, 1])
            if pick.random() < 0.02:
                shard.entries[slot, pick.randrange(2)] = pick.choice([EMPTY, 2**63, shard.nbytes + 1, 2**62])  # all end behind the file
                is_damaged = True
        return (count, nbytes), is_damaged

    def along(self, length: int) -> range:
        pick = self.random
        if pick.random() < 0.3:
            return range(length)
        start = pick.randrange(length)
        return range(start, pick.randint(start + 1, length), pick.choice([1, 1, 1, 2, 5, 40]))

    def disturbed_selection(self, along: list[SelectedAlong], shards: list[ShardVersion | None]) -> tuple[str, Callable[[], None]]:
        """Now and then, pass a wrong number or change a file while it is read; return which, and what to do afterwards."""
        pick = self.random
        chosen = pick.random()
        there = [number for number, shard in enumerate(shards) if shard is not None]
        if chosen < 0.1 and along:
            axis, name = pick.randrange(len(along)), pick.choice(SelectedAlong._fields)
            along[axis] = along[axis]._replace(**{name: pick.choice([0, -1, 7, 10**6, 2**31, HUGE, 2**63 - 1, -(2**63)])})
            self.seen[f"bad {name} of a selection"] += 1
        elif chosen < 0.15:
            del shards[pick.randrange(len(shards)) :]
        elif chosen < 0.25 and there:
            number = pick.choice(there)
            shard = shards[number]
            assert shard is not None
            kind = pick.choice(["nbytes", "path", "entries", "numbers"])
            if kind == "nbytes":
                shards[number] = shard._replace(nbytes=pick.choice([0, -1, HUGE, 2**63 - 1]))
            elif kind == "path":
                shards[number] = shard._replace(path=pick.choice([b"", b"/dev/zero", shard.path + b"x", shard.path + b"\0x"]))
            elif kind == "entries":
                shards[number] = shard._replace(entries=shard.entries[: pick.randrange(len(shard.entries) + 1)].copy())
            else:
                numbers = list(shard.numbers)
                numbers[pick.randrange(5)] += 1
                shards[number] = shard._replace(numbers=tuple(numbers))
        elif chosen < 0.3 and there:
            shard = shards[pick.choice(there)]
            assert shard is not None
            path, noise = shard.path, pick.randbytes(20)

            def disturb() -> None:
                file = os.open(path, os.O_WRONLY)
                os.pwrite(file, noise, 0) if noise[0] % 2 else os.ftruncate(file, 3)
                os.close(file)

            thread = threading.Thread(target=disturb)
            thread.start()
            return "changed", thread.join
        else:
            return "whole", lambda: None
        return "wrong", lambda: None

    # -- encoding --

    def encode(self) -> None:
        pick = self.random
        shape, itemsize = self.shape_and_item()
        codec, has_crc = pick.choice([Codec.NONE, Codec.ZSTD, Codec.BLOSC]), pick.random() < 0.3
        n = pick.choice([1, 1, 2, 9]) if prod(shape) * itemsize < LARGEST_ROUND_NBYTES // 9 else 1
        strides, extent = self.strides(list(shape), itemsize)
        memory = np.frombuffer(bytearray(self.values(extent * n)), "u1")
        source = np.ndarray((len(memory) // itemsize,), f"V{itemsize}", memory)
        params = self.kernel.chunk_params(
            shape, itemsize, codec, has_crc=has_crc, level=pick.choice([0, 1, 5, 9]), checksum=pick.random() < 0.3,
            shuffle=pick.choice([0, 1, 2]), typesize=pick.choice([1, itemsize]), blocksize=pick.choice([0, 0, 512]),
            compressor_name=pick.choice([b"lz4", b"lz4hc", b"blosclz", b"zlib", b"zstd"]),
        ).with_strides(strides)  # fmt: skip
        at = np.arange(n) * extent
        is_usual = pick.random() > 0.05
        if not is_usual:
            at[pick.randrange(n)] = pick.choice([-1, len(memory), HUGE, -(2**63)])
        fill = pick.choice([None, bytes(itemsize)])
        encoded = self.kernel.encode(params, source, at, fill, pick.choice([1, 2, 3]))
        self.seen[f"encoded as {codec.name}" if is_usual else "encoded from nowhere"] += 1
        assert (encoded is not None) == is_usual
        with tempfile.TemporaryFile() as file:
            sizes = self.kernel.encode_to_file(params, source, at, fill, file.fileno(), pick.choice([1, 2, 3]))
            assert (sizes is not None) == is_usual
            file.seek(0)
            assert encoded is None or file.read() == b"".join(data for data in encoded if data is not None)
        assert encoded is None or sizes is None or sizes.tolist() == [-1 if data is None else len(data) for data in encoded]
        for i, data in enumerate(encoded or []):
            chunk = np.ndarray(shape, f"V{itemsize}", memory, extent * i, tuple(strides)).tobytes()
            if data is None:
                assert fill is not None
                assert chunk == fill * prod(shape)
                continue
            assert fill is None or chunk != fill * prod(shape)
            body = bytes(data)
            if has_crc:
                assert crc_of(body[:-4]) == body[-4:]
                body = body[:-4]
            assert decoded_by_numcodecs(codec, body) == chunk

    def run(self, seconds: float) -> int:
        """Return how many rounds were made."""
        end, rounds = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            rounds += 1
            kind = self.random.random()
            if kind < 0.1:
                self.encode()
            elif kind < 0.4:
                self.select()
            else:
                self.read()
        return rounds


def crc_of(data: bytes) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(4, "little")


def main(seconds: float, seed: int) -> None:
    fuzzed = kernel()
    assert fuzzed is not None, "SHARDSTORE_KERNEL_FILE does not name a kernel"
    assert all(fuzzed.decodes(codec, True) for codec in Codec), fuzzed.libraries()
    fuzzer = Fuzzer(fuzzed, seed)
    rounds = fuzzer.run(seconds)
    lines = [f"{rounds} rounds of seed {seed} in {fuzzed.file}", *(f"  {count:7} {what}" for what, count in sorted(fuzzer.seen.items()))]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
