"""Reads chunk files, and the files elsewhere that virtual references lead to, all of one batch in one round of requests.

A repository may come from an untrusted source. So virtual references lead only to where the reader says: below one of the URLs that were
authorised when the repository was opened (D31).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from shardstore.errors import Conflict, Corruption, InvalidInput, ShardStoreError
from shardstore.format.snapshots.file_names import CHUNKS, encode_id
from shardstore.format.snapshots.manifest import ChunkRefs, VirtualCheck
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRequest
from shardstore.model.redaction import redacted
from shardstore.opening.open import open_storage
from shardstore.opening.references import ReferenceTargets, SetAddress, TargetOptions
from shardstore.snapshots.files import MissingFile
from shardstore.storage.base import Absent, Changed, Failed, Found, LeadsNowhere, Read, ReadOutcome, Storage
from shardstore.storage.local.versions import may_be_same_bytes

Asked = tuple[bytes | str, Sequence[ByteRequest], VirtualCheck | None]
"""The id of a chunk file, or the URI of a virtual one; ranges of it; and what proves that a virtual one is unchanged."""


def place_of_all(urls: Sequence[str]) -> str:
    """Return the URL, with ``/`` at its end, of the deepest directory that all of these URLs lie in; empty if there is none."""
    first, last = min(urls, default=""), max(urls, default="")
    shared = next((i for i, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    place = first[:shared].rpartition("/")[0]
    return f"{place}/" if "://" in place and not place.endswith(":/") else ""


class VirtualFiles:
    """The files of chunks of one repository."""

    def __init__(self, storage: Storage, prefixes: Collection[str] = (), options: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._storage = storage
        self.prefixes = tuple(prefixes)
        for prefix in self.prefixes:
            if "://" not in prefix or not prefix.endswith("/"):
                raise InvalidInput(
                    f"virtual_prefixes: {prefix!r} is not the beginning of URLs: give one as s3://bucket/data/, with '/' at its end"
                )
        self._options = dict(options or {})
        given = TargetOptions(by_protocol=self._options)
        self._targets = ReferenceTargets(given, SetAddress(None, "", frozenset(), {}), open_storage)

    async def read(self, asked: Sequence[Asked]) -> list[Sequence[memoryview] | ShardStoreError]:
        """Return the bytes of all ranges of each file, or the error of one that cannot be read."""
        answers: list[Sequence[memoryview] | ShardStoreError] = [()] * len(asked)
        of_storage: dict[int, tuple[Storage, list[tuple[int, Read]]]] = {}
        for number, (file, ranges, check) in enumerate(asked):
            try:
                storage, read = self._read_of(file, tuple(ranges), check)
            except ShardStoreError as exc:
                answers[number] = exc
                continue
            of_storage.setdefault(id(storage), (storage, []))[1].append((number, read))

        async def ask(storage: Storage, reads: Sequence[tuple[int, Read]]) -> None:
            outcomes = await storage.read([read for _, read in reads])
            outcomes = await _looked_at_again(storage, [read for _, read in reads], outcomes)
            for (number, _), outcome in zip(reads, outcomes, strict=True):
                file, _, check = asked[number]
                answers[number] = self._answer(file, check, outcome)

        await asyncio.gather(*(ask(storage, reads) for storage, reads in of_storage.values()))
        return answers

    async def sizes(self, urls: Sequence[str]) -> list[int]:
        """Return the lengths of virtual files in bytes. Raises ``LeadsNowhere`` if one is not there."""
        unique = list(dict.fromkeys(urls))
        for url in unique:
            self.check_authorised(url)
        targets = [self._targets.target(url) for url in unique]
        infos = await asyncio.gather(*(target.storage.stat(target.key) for target in targets))
        for url, info in zip(unique, infos, strict=True):
            if info is None:
                raise LeadsNowhere(f"{redacted(url)} is not there, so it cannot be referred to: make it reachable, or leave it out")
        known = {url: info.nbytes for url, info in zip(unique, infos, strict=True) if info is not None}
        return [known[url] for url in urls]

    def check_authorised(self, url: str, place: str = "") -> None:
        """Raise ``InvalidInput`` if virtual references may not lead there. ``place`` is the URL of what all of them lead into, if that is
        known: the error suggests it.
        """
        if not any(url.startswith(prefix) for prefix in self.prefixes) or "/../" in url or url.endswith("/.."):
            allowed = ", ".join(map(redacted, self.prefixes)) or "nowhere"
            place = redacted(place if place and url.startswith(place) else url).rpartition("/")[0]
            raise InvalidInput(
                f"virtual references of {self._storage.url} lead to {redacted(url)}, and may lead {allowed}: if you trust the repository, "
                f"open it with virtual_prefixes=['{place}/'], or what lies above (in Python: Repository.open takes it)"
            )

    def _read_of(self, file: bytes | str, ranges: tuple[ByteRequest, ...], check: VirtualCheck | None) -> tuple[Storage, Read]:
        if isinstance(file, bytes):
            return self._storage, Read(CHUNKS + encode_id(file), ranges)
        self.check_authorised(file)
        target = self._targets.target(file)
        generation = None if check is None or check.etag is None else Generation(check.etag)
        return target.storage, Read(target.key, ranges, generation)

    def _answer(self, file: bytes | str, check: VirtualCheck | None, outcome: ReadOutcome) -> Sequence[memoryview] | ShardStoreError:
        name = f"chunk file {CHUNKS}{encode_id(file)}" if isinstance(file, bytes) else f"the virtual file {redacted(file)}"
        if isinstance(outcome, Failed):
            return outcome.error
        if isinstance(outcome, Absent):
            missing = MissingFile if isinstance(file, bytes) else Corruption
            return missing(
                f"{name} of {self._storage.url} is not there, though a manifest refers to it: restore the file, or erase the chunk"
            )
        changed = Conflict(f"{name} has changed since {self._storage.url} referred to it, so nothing was read: set the references again")
        if isinstance(outcome, Changed) or not isinstance(outcome, Found):
            return changed
        if check is not None and check.last_modified is not None:
            if outcome.times is None:
                return InvalidInput(
                    f"{name} is referred to by its time of modification, which its storage does not give: refer to it by its etag"
                )
            if int(outcome.times.stored) > check.last_modified:
                return changed
        return outcome.buffers


async def _looked_at_again(storage: Storage, reads: Sequence[Read], found: Sequence[ReadOutcome]) -> list[ReadOutcome]:
    """Return the outcomes; of local files that have changed, those of another read, if only a name, mode or owner may have changed."""
    outcomes = list(found)
    if storage.kind != "local":
        return outcomes
    again = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Changed)]
    unpinned = [Read(reads[number].key, reads[number].ranges) for number in again]
    for number, outcome in zip(again, await storage.read(unpinned) if again else (), strict=True):
        wanted = reads[number].generation
        if wanted is not None and isinstance(outcome, Found) and may_be_same_bytes(wanted.token, outcome.generation.token):
            outcomes[number] = outcome
    return outcomes


def virtual_refs(ndim: int, coords: Any, urls: Any, offsets: Any, lengths: Any, etags: Any = None, last_modified: Any = None) -> ChunkRefs:
    """Return references from columns; see ``Session.set_virtual_refs``. Raises ``InvalidInput``."""
    places = _coords(coords, ndim)
    n = len(places)
    first_bytes, nbytes = _column("offsets", offsets, n), _column("lengths", lengths, n)
    columns = [_texts(name, given, n) for name, given in (("urls", urls), ("etags", etags), ("last_modified", last_modified))]
    if any(url is None for url in columns[0]):
        raise InvalidInput("urls has an entry without a URL")
    files: dict[tuple[str, Any, Any], int] = {}
    if all(isinstance(given, str | datetime | None) for given in (urls, etags, last_modified)) and n:
        files[columns[0][0], columns[1][0], columns[2][0]] = 0
        file = np.zeros(n, dtype=np.int32)
    else:
        file = np.array([files.setdefault(one, len(files)) for one in zip(*columns, strict=True)], dtype=np.int32)
    kept = _last_of_each(places)
    checks = {
        number: VirtualCheck(etag, None if time is None else int(time.timestamp()))
        for (_, etag, time), number in files.items()
        if etag is not None or time is not None
    }
    return ChunkRefs(places[kept].astype(np.uint64), file[kept], first_bytes[kept], nbytes[kept], [url for url, _, _ in files], {}, checks)


def _coords(given: Any, ndim: int) -> npt.NDArray[np.integer[Any]]:
    """Return coordinates as ``(n, ndim)`` whole numbers of at least 0. Raises ``InvalidInput``."""
    coords = np.asarray(given)
    if coords.ndim == 1 and ndim == 1:
        coords = coords[:, None]
    if coords.ndim != 2 or coords.shape[1] != ndim or not (np.issubdtype(coords.dtype, np.integer) or not coords.size):
        raise InvalidInput(f"coords of shape {coords.shape} and type {coords.dtype} are not (n, {ndim}) whole numbers")
    if coords.size and int(coords.min()) < 0:
        raise InvalidInput("coords has a negative number")
    return coords


def _last_of_each(coords: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.intp]:
    """Return the rows of ``(n, ndim)`` coordinates in ascending order; of equal ones, the last."""
    n, ndim = coords.shape
    order = np.lexsort((np.arange(n), *coords.T[::-1]))
    ordered = coords[order]
    is_last = np.ones(n, dtype=np.bool_)
    is_last[:-1] = (ordered[1:] != ordered[:-1]).any(axis=1) if ndim else False
    return order[is_last]


def _column(name: str, given: Any, n: int) -> npt.NDArray[np.uint64]:
    values = np.asarray(given)
    if values.ndim == 0:
        values = np.full(n, values)
    if values.shape != (n,) or (n and (not np.issubdtype(values.dtype, np.integer) or int(values.min()) < 0)):
        raise InvalidInput(f"{name} of shape {values.shape} and type {values.dtype} are not {n} whole numbers of at least 0")
    return values.astype(np.uint64)


def _texts(name: str, given: Any, n: int) -> Sequence[Any]:
    if given is None or isinstance(given, str | datetime):
        return [given] * n
    if len(given) != n:
        raise InvalidInput(f"{name} has {len(given)} entries, and coords has {n}")
    found: Sequence[Any] = given.tolist() if isinstance(given, np.ndarray) else given
    return found
