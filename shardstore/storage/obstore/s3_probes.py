"""The requests that find out what a server of S3 honours, made through obstore: so that needs no client of s3fs.

obstore has no conditions on deletions. Its buckets have headers that go with each request, and are signed with it; one with ``If-Match``
is opened for the one deletion that has a condition.
"""

from __future__ import annotations

from collections.abc import Awaitable

from shardstore.model.generation import Condition, Generation
from shardstore.storage.obstore.reading import NO_SUCH_KEY, Bucket, delete_object, get_head, put_mode, put_object
from shardstore.storage.obstore.s3_settings import S3Settings, opened
from shardstore.storage.requests.outcomes import Head, RequestFailed, canonical_etag
from shardstore.storage.s3.client import S3Client, condition_parameters, facts_of


class ProbingClient(S3Client):
    """Requests of probes to the place of ``client``. What obstore gets no plain answer to is asked through s3fs."""

    def __init__(self, client: S3Client, bucket: Bucket, settings: S3Settings) -> None:
        super().__init__(client.fs, client.bucket, client.prefix, client.bound.limit)
        self.found_server = settings.endpoint
        self._bucket = bucket
        self._settings = settings

    async def put_empty(self, key: str, condition: Condition) -> None:
        mode = put_mode(condition_parameters(condition, facts_of(self)))
        if not await self._is_carried_out(put_object(self._bucket, self.full_key(key), b"", mode, {})):
            await super().put_empty(key, condition)

    async def delete(self, key: str, condition: Condition, action: str = "deleting") -> bool:
        etag = condition_parameters(condition, facts_of(self)).get("IfMatch")
        bucket = self._bucket if etag is None else opened(self.bucket, self._settings, {"If-Match": etag})
        return await self._is_carried_out(delete_object(bucket, self.full_key(key))) or await super().delete(key, condition, action)

    async def head(self, key: str, **conditions: str) -> Head | None:
        try:
            async with self.bound.slot():
                found = await get_head(self._bucket, self.full_key(key))
        except RequestFailed:
            return await super().head(key, **conditions)
        return Head(Generation(canonical_etag(found.etag), found.modified), found.nbytes, None)

    async def _is_carried_out(self, request: Awaitable[object]) -> bool:
        """Return whether a request was carried out; false if there was no plain answer. Raises ``RequestFailed`` for a plain refusal."""
        try:
            async with self.bound.slot():
                await request
        except RequestFailed as exc:
            if exc.status in (409, 412) or (exc.status == 404 and exc.code == NO_SUCH_KEY):
                raise
            return False
        return True
