"""The views of a store that are served, by their first path segment, which is also the name of an S3 bucket."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from shardstore.adapters.read_views import ReadView, ReadViews, open_views
from shardstore.adapters.value_reads import ReadResult, ValueRead, VersionedValue, VersionGone
from shardstore.errors import ShardStoreError
from shardstore.model.containers import Lru
from shardstore.model.generation import Generation
from shardstore.tasks import TickBatch

_MOST_ETAGS = 10_000
_ETAG_NBYTES = 12
_HOLD_RATIO = 1 / 8
_MOST_HOLD_SECONDS = 0.005
_LEAST_HOLD_SECONDS = 0.001
_ATTEMPTS = 10

_CONTENTS = {
    "zarr3": "Zarr v3, chunk by chunk",
    "zarr2": "Zarr v2, chunk by chunk",
    "stored": "the stored objects, unchanged: shards are shards",
}
"""What each view shows, for people."""


class Moved(Exception):
    """A value kept changing while it was read."""


class GatheredReads(TickBatch[ValueRead, VersionedValue | None]):
    """Reads that are carried out together: those of one tick of the loop, and where reading takes long, those that arrive soon after.

    A batch waits for an eighth of the time that the last one took, at most 5 ms: so the chunks that the connections of one client ask for
    become few requests to a distant storage. On a disk, which answers sooner than that would be worth, nothing waits.
    """

    def __init__(self, read: Callable[[Sequence[ValueRead]], Awaitable[Sequence[ReadResult]]]) -> None:
        super().__init__(self._timed)
        self._read = read
        self._took_seconds = 0.0

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        seconds = min(_MOST_HOLD_SECONDS, self._took_seconds * _HOLD_RATIO)
        if seconds < _LEAST_HOLD_SECONDS:
            super()._begin(loop)
        else:
            loop.call_later(seconds, self._flush)

    async def _timed(self, reads: Sequence[ValueRead]) -> Sequence[ReadResult]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        results = await self._read(reads)
        self._took_seconds = loop.time() - began
        return results


class Bucket:
    """One view of a store. Reads that arrive together are carried out together."""

    def __init__(self, name: str, view: ReadView, clock: Callable[[], float] = time.time) -> None:
        self.name = name
        self.view = view
        self._clock = clock
        self._reads = GatheredReads(lambda reads: self.view.read(reads))
        self._versions: Lru[str, Generation] = Lru(_MOST_ETAGS)  # by the entity tags that were made for them

    def __repr__(self) -> str:
        return f"Bucket({self.name!r})"

    async def read(self, read: ValueRead) -> VersionedValue | None:
        """Read one value, whose key has been checked; return ``None`` if there is none.

        Raises:
            VersionGone: there is another version than the one that was asked for.
            ShardStoreError: it could not be read.
        """
        return await self._reads.submit(read)

    async def look(self, key: str) -> VersionedValue | None:
        """Return version and size of a value, without its bytes; ``None`` if there is none. Raises as ``read``, and ``Moved``."""
        for _ in range(_ATTEMPTS):
            try:
                return await self.read(ValueRead(key))
            except VersionGone:
                continue
        raise Moved(key)

    async def look_at_each(self, keys: Sequence[str]) -> Mapping[str, VersionedValue]:
        """Return version and size of values; those that do not exist, or cannot be shown, are left out."""

        async def one(key: str) -> VersionedValue | None:
            try:
                return await self.look(key)
            except (ShardStoreError, Moved):
                return None

        found = await asyncio.gather(*map(one, keys))
        return {key: value for key, value in zip(keys, found, strict=True) if value is not None}

    def modified(self, generation: Generation | None) -> int:
        """Return when a version was stored, in whole seconds since the epoch: the time of the object that it lies in. Now, where the
        storage does not say so, or says a time to come: a client that compares times fetches the value again.
        """
        now = self._clock()
        stored = None if generation is None else generation.modified
        return int(now if stored is None or not 0 <= stored <= now else stored)

    def etag(self, generation: Generation) -> str | None:
        """Return the strong entity tag of a version of a value: equal in every process, and it reveals nothing of the storage. ``None`` if
        equal versions do not promise equal bytes. It has the form of an upload in one part: s3cmd takes any other for an MD5 sum.
        """
        if not self.view.identifies(generation):
            return None
        token = generation.token.encode(errors="surrogatepass")
        etag = f'"{blake2b(token, digest_size=_ETAG_NBYTES, person=self.name.encode()).hexdigest()}-1"'
        self._versions.put(etag, generation)
        return etag

    def listed_etag(self, generation: Generation | None) -> str:
        """Return the entity tag of a version for a listing, where clients of S3 cannot do without: without a version, one that equals no
        other.
        """
        etag = None if generation is None else self.etag(generation)
        return etag or f'"{secrets.token_hex(_ETAG_NBYTES)}-1"'

    def generation(self, etag: str) -> Generation | None:
        """Return the version that an entity tag was made for, if this process has made it recently."""
        return self._versions.peek(etag)


@dataclass(frozen=True, slots=True)
class Served:
    """A store with its buckets."""

    store: ReadViews
    buckets: Mapping[str, Bucket]

    @property
    def url(self) -> str:
        """The URL of the store, without credentials."""
        return self.store.handle.url

    @property
    def views(self) -> list[tuple[str, str]]:
        """The name of each bucket, and what it shows, for people."""
        return [(name, _CONTENTS[name]) for name in self.buckets]


def open_served(url: Any, storage_options: Mapping[str, Any] | None, **options: Any) -> Served:
    """Open a store for reading; options, and what is raised, are those of ``open_views``."""
    store = open_views(url, storage_options, **options)
    return Served(store, {name: Bucket(name, view) for name, view in store.views.items()})
