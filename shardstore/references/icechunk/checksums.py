"""The checksums by which icechunk detects that an object was replaced: its ETag, or when it was last modified.

icechunk sends them along as conditions of its reads. It keeps times in whole seconds, and accepts every object that is not newer, so a
time is rounded up here: a file that is replaced within the same second is not seen to be another one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar, get_args

from shardstore._sync import run_sync
from shardstore.errors import Conflict, InvalidInput, StorageError
from shardstore.format.snapshots.manifest import VirtualCheck
from shardstore.references.batches import ReferredObject
from shardstore.storage.abilities import OnFilesystem
from shardstore.storage.base import UNKNOWN_NBYTES, ObjectInfo, Storage
from shardstore.storage.inferred_versions import version_of
from shardstore.storage.local.versions import modified_ns
from shardstore.storage.references.entries import Targets
from shardstore.storage.requests.outcomes import canonical_etag
from shardstore.storage.requests.outcomes import modified_ns as modified_in

ChecksumChoice = Literal["auto", "etag", "last_modified"] | None
Checksum = str | datetime | None

T = TypeVar("T")


class Checksums:
    """Makes the checksums of objects. These are none, of objects that never change."""

    def are_complete(self) -> bool:
        """Return whether every object so far has got a checksum."""
        return False

    def completed(self, objects: Sequence[ReferredObject]) -> list[ReferredObject]:
        """Return the objects with size and version, as far as they are needed and a listing has not shown them.

        Raises:
            Conflict: an object is gone.
            StorageError: a request failed.
        """
        return list(objects)

    def of(self, objects: Sequence[ReferredObject]) -> list[Checksum]:
        """Return the checksum of each object, which ``completed`` has returned; ``None`` of one that has none.

        Raises:
            InvalidInput: an object has no such checksum, and it was asked for by name.
            Conflict: an object was replaced after it was referred to.
            StorageError: a request failed.
        """
        return [None] * len(objects)


def check_choice(choice: ChecksumChoice) -> None:
    if choice is not None and choice not in get_args(get_args(ChecksumChoice)[0]):
        raise InvalidInput(f"checksum {choice!r} is not one of 'auto', 'etag', 'last_modified' and None")


class StoreChecksums(Checksums):
    """Checksums of the objects of one storage, by key. ``url_of`` returns the URL of a key by which the storage's filesystem knows it;
    without it nothing is known about the objects that icechunk will see. ``are_all``: most of what the storage lists is referred to.

    Raises:
        InvalidInput: ``choice`` cannot be made of these objects.
    """

    def __init__(self, storage: Storage, choice: ChecksumChoice, url_of: Callable[[str], str] | None, *, are_all: bool = True) -> None:
        self._storage = storage
        self._kind = storage.kind
        self._are_all = are_all
        self._is_asked_for = choice in ("etag", "last_modified")
        if choice == "etag" and self._kind != "s3":
            raise InvalidInput(
                f"checksum='etag' cannot be used for {storage.url}: icechunk compares ETags rightly on S3 only. checksum='last_modified' "
                "records times"
            )
        if self._is_asked_for and url_of is None:
            raise InvalidInput(f"checksum={choice!r} cannot be used with base_url: the objects there are not looked at")
        self._url_of = url_of
        self._by_etag = self._kind == "s3" and choice in ("auto", "etag")
        self._is_needed = choice is not None and url_of is not None
        self._listed: dict[str, Mapping[str, Any]] | None = None
        self._are_complete = self._is_needed

    def are_complete(self) -> bool:
        return self._are_complete

    def completed(self, objects: Sequence[ReferredObject]) -> list[ReferredObject]:
        unknown = [one for one in objects if one.nbytes == UNKNOWN_NBYTES or (one.token is None and self._is_needed)]
        if not unknown:
            return list(objects)
        seen: dict[str, ReferredObject] = {}
        for one, info in zip(unknown, run_sync(_stats(self._storage, unknown)), strict=True):
            if info is None:
                raise Conflict(
                    f"the object {one.key!r} of {self._storage.url} was removed while references to it were written: start again"
                )
            seen[one.key] = ReferredObject(one.key, None if info.generation is None else info.generation.token, info.nbytes)
        return [seen.get(one.key, one) for one in objects]

    def of(self, objects: Sequence[ReferredObject]) -> list[Checksum]:
        if not self._is_needed:
            return [None] * len(objects)
        found: list[Checksum] = [_etag(one.token) for one in objects] if self._by_etag else self._times(objects)
        for one, checksum in zip(objects, found, strict=True):
            if checksum is None:
                self._are_complete = False
                if self._is_asked_for:
                    what = "an ETag that can be compared" if self._by_etag else "a time of modification"
                    raise InvalidInput(f"the object {one.key!r} of {self._storage.url} does not have {what}: choose another checksum")
        return found

    def _times(self, objects: Sequence[ReferredObject]) -> list[Checksum]:
        if self._kind == "local":
            return [None if one.token is None else _rounded_up(modified_ns(one.token)) for one in objects]
        infos = self._infos([one.key for one in objects], again=False)
        moved = [i for i, (one, info) in enumerate(zip(objects, infos, strict=True)) if not self._shows(info, one)]
        if moved:
            for i, info in zip(moved, self._infos([objects[i].key for i in moved], again=True), strict=True):
                infos[i] = info
                if not self._shows(info, objects[i]):
                    key, url = objects[i].key, self._storage.url
                    raise Conflict(f"the object {key!r} of {url} was replaced while references to it were written: start again")
        return [_rounded_up(modified_in(info)) for info in infos]

    def _infos(self, keys: Sequence[str], *, again: bool) -> list[Mapping[str, Any]]:
        """Return what the filesystem says of objects: from one listing of all, if it has one that is worth that, else one by one."""
        known = self._storage.ability(OnFilesystem)
        assert known is not None
        assert self._url_of is not None
        fs = known.fs
        paths = [fs._strip_protocol(self._url_of(key)) for key in keys]
        try:
            if again or self._kind == "http" or not self._are_all:
                fs.invalidate_cache()
                return run_sync(_each(fs, paths))
            if self._listed is None:
                fs.invalidate_cache()
                self._listed = fs.find(fs._strip_protocol(self._storage.url), detail=True)
            return [self._listed.get(path, {}) for path in paths]
        except OSError as exc:
            raise StorageError(f"the times of objects in {self._storage.url} could not be looked up: {exc}") from exc

    def _shows(self, info: Mapping[str, Any], one: ReferredObject) -> bool:
        """Return whether this is about the version that was referred to."""
        match self._kind:
            case "s3":
                return canonical_etag(str(info.get("ETag", ""))) == one.token
            case "gcs":
                return str(info.get("generation")) == one.token
            case "http":
                return one.token is not None and one.token in (info.get("ETag"), f"modified={info.get('Last-Modified')}-{one.nbytes}")
        found = version_of(info, one.nbytes)
        return found is not None and found.token == one.token


class SetChecksums(Checksums):
    """Checksums of the objects that a set of references leads to, by URL, in whatever storages they are."""

    def __init__(self, targets: Targets, choice: ChecksumChoice) -> None:
        self._targets = targets
        self._choice: ChecksumChoice = choice
        self._of_storage: dict[int, StoreChecksums] = {}

    def are_complete(self) -> bool:
        return self._choice is not None and all(one.are_complete() for one in self._of_storage.values())

    def completed(self, objects: Sequence[ReferredObject]) -> list[ReferredObject]:
        found = self._by_storage(objects, StoreChecksums.completed)
        return [one._replace(key=given.key) for one, given in zip(found, objects, strict=True)]

    def of(self, objects: Sequence[ReferredObject]) -> list[Checksum]:
        return self._by_storage(objects, StoreChecksums.of)

    def _by_storage(self, objects: Sequence[ReferredObject], do: Callable[[StoreChecksums, Sequence[ReferredObject]], list[T]]) -> list[T]:
        """Return what ``do`` returns for the objects of each storage, in the order of all of them."""
        of_storage: dict[int, list[tuple[int, ReferredObject]]] = {}
        for i, one in enumerate(objects):
            target = self._targets.target(one.key)
            number = id(target.storage)
            if number not in self._of_storage:
                base = target.storage.url.rstrip("/") + "/"
                self._of_storage[number] = StoreChecksums(target.storage, self._choice, base.__add__, are_all=False)
            of_storage.setdefault(number, []).append((i, one._replace(key=target.key)))
        found: dict[int, T] = {}
        for number, some in of_storage.items():
            done = do(self._of_storage[number], [one for _, one in some])
            found |= {i: value for (i, _), value in zip(some, done, strict=True)}
        return [found[i] for i in range(len(objects))]


def checksum_of(url: str, check: VirtualCheck | None) -> Checksum:
    """Return the checksum of an object from what its source noted; ``None`` if icechunk could not compare it, as versions of GCS."""
    if check is None:
        return None
    if url.startswith("s3://") and (etag := _etag(check.etag)) is not None:
        return etag
    if check.last_modified is not None:
        return datetime.fromtimestamp(check.last_modified + 1, UTC)  # it was rounded down
    return _rounded_up(modified_ns(check.etag)) if check.etag is not None and url.startswith("file://") else None


def _etag(token: str | None) -> str | None:
    """Return the ETag, without quotes, which versions of icechunk treat alike; ``None`` if it is a weak one, which never matches."""
    return None if token is None or not token.startswith('"') else token.strip('"')


async def _stats(storage: Storage, objects: Sequence[ReferredObject]) -> list[ObjectInfo | None]:
    return await asyncio.gather(*(storage.stat(one.key) for one in objects))


async def _each(fs: Any, paths: Sequence[str]) -> list[Mapping[str, Any]]:
    if hasattr(fs, "_info"):
        return list(await asyncio.gather(*(fs._info(path) for path in paths)))
    return list(await asyncio.gather(*(asyncio.to_thread(fs.info, path) for path in paths)))


def _rounded_up(nanoseconds: int | None) -> datetime | None:
    """Return the first whole second at or after a time."""
    return None if nanoseconds is None else datetime.fromtimestamp(math.ceil(nanoseconds / 10**9), UTC)
