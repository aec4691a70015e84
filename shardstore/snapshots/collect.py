"""Keeps a versioned store from growing for ever: snapshots expire, and then a garbage collection removes what nothing refers to.

::

    1  list all files; find what the snapshots need                           the rest is garbage
    2  store the list of garbage, and swap the state for one that names it    the fence: only from the state of 1, else look again
    3  remove what has been garbage for long enough; swap once more           readers and sessions have had that time

A commit that swaps before 2 makes 2 fail. A commit after 2 looks at its files (``fence.py``). So whatever clocks say, nothing is lost: the
time only says how long readers of expired snapshots, and sessions that have not committed, are left in peace. It counts from the collection
that first found a file to be garbage, by the clocks of collectors alone. A collector that dies leaves the fence; the next one ends what it
began.

What was garbage can be needed again in one way: a session that has stored it before the collection commits it. The state names these late
snapshots until the next collection, since they may have expired by then: what they needed counts from then.
Specification: Icechunk draft, "Garbage collection", with D8 and D38.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption, StorageError
from shardstore.format.snapshots.file_names import (
    STATES,
    garbage_list_name,
    generation_of_garbage_list,
    generation_of_state,
)
from shardstore.format.snapshots.garbage import NO_GARBAGE, Garbage, encode_garbage
from shardstore.format.snapshots.state import LastCollection, State
from shardstore.snapshots.fence import garbage_list
from shardstore.snapshots.lookup import FIRST_BRANCH
from shardstore.snapshots.reachable import FOLDERS, FolderListing, Progress, Reachable, are_among, list_files
from shardstore.snapshots.versioned_store import CurrentState, VersionedStore

_REMOVED_AT_ONCE = 10_000


# -- expiry ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Expired:
    """The snapshots, branches and tags that an expiry has left out of the state."""

    snapshots: frozenset[str]
    branches: frozenset[str]
    tags: frozenset[str]


async def expire(store: VersionedStore, older_than_ms: int, *, branches: bool, tags: bool, dry_run: bool = False) -> Expired:
    """Leave out all snapshots that are older and to which no branch or tag points, by one swap; no file is touched.

    ``branches`` and ``tags``: delete those whose snapshot is older, too, but for the branch ``main``.
    """
    found = _expired((await store.now()).state, older_than_ms, branches=branches, tags=tags)
    if dry_run:
        return found

    async def change(state: State) -> State:
        nonlocal found
        found = _expired(state, older_than_ms, branches=branches, tags=tags)
        if not found.snapshots and not found.branches and not found.tags:
            return state
        gone = found.branches | found.tags
        return state.with_refs({name: ref for name, ref in state.refs.items() if name not in gone}).without(found.snapshots)

    await store.change(change)
    return found


def _expired(state: State, older_than_ms: int, *, branches: bool, tags: bool) -> Expired:
    old = {one.id for one in state.snapshots.values() if one.timestamp_ms < older_than_ms}
    gone = {
        name
        for name, ref in state.refs.items()
        if ref.snapshot in old and (tags if ref.type == "tag" else branches and name != FIRST_BRANCH)
    }
    kept = {ref.snapshot for name, ref in state.refs.items() if name not in gone}
    kinds = {name: state.refs[name].type for name in gone}
    return Expired(
        frozenset(old - kept),
        frozenset(name for name, kind in kinds.items() if kind == "branch"),
        frozenset(name for name, kind in kinds.items() if kind == "tag"),
    )


# -- garbage collection ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Collected:
    """The files that a garbage collection has removed, or would remove, and those that it has left for later."""

    removed: Mapping[str, int] = field(default_factory=dict)
    """Files by folder: ``t/`` states, ``s/`` structures, ``a/`` attributes, ``m/`` manifests, ``c/`` chunk files."""
    removed_nbytes: int = 0
    left: int = 0
    """Files to which nothing refers, for not long enough yet."""
    left_nbytes: int = 0
    kept: int = 0
    """Files that snapshots need."""
    unknown: int = 0
    """Files with names that this store never gives; they are left alone."""


async def collect(store: VersionedStore, grace_ms: int, say: Progress, *, dry_run: bool = False) -> Collected:
    """Remove the files that have been garbage for ``grace_ms``, and note all garbage for the next time.

    Raises:
        Corruption: a file that a snapshot needs is missing or damaged: nothing was removed, but what an interrupted one had left.
    """
    if not dry_run:
        await _end_removal(store, say)
    reachable = Reachable(store.files, say)

    async def read(current: CurrentState) -> CurrentState:
        await reachable.add(current.state.snapshots.values())
        return current

    current = await store.with_current_state(read)
    listed = {folder: await list_files(store.files.storage, folder, say) for folder in FOLDERS}
    now_ms = int(store.clock() * 1000)
    found = Collected()
    written: list[str] = []

    async def look(state: State) -> Garbage:
        nonlocal found
        await reachable.add(state.snapshots.values())  # also those of commits since
        last = state.collection
        known = NO_GARBAGE if last is None else await garbage_list(store.files, last.garbage)
        garbage, nbytes = _garbage(listed, reachable, state)
        since = known.since_of(garbage, now_ms)
        late = () if last is None else [one for one in last.late if one not in reachable.structures]
        if late:
            since[await _needed_by(late, store, garbage, say)] = now_ms
        whole = Garbage(garbage, since, since <= now_ms - grace_ms)
        found = _collected(whole, nbytes, listed)
        return whole

    if dry_run:
        await store.with_current_state(lambda current: look(current.state), current.pointer)
        return found

    async def change(state: State) -> State:
        garbage, last = await look(state), state.collection
        if not len(garbage) and last is None:
            return state
        key = garbage_list_name(state.generation + 1, store.files.random)
        written.append(key)
        await store.files.write(key, [encode_garbage(garbage)])
        removes = bool(garbage.doomed.any())
        fence = state.generation + 1 if removes else 0 if last is None else last.fence
        return state.collected(LastCollection(key, fence, removes))

    await store.change(change, current)
    with suppress(StorageError):  # lists of attempts that were lost; the next collection finds them
        await store.files.storage.delete_many(written[:-1])
    await _end_removal(store, say)
    return found


async def _needed_by(
    structures: Sequence[str], store: VersionedStore, garbage: npt.NDArray[np.bytes_], say: Progress
) -> npt.NDArray[np.bool_]:
    """Return which of ``(n,)`` keys, which ascend, expired snapshots with these structures needed: all, where that cannot be read."""
    expired = Reachable(store.files, say)
    try:
        await expired.add_structures(structures)
    except Corruption:  # nothing that is needed is damaged, so it is no reason to remove nothing for ever
        return np.ones(len(garbage), dtype=np.bool_)
    return expired.has(garbage)


async def _end_removal(store: VersionedStore, say: Progress) -> None:
    """Remove what the last collection has doomed, if that has not been done, and say so in the state."""

    async def read(current: CurrentState) -> tuple[LastCollection | None, npt.NDArray[np.bytes_]]:
        last = current.state.collection
        if last is None or not last.is_removing:
            return None, NO_GARBAGE.keys
        return last, (await garbage_list(store.files, last.garbage)).doomed_keys

    last, keys = await store.with_current_state(read)
    if last is None:
        return
    # Local files have a faster way for names that are never given again.
    delete = getattr(store.files.given, "delete_for_good", store.files.storage.delete_many)
    for start in range(0, len(keys), _REMOVED_AT_ONCE):
        say("removing files", start, len(keys))
        await delete([key.decode() for key in keys[start : start + _REMOVED_AT_ONCE].tolist()])
    say("removing files", len(keys), len(keys))

    async def change(state: State) -> State:
        now = state.collection
        if now is None or now.garbage != last.garbage or not now.is_removing:
            return state  # another collector has ended it
        return state.collected(replace(now, is_removing=False))

    await store.change(change)


def _garbage(
    listed: Mapping[str, FolderListing], reachable: Reachable, state: State
) -> tuple[npt.NDArray[np.bytes_], npt.NDArray[np.int64]]:
    """Return the keys of files that nothing needs, ascending, and the length of each."""
    keys: list[npt.NDArray[np.bytes_]] = []
    sizes: list[npt.NDArray[np.int64]] = []
    for folder in sorted(FOLDERS):
        files = listed[folder]
        needed = _needed_states(files.names, state) if folder == STATES else are_among(files.names, reachable.names(folder))
        keys.append(np.char.add(folder.encode(), files.names[~needed]))
        sizes.append(files.nbytes[~needed])
    return np.concatenate(keys), np.concatenate(sizes)


def _needed_states(names: npt.NDArray[np.bytes_], state: State) -> npt.NDArray[np.bool_]:
    """Return which files of states, and lists of garbage, are needed: the current ones, and those that may become it; and the previous
    states, which a reader may be about to read.
    """
    before = {key.removeprefix(STATES) for key in state.previous}
    last = state.collection
    current = None if last is None else last.garbage.removeprefix(STATES)

    def is_needed(name: str) -> bool:
        generation = generation_of_state(STATES + name)
        if generation is not None:
            return generation >= state.generation or name in before
        return name == current or (generation_of_garbage_list(STATES + name) or 0) > state.generation

    return np.array([is_needed(name.decode()) for name in names.tolist()], dtype=np.bool_)


def _collected(garbage: Garbage, nbytes: npt.NDArray[np.int64], listed: Mapping[str, FolderListing]) -> Collected:
    doomed = garbage.keys[garbage.doomed]
    removed = {folder: int(np.count_nonzero(np.char.startswith(doomed, folder.encode()))) for folder in FOLDERS}
    return Collected(
        {folder: number for folder, number in removed.items() if number},
        int(nbytes[garbage.doomed].sum()),
        len(garbage) - len(doomed),
        int(nbytes[~garbage.doomed].sum()),
        sum(len(one.names) for one in listed.values()) - len(garbage),
        sum(one.unknown for one in listed.values()),
    )
