"""The kernel reads and encodes what the chains of Python do, to the bit; what it cannot read gets a status, and nothing is written
outside of the selected elements.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs.blosc
import numcodecs.zstd
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import default_buffer_prototype

from shardstore.adapters.zarr.codec_chains import DirectChain, compile_chain
from shardstore.errors import InvalidInput
from shardstore.native import kernel as kernel_module
from shardstore.native.kernel import ChunkParams, Codec, Kernel, SelectedAlong, ShardVersion, load, why_no_kernel
from shardstore.native.libraries import LIBRARIES, Library, Use, find_functions
from tests.native.compiling import SOURCE, compile_kernel
from tests.native.reading import CHUNK_DTYPE, read_chunks

BAD_ARGUMENT = 7
CODECS = {Codec.NONE: None, Codec.ZSTD: ZstdCodec(level=3), Codec.BLOSC: BloscCodec(cname="lz4", clevel=5), Codec.GZIP: GzipCodec(level=1)}
BOTH = pytest.mark.parametrize("has_crc", [False, True], ids=["plain", "crc32c"])
EACH = pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())


def chain_of(shape: tuple[int, ...], dtype: str, codec: Codec, has_crc: bool) -> DirectChain:
    parsed = zarr.dtype.parse_dtype(np.dtype(dtype), zarr_format=3)
    spec = ArraySpec(
        shape=shape,
        dtype=parsed,
        fill_value=parsed.default_scalar(),
        config=ArrayConfig(order="C", write_empty_chunks=True),
        prototype=default_buffer_prototype(),
    )
    compressor = CODECS[codec]
    codecs = [BytesCodec(), *([] if compressor is None else [compressor]), *([Crc32cCodec()] if has_crc else [])]
    chain = compile_chain([each.evolve_from_array_spec(spec) for each in codecs], spec)
    assert chain is not None
    return chain


def elements(shape: tuple[int, ...], dtype: str = "<u2", seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 40, shape).astype(dtype)


Selection = tuple[tuple[int, int, int], ...]
"""First element, count and step of each dimension."""


def whole(shape: tuple[int, ...]) -> Selection:
    return tuple((0, n, 1) for n in shape)


def as_slices(selection: Selection) -> tuple[slice, ...]:
    return tuple(slice(first, first + (count - 1) * step + 1, step) for first, count, step in selection)


def selections_of(n: int, selection: Selection) -> np.ndarray[Any, np.dtype[np.int64]]:
    numbers = np.array(selection, np.int64).reshape(len(selection), 3).T
    return np.ascontiguousarray(np.broadcast_to(numbers, (n, 3, len(selection))))


class File:
    """A file of chunks."""

    def __init__(self, chunks: Sequence[bytes | memoryview]) -> None:
        self.descriptor = os.memfd_create("chunks")
        self.table = np.zeros(len(chunks), CHUNK_DTYPE)
        at = 7
        for row, data in zip(self.table, chunks, strict=True):
            os.pwrite(self.descriptor, data, at)
            row["offset"], row["nbytes"] = at, len(data)
            at += len(data)

    @property
    def descriptors(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        return np.array([self.descriptor], np.int32)


@pytest.fixture
def files() -> Iterator[list[File]]:
    made: list[File] = []
    yield made
    for file in made:
        os.close(file.descriptor)


def read_one(
    kernel: Kernel, files: list[File], params: ChunkParams, data: bytes | memoryview, selection: Selection
) -> tuple[int, np.ndarray[Any, Any]]:
    """Read a selection of one chunk into the middle of guarded memory; return the status and what was read, as bytes of elements."""
    file = File([data])
    files.append(file)
    count = tuple(count for _, count, _ in selection)
    guarded = np.full(int(np.prod(count)) * params.itemsize + 128, 0x55, "B")
    out = guarded[64:-64].view(f"V{params.itemsize}").reshape(count)
    bad = read_chunks(kernel, params.with_strides(out.strides), file.descriptors, file.table, selections_of(1, selection), out, 1)
    assert (guarded[:64] == 0x55).all()
    assert (guarded[-64:] == 0x55).all()
    status = int(file.table["status"][0])
    assert bad == (status != 0)
    return status, out


# -- what is read -------------------------------------------------------------------------------------------------------

CASES: list[tuple[tuple[int, ...], str, Selection]] = [
    ((), "<f8", ()),
    ((1000,), "u1", ((3, 400, 2),)),
    ((1000,), "<u4", ((999, 1, 5),)),
    ((40, 30), "<i2", ((0, 40, 1), (0, 30, 1))),
    ((40, 30), "<i2", ((5, 10, 3), (0, 30, 1))),
    ((40, 30), ">u8", ((0, 40, 1), (29, 1, 1))),
    ((9, 8, 7), "<f4", ((0, 9, 1), (1, 3, 2), (6, 1, 1))),
    ((9, 8, 7), "<c16", ((8, 1, 1), (0, 8, 1), (0, 7, 1))),
    ((2, 3, 1, 4, 2), "<M8[s]", ((0, 2, 1), (1, 2, 1), (0, 1, 1), (0, 2, 3), (1, 1, 1))),
]


@EACH
@BOTH
@pytest.mark.parametrize("partial", [False, True], ids=["all", "partial"])
def test_chunks_are_read_as_the_chain_decodes_them(kernel: Kernel, files: list[File], codec: Codec, has_crc: bool, partial: bool) -> None:
    for shape, dtype, selection in CASES:
        chain = chain_of(shape, dtype, codec, has_crc)
        data = chain.encode(elements(shape, dtype))
        params = kernel.chunk_params(shape, np.dtype(dtype).itemsize, codec, has_crc=has_crc, partial=partial)
        status, got = read_one(kernel, files, params, data, selection)
        assert status == 0
        assert got.tobytes() == chain.decode(data)[as_slices(selection)].tobytes()


@EACH
@pytest.mark.parametrize("order", ["C", "F"])
def test_many_chunks_are_put_into_one_array_by_several_threads(kernel: Kernel, files: list[File], codec: Codec, order: Any) -> None:
    values = elements((8 * 6, 5 * 4))
    chain = chain_of((6, 4), "<u2", codec, False)
    coords = [(i, j) for i in range(8) for j in range(5)]
    chunks = [chain.encode(values[i * 6 : i * 6 + 6, j * 4 : j * 4 + 4]) for i, j in coords]
    first, second = File(chunks[:23]), File(chunks[23:])
    files += [first, second]
    table = np.concatenate([first.table, second.table])
    table["file"][23:] = 1
    guarded = np.full((50, 21), 7, "<u2", order=order)
    out = guarded[1:49, :20]
    table["at"] = [i * 6 * out.strides[0] + j * 4 * out.strides[1] for i, j in coords]
    params = kernel.chunk_params((6, 4), 2, codec).with_strides(out.strides)
    descriptors = np.array([first.descriptor, second.descriptor], np.int32)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert read_chunks(kernel, params, descriptors, table, selections_of(40, whole((6, 4))), out, 3) == 0
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == blocked
    np.testing.assert_array_equal(out, values)
    assert (guarded[[0, -1]] == 7).all()
    assert (guarded[:, -1] == 7).all()


def test_chunks_that_are_not_in_memory_are_read(kernel: Kernel, tmp_path: Path) -> None:
    values = elements((200, 4096), "u1")
    (tmp_path / "chunks").write_bytes(values.tobytes())
    descriptor = os.open(tmp_path / "chunks", os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        table = np.zeros(200, CHUNK_DTYPE)
        table["offset"] = table["at"] = np.arange(200) * 4096
        table["nbytes"] = 4096
        out = np.zeros((200, 4096), "u1")
        params = kernel.chunk_params((4096,), 1, Codec.NONE)
        assert read_chunks(kernel, params, np.array([descriptor], np.int32), table, selections_of(200, ((0, 4096, 1),)), out, 2) == 0
        np.testing.assert_array_equal(out, values)
    finally:
        os.close(descriptor)


def test_plain_chunk_of_which_the_first_half_is_not_in_memory_is_read(kernel: Kernel, tmp_path: Path) -> None:
    values = np.arange(2**20, dtype="<u4").reshape(1024, 1024)
    (tmp_path / "chunk").write_bytes(values.tobytes())
    descriptor = os.open(tmp_path / "chunk", os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, values.nbytes // 2, os.POSIX_FADV_DONTNEED)
        table = np.zeros(1, CHUNK_DTYPE)
        table["nbytes"] = values.nbytes
        out = np.zeros(values.shape, "<u4", order="F")
        params = kernel.chunk_params(values.shape, 4, Codec.NONE).with_strides(out.strides)
        chosen = selections_of(1, whole(values.shape))
        assert read_chunks(kernel, params, np.array([descriptor], np.int32), table, chosen, out, 1) == 0
        np.testing.assert_array_equal(out, values)
    finally:
        os.close(descriptor)


def test_only_the_needed_bytes_of_plain_chunks_are_read(kernel: Kernel, files: list[File]) -> None:
    data = elements((100, 50)).tobytes()
    for partial, expected in [(True, 0), (False, 1)]:
        params = kernel.chunk_params((100, 50), 2, Codec.NONE, partial=partial)
        file = File([data])
        files.append(file)
        os.ftruncate(file.descriptor, int(file.table["offset"][0]) + 1000)
        out = np.zeros((10, 50), "<u2")
        assert (
            read_chunks(
                kernel, params.with_strides(out.strides), file.descriptors, file.table, selections_of(1, ((0, 10, 1), (0, 50, 1))), out, 1
            )
            == expected
        )
        assert partial == (out.tobytes() == data[:1000])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("partial", [False, True], ids=["all", "partial"])
def test_plain_chunks_that_are_longer_than_a_buffer_are_read_in_pieces(
    kernel: Kernel, files: list[File], order: Any, partial: bool
) -> None:
    shape = (5, 701, 400)
    values = np.arange(np.prod(shape), dtype="<u4").reshape(shape)
    file = File([values.tobytes()])
    files.append(file)
    params = kernel.chunk_params(shape, 4, Codec.NONE, partial=partial)
    for selection in [
        whole(shape),
        ((0, 5, 1), (0, 701, 1), (399, 1, 1)),
        ((1, 2, 3), (2, 350, 2), (1, 133, 3)),
        ((2, 1, 1), (0, 701, 1), (3, 397, 1)),
        ((4, 1, 1), (700, 1, 1), (0, 400, 1)),
        ((0, 5, 1), (700, 1, 1), (399, 1, 1)),
    ]:
        guarded = np.full([count + 1 for _, count, _ in selection], 7, "<u4", order=order)
        out = guarded[:-1, :-1, :-1]
        chosen = selections_of(1, selection)
        assert read_chunks(kernel, params.with_strides(out.strides), file.descriptors, file.table, chosen, out, 1) == 0
        expected = np.full_like(guarded, 7)
        expected[:-1, :-1, :-1] = values[as_slices(selection)]
        np.testing.assert_array_equal(guarded, expected)
    os.ftruncate(file.descriptor, int(file.table["offset"][0]) + values.nbytes - 1)
    out = np.empty(shape, "<u4", order="F")
    table = file.table.copy()
    assert read_chunks(kernel, params.with_strides(out.strides), file.descriptors, table, selections_of(1, whole(shape)), out, 1) == 1
    assert table["status"] == 1


def test_damage_in_bytes_of_blosc_that_are_not_needed_is_seen_only_if_all_are_decoded(kernel: Kernel, files: list[File]) -> None:
    encoded = bytearray(numcodecs.blosc.compress(elements((64, 8192)), b"lz4", 5, 1, 2**16))
    header = struct.unpack_from("<BBBBiii", encoded)
    starts = struct.unpack_from(f"<{header[4] // header[5]}i", encoded, 16)
    assert len(starts) > 4
    rows = 64 // len(starts)  # of a block
    encoded[max(starts) : max(starts) + 4] = b"\xff\xff\xff\x7f"  # the length of the last block
    for count, partial, expected in [(4, True, 0), (4, False, 3), (64 - rows, True, 0), (64 - rows + 1, True, 3)]:
        params = kernel.chunk_params((64, 8192), 2, Codec.BLOSC, partial=partial)
        status, _ = read_one(kernel, files, params, bytes(encoded), ((0, count, 1), (0, 8192, 1)))
        assert status == expected


def test_only_the_needed_blocks_of_long_blosc_chunks_are_read(kernel: Kernel, files: list[File]) -> None:
    values = np.random.default_rng(0).integers(0, 40, (64, 8192)).astype("<u2")
    encoded = numcodecs.blosc.compress(values, b"lz4", 5, 1, 2**16)
    count = 8  # of 8 rows each
    head = struct.unpack_from(f"<BBBBiii{count}i", encoded)
    starts, head_nbytes = head[7:], 16 + 4 * count
    assert head[5] == values.nbytes // count
    blocks = [encoded[start:end] for start, end in zip(starts, [*starts[1:], len(encoded)], strict=True)]
    params = kernel.chunk_params(values.shape, 2, Codec.BLOSC)
    for order in (range(count), reversed(range(count))):  # threads of Blosc write blocks in any order
        body, places = b"", [0] * count
        for which in order:
            places[which] = head_nbytes + len(body)
            body += blocks[which]
        whole = encoded[:16] + struct.pack(f"<{count}i", *places) + body
        for selection, needed in [(((8, 1, 1), (5, 3, 2)), [1]), (((23, 2, 1), (0, 8192, 1)), [2, 3]), (((63, 1, 1), (8191, 1, 1)), [7])]:
            noise = bytearray(np.random.default_rng(1).bytes(len(whole)))
            noise[:head_nbytes] = whole[:head_nbytes]
            for which in needed:
                noise[places[which] : places[which] + len(blocks[which])] = blocks[which]
            status, got = read_one(kernel, files, params, bytes(noise), selection)
            assert (status, got.tobytes()) == (0, values[as_slices(selection)].tobytes())
            file = File([whole])
            files.append(file)
            end = max(places[which] + len(blocks[which]) for which in needed)
            os.ftruncate(file.descriptor, int(file.table["offset"][0]) + end)
            out = np.zeros([n for _, n, _ in selection], "<u2")
            chosen = selections_of(1, selection)
            assert read_chunks(kernel, params.with_strides(out.strides), file.descriptors, file.table, chosen, out, 1) == 0
            at = places[needed[-1]]
            noise[at : at + 4] = len(whole).to_bytes(4, "little")  # the length of its first part, in other blocks
            assert read_one(kernel, files, params, bytes(noise), selection)[0] == 3


def test_elements_of_another_size_than_those_of_blosc_are_read(kernel: Kernel, files: list[File]) -> None:
    values = elements((4096,))
    data = numcodecs.blosc.compress(values.view("<u8"), b"lz4", 5, 1)
    for selection in [((1, 10, 1),), ((4, 8, 1),), ((4, 9, 1),), ((3, 1, 1),)]:
        status, got = read_one(kernel, files, kernel.chunk_params((4096,), 2, Codec.BLOSC), data, selection)
        assert status == 0
        assert got.tobytes() == values[as_slices(selection)].tobytes()


# -- selections of arrays -----------------------------------------------------------------------------------------------


def shard_at(path: Path, chunks: Sequence[bytes | memoryview | None]) -> ShardVersion:
    """Write a shard without its index; ``None`` for a chunk that is missing. It is old, so that each change gives it another time."""
    entries = np.full((len(chunks), 2), 2**64 - 1, np.uint64)
    body = b""
    for entry, data in zip(entries, chunks, strict=True):
        if data is not None:
            entry[:] = len(body), len(data)
            body += bytes(data)
    path.write_bytes(body)
    os.utime(path, ns=(1, 10**18 + 123_456_789))
    return version_of(path, entries)


def version_of(path: Path, entries: Any, *mark: int) -> ShardVersion:
    status = path.stat()
    numbers = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, *mark)
    return ShardVersion(entries, status.st_size, os.fsencode(path), numbers)


def select(
    kernel: Kernel, shards: Sequence[ShardVersion | None], *, per_shard: int, start: int = 0, count: int, step: int = 1,
    side: int = 1, codec: Codec = Codec.NONE, inside: bytes | None = None,
) -> tuple[tuple[int, int] | None, list[int]]:  # fmt: skip
    """Read elements of one byte of an array of one dimension, whose chunks have ``side`` of them."""
    out = np.full(count, 99, "u1")
    along = [SelectedAlong(start, count, step, per_shard, 1, 1)]
    found = kernel.read_selection(kernel.chunk_params((side,), 1, codec), along, shards, inside, b"\7", out.strides, out, 2)
    return found, out.tolist()


def test_a_selection_is_read_from_shards_chunks_and_what_is_missing(kernel: Kernel, tmp_path: Path) -> None:
    first = shard_at(tmp_path / "first", [b"\0\1\2", None, b"\6\7\10"])
    third = shard_at(tmp_path / "third", [b"\22\23\24", b"\25\26\27", None])
    assert select(kernel, [first, None, third], per_shard=3, side=3, count=27) == (
        (4, 12),
        [0, 1, 2, 7, 7, 7, 6, 7, 8, *[7] * 9, 18, 19, 20, 21, 22, 23, 7, 7, 7],
    )
    assert select(kernel, [first], per_shard=3, side=3, start=1, count=2, step=6) == ((2, 6), [1, 7])
    assert select(kernel, [first, third], per_shard=3, side=3, start=2, count=2, step=19) == ((2, 6), [2, 21])


def test_more_files_than_are_open_at_once(kernel: Kernel, tmp_path: Path) -> None:
    shards = [shard_at(tmp_path / str(i), [bytes([i]), bytes([100 + i])]) for i in range(150)]
    before = len(os.listdir("/proc/self/fd"))
    found, got = select(kernel, shards, per_shard=2, start=1, count=150, step=2)
    assert found == (150, 150)
    assert got == [(100 + i) % 256 for i in range(150)]
    assert len(os.listdir("/proc/self/fd")) == before


def test_more_chunks_than_one_call_reads(kernel: Kernel, tmp_path: Path) -> None:
    data = np.random.default_rng(0).bytes(150_000)
    shards = [shard_at(tmp_path / str(i), [data[at : at + 1] for at in range(i * 50_000, (i + 1) * 50_000)]) for i in range(3)]
    found, got = select(kernel, shards, per_shard=50_000, count=150_000)
    assert found == (150_000, 150_000)
    assert bytes(got) == data


def test_a_shard_of_another_version_is_not_read(kernel: Kernel, tmp_path: Path) -> None:
    shard = shard_at(tmp_path / "shard", [b"\1", None])
    for start in (0, 1):  # what is missing is missing in this version
        assert select(kernel, [shard], per_shard=2, start=start, count=1)[0] == (1 - start, 1 - start)
        for which in range(5):
            numbers = [number + (which == i) for i, number in enumerate(shard.numbers)]
            assert select(kernel, [shard._replace(numbers=tuple(numbers))], per_shard=2, start=start, count=1)[0] is None
        assert select(kernel, [shard._replace(path=shard.path + b"x")], per_shard=2, start=start, count=1)[0] is None
        assert select(kernel, [shard._replace(path=os.fsencode(tmp_path))], per_shard=2, start=start, count=1)[0] is None
    assert select(kernel, [shard], per_shard=2, count=1, inside=os.fsencode(f"{tmp_path}/"))[0] == (1, 1)
    assert select(kernel, [shard], per_shard=2, count=1, inside=os.fsencode(f"{tmp_path}x/"))[0] is None
    os.setxattr(tmp_path / "shard", "user.shardstore.append", b"record")
    assert select(kernel, [version_of(tmp_path / "shard", shard.entries)], per_shard=2, count=1)[0] is None


def test_the_mark_of_a_file_whose_times_are_coarse_is_compared(kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here ctime has nanoseconds, so a mark is not looked for: then no file of this version has one."""
    shard = shard_at(tmp_path / "shard", [b"\1"])
    os.utime(tmp_path / "shard", ns=(1, 10**18))
    os.setxattr(tmp_path / "shard", "user.shardstore.version", (2**63 + 5).to_bytes(8, "little"))
    assert select(kernel, [version_of(tmp_path / "shard", shard.entries)], per_shard=1, count=1)[0] == (1, 1)
    assert select(kernel, [version_of(tmp_path / "shard", shard.entries, 2**63 + 5)], per_shard=1, count=1)[0] is None


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_shard_that_changes_while_it_is_read_is_not_read(kernel_file: Path, tmp_path: Path, is_changed: bool) -> None:
    source = """
        #include <fcntl.h>
        #include <stddef.h>
        #include <unistd.h>
        void *ZSTD_createDCtx(void) { return &optind; }
        size_t ZSTD_freeDCtx(void *context) { return context == NULL; }
        size_t ZSTD_decompressDCtx(void *context, void *to, size_t n, const void *from, size_t m) {
            int file = open(FILE_NAME, O_WRONLY);
            if (CHANGES && write(file, "x", 1) != 1) return 0;
            close(file);
            return n;
        }
        unsigned long long ZSTD_getFrameContentSize(const void *from, size_t n) { return 1; }
    """
    source = source.replace("FILE_NAME", f'"{tmp_path}/shard"').replace("CHANGES", str(int(is_changed)))
    compile_kernel(tmp_path / "libzstd.so", "-fvisibility=default", "-Wno-unused-parameter", source=source)
    kernel = load(kernel_file, [Library((str(tmp_path / "libzstd.so"),), {Use.DECODE_ZSTD: LIBRARIES[0].symbols[Use.DECODE_ZSTD]})])
    assert isinstance(kernel, Kernel)
    shard = shard_at(tmp_path / "shard", [b"\x28\xb5\x2f\xfd\0\0\0"])
    found, _ = select(kernel, [shard], per_shard=1, count=1, codec=Codec.ZSTD)
    assert found == (None if is_changed else (1, 7))


def test_a_damaged_index_and_numbers_that_do_not_fit_read_nothing(kernel: Kernel, tmp_path: Path) -> None:
    shard = shard_at(tmp_path / "shard", [b"\1", b"\2"])
    for entry in ([0, 2**64 - 1], [2**64 - 1, 1], [3, 1], [2, 1], [1, 2], [0, 2**63]):
        damaged = shard._replace(entries=np.array([entry, [1, 1]], np.uint64))
        assert select(kernel, [damaged], per_shard=2, count=2)[0] is None
        assert select(kernel, [damaged], per_shard=2, start=1, count=1) == ((1, 1), [2])
    assert select(kernel, [shard], per_shard=2, count=3)[0] is None  # there is no second shard
    assert select(kernel, [shard._replace(entries=shard.entries[:1])], per_shard=2, count=2)[0] is None
    assert select(kernel, [shard], per_shard=2, start=-1, count=1)[0] is None
    params, out = kernel.chunk_params((1,), 1, Codec.NONE), np.zeros(1, "u1")
    along = [SelectedAlong(0, 1, 1, 2, 1, 1)]
    fixed = np.zeros(1, "u1")
    fixed.flags.writeable = False
    refused: list[tuple[list[SelectedAlong], bytes, tuple[int, ...], Any]] = [
        (along, b"12", (1,), out),
        (along * 2, b"1", (1,), out),
        (along, b"1", (1, 1), out),
        (along, b"1", (1,), out.astype("<u2")),
        (along, b"1", (1,), np.zeros(4, "u1")[::-1]),
        (along, b"1", (1,), fixed),
    ]
    for entries in (shard.entries[::-1], shard.entries.astype("<u4")):
        with pytest.raises(InvalidInput):
            kernel.read_selection(params, along, [shard._replace(entries=entries)], None, b"1", (1,), out, 1)
    for chosen, fill, strides, memory in refused:
        with pytest.raises(InvalidInput):
            kernel.read_selection(params, chosen, [shard], None, fill, strides, memory, 1)


# -- what is not read ---------------------------------------------------------------------------------------------------

SHAPE = (40, 30)
NBYTES = 40 * 30 * 2
RAW = elements(SHAPE).tobytes()


def blosc_with(at: int, number: int) -> bytes:
    encoded = bytearray(numcodecs.blosc.compress(RAW, b"lz4", 5, 1))
    encoded[at : at + 4] = struct.pack("<i", number)
    return bytes(encoded)


def gzipped(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=31)
    return compressor.compress(data) + compressor.flush()


def zstd_streamed() -> bytes:
    """A frame without its content size: a raw block behind the header. RFC 8878, 3.1.1."""
    return b"\x28\xb5\x2f\xfd\x00\x58" + (NBYTES << 3 | 1).to_bytes(3, "little") + RAW


ZSTD = numcodecs.zstd.compress(RAW, 1)
OTHER_CHUNKS: dict[str, tuple[Codec, bytes]] = {
    "plain, one byte less": (Codec.NONE, RAW[:-1]),
    "plain, one byte more": (Codec.NONE, RAW + b"\0"),
    "zstd, empty": (Codec.ZSTD, b""),
    "zstd, less content": (Codec.ZSTD, numcodecs.zstd.compress(RAW[:-2], 1)),
    "zstd, more content": (Codec.ZSTD, numcodecs.zstd.compress(RAW + RAW, 1)),
    "zstd, two frames": (Codec.ZSTD, numcodecs.zstd.compress(RAW[:1200], 1) + numcodecs.zstd.compress(RAW[1200:], 1)),
    "zstd, skippable frame before": (Codec.ZSTD, b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + ZSTD),
    "zstd, no content size": (Codec.ZSTD, zstd_streamed()),
    "zstd, cut": (Codec.ZSTD, ZSTD[:-1]),
    "zstd, bytes behind it": (Codec.ZSTD, ZSTD + b"\0"),
    "zstd, other checksum": (Codec.ZSTD, numcodecs.zstd.compress(RAW, 1, True)[:-1] + b"\0"),
    "blosc, cut header": (Codec.BLOSC, blosc_with(4, NBYTES)[:15]),
    "blosc, less content": (Codec.BLOSC, blosc_with(4, NBYTES - 2)),
    "blosc, more content": (Codec.BLOSC, blosc_with(4, NBYTES + 2)),
    "blosc, negative content": (Codec.BLOSC, blosc_with(4, -NBYTES)),
    "blosc, no block": (Codec.BLOSC, blosc_with(8, 0)),
    "blosc, negative block": (Codec.BLOSC, blosc_with(8, -8)),
    "blosc, other length": (Codec.BLOSC, blosc_with(12, 2**31 - 1)),
    "blosc, cut": (Codec.BLOSC, blosc_with(4, NBYTES)[:-1]),
    "blosc, bytes behind it": (Codec.BLOSC, blosc_with(4, NBYTES) + b"\0"),
    "gzip, less content": (Codec.GZIP, gzipped(RAW[:-2])),
    "gzip, one byte more": (Codec.GZIP, gzipped(RAW + b"\0")),
    "gzip, much more": (Codec.GZIP, gzipped(RAW + bytes(100_000))),
    "gzip, two members": (Codec.GZIP, gzipped(RAW[:1200]) + gzipped(RAW[1200:])),
    "gzip, bytes behind it": (Codec.GZIP, gzipped(RAW) + b"\0"),
    "gzip, no checksum": (Codec.GZIP, gzipped(RAW)[:-8]),
    "gzip, other checksum": (Codec.GZIP, gzipped(RAW)[:-8] + bytes(4) + gzipped(RAW)[-4:]),
    "gzip, zlib": (Codec.GZIP, zlib.compress(RAW)),
}


@pytest.mark.parametrize("selection", [whole(SHAPE), ((3, 20, 1), (0, 15, 2))], ids=["in place", "part"])
@pytest.mark.parametrize("name", OTHER_CHUNKS)
def test_what_is_no_chunk_of_this_array_gets_a_status(kernel: Kernel, files: list[File], name: str, selection: Selection) -> None:
    codec, data = OTHER_CHUNKS[name]
    status, _ = read_one(kernel, files, kernel.chunk_params(SHAPE, 2, codec, partial=True), data, selection)
    assert status != 0
    crc = google_crc32c.value(data).to_bytes(4, "little")
    status, _ = read_one(kernel, files, kernel.chunk_params(SHAPE, 2, codec, has_crc=True), data + crc, selection)
    assert status != 0


@EACH
def test_checksums_are_compared(kernel: Kernel, files: list[File], codec: Codec) -> None:
    params = kernel.chunk_params(SHAPE, 2, codec, has_crc=True)
    data = bytearray(chain_of(SHAPE, "<u2", codec, True).encode(elements(SHAPE)))
    assert read_one(kernel, files, params, bytes(data), ((2, 3, 1), (0, 30, 1)))[0] == 0
    for at in (0, len(data) // 2, len(data) - 1):
        data[at] ^= 1
        assert read_one(kernel, files, params, bytes(data), ((2, 3, 1), (0, 30, 1)))[0] == 2
        data[at] ^= 1
    assert read_one(kernel, files, params, b"abc", whole(SHAPE))[0] == 2


def test_a_chunk_that_is_longer_than_any_compressor_makes_it_is_not_read(kernel: Kernel, files: list[File]) -> None:
    frame = numcodecs.zstd.compress(b"ab", 1)
    params = kernel.chunk_params((1,), 2, Codec.ZSTD)
    skippable = b"\x50\x2a\x4d\x18" + (4100).to_bytes(4, "little") + bytes(4100)
    assert read_one(kernel, files, params, frame + skippable[:8] + bytes(4100), ((0, 1, 1),))[0] == 4
    short = b"\x50\x2a\x4d\x18" + (3000).to_bytes(4, "little") + bytes(3000)
    assert read_one(kernel, files, params, frame + short, ((0, 1, 1),))[0] == 0  # empty frames may follow, as numcodecs allows


@EACH
def test_files_that_are_cut_or_closed_give_a_status(kernel: Kernel, files: list[File], codec: Codec) -> None:
    data = chain_of(SHAPE, "<u2", codec, False).encode(elements(SHAPE))
    params = kernel.chunk_params(SHAPE, 2, codec)
    file = File([data, data])
    files.append(file)
    os.ftruncate(file.descriptor, int(file.table["offset"][1]) + len(data) - 1)
    out = np.zeros((2, *SHAPE), "<u2")
    file.table["at"][1] = NBYTES
    assert read_chunks(kernel, params, file.descriptors, file.table, selections_of(2, whole(SHAPE)), out, 2) == 1
    assert file.table["status"].tolist() == [0, 1]
    np.testing.assert_array_equal(out[0], elements(SHAPE))
    closed = os.dup(file.descriptor)
    os.close(closed)
    reader, writer = os.pipe()
    for descriptor in (closed, -1, reader):
        assert read_chunks(kernel, params, np.array([descriptor], np.int32), file.table, selections_of(2, whole(SHAPE)), out, 2) == 2
    os.close(reader)
    os.close(writer)


HUGE = 2**62
BAD_NUMBERS = [
    *((name, number) for name in ("offset", "nbytes", "at") for number in (-1, -HUGE, HUGE)),
    *(("file", number) for number in (-1, 1, 2**31 - 1)),
    *((name, number) for name in ("first", "count") for number in (-1, 31, HUGE)),
    *(("count", 0), ("count", 16), ("step", 0), ("step", -1), ("step", HUGE)),
]


@EACH
@pytest.mark.parametrize(("name", "number"), BAD_NUMBERS)
def test_bad_numbers_give_a_status_and_write_nothing(kernel: Kernel, files: list[File], codec: Codec, name: str, number: int) -> None:
    file = File([chain_of(SHAPE, "<u2", codec, False).encode(elements(SHAPE))])
    files.append(file)
    out = np.full(SHAPE, 9, "<u2")
    selections = selections_of(1, ((0, 20, 2), (0, 15, 2))).copy()
    if name in CHUNK_DTYPE.fields:  # type: ignore[operator]
        file.table[name] = number
    else:
        selections[0, ("first", "count", "step").index(name), 1] = number
    assert read_chunks(kernel, kernel.chunk_params(SHAPE, 2, codec), file.descriptors, file.table, selections, out, 1) == 1
    allowed = {"nbytes": (BAD_ARGUMENT, 4), "offset": (BAD_ARGUMENT, 1)}  # too long, and behind the file's end
    assert file.table["status"][0] in allowed.get(name, (BAD_ARGUMENT,))
    assert (out == 9).all()


def test_elements_that_do_not_end_in_the_memory_are_not_written(kernel: Kernel, files: list[File]) -> None:
    file = File([RAW])
    files.append(file)
    out = np.full(NBYTES // 2 + 100, 9, "<u2")
    params = kernel.chunk_params(SHAPE, 2, Codec.NONE)
    for at, expected in [(0, 0), (200, 0), (201, 1), (202, 1), (len(out) * 2, 1)]:
        file.table["at"] = at
        assert read_chunks(kernel, params, file.descriptors, file.table, selections_of(1, whole(SHAPE)), out, 1) == expected
    for strides in [(HUGE, 2), (2**63 - 1, 2**63 - 1), (60, HUGE), (2**57, 2**58)]:  # of the last, only the sum is too large
        file.table["at"] = 0
        assert read_chunks(kernel, params.with_strides(strides), file.descriptors, file.table, selections_of(1, whole(SHAPE)), out, 1) == 1


def test_parameters_that_fit_no_chunk_are_refused(kernel: Kernel) -> None:
    params = kernel.chunk_params(SHAPE, 2, Codec.NONE)
    for strides in [(2,), (60, -2), (2, 2, 2)]:
        with pytest.raises(InvalidInput):
            params.with_strides(strides)
    for shape in [(0,), (1,) * 17, (-1,)]:
        with pytest.raises(InvalidInput):
            kernel.chunk_params(shape, 2, Codec.NONE)
    with pytest.raises(InvalidInput):
        kernel.chunk_params(SHAPE, 2, Codec.BLOSC, compressor_name=b"0123456789abcdef")


# -- encoding -----------------------------------------------------------------------------------------------------------


def encoding_params(kernel: Kernel, shape: tuple[int, ...], itemsize: int, codec: Codec, has_crc: bool = False) -> ChunkParams:
    if codec is Codec.BLOSC:
        return kernel.chunk_params(
            shape, itemsize, codec, has_crc=has_crc, level=5, shuffle=1 if itemsize > 1 else 2, typesize=itemsize, compressor_name=b"lz4"
        )
    return kernel.chunk_params(shape, itemsize, codec, has_crc=has_crc, level=3)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD, Codec.BLOSC], ids=lambda codec: codec.name.lower())
@BOTH
@pytest.mark.parametrize("order", ["C", "F"])
def test_chunks_are_encoded_as_the_chain_encodes_them(kernel: Kernel, codec: Codec, has_crc: bool, order: Any) -> None:
    for dtype in ("u1", "<u2", "<f8"):
        source = elements((48, 20), dtype).copy(order=order)
        source[6:12, 4:8] = 3
        chain = chain_of((6, 4), dtype, codec, has_crc)
        places = [(i, j) for i in range(0, 48, 6) for j in range(0, 20, 4)]
        at = np.array([i * source.strides[0] + j * source.strides[1] for i, j in places], np.int64)
        params = encoding_params(kernel, (6, 4), source.itemsize, codec, has_crc).with_strides(source.strides)
        encoded = kernel.encode(params, source, at, np.array(3, dtype).tobytes(), 3)
        assert encoded is not None
        for (i, j), data in zip(places, encoded, strict=True):
            chunk = source[i : i + 6, j : j + 4]
            assert (data is None) == ((i, j) == (6, 4))
            if data is not None:
                np.testing.assert_array_equal(chain.decode(data), chunk)
                if codec is not Codec.ZSTD:  # of which there may be a newer version than that of numcodecs
                    assert bytes(data) == bytes(chain.encode(chunk))


@pytest.mark.parametrize("level", [-5, 0, 1, 3, 19])
@pytest.mark.parametrize("checksum", [False, True])
def test_frames_have_their_size_and_a_checksum_if_asked_for(kernel: Kernel, level: int, checksum: bool) -> None:
    source = elements((300, 100), "<u2")
    params = kernel.chunk_params(source.shape, 2, Codec.ZSTD, level=level, checksum=checksum)
    [data] = kernel.encode(params, source, np.zeros(1, np.int64), None, 1) or [None]
    assert data is not None
    by_numcodecs = numcodecs.zstd.compress(source, level, checksum)
    assert data[4] == by_numcodecs[4]
    assert data[4] & 4 == 4 * checksum
    assert data[5:8] == by_numcodecs[5:8]
    assert abs(len(data) - len(by_numcodecs)) < len(by_numcodecs) // 20
    assert numcodecs.zstd.decompress(data) == source.tobytes()


def test_only_the_same_bits_are_the_fill_value(kernel: Kernel) -> None:
    source = np.zeros((5, 4), "<f8")
    source[1, 2], source[2], source[3, 3], source[4, 0] = -0.0, np.nan, 1e-320, 1
    params = kernel.chunk_params((4,), 8, Codec.ZSTD)
    at = np.arange(5) * 32
    nan = np.array(np.nan).tobytes()
    for fill, dropped in [(bytes(8), [0]), (nan, [2]), (b"12345678", []), (None, [])]:
        encoded = kernel.encode(params, source, at, fill, 1)
        assert encoded is not None
        assert [i for i, data in enumerate(encoded) if data is None] == dropped


def test_a_single_element_may_be_the_fill_value(kernel: Kernel) -> None:
    source = np.array([3, 4], "<u2")
    encoded = kernel.encode(kernel.chunk_params((), 2, Codec.NONE), source, np.array([0, 2]), b"\3\0", 1)
    assert [None if data is None else bytes(data) for data in encoded or []] == [None, b"\4\0"]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD, Codec.BLOSC], ids=lambda codec: codec.name.lower())
@BOTH
@pytest.mark.parametrize(("shape", "n", "threads"), [((6, 4), 1000, 1), ((6, 4), 1000, 3), ((300, 1000), 9, 2)], ids=str)
def test_chunks_are_written_one_behind_the_other(
    kernel: Kernel, tmp_path: Path, codec: Codec, has_crc: bool, shape: tuple[int, int], n: int, threads: int
) -> None:
    """More than are encoded at once, written at once, or kept as memory of a thread; some that are not written."""
    source = elements((n * shape[0], shape[1]), "<u2")
    source[shape[0] : 3 * shape[0]] = 3
    at = np.arange(n)[::-1] * (shape[0] * source.strides[0])
    params = encoding_params(kernel, shape, 2, codec, has_crc).with_strides(source.strides)
    encoded = kernel.encode(params, source, at, b"\3\0", 1)
    assert encoded is not None
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"before")
        file.flush()
        sizes = kernel.encode_to_file(params, source, at, b"\3\0", file.fileno(), threads)
        assert sizes is not None
        assert sizes.tolist() == [-1 if data is None else len(data) for data in encoded]
        assert encoded.count(None) == 2
        file.seek(0)
        assert file.read() == b"before" + b"".join(data for data in encoded if data is not None)


def test_what_the_system_writes_of_it_is_not_written_again(kernel_file: Path, tmp_path: Path) -> None:
    assert kernel_file.exists()  # so there is a compiler
    source = SOURCE.read_text()
    call = "writev(file, some + first, count - first)"
    assert call in source
    short = call.replace(call, "write(file, some[first].iov_base, some[first].iov_len > 999 ? 999 : some[first].iov_len)")
    kernel = load(compile_kernel(tmp_path / "libshort.so", "-O1", source=source.replace(call, short)))
    assert isinstance(kernel, Kernel)
    values = elements((90, 1000), "<u2")
    params = kernel.chunk_params((1, 1000), 2, Codec.NONE)
    with (tmp_path / "file").open("w+b") as file:
        sizes = kernel.encode_to_file(params, values, np.arange(90) * 2000, None, file.fileno(), 1)
        assert sizes is not None
        assert (sizes == 2000).all()
        file.seek(0)
        assert file.read() == values.tobytes()


def test_an_error_of_the_system_is_raised(kernel: Kernel, tmp_path: Path) -> None:
    source, at = elements(SHAPE), np.zeros(1, np.int64)
    params = kernel.chunk_params(SHAPE, 2, Codec.NONE)
    path = tmp_path / "file"
    path.touch()
    with path.open("rb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        kernel.encode_to_file(params, source, at, None, file.fileno(), 1)
    with Path("/dev/full").open("wb") as full, pytest.raises(OSError, match="No space left"):
        kernel.encode_to_file(params, source, at, None, full.fileno(), 1)
    with pytest.raises(InvalidInput):
        kernel.encode_to_file(params, source, at, b"1", 1, 1)
    with path.open("wb") as file:
        assert kernel.encode_to_file(params, source, np.array([0, HUGE]), None, file.fileno(), 1) is None


def test_what_cannot_be_encoded_is_left_to_python(kernel: Kernel) -> None:
    source, at = elements(SHAPE), np.zeros(1, np.int64)
    assert (
        kernel.encode(kernel.chunk_params(SHAPE, 2, Codec.BLOSC, level=99, typesize=2, compressor_name=b"lz4"), source, at, None, 1) is None
    )
    assert (
        kernel.encode(kernel.chunk_params(SHAPE, 2, Codec.BLOSC, level=1, typesize=0, compressor_name=b"lz4"), source, at, None, 1) is None
    )
    assert kernel.encode(kernel.chunk_params(SHAPE, 2, Codec.BLOSC, level=1, typesize=2, compressor_name=b"x"), source, at, None, 1) is None
    params = kernel.chunk_params(SHAPE, 2, Codec.NONE)
    for bad in (-1, 1, HUGE):
        assert kernel.encode(params, source, np.array([0, bad]), None, 1) is None
    assert kernel.encode(params.with_strides((HUGE, 2)), source, at, None, 1) is None
    assert not kernel.encodes(Codec.GZIP, False)
    refused: list[tuple[ChunkParams, Any, Any, bytes | None]] = [
        (kernel.chunk_params(SHAPE, 2, Codec.GZIP), source, at, None),
        (params, source, at.astype("<i4"), None),
        (params, source.astype("<u4"), at, None),
        (params, source[::-1], at, None),
        (params, source, at, b"1"),
    ]
    for arguments in refused:
        with pytest.raises(InvalidInput):
            kernel.encode(*arguments, 1)


# -- libraries ----------------------------------------------------------------------------------------------------------


def test_all_functions_are_found_here(kernel: Kernel) -> None:
    """The wheels of numcodecs and google-crc32c show theirs, and Python's zlib those of zlib."""
    assert all(kernel.decodes(codec, has_crc) for codec in Codec for has_crc in (False, True))
    assert all(kernel.encodes(codec, True) for codec in (Codec.NONE, Codec.ZSTD, Codec.BLOSC))
    assert kernel.libraries().keys() == {use.value for use in Use}


@pytest.mark.parametrize(
    ("use", "cannot_decode", "cannot_encode"),
    [
        (Use.DECODE_ZSTD, [Codec.ZSTD], []),
        (Use.ENCODE_ZSTD, [], [Codec.ZSTD]),
        (Use.DECODE_BLOSC, [Codec.BLOSC], []),
        (Use.ENCODE_BLOSC, [], [Codec.BLOSC]),
        (Use.DECODE_GZIP, [Codec.GZIP], []),
    ],
)
def test_a_codec_of_which_one_symbol_is_missing_is_left_to_python(
    kernel_file: Path, use: Use, cannot_decode: list[Codec], cannot_encode: list[Codec]
) -> None:
    def without(library: Library) -> Library:
        symbols = {each: dict(named) for each, named in library.symbols.items()}
        if use in symbols:
            symbols[use][next(reversed(symbols[use]))] = "shardstore_no_such_function"
        return replace(library, symbols=symbols)

    kernel = load(kernel_file, [without(library) for library in LIBRARIES])
    assert isinstance(kernel, Kernel)
    assert [codec for codec in Codec if not kernel.decodes(codec, False)] == cannot_decode
    assert [codec for codec in Codec if not kernel.encodes(codec, False)] == [*cannot_encode, Codec.GZIP]
    out = np.zeros(SHAPE, "<u2")
    along = [SelectedAlong(0, n, 1, 1, 1, 1) for n in SHAPE]
    for codec in cannot_decode:
        with pytest.raises(InvalidInput):
            kernel.read_selection(kernel.chunk_params(SHAPE, 2, codec), along, [None], None, b"12", out.strides, out, 1)
    for codec in cannot_encode:
        with pytest.raises(InvalidInput):
            kernel.encode(kernel.chunk_params(SHAPE, 2, codec), out, np.zeros(1, np.int64), None, 1)


def test_without_crc32c_chunks_with_checksums_are_left_to_python(kernel_file: Path) -> None:
    kernel = load(kernel_file, LIBRARIES[:-1])
    assert isinstance(kernel, Kernel)
    assert not any(kernel.decodes(codec, True) or kernel.encodes(codec, True) for codec in Codec)
    assert all(kernel.decodes(codec, False) for codec in Codec)


def test_functions_of_two_files_are_not_mixed() -> None:
    names = {"zlib_version": "zlibVersion", "inflate_init": "malloc"}  # which the same handle finds in libc
    assert find_functions([Library(("zlib", "", "libz.so.1"), {Use.DECODE_GZIP: names})]).origins == {}


def test_the_newest_version_of_zstd_is_taken(kernel: Kernel, tmp_path: Path) -> None:
    def stand_in(name: str, version: str) -> str:
        source = f'const char *ZSTD_versionString(void) {{ return "{version}"; }} int ZSTD_createDCtx(void) {{ return 1; }}'
        compile_kernel(tmp_path / name, "-fvisibility=default", source=source)
        return str(tmp_path / name)

    places = (
        stand_in("liba.so", "1.5.9"),
        stand_in("libb.so", "1.5.10"),
        stand_in("libc.so", "1.5.10"),
        "libnone.so.1",
        "no_such.module",
        "math",
    )
    library = Library(places, {Use.DECODE_ZSTD: {"zstd_decode": "ZSTD_createDCtx"}}, "ZSTD_versionString", takes_newest=True)
    assert find_functions([library]).origins[Use.DECODE_ZSTD].file == places[1]
    assert find_functions([replace(library, takes_newest=False)]).origins[Use.DECODE_ZSTD].version == "1.5.9"


def test_each_version_of_zstd_decodes_with_a_context_of_its_own(kernel_file: Path, tmp_path: Path, files: list[File]) -> None:
    source = """
        #include <stddef.h>
        static int own;
        void *ZSTD_createDCtx(void) { return &own; }
        size_t ZSTD_freeDCtx(void *context) { return context != &own; }
        size_t ZSTD_decompressDCtx(void *context, void *to, size_t n, const void *from, size_t m) { return context == &own ? n : 0; }
        unsigned long long ZSTD_getFrameContentSize(const void *from, size_t n) { return 2400; }
    """
    kernels = []
    for name in ("libone.so", "libother.so"):
        compile_kernel(tmp_path / name, "-fvisibility=default", "-Wno-unused-parameter", source=source)
        symbols = {Use.DECODE_ZSTD: LIBRARIES[0].symbols[Use.DECODE_ZSTD]}
        kernels.append(load(kernel_file, [Library((str(tmp_path / name),), symbols)]))
    for kernel in [*kernels, *kernels]:
        assert isinstance(kernel, Kernel)
        assert read_one(kernel, files, kernel.chunk_params(SHAPE, 2, Codec.ZSTD), ZSTD, whole(SHAPE))[0] == 0


def test_params_of_another_kernel_are_refused(kernel: Kernel, kernel_file: Path) -> None:
    other = load(kernel_file)
    assert isinstance(other, Kernel)
    with pytest.raises(InvalidInput):
        kernel.encode(other.chunk_params(SHAPE, 2, Codec.NONE), elements(SHAPE), np.zeros(1, np.int64), None, 1)


# -- whether there is one -----------------------------------------------------------------------------------------------


@pytest.fixture
def looked_for(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The environment, which is looked at again."""
    kernel_module.kernel.cache_clear()
    yield monkeypatch
    kernel_module.kernel.cache_clear()


def test_another_file_can_be_named(looked_for: pytest.MonkeyPatch, kernel_file: Path) -> None:
    looked_for.delenv("SHARDSTORE_KERNEL", raising=False)
    looked_for.setenv("SHARDSTORE_KERNEL_FILE", str(kernel_file))
    found = kernel_module.kernel()
    assert found is not None
    assert found.file == str(kernel_file)
    assert why_no_kernel() is None
    assert kernel_module.kernel() is found


@pytest.mark.parametrize("value", ["0", "off", "False", " no "])
def test_it_can_be_switched_off(looked_for: pytest.MonkeyPatch, kernel_file: Path, value: str) -> None:
    looked_for.setenv("SHARDSTORE_KERNEL_FILE", str(kernel_file))
    looked_for.setenv("SHARDSTORE_KERNEL", value)
    assert kernel_module.kernel() is None
    assert why_no_kernel() == "SHARDSTORE_KERNEL switches it off"


def test_a_kernel_that_is_missing_or_does_not_fit_is_not_used(kernel: Kernel, tmp_path: Path) -> None:
    missing = load(tmp_path / "libkernel.2.so")
    assert isinstance(missing, str)
    assert "not built" in missing
    (tmp_path / "text.so").write_text("no library")
    unusable = load(tmp_path / "text.so")
    assert isinstance(unusable, str)
    assert "cannot be loaded" in unusable
    source = SOURCE.read_text()
    for number, (before, after) in enumerate([("ABI = 2", "ABI = 3"), ("MAX_DIMENSIONS = 16", "MAX_DIMENSIONS = 17")]):
        assert before in source
        other = load(compile_kernel(tmp_path / f"lib{number}.so", "-O0", source=source.replace(before, after)))
        assert isinstance(other, str)
        assert "of another version" in other


# -- threads and processes ----------------------------------------------------------------------------------------------

BUSY = r"""
import os, signal, sys, threading, traceback
from pathlib import Path
import numpy as np
from shardstore.native.kernel import Codec, load
from tests.native.reading import CHUNK_DTYPE, read_chunks

kernel = load(Path(sys.argv[1]))
file = os.memfd_create("chunks")
os.pwrite(file, np.random.default_rng(0).bytes(2**20), 0)
params = kernel.chunk_params((1024, 512), 2, Codec.NONE).with_strides((2, 2048))
def read(times, threads=2):
    table = np.zeros(16, CHUNK_DTYPE)
    table["nbytes"] = 2**20
    selections = np.array([[[0, 0], [1024, 512], [1, 1]]] * 16)
    out = np.zeros((512, 1024), "<u2")
    for _ in range(times):
        assert read_chunks(kernel, params, np.array([file], "<i4"), table, selections, out, threads) == 0
tasks = lambda: set(os.listdir("/proc/self/task"))
read(1)  # numpy's threads run
quiet = tasks()
def threads_of(started):
    "The largest number of threads of the kernel that were seen; all of them block signals."
    most = 0
    for each in started: each.start()
    known = quiet | {str(each.native_id) for each in started}
    while any(each.is_alive() for each in started):
        found = tasks() - known
        most = max(most, len(found))
        for task in found:
            try: status = dict(line.split(":\t", 1) for line in Path("/proc/self/task", task, "status").read_text().splitlines())
            except OSError: continue
            if status["Threads"] != "0":  # of a thread that ends, the system shows no signals
                assert int(status["SigBlk"], 16) >> signal.SIGALRM - 1 & 1, status
                assert int(status["SigBlk"], 16) >> signal.SIGINT - 1 & 1, status
    return most
"""


def run_busy(kernel_file: Path, script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUSY + script, str(kernel_file)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_calls_together_start_few_threads_which_block_signals(kernel_file: Path) -> None:
    run_busy(
        kernel_file,
        """
def at_once():
    return threads_of([threading.Thread(target=read, args=(2, 3)) for _ in range(4)])
most = 0
for attempt in range(30):  # on a busy machine this thread may look too late
    most = max(most, at_once())
    if most and attempt: break
assert 1 <= most <= 2, most
""",
    )


def test_a_child_process_has_its_own_threads(kernel_file: Path) -> None:
    """The parent's threads are counted, and there are none of them in the child."""
    run_busy(
        kernel_file,
        """
caller = threading.Thread(target=read, args=(200,), daemon=True)
caller.start()
while len(tasks() - quiet) < 2: pass
child = os.fork()
if not child:
    try:
        quiet = tasks()
        read(1)
        for attempt in range(30):
            if threads_of([threading.Thread(target=read, args=(2,))]) == 1: os._exit(0)
        os._exit(3)  # none was ever started
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(4)
assert os.waitpid(child, 0)[1] == 0
""",
    )


def test_calls_of_several_threads_at_once_give_the_same(kernel: Kernel, files: list[File]) -> None:
    chain = chain_of((100, 100), "<u2", Codec.ZSTD, False)
    values = [elements((100, 100), seed=seed) for seed in range(4)]
    file = File([chain.encode(each) for each in values])
    files.append(file)
    results: list[bool] = []

    def read(which: int) -> None:
        out = np.zeros((8, 100, 100), "<u2")
        table = np.repeat(file.table[which : which + 1], 8)
        table["at"] = np.arange(8) * out[0].nbytes  # each elsewhere: what is decoded in place may read what it has written
        params = kernel.chunk_params((100, 100), 2, Codec.ZSTD).with_strides(out[0].strides)
        for _ in range(10):
            bad = read_chunks(kernel, params, file.descriptors, table, selections_of(8, whole((100, 100))), out, 2)
            results.append(bad == 0 and bool((out == values[which]).all()))

    threads = [threading.Thread(target=read, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 40
