"""The views of a store that are served, by their first path segment, which is also the name of an S3 bucket; and their listings.

Listings are in the order of keys, page by page; as HTML, JSON, and for ``s3_answers``. A page goes on where the last one ended, by the
name of its last key, and nothing is kept for a client. But directories that were listed for the page before are remembered for a little
while, so that many pages of a large directory take one pass over it, not one each.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from html import escape
from typing import Any, Literal
from urllib.parse import quote

from shardstore.adapters.read_views import ListedName, ReadResult, ReadView, ReadViews, ValueRead, VersionedValue, VersionGone, open_views
from shardstore.errors import InvalidInput, ShardStoreError
from shardstore.format.store_keys import check_directory
from shardstore.model.containers import Lru
from shardstore.model.generation import Generation
from shardstore.model.words import is_utf8
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


# -- listings ------------------------------------------------------------------------------------------------------------

PAGE = 10_000
"""Names on a page of HTML or JSON."""

_KEPT_NAMES = 500_000
_WHOLE_NAMES = 10_000
"""All below a directory is listed at once if it has no more names."""
_KEPT_SECONDS = 30.0
_CSP = "default-src 'none'; style-src 'unsafe-inline'"
LISTING_HEADERS = [(b"content-security-policy", _CSP.encode()), (b"cache-control", b"no-cache")]


_How = Literal["exact", "possible", "below"]


class Listings:
    """The listings of a server's buckets."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept: Lru[tuple[str, str, _How], _Kept] = Lru(_KEPT_NAMES, _Kept.size, seconds=_KEPT_SECONDS, clock=clock)

    async def _listed(self, bucket: Bucket, prefix: str, how: _How, *, goes_on: bool) -> list[ListedName] | None:
        """List one directory; if a client ``goes_on`` with a listing, perhaps as it was for the page before."""
        place = bucket.name, prefix, how
        if goes_on and (kept := self._kept.peek(place)) is not None:
            return kept.names
        if how == "below":
            listed = await bucket.view.list_below(prefix, _WHOLE_NAMES)
        else:
            listed = await bucket.view.list_dir(prefix, exact=how == "exact")
        if listed is not None and not all(one.name.isascii() for one in listed):
            # Names of files can be such that UTF-8 cannot hold them: no client could ask for them.
            listed = [one for one in listed if is_utf8(one.name)]
        return self._kept.put(place, _Kept(listed)).names

    async def below(self, bucket: Bucket, prefix: str, after: str = "", *, goes_on: bool = False) -> AsyncGenerator[ListedName, None]:
        """Yield all keys that start with ``prefix`` and come after ``after``, in ascending order of their UTF-8.

        Few keys are listed at once; many directory by directory, so that a page does not list the whole store.
        """
        if (above := _directory_of(prefix)) is None:
            return
        if (listed := await self._listed(bucket, above, "below", goes_on=goes_on)) is not None:
            for one in listed:
                if one.name > after and one.name.startswith(prefix):
                    yield one
            return
        async for entry in self.at(bucket, prefix, after, exact=False, goes_on=goes_on):
            if not entry.is_prefix:
                yield entry
                continue
            async for inside in self.below(bucket, entry.name, after, goes_on=goes_on):
                yield inside

    async def at(
        self, bucket: Bucket, prefix: str, after: str = "", *, exact: bool = True, goes_on: bool = False
    ) -> AsyncGenerator[ListedName, None]:
        """Yield the keys and the prefixes up to the next ``/`` that start with ``prefix``, and that have keys after ``after``."""
        if (above := _directory_of(prefix)) is None:
            return
        listed = await self._listed(bucket, above, "exact" if exact else "possible", goes_on=goes_on)
        assert listed is not None
        for one in listed:
            if not one.name.startswith(prefix) or not (one.name > after or (one.is_prefix and after.startswith(one.name))):
                continue
            if not (exact and one.is_prefix and after.startswith(one.name)) or await self._has_more(bucket, one.name, after):
                yield one

    async def _has_more(self, bucket: Bucket, name: str, after: str) -> bool:
        """Return whether the prefix ``name`` has keys after ``after``, which starts with it; not if that is the prefix itself, which was
        listed then.
        """
        if name == after:
            return False
        found = self.below(bucket, name, after)
        try:
            return await anext(found, None) is not None
        finally:
            await found.aclose()


@dataclass(frozen=True, slots=True)
class _Kept:
    """A listing; ``None`` if there is too much to be listed at once."""

    names: list[ListedName] | None

    def size(self) -> int:
        return 1 + len(self.names or ())


def _directory_of(prefix: str) -> str | None:
    """Return the directory in which the names lie that start with ``prefix``; ``None`` if no key can start with it."""
    above = prefix[: prefix.rfind("/") + 1]
    try:
        return above if check_directory(above) == above else None
    except InvalidInput:
        return None


# -- pages for people and programs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a directory; ``more`` is the name to go on after, ``None`` on the last one."""

    prefix: str
    entries: list[ListedName]
    more: str | None


async def page_of(listings: Listings, bucket: Bucket, prefix: str, after: str, most: int = PAGE) -> Page:
    """Return a page of the directory ``prefix``. Directories of chunks may be among it that have none."""
    entries: list[ListedName] = []
    async for entry in _names_after(listings, bucket, prefix, after):
        if len(entries) == most:
            return Page(prefix, entries, entries[-1].name)
        entries.append(entry)
    return Page(prefix, entries, None)


async def _names_after(listings: Listings, bucket: Bucket, prefix: str, after: str) -> AsyncGenerator[ListedName, None]:
    async for entry in listings.at(bucket, prefix, after, exact=False, goes_on=bool(after)):
        if not entry.is_prefix or entry.name > after:
            yield entry


def as_json(page: Page) -> bytes:
    """Return a page as JSON: names relative to the directory, sizes in bytes or null."""
    n = len(page.prefix)
    document = {
        "prefixes": [entry.name[n:] for entry in page.entries if entry.is_prefix],
        "values": [{"name": entry.name[n:], "nbytes": entry.nbytes} for entry in page.entries if not entry.is_prefix],
        "after": page.more,
    }
    return json.dumps(document).encode()


def as_html(page: Page, title: str) -> bytes:
    """Return a page as HTML, with relative links, and one to the next page."""
    more = "" if page.more is None else f'<p><a href="?after={quote(page.more, safe="")}">more</a></p>'
    return _html_start(title) + _html_rows(page.prefix, page.entries) + f"</ul>{more}</html>".encode()


async def as_html_pieces(listings: Listings, bucket: Bucket, page: Page, title: str) -> AsyncGenerator[bytes, None]:
    """Yield a directory as one HTML page, in pieces, beginning with the names on ``page``. Programs that read the links of such pages
    follow none to a next one.
    """
    yield _html_start(title) + _html_rows(page.prefix, page.entries)
    entries: list[ListedName] = []
    async for entry in _names_after(listings, bucket, page.prefix, page.entries[-1].name):
        entries.append(entry)
        if len(entries) == PAGE:
            yield _html_rows(page.prefix, entries)
            entries = []
    yield _html_rows(page.prefix, entries) + b"</ul></html>"


def _html_start(title: str) -> bytes:
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>body{{font:16px/1.5 system-ui,sans-serif;margin:2rem}}</style>"
        f'<h1>{escape(title)}</h1><ul><li><a href="../">../</a></li>'
    ).encode()


def _html_rows(prefix: str, entries: Iterable[ListedName]) -> bytes:
    rows: list[str] = []
    for entry in entries:
        name = entry.name[len(prefix) :]
        size = "" if entry.nbytes is None else f" <small>{entry.nbytes:,} B</small>"
        rows.append(f'<li><a href="{relative_link(name)}">{escape(name)}</a>{size}</li>')
    return "".join(rows).encode()


def relative_link(name: str) -> str:
    """Return the link to a name in the same directory. All that could make it another link is escaped: for a program that reads links with
    a regular expression, as fsspec does, a name that begins with "http" is an address.
    """
    return f"%68{quote(name[1:])}" if name.startswith("http") else quote(name)
