"""``Repository``: a versioned store for programs. The names and arguments are Icechunk's where they mean the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, Unpack

from shardstore._sync import run_sync
from shardstore.adapters.versioned.opened import (
    OpenedStore,
    RepositoryArguments,
    RepositoryOptions,
    check_prefixes,
    takes_repository_options,
)
from shardstore.adapters.versioned.session import Session
from shardstore.adapters.versioned.virtual_hierarchy import adopt_hierarchy, place_of_objects
from shardstore.errors import Corruption, InvalidInput, NotFound
from shardstore.format.snapshots.state import check_said
from shardstore.model.durations import Duration, time_before, timedelta_of
from shardstore.model.options import check_flags
from shardstore.model.showing import ShownInNotebooks
from shardstore.opening.open import open_storage
from shardstore.opening.options import options_of_another
from shardstore.progress.shown import reported
from shardstore.references.sets import is_set
from shardstore.snapshots.collect import Collected, Expired, collect, expire
from shardstore.snapshots.conflicts import BasicConflictSolver, ConflictDetector
from shardstore.snapshots.diffs import Diff, diff
from shardstore.snapshots.inspection import Checked, StoreStats, check, stats, virtual_files
from shardstore.snapshots.lookup import FIRST_BRANCH, SnapshotInfo, milliseconds, named_snapshot, snapshot_by_id, snapshot_of
from shardstore.snapshots.reachable import Progress, step_of
from shardstore.snapshots.rewriting import Repacked, repack
from shardstore.snapshots.versioned_store import COMMIT_TRIES, CommitRequest, CurrentState

if TYPE_CHECKING:
    from shardstore.adapters.versioned.icechunk_export import IcechunkExport
    from shardstore.adapters.zarr.store import ShardedStore
    from shardstore.maintenance.packing.run import PackReport
    from shardstore.maintenance.pins import Pin
    from shardstore.references.choices import Paths

Isolation = Literal["snapshot", "serializable"]

GRACE = "7d"
"""How long files that no snapshot needs are left, by default."""


class Repository(ShownInNotebooks):
    """A versioned store: snapshots of a Zarr hierarchy, and branches and tags that point to them.

    ``Repository.create`` makes one, ``Repository.open`` opens one. Only shardstore reads its files as such; see the guide.
    """

    def __init__(self, options: RepositoryOptions) -> None:
        self._opened = OpenedStore(options)
        self._store = self._opened.store

    # -- opening -------------------------------------------------------------------------------------------------------

    @classmethod
    @takes_repository_options
    def create(cls, url: Any, **options: Unpack[RepositoryArguments]) -> Repository:
        """Make a repository, with the branch ``main`` and a first snapshot that holds the root group, and open it.

        Args:
            url: where its files go: what ``shardstore.open`` takes.
            catalog: what holds the pointer to the current state: by default an object next to the files; or
                ``shardstore.snapshots.SQLCatalog("postgresql+psycopg://…")``, or a ``StorageCatalog`` elsewhere.
            name: the repository's name in the catalog; by default the last part of the URL, or ``catalog`` next to the files.
            schema: ``"draft"`` refuses what the Icechunk draft's column types cannot hold; ``"auto"`` widens them.
            pack: how many chunks go into one chunk file: as ``chunks_per_shard`` of ``shardstore.open``; one tuple is for the arrays with
                that number of dimensions, and ``None`` means one.
            storage_options: for the filesystem: credentials, endpoint, retries.
            virtual_prefixes: URLs, with ``/`` at the end, below which virtual references may lead.
            virtual_options: storage options for what they lead to, by protocol; by default those of the repository for its own protocol.
            max_memory: bytes of chunks that a session holds before some are stored.
            manifest_cache_bytes: bytes of decoded manifests that are kept.
            fsync: make local files durable before they count.
            transport: as for ``shardstore.open``.

        Raises:
            InvalidInput: there is one already, or an option has an invalid value.
            Unsupported: the storage of the catalog cannot change an object on a condition.
        """
        repository = cls(RepositoryOptions(url, **options))
        run_sync(repository._store.create())
        return repository

    @classmethod
    @takes_repository_options
    def open(cls, url: Any, **options: Unpack[RepositoryArguments]) -> Repository:
        """Open a repository that exists; arguments are those of ``create``.

        Raises:
            NotFound: there is none.
            Corruption: its state is not what the catalog says.
        """
        repository = cls(RepositoryOptions(url, **options))
        run_sync(repository._store.now())
        return repository

    @classmethod
    @takes_repository_options
    def exists(cls, url: Any, **options: Unpack[RepositoryArguments]) -> bool:
        """Return whether there is a repository; arguments are those of ``create``."""
        store = cls(RepositoryOptions(url, **options))._store
        return run_sync(store.catalog.get(store.name)) is not None

    @classmethod
    @takes_repository_options
    def open_or_create(cls, url: Any, **options: Unpack[RepositoryArguments]) -> Repository:
        """Open a repository, or make it where there is none; arguments are those of ``create``."""
        try:
            return cls.open(url, **options)
        except NotFound:
            try:
                return cls.create(url, **options)
            except InvalidInput:  # another process may have made it at the same time
                return cls.open(url, **options)

    @classmethod
    @takes_repository_options
    def adopt(
        cls,
        source: Any,
        url: Any,
        *,
        message: str = "Adopted",
        paths: Paths | None = None,
        source_options: dict[str, Any] | None = None,
        progress: Progress | bool | None = None,
        **options: Unpack[RepositoryArguments],
    ) -> Repository:
        """Make a repository whose first commit is a hierarchy that exists, without copying a chunk: from then on it has a history.

        The chunks stay where they are, as virtual references to the shards of the hierarchy, or to its chunks. An object that is replaced
        there is a ``Conflict`` when it is read, never other bytes (on local disks, unless its size is the same and its time of modification
        was set back); so leave the hierarchy unchanged, and write through the repository. ``compact``, ``repair`` and ``pack --overwrite``
        leave its objects alone if they are given ``--pins-of``.

        Args:
            source: a Zarr hierarchy, sharded or not, or a set of references by a URL that begins with ``reference::``.
            url: where the files of the repository go.
            message: of the commit.
            paths: by pattern of paths, the first that matches: ``None`` leaves an array out.
            source_options: of the source's filesystem, for now, by default ``storage_options`` if both are on one protocol; for reading
                later, ``virtual_options`` count.
            progress: called with (what, chunks that are referred to, places for chunks in all); or ``True``: it is shown on stderr.
            options: those of ``create``. The place of the source is added to ``virtual_prefixes``; who opens the repository gives it too.

        Raises:
            InvalidInput: there is a repository already; or an object of a set is below no authorised prefix.
            NotFound: there is no hierarchy at the source.
            Corruption: a shard or a document of the source is damaged.
        """
        source_options = options_of_another(source, source_options, url, options.get("storage_options"))
        place = None if is_set(source) else place_of_objects(source, source_options)
        options["virtual_prefixes"] = _with_place(options.get("virtual_prefixes", ()), place)
        made = cls(RepositoryOptions(url, **options))
        with reported(progress, step_of("chunks")) as say:
            adopt_hierarchy(made._opened, source, message, paths=paths, source_options=source_options, progress=say)
        return made

    @classmethod
    @takes_repository_options
    def import_icechunk(
        cls,
        source: Any,
        url: Any,
        *,
        copy: bool = False,
        source_url: str | None = None,
        source_options: Mapping[str, Any] | None = None,
        progress: Progress | bool | None = None,
        **options: Unpack[RepositoryArguments],
    ) -> Repository:
        """Make a repository of the whole history of one of Icechunk, by icechunk 2: all snapshots to which its branches and tags lead.

        Snapshots keep their ids, messages, metadata and times; one that is not later than its parent gets the next millisecond. What
        ``export_icechunk`` has written becomes what it was, but for what Icechunk does not keep: key encodings of chunks, and numbers that
        became texts. A commit of it that was amended with the same metadata counts as what it was. Virtual chunks keep their targets,
        without the checksums, which Icechunk does not give. Of an array whose chunks are shards, the inner chunks become chunks. The
        repository is there when all of it is.

        Args:
            source: a folder, a URL of S3 or Google Cloud Storage, an ``icechunk.Storage``, or an open ``icechunk.Repository``.
            url: where the files of the new one go.
            copy: copy the bytes of the source's chunk files. By default virtual references lead to them: then nothing of the source may be
                collected that this repository shows.
            source_url: where the files of the source are, as ``s3://bucket/repo``, for an ``icechunk.Storage`` that is no local folder.
            source_options: of a URL, as fsspec has them, to open the source, and for its chunk files, unless ``virtual_options`` says
                otherwise; by default ``storage_options`` if both are on one protocol. Later opens take them as ``virtual_options``.
            progress: called with (what, how much is done, how much it is in all); or ``True``: it is shown on stderr.
            options: those of ``create``. The place of the source's chunk files is added to ``virtual_prefixes``; those of its virtual
                references are to be given. Who opens the repository gives them too.

        Raises:
            InvalidInput: there is a repository already; it is not known where the source's files are; a virtual reference leads below no
                authorised prefix; or a node, or a name of a branch or tag, is none that this can hold.
            NotFound: there is no repository of Icechunk at the source.
            Unsupported: icechunk is not installed, or is version 1, which does not say where chunks lie.
            Corruption: the index of a shard is damaged.
            StorageError: a request failed, or icechunk did. After all errors but the next there is no repository.
            WriteOutcomeUnknown: an answer was lost, so the repository may be there or not: ask ``Repository.exists``.
        """
        from shardstore.adapters.versioned.icechunk_import import chunks_of_source, import_history  # needs what few programs do

        check_flags(copy=copy)
        if source_options is not None and not isinstance(source_options, Mapping):
            raise InvalidInput(f"source_options are a mapping from names to values, not of type {type(source_options).__name__}")
        source_options = options_of_another(source, source_options, url, options.get("storage_options"))
        repository, place = chunks_of_source(source, source_options, source_url, copy=copy)
        options["virtual_prefixes"] = _with_place(options.get("virtual_prefixes", ()), place)
        if place is not None and source_options:  # the same for its chunk files, unless options for them are given
            options["virtual_options"] = {place.partition("://")[0]: source_options, **(options.get("virtual_options") or {})}
        made = cls(RepositoryOptions(url, **options))
        with reported(progress, step_of("snapshots")) as say:
            import_history(made._opened, repository, place, say)
        return made

    def destroy(self, *, yes: bool = False) -> None:
        """Remove the repository, with all snapshots and chunks, if ``yes``. Virtual files stay.

        Raises:
            InvalidInput: ``yes`` is false.
            NotFound: there is no repository.
        """
        if not yes:
            raise InvalidInput(f"this removes all snapshots and chunks of {self.url}, for ever: give yes=True to do it")
        run_sync(self._store.destroy())

    def __reduce__(self) -> tuple[type[Repository], tuple[RepositoryOptions]]:
        return type(self), (self._opened.options,)

    def __repr__(self) -> str:
        return f"Repository({self.url!r})"

    @property
    def url(self) -> str:
        """The URL of its files, without credentials."""
        return self._store.url

    @property
    def virtual_prefixes(self) -> Sequence[str]:
        """The URLs below which virtual references may lead."""
        return tuple(self._opened.options.virtual_prefixes)

    def _now(self) -> CurrentState:
        return run_sync(self._store.now())

    # -- sessions ------------------------------------------------------------------------------------------------------

    def writable_session(self, branch: str = FIRST_BRANCH, *, isolation: Isolation = "snapshot") -> Session:
        """Return a session on the tip of a branch, whose changes no other session sees before they are committed.

        ``isolation`` says what a later rebase compares with newer commits: ``"snapshot"``: what this session has written;
        ``"serializable"``: also what it has read, so that all sessions together do what they would have done one after the other; then
        ``on_chunk_conflict="theirs"`` solves nothing.

        Raises:
            NotFound: there is no such branch.
        """
        if isolation not in ("snapshot", "serializable"):
            raise InvalidInput(f"isolation {isolation!r} is neither 'snapshot' nor 'serializable'")
        current, tip = run_sync(self._store.opened(lambda state: state.snapshots[state.ref(branch, "branch").snapshot]))
        return Session(self._opened, current, tip, branch=branch, serializable=isolation == "serializable")

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
        current, snapshot = run_sync(self._store.opened(lambda state: named_snapshot(state, branch, tag, snapshot_id, as_of)))
        return Session(self._opened, current, snapshot)

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

        If nothing has changed, there is no commit. Raises what ``Session.commit`` raises.
        """
        check_said(message, metadata)
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
        return map(SnapshotInfo.of, state.ancestry(named_snapshot(state, branch, tag, snapshot_id, None).id))

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """Return what is known of a snapshot. Raises ``NotFound``."""
        return SnapshotInfo.of(snapshot_by_id(self._now().state, snapshot_id))

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
        """Delete a tag. The name can be given again. Raises ``NotFound``."""
        run_sync(self._store.delete_ref(tag, "tag"))

    def reset_branch(self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None) -> None:
        """Let a branch point to another snapshot; what it pointed to stays, and can be found by its id.

        Raises:
            NotFound: there is no such branch or snapshot.
            Conflict: ``from_snapshot_id`` is given, and the branch points elsewhere.
        """
        run_sync(self._store.reset_branch(branch, snapshot_id, from_snapshot_id))

    # -- upkeep --------------------------------------------------------------------------------------------------------

    def expire_snapshots(
        self,
        older_than: datetime | Duration,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
        dry_run: bool = False,
    ) -> Expired:
        """Leave out of the history all snapshots that are older and to which no branch or tag points; return what was left out.

        One swap, and no file is touched: ``garbage_collect`` removes later what then nothing needs. The time of a snapshot is that of the
        clock of its writer. What follows a snapshot that is gone follows the nearest ancestor that is left.

        Args:
            older_than: a time with its time zone, or a duration before now, such as ``"30d"`` or a ``timedelta``.
            delete_expired_branches: delete branches whose snapshot is older, but for ``main``, and let their snapshots expire.
            delete_expired_tags: delete tags whose snapshot is older, and let their snapshots expire.
            dry_run: only return what would be left out.

        Raises:
            InvalidInput: ``older_than`` has no time zone, or is neither a time nor a duration.
        """
        check_flags(delete_expired_branches=delete_expired_branches, delete_expired_tags=delete_expired_tags, dry_run=dry_run)
        before = milliseconds("older_than", older_than if isinstance(older_than, datetime) else time_before("older_than", older_than))
        return run_sync(expire(self._store, before, branches=delete_expired_branches, tags=delete_expired_tags, dry_run=dry_run))

    def garbage_collect(self, grace: Duration = GRACE, *, dry_run: bool = False, progress: Progress | bool | None = None) -> Collected:
        """Remove the files that no snapshot has needed for as long as ``grace``; return how many.

        The time counts from the collection that first found that nothing needs a file any more; while a snapshot needed it does not
        count, though an earlier collection may have found it before. So a first collection removes nothing, unless ``grace`` is zero, and
        readers of snapshots that have expired, and sessions that have not committed, are left in peace for so long.
        Commits may run concurrently, whatever their clocks say. A session that was opened before files were removed, and has stored some
        that are among them, cannot be committed any more, and says so. If a collection was interrupted, the next one ends it.

        Args:
            grace: such as ``"7d"``, the default, or a ``timedelta``. Longer than the longest session, and the longest work on a
                snapshot that may expire.
            dry_run: only return what would be removed.
            progress: called with (what, how much is done, how much it is in all or ``None``); or ``True``: it is shown on stderr.

        Raises:
            InvalidInput: ``grace`` is no time, or is negative.
            Corruption: a file that a snapshot needs is missing or damaged. Nothing was removed, but what an interrupted one had left.
        """
        check_flags(dry_run=dry_run)
        milliseconds = int(timedelta_of("grace", grace).total_seconds() * 1000)
        with reported(progress, step_of("files")) as say:
            return run_sync(collect(self._store, milliseconds, say, dry_run=dry_run))

    def rewrite_manifests(self, message: str = "Manifests rewritten", *, branch: str = FIRST_BRANCH, dry_run: bool = False) -> str | None:
        """Make the manifests of each array one, as a commit; return its id, or ``None`` if each is one already.

        With ``dry_run`` nothing is changed, and where something would be, the id of the branch's snapshot is returned.

        Commits merge manifests by themselves when they have become many. This does it at once: reading becomes as fast as it can be, and
        when the snapshots before have expired, a collection can remove the chunks that were overwritten. No chunk is read.

        Raises:
            NotFound: there is no such branch.
            ConflictError: the branch was reset since.
        """
        request = CommitRequest(message, merges_all=True, keeps_values=True)
        session = self.writable_session(branch)
        if all(len(node.manifests) < 2 for node in session._core.nodes.values()):
            return None
        if dry_run:
            return session.snapshot_id
        return self._commit_upkeep(session, request)

    def repack(
        self,
        message: str = "Chunks repacked",
        *,
        branch: str = FIRST_BRANCH,
        dry_run: bool = False,
        progress: Progress | bool | None = None,
    ) -> tuple[str | None, Repacked]:
        """Put the chunks together that several commits have written into one cell of an array, as a commit by differences.

        Returns the id of the snapshot, ``None`` if there was nothing to do, and how many cells, chunks and bytes were written; with
        ``dry_run`` they are counted only. The bytes of chunks stay unchanged, and virtual chunks where they are. It contradicts no other
        session, and a chunk that another session commits concurrently counts.

        Raises:
            NotFound: there is no such branch.
            Corruption: a chunk cannot be read. Nothing is changed.
            ConflictError: an array was resized or deleted since, or the branch was reset: do it again.
        """
        request = CommitRequest(message, keeps_values=True)
        session = self.writable_session(branch)
        with reported(progress, step_of("files")) as say:
            done = run_sync(repack(session._core, session.storage, say, dry_run=dry_run))
        if not done.cells or dry_run:
            return None, done
        return self._commit_upkeep(session, request), done

    def stats(self, progress: Progress | bool | None = None) -> StoreStats:
        """Return how much the repository has: snapshots, files and bytes, and what of them no snapshot needs.

        Lists all files, and reads the structures and manifests of all snapshots.

        Raises:
            Corruption: one of them is missing or damaged.
        """
        with reported(progress, step_of("files")) as say:
            return run_sync(stats(self._store, say))

    def verify(self, progress: Progress | bool | None = None) -> Checked:
        """Check that each file that a snapshot needs is there and is what it should be, and that all references lie inside of their files.

        Structures, manifests and attributes are read and their checksums compared; chunk files are listed. The bytes of chunks are not
        read: ``shardstore verify URL@REF --deep`` does that for one snapshot. Files elsewhere, to which virtual references lead, are not
        looked at: ``shardstore verify URL@REF`` does that.
        """
        with reported(progress, step_of("files")) as say:
            return run_sync(check(self._store, say))

    def pins(self, store: Any, *, storage_options: Mapping[str, Any] | None = None, progress: Progress | bool | None = None) -> list[Pin]:
        """Return the objects of another store to which any snapshot refers by virtual references, for ``compact``, ``repair`` and ``pack``
        there, which leave these unchanged; where the version of an object is known, in that version.

        Args:
            store: what ``shardstore.open`` takes, such as the hierarchy that was adopted.
            storage_options: of the store, by default the repository's own, if both are on one protocol.
            progress: called with (what, how much is done, how much it is in all or ``None``); or ``True``: it is shown on stderr.

        Raises:
            InvalidInput: no snapshot refers to anything in the store.
            Corruption: a structure or manifest is missing or damaged.
            StorageError: the store cannot be asked which format it has.
        """
        from shardstore.references.keeping import pins_by_url  # needs what few programs do

        opened = open_storage(store, self._opened.options.options_of(store, storage_options))
        with reported(progress, step_of("files")) as say:
            found = pins_by_url(run_sync(virtual_files(self._store, say)), opened)
        if not found:
            raise InvalidInput(f"no snapshot of {self.url} refers to anything in {store}: name the store that virtual references lead to")
        return found

    def export_zarr(
        self,
        target: Any,
        ref: str = FIRST_BRANCH,
        *,
        check: bool = True,
        checked: Callable[[int, int, int | None], None] | bool | None = None,
        **options: Any,
    ) -> PackReport:
        """Write one snapshot as an ordinary sharded hierarchy, which needs nothing of this repository; return what ``pack`` returns.

        Chunk files that are shards of the target as they stand are copied by the server, or the kernel, where the target is on the same
        one; other chunks are packed. What is there in the end is compared with the snapshot, chunk by chunk.

        Args:
            target: as of ``shardstore.pack``. After an interruption the same call goes on.
            ref: a branch, a tag or the id of a snapshot.
            check: compare the result with the snapshot.
            checked: called with the numbers of objects and bytes that were compared, and of how many objects; or ``True``: it is shown.
            options: those of ``pack`` that concern a target; ``chunks_per_shard`` is by default what this repository was opened with as
                ``pack``, so that its chunk files are shards, and ``target_options`` the repository's ``storage_options``, if both are on
                one protocol.

        Raises:
            NotFound: there is no such branch, tag or snapshot.
            Corruption: the result differs from the snapshot. Consolidated metadata that are stale in both are noted in the report.
            StorageError: the result could not be read again.
            ShardStoreError: as ``pack`` does.
        """
        # These need what not every program does.
        from shardstore.adapters.tools.verification import verify
        from shardstore.maintenance.packing.pack import pack

        check_flags(check=check)
        session = self.readonly_session(snapshot_id=self.lookup(ref))
        options.setdefault("chunks_per_shard", self._opened.options.pack)
        options["target_options"] = self._opened.options.options_of(target, options.get("target_options"))
        report = pack(session.storage, target, **options)
        if not check or report.dry_run or not report.complete:
            return report
        found = verify(target, against=session.storage, storage_options=options["target_options"], progress=checked)
        differing = [one for one in found.findings if one.severity == "error" and one.kind != "stale-consolidated"]
        if differing:
            first = differing[0]
            raise Corruption(
                f"what was exported to {report.target} differs from snapshot {session.snapshot_id}: {first.key or first.path}: {first.what}"
            )
        if found.unread:
            raise found.unread[0].error
        if found.errors:
            stale = found.findings[0]
            return replace(report, notes=(*report.notes, f"stale, as in the snapshot: {stale.what}; {stale.remedy}"))
        return report

    def export_icechunk(
        self,
        target: Any,
        config: Any = None,
        *,
        target_options: Mapping[str, Any] | None = None,
        progress: Progress | bool | None = None,
        dry_run: bool = False,
    ) -> IcechunkExport:
        """Write the whole history into a new repository of Icechunk, 1.1 or 2, without copying a chunk.

        Every snapshot becomes a commit with its message and metadata; Icechunk gives it an id and a time of its own, and the metadata has
        ours: ``shardstore.snapshot``, ``shardstore.parent`` and ``shardstore.written_at``. Branches and tags are made last: an export that
        was interrupted shows an empty ``main``. Chunks become virtual references into the chunk files of this repository; those that lie in
        manifests are stored in the target. Chunk files never change, so the references have no checksums; those to files elsewhere have
        what is known of them here. As long as the target is used, nothing here may be collected that it shows. Numbers in the metadata of
        commits and in attributes that are not finite, or have more than 64 bits, become texts, since Icechunk cannot hold them.

        Args:
            target: a folder, a URL of S3 or Google Cloud Storage, or an ``icechunk.Storage``. Nothing may be there.
            config: an ``icechunk.RepositoryConfig`` for the new repository; a copy gets the virtual chunk containers that it lacks, for the
                chunk files and for the ``virtual_prefixes`` with which this repository was opened. Give one for containers with options
                of Icechunk's own.
            target_options: of a URL, as fsspec has them: ``key``, ``secret``, ``endpoint_url``; by default the repository's
                ``storage_options``, if both are on one protocol.
            progress: called with (what, how much is done, how much it is in all); or ``True``: it is shown on stderr.
            dry_run: check what can be checked, and write nothing: the snapshots of what is returned have no ids there.

        Raises:
            InvalidInput: there is something at the target, Icechunk cannot read the files, or takes no such name of a branch or tag.
            Unsupported: icechunk is not installed.
            Corruption: a structure or manifest is missing or damaged.
            StorageError: icechunk failed. After all errors but the first the target holds a part: remove it, and begin again.
        """
        from shardstore.adapters.versioned.icechunk_export import export  # needs what few programs do

        check_flags(dry_run=dry_run)
        if target_options is not None and not isinstance(target_options, Mapping):
            raise InvalidInput(f"target_options are a mapping from names to values, not of type {type(target_options).__name__}")
        target_options = self._opened.options.options_of(target, target_options)
        with reported(progress, step_of("snapshots")) as say:
            return export(self._opened, target, config, target_options, say, dry_run=dry_run)

    def _commit_upkeep(self, session: Session, request: CommitRequest) -> str:
        solver = BasicConflictSolver(on_chunk_conflict="theirs")
        return run_sync(self._store.commit(session._core, session._current, replace(request, solver=solver, tries=COMMIT_TRIES)))


def _with_place(prefixes: Sequence[str], place: str | None) -> Sequence[str]:
    """Return virtual prefixes, and a place behind them if it is not among them. Raises ``InvalidInput`` if they are none."""
    check_prefixes(prefixes)
    return prefixes if place is None or place in prefixes else [*prefixes, place]


def refs_of(repository: Repository, seconds: float) -> list[tuple[str, str, SnapshotInfo]]:
    """Return all branches, then all tags, of one state: kind, name, snapshot. Raises ``TimeoutError`` if reading takes so many seconds."""
    state = run_sync(asyncio.wait_for(repository._store.now(), seconds)).state
    return sorted(
        ((ref.type, name, SnapshotInfo.of(state.snapshots[ref.snapshot])) for name, ref in state.refs.items()), key=itemgetter(0, 1)
    )
