"""Find recorded units that still hold: made from the source's present objects, and unchanged at the target."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shardstore.maintenance.object_tasks import pages
from shardstore.maintenance.packing.object_table import Made, digest_of_contents, version_digest
from shardstore.maintenance.packing.record import Finished, Recorded
from shardstore.maintenance.packing.units import AnyUnit, UnitName
from shardstore.storage.base import Storage


def _no_numbers() -> npt.NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class TargetObjects:
    """One listing of the target: 24 bytes per object, by the hashes of the keys, and the keys of objects that are not recorded."""

    hashes: npt.NDArray[np.int64] = field(default_factory=_no_numbers)
    """The hashes of the keys, ascending."""
    nbytes: npt.NDArray[np.uint64] = field(default_factory=lambda: _no_numbers().astype(np.uint64))
    versions: npt.NDArray[np.uint64] = field(default_factory=lambda: _no_numbers().astype(np.uint64))
    unknown: list[str] = field(default_factory=list)

    def has(self, made: Made) -> bool:
        """Return whether all these objects exist, with their sizes and, if known, their versions."""
        if not len(made):
            return True
        hashes = made.hashes()
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        if not len(self.hashes) or (self.hashes[at] != hashes).any() or (self.nbytes[at] != made.sizes).any():
            return False
        return not made.tells_versions or bool((self.versions[at] == made.versions).all())


async def list_target(storage: Storage, recorded: Recorded) -> TargetObjects:
    """Return the objects at the target; nothing, without a request, if nothing is recorded. Raises ``StorageError`` if a request failed."""
    if not recorded:
        return TargetObjects()
    known = np.unique(np.concatenate([_no_numbers(), *(entry.made.hashes() for entry in (*recorded.units.values(), *recorded.older))]))
    found = TargetObjects()
    hashes, nbytes, versions = array("q"), array("Q"), array("Q")
    async for page in pages(storage, ""):
        here = np.array([hash(info.key) for info in page], dtype=np.int64)
        hashes.extend(here.tolist())
        nbytes.extend(info.nbytes for info in page)
        versions.extend(version_digest(info.generation) for info in page)
        found.unknown += [info.key for info, is_known in zip(page, np.isin(here, known).tolist(), strict=True) if not is_known]
    found.hashes = np.array(hashes, dtype=np.int64)
    order = np.argsort(found.hashes)
    found.hashes = found.hashes[order]
    found.nbytes, found.versions = np.array(nbytes, dtype=np.uint64)[order], np.array(versions, dtype=np.uint64)[order]
    return found


async def intact_units(storage: Storage, there: TargetObjects, units: Iterable[AnyUnit], recorded: Recorded) -> dict[UnitName, Finished]:
    """Return the records of those units that need not be done again.

    A unit is done again if an object of the source has changed or has no version, or an object of the target is not the one that was
    made. Objects of a target without versions are read again and compared by their bytes.
    Raises ``StorageError`` if a request failed.
    """
    intact: dict[UnitName, Finished] = {}
    for unit in units if recorded.units else ():
        name = unit.unit_name
        entry = recorded.units.get(name)
        if entry is None or not unit.is_versioned or entry.fingerprint != unit.fingerprint or not there.has(entry.made):
            continue
        if entry.made.tells_versions or entry.contents == await digest_of_contents(storage, entry.made):
            intact[name] = entry
    return intact
