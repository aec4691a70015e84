"""The facts of a report: a survey with pictures and histograms by the same reads, the storage, what a verification found, and advice."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shardstore.adapters.store_paths import url_below
from shardstore.apps.reports.words import PRESENTABLE, Advice, PlaceOf, advice_on_array, advice_on_store
from shardstore.errors import InvalidInput
from shardstore.maintenance.advice import Access
from shardstore.maintenance.density import ArrayOccupancy, Density, Extreme, Occupancy
from shardstore.maintenance.shards import Damage
from shardstore.maintenance.survey.run import ArraySurvey, StorageFacts, Survey
from shardstore.model.words import is_utf8

State = Literal["sound", "not looked at", "damaged"]
"""``sound``: a verification of everything read every chunk and found no error. ``damaged``: something cannot be read, or is wrong."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What ``verify`` found, from its report in JSON."""

    at: str
    """When, in UTC; empty if it does not say."""
    path: str
    is_whole: bool
    errors: int
    notes: int
    unread: int
    findings: tuple[Mapping[str, Any], ...]
    arrays: Mapping[str, Mapping[str, Any]]
    document: Mapping[str, Any]

    @classmethod
    def parse(cls, document: object, url: str, path: str, name: str) -> Verified:
        """Read the report of a verification of the store at ``url``. ``name`` is that of its file in messages.

        Raises:
            InvalidInput: it is no such report, or one of another store or node.
        """
        wrong = f"{name} is not a report of verification: make it by shardstore verify --json"
        if not isinstance(document, dict):
            raise InvalidInput(wrong)
        try:
            found = cls(
                at=str(document.get("at", "")),
                path=str(document["path"]),
                is_whole=document.get("is_whole", False) is True,
                errors=int(document["errors"]),
                notes=int(document["notes"]),
                unread=len(document["unread"]),
                findings=tuple({name: str(one[name]) for name in _FINDING_MEMBERS} for one in document["findings"]),
                arrays={str(array["path"]): _checked(array) for array in document["arrays"]},
                document=document,
            )
        except (KeyError, TypeError, ValueError, OverflowError) as exc:
            raise InvalidInput(wrong) from exc
        if min(found.errors, found.notes) < 0:
            raise InvalidInput(wrong)
        if document.get("url") != url:
            raise InvalidInput(f"{name} is a report on {document.get('url')}, not on {url}")
        if found.path and path != found.path and not path.startswith(found.path + "/"):
            raise InvalidInput(f"{name} is a report on {found.path!r} in {url}: verify {path or 'all of it'} for this report")
        return found._of(path)

    def _of(self, path: str) -> Verified:
        """Return what was found at and below ``path``."""
        findings = tuple(one for one in self.findings if _is_below(path, one["path"] or one["key"]))
        errors = sum(one["severity"] == "error" for one in findings)
        if path == self.path:
            return replace(self, errors=max(self.errors, errors))
        arrays = {name: array for name, array in self.arrays.items() if _is_below(path, name)}
        errors = max(errors, sum(array["errors"] for array in arrays.values()))
        return replace(self, findings=findings, arrays=arrays, errors=errors, notes=len(findings) - errors)

    def state_of(self, path: str, digest: str | None) -> State:
        """Return the state of an array whose objects, as they are listed now, have this digest (``None``: not listed)."""
        array = self.arrays.get(path)
        if array is None:
            return "not looked at"
        if array["errors"]:
            return "damaged"
        is_the_same = digest is not None and digest == array["digest"]  # nothing was written or erased since
        is_complete = is_the_same and self.is_whole and not self.unread and array["detectable"].get("reads_chunks") is True
        return "sound" if is_complete else "not looked at"


def _is_below(path: str, name: str) -> bool:
    return not path or name == path or name.startswith(f"{path}/")


_FINDING_MEMBERS = ("severity", "kind", "path", "key", "what", "remedy")


def _checked(array: Mapping[str, Any]) -> Mapping[str, Any]:
    detectable = array["detectable"]
    return {
        "errors": int(array["errors"]),
        "notes": int(array["notes"]),
        "chunks": int(array["chunks"]),
        "digest": array.get("digest"),
        "detectable": {
            "found": [str(sentence) for sentence in detectable["found"]],
            "missed": [str(sentence) for sentence in detectable["missed"]],
            "reads_chunks": detectable.get("reads_chunks"),
        },
    }


PICTURE_SIDE = 512
PAIRS_OF_AXES = 3
MOST_PICTURES = 64
MOST_ARRAYS = 500

_VERSION = 1

HIDDEN = "…"
"""In the place of a part of a URL that is not shown."""


def occupancy_of_report(*, pictures: bool = True) -> Occupancy:
    """Return what a survey fills for the pictures and histograms of a report; without ``pictures`` only histograms."""
    return Occupancy(side=PICTURE_SIDE, pairs=PAIRS_OF_AXES if pictures else 0, most_pictures=MOST_PICTURES)


# -- the storage -------------------------------------------------------------------------------------------------------


def store_document(found: Survey, storage: StorageFacts) -> dict[str, Any]:
    """Return a survey and the storage for programs."""
    document = asdict(found)
    for array, surveyed in zip(document["arrays"], found.arrays, strict=True):
        array["stored"] = {"shape": array.pop("stored_shape"), "codecs": array.pop("stored_codecs")}
        array["presented"] = {"chunk_shape": array.pop("chunk_shape"), "codecs": array.pop("codecs")}
        array["passes_through"] = None if surveyed.is_sharded else array["reason"]
        del array["reason"]
    safe = storage.capabilities.atomic_commits
    alone = "one a shard" if storage.is_known else "unknown"
    writers = ("safe" if storage.capabilities.across_machines else "safe on one machine") if safe else alone
    document |= {
        "damaged_objects": found.damaged_objects,
        "storage": {
            "kind": storage.kind,
            "capabilities": asdict(storage.capabilities) | {"atomic_commits": safe},
            "is_known": storage.is_known,
            "writers": writers,
        },
        "flavour": {"stored": storage.stored, "presented": storage.presented, "presentable": ["v3", *PRESENTABLE[storage.stored]]},
    }
    if storage.snapshot is not None:
        document["snapshot"] = {"ref": storage.snapshot.pinned.ref, "id": storage.snapshot.pinned.snapshot_id}
    return document


# -- the report --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SizeBin:
    """A bin of a histogram: ``number`` sizes from ``start`` (inclusive) to ``stop`` (exclusive) bytes."""

    start: int
    stop: int
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Preview:
    """One slice of an array, as grey values: ``(rows, columns)``, uint8."""

    pixels: npt.NDArray[np.uint8]
    what: str
    """Which slice it is, in words."""


@dataclass(frozen=True, slots=True, eq=False)
class ReportedArray:
    """One array."""

    surveyed: ArraySurvey
    state: State
    damage: tuple[Damage, ...]
    decoded_nbytes: int | None
    """The bytes of all existing chunks, decoded; ``None`` if that is not known."""
    object_sizes: tuple[SizeBin, ...]
    chunk_sizes: tuple[SizeBin, ...]
    """Of encoded chunks."""
    smallest: Extreme | None
    largest: Extreme | None
    pictures: tuple[Density, ...]
    verified: Mapping[str, Any] | None
    preview: Preview | str
    """The preview, or why there is none; empty if none was asked for."""

    @property
    def path(self) -> str:
        return self.surveyed.path

    def document(self) -> dict[str, Any]:
        """Return, as JSON values, what the report adds to the survey of the array."""
        return {
            "state": self.state,
            "decoded_nbytes": self.decoded_nbytes,
            "object_sizes": [asdict(one) for one in self.object_sizes],
            "chunk_sizes": [asdict(one) for one in self.chunk_sizes],
            "smallest": None if self.smallest is None else asdict(self.smallest),
            "largest": None if self.largest is None else asdict(self.largest),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """All facts of a report."""

    url: str
    """The place that the report is on, without credentials."""
    at: datetime
    survey: Survey
    storage: StorageFacts
    arrays: tuple[ReportedArray, ...]
    """At most as many arrays as were asked for; ``survey`` has all."""
    is_complete: bool
    """False if there may be more arrays than ``survey`` has, which was cut short."""
    pictures_left_out: int
    state: State
    advice: tuple[Advice, ...]
    verified: Verified | None

    @property
    def arrays_left_out(self) -> int:
        return len(self.survey.arrays) - len(self.arrays)

    @property
    def counted(self) -> bool:
        """True if indices were read, not only metadata."""
        return self.survey.objects is not None

    def document(self) -> dict[str, Any]:
        """Return the report for programs. Arrays that are left out are left out here, too."""
        document = store_document(self.survey, self.storage)
        more = {array.path: array.document() for array in self.arrays}
        document["arrays"] = [array | more[array["path"]] for array in document["arrays"] if array["path"] in more]
        return document | {
            "report": _VERSION,
            "url": self.url,
            "at": self.at.isoformat(timespec="seconds"),
            "state": self.state,
            "arrays_left_out": self.arrays_left_out,
            "is_complete": self.is_complete,
            "pictures_left_out": self.pictures_left_out,
            "advice": [asdict(one) for one in self.advice],
            "verified": None if self.verified is None else self.verified.document,
        }

    def json(self) -> str:
        """Return the report for programs as a JSON text."""
        document = self.document()
        text = json.dumps(document, indent=2, ensure_ascii=False)
        return text if is_utf8(text) else json.dumps(document, indent=2)  # names of files may be none


Previewer = Callable[[ArraySurvey], "Preview | str"]
"""A function that returns the preview of an array, or why there is none."""


def facts_of(
    found: Survey,
    storage: StorageFacts,
    *,
    url: str,
    at: datetime,
    occupancy: Occupancy | None = None,
    is_complete: bool = True,
    verified: Verified | None = None,
    accesses: Sequence[Access] = (),
    previewer: Previewer | None = None,
    most_arrays: int = MOST_ARRAYS,
) -> Facts:
    """Put the facts together. ``url`` is that of the place of ``found``, without credentials."""
    if occupancy is not None:
        occupancy.finish()
    damage: dict[str, list[Damage]] = {}
    for one in found.damage:
        damage.setdefault(one.path, []).append(one)
    shown = _to_be_shown(found.arrays, damage, most_arrays)
    arrays = tuple(
        _array(
            array,
            damage.get(array.path, ()),
            None if occupancy is None else occupancy.arrays.get(array.path),
            _state_of(array.path, verified, occupancy),
            None if verified is None else verified.arrays.get(array.path),
            "" if previewer is None else previewer(array),
        )
        for array in shown
    )
    places = places_below(url, found.path, storage)
    advice = [*advice_on_store(found, storage.kind, places)]
    for array in shown:
        advice += advice_on_array(array, storage.kind, places, accesses)
    return Facts(
        url=url,
        at=at,
        survey=found,
        storage=storage,
        arrays=arrays,
        is_complete=is_complete,
        pictures_left_out=0 if occupancy is None else occupancy.pictures_left_out,
        state=_state(found, verified, occupancy),
        advice=tuple(advice),
        verified=verified,
    )


def _to_be_shown(arrays: Sequence[ArraySurvey], damage: Mapping[str, object], most: int) -> list[ArraySurvey]:
    """Return the arrays that are shown, in their order: where not all are, the damaged ones first."""
    chosen = sorted(range(len(arrays)), key=lambda i: arrays[i].path not in damage)[:most]
    return [arrays[i] for i in sorted(chosen)]


def places_below(url: str, above: str, storage: StorageFacts) -> PlaceOf:
    """Return which URLs of nodes commands take, where the node ``above`` lies at ``url``."""

    def place_of(path: str) -> str | None:
        relative = path.removeprefix(above).strip("/")
        if storage.kind == "memory" or HIDDEN in url:
            return None  # it is in this process alone; or parts of its URL are not shown
        if storage.stored != "v3" or not relative:
            return url  # nodes of the draft have no URLs of their own
        return url_below(url, relative)

    return place_of


def _state(found: Survey, verified: Verified | None, occupancy: Occupancy | None) -> State:
    if found.damaged_objects or found.unreadable or (verified is not None and verified.errors):
        return "damaged"
    if verified is None or not verified.is_whole or verified.unread:
        return "not looked at"
    states = [_state_of(array.path, verified, occupancy) for array in found.arrays]
    return "sound" if states and all(state == "sound" for state in states) else "not looked at"


def _state_of(path: str, verified: Verified | None, occupancy: Occupancy | None) -> State:
    return "not looked at" if verified is None else verified.state_of(path, None if occupancy is None else occupancy.digest(path))


def _array(
    array: ArraySurvey,
    damage: Sequence[Damage],
    occupancy: ArrayOccupancy | None,
    state: State,
    verified: Mapping[str, Any] | None,
    preview: Preview | str,
) -> ReportedArray:
    if array.usage is not None and array.usage.damaged_objects:
        state = "damaged"
    return ReportedArray(
        surveyed=array,
        state=state,
        damage=tuple(damage),
        decoded_nbytes=_decoded_nbytes(array),
        object_sizes=() if occupancy is None else _bins(occupancy.object_sizes),
        chunk_sizes=() if occupancy is None else _bins(occupancy.chunk_sizes),
        smallest=None if occupancy is None else occupancy.smallest,
        largest=None if occupancy is None else occupancy.largest,
        pictures=() if occupancy is None else tuple(picture.density() for picture in occupancy.pictures),
        verified=verified,
        preview=preview,
    )


def _decoded_nbytes(array: ArraySurvey) -> int | None:
    if array.usage is None or array.chunk_shape is None or array.item_nbytes is None:
        return None
    return array.usage.chunks * prod(array.chunk_shape) * array.item_nbytes


def _bins(counts: npt.NDArray[np.int64]) -> tuple[SizeBin, ...]:
    """Return the bins from the first to the last that is not empty."""
    there = np.flatnonzero(counts)
    if not len(there):
        return ()
    first, last = int(there[0]), int(there[-1])
    return tuple(SizeBin(2 ** (k - 1) if k else 0, 2**k, int(counts[k])) for k in range(first, last + 1))
