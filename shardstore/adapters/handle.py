"""The handle that each face holds: the recipe of an engine, and the engine of this process. And the bases of the faces, and the values that
faces give and get in batches.

Faces on the same target with the same options share one engine, and so see each other's writes and caches. A handle
travels by its recipe: pickled, or into a forked child, it makes an engine again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypedDict
from weakref import WeakValueDictionary

import numpy as np
from fsspec.registry import known_implementations

from shardstore._sync import as_known, run_sync
from shardstore.engine.actions import Action
from shardstore.engine.engine import Engine
from shardstore.engine.metadata.hierarchy import HierarchyRegistry, Node
from shardstore.engine.options import EngineOptions, Flavour, Present, Stored, StrategyName
from shardstore.engine.reading.shard_chunks import Value
from shardstore.errors import InvalidInput, NotFound, ReadOnly, Unsupported
from shardstore.format.presentation import PresentLevel
from shardstore.format.shard_index import IndexLocation
from shardstore.model.advice import storage_option
from shardstore.model.chunk_orders import ChunkOrder
from shardstore.model.durations import Duration, seconds_of
from shardstore.model.options import COUNTED_IN_CHUNKS, check_flags, defaults_of, unknown_option, with_options
from shardstore.model.redaction import redacted
from shardstore.model.showing import ShownInNotebooks
from shardstore.opening.address import is_known, links_of_url, protocols_of_links, text_of
from shardstore.opening.open import as_said, check_static, open_storage
from shardstore.opening.options import how_to_give
from shardstore.opening.snapshot_place import SnapshotPlace
from shardstore.opening.snapshot_urls import may_name_snapshot, named_snapshot
from shardstore.opening.transports import Transport, carried_by
from shardstore.plan.commits import Strategy
from shardstore.plan.policy import ShardingPolicy
from shardstore.presented.engine_storage import EngineStorage
from shardstore.presented.flavours import Presented, flavour_of, presented
from shardstore.storage.abilities import HasIdentity, PinsRevision
from shardstore.storage.base import Storage
from shardstore.storage.known_references import KnowsReferences
from shardstore.storage.local.rules import Locks
from shardstore.storage.python_stores import WITHOUT_VERSIONS, underlying_storage
from shardstore.storage.wrappers import Counters as Counters
from shardstore.storage.wrappers import unreachable

logger = logging.getLogger(__name__)

_lock = threading.RLock()  # the engine below another is made while that one is
_engines: WeakValueDictionary[str, Presented] = WeakValueDictionary()
_siblings: dict[str, HierarchyRegistry] = {}  # by kind of storage
_fork_count = 0

_FILE_OPTIONS = ("fsync", "locks", "transport")  # options that concern no snapshot, but the storage that it is in

_LOOPS = ("asynchronous", "loop")  # of a filesystem: every engine runs on fsspec's IO loop


# -- options, by name and type: a type checker knows what ``shardstore.open`` takes; what values mean, ``EngineOptions`` says ----------


PresentOption: TypeAlias = Present | Flavour
"""What clients see: the name of a flavour, or a flavour."""

ChunksPerShard: TypeAlias = ShardingPolicy
"""Which arrays are sharded when they are created, and how."""


class StoreOptions(TypedDict, total=False):
    """The options of a store that every face takes; ``shardstore.open`` describes them. Sizes in bytes."""

    chunks_per_shard: ChunksPerShard
    stored: Stored
    present: PresentOption
    strategy: StrategyName | Strategy
    index_location: IndexLocation | None
    index_checksum: bool
    chunk_order: ChunkOrder
    present_level: PresentLevel
    lost_transformers: Mapping[str, tuple[int, ...]]
    metadata_ttl: Duration
    require_atomic: bool
    max_dead_fraction: float
    max_memory: int
    commit_concurrency: int
    commit_attempts: int
    copy_window_bytes: int
    fsync: bool
    locks: Locks
    index_cache_bytes: int
    gap_bytes: int | None
    first_bytes: int | None
    request_bytes: int
    static: bool | None
    transport: Transport
    kernel: bool


_OPEN_ARGUMENTS = StoreOptions.__annotations__.keys() | {"read_only", "storage_options"}
_NO_STORAGE_OPTIONS = (_OPEN_ARGUMENTS | {"mode"}) - {"transport", "static"}  # which may be among those of the filesystem


_OF_ZARR = {
    "mode": "did you mean read_only=True? Modes such as 'w' are for zarr: zarr.open_group(store, mode='w')",
    "shards": COUNTED_IN_CHUNKS,
}


def _remedy(target: Any, name: str) -> str | None:
    """Return what to do about an option that ``shardstore.open`` does not have, and zarr or the filesystem has."""
    if name in _OF_ZARR:
        return _OF_ZARR[name]
    given = how_to_give(target, name)
    return None if given is None else f"it belongs to the filesystem: give {given}"


def _check_storage_options(target: Any, given: Any) -> None:
    """Raise ``InvalidInput`` if it is no dictionary, or holds what ``shardstore.open`` takes itself."""
    if given is None:
        return
    if not isinstance(given, dict):
        raise InvalidInput(
            f"storage_options is a {type(given).__name__}, not a dictionary: give it as {storage_option('s3', 'anon', True)}"
        )
    of_links = (value for protocol, value in given.items() if is_known(str(protocol)) and isinstance(value, Mapping))
    for name in sorted({name for of_link in (given, *of_links) for name in of_link} & _NO_STORAGE_OPTIONS):
        if how_to_give(target, name) is None:
            how = _OF_ZARR.get(name, f"it is an argument of its own: shardstore.open(URL, {name}=…)")
            raise InvalidInput(f"{name!r} is not a storage option: {how}")


# -- the engines of this process ---------------------------------------------------------------------------------------


def _after_fork() -> None:
    """Forget all engines: they hold futures and locks of the parent's event loop, which does not run in the child."""
    global _lock, _engines, _siblings, _fork_count
    _lock = threading.RLock()
    _engines = WeakValueDictionary()
    _siblings = {}
    _fork_count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True, repr=False)
class Recipe:
    """The place of a store and the options to open it. A pickle carries these and the arrays already known.

    So a pickle has the options of the filesystem, and a user and password in the URL. ``repr`` shows neither.
    """

    target: Any
    storage_options: dict[str, Any] | None
    options: EngineOptions
    fsync: bool = True
    locks: Locks = "auto"
    transport: Transport = "auto"
    static: bool | None = None

    def __repr__(self) -> str:  # shown in tracebacks and by task schedulers: no secrets
        return f"Recipe({redacted(self.target)!r})" if isinstance(self.target, str) else f"Recipe(<{type(self.target).__name__}>)"

    def identity(self, storage: Storage) -> str | None:
        """Return a text that is equal for recipes that may share an engine; ``None`` if the target is an object of the caller."""
        if isinstance(self.target, SnapshotPlace):
            name = self.target.name
            of_files = replace(self, target=name.target, storage_options=name.storage_options, transport=name.transport)
            snapshot = storage.ability(KnowsReferences)
            return f"{self.target.url} {self.target.pinned} {of_files.identity(storage if snapshot is None else snapshot.stored_in)}"
        options: object = _canonical(_flattened(self.storage_options or {}))
        if isinstance(self.target, tuple):
            options = type(self.target[0]), _canonical({k: v for k, v in self.target[0].storage_options.items() if k not in _LOOPS})
        elif not isinstance(self.target, str):
            return None
        # Two roots can look alike without their credentials, queries and the like.
        known = storage.ability(HasIdentity)
        place = (storage.url, "") if known is None else (known.identity, known.content)
        return repr((storage.kind, *place, options, self.options, self.fsync, self.locks, self.transport, self.static))


takes_store_options = with_options(StoreOptions, defaults_of(EngineOptions) | defaults_of(Recipe) | {"present": "v3", "metadata_ttl": "1s"})
"""Decorates what takes ``**options: Unpack[StoreOptions]``: its signature names them all."""


def _flattened(options: dict[str, Any]) -> dict[str, Any]:
    """Return options without nesting: fsspec also takes the options of a link by its protocol, with the same meaning."""
    flat = {name: value for name, value in options.items() if not (name in known_implementations and isinstance(value, dict))}
    for name in options.keys() - flat.keys():
        flat.update(options[name])
    return flat


def _canonical(value: Any) -> Any:
    return sorted((str(k), _canonical(v)) for k, v in value.items()) if isinstance(value, dict) else value


def _absolute(target: Any) -> Any:
    """Return a local path as an absolute one: a change of directory, or a pickle, must not lead it elsewhere."""
    if isinstance(target, os.PathLike):
        return text_of(target)
    if isinstance(target, str) and target and protocols_of_links(links_of_url(target)) == [""]:
        return os.path.abspath(os.path.expanduser(target))
    return target


def _below(storage: Storage, options: EngineOptions) -> Callable[[Engine], Storage] | None:
    """Return how an engine is shown as the storage below another one; ``None`` if it cannot be.

    Raises:
        Unsupported: several levels of sharding are asked for, and chunks have no versions.
    """
    if storage.kind != WITHOUT_VERSIONS:
        return EngineStorage
    if options.present_level == 1:
        return None
    raise Unsupported(
        f"present_level={options.present_level!r} does not work on {storage.url}: this storage has no object versions. Wrap "
        "one ShardingTransformer in another"
    )


class Handle:
    """A recipe, and the engine that is made from it in this process."""

    def __init__(self, recipe: Recipe, nodes: list[Node] | None = None) -> None:
        self.recipe = recipe
        self._nodes = nodes or []
        self._engine: Presented | None = None
        self._identity: str | None = None
        self._made_in = -1

    @classmethod
    def make(cls, target: Any, storage_options: dict[str, Any] | None, given: Mapping[str, Any]) -> Handle:
        """Check the options, and open the target.

        Raises:
            InvalidInput: an option is unknown or has an invalid value, or the target's protocol is unknown.
            Unsupported: a package that the storage needs is missing.
        """
        options = dict(given)
        fsync = options.pop("fsync", True)
        check_flags(fsync=fsync)
        locks = options.pop("locks", "auto")
        transport = options.pop("transport", "auto")
        static = check_static(options.pop("static", None))
        _check_storage_options(target, storage_options)
        if "metadata_ttl" in options:
            options["metadata_ttl"] = seconds_of("metadata_ttl", options["metadata_ttl"])
        options["present"] = flavour_of(options.pop("present", "v3"))
        if unknown := sorted(set(options) - StoreOptions.__annotations__.keys()):
            raise unknown_option(unknown[0], _OPEN_ARGUMENTS, _remedy(target, unknown[0]))
        if isinstance(options.get("chunks_per_shard"), list):
            options["chunks_per_shard"] = tuple(options["chunks_per_shard"])
        handle = cls(Recipe(_absolute(target), storage_options, EngineOptions(**options), fsync, locks, transport, static))
        handle._make()  # a target that cannot be opened is an error now, not at the first read
        return handle

    @classmethod
    def find(cls, target: Any, storage_options: dict[str, Any] | None, given: Mapping[str, Any]) -> Handle:
        """Do as ``make`` does; the target may name a snapshot of a versioned store too. Called from any thread but the IO loop's.

        Raises:
            NotFound, StorageError, Unsupported: as ``named_snapshot`` does.
        """
        handle = cls.make(target, storage_options, given)
        if not may_name_snapshot(target):
            return handle
        place = run_sync(named_snapshot(target, storage_options, transport=handle.recipe.transport))
        return handle if place is None else cls.of_snapshot(place.below(place.path), given)

    @classmethod
    def of_snapshot(cls, place: SnapshotPlace, given: Mapping[str, Any]) -> Handle:
        """Return the handle of a snapshot, with options that ``make`` has checked. Makes no request."""
        return cls.make(place, None, {name: value for name, value in given.items() if name not in _FILE_OPTIONS})

    @property
    def snapshot(self) -> SnapshotPlace | None:
        """The snapshot of a versioned store that this shows; ``None`` if it shows another place."""
        return self.recipe.target if isinstance(self.recipe.target, SnapshotPlace) else None

    @property
    def engine(self) -> Presented:
        """The engine of this process."""
        if self._engine is None or self._made_in != _fork_count:
            try:
                return self._make()
            except NotFound as exc:  # of a key it would say that it is absent
                raise unreachable("opening the store again, in another process,", exc) from exc
        return self._engine

    def _make(self) -> Presented:
        with _lock:
            self._engine = self._find()
            self._made_in = _fork_count
        return self._engine

    def _find(self) -> Presented:
        recipe = self.recipe
        below = underlying_storage(recipe.target)
        if below is not None:
            storage = as_said(recipe.static, carried_by(recipe.transport, below))
        else:
            storage = open_storage(
                recipe.target,
                recipe.storage_options,
                fsync=recipe.fsync,
                locks=recipe.locks,
                transport=recipe.transport,
                static=recipe.static,
            )
        if (pins := storage.ability(PinsRevision)) is not None:
            self.recipe = replace(recipe, target=pins.pinned(recipe.target))
        self._identity = self.recipe.identity(storage)
        engine = _engines.get(self._identity) if self._identity is not None else None
        if engine is None:
            engine = presented(Engine(storage, recipe.options, below=_below(storage, recipe.options)))
            engine.hierarchy.join(_siblings.setdefault(storage.kind, HierarchyRegistry()), storage.url)
            if self._identity is not None:
                _engines[self._identity] = engine
        engine.hierarchy.restore(self._nodes)
        return engine

    @property
    def url(self) -> str:
        return self.engine.storage.url

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Handle):
            return NotImplemented
        if self.engine is other.engine:
            return True
        mine, theirs = self.recipe, other.recipe
        # Objects of the caller's that stand for the same place, such as an unpickled storage.
        alike = self._identity is None and other._identity is None and type(mine.target) is type(theirs.target)
        return alike and self.url == other.url and mine.options == theirs.options

    def __hash__(self) -> int:
        return hash(self.url)

    def __getstate__(self) -> dict[str, Any]:
        return {"recipe": self.recipe, "nodes": self.engine.hierarchy.export()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Handle.__init__(self, state["recipe"], state["nodes"])

    def begin(self) -> None:
        run_sync(self.engine.begin())

    def commit(self) -> None:
        run_sync(self.engine.commit())

    def rollback(self) -> int:
        return run_sync(self.engine.rollback())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold back writes until the block ends, then commit them: one commit a shard, chunks before metadata.

        Writes of all threads of this process take part, through every face on the same place that was opened with the same options. An
        exception inside the block discards everything, and a note says how much. An error of the commit itself says what had been stored.
        """
        self.begin()
        try:
            yield
        except BaseException as exc:
            discarded = self.rollback()
            exc.add_note(f"the transaction on {self.url} was rolled back: {discarded} held-back keys were discarded, nothing was stored")
            logger.info("transaction on %s rolled back, %d keys discarded", self.url, discarded)
            raise
        self.commit()


class Face(ShownInNotebooks):
    """Base of the faces to which zarr can hand whole selections and assignments, without knowing their classes."""

    _shown_by = "shardstore.apps.reports.reporting"

    @property
    def engine(self) -> Presented:
        """The engine of this process; its coroutines run on fsspec's IO loop only."""
        raise NotImplementedError

    @property
    def uses_pipeline(self) -> bool:
        """True if whole selections and assignments go to the engine."""
        raise NotImplementedError


class FilesystemFace(Face):
    """Base of a filesystem over an engine, whose paths are not keys."""

    def key_of(self, path: str) -> str:
        """Return the presented key that a path names; ``""`` for the root."""
        raise NotImplementedError

    async def find_root(self) -> None:
        """Find out where the hierarchy begins."""
        raise NotImplementedError

    def check_writable(self) -> None:
        """Raise ``ReadOnly`` if this instance may not write."""
        raise NotImplementedError


class StoreFace(Face):
    """Base of the stores over an engine, whose keys are presented keys."""

    _handle: Handle
    _read_only: bool
    _uses_pipeline = False

    @property
    def engine(self) -> Presented:
        """The engine of this process; its coroutines run on fsspec's IO loop only."""
        return self._handle.engine

    @property
    def uses_pipeline(self) -> bool:
        """True if whole selections and assignments go to the engine."""
        return self._uses_pipeline

    @property
    def counters(self) -> Counters:
        """The counters of the engine: requests, bytes, commits, conflicts, index hits."""
        return self.engine.counters

    @property
    def url(self) -> str:
        """The URL of the store, without credentials."""
        return self._handle.url

    @property
    def read_only(self) -> bool:
        """True if every write is refused."""
        return self._read_only

    def transaction(self) -> AbstractContextManager[None]:
        """Hold back writes until the block ends, then commit them: one commit a shard, chunks before metadata.

        They can be read in this process until then. An exception discards what was not committed.
        """
        self._check_writable()
        return self._handle.transaction()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self._handle == other._handle and self._read_only == other._read_only

    def __hash__(self) -> int:
        return hash(self._handle)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _check_writable(self) -> None:
        if self._read_only:
            raise ReadOnly(f"{self.url} was opened read-only: open it with read_only=False to write")


class SynchronousFace(StoreFace):
    """Base of the stores that are called without an event loop."""

    def list_prefix(self, prefix: str) -> list[str]:
        """Return all keys that start with ``prefix``, sorted; one request a shard plus the listing."""
        return run_sync(self._keys(prefix))

    async def _keys(self, prefix: str) -> list[str]:
        return sorted([key async for batch in self.engine.list_batches(prefix) for key in batch.keys])

    def _update(self, updates: Sequence[tuple[str, Action]]) -> None:
        self._check_writable()
        raise_failed(run_sync(self.engine.update_many(updates)))


# -- values of a batch: the bytes that callers give or get, and the error that they get ----------------------------------------------


def given_bytes(value: object, key: object) -> bytes:
    """Return the bytes of a value for ``key``, as they lie in memory: zarr-python 2 hands on chunks of order F as arrays of order F.

    Numbers and lists are refused: ``bytes`` would make zeros or small bytes of them.

    Raises:
        InvalidInput: the value is not bytes, nor anything that gives its memory as such.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.tobytes("A")  # times give no buffer
    try:
        return memoryview(value).tobytes("A")  # type: ignore[arg-type]  # whether it is a buffer is what is asked
    except (TypeError, ValueError) as exc:
        raise InvalidInput(f"the value for {key!r} is not bytes but {type(value).__name__}: encode it first") from exc


def values_of(outcomes: Iterable[Value]) -> list[memoryview | None]:
    """Return the values of a batch of reads, or raise the first error."""
    values: list[memoryview | None] = []
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise as_known(outcome)
        values.append(outcome)
    return values


def raise_first(outcomes: Iterable[object]) -> None:
    """Raise the first outcome that is an error, if there is one."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise as_known(outcome)


def raise_failed(errors: Sequence[Exception | None]) -> None:
    """Raise the first error of a batch, if there is one, with a note that says how many keys failed."""
    failed = [error for error in errors if error is not None]
    if not failed:
        return
    if len(errors) > 1:
        failed[0].add_note(f"{len(failed)} of {len(errors)} keys of this batch failed, the rest are stored")
    raise as_known(failed[0])
