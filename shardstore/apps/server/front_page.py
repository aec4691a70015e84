"""The page at ``/``: the report on the store, with what is served, and how programs open it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b

from shardstore.apps.reports.facts import Facts, facts_of, occupancy_of_report
from shardstore.apps.reports.page import Serving, page, policy
from shardstore.apps.server.buckets import Served
from shardstore.apps.server.values import Headers
from shardstore.maintenance.survey.run import glance, storage_facts, survey
from shardstore.model.words import plural

_GLANCE_SECONDS = 2.0
_GLANCE_ARRAYS = 100
_AGAIN_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Page:
    """A page, ready to be sent."""

    body: bytes
    headers: Headers
    etag: str


class FrontPage:
    """Makes the page, when it is asked for the first time, and again when that is asked for; never twice at once. On the IO loop."""

    def __init__(self, served: Served, *, has_token: bool, has_report: bool) -> None:
        """With ``has_report`` false the page is made of metadata alone: no shard is looked into."""
        self.wait_seconds = 2.0
        """The time that a request waits for the report before it gets the page that is made of metadata alone."""
        self._served = served
        self._has_token = has_token
        self._has_report = has_report
        self._making: asyncio.Task[Facts] | None = None
        self._looked_at = 0
        self._facts: Facts | None = None
        self._page: tuple[Facts, str, Page] | None = None  # the last one, with the URL that it was made for

    def renew(self) -> None:
        """Make the report again, unless it is being made."""
        if self._has_report and self._making is None:
            self._facts = None
            self._begin()

    async def get(self, base: str) -> Page:
        """Return the page. ``base`` is the URL of the server as the client has it, with ``/`` at its end.

        Raises:
            NotFound: there is nothing yet.
            StorageError: a request failed.
        """
        if self._facts is None and self._has_report:
            making = self._making or self._begin()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(making), self.wait_seconds)
        if self._facts is not None:
            return await self._made(self._facts, base)
        return await self._rendered(await self._at_a_glance(), base, is_under_way=self._making is not None)

    # -- facts -------------------------------------------------------------------------------------------------------------

    def _begin(self) -> asyncio.Task[Facts]:
        self._looked_at = 0
        self._making = asyncio.ensure_future(self._report())
        self._making.add_done_callback(self._end)
        return self._making

    def _end(self, made: asyncio.Task[Facts]) -> None:
        self._making = None
        if not made.cancelled() and made.exception() is None:  # requests that wait get the error; a later one tries again
            self._facts = made.result()

    async def _report(self) -> Facts:
        def note(objects: int) -> None:
            self._looked_at = objects

        engine = self._served.store.handle.engine
        at = datetime.now(UTC)
        occupancy = occupancy_of_report()
        found = await survey(engine.canonical, occupancy=occupancy, progress=note)
        storage = storage_facts(engine, self._served.store.snapshot)
        return await asyncio.to_thread(facts_of, found, storage, url=self._served.url, at=at, occupancy=occupancy)

    async def _at_a_glance(self) -> Facts:
        engine = self._served.store.handle.engine
        at = datetime.now(UTC)
        found, is_complete = await glance(engine.canonical, most_arrays=_GLANCE_ARRAYS, seconds=_GLANCE_SECONDS)
        return facts_of(found, storage_facts(engine, self._served.store.snapshot), url=self._served.url, at=at, is_complete=is_complete)

    # -- pages -------------------------------------------------------------------------------------------------------------

    async def _made(self, facts: Facts, base: str) -> Page:
        if self._page is None or self._page[0] is not facts or self._page[1] != base:
            self._page = (facts, base, await self._rendered(facts, base, is_under_way=False))
        return self._page[2]

    async def _rendered(self, facts: Facts, base: str, *, is_under_way: bool) -> Page:
        looked_at = plural(self._looked_at, "object")
        serving = Serving(
            views=self._served.views,
            absent=list(self._served.store.absent.items()),
            snippets=_snippets(base, has_token=self._has_token),
            under_way=f"The shards are being looked at, {looked_at} so far: this page comes again by itself." if is_under_way else "",
        )
        body = (await asyncio.to_thread(page, facts, serving)).encode(errors="backslashreplace")
        headers: Headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-security-policy", policy().encode()),
            (b"cache-control", b"no-cache"),
        ]
        if is_under_way:
            headers.append((b"refresh", b"%d" % _AGAIN_SECONDS))
        return Page(body, headers, f'"{blake2b(body, digest_size=12).hexdigest()}"')


def _snippets(base: str, *, has_token: bool) -> str:
    host = base.rstrip("/")
    key = '"the token", "secret": "unused"' if has_token else '"any", "secret": "any"'
    headers = ', "client_kwargs": {"headers": {"Authorization": "Bearer the token"}}' if has_token else ""
    return (
        "# Python\n"
        f'zarr.open("{base}zarr3/", mode="r", storage_options={{{headers.removeprefix(", ")}}})\n'
        f'zarr.open("s3://zarr3/", mode="r", storage_options={{"endpoint_url": "{host}", "key": {key}}})\n'
        f'shardstore.open("{base}stored/", read_only=True)\n\n'
        "// JavaScript, with zarrita\n"
        f'const root = await zarr.open(new zarr.FetchStore("{base}zarr3"), {{ kind: "group" }})\n'
    )
