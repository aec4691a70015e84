"""Objects in S3 and servers that speak its language, through obstore.

Besides reads, it carries writes that fit into one request, and listings below a ``/``. A write carries the id of ``lost_answers``, and
is judged by its rule. obstore's own retries are off: they would take their own success for a conflict.

These go through s3fs: large writes, since obstore has no conditions on them; deletions, copies and probes, where it has none either;
listings by part of a name, which it does not know; and listings that show an empty object. obstore drops the ``/`` at the end of the
marker of a directory, which then looks like an object; such a page is listed again. (A marker that is not empty would be shown as an
object that cannot be read: no tool is known to make those.)
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import obstore
from obstore.exceptions import BaseError

from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import Condition, Generation, Unconditional
from shardstore.storage.base import DirListing, ObjectInfo, check_directory
from shardstore.storage.obstore.reading import Bucket, ObstoreAnswer, ObstoreStorage, put_mode, put_object
from shardstore.storage.obstore.s3_probes import ProbingClient
from shardstore.storage.obstore.s3_settings import S3Settings, S3SettingsReader, check, opened
from shardstore.storage.requests.outcomes import RequestFailed, canonical_etag
from shardstore.storage.requests.writes import Body
from shardstore.storage.s3.client import facts_of, probe_server
from shardstore.storage.s3.storage import S3Storage
from shardstore.storage.s3.upload import put

logger = logging.getLogger(__name__)


class ObstoreS3Storage(ObstoreStorage[S3Storage]):
    """The place of an ``S3Storage``, used through obstore. Options that obstore would ignore are refused."""

    def __init__(self, inner: S3Storage, is_asked: bool = True) -> None:
        check(inner.client)
        super().__init__(inner, is_asked)
        self.keys_per_page = 1000
        self._source = S3SettingsReader(inner.client)
        self._settings: S3Settings | None = None

    async def bucket(self) -> Bucket | None:
        if self.is_left_out():
            return None
        try:
            settings = await self._source.current()
            if settings != self._settings:  # credentials have been renewed
                client = self.inner.client
                self._bucket = None if settings is None else opened(client.bucket, settings)
                client.found_server = None if settings is None else settings.endpoint
                self._settings = settings
        except Exception as exc:  # noqa: BLE001 - none is lost: s3fs asks then, and says where it cannot either
            self.leave_out(exc)
            return None
        return self._bucket

    def version_of(self, answer: ObstoreAnswer) -> Generation | None:
        return Generation(canonical_etag(answer.etag), answer.modified) if answer.etag else None

    def condition_on(self, generation: Generation) -> str | None:
        return None if generation.token.startswith("W/") else generation.token  # a weak one never matches

    # -- writing -------------------------------------------------------------------------------------------------------

    async def probe(self) -> Capabilities:
        client = self.inner.client
        facts = facts_of(client)
        if facts.capabilities is None and (bucket := await self.bucket()) is not None and self._settings is not None:
            facts.capabilities = await probe_server(ProbingClient(client, bucket, self._settings), self.inner.claimed_without_probe)
        return await self.inner.probe()

    async def write(self, key: str, body: Body, nbytes: int, condition: Condition) -> Generation:
        inner = self.inner
        needs_s3fs = inner.client.fs.s3_additional_kwargs  # which it alone sends along, such as encryption, tags and access rights
        if nbytes > inner.part_bytes or needs_s3fs or await self.bucket() is None:
            return await inner.write(key, body, nbytes, condition)
        if not isinstance(condition, Unconditional):
            await self.probe()
        condition = await inner.checked(key, condition)

        async def send(Body: bytes, Metadata: dict[str, str], **conditions: str) -> dict[str, Any]:  # noqa: N803 - PutObject's names
            return await self._put(key, Body, Metadata, conditions)

        try:
            return await put(inner.client, key, body, nbytes, condition, send)
        finally:
            inner.client.forget_listing(key)

    async def _put(self, key: str, data: bytes, metadata: dict[str, str], conditions: dict[str, str]) -> dict[str, Any]:
        """Store an object by one request. Where it is refused for a reason other than the condition or the load, nothing is stored, and
        s3fs asks again.
        """
        client = self.inner.client
        if (bucket := await self.bucket()) is not None:
            try:
                async with client.bound.slot():
                    return {"ETag": await put_object(bucket, client.full_key(key), data, put_mode(conditions), metadata)}
            except RequestFailed as exc:
                is_refused = (exc.is_absent or exc.status == 412) and bool(conditions)
                if is_refused or exc.is_busy or exc.is_lost:
                    raise
                self.heed(exc)
        return await client.call("put_object", "writing", key, Body=data, Metadata=metadata, **conditions)

    # -- looking -------------------------------------------------------------------------------------------------------

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        directory = self._directory(prefix)
        bucket = None if directory is None else await self.bucket()
        last: str | None = None
        if bucket is not None:
            try:
                async for page in bucket.list(directory, chunk_size=self.keys_per_page):
                    infos = self._infos(page)
                    if infos is None:
                        break
                    for info in infos:
                        yield info
                        last = info.key
                else:
                    return
            except (BaseError, OSError, ValueError) as exc:
                logger.debug("listing %s below %r goes on through s3fs: %s", self.url, prefix, exc)
            self.asked_below += 1
        async for info in self.inner.list(prefix, last):
            yield info

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)
        directory = self._directory(prefix)
        bucket = None if directory is None else await self.bucket()
        if bucket is not None:
            infos: Sequence[ObjectInfo] | None = None
            try:
                async with self.inner.client.bound.slot():
                    found = await bucket.list_with_delimiter_async(directory)
                infos = self._infos(found["objects"])
            except (BaseError, OSError, ValueError) as exc:
                logger.debug("listing %s at %r goes on through s3fs: %s", self.url, prefix, exc)
            if infos is not None:
                own = self.inner.client.own_key
                return DirListing(tuple(infos), tuple(own(name) + "/" for name in found["common_prefixes"]))
            self.asked_below += 1
        return await self.inner.list_dir(prefix)

    def _directory(self, prefix: str) -> str | None:
        """Return ``prefix`` in obstore's form, without the ``/`` at its end; ``None`` if it has none."""
        full = self.inner.client.full_key(prefix)
        return full.removesuffix("/") if not full or full.endswith("/") else None

    def _infos(self, page: Iterable[obstore.ObjectMeta]) -> Sequence[ObjectInfo] | None:
        """Return the objects on a page; ``None`` if the page may show more than objects, or does not give their versions."""
        own = self.inner.client.own_key
        infos: list[ObjectInfo] = []
        for meta in page:
            if not meta["size"] or not meta["e_tag"]:
                return None
            version = Generation(canonical_etag(meta["e_tag"]), meta["last_modified"].timestamp())
            infos.append(ObjectInfo(own(meta["path"]), meta["size"], version))
        return infos
