"""The keys of the target that a run is about to write: they identify objects that a driver wrote before it died without recording them.

::

    ["path/of/array", "default", "/", [4, 16], [0, 0, 0, 1]]     groups of 4 × 16 objects, at (0, 0) and (0, 1) of these groups
    [null, ["a/zarr.json", "README"]]                            objects by their keys
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.format.store_keys import ancestors, join
from shardstore.maintenance.packing.units import Unit
from shardstore.maintenance.packing.writing import OthersUnit
from shardstore.model.chunks import ChunkCoords


@dataclass(frozen=True, slots=True)
class _Grouping:
    """The grouping of an array's objects into units."""

    encoding: ChunkKeyEncoding
    group: tuple[int, ...]


@dataclass(slots=True)
class Announced:
    """A set of keys; keys of arrays are stored as the groups of objects that units make."""

    _keys: set[str] = field(default_factory=set)
    _groups: dict[str, dict[_Grouping, set[ChunkCoords]]] = field(default_factory=dict)

    @classmethod
    def of(cls, units: Iterable[Unit | OthersUnit], keys: Iterable[str], *, as_draft: bool) -> Announced:
        announced = cls(set(keys))
        for unit in units:
            if isinstance(unit, OthersUnit):
                announced._keys.update(found.key for found in unit.objects)
                continue
            grid = unit.job.unit_grid
            at = tuple(int(c) for c in np.unravel_index(unit.number, grid)) if grid else ()
            if as_draft and not grid:  # the key that its chunk has there without a document
                announced._keys.add(join(unit.path, "c/0"))
            announced._add(unit.path, _Grouping(unit.job.target_layout.key_encoding, unit.job.group), {at})
        return announced

    def _add(self, path: str, grouping: _Grouping, groups: set[ChunkCoords]) -> None:
        self._groups.setdefault(path, {}).setdefault(grouping, set()).update(groups)

    def __bool__(self) -> bool:
        return bool(self._keys or self._groups)

    def __contains__(self, key: str) -> bool:
        if key in self._keys:
            return True
        for path, rest in ancestors(key):
            for grouping, groups in self._groups.get(path, {}).items():
                coords = grouping.encoding.decode(rest, len(grouping.group))
                if coords is not None and tuple(c // n for c, n in zip(coords, grouping.group, strict=True)) in groups:
                    return True
        return False

    # -- as it is written down -----------------------------------------------------------------------------------------

    def lines(self) -> list[str]:
        lines = [json.dumps([None, sorted(self._keys)])] if self._keys else []
        for path, groupings in self._groups.items():
            for grouping, groups in groupings.items():
                flat = [c for at in sorted(groups) for c in at]
                lines.append(json.dumps([path, grouping.encoding.name, grouping.encoding.separator, grouping.group, flat]))
        return lines

    def add_line(self, line: bytes) -> None:
        """Add one line of the record. Raises ``ValueError`` or ``TypeError`` if it is invalid."""
        path, *rest = json.loads(line)
        if path is None:
            self._keys.update(*rest)
            return
        name, separator, group, flat = rest
        axes = [iter(flat)] * len(group)
        self._add(path, _Grouping(ChunkKeyEncoding(name, separator), tuple(group)), set(zip(*axes, strict=True)) if group else {()})
