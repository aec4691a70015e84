"""``Repository`` and ``Session``: versioned stores for programs. The names and arguments are Icechunk's where they mean the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy.typing as npt

from shardstore import __version__
from shardstore._sync import run_sync
from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
from shardstore.adapters.mapping.classes import mapping_class
from shardstore.adapters.mapping.mapping import ShardedMap
from shardstore.engine.options import EngineOptions
from shardstore.errors import InvalidInput, NotFound, Unsupported
from shardstore.extras import how_to_install
from shardstore.format.snapshots.state import Snapshot, State
from shardstore.plan.policy import ShardingPolicy, validate_policy
from shardstore.snapshots.catalog import DEFAULT_NAME, Catalog, StorageCatalog, check_store_name
from shardstore.snapshots.conflicts import ConflictDetector
from shardstore.snapshots.diffs import Diff, diff, status
from shardstore.snapshots.files import MANIFEST_CACHE_BYTES, StoreFiles
from shardstore.snapshots.forks import ForkState, fork_state, restore
from shardstore.snapshots.rebase import merge
from shardstore.snapshots.session import MAX_MEMORY, ndim_of
from shardstore.snapshots.session import Session as SessionCore
from shardstore.snapshots.session_storage import SessionStorage
from shardstore.snapshots.versioned_store import (
    FIRST_BRANCH,
    CommitRequest,
    Moment,
    VersionedStore,
    check_snapshot,
    snapshot_at,
    snapshot_of,
)
from shardstore.snapshots.virtual_files import VirtualFiles, virtual_refs
from shardstore.storage.opening.open import open_storage
from shardstore.storage.opening.transports import Transport

if TYPE_CHECKING:
    from shardstore.adapters.zarr.store import ShardedStore
    from shardstore.references.choices import Paths

Schema = Literal["auto", "draft"]
Isolation = Literal["snapshot", "serializable"]


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """One snapshot."""

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    metadata: Mapping[str, Any]

    @classmethod
    def of(cls, snapshot: Snapshot) -> SnapshotInfo:
        said = snapshot.properties
        metadata = said.get("metadata")
        return cls(
            snapshot.id,
            snapshot.parent,
            datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
            str(said.get("message", "")),
            metadata if isinstance(metadata, Mapping) else {},
        )


@dataclass(frozen=True, slots=True)
class RepositoryOptions:
    """The place of a repository, and how it is opened; it can be pickled."""

    url: Any
    catalog: Catalog | None = None
    name: str | None = None
    schema: Schema = "auto"
    pack: ShardingPolicy = "auto"
    storage_options: dict[str, Any] | None = None
    virtual_prefixes: Sequence[str] = ()
    virtual_options: Mapping[str, Mapping[str, Any]] | None = None
    max_memory: int = MAX_MEMORY
    manifest_cache_bytes: int = MANIFEST_CACHE_BYTES
    fsync: bool = True
    transport: Transport = "fsspec"

    def __post_init__(self) -> None:
        if self.schema not in ("auto", "draft"):
            raise InvalidInput(f"schema {self.schema!r} is neither 'auto' nor 'draft'")
        validate_policy(self.pack)
        for name in ("max_memory", "manifest_cache_bytes"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(f"{name} {value!r} is not a whole number of at least 1")


class RepositoryArguments(TypedDict, total=False):
    """The options of a repository by name and type; ``Repository.create`` says what they mean."""

    catalog: Catalog | None
    name: str | None
    schema: Schema
    pack: ShardingPolicy
    storage_options: dict[str, Any] | None
    virtual_prefixes: Sequence[str]
    virtual_options: Mapping[str, Mapping[str, Any]] | None
    max_memory: int
    manifest_cache_bytes: int
    fsync: bool
    transport: Transport


class Repository:
    """A versioned store: snapshots of a Zarr hierarchy, and branches and tags that point to them.

    ``Repository.create`` makes one, ``Repository.open`` opens one. Only shardstore reads its files as such; see the guide.
    """

    def __init__(self, options: RepositoryOptions) -> None:
        self._options = options
        if find_spec("pyarrow") is None:
            raise Unsupported(f"versioned stores need pyarrow: {how_to_install('snapshots')}")
        storage = open_storage(options.url, options.storage_options, fsync=options.fsync, transport=options.transport)
        files = StoreFiles(storage, cache_bytes=options.manifest_cache_bytes)
        catalog: Catalog = StorageCatalog(storage) if options.catalog is None else options.catalog
        name = options.name if options.name is not None else _default_name(options, storage.url)
        self._limits = EngineOptions().read_limits(storage.kind)
        self._store = VersionedStore(
            files, catalog, check_store_name(name), draft=options.schema == "draft", writer=f"shardstore {__version__}"
        )
        self._virtual = VirtualFiles(files.storage, options.virtual_prefixes, options.virtual_options)

    # -- opening -------------------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        url: Any,
        **options: Unpack[RepositoryArguments],
    ) -> Repository:
        """Make a repository, with the branch ``main`` and a first snapshot that holds the root group, and open it.

        Args:
            url: where its files go: what ``shardstore.open`` takes.
            catalog: what holds the pointer to the current state: by default an object beside the files; or
                ``shardstore.snapshots.SQLCatalog("postgresql+psycopg://…")``, or a ``StorageCatalog`` elsewhere.
            name: the repository's name in the catalog; by default the last part of the URL, or ``catalog`` beside the files.
            schema: ``"draft"`` refuses what the Icechunk draft's column types cannot hold; ``"auto"`` widens them.
            pack: how many chunks go into one chunk file: as ``chunks_per_shard`` of ``shardstore.open``; one tuple is for the arrays with
                that number of dimensions, and ``None`` means one.
            storage_options: for the filesystem: credentials, endpoint, retries.
            virtual_prefixes: URLs, with ``/`` at the end, below which virtual references may lead.
            virtual_options: storage options for what they lead to, by protocol.
            max_memory: bytes of chunks that a session holds before some are stored.
            manifest_cache_bytes: bytes of decoded manifests that are kept.
            fsync: make local files durable before they count.
            transport: ``"fsspec"`` or ``"obstore"``.

        Raises:
            InvalidInput: there is one already, or an option has an invalid value.
            Unsupported: the storage of the catalog cannot change an object on a condition.
        """
        repository = cls(RepositoryOptions(url, **options))
        run_sync(repository._store.create())
        return repository

    @classmethod
    def open(
        cls,
        url: Any,
        **options: Unpack[RepositoryArguments],
    ) -> Repository:
        """Open a repository that exists; arguments are those of ``create``.

        Raises:
            NotFound: there is none.
            Corruption: its state is not what the catalog says.
        """
        repository = cls(RepositoryOptions(url, **options))
        run_sync(repository._store.now())
        return repository

    @classmethod
    def exists(cls, url: Any, **options: Unpack[RepositoryArguments]) -> bool:
        """Return whether there is a repository; arguments are those of ``create``."""
        store = cls(RepositoryOptions(url, **options))._store
        return run_sync(store.catalog.get(store.name)) is not None

    @classmethod
    def open_or_create(cls, url: Any, **options: Unpack[RepositoryArguments]) -> Repository:
        """Open a repository, or make it where there is none; arguments are those of ``create``."""
        try:
            return cls.open(url, **options)
        except NotFound:
            try:
                return cls.create(url, **options)
            except InvalidInput:  # it may be that somebody else has made it at the same time
                return cls.open(url, **options)

    def destroy(self, *, yes: bool = False) -> None:
        """Remove the repository, with all snapshots and chunks, if ``yes``. Virtual files stay.

        Raises:
            InvalidInput: ``yes`` is false.
            NotFound: there is no repository.
        """
        if not yes:
            raise InvalidInput(f"all snapshots and chunks of {self.url} would be removed, for ever: say so by yes=True")
        run_sync(self._store.destroy())

    def __reduce__(self) -> tuple[type[Repository], tuple[RepositoryOptions]]:
        return type(self), (self._options,)

    def __repr__(self) -> str:
        return f"Repository({self.url!r})"

    @property
    def url(self) -> str:
        """The URL of its files, without credentials."""
        return self._store.url

    def _now(self) -> Moment:
        return run_sync(self._store.now())

    # -- sessions ------------------------------------------------------------------------------------------------------

    def writable_session(self, branch: str = FIRST_BRANCH, *, isolation: Isolation = "snapshot") -> Session:
        """Return a session on the tip of a branch, whose changes nobody sees before they are committed.

        ``isolation`` says what a later rebase compares with what others have committed: ``"snapshot"``: what this session has written;
        ``"serializable"``: also what it has read, so that all sessions together do what they would have done one after the other; then
        ``on_chunk_conflict="theirs"`` solves nothing.

        Raises:
            NotFound: there is no such branch.
        """
        if isolation not in ("snapshot", "serializable"):
            raise InvalidInput(f"isolation {isolation!r} is neither 'snapshot' nor 'serializable'")
        moment = self._now()
        tip = moment.state.snapshots[moment.state.ref(branch, "branch").snapshot]
        return Session(self, moment, tip, branch=branch, serializable=isolation == "serializable")

    def readonly_session(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
    ) -> Session:
        """Return a session that shows one snapshot, for ever: the tip of a branch, a tag, or any by its id.

        ``as_of`` shows the branch, by default ``main``, as it was then: its newest snapshot that is not later, among its ancestors.

        Raises:
            NotFound: there is no such branch, tag or snapshot.
            InvalidInput: more than one is given, or ``as_of`` has no time zone.
        """
        moment = self._now()
        return Session(self, moment, _named(moment.state, branch, tag, snapshot_id, as_of))

    @contextmanager
    def transaction(
        self,
        branch: str = FIRST_BRANCH,
        *,
        message: str,
        metadata: Mapping[str, Any] | None = None,
        isolation: Isolation = "snapshot",
        rebase_with: ConflictDetector | None = None,
        rebase_tries: int = 1000,
    ) -> Iterator[ShardedStore]:
        """Give a store whose changes are committed to the branch when the block ends; an exception discards them.

        Nothing changed is no commit. Raises what ``Session.commit`` raises.
        """
        session = self.writable_session(branch, isolation=isolation)
        try:
            yield session.store
        except BaseException as exc:
            session.discard_changes()
            exc.add_note(f"nothing was committed to branch {branch!r} of {self.url}")
            raise
        if session.has_uncommitted_changes:
            session.commit(message, metadata, rebase_with=rebase_with, rebase_tries=rebase_tries)

    # -- history -------------------------------------------------------------------------------------------------------

    def ancestry(self, branch: str | None = None, *, tag: str | None = None, snapshot_id: str | None = None) -> Iterator[SnapshotInfo]:
        """Yield a snapshot and its ancestors, the newest first. Raises ``NotFound`` if there is no such branch, tag or snapshot."""
        state = self._now().state
        return map(SnapshotInfo.of, state.ancestry(_named(state, branch, tag, snapshot_id, None).id))

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """Return what is known of a snapshot. Raises ``NotFound``."""
        state = self._now().state
        check_snapshot(state, snapshot_id)
        return SnapshotInfo.of(state.snapshots[snapshot_id])

    def diff(self, from_ref: str, to_ref: str = FIRST_BRANCH) -> Diff:
        """Return what differs between two snapshots, each given by a branch, a tag or its id; see ``lookup``.

        Only manifests that the two do not share are read.

        Raises:
            NotFound: there is no such branch, tag or snapshot.
        """
        before, after = (self.readonly_session(snapshot_id=self.lookup(ref)) for ref in (from_ref, to_ref))
        return run_sync(diff(before._core, after._core))

    def lookup(self, ref: str) -> str:
        """Return the id of the snapshot that a text means: a branch, else a tag, else the id itself. Raises ``NotFound``."""
        return snapshot_of(self._now().state, ref).id

    # -- branches and tags ---------------------------------------------------------------------------------------------

    def list_branches(self) -> set[str]:
        """Return the names of all branches."""
        return {name for name, ref in self._now().state.refs.items() if ref.type == "branch"}

    def list_tags(self) -> set[str]:
        """Return the names of all tags."""
        return {name for name, ref in self._now().state.refs.items() if ref.type == "tag"}

    def lookup_branch(self, branch: str) -> str:
        """Return the id of the snapshot at the tip of a branch. Raises ``NotFound``."""
        return self._now().state.ref(branch, "branch").snapshot

    def lookup_tag(self, tag: str) -> str:
        """Return the id of the snapshot that a tag names. Raises ``NotFound``."""
        return self._now().state.ref(tag, "tag").snapshot

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """Make a branch. Raises ``InvalidInput`` if there is a branch or tag of this name, ``NotFound`` if there is no such snapshot."""
        run_sync(self._store.create_ref(branch, snapshot_id, "branch"))

    def create_tag(self, tag: str, snapshot_id: str) -> None:
        """Make a tag, which never points elsewhere. Raises as ``create_branch``."""
        run_sync(self._store.create_ref(tag, snapshot_id, "tag"))

    def delete_branch(self, branch: str) -> None:
        """Delete a branch; its snapshots stay. Raises ``NotFound``, or ``InvalidInput`` for ``main``."""
        run_sync(self._store.delete_ref(branch, "branch"))

    def delete_tag(self, tag: str) -> None:
        """Delete a tag. The name can be given again: nothing remembers it (D12). Raises ``NotFound``."""
        run_sync(self._store.delete_ref(tag, "tag"))

    def reset_branch(self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None) -> None:
        """Let a branch point to another snapshot; what it pointed to stays, and can be found by its id.

        Raises:
            NotFound: there is no such branch or snapshot.
            Conflict: ``from_snapshot_id`` is given, and the branch points elsewhere.
        """
        run_sync(self._store.reset_branch(branch, snapshot_id, from_snapshot_id))


class Session:
    """What one snapshot holds, and, if it is writable, what has been changed since; ``Repository`` gives sessions.

    A writable session belongs to one process.
    """

    def __init__(
        self,
        repository: Repository,
        moment: Moment | None,
        at: Snapshot,
        *,
        branch: str | None = None,
        serializable: bool = False,
    ) -> None:
        self._repository = repository
        self._moment = moment
        store = repository._store
        options = repository._options
        structure = run_sync(store.files.structure(at.structure))
        self._core = SessionCore(
            store.files, at, structure, branch, pack=options.pack, max_memory=options.max_memory, serializable=serializable
        )
        if branch is not None and structure.is_flagged:
            self._core.why_read_only = "its structure has flags that this version of shardstore does not know"
        again = None if branch is not None else partial(_storage_of, options, at.id)
        url = f"{store.url}@{branch or at.id}"
        self._storage = SessionStorage(self._core, url, repository._limits, repository._virtual, again)
        self._zarr_store: ShardedStore | None = None
        self._filesystem: ShardedFileSystem | None = None

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        if self._core.branch is not None:
            self._storage.__reduce__()  # raises
        return _session_of, (self._repository, self.snapshot_id)

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

        If somebody else has committed to the branch since, that is a conflict; with ``rebase_with``, only if it contradicts what this
        session has changed (and, with ``isolation="serializable"``, read): otherwise this session is brought onto their snapshot, and
        committed, ``rebase_tries`` times at most.

        Raises:
            InvalidInput: nothing was changed, and ``allow_empty`` is false; or with ``schema="draft"``, something does not fit the draft.
            ReadOnly: nothing can be changed.
            ConflictError: somebody else has committed to the branch. Nothing of this is committed; the changes are still there. With
                ``rebase_with``, the session may stand on some of what the others have committed, as after ``rebase``.
            WriteOutcomeUnknown: the answer was lost, and nobody can tell whether it is committed. Commit again: it is committed once.
        """
        core = self._core
        core.check_writable("a commit")
        if not message:
            raise InvalidInput("a commit needs a message")
        if not core.is_changed and not allow_empty:
            raise InvalidInput("nothing was changed, so there is nothing to commit; with allow_empty=True that is a snapshot too")
        if rebase_with is not None:
            _check_solver(rebase_with)
        tries: object = rebase_tries
        if isinstance(tries, bool) or not isinstance(tries, int) or tries < 0:
            raise InvalidInput(f"rebase_tries {rebase_tries!r} is not a whole number of at least 0")
        request = CommitRequest(message, metadata, rebase_with, rebase_tries)
        return run_sync(self._repository._store.commit(core, self._moment, request))

    def rebase(self, solver: ConflictDetector) -> None:
        """Bring the session onto what others have committed to the branch since, if ``solver`` solves whatever contradicts that.

        Raises:
            ConflictError: it does. The session is as before.
        """
        self._core.check_writable("a rebase")
        self._moment = run_sync(self._repository._store.rebase(self._core, _check_solver(solver)))

    def fork(self) -> ForkSession:
        """Return a session for another process or thread, which travels there and back by pickle, and is made part of this by ``merge``.

        Raises:
            InvalidInput: something has been changed: commit that first, or discard it.
            ReadOnly: nothing can be changed.
        """
        core = self._core
        core.check_writable("a fork")
        if core.is_changed:
            raise InvalidInput(f"{self!r} has changes, which a fork would not know of: commit them first, or discard them")
        return ForkSession(self._repository, None, core.snapshot, branch=core.branch, serializable=core.reads is not None)

    def merge(self, *forks: ForkSession) -> None:
        """Make what was changed in forks of this session part of it, one after the other. Of a chunk that several have changed, the last
        counts. A fork that has been merged is not to be used any more.

        Raises:
            ConflictError: a fork contradicts what is in the session: another node at one path, a change of what was deleted. Those before
                it are merged, it and those behind it are not.
            InvalidInput: this session has been brought onto another snapshot since.
        """
        self._core.check_writable("a merge")
        for fork in forks:
            if not isinstance(fork, ForkSession):
                raise InvalidInput(f"{fork!r} is no fork of a session: make one by session.fork()")
            run_sync(merge(self._core, fork._core))

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
        for url in refs.files:
            assert isinstance(url, str)
            self._repository._virtual.check_authorised(url)
        run_sync(_do(partial(self._core.set_refs, node, refs)))

    def set_virtual_hierarchy(
        self,
        source: Any,
        path: str = "",
        *,
        paths: Paths | None = None,
        overwrite: bool = False,
        storage_options: dict[str, Any] | None = None,
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
            storage_options: of the source's filesystem. For reading later, ``virtual_options`` of the repository count.

        Raises:
            InvalidInput: there are nodes at the same paths, or an object is below no authorised prefix.
            NotFound: there is no hierarchy at the source.
            Corruption: a shard or a document is damaged.
            ReadOnly: nothing can be changed. After an error the session holds a part: discard its changes, or call this again with
                ``overwrite``.
        """
        from shardstore.adapters.virtual_hierarchy import refer_to  # needs what not every program does

        self._core.check_writable("references")
        return refer_to(
            self._core,
            self._repository._virtual,
            source,
            path.strip("/"),
            paths=paths,
            overwrite=overwrite,
            storage_options=storage_options,
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
            InvalidInput: there is something at ``to_path``, or it is inside of ``from_path``.
        """
        run_sync(_do(partial(self._core.move_existing, from_path.strip("/"), to_path.strip("/"))))


class ForkSession(Session):
    """A part of a session for another process or thread: what is written into it counts when it is merged into that session.

    It travels as a whole: pickle the fork, and not its store, so that what was written comes back.
    """

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _fork_of, (self._repository, run_sync(fork_state(self._core)))

    def __repr__(self) -> str:
        return f"ForkSession({self._storage.url!r})"

    def commit(self, *_: Any, **__: Any) -> str:
        """Raise ``InvalidInput``: a fork is not committed, but merged."""
        raise InvalidInput("a fork is not committed: merge it into the session that it is of, by session.merge(fork), and commit that")

    def rebase(self, solver: ConflictDetector) -> None:
        """Raise ``InvalidInput``: only the session that it is of can be rebased."""
        raise InvalidInput("a fork is not rebased: merge it into the session that it is of, and rebase that")

    def fork(self) -> ForkSession:
        """Raise ``InvalidInput``: forks are made of the session itself."""
        raise InvalidInput("a fork has no forks: make as many as are needed of the session itself")


def _check_solver(solver: object) -> ConflictDetector:
    if not isinstance(solver, ConflictDetector):
        raise InvalidInput(f"{solver!r} is neither ConflictDetector() nor BasicConflictSolver()")
    return solver


async def _do(function: Any) -> Any:
    """Call a function on the IO loop, where all of a session's work is done."""
    return function()


def _default_name(options: RepositoryOptions, url: str) -> str:
    return DEFAULT_NAME if options.catalog is None else _last_part(url)


def _last_part(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2] or DEFAULT_NAME


def _named(state: State, branch: str | None, tag: str | None, snapshot_id: str | None, as_of: datetime | None) -> Snapshot:
    """Return the snapshot that is meant."""
    given = [one for one in (branch, tag, snapshot_id) if one is not None]
    if len(given) > 1 or (as_of is not None and (tag is not None or snapshot_id is not None)):
        raise InvalidInput("give one of branch, tag and snapshot_id; as_of goes with a branch")
    if tag is not None:
        return state.snapshots[state.ref(tag, "tag").snapshot]
    if snapshot_id is not None:
        check_snapshot(state, snapshot_id)
        return state.snapshots[snapshot_id]
    tip = state.ref(branch or FIRST_BRANCH, "branch").snapshot
    if as_of is None:
        return state.snapshots[tip]
    if as_of.tzinfo is None:
        raise InvalidInput(f"as_of={as_of!r} has no time zone: give one, such as datetime(2026, 1, 31, tzinfo=UTC)")
    return snapshot_at(state, state.ancestry(tip), int(as_of.timestamp() * 1000))


def _fork_of(repository: Repository, state: ForkState) -> ForkSession:
    fork = ForkSession(repository, None, state.snapshot, branch=state.branch, serializable=state.reads is not None)
    restore(fork._core, state)
    return fork


def _session_of(repository: Repository, snapshot_id: str) -> Session:
    return repository.readonly_session(snapshot_id=snapshot_id)


def _storage_of(options: RepositoryOptions, snapshot_id: str) -> SessionStorage:
    """Return the storage of a read-only session, in another process."""
    return Repository(options).readonly_session(snapshot_id=snapshot_id).storage
