"""The two sides of ``benchmarks/snapshots.py``: repositories of shardstore and of icechunk, by the same calls as far as there are such."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BytesCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype

OURS, OURS_FSYNC, PEER, PEER_SPLIT = "shardstore", "shardstore, fsync", "icechunk", "icechunk, split manifests"
SPLIT_PLANES = 10  # planes of chunks in each manifest of a split array: a tenth of 100 of them

CHUNK = (8, 8, 8)
DTYPE = "uint16"
A_FILE = 1000  # chunks in each chunk file


def is_ours(side: str) -> bool:
    return side in (OURS, OURS_FSYNC)


def create(side: str, place: Path, prefix: str = "") -> Any:
    """Make a repository whose virtual references may lead below a URL, and open it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if is_ours(side):
        from shardstore.snapshots import Repository

        return Repository.create(place, fsync=side == OURS_FSYNC, virtual_prefixes=[prefix] if prefix else ())
    icechunk = _icechunk()
    config = icechunk.RepositoryConfig.default()
    if prefix:
        folder = icechunk.local_filesystem_store(prefix.removeprefix("file://").rstrip("/"))
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, folder))
    if side == PEER_SPLIT:
        planes = {icechunk.ManifestSplitDimCondition.Axis(0): SPLIT_PLANES}
        splitting = icechunk.ManifestSplittingConfig.from_dict({icechunk.ManifestSplitCondition.AnyArray(): planes})
        config.manifest = icechunk.ManifestConfig(splitting=splitting)
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(place)), config, _authorised(prefix))


def create_in_memory(side: str) -> Any:
    """Make a repository in the memory of this process."""
    if is_ours(side):
        import uuid

        from shardstore.snapshots import Repository

        return Repository.create(f"memory://{uuid.uuid4()}")
    icechunk = _icechunk()
    return icechunk.Repository.create(icechunk.in_memory_storage())


def opened(side: str, place: Any, prefix: str = "") -> Any:
    """Open a repository; ours: of a path or of a storage."""
    if is_ours(side):
        from shardstore.snapshots import Repository

        return Repository.open(place, fsync=side == OURS_FSYNC, virtual_prefixes=[prefix] if prefix else ())
    icechunk = _icechunk()
    storage = icechunk.local_filesystem_storage(str(place))
    return icechunk.Repository.open(storage, authorize_virtual_chunk_access=_authorised(prefix))


def _icechunk() -> Any:
    import icechunk

    icechunk.set_logs_filter("error")
    return icechunk


def _authorised(prefix: str) -> Any:
    credentials: Any = _icechunk().Credentials  # its annotations know no members
    return {prefix: credentials.LocalFileSystemAccess()} if prefix else None


def conflict_detector(side: str) -> Any:
    if is_ours(side):
        from shardstore import snapshots

        return snapshots.ConflictDetector()
    import icechunk

    return icechunk.ConflictDetector()


def import_everything(side: str) -> None:
    """Import what opening a repository and reading a chunk imports, so that nobody's time has an import in it."""
    _ = default_buffer_prototype()
    if is_ours(side):
        import pyarrow.compute
        import pyarrow.parquet  # noqa: F401

        import shardstore.adapters.versioned.repository
        import shardstore.adapters.zarr.store  # noqa: F401
    else:
        import icechunk  # noqa: F401


# -- references --------------------------------------------------------------------------------------------------------


@cache
def first_chunk() -> tuple[npt.NDArray[np.uint16], bytes]:
    """The values of the one chunk that is really there, and its bytes."""
    values = np.arange(np.prod(CHUNK), dtype=DTYPE).reshape(CHUNK)
    store = zarr.storage.MemoryStore()
    zarr.create_array(store, name="a", shape=CHUNK, chunks=CHUNK, dtype=DTYPE, compressors=ZstdCodec(level=0))[...] = values
    return values, store._store_dict["a/c/0/0/0"].to_bytes()


@dataclass(frozen=True)
class Table:
    """``n`` references into files of 1,000 chunks each, in the order of the array's chunks; lengths are random."""

    coords: npt.NDArray[np.int64]
    file: npt.NDArray[np.int32]
    offset: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.uint64]

    @property
    def nfiles(self) -> int:
        return int(self.file[-1]) + 1

    @property
    def file_sizes(self) -> list[int]:
        ends = self.offset + self.nbytes
        last = np.append(np.flatnonzero(np.diff(self.file)), len(self.file) - 1)
        return [int(end) for end in ends[last]]


def table(grid: tuple[int, ...], seed: int = 0) -> Table:
    """Return references to all chunks of a grid."""
    n = int(np.prod(grid))
    nbytes = np.random.default_rng(seed).integers(500, 1000, n).astype(np.uint64)
    nbytes[0] = len(first_chunk()[1])
    file = (np.arange(n) // A_FILE).astype(np.int32)
    ends = np.cumsum(nbytes)
    starts = ends - nbytes
    offset = starts - np.repeat(starts[::A_FILE], A_FILE)[:n]
    return Table(np.indices(grid).reshape(len(grid), n).T.copy(), file, offset, nbytes)


def new_array(session: Any, path: str, grid: tuple[int, ...], chunk: tuple[int, ...] = CHUNK) -> Any:
    """Create an array of so many chunks along each dimension."""
    shape = tuple(n * c for n, c in zip(grid, chunk, strict=True))
    return zarr.create_array(
        session.store, name=path, shape=shape, chunks=chunk, dtype=DTYPE, serializer=BytesCodec(), compressors=ZstdCodec(level=0)
    )


def set_references(side: str, session: Any, path: str, grid: tuple[int, ...], refs: Table, urls: Sequence[str]) -> None:
    """Set virtual references by the fastest call of each side; ``urls``: one for each chunk."""
    if is_ours(side):
        session.set_virtual_refs(path, refs.coords, urls, refs.offset, refs.nbytes)
    else:
        refused = session.store.set_virtual_refs_arr(f"/{path}", grid, urls, refs.offset, refs.nbytes)
        assert refused is None, refused


def make_million(place: Path, grid: tuple[int, ...]) -> None:
    """Make ``ours``, with references into chunk files of its own, and two of icechunk with references into the same files.

    The files are sparse; the first chunk is there.
    """
    from shardstore._sync import run_sync
    from shardstore.format.snapshots.file_names import encode_id
    from shardstore.format.snapshots.manifest import ChunkRefs

    refs = table(grid)
    ids = [number.to_bytes(12) for number in range(1, refs.nfiles + 1)]
    for side, name in ((OURS, "ours"), (PEER, "peer"), (PEER_SPLIT, "peer-split")):
        repository = create(side, place / name, prefix_of(place))
        session = repository.writable_session("main")
        new_array(session, "a", grid)
        if side == OURS:
            node = session._core.array("a")
            run_sync(_set(session, node, ChunkRefs(refs.coords.astype(np.uint64), refs.file, refs.offset, refs.nbytes, ids)))
        else:
            urls = [prefix_of(place) + encode_id(one) for one in ids]
            set_references(side, session, "a", grid, refs, [urls[file] for file in refs.file])
        session.commit("references")
        if side == OURS:
            (place / name / "c").mkdir(exist_ok=True)
            for number, (one, size) in enumerate(zip(ids, refs.file_sizes, strict=True)):
                with open(place / name / "c" / encode_id(one), "wb") as file:
                    file.write(first_chunk()[1] if not number else b"")
                    file.truncate(size)


async def _set(session: Any, node: Any, refs: Any) -> None:
    session._core.set_refs(node, refs)


def prefix_of(place: Path) -> str:
    """Return the URL below which the chunk files of ``make_million`` are."""
    return f"file://{place}/ours/c/"


# -- a hundred million references ----------------------------------------------------------------------------------------


def make_many(place: Path, along: int, manifests: int) -> int:
    """Make a repository of one array of ``manifests`` × ``along``³ chunks, whose manifests are encoded one by one; return the references.

    Lengths and offsets are the same in all manifests, coordinates and chunk files are not. Only the first chunk is there.
    """
    from dataclasses import replace

    from shardstore._sync import run_sync
    from shardstore.format.snapshots.file_names import encode_id
    from shardstore.format.snapshots.manifest import ChunkRefs, encode_manifest
    from shardstore.format.snapshots.manifest_groups import manifest_file
    from shardstore.format.snapshots.structure import ManifestPart
    from shardstore.snapshots.commit import extent_of

    one = table((along,) * 3)
    repository = create(OURS, place)
    session = repository.writable_session("main")
    new_array(session, "a", (along * manifests, along, along))
    core = session._core
    node = core.array("a")
    run = core.files.new_name()
    parts = []
    for number in range(manifests):
        coords = one.coords.astype(np.uint64)
        coords[:, 0] += np.uint64(number * along)
        ids = [(number * one.nfiles + at + 1).to_bytes(12) for at in range(one.nfiles)]
        data = encode_manifest({node.id: ChunkRefs(coords, one.file, one.offset, one.nbytes, ids)})
        file = manifest_file(core.files.new_name(), data, len(coords), run)
        run_sync(core.files.write(f"m/{file.name}", [data]))
        parts.append(ManifestPart(file, 0, extent_of(coords)))
    core.nodes["a"] = replace(node, manifests=tuple(parts))
    (place / "c").mkdir(exist_ok=True)
    (place / "c" / encode_id((1).to_bytes(12))).write_bytes(first_chunk()[1])
    session.commit("many references")
    return len(one.coords) * manifests
