"""The check that keeps a commit from referring to files that a garbage collection removes (D38).

A session stores files to which nothing refers before its commit, so a collection may take them for garbage. The state says when the last
collection removed anything. Before the swap, a commit compares the two times: if that collection is later than the session's begin, it
checks that its files still exist. A collection that comes after this check makes the swap fail, since it swaps the state itself before it
removes anything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import numpy as np

from shardstore.errors import Conflict
from shardstore.format.snapshots.file_names import CHUNKS, encode_id
from shardstore.format.snapshots.garbage import Garbage, decode_garbage
from shardstore.format.snapshots.state import State
from shardstore.snapshots.files import StoreFiles
from shardstore.snapshots.reachable import are_among
from shardstore.snapshots.session import SessionCore
from shardstore.storage.requests.outcomes import Bound

LOOKS_AT_ONCE = 32


async def garbage_list(files: StoreFiles, location: str) -> Garbage:
    """Return a list of garbage. Raises ``MissingFile`` if it is not there: a later collection may have removed it."""
    return files.content_of(location, decode_garbage, await files.whole(location))


async def check_not_collected(session: SessionCore, state: State, planned: Iterable[str]) -> None:
    """Check that the files of a session which are stored, and those at the keys ``planned``, have not been removed and will not be.

    Raises:
        Conflict: a garbage collection has taken some of them.
    """
    collection = state.collection
    if collection is None or not collection.fence or collection.fence <= session.began:
        return
    own = {CHUNKS + encode_id(file) for file in session.stored_files()} | set(planned)
    gone: set[str] = set()
    if collection.is_removing:
        doomed = (await garbage_list(session.files, collection.garbage)).doomed_keys
        mine = np.array(sorted(key.encode() for key in own), dtype=np.bytes_)
        gone = {key.decode() for key in mine[are_among(mine, doomed)].tolist()}
    bound = Bound(LOOKS_AT_ONCE)

    async def is_there(key: str) -> bool:
        async with bound.slot():
            return await session.files.storage.stat(key) is not None

    rest = sorted(own - gone)
    gone.update(key for key, there in zip(rest, await asyncio.gather(*map(is_there, rest)), strict=True) if not there)
    if gone:
        raise Conflict(
            f"{len(gone)} files of this session, such as {min(gone)!r}, were removed from {session.files.url} by a garbage collection, "
            "since nothing referred to them for longer than its grace. Nothing was committed: write them again in a new session, and "
            "give collections a grace that is longer than the longest session"
        )
