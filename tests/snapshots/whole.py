"""Checks that a repository is whole: all that its current state leads to is there, and can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from shardstore.format.snapshots.file_names import ATTRIBUTES, CHUNKS, MANIFESTS, STRUCTURES, encode_id
from shardstore.format.snapshots.manifest_groups import decode_rows, manifest_rows
from shardstore.format.snapshots.state import State, decode_state
from shardstore.format.snapshots.structure import ManifestFile, Node, decode_attributes, decode_structure
from shardstore.snapshots import Catalog, Repository, StorageCatalog
from shardstore.storage.base import Storage
from shardstore.testing.storage_suite import SyncStorage, on_io_loop


def current_state(storage: Storage, catalog: Catalog | None = None, name: str = "catalog") -> State:
    """Return the state that the catalog names, read past the repository."""
    pointer = on_io_loop((catalog or StorageCatalog(storage)).get(name))
    assert pointer is not None
    data = SyncStorage(storage).get(pointer.location)
    assert data is not None, f"{pointer.location} is missing"
    state = decode_state(data)
    assert (state.generation, state.id) == (pointer.generation, pointer.store_id)
    return state


@cache
def _nodes_of(structure: bytes) -> Sequence[Node]:
    return list(decode_structure(memoryview(structure)).nodes.values())


@cache
def _ends_of_chunk_files(manifest: bytes, file: ManifestFile, ndims: tuple[tuple[int, int], ...]) -> Mapping[str, int]:
    """Return the chunk files that a manifest leads to by key, with the bytes that each must have at least."""
    ends: dict[str, int] = {}
    for refs in decode_rows(manifest_rows(memoryview(manifest), file), file, dict(ndims)).values():
        for number, offset, nbytes in zip(refs.file.tolist(), refs.offset.tolist(), refs.nbytes.tolist(), strict=True):
            if number >= 0:
                chunk_file = refs.files[number]
                assert isinstance(chunk_file, bytes), "nothing virtual here"
                key = CHUNKS + encode_id(chunk_file)
                ends[key] = max(ends.get(key, 0), offset + nbytes)
    return ends


def check_whole(storage: Storage, catalog: Catalog | None = None, name: str = "catalog") -> set[str]:
    """Walk from the state to all structures, attributes, manifests and chunk files of all snapshots; return the keys of those files.

    Each is there, and long enough for what is said to be in it.
    """
    files = SyncStorage(storage)
    sizes = {info.key: info.nbytes for info in files.infos()}
    reached: set[str] = set()

    def content(key: str) -> bytes:
        reached.add(key)
        data = files.get(key)
        assert data is not None, f"{key} is missing"
        return data

    def check_manifest(file: ManifestFile, ndims: dict[int, int]) -> None:
        data = content(MANIFESTS + file.name)
        assert len(data) == file.nbytes, file.name
        for key, end in _ends_of_chunk_files(data, file, tuple(ndims.items())).items():
            reached.add(key)
            assert key in sizes, f"{key} is missing"
            assert end <= (sizes[key] or 0), f"{key} is too short"

    def check_structure(key: str) -> None:
        nodes = _nodes_of(content(key))
        parts: dict[str, tuple[ManifestFile, dict[int, int]]] = {}
        for node in nodes:
            if node.attributes is not None:
                rows = decode_attributes(memoryview(content(ATTRIBUTES + node.attributes.file)))
                assert node.attributes.row < len(rows)
            for part in node.manifests:
                parts.setdefault(part.file.name, (part.file, {}))[1][node.id] = len(node.document["shape"])
        for file, ndims in parts.values():
            check_manifest(file, ndims)

    for snapshot in current_state(storage, catalog, name).snapshots.values():
        check_structure(STRUCTURES + snapshot.structure)
    return reached


def messages_of(repo: Repository, ref: str = "main") -> list[str]:
    """Return the messages of a snapshot and its ancestors, the oldest first."""
    return [info.message for info in repo.ancestry(snapshot_id=repo.lookup(ref))][::-1]
