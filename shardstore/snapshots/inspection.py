"""Looks at all files of a versioned store: whether what its snapshots need is there and whole, and how much it is.

Each structure and manifest is read once, however many snapshots share it. The bytes of chunks are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from shardstore.errors import Corruption
from shardstore.format.snapshots.file_names import ATTRIBUTES, CHUNKS, MANIFESTS, STRUCTURES, encode_ids
from shardstore.format.snapshots.manifest import INLINE, ChunkRefs
from shardstore.format.snapshots.manifest_groups import decode_rows, manifest_rows
from shardstore.format.snapshots.state import State
from shardstore.format.snapshots.structure import ManifestFile, ManifestPart, Structure
from shardstore.snapshots.commit import levels_of
from shardstore.snapshots.files import StoreFiles
from shardstore.snapshots.lookup import FIRST_BRANCH
from shardstore.snapshots.reachable import FOLDERS, FolderListing, Progress, Reachable, are_among, for_each, list_files
from shardstore.snapshots.session import is_inside, ndim_of
from shardstore.snapshots.versioned_store import CurrentState, VersionedStore

Kind = Literal["missing", "damaged", "out of bounds"]


@dataclass(frozen=True, slots=True)
class StoreFault:
    """Something that is wrong."""

    kind: Kind
    file: str
    """The key of the file that is missing, damaged or too short."""
    message: str
    snapshots: tuple[str, ...]
    """The ids of the snapshots that need it."""


@dataclass(slots=True)
class Checked:
    """The counts and the findings of a check of a store."""

    snapshots: int = 0
    structures: int = 0
    manifests: int = 0
    references: int = 0
    chunk_files: int = 0
    """Those of the store, to which manifests refer."""
    findings: list[StoreFault] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.findings


@dataclass(frozen=True, slots=True)
class Amount:
    """Files and their bytes."""

    files: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The amounts of what a versioned store has."""

    snapshots: int
    branches: int
    tags: int
    stored: Mapping[str, Amount]
    """By folder: ``t/`` states, ``s/`` structures, ``a/`` attributes, ``m/`` manifests, ``c/`` chunk files."""
    unneeded: Amount
    """The files that no snapshot needs, states left out: garbage, and those of sessions that are not committed yet."""
    arrays: int
    """On the branch ``main``, like the rest."""
    groups: int
    references: int
    """In all manifests of the arrays; a chunk that was written several times may be counted so often."""
    most_levels: int
    """The most manifests, one for each commit or merge, of one array: each is looked at for a chunk."""


async def stats(store: VersionedStore, say: Progress) -> StoreStats:
    """Return how much a store has. Raises ``Corruption`` if a structure or a manifest is missing or damaged."""
    return await store.with_current_state(lambda current: _stats(store, current.state, say))


async def _stats(store: VersionedStore, state: State, say: Progress) -> StoreStats:
    reachable = Reachable(store.files, say)
    await reachable.add(state.snapshots.values())
    listed = {folder: await list_files(store.files.storage, folder, say) for folder in FOLDERS}
    unneeded = [
        files.nbytes[~are_among(files.names, reachable.names(folder))]
        for folder, files in listed.items()
        if folder in (STRUCTURES, ATTRIBUTES, MANIFESTS, CHUNKS)
    ]
    tip = await store.files.structure(state.snapshots[state.ref(FIRST_BRANCH, "branch").snapshot].structure)
    arrays = [node for node in tip.nodes.values() if node.is_array]
    return StoreStats(
        len(state.snapshots),
        sum(ref.type == "branch" for ref in state.refs.values()),
        sum(ref.type == "tag" for ref in state.refs.values()),
        {folder: Amount(len(files.names), int(files.nbytes.sum())) for folder, files in listed.items()},
        Amount(sum(map(len, unneeded)), sum(int(sizes.sum()) for sizes in unneeded)),
        len(arrays),
        len(tip.nodes) - len(arrays),
        sum({part.file.name: part.file.rows for node in arrays for part in node.manifests}.values()),
        max((len(levels_of(node.manifests)) for node in arrays), default=0),
    )


async def virtual_files(store: VersionedStore, say: Progress) -> set[tuple[str, str | None]]:
    """Return the URLs of all virtual files to which any snapshot refers, each with its ETag, ``None`` if it is not known."""

    async def read(current: CurrentState) -> set[tuple[str, str | None]]:
        reachable = Reachable(store.files, say)
        await reachable.add(current.state.snapshots.values())
        return set().union(*await for_each(reachable.manifests.values(), store.files.virtual_files_of))

    return await store.with_current_state(read)


# -- check -------------------------------------------------------------------------------------------------------------


async def check(store: VersionedStore, say: Progress) -> Checked:
    """Check that each file that a snapshot needs is there and is what it should be; see ``Repository.verify``."""
    while True:
        state = (await store.now()).state
        found = await _check(store, state, say)
        if not found.findings:
            return found
        # What has expired since may have been collected: then all is looked at again.
        expired = state.snapshots.keys() - (await store.now()).state.snapshots.keys()
        if not any(expired.issuperset(finding.snapshots) for finding in found.findings):
            return found


async def _check(store: VersionedStore, state: State, say: Progress) -> Checked:
    found = Checked(snapshots=len(state.snapshots))
    needed_by: dict[str, list[str]] = {}
    for snapshot in state.snapshots.values():
        needed_by.setdefault(snapshot.structure, []).append(snapshot.id)
    chunk_files = await list_files(store.files.storage, CHUNKS, say)
    checker = _Checker(store.files, chunk_files, found, say)
    await checker.structures(needed_by)
    await checker.manifests()
    found.chunk_files = len(checker.used)
    found.findings.sort(key=lambda one: one.file)  # they were looked at in no order
    return found


@dataclass(slots=True, eq=False)
class _Manifest:
    """One manifest, and what structures say of it."""

    file: ManifestFile
    ndims: dict[int, int] = field(default_factory=dict)
    parts: dict[int, ManifestPart] = field(default_factory=dict)
    snapshots: dict[str, None] = field(default_factory=dict)


class _Checker:
    def __init__(self, files: StoreFiles, chunk_files: FolderListing, found: Checked, say: Progress) -> None:
        self._files = files
        self._chunk_files = chunk_files
        self._found = found
        self._say = say
        self._manifests: dict[str, _Manifest] = {}
        self._attributes: set[tuple[str, int]] = set()
        self.used: dict[bytes, int] = {}
        """The names of chunk files to which manifests refer, and up to which byte."""

    def _note(self, kind: Kind, file: str, message: str, snapshots: tuple[str, ...]) -> None:
        self._found.findings.append(StoreFault(kind, file, message, snapshots))

    async def _failed(self, key: str, exc: Corruption, snapshots: tuple[str, ...]) -> None:
        is_there = await self._files.storage.stat(key) is not None
        self._note("damaged" if is_there else "missing", key, str(exc), snapshots)

    async def structures(self, needed_by: Mapping[str, Sequence[str]]) -> None:
        """Check structures and their attributes, and note their manifests; they are given with the snapshots that need them."""
        await for_each(needed_by.items(), self._structure, lambda done: self._say("checking structures", done, len(needed_by)))
        self._found.structures = len(needed_by)

    async def _structure(self, needed: tuple[str, Sequence[str]]) -> None:
        name, snapshots = needed[0], tuple(needed[1])
        try:
            found: Structure = await self._files.structure(name)
        except Corruption as exc:
            await self._failed(STRUCTURES + name, exc, snapshots)
            return
        for node in found.nodes.values():
            place = node.attributes
            if place is not None and (place.file, place.row) not in self._attributes:
                self._attributes.add((place.file, place.row))
                try:
                    await self._files.attributes(place.file, place.row)
                except Corruption as exc:
                    await self._failed(ATTRIBUTES + place.file, exc, snapshots)
            for part in node.manifests:
                known = self._manifests.setdefault(part.file.name, _Manifest(part.file))
                known.ndims[node.id] = ndim_of(node)
                known.parts[node.id] = part
                known.snapshots |= dict.fromkeys(snapshots)

    async def manifests(self) -> None:
        """Check all manifests that were noted."""
        manifests = self._manifests.values()
        await for_each(manifests, self._manifest, lambda done: self._say("checking manifests", done, len(manifests)))
        self._found.manifests = len(manifests)

    async def _manifest(self, manifest: _Manifest) -> None:
        key, snapshots = MANIFESTS + manifest.file.name, tuple(manifest.snapshots)
        try:
            rows = manifest_rows(await self._files.whole(key), manifest.file)
            arrays = decode_rows(rows, manifest.file, manifest.ndims)
        except Corruption as exc:
            await self._failed(key, exc, snapshots)
            return
        for array, ndim in manifest.ndims.items():
            refs = arrays.get(array)
            if refs is None:
                message = f"{key} has no references of the array {array}, of which a structure says that it has"
                self._note("damaged", key, message, snapshots)
                continue
            self._found.references += len(refs)
            if ndim and not is_inside(refs.coords, manifest.parts[array]).all():
                self._note("damaged", key, f"{key} has chunks of the array {array} outside of the box that a structure names", snapshots)
            self._check_chunk_files(key, refs, snapshots)

    def _check_chunk_files(self, key: str, refs: ChunkRefs, snapshots: tuple[str, ...]) -> None:
        own = [number for number, file in enumerate(refs.files) if isinstance(file, bytes)]
        if not own:
            return
        ends = np.zeros(len(refs.files), dtype=np.uint64)
        in_files = refs.file > INLINE
        np.maximum.at(ends, refs.file[in_files], (refs.offset + refs.nbytes)[in_files])
        is_used = np.zeros(len(refs.files), dtype=np.bool_)
        is_used[refs.file[in_files]] = True
        names = encode_ids([file for file in refs.files if isinstance(file, bytes)])
        there = self._chunk_files
        places = np.minimum(np.searchsorted(there.names, names), max(0, len(there.names) - 1))
        for number, name, place in zip(own, names.tolist(), places.tolist(), strict=True):
            end = int(ends[number])
            if not is_used[number] or end <= self.used.get(name, -1):
                continue
            is_new, self.used[name] = name not in self.used, end
            file = CHUNKS + name.decode()
            if not len(there.names) or there.names[place] != name:
                if is_new:
                    self._note("missing", file, f"{file} is not there, though {key} refers to it", snapshots)
            elif (nbytes := int(there.nbytes[place])) < end:
                self._note("out of bounds", file, f"{file} has {nbytes} bytes, and {key} refers to {end} of them", snapshots)
