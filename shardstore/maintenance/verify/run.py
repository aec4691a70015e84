"""Verify that stored data are sound, to the last object.

It takes one listing, one request for each metadata document and one for the index of each shard; chunks are read where they have
checksums, or where they are to be decoded or compared. Nothing is written. Writes of other clients during the run may be looked at or not,
and are never reported as damage: see ``objects``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import InitVar, asdict, dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from shardstore._sync import as_known, run_sync
from shardstore.engine.engine import Engine
from shardstore.engine.metadata.hierarchy import Node
from shardstore.errors import Conflict, Corruption, InvalidInput, NotFound, ShardStoreError
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_faults import metadata_faults
from shardstore.format.metadata_v3 import sizes
from shardstore.format.store_keys import ancestors, groups_above, metadata_key
from shardstore.format.v2.documents import array_from_v2
from shardstore.format.v2.dtypes import NoCounterpart
from shardstore.format.v2.keys import ARRAY_NAME, CONSOLIDATED_NAME, GROUP_NAME
from shardstore.maintenance.census import Census, Unread
from shardstore.maintenance.execution import WHOLE, Execution, SharedStorage, work_on_objects
from shardstore.maintenance.nodes import ArrayPlan, SurveyedNodes, V2Document, is_stale_v2, read_v2
from shardstore.maintenance.verify.appends import record_findings
from shardstore.maintenance.verify.chunks import WINDOW_BYTES, Decoder
from shardstore.maintenance.verify.comparisons import CensusComparison, compare_with_copy
from shardstore.maintenance.verify.findings import ERRORS, Detectable, Fault, Finding, VerifyLevel, detectable
from shardstore.maintenance.verify.objects import ListedObject, Verified, VerifyTask, verify_objects
from shardstore.maintenance.walk import ListedDigests, Located, Walk, gathered
from shardstore.model.containers import batched
from shardstore.model.showing import ShownInNotebooks
from shardstore.storage.abilities import Leftover, ListsLeftovers
from shardstore.storage.base import ObjectInfo, in_its_place
from shardstore.storage.known_references import FileFault, KnowsReferences
from shardstore.stored.detect import is_draft
from shardstore.tasks import gather_all

_CONTRADICTING = frozenset({"zarr_format", "shape", "chunks", "order", "dimension_separator"})
_NUMBERS = re.compile(r"[<>|][biuf][0-9]+")  # types whose fill values are exact

_DOCUMENTS_AT_ONCE = 256


def document_faults(node: Node, document: JsonObject | None) -> list[Fault]:
    """Return the faults of a document of Zarr v3."""
    if document is None:
        return [Fault("not-json", node.reason)]
    return [Fault(fault.kind, fault.what) for fault in metadata_faults(document)]


class DocumentCheck:
    """A check that remembers what looks wrong, and looks again at the end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._doubtful: set[str] = set()  # paths of nodes of Zarr v3
        self.v2_keys: list[str] = []
        """The documents of Zarr v2 that were listed."""

    def see(self, node: Node, document: JsonObject | None) -> None:
        """Note a node of Zarr v3 that was read."""
        if document_faults(node, document):
            self._doubtful.add(node.path)

    async def findings(self, nodes: SurveyedNodes, path: str) -> list[Finding]:
        """Return what is still wrong at and below ``path``, now that ``nodes`` have been read.
        Raises ``StorageError`` if a request failed.
        """
        found = [finding async for finding in self._v3_findings(nodes, path)]
        arrays = dict.fromkeys(record.node.path for record in nodes.records(path) if record.is_array)
        for array in arrays:  # no reader looks for arrays inside of arrays
            if (above := next((above for above in groups_above(array) if above in arrays), None)) is not None:
                what = f"it lies inside the array {above or '/'!r}: arrays hold no nodes"
                found.append(Finding("contradiction", array, metadata_key(array), what))
        found += await self._stale(nodes, path)
        for keys in batched(self.v2_keys, _DOCUMENTS_AT_ONCE):
            for key, read in zip(keys, await read_v2(self._engine.storage, keys), strict=True):
                if read is None:
                    continue
                found += [fault.at(read.path, key) for fault in v2_faults(read)]
                if read.name == CONSOLIDATED_NAME and await is_stale_v2(self._engine.storage, key, self.v2_keys):
                    what = "the consolidated metadata differ from the documents that they repeat"
                    found.append(Finding("stale-consolidated", read.path, key, what))
        return found

    async def _v3_findings(self, nodes: SurveyedNodes, path: str) -> AsyncIterator[Finding]:
        inside = {record.node.path for record in nodes.records(path)}
        doubtful = sorted(self._doubtful & inside)
        seen: list[tuple[Node, JsonObject | None]] = []
        again = SurveyedNodes(self._engine, lambda node, document: seen.append((node, document)))
        await again.load(doubtful)
        for node, document in seen:
            for fault in document_faults(node, document):
                yield fault.at(node.path, metadata_key(node.path))

    async def _stale(self, nodes: SurveyedNodes, path: str) -> list[Finding]:
        """Return groups whose consolidated metadata differ from the documents of arrays; both are read again, since writers change both."""
        if not any(is_stale for _, _, is_stale in nodes.consolidated(path)):
            return []
        again = SurveyedNodes(self._engine)
        await again.load(record.node.path for record in nodes.records(path))
        what = "the consolidated metadata differ from the documents of the arrays, or lack some: readers that trust them see something else"
        return [
            Finding("stale-consolidated", group, metadata_key(group), what) for group, _, is_stale in again.consolidated(path) if is_stale
        ]


def v2_faults(read: V2Document) -> list[Fault]:
    """Return what is wrong with one document by itself."""
    if read.document is None:
        return [Fault("not-json", read.reason)]
    if read.name == GROUP_NAME and read.document.get("zarr_format") != 2:
        return [Fault("contradiction", f"zarr_format {read.document.get('zarr_format')!r} is not 2")]
    if read.name == CONSOLIDATED_NAME and not isinstance(read.document.get("metadata"), dict):
        return [Fault("contradiction", "it holds no object of documents")]
    return _array_faults(read.document) if read.name == ARRAY_NAME else []


def _array_faults(zarray: JsonObject) -> list[Fault]:
    shape = sizes(zarray.get("shape"), 0)
    if shape is not None and sizes(zarray.get("chunks"), 1, len(shape)) is None:
        return [Fault("contradiction", f"its chunks {zarray.get('chunks')!r} are not {len(shape)} positive sizes, one a dimension")]
    try:
        array_from_v2(zarray, None)
    except InvalidInput as exc:
        member = exc.__cause__.member if isinstance(exc.__cause__, NoCounterpart) else ""
        is_number = _NUMBERS.fullmatch(str(zarray.get("dtype"))) is not None
        is_wrong = member in _CONTRADICTING or (member == "fill_value" and is_number)
        return [Fault("contradiction" if is_wrong else "unknown", str(exc))]
    return []


# -- the run ----------------------------------------------------------------------------------------------------------


Progress = Callable[[int, int, int | None], None]
"""A function that is called with the numbers of objects and bytes looked at, and the total of objects (``None`` while they are listed)."""

_MOST_FINDINGS = 1000  # of errors, and of notes, that are listed; all are counted
_MOST_UNREAD = 100_000  # that are listed
_STATS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Copy:
    """Another copy of the verified hierarchy."""

    engine: Engine
    path: str = ""


@dataclass(frozen=True, slots=True)
class ArrayVerified:
    """One array whose objects can be identified, and the facts about it."""

    path: str
    objects: int
    """The number of objects that this part looked at."""
    chunks: int
    nbytes_read: int
    errors: int
    notes: int
    detectable: Detectable
    digest: str = field(compare=False)
    """The digest of the listed objects of the array, with versions where the storage gives them; see ``ListedDigests``."""


@dataclass(frozen=True, slots=True)
class VerifyReport(ShownInNotebooks):
    """The report: what was looked at, and what was found."""

    url: str
    path: str
    arrays: tuple[ArrayVerified, ...]
    findings: tuple[Finding, ...]
    """The findings: at most 1,000 errors, and as many notes; errors first, then in the order of paths and keys."""
    counts: dict[str, int]
    """The number of findings of each kind."""
    objects: int
    """The number of objects that were listed, including those of other parts."""
    nbytes_read: int
    unread: tuple[Unread, ...]
    """Objects that could not be read, so nothing is known of them. At most 100,000."""
    at: datetime
    """When the run began, in UTC."""
    is_whole: bool = True
    """True if it looked at all objects, not at those of a part, or at those that had failed."""

    def __repr__(self) -> str:
        return (
            f"<VerifyReport of {self.url!r}: {self.objects} objects, {self.errors} errors, {self.notes} notes, {len(self.unread)} unread>"
        )

    @property
    def errors(self) -> int:
        """The number of findings that are errors."""
        return sum(count for kind, count in self.counts.items() if kind in ERRORS)

    @property
    def notes(self) -> int:
        """The number of findings that are notes."""
        return sum(self.counts.values()) - self.errors

    @property
    def is_sound(self) -> bool:
        """True if everything could be looked at, and no error was found."""
        return not self.errors and not self.unread

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs; ``shardstore.report`` takes it too."""
        return {
            "url": self.url,
            "path": self.path,
            "at": self.at.isoformat(timespec="seconds"),
            "is_whole": self.is_whole,
            "errors": self.errors,
            "notes": self.notes,
            "counts": self.counts,
            "objects": self.objects,
            "nbytes_read": self.nbytes_read,
            "findings": [asdict(finding) | {"severity": finding.severity, "remedy": finding.remedy} for finding in self.findings],
            "unread": [{"key": unread.key, "error": str(unread.error)} for unread in self.unread],
            "arrays": [asdict(array) for array in self.arrays],
        }


def verify_engine(
    engine: Engine,
    path: str = "",
    *,
    execution: Execution | None = None,
    decoder: Decoder | None = None,
    census: Census | None = None,
    against: Copy | None = None,
    progress: Progress | None = None,
    shown: str | None = None,
) -> VerifyReport:
    """Verify everything at and below the node, or prefix, ``path``. Not to be called on the IO loop.

    With ``decoder`` every chunk is decoded by the function that it makes. With ``census`` the store is compared with its earlier state,
    and with ``against`` with another copy. ``shown`` is the name of the place in messages.

    Raises:
        NotFound: there is nothing at ``path``.
        StorageError: the listing failed, or a metadata document could not be read. Objects that cannot be read are reported.
    """
    return _Verification(engine, path, execution or Execution(), decoder, census, against, progress, shown).run()


@dataclass(slots=True)
class _Sums:
    """The sums for one array."""

    objects: int = 0
    chunks: int = 0
    nbytes_read: int = 0
    errors: int = 0
    notes: int = 0


@dataclass(eq=False)
class _Verification:
    """The state of one run."""

    engine: Engine
    path: InitVar[str]
    execution: Execution
    decoder: Decoder | None
    earlier: InitVar[Census | None]
    against: Copy | None
    progress: Progress | None
    shown: str | None

    def __post_init__(self, path: str, earlier: Census | None) -> None:
        self.documents = DocumentCheck(self.engine)
        self.walk = Walk(self.engine, path, self.documents.see)
        self.place = SharedStorage(self.engine.storage)
        self.census = None if earlier is None else CensusComparison(earlier, self.walk.path, self.execution)
        self.of_contents = earlier is not None and earlier.of_contents
        self.how = VerifyLevel(self.decoder is not None, self.against is not None, earlier is not None, self.of_contents)
        self._sums: dict[str, _Sums] = {}
        self._listed = ListedDigests()
        self._errors: list[Finding] = []
        self._notes: list[Finding] = []
        self._counts: Counter[str] = Counter()
        self._unread: dict[str, Unread] = {}
        self._strays: list[ObjectInfo] = []
        self._records: list[str] = []
        self._objects = 0
        self._done_objects = 0
        self._nbytes_read = 0
        self._began = datetime.now(UTC)

    def run(self) -> VerifyReport:
        left = run_sync(self._leftovers())
        work_on_objects(self.execution, verify_objects, self._tasks(), self._take, self._note_unread)
        self.walk.nodes.check_any(self.walk.path, self._objects, self.shown)
        for finding in run_sync(self.documents.findings(self.walk.nodes, self.walk.path)):
            if self.execution.takes(finding.key):
                self._add(finding)
        if self.census is not None:
            run_sync(self._compare_with(self.census))
        if self.against is not None:
            self._compare_with_copy(self.against)
        for key in self.execution.unmet():
            self._note_unread(key, NotFound(f"there is no object {key!r}"))
        for one in run_sync(self.walk.obstacles()):
            if self.execution.takes(one.key):
                self._note_unread(one.key, in_its_place(one.key, one.what))
        for key in self._records:
            for finding in run_sync(record_findings(self.engine, self.walk.nodes, key)):
                self._add(finding)
        run_sync(self._check_files())
        run_sync(self._confirm_strays())
        run_sync(self._confirm_leftovers(left))
        return self._report()

    def _add(self, finding: Finding) -> None:
        self._counts[finding.kind] += 1
        sums = self._sums.setdefault(finding.path, _Sums())
        is_error = finding.severity == "error"
        listed = self._errors if is_error else self._notes
        sums.errors += is_error
        sums.notes += not is_error
        if len(listed) < _MOST_FINDINGS:
            listed.append(finding)

    # -- objects of arrays ---------------------------------------------------------------------------------------------

    def _tasks(self) -> Iterator[VerifyTask]:
        mine = (located for located in self.walk.located() if self._is_to_verify(located))
        census, window = self.census, min(WINDOW_BYTES, self.execution.window_bytes)
        reads_everything = self.decoder is not None or self.of_contents
        for plan, some in gathered(mine, lambda plan: plan.coding.has_checksum or reads_everything):
            objects = tuple(
                ListedObject(one.coords, one.info.nbytes, None if census is None else census.expected(plan, one.coords)) for one in some
            )
            yield VerifyTask(self.execution.run, self.place, plan, objects, self.decoder, self.of_contents, window)

    def _is_to_verify(self, located: Located) -> bool:
        """Return whether it is an object of an array, and of this part; the rest is remembered with its role."""
        self._objects += 1
        key = located.info.key
        if located.plan is not None:
            self._listed.add(located.plan.path, located.info)
            return self.execution.takes(key, located.plan.path, located.plan.number(located.coords))
        if located.role == "v2-document":
            self.documents.v2_keys.append(key)
        elif located.role == "record" and self.execution.takes(key):
            self._records.append(key)
        elif located.role == "stray" and self.execution.takes(key):
            if len(self._strays) < _MOST_FINDINGS:
                self._strays.append(located.info)
            else:
                self._counts["stray"] += 1
        return False

    def _take(self, task: VerifyTask, verified: Verified, total: int | None) -> None:
        sums = self._sums.setdefault(task.plan.path, _Sums())
        sums.objects += verified.objects
        sums.chunks += verified.chunks
        sums.nbytes_read += verified.nbytes_read
        self._nbytes_read += verified.nbytes_read
        for finding in verified.findings:
            self._add(finding)
        if self.census is not None:
            for listed, digest in verified.changed:
                self._add(self.census.change(task.plan, listed, digest))
        for unread in verified.unread:
            self._note_unread(unread.key, unread.error)
        self._done_objects += len(task.objects)
        if self.progress is not None:
            self.progress(self._done_objects, self._nbytes_read, total)

    def _note_unread(self, key: str, error: ShardStoreError) -> None:
        if len(self._unread) < _MOST_UNREAD:
            self._unread.setdefault(key, Unread(key, as_known(error)))

    async def _compare_with(self, census: CensusComparison) -> None:
        """Report entries of the census that are missing here; they are looked for once more, since the listing is some time ago."""
        plans = self.walk.plans()
        for finding in census.layout_findings(plans):
            if self.execution.takes(finding.key):
                self._add(finding)
        unseen = census.unseen(plans)
        while some := list(islice(unseen, _STATS_AT_ONCE)):
            found = await gather_all(*(self.engine.storage.stat(plan.key(coords)) for plan, coords in some))
            for (plan, coords), info in zip(some, found, strict=True):
                if info is None:
                    self._add(Finding("missing", plan.path, plan.key(coords), "the census has such an object"))

    def _compare_with_copy(self, copy: Copy) -> None:
        def done(objects: int, nbytes: int) -> None:
            self._done_objects += objects
            self._nbytes_read += nbytes
            if self.progress is not None:
                self.progress(self._done_objects, self._nbytes_read, None)  # of both copies

        compare_with_copy(self.engine, self.walk.path, copy.engine, copy.path, self.execution, self._add, done, self._note_unread)

    async def _check_files(self) -> None:
        """Look at the files of a snapshot, of which no key is an object of its own."""
        storage = self.engine.storage.ability(KnowsReferences)
        if storage is None:
            return
        elsewhere: dict[str, list[FileFault]] = {}
        async for fault in storage.file_faults(self.walk.path):
            if not self.execution.takes(fault.file):
                continue
            if isinstance(fault.error, InvalidInput):
                elsewhere.setdefault(fault.path, []).append(fault)
            elif isinstance(fault.error, Corruption | Conflict):
                self._add(Finding("file", fault.path, fault.file, str(fault.error)))
            else:
                self._note_unread(fault.file, fault.error)
        for path, faults in elsewhere.items():
            more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
            self._add(Finding("not-checked", path, "", f"{faults[0].file}{more}: {faults[0].error}"))

    # -- what belongs to nothing -----------------------------------------------------------------------------------------

    async def _confirm_strays(self) -> None:
        """Report objects that still exist and still belong to nothing: a writer may have created their array since."""
        walk = Walk(self.engine, self.walk.path)
        for located in await walk.locate(self._strays):
            key = located.info.key
            if located.role == "stray" and await self.engine.storage.stat(key) is not None:
                above = [path for path, _ in ancestors(key) if walk.nodes.get(path) is not None]
                self._add(Finding("stray", above[-1] if above else "", key, f"{located.info.nbytes} bytes that belong to no node"))

    async def _leftovers(self) -> set[Leftover]:
        # Keys of a draft hierarchy are not those that its nodes are shown under.
        run_prefix = self.walk.prefix if not is_draft(self.engine.storage) else ""
        try:
            known = self.engine.storage.ability(ListsLeftovers)
            return set() if known is None else set(await known.leftovers(run_prefix))
        except ShardStoreError as exc:
            self._add(Finding("not-checked", self.walk.path, "", f"unfinished uploads and the like could not be listed: {exc}"))
            return set()

    async def _confirm_leftovers(self, before: set[Leftover]) -> None:
        """Report leftovers that existed when the run began, and still exist."""
        for left in sorted(before & await self._leftovers() if before else (), key=lambda left: (left.key, left.what)):
            if self.execution.takes(left.key):
                self._add(Finding(left.kind, "", left.key, left.what))

    # -- what came of it -------------------------------------------------------------------------------------------------

    def _report(self) -> VerifyReport:
        def place(finding: Finding) -> tuple[str, str, str]:
            return finding.path, finding.key, finding.kind

        return VerifyReport(
            url=self.engine.storage.url,
            path=self.walk.path,
            arrays=tuple(self._array(plan) for plan in self.walk.plans()),
            findings=(*sorted(self._errors, key=place), *sorted(self._notes, key=place)),
            counts=dict(sorted(self._counts.items())),
            objects=self._objects,
            nbytes_read=self._nbytes_read,
            unread=tuple(self._unread.values()),
            at=self._began,
            is_whole=self.execution.part == WHOLE and self.execution.only is None,
        )

    def _array(self, plan: ArrayPlan) -> ArrayVerified:
        sums = self._sums.get(plan.path, _Sums())
        return ArrayVerified(path=plan.path, detectable=detectable(plan, self.how), digest=self._listed.of(plan.path), **asdict(sums))
