"""Reads chunk files, and the files of others that virtual references lead to, all of one batch in one round of requests.

A repository may come from anybody. So virtual references lead only to where the reader says: below one of the URLs that were authorised
when the repository was opened (D31).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shardstore.errors import Conflict, Corruption, InvalidInput, ShardStoreError
from shardstore.format.snapshots.file_names import CHUNKS, encode_id
from shardstore.format.snapshots.manifest import VirtualCheck
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRange
from shardstore.storage.base import Absent, Changed, Failed, Found, Read, ReadOutcome, Storage
from shardstore.storage.opening.open import open_storage
from shardstore.storage.opening.reference_targets import ReferenceTargets, SetAddress, TargetOptions
from shardstore.storage.redaction import redacted

Asked = tuple[bytes | str, Sequence[ByteRange], VirtualCheck | None]
"""The id of a chunk file, or the URI of a virtual one; ranges of it; and what tells that a virtual one is still the same."""


class VirtualFiles:
    """The files of chunks of one repository."""

    def __init__(self, storage: Storage, prefixes: Collection[str] = (), options: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._storage = storage
        self.prefixes = tuple(prefixes)
        for prefix in self.prefixes:
            if "://" not in prefix or not prefix.endswith("/"):
                raise InvalidInput(
                    f"virtual_prefixes: {prefix!r} is no beginning of URLs: give one as s3://bucket/data/, with '/' at its end"
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
            for (number, _), outcome in zip(reads, outcomes, strict=True):
                file, _, check = asked[number]
                answers[number] = self._answer(file, check, outcome)

        await asyncio.gather(*(ask(storage, reads) for storage, reads in of_storage.values()))
        return answers

    def check_authorised(self, url: str) -> None:
        """Raise ``InvalidInput`` if virtual references may not lead there."""
        if not any(url.startswith(prefix) for prefix in self.prefixes) or "/../" in url or url.endswith("/.."):
            allowed = ", ".join(map(redacted, self.prefixes)) or "nowhere"
            place = redacted(url).rpartition("/")[0]
            raise InvalidInput(
                f"virtual references of {self._storage.url} lead to {redacted(url)}, and may lead {allowed}: if you trust the repository, "
                f"open it with virtual_prefixes=['{place}/']"
            )

    def _read_of(self, file: bytes | str, ranges: tuple[ByteRange, ...], check: VirtualCheck | None) -> tuple[Storage, Read]:
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
            return Corruption(
                f"{name} of {self._storage.url} is not there, though a manifest refers to it: restore the file, or erase the chunk"
            )
        changed = Conflict(f"{name} has changed since {self._storage.url} referred to it, so nothing was read: set the references anew")
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
