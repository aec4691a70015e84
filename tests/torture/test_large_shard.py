"""A shard of 20 GiB with 100,000 chunks: what it takes in memory and on the disk to read one chunk, and to replace one."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import array_v3, sharding_codec
from tests.shards import encode_index, sharding
from tests.torture.conftest import Record
from tests.torture.crew import ROOT

CHUNKS = 100_000
NBYTES = (20 << 30) // CHUNKS  # of a chunk
MIB = 1 << 20
FILLED = sorted(random.Random(20).sample(range(CHUNKS), 60))  # the others are holes, which read as zeros

DOCUMENT = array_v3(
    [CHUNKS * NBYTES],
    [CHUNKS * NBYTES],
    chunk_key_encoding={"name": "default"},
    codecs=[sharding_codec([NBYTES], [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}], index_location="end")],
)

# The peak of this process's own memory. ``ru_maxrss`` would count what its parent had when it started it.
WORKER = """
import json, sys

def peak_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

import shardstore
transformer = shardstore.ShardingTransformer(sys.argv[1], read_only=sys.argv[2] == "read")
before = peak_kib()
key = f"a/c/{sys.argv[3]}"
if sys.argv[2] == "write":
    transformer.set(key, bytes.fromhex(sys.argv[4]) * int(sys.argv[5]))
value = transformer.get(key)
assert "zarr" not in sys.modules
print(json.dumps([before, peak_kib(), len(value), value[:16].hex(), value[-16:].hex()]))
"""


def data_of(chunk: int) -> bytes:
    return random.Random(chunk).randbytes(16) * (NBYTES // 16) + b"." * (NBYTES % 16)


def make_shard(path: Path, order: list[int]) -> None:
    """The chunks one behind the other in this order; then the index."""
    layout = sharding("a", DOCUMENT)
    assert layout is not None
    places = {chunk: place * NBYTES for place, chunk in enumerate(order)}
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        for chunk in FILLED:
            file.seek(places[chunk])
            file.write(data_of(chunk))
        file.seek(CHUNKS * NBYTES)
        file.write(encode_index(layout, [(places[chunk], NBYTES) for chunk in range(CHUNKS)]))


@pytest.fixture(params=["in order", "in any order"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A store with one array, of one shard, whose chunks lie in the order of their numbers or not."""
    if not sys.platform.startswith("linux"):
        pytest.skip("peak memory is read from /proc")
    order = list(range(CHUNKS))
    if request.param == "in any order":
        random.Random(1).shuffle(order)
    root = tmp_path / "root"
    make_shard(root / "a/c/0", order)
    (root / "a/zarr.json").write_text(json.dumps(DOCUMENT))
    yield root
    shutil.rmtree(root)


def run(root: Path, *arguments: str) -> tuple[int, int, int, bytes, bytes]:
    """Peak memory before and after, in bytes, and the chunk: its length, its beginning and its end."""
    printed = subprocess.run(
        [sys.executable, "-c", WORKER, str(root), *arguments], check=True, stdout=subprocess.PIPE, text=True, timeout=600, cwd=ROOT
    ).stdout
    before, after, nbytes, head, tail = json.loads(printed)
    return before * 1024, after * 1024, nbytes, bytes.fromhex(head), bytes.fromhex(tail)


def allocated(path: Path) -> int:
    return path.stat().st_blocks * 512


def check_chunks(root: Path, replaced: int, new: bytes) -> None:
    """Some of the chunks, read by the file's own index."""
    path = root / "a/c/0"
    index_nbytes = 16 * CHUNKS + 4
    holes = random.Random(5).sample(range(CHUNKS), 40)
    with path.open("rb") as file:
        end = path.stat().st_size - index_nbytes
        for chunk in {*FILLED, *holes, 0, CHUNKS - 1, replaced - 1, replaced, replaced + 1}:
            file.seek(end + 16 * chunk)
            offset, nbytes = (int.from_bytes(file.read(8), "little") for _ in range(2))
            file.seek(offset)
            expected = new if chunk == replaced else data_of(chunk) if chunk in FILLED else bytes(NBYTES)
            assert file.read(nbytes) == expected, chunk


def test_one_chunk_is_read_and_one_is_replaced(root: Path, record: Record) -> None:
    shard = root / "a/c/0"
    assert shard.stat().st_size >= 20 << 30
    sparse = allocated(shard)
    assert sparse < 100 * MIB
    chunk = FILLED[30]
    before, after, nbytes, head, tail = run(root, "read", str(chunk))
    assert (nbytes, head, tail) == (NBYTES, data_of(chunk)[:16], data_of(chunk)[-16:])
    read, read_peak = after - before, after
    new = random.Random(-1).randbytes(16) * (NBYTES // 8)  # twice as long as it was
    before, after, nbytes, head, tail = run(root, "write", str(chunk), new[:16].hex(), str(NBYTES // 8))
    assert (nbytes, head, tail) == (len(new), new[:16], new[-16:])
    written = after - before
    check_chunks(root, chunk, new)
    assert allocated(shard) < sparse + 100 * MIB
    assert sorted(path.name for path in (root / "a/c").iterdir()) == ["0"]
    record(
        f"one chunk read: {read / MIB:.0f} MiB more than the start, peak {read_peak / MIB:.0f} MiB; one replaced: {written / MIB:.0f} MiB "
        f"more, peak {after / MIB:.0f} MiB; {shard.stat().st_size / (1 << 30):.1f} GiB long, {allocated(shard) / MIB:.0f} MiB on the disk"
    )
    assert read < 64 * MIB
    assert written < 300 * MIB
    assert after < 300 * MIB
