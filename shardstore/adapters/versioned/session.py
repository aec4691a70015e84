"""``Session``: what one snapshot holds and what is changed. The names and arguments are Icechunk's where they mean the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from shardstore._sync import run_sync
from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
from shardstore.adapters.mapping import mapping_class
from shardstore.adapters.mapping.mapping import ShardedMap
from shardstore.adapters.versioned.opened import OpenedStore
from shardstore.errors import InvalidInput, NotFound, WriteOutcomeUnknown
from shardstore.format.snapshots.state import Snapshot
from shardstore.progress.shown import reported
from shardstore.snapshots.conflicts import BasicConflictSolver, ConflictDetector, Selection
from shardstore.snapshots.diffs import Diff, status
from shardstore.snapshots.lookup import still_there
from shardstore.snapshots.reachable import Progress, step_of
from shardstore.snapshots.rebase import merge
from shardstore.snapshots.session import WHY_FLAGGED, SessionCore, ndim_of
from shardstore.snapshots.session_storage import SessionStorage
from shardstore.snapshots.versioned_store import CommitRequest, CurrentState
from shardstore.snapshots.virtual_files import place_of_all, virtual_refs

if TYPE_CHECKING:
    from shardstore.adapters.zarr.store import ShardedStore
    from shardstore.references.choices import Paths


class Session:
    """One snapshot, and, if the session is writable, the changes since; ``Repository`` gives sessions.

    A writable session belongs to one process.
    """

    def __init__(
        self,
        opened: OpenedStore,
        current: CurrentState | None,
        at: Snapshot,
        *,
        branch: str | None = None,
        serializable: bool = False,
    ) -> None:
        self._opened = opened
        self._current = current
        store, options = opened.store, opened.options
        structure = run_sync(store.files.structure(at.structure))
        self._core = SessionCore(
            store.files,
            at,
            structure,
            branch,
            pack=options.pack,
            max_memory=options.max_memory,
            serializable=serializable,
            began=0 if current is None else current.state.generation,
        )
        if branch is not None and structure.is_flagged:
            self._core.why_read_only = WHY_FLAGGED
        again = None if branch is not None else partial(_storage_of, opened, at.id)
        url = f"{store.url}@{branch or at.id}"
        self._storage = SessionStorage(self._core, url, opened.limits, opened.virtual, again, store.state)
        self._zarr_store: ShardedStore | None = None
        self._filesystem: ShardedFileSystem | None = None

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        if self._core.branch is not None:
            self._storage.__reduce__()  # raises
        return _session_of, (self._opened, self.snapshot_id)

    def __repr__(self) -> str:
        return f"Session({self._storage.url!r})"

    @property
    def branch(self) -> str | None:
        """The branch that a commit moves; ``None`` if nothing can be changed."""
        return self._core.branch

    @property
    def snapshot_id(self) -> str:
        """The snapshot that it began with, or has become."""
        return self._core.snapshot.id

    @property
    def read_only(self) -> bool:
        """True if nothing can be changed: it was opened so, or has been committed."""
        return bool(self._core.why_read_only)

    @property
    def has_uncommitted_changes(self) -> bool:
        """True if there is anything to commit."""
        return self._core.is_changed

    # -- faces ---------------------------------------------------------------------------------------------------------

    @property
    def storage(self) -> SessionStorage:
        """The session as a storage, which everything takes that takes a URL: ``pack``, ``verify``, ``census``, ``shardstore.open``."""
        return self._storage

    @property
    def store(self) -> ShardedStore:
        """The session as a store for zarr-python and xarray."""
        if self._zarr_store is None:
            from shardstore.adapters.zarr.store import ShardedStore  # zarr is an extra

            self._zarr_store = ShardedStore(self._storage, read_only=self._core.branch is None, chunks_per_shard=None, stored="codec")
        return self._zarr_store

    @property
    def filesystem(self) -> ShardedFileSystem:
        """The session as an fsspec filesystem, whose paths are keys."""
        if self._filesystem is None:
            self._filesystem = ShardedFileSystem(
                fs=self._storage,
                read_only=self._core.branch is None,
                chunks_per_shard=None,
                stored="codec",
                skip_instance_cache=True,  # two sessions may look the same
            )
        return self._filesystem

    def mapping(self, present: Literal["v3", "v2"] = "v3") -> ShardedMap:
        """Return the session as a mapping from keys to bytes; with ``present="v2"``, for zarr-python 2."""
        return mapping_class(present)(
            self._storage, read_only=self._core.branch is None, chunks_per_shard=None, stored="codec", present=present
        )

    # -- changes -------------------------------------------------------------------------------------------------------

    def commit(
        self,
        message: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        rebase_with: ConflictDetector | None = None,
        rebase_tries: int = 1000,
        allow_empty: bool = False,
    ) -> str:
        """Make what was changed the newest snapshot of the branch, all at once, and return its id. Then nothing more can be written.

        If another session has committed to the branch since, that is a conflict; with ``rebase_with``, only if it contradicts what this
        session has changed (and, with ``isolation="serializable"``, read): otherwise this session is brought onto the newest snapshot, and
        committed, ``rebase_tries`` times at most.

        Raises:
            InvalidInput: nothing was changed, and ``allow_empty`` is false; or with ``schema="draft"``, something does not fit the draft.
            ReadOnly: nothing can be changed.
            ConflictError: another session has committed to the branch. Nothing of this is committed; the changes are still there. With
                ``rebase_with``, the session may stand on a newer snapshot, as after ``rebase``.
            WriteOutcomeUnknown: the answer was lost, so it may be committed or not. Commit again: it is committed once.
        """
        core = self._core
        core.check_writable("a commit")
        request = _request(message, metadata, rebase_with, rebase_tries)
        if not core.is_changed and not allow_empty:
            raise InvalidInput("nothing was changed, so there is nothing to commit; allow_empty=True makes an empty commit")
        return run_sync(self._opened.store.commit(core, self._current, request))

    def append(
        self,
        data: Any,
        dim: str,
        *,
        path: str = "",
        message: str,
        metadata: Mapping[str, Any] | None = None,
        rebase_tries: int = 1000,
    ) -> slice:
        """Append rows along a dimension behind whatever is there, commit that, and return the rows; ``snapshot_id`` is the commit. Then
        nothing more can be written.

        If another session has committed to the branch since, also an append, the rows come behind its rows. Where the old length and that
        of what was appended there are whole numbers of chunks, chunks are moved; otherwise the rows of that array are written again, on
        the newest snapshot, for which ``data`` is computed again if it is lazy. Nothing is reserved: until the commit no reader sees
        anything, and a writer that dies leaves nothing.

        Args:
            data: an xarray Dataset or DataArray; for an array, also an array of numpy's or dask's. Variables without the dimension are left
                out. The arrays have to exist, with ``dimension_names``, and all that have the dimension have to be in the data.
            dim: the dimension along which arrays grow.
            path: the group, or the array.
            message: of the commit.
            metadata: of the commit.
            rebase_tries: how often the rows are brought onto newer commits at most.

        Returns:
            The rows, ``slice(start, stop)``; where there are none, nothing is committed.

        Raises:
            InvalidInput: something has been changed in this session: commit that first, or discard it. Or the data does not fit the arrays.
            NotFound: there is nothing at ``path``.
            ReadOnly: nothing can be changed.
            ConflictError: other sessions were first too often, the branch was reset, or with ``isolation="serializable"``, something that
                this session has read was changed.
            WriteOutcomeUnknown: the answer was lost, so it may be committed or not. Call ``commit``: it is committed once. After any other
                error that arises when rows have been written, these are discarded, and nothing more can be written: append in a new
                session.
        """
        from shardstore.adapters.versioned.appending import SessionAppend  # zarr is an extra

        core = self._core
        core.check_writable("an append")
        if core.is_changed:
            raise InvalidInput(f"{self!r} has changes, which an append would commit too: commit them first, or discard them")
        if self.store.engine.in_transaction:
            raise InvalidInput(f"a transaction is open on {self!r}, and would hold back what is appended: end it first")
        request = _request(message, metadata, BasicConflictSolver(on_chunk_conflict="fail"), rebase_tries)
        appended = SessionAppend(core, self.store, data, dim, path)
        if not appended.count:
            return appended.rows
        try:
            appended.write(None)
            run_sync(self._opened.store.commit(core, self._current, replace(request, append=appended.write_in_thread)))
        except WriteOutcomeUnknown:
            raise
        except Exception:
            core.why_read_only = "an append to it has failed"  # rows may still be on their way, from threads of dask
            run_sync(_do(core.discard))
            raise
        return appended.rows

    def rebase(self, solver: ConflictDetector) -> None:
        """Bring the session onto what was committed to the branch since, if ``solver`` solves whatever contradicts that.

        Raises:
            ConflictError: it does. The session is as before.
        """
        self._core.check_writable("a rebase")
        self._current = run_sync(self._opened.store.rebase(self._core, _check_solver(solver)))

    def fork(self) -> ForkSession:
        """Return a session for another process or thread, which travels there and back by pickle, and is made part of this by ``merge``.

        Raises:
            InvalidInput: something has been changed: commit that first, or discard it.
            ReadOnly: nothing can be changed.
        """
        core = self._core
        core.check_writable("a fork")
        if core.is_changed:
            raise InvalidInput(f"{self!r} has changes, which a fork would not see: commit them first, or discard them")
        fork = ForkSession(self._opened, None, core.snapshot, branch=core.branch, serializable=core.reads is not None)
        fork._core.began = core.began
        return fork

    def merge(self, *forks: ForkSession, on_chunk_conflict: Selection = "theirs") -> None:
        """Make what was changed in forks of this session part of it, one after the other. A fork that has been merged is not to be used
        any more.

        Args:
            forks: made by ``fork`` of this session.
            on_chunk_conflict: what happens where a fork has changed a chunk that this session, or a fork before, has changed too, as in
                ``BasicConflictSolver``: ``"theirs"``: the fork's chunk counts, so that the last one wins; ``"ours"``: what is in the
                session counts; ``"fail"``: that is a conflict. Where two workers have written parts of one chunk, one of the parts is lost,
                and only ``"fail"`` shows it. It also makes a conflict of the deletion of a node that the other has changed.

        Raises:
            ConflictError: a fork contradicts what is in the session: another node at one path, a change of what was deleted, and, with
                ``"fail"``, a chunk that both have changed. Those before it are merged, it and those behind it are not.
            InvalidInput: this session has been brought onto another snapshot since.
        """
        BasicConflictSolver(on_chunk_conflict=on_chunk_conflict)  # raises
        self._core.check_writable("a merge")
        for fork in forks:
            if not isinstance(fork, ForkSession):
                raise InvalidInput(f"{fork!r} is not a fork of a session: make one by session.fork()")
            run_sync(merge(self._core, fork._core, on_chunk_conflict))

    def set_virtual_refs(
        self,
        path: str,
        coords: npt.ArrayLike,
        urls: str | Sequence[str],
        offsets: npt.ArrayLike,
        lengths: npt.ArrayLike,
        *,
        etags: str | Sequence[str | None] | None = None,
        last_modified: datetime | Sequence[datetime | None] | None = None,
    ) -> None:
        """Let chunks of an array be bytes of files elsewhere, which are not copied.

        Args:
            path: of the array.
            coords: ``(n, ndim)``, whole numbers: which chunks; of one that is named twice, the last counts.
            urls: the file of each chunk, or one for all, below one of the ``virtual_prefixes`` with which the repository was opened.
            offsets: ``(n,)``: the first byte of each chunk in its file, or one number for all.
            lengths: ``(n,)``: how many bytes, or one number for all.
            etags: of the file of each chunk, or one for all, as its server gives it (with the quotes): a file with another one is not read.
            last_modified: likewise: a file that was changed later is not read. For servers that say when an object was stored.

        Raises:
            NotFound: there is no array at ``path``.
            InvalidInput: the shapes do not fit, a number is negative, or a URL is not below an authorised prefix.
            ReadOnly: nothing can be changed.
        """
        node = self._core.array(path.strip("/"))
        refs = virtual_refs(ndim_of(node), coords, urls, offsets, lengths, etags, last_modified)
        files = [url for url in refs.files if isinstance(url, str)]
        place = place_of_all(files)
        for url in files:
            self._opened.virtual.check_authorised(url, place)
        run_sync(_do(partial(self._core.set_refs, node, refs)))

    def set_virtual_hierarchy(
        self,
        source: Any,
        path: str = "",
        *,
        paths: Paths | None = None,
        overwrite: bool = False,
        storage_options: dict[str, Any] | None = None,
        progress: Progress | bool | None = None,
    ) -> int:
        """Make a whole hierarchy, or a set of references, part of the session, without copying its chunks; return the number of references.

        Of a sharded hierarchy the references are to the inner chunks. An object that is replaced later is not read: where its version is
        known, it is an error instead. What a set has in itself is stored in the session.

        Args:
            source: a Zarr hierarchy, sharded or not, of v3, v2 or the 2022 draft; or a set of references, by a URL that begins with
                ``reference::``. Its objects must be below the ``virtual_prefixes`` with which the repository was opened.
            path: the group that it becomes; ``""`` is the root. Groups above it are made.
            paths: by pattern of paths, the first that matches: ``None`` leaves an array out.
            overwrite: replace nodes at the same paths, with all that is below them.
            storage_options: of the source's filesystem, by default those of the repository if both are on one protocol. For reading later,
                ``virtual_options`` of the repository count.
            progress: called with (what, chunks that are referred to, places for chunks in all); or ``True``: it is shown on stderr.

        Raises:
            InvalidInput: there are nodes at the same paths, or an object is below no authorised prefix.
            NotFound: there is no hierarchy at the source.
            Corruption: a shard or a document is damaged.
            ReadOnly: nothing can be changed. After an error the session holds a part: discard its changes, or call this again with
                ``overwrite``.
        """
        from shardstore.adapters.versioned.virtual_hierarchy import refer_to  # needs what not every program does

        self._core.check_writable("references")
        with reported(progress, step_of("chunks")) as say:
            return refer_to(
                self._core,
                self._opened.virtual,
                source,
                path.strip("/"),
                paths=paths,
                overwrite=overwrite,
                storage_options=self._opened.options.options_of(source, storage_options),
                progress=say,
            )

    def status(self) -> Diff:
        """Return what was changed since the snapshot that the session began with, or was brought onto."""
        return run_sync(status(self._core))

    def discard_changes(self) -> None:
        """Forget everything that was changed."""
        core = self._core
        core.check_writable("discarding changes")
        run_sync(_do(core.discard))

    def move(self, from_path: str, to_path: str) -> None:
        """Move the array or group at a path, and all below it, to another one; no chunk and no manifest is touched.

        Raises:
            NotFound: there is nothing at ``from_path``.
            InvalidInput: there is something at ``to_path``, it is inside of ``from_path``, or no node can have this path. Nothing was
                changed.
        """
        source = from_path.strip("/")
        if not run_sync(_do(partial(self._core.move, source, to_path.strip("/")))):
            raise NotFound(f"there is nothing at {source!r}, so it cannot be moved")


class ForkSession(Session):
    """A part of a session for another process or thread: what is written into it counts when it is merged into that session.

    It travels as a whole: pickle the fork, and not its store, so that what was written comes back.
    """

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _fork_of, (self._opened, self._core.snapshot, self._core.branch, run_sync(_fork_state(self._core)))

    def __repr__(self) -> str:
        return f"ForkSession({self._storage.url!r})"

    def commit(self, *_: Any, **__: Any) -> str:
        """Raise ``InvalidInput``: a fork is not committed, but merged."""
        raise InvalidInput("a fork cannot be committed: merge it into its session, by session.merge(fork), and commit the session")

    def append(self, *_: Any, **__: Any) -> slice:
        """Raise ``InvalidInput``: an append is committed."""
        raise InvalidInput(
            "a fork cannot append, since an append commits: append in its session, or enlarge the array there and let forks write the rows"
        )

    def rebase(self, solver: ConflictDetector) -> None:
        """Raise ``InvalidInput``: only the session that it is of can be rebased."""
        raise InvalidInput("a fork cannot be rebased: merge it into its session, and rebase the session")

    def fork(self) -> ForkSession:
        """Raise ``InvalidInput``: forks are made of the session itself."""
        raise InvalidInput("a fork cannot be forked: make all forks from the session")


def _request(message: str, metadata: Mapping[str, Any] | None, solver: ConflictDetector | None, rebase_tries: object) -> CommitRequest:
    """Return the request for a commit. Raises ``InvalidInput`` if an argument has an invalid value."""
    if not message:
        raise InvalidInput("a commit needs a message")
    if isinstance(rebase_tries, bool) or not isinstance(rebase_tries, int) or rebase_tries < 0:
        raise InvalidInput(f"rebase_tries {rebase_tries!r} is not a whole number of at least 0")
    return CommitRequest(message, metadata, None if solver is None else _check_solver(solver), rebase_tries)


def _check_solver(solver: object) -> ConflictDetector:
    if not isinstance(solver, ConflictDetector):
        raise InvalidInput(f"{solver!r} is neither ConflictDetector() nor BasicConflictSolver()")
    return solver


async def _do(function: Any) -> Any:
    """Call a function on the IO loop, where all of a session's work is done."""
    return function()


async def _fork_state(core: SessionCore) -> dict[str, Any]:
    """Return what of a fork travels; chunks that wait are stored first, so that their bytes do not."""
    async with core.frozen("it is being pickled"):
        await core.gatherer.store(core.gatherer.plan())
    return {"nodes": dict(core.nodes)} | {name: getattr(core, name) for name in ("changes", "documents", "serial", "reads", "began")}


def _fork_of(opened: OpenedStore, snapshot: Snapshot, branch: str, state: Mapping[str, Any]) -> ForkSession:
    """Return the fork that has travelled."""
    fork = ForkSession(opened, None, snapshot, branch=branch)
    for name, value in state.items():
        setattr(fork._core, name, value)
    return fork


def _session_of(opened: OpenedStore, snapshot_id: str) -> Session:
    current = run_sync(opened.store.now())
    return Session(opened, current, still_there(current.state, snapshot_id, opened.store.url))


def _storage_of(opened: OpenedStore, snapshot_id: str) -> SessionStorage:
    """Return the storage of a read-only session, in another process."""
    return _session_of(opened, snapshot_id).storage
