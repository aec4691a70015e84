"""Objects at the target that have to be removed: made by runs for chunks, arrays and other objects that the source no longer has.

Nothing else is touched. An object is removed if the record says that a run has made it, or was about to, and it still has that version;
of a file, another mode or owner, or a loss of power, makes no other one here.
Where a foreign object is in the way, so that the target would not show the source, an error names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shardstore.errors import Conflict
from shardstore.format.store_keys import ancestors, metadata_path
from shardstore.maintenance.packing.made import MadeObject
from shardstore.maintenance.packing.record import Recorded, UnitName
from shardstore.maintenance.packing.report import some_of
from shardstore.maintenance.packing.translation import TargetArray
from shardstore.model.generation import IfGeneration
from shardstore.storage.base import ConditionFailed, ObjectInfo, Storage

_AT_ONCE = 64
_DELETED_AT_ONCE = 1000
_NAMED = 20

Candidates = Mapping[str, Sequence[MadeObject]]
"""Keys that must not be at the target, with the recorded objects of each."""


@dataclass(slots=True)
class Leaving:
    """The objects to remove, documents first, and the objects in the way."""

    objects: list[ObjectInfo] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)

    def check(self, shown_target: str) -> None:
        """Raise ``Conflict`` if something is in the way."""
        if not self.altered:
            return
        raise Conflict(
            f"at {shown_target} the source has nothing for {_named(self.altered)}, but somebody else has written them since, so they are "
            "not removed: remove them, and the same call goes on from there; or overwrite the target"
        )


def superseded(
    recorded: Recorded, planned: Iterable[UnitName], documents: Iterable[str], more: Iterable[str], *, as_draft: bool
) -> Candidates:
    """Return the objects of units that are not ``planned``, or were done again with other results; and ``more`` keys, which are not
    recorded.

    For ``planned`` units the last result counts: its objects are never returned, nor are ``documents``.
    """
    kept = [entry for name in planned if (entry := recorded.units.get(name)) is not None]
    is_kept = set(map(id, kept))
    others = [entry.made for entry in (*recorded.units.values(), *recorded.older) if id(entry) not in is_kept]
    # The chunk of a 0-d array of the 2022 draft has another key as soon as its document is gone.
    renamed = {f"{one.key}/0": one for made in others if as_draft for one in made if one.key == "c" or one.key.endswith("/c")}
    more = list(dict.fromkeys((*more, *renamed)))
    if not others and not more:  # as of a first run: there may be very many objects
        return {}
    present = np.concatenate([_hashes(documents), *(entry.made.hashes() for entry in kept)])
    gone = ~np.isin(np.concatenate([_hashes(more), *(made.hashes() for made in others)]), present)
    left = [more[i] for i in np.flatnonzero(gone[: len(more)]).tolist()]
    found: dict[str, list[MadeObject]] = {key: [renamed[key]] if key in renamed else [] for key in left}
    start = len(more)
    for made in others:
        end = start + len(made)
        if gone[start:end].any():
            for one, is_gone in zip(made, gone[start:end].tolist(), strict=True):
                if is_gone:
                    found.setdefault(one.key, []).append(one)
        start = end
    return found


def _hashes(keys: Iterable[str]) -> npt.NDArray[np.int64]:
    return np.array(list(map(hash, keys)), dtype=np.int64)


def foreign(unknown: Iterable[str], planned: Container[str], recorded: Recorded, *, as_draft: bool) -> list[str]:
    """Return those of the ``unknown`` keys that the plan has too, although no run has made them or was about to."""
    doubtful = [key for key in unknown if key in planned and key not in recorded.announced]
    if not doubtful:
        return []
    made = {key for entry in (*recorded.units.values(), *recorded.older) for key in entry.made.keys()}  # noqa: SIM118  # no mapping
    return [key for key in doubtful if key not in made and not (as_draft and key.removesuffix("/0") in made)]


def check_foreign(keys: list[str], shown_target: str) -> None:
    """Raise ``Conflict`` if there are such keys."""
    if keys:
        raise Conflict(
            f"at {shown_target} somebody else has written {_named(keys)}, which would be replaced, or taken for chunks of an array of "
            "the source: remove them, or choose another target, or overwrite this one. Nothing was written"
        )


def _named(keys: Iterable[str]) -> str:
    return some_of([repr(key) for key in sorted(keys)], _NAMED)


async def look_at(storage: Storage, candidates: Candidates, recorded: Recorded, arrays: Mapping[str, TargetArray]) -> Leaving:
    """Return the candidates that exist and are the runs' own. Foreign objects that lie in none of the ``arrays`` are left out.

    Raises:
        StorageError: a request failed.
    """
    leaving = Leaving()
    keys = list(candidates)
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        for key, info in zip(some, await asyncio.gather(*map(storage.stat, some)), strict=True):
            if info is None:
                continue
            if any(_is_made(made, info) for made in candidates[key]) or key in recorded.announced:
                leaving.objects.append(info)
            elif candidates[key] or _is_chunk(key, arrays):
                leaving.altered.append(key)
    # A reader has to find the array gone, not empty.
    leaving.objects.sort(key=lambda info: (metadata_path(info.key) is None, info.key.count("/"), info.key))
    return leaving


def _is_made(made: MadeObject, info: ObjectInfo) -> bool:
    if info.generation is None or not info.generation.digest or not made.version:
        return info.nbytes == made.nbytes
    return info.generation.may_be(made.version)


def _is_chunk(key: str, arrays: Mapping[str, TargetArray]) -> bool:
    """Return whether readers of the target take the key for a chunk, or a shard."""
    return any(path in arrays and arrays[path].layout.has_key(rest) for path, rest in ancestors(key))


async def remove(storage: Storage, leaving: Leaving) -> None:
    """Remove ``leaving.objects`` in the versions that were looked at, the documents before the others.

    Raises:
        Conflict: one was replaced just now.
        StorageError: a request failed.
    """
    documents = [info for info in leaving.objects if metadata_path(info.key) is not None]
    can_condition = storage.capabilities.conditional_delete
    for infos in (documents, leaving.objects[len(documents) :]):
        blind = [info.key for info in infos if not can_condition or info.generation is None]
        for start in range(0, len(blind), _DELETED_AT_ONCE):
            await storage.delete_many(blind[start : start + _DELETED_AT_ONCE])
        pinned = [(info.key, info.generation) for info in infos if can_condition and info.generation is not None]
        for start in range(0, len(pinned), _AT_ONCE):
            try:
                await asyncio.gather(*(storage.delete(key, IfGeneration(version)) for key, version in pinned[start : start + _AT_ONCE]))
            except ConditionFailed as exc:
                raise Conflict(f"an object at {storage.url} was replaced while it was to be removed: run it again ({exc})") from exc
