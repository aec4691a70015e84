"""One versioned store: its current state, changes of its branches and tags, and commits. Coroutines run on fsspec's IO loop."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from shardstore.engine.contention import Contention, Outdated, Turn
from shardstore.errors import Conflict, Corruption, InvalidInput, NotFound, ShardStoreError, StorageError, WriteOutcomeUnknown
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_v3 import METADATA_NAME
from shardstore.format.snapshots.file_names import (
    ATTRIBUTES,
    CHUNKS,
    MANIFESTS,
    STATES,
    STRUCTURES,
    encode_id,
    is_own_name,
    new_state_name,
)
from shardstore.format.snapshots.state import MOST_PREVIOUS, Ref, Snapshot, State, check_ref_name, check_said, encode_state
from shardstore.format.snapshots.structure import Node, encode_structure
from shardstore.format.v2.keys import ARRAY_NAME, GROUP_NAME
from shardstore.model.containers import batched
from shardstore.snapshots.catalog import DEFAULT_NAME, Catalog, Pointer, PointerMoved
from shardstore.snapshots.commit import NewFile, plan_commit, properties, store_all, store_commit
from shardstore.snapshots.conflicts import ConflictDetector, ConflictError
from shardstore.snapshots.fence import check_not_collected
from shardstore.snapshots.files import MissingFile, StoreFiles
from shardstore.snapshots.lookup import FIRST_BRANCH, snapshot_by_id
from shardstore.snapshots.rebase import conflicts_with, expired, rebase
from shardstore.snapshots.session import Attempt, SessionCore
from shardstore.storage.base import ConditionFailed, Found, Read
from shardstore.storage.requests.outcomes import Bound
from shardstore.storage.wrappers import Counters
from shardstore.tasks import gather_all, uninterrupted

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_MESSAGE = "Repository initialized"

_HIERARCHY = (METADATA_NAME, GROUP_NAME, ARRAY_NAME)
_ROOT: JsonObject = {"zarr_format": 3, "node_type": "group", "attributes": {}}
_SWAPS = 1000
_REMOVED_AT_ONCE = 10_000

COMMIT_TRIES = 1000
"""The most rebases of a commit that runs unattended."""


@dataclass(frozen=True, slots=True)
class CurrentState:
    """A state, and the pointer that led to it."""

    pointer: Pointer
    state: State


@dataclass(frozen=True, slots=True)
class History:
    """The snapshots of a store, parents first, and its branches and tags."""

    snapshots: Mapping[str, Snapshot]
    refs: Mapping[str, Ref]
    files: Sequence[NewFile] = ()
    """Files that it needs, and that are not stored yet."""


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """The arguments of a commit. Raises ``InvalidInput``: the message or the metadata cannot be stored."""

    message: str
    metadata: Mapping[str, Any] | None = None
    solver: ConflictDetector | None = None
    """Decides whether the session may be brought onto newer commits of other sessions; ``None``: these are a conflict."""
    tries: int = 0
    """The most rebases, each onto what is newest then."""
    merges_all: bool = False
    """Make the manifests of each array one."""
    keeps_values: bool = False
    """No chunk gets another value: it contradicts no other session."""
    append: Callable[[Collection[str] | None], Awaitable[None]] | None = None
    """All that the session has changed is what this has appended. It is called again when the session stands on newer commits: with the
    paths of the arrays whose last rows are to be written again, or with ``None`` if all changes had to be discarded.
    """

    def __post_init__(self) -> None:
        check_said(self.message, self.metadata)


class VersionedStore:
    """A store below the root of ``files``, whose pointer is ``name`` in ``catalog``."""

    def __init__(
        self,
        files: StoreFiles,
        catalog: Catalog,
        name: str,
        *,
        draft: bool = False,
        clock: Callable[[], float] = time.time,
        writer: str = "shardstore",
    ) -> None:
        self.files = files
        self.catalog = catalog
        self.name = name
        self.draft = draft
        self.clock = clock
        self.writer = writer
        self.counters = Counters()
        self._contention = Contention(_SWAPS, self.counters, time.monotonic)
        self._committing = Bound(1)
        """The commits of this process wait for each other instead of racing: all of them swap one pointer."""
        self._newest = 0
        """The newest generation that this process has seen."""

    @property
    def url(self) -> str:
        return self.files.url

    # -- states --------------------------------------------------------------------------------------------------------

    async def now(self, pointer: Pointer | None = None) -> CurrentState:
        """Return the current state. ``pointer``: what the catalog has just said, if it has been asked.

        Raises:
            NotFound: there is no such store.
            Corruption: the state is not what the catalog says.
        """
        gone: Pointer | None = None
        while True:
            pointer = pointer or await self.catalog.get(self.name)
            if pointer is None:
                raise NotFound(
                    f"there is no versioned store {self._place}: make one by `shardstore snapshots init` (in Python: Repository.create)"
                )
            try:
                return await self._state_at(pointer)
            except MissingFile:
                if pointer == gone:
                    raise
            gone, pointer = pointer, None  # the state may have been replaced since, and collected

    async def with_current_state(self, work: Callable[[CurrentState], Awaitable[T]], pointer: Pointer | None = None) -> T:
        """Return what ``work`` makes of the current state. If a file is missing and the state has been replaced since, it is called again
        with the new one: files of snapshots that have expired may have been collected. Raises as ``now`` does, and what ``work`` raises.
        """
        current = await self.now(pointer)
        while True:
            try:
                return await work(current)
            except MissingFile as exc:
                current = await self._since(current, exc)

    async def _since(self, current: CurrentState, missing: MissingFile) -> CurrentState:
        """Return the state that has replaced ``current``, of which a file is missing; if none has, raise ``missing``."""
        now = await self.now()
        if now.pointer == current.pointer:
            raise missing
        return now

    async def opened(self, choose: Callable[[State], Snapshot]) -> tuple[CurrentState, Snapshot]:
        """Return the current state and the snapshot that ``choose`` takes from it, whose structure has been read. Raises what it raises."""

        async def read(current: CurrentState) -> tuple[CurrentState, Snapshot]:
            snapshot = choose(current.state)
            await self.files.structure(snapshot.structure)
            return current, snapshot

        return await self.with_current_state(read)

    async def state(self) -> State:
        """Return the current state. Raises as ``now``."""
        return (await self.now()).state

    async def _state_at(self, pointer: Pointer) -> CurrentState:
        """Return the state that a pointer of the catalog leads to. Raises as ``now``."""
        state = await self.files.state(pointer.location, pointer.store_id)
        if state.generation != pointer.generation:
            raise Corruption(
                f"{pointer.location!r} in {self.url} is the state of generation {state.generation}, and the catalog says "
                f"{pointer.generation}: restore either"
            )
        self._newest = state.generation
        return CurrentState(pointer, state)

    async def check_new(self) -> None:
        """Check that a store can be made; nothing has been stored then.

        Raises:
            InvalidInput: there is a store already, or a Zarr hierarchy, whose files would lie among those of the store.
            Unsupported: the catalog cannot swap pointers.
        """
        looks = await self.files.storage.read([Read(key, ()) for key in _HIERARCHY])
        if (there := next((key for key, look in zip(_HIERARCHY, looks, strict=True) if isinstance(look, Found)), None)) is not None:
            raise InvalidInput(
                f"there is a Zarr hierarchy at {self.url}, with {there!r}, and a versioned store needs a place of its own: give another "
                "one. To put the hierarchy under versions, adopt it into that"
            )
        await self.catalog.check_able()
        await self.files.storage.probe()
        if await self.catalog.get(self.name) is not None:
            raise self._exists()

    async def create(self, history: History | None = None) -> CurrentState:
        """Make the store, with a history; by default with one snapshot, of nothing but the root group (D11).

        Raises:
            InvalidInput: there is one already.
            Unsupported: the catalog cannot swap pointers.
            StorageError: a request failed. After these three the files are removed again that this has stored, as far as that can be done.
            WriteOutcomeUnknown: the store may be there or not.
        """
        await self.check_new()
        if history is None:
            history = self.first()
        state = State(str(uuid.UUID(bytes=self.files.random(16), version=4)), 0, self.url, history.snapshots, history.refs)
        location = new_state_name(0, self.files.random)
        new = [*history.files, NewFile(location, encode_state(state))]
        try:
            await store_all(self.files, new)
            pointer = await self._first_pointer(Pointer(location, 0, state.id))
        except (WriteOutcomeUnknown, Corruption):  # the latter: a name that is there already, and not this store's
            raise
        except ShardStoreError:
            await self.remove_unused([one.key for one in new])
            raise
        return CurrentState(pointer, state)

    async def _first_pointer(self, pointer: Pointer) -> Pointer:
        """Make the pointer of a new store. Raises ``InvalidInput`` if there is that of another store."""
        try:
            return await self.catalog.swap(self.name, None, pointer)
        except PointerMoved as exc:
            if exc.now is None or exc.now.store_id != pointer.store_id:
                raise self._exists() from exc
            return pointer  # carried out, and replaced since

    def first(self) -> History:
        structure = self.files.new_name()
        snapshot = Snapshot(self.files.new_name(), None, self._now_ms(None), structure, properties(FIRST_MESSAGE, None, self.writer))
        root = Node.of(0, "", _ROOT)
        file = NewFile(STRUCTURES + structure, encode_structure([root], {}, draft=self.draft))
        return History({snapshot.id: snapshot}, {FIRST_BRANCH: Ref(snapshot.id, "branch")}, [file])

    def _exists(self) -> InvalidInput:
        return InvalidInput(f"there is a versioned store {self._place} already: open it, or use another place or name")

    @property
    def _place(self) -> str:
        return f"at {self.url}" if self.name == DEFAULT_NAME else f"{self.name!r} in the catalog {self.catalog.url}"

    async def destroy(self) -> None:
        """Remove the pointer, and then all files (D32), but none that has a name which this store does not give; concurrent readers get
        errors. Raises ``NotFound`` if there is no store.
        """
        current = await self.now()
        await self.catalog.delete(self.name, current.pointer)
        storage = self.files.storage
        for folder in (STATES, STRUCTURES, ATTRIBUTES, MANIFESTS, CHUNKS):
            # Other names are not of this store: an array of the user's may be called c.
            keys = [info.key async for info in storage.list(folder) if is_own_name(folder, info.key[len(folder) :])]
            for some in batched(keys, _REMOVED_AT_ONCE):
                await storage.delete_many(some)

    async def change(
        self,
        change: Callable[[State], Awaitable[State]],
        begin: CurrentState | None = None,
        also: Callable[[], Awaitable[None]] | None = None,
        turn: Turn | None = None,
    ) -> CurrentState:
        """Swap the current state for what ``change`` makes of it, which is called again whenever another writer was first.

        ``begin``: the state to try first. ``also`` stores files in the first round, before the first swap. ``turn``: that of which this is
        a part, which has been started. Raises what ``change`` raises, with nothing changed, and ``Unsupported`` if the catalog cannot swap
        pointers, with nothing stored.
        """
        await self.catalog.check_able()
        if turn is None:
            turn = self._contention.turn(self.name)
            await turn.start()
        known = begin
        first_files = also

        async def attempt() -> CurrentState:
            nonlocal known, first_files
            moment = await self.now() if known is None else known
            try:
                state = await change(moment.state)
            except MissingFile as exc:
                known = await self._since(moment, exc)
                raise Outdated from exc
            if state is moment.state:
                return moment
            known = None
            state = state.made_from(moment.pointer.location)
            location = new_state_name(state.generation, self.files.random)
            writes: list[Awaitable[object]] = [self.files.write(location, [encode_state(state)])]
            if first_files is not None:
                writes.append(first_files())
                first_files = None
            await gather_all(*writes)
            try:
                pointer = await self.catalog.swap(self.name, moment.pointer, Pointer(location, state.generation, state.id))
            except PointerMoved as exc:
                now = await self._now_unless_done(exc, location, state)
                if now is not None:
                    if moment is begin:  # an old state: no race was lost
                        known = now
                        raise Outdated from exc
                    raise ConditionFailed(str(exc)) from exc
                pointer = Pointer(location, state.generation, state.id)
            turn.won()
            self.files.keep_state(location, state)
            self._newest = state.generation
            return CurrentState(pointer, state)

        return await turn.swap(f"the state of {self.url}", attempt)

    async def _now_unless_done(self, lost: PointerMoved, location: str, tried: State) -> CurrentState | None:
        """Return the current state after a swap was refused, which is not carried out; ``None`` if it was carried out, and other writers
        have gone on from it.
        """
        if lost.now is None:
            raise NotFound(f"the versioned store {self._place} has been removed") from lost
        now = await self._now_after(lost, tried)
        if location in (now.pointer.location, *now.state.previous):
            return None
        if now.state.generation - tried.generation < MOST_PREVIOUS:  # else the list of previous states may have lost it
            await self.remove_unused([location])
        return now

    async def _now_after(self, lost: PointerMoved, tried: State) -> CurrentState:
        """Return the current state after a swap to ``tried`` was refused: which may have been carried out, if it is a later one."""
        try:
            return await self.now()
        except StorageError as exc:
            if lost.now is not None and lost.now.generation <= tried.generation:
                raise
            raise WriteOutcomeUnknown(
                f"the state of {self.url} has gone on to generation {lost.now and lost.now.generation}, and cannot be read to see whether "
                f"that began with this change: {exc}. Look at the store again"
            ) from exc

    def _now_ms(self, parent: Snapshot | None) -> int:
        """Return the time of a new snapshot, which is later than that of its parent (D7)."""
        now = int(self.clock() * 1000)
        return now if parent is None else max(now, parent.timestamp_ms + 1)

    # -- branches and tags ---------------------------------------------------------------------------------------------

    async def create_ref(self, name: str, snapshot: str, type_: Any) -> None:
        """Make a branch or a tag; see ``Repository.create_branch``."""
        check_ref_name(name)

        async def change(state: State) -> State:
            snapshot_by_id(state, snapshot)
            if (there := state.refs.get(name)) is not None:
                raise InvalidInput(f"there is a {there.type} {name!r} in {self.url} already")
            return state.with_refs({**state.refs, name: Ref(snapshot, type_)})

        await self.change(change)

    async def delete_ref(self, name: str, type_: Any) -> None:
        """Delete a branch or a tag; see ``Repository.delete_branch``."""
        if type_ == "branch" and name == FIRST_BRANCH:
            raise InvalidInput(f"the branch {FIRST_BRANCH!r} cannot be deleted")

        async def change(state: State) -> State:
            state.ref(name, type_)
            return state.with_refs({other: ref for other, ref in state.refs.items() if other != name})

        await self.change(change)

    async def reset_branch(self, name: str, snapshot: str, from_: str | None) -> None:
        """Let a branch point to another snapshot; see ``Repository.reset_branch``."""

        async def change(state: State) -> State:
            snapshot_by_id(state, snapshot)
            now = state.ref(name, "branch").snapshot
            if from_ is not None and now != from_:
                raise Conflict(f"branch {name!r} of {self.url} is at snapshot {now}, and not at {from_}: look at it again")
            return state if now == snapshot else state.with_refs({**state.refs, name: Ref(snapshot, "branch")})

        await self.change(change)

    # -- commits -------------------------------------------------------------------------------------------------------

    async def commit(self, session: SessionCore, begin: CurrentState | None, request: CommitRequest) -> str:
        """Commit a session onto the tip of its branch, as ``Session.commit``; return the id of the snapshot. Carried out even if the call
        is cancelled. ``begin`` is the state that the session knows.
        """

        async def commit() -> str:
            async with session.frozen("it is being committed"):
                try:
                    return await self._commit(session, begin, request)
                except MissingFile as exc:
                    if session.snapshot.id in (await self.state()).snapshots:
                        raise
                    raise expired(session, self.url) from exc

        return await uninterrupted(commit())

    async def _commit(self, session: SessionCore, begin: CurrentState | None, request: CommitRequest) -> str:
        await self.catalog.check_able()
        await self.files.storage.probe()
        queue = self._committing.slot()
        if queue.locked():
            await session.gatherer.store(session.gatherer.plan())  # the longest part does not wait for its turn
        async with queue:
            if begin is not None and (begin.state.generation < self._newest or session.attempts):
                begin = None  # known to be lost, or to be looked at before all
            if begin is None and request.solver is not None and request.tries:
                begin = await self._onto_tip(session, request.solver, request)
            try:
                return await self._commit_in_turn(session, begin, request)
            except _CarriedOut as exc:
                return self._committed(session, exc.attempt)

    async def _commit_in_turn(self, session: SessionCore, begin: CurrentState | None, request: CommitRequest) -> str:
        turn = self._contention.turn(self.name)  # one for all attempts: what an attempt takes is without the waits between them
        await turn.start()
        first = begin if begin is None or _is_tip(session, begin.state) else await self.now()
        solver = request.solver
        rebases = 0

        async def attempt() -> str:
            nonlocal rebases
            moment = await self._onto_tip(session, solver, request) if rebases and solver is not None else first
            try:
                return await self._commit_once(session, moment, request, turn)
            except _BranchMoved as exc:
                session.attempts.clear()  # the states from which they were to be swapped are past
                if solver is None:
                    raise await self._why_not(session, exc.state) from exc
                if rebases == request.tries:
                    again = "commit again" if request.append is None else "append in a new session"
                    raise ConflictError(f"{exc}: other writers were first {request.tries} times. Nothing was changed; {again}") from exc
                rebases += 1
                if moment is begin:  # a session that is old has lost no race
                    raise Outdated from exc
                raise ConditionFailed(str(exc)) from exc

        return await turn.swap(f"branch {session.branch!r} of {self.url}", attempt)

    def _committed(self, session: SessionCore, attempt: Attempt) -> str:
        """Return the id of the snapshot that an earlier attempt has become. Raises ``ConflictError`` if the session has more by now."""
        if attempt.serial != session.serial:
            raise ConflictError(
                f"an earlier commit of this session, of which no answer came, was carried out: it is snapshot {attempt.snapshot.id} of "
                f"branch {session.branch!r} of {self.url}. What was changed since is not in it, and was not committed: write that in a new "
                "session"
            )
        session.committed(attempt.snapshot)
        return attempt.snapshot.id

    async def _why_not(self, session: SessionCore, state: State) -> ConflictError:
        """Return the error of a commit whose branch has moved, with what contradicts it."""
        moved = f"branch {session.branch!r} of {self.url} has moved from snapshot {session.snapshot.id}: another session has committed"
        try:
            conflicts = await conflicts_with(session, state, ConflictDetector(), self.url)
        except ConflictError as exc:
            return exc
        if conflicts:
            return ConflictError(
                f"{moved}, and conflicts with this session: {'; '.join(map(str, conflicts[:10]))}. Nothing was changed", conflicts
            )
        return ConflictError(
            f"{moved}, but nothing that conflicts with this session. Nothing was changed: commit with rebase_with=ConflictDetector()"
        )

    async def rebase(self, session: SessionCore, solver: ConflictDetector) -> CurrentState:
        """Bring a session onto the tip of its branch; return the state. Raises ``ConflictError``."""
        current, _ = await self._rebase(session, solver)
        return current

    async def _rebase(
        self, session: SessionCore, solver: ConflictDetector, *, rewrites: bool = False
    ) -> tuple[CurrentState, Sequence[str]]:
        """Bring a session onto the tip of its branch; return the state, and what ``rebase`` returns."""
        async with session.frozen("it is being rebased"):

            async def onto(current: CurrentState) -> tuple[CurrentState, Sequence[str]]:
                if session.carried_out(current.state.snapshots) is not None:  # the next commit says so
                    return current, []
                return current, await rebase(session, current.state, solver, self.url, rewrites=rewrites)

            return await self.with_current_state(onto)

    async def _onto_tip(self, session: SessionCore, solver: ConflictDetector, request: CommitRequest) -> CurrentState:
        """Bring a session onto the tip of its branch. An append is written again there, as far as its chunks cannot be moved."""
        if request.append is None:
            return await self.rebase(session, solver)
        before = session.stored_files()
        left: Sequence[str] | None
        try:
            current, left = await self._rebase(session, solver, rewrites=True)
        except ConflictError:
            session.discard()
            (current, _), left = await self._rebase(session, solver), None
        await self.remove_unused([CHUNKS + encode_id(file) for file in before - session.stored_files()])
        await request.append(left)
        return current

    async def _commit_once(self, session: SessionCore, begin: CurrentState | None, request: CommitRequest, turn: Turn) -> str:
        branch = session.branch
        assert branch is not None
        planned = await plan_commit(session, draft=self.draft, merges_all=request.merges_all, keeps_values=request.keeps_values)
        parent = session.snapshot
        said = properties(request.message, request.metadata, self.writer, keeps_values=request.keeps_values)
        snapshot = Snapshot(self.files.new_name(), parent.id, self._now_ms(parent), planned.name, said)

        session.attempts.append(Attempt(snapshot, session.serial))
        is_stored = False

        async def store() -> None:
            nonlocal is_stored
            is_stored = True
            await store_commit(session, planned)

        async def change(state: State) -> State:
            if (attempt := session.carried_out(state.snapshots)) is not None:
                raise _CarriedOut(attempt)
            tip = state.ref(branch, "branch").snapshot
            if tip != parent.id:
                raise _BranchMoved(f"branch {branch!r} of {self.url} has moved from snapshot {parent.id} to {tip}", state)
            await check_not_collected(session, state, planned.keys if is_stored else ())
            return state.committed(snapshot, branch, session.began)

        try:
            await self.change(change, begin, store, turn)
        except BaseException as exc:
            if not is_stored:
                session.gatherer.take_back(planned.chunks)
            elif isinstance(exc, _BranchMoved) or (isinstance(exc, _CarriedOut) and exc.attempt.snapshot is not snapshot):
                await self.remove_unused(planned.keys)
            raise
        self.files.keep_structure(planned.name, planned.structure)
        session.committed(snapshot)
        return snapshot.id

    async def remove_unused(self, keys: Sequence[str]) -> None:
        """Remove files that nothing refers to; what cannot be removed stays for the collector."""
        try:
            await self.files.storage.delete_many(keys)
        except ShardStoreError as exc:
            logger.info("files that nothing refers to stay in %s: %s", self.url, exc)


class _CarriedOut(Exception):
    """A commit of the session has been carried out already."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(attempt)
        self.attempt = attempt


class _BranchMoved(Conflict):
    """Another session has committed to the branch."""

    def __init__(self, message: str, state: State) -> None:
        super().__init__(message)
        self.state = state


def _is_tip(session: SessionCore, state: State) -> bool:
    """Return whether a state has the session's branch where the session stands. A rebase may have moved the session on."""
    there = state.refs.get(session.branch or "")
    return there is not None and there.snapshot == session.snapshot.id
