"""A bucket of S3, as its requests see it, and the client library that ``S3Storage`` makes them through.

What is asked of the bucket is carried out in one step. It is strongly consistent, as S3 is: each request sees all that was carried out
before. ``honours`` says which conditions it knows: AWS knows all, other servers some.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from tests.simulation.network import Answer, ConnectionLost, ConnectTimeout, Network
from tests.simulation.objects import Objects, asked_range

_ATTEMPTS = 4  # of the client library, for one call


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions that a server honours."""

    put: bool = True
    delete: bool = True
    complete: bool = True
    copy_source: bool = True


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of an object."""

    data: bytes
    etag: str
    metadata: Mapping[str, str]
    at: float


@dataclass
class Upload:
    """A multipart upload that is under way."""

    key: str
    metadata: Mapping[str, str]
    at: float
    parts: dict[int, tuple[str, bytes]] = field(default_factory=dict)


class Bucket:
    """All objects, and what each request does to them."""

    def __init__(self, now: Callable[[], float], conditions: Conditions) -> None:
        self.objects: Objects[Stored] = Objects()
        self.listing_lag_seconds: float | None = None
        """How old listings are; ``None``: they are never late, as Amazon documents it."""
        self.uploads: dict[str, Upload] = {}
        self.conditions = conditions
        self._now = now
        self._number = 0

    def _about_to_change(self, key: str) -> None:
        if self.listing_lag_seconds is not None:
            self.objects.note(self._now(), key)

    def serve(self, method: str, parameters: Mapping[str, Any]) -> Answer[dict[str, Any]]:
        """Carry out one request."""
        answer: Answer[dict[str, Any]] = getattr(self, f"_{method}")(**{name: parameters[name] for name in parameters if name != "Bucket"})
        return answer

    # -- objects -------------------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes, metadata: Mapping[str, str], etag: str | None = None) -> Stored:
        self._about_to_change(key)
        return self.objects.put(key, Stored(data, etag or _md5(data), dict(metadata), self._now()))

    def _refusal(self, key: str, if_match: str | None, if_none_match: str | None, *, honoured: bool) -> Answer[dict[str, Any]] | None:
        """Return the answer to a request whose condition does not hold."""
        there = self.objects.versions.get(key)
        if not honoured or (if_match is None and if_none_match is None):
            return None
        if if_none_match is not None and there is not None:
            return Answer(412, "PreconditionFailed")
        if if_match is not None and there is None:
            return Answer(404, "NoSuchKey")
        if if_match is not None and there is not None and there.etag != if_match:
            return Answer(412, "PreconditionFailed")
        return None

    def _put_object(
        self, Key: str, Body: bytes, Metadata: Mapping[str, str] | None = None, IfMatch: str | None = None, IfNoneMatch: str | None = None
    ) -> Answer[dict[str, Any]]:
        refusal = self._refusal(Key, IfMatch, IfNoneMatch, honoured=self.conditions.put)
        return refusal or Answer(200, content={"ETag": self.put(Key, bytes(Body), Metadata or {}).etag})

    def _head_object(self, Key: str) -> Answer[dict[str, Any]]:
        there = self.objects.versions.get(Key)
        if there is None:
            return Answer(404, "404")
        return Answer(200, content=self._described(there))

    def _described(self, stored: Stored) -> dict[str, Any]:
        return {"ETag": stored.etag, "ContentLength": len(stored.data), "Metadata": dict(stored.metadata)}

    def _get_object(self, Key: str, Range: str | None = None, IfMatch: str | None = None) -> Answer[dict[str, Any]]:
        there = self.objects.versions.get(Key)
        if there is None:
            return Answer(404, "NoSuchKey")
        if IfMatch is not None and there.etag != IfMatch:
            return Answer(412, "PreconditionFailed")
        found = self._described(there)
        if Range is None:
            return Answer(200, content=found | {"data": there.data})
        nbytes = len(there.data)
        asked = asked_range(Range, nbytes)
        if asked is None:
            return Answer(416, "InvalidRange")
        content_range = f"bytes {asked.start}-{asked.stop - 1}/{nbytes}"
        data = there.data[asked.start : asked.stop]
        return Answer(206, content=found | {"data": data, "ContentLength": len(data), "ContentRange": content_range})

    def _delete_object(self, Key: str, IfMatch: str | None = None) -> Answer[dict[str, Any]]:
        if (refusal := self._refusal(Key, IfMatch, None, honoured=self.conditions.delete)) is not None:
            return refusal
        self._about_to_change(Key)
        self.objects.remove(Key)
        return Answer(204, content={})

    def _delete_objects(self, Delete: Mapping[str, Any]) -> Answer[dict[str, Any]]:
        for one in Delete["Objects"]:
            self._about_to_change(one["Key"])
            self.objects.remove(one["Key"])
        return Answer(200, content={})

    def _copy_object(
        self,
        Key: str,
        CopySource: Mapping[str, str],
        CopySourceIfMatch: str | None = None,
        Metadata: Mapping[str, str] | None = None,
        **_: Any,
    ) -> Answer[dict[str, Any]]:
        there = self.objects.versions.get(CopySource["Key"])
        if there is None:
            return Answer(404, "NoSuchKey")
        if CopySourceIfMatch is not None and self.conditions.copy_source and there.etag != CopySourceIfMatch:
            return Answer(412, "PreconditionFailed")
        made = self.put(Key, there.data, there.metadata if Metadata is None else Metadata)
        return Answer(200, content={"CopyObjectResult": {"ETag": made.etag}})

    # -- uploads in parts ----------------------------------------------------------------------------------------------

    def _create_multipart_upload(self, Key: str, Metadata: Mapping[str, str] | None = None) -> Answer[dict[str, Any]]:
        self._number += 1
        upload_id = f"upload-{self._number}"
        self.uploads[upload_id] = Upload(Key, dict(Metadata or {}), self._now())
        return Answer(200, content={"UploadId": upload_id})

    def _upload_part(self, Key: str, UploadId: str, PartNumber: int, Body: bytes) -> Answer[dict[str, Any]]:
        upload = self.uploads.get(UploadId)
        if upload is None:
            return Answer(404, "NoSuchUpload")
        etag = _md5(bytes(Body))
        upload.parts[PartNumber] = etag, bytes(Body)
        return Answer(200, content={"ETag": etag})

    def _upload_part_copy(
        self,
        Key: str,
        UploadId: str,
        PartNumber: int,
        CopySource: Mapping[str, str],
        CopySourceRange: str,
        CopySourceIfMatch: str | None = None,
    ) -> Answer[dict[str, Any]]:
        there = self.objects.versions.get(CopySource["Key"])
        if there is None:
            return Answer(404, "NoSuchKey")
        if CopySourceIfMatch is not None and self.conditions.copy_source and there.etag != CopySourceIfMatch:
            return Answer(412, "PreconditionFailed")
        asked = asked_range(CopySourceRange, len(there.data))
        if asked is None or f"bytes={asked.start}-{asked.stop - 1}" != CopySourceRange:
            return Answer(416, "InvalidRange")
        answer = self._upload_part(Key, UploadId, PartNumber, there.data[asked.start : asked.stop])
        return answer if answer.content is None else Answer(200, content={"CopyPartResult": answer.content})

    def _complete_multipart_upload(
        self, Key: str, UploadId: str, MultipartUpload: Mapping[str, Any], IfMatch: str | None = None, IfNoneMatch: str | None = None
    ) -> Answer[dict[str, Any]]:
        upload = self.uploads.get(UploadId)
        if upload is None:
            return Answer(404, "NoSuchUpload")
        if (refusal := self._refusal(Key, IfMatch, IfNoneMatch, honoured=self.conditions.complete)) is not None:
            return refusal
        named = [(part["PartNumber"], part["ETag"]) for part in MultipartUpload["Parts"]]
        if any(number not in upload.parts or upload.parts[number][0] != etag for number, etag in named):
            return Answer(400, "InvalidPart")
        del self.uploads[UploadId]
        digests = b"".join(bytes.fromhex(etag.strip('"')) for _, etag in named)
        etag = f'"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(named)}"'
        made = self.put(Key, b"".join(upload.parts[number][1] for number, _ in named), upload.metadata, etag)
        return Answer(200, content={"ETag": made.etag})

    def _abort_multipart_upload(self, Key: str, UploadId: str) -> Answer[dict[str, Any]]:
        return Answer(404, "NoSuchUpload") if self.uploads.pop(UploadId, None) is None else Answer(204, content={})

    def _list_parts(self, Key: str, UploadId: str) -> Answer[dict[str, Any]]:
        upload = self.uploads.get(UploadId)
        if upload is None:
            return Answer(404, "NoSuchUpload")
        parts = [{"PartNumber": number, "Size": len(data), "ETag": etag} for number, (etag, data) in sorted(upload.parts.items())]
        return Answer(200, content={"Parts": parts})

    def _list_multipart_uploads(self, Prefix: str, **_: Any) -> Answer[dict[str, Any]]:
        found = [
            {"Key": upload.key, "UploadId": name, "Initiated": datetime.fromtimestamp(upload.at, UTC)}
            for name, upload in self.uploads.items()
            if upload.key.startswith(Prefix)
        ]
        return Answer(200, content={"Uploads": found})

    # -- listing -------------------------------------------------------------------------------------------------------

    def _list_objects_v2(
        self, Prefix: str, Delimiter: str | None = None, StartAfter: str = "", ContinuationToken: str | None = None
    ) -> Answer[dict[str, Any]]:
        lag = self.listing_lag_seconds
        listed = self.objects if lag is None else self.objects.as_of(self._now(), lag)
        names, prefixes, last = listed.page(Prefix, Delimiter, ContinuationToken or StartAfter)
        there = listed.versions
        page: dict[str, Any] = {
            "Contents": [{"Key": name, "Size": len(there[name].data), "ETag": there[name].etag} for name in names],
            "CommonPrefixes": [{"Prefix": prefix} for prefix in prefixes],
            "IsTruncated": last is not None,
        }
        return Answer(200, content=page if last is None else page | {"NextContinuationToken": last})


def _md5(data: bytes) -> str:
    """Return the ETag of an object that was stored by one request."""
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


# -- the client library --------------------------------------------------------------------------------------------------


class ClientError(Exception):
    """A refusal, as botocore shows it."""

    def __init__(self, status: int, code: str, method: str) -> None:
        super().__init__(f"An error occurred ({code}) when calling the {method} operation")
        self.status = status
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


class _Body:
    """The body of an answer, which may break off."""

    def __init__(self, data: bytes, *, torn: bool) -> None:
        self._data = data
        self._torn = torn

    async def __aenter__(self) -> _Body:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def read(self, nbytes: int = -1) -> bytes:
        await asyncio.sleep(0)
        if self._torn:
            raise ConnectionLost("the connection broke within the body")
        if nbytes < 0:
            nbytes = len(self._data)
        taken, self._data = self._data[:nbytes], self._data[nbytes:]
        return taken


class S3FileSystem:
    """What ``S3Storage`` uses of ``s3fs.S3FileSystem``: its calls, with its retries, and its options."""

    protocol = ("s3", "s3a")
    asynchronous = False
    s3_additional_kwargs: Mapping[str, Any] = {}
    req_kw: Mapping[str, Any] = {}
    client_kwargs: Mapping[str, Any] = {}
    storage_options: Mapping[str, Any] = {}

    def __init__(self, network: Network, bucket: Bucket, endpoint_url: str, *, is_aws: bool, elsewhere: Callable[[], Any]) -> None:
        self._elsewhere = elsewhere
        self._network = network
        self._bucket = bucket
        self.endpoint_url = endpoint_url
        address = "https://s3.amazonaws.com" if is_aws else endpoint_url
        self._s3 = SimpleNamespace(meta=SimpleNamespace(endpoint_url=address))

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        """Let a pickle be what ``elsewhere()`` returns where it is unpickled."""
        return self._elsewhere, ()

    @staticmethod
    def _strip_protocol(path: str) -> str:
        return path.partition("://")[2] or path

    def invalidate_cache(self, path: str | None = None) -> None:
        """Do nothing: nothing is remembered."""

    async def set_session(self) -> None:
        """Do nothing: there is no session."""

    async def get_s3(self, bucket: str) -> Any:
        async def put_object(**parameters: Any) -> dict[str, Any]:
            file = parameters.pop("Body")
            parameters.pop("ContentLength", None)
            return await self._once("put_object", parameters | {"Body": file.read()})

        return SimpleNamespace(put_object=put_object)

    def _get_s3_method_kwargs(self, method: Any, *mappings: Mapping[str, Any], **parameters: Any) -> dict[str, Any]:
        return parameters

    async def _call_s3(self, method: str, *mappings: Mapping[str, Any], **parameters: Any) -> dict[str, Any]:
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._once(method, parameters)
            except (ConnectionLost, ConnectTimeout):
                if attempt == _ATTEMPTS:
                    raise
            except ClientError as exc:
                if attempt == _ATTEMPTS or exc.status not in (429, 500, 503):
                    raise
            await asyncio.sleep(0.1 * 1.7**attempt)

    async def _once(self, method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        sent = copy.copy(parameters)
        answer = await self._network.exchange(lambda: self._bucket.serve(method, sent))
        if answer.status >= 400:
            raise ClientError(answer.status, answer.code, method)
        content = dict(answer.content or {}) | {"ResponseMetadata": {"HTTPStatusCode": answer.status, "HTTPHeaders": {}}}
        if "data" in content:
            data = content.pop("data")
            content["Body"] = _Body(data, torn=bool(data) and self._network.happens("torn"))
        return content
