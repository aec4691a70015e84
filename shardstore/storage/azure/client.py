"""Requests to one container through the client that the user's adlfs instance has made, with errors translated once, here.

Of the client, an ``azure.storage.blob.aio.BlobServiceClient``, only this is used: ``url``, ``api_version`` and ``_pipeline.run``, which
signs a request, with the user's credentials, and sends it. Its methods for blobs are not used: they split reads and writes, repeat
conditional writes, and read without bound. Nothing of azure or adlfs is imported: ``azure.core.rest.HttpRequest``, which the pipeline
takes, is loaded by name, and errors are recognised by the headers of answers.

The pipeline's own retries, which begin after 15 s, are left out: requests that can be repeated are repeated here.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

from shardstore.errors import NO_SUCH_BUCKET, AccessDenied, InvalidInput, ShardStoreError, StorageError
from shardstore.model.advice import storage_option
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import Condition, Generation, IfAbsent, IfGeneration, Unconditional
from shardstore.model.ranges import ByteRequest
from shardstore.model.redaction import redacted, shown_cause
from shardstore.storage.requests import lost_answers
from shardstore.storage.requests.bucket import BucketClient
from shardstore.storage.requests.outcomes import (
    PROBE_PREFIX,
    WRITE_ID,
    Head,
    RequestFailed,
    generation_of,
    is_unreachable,
    probe_key,
)
from shardstore.storage.requests.probes import is_refused, probe_conditions, remove
from shardstore.storage.requests.ranged_reads import REFUSAL_NBYTES, at_most, received

_SENDS = 4  # of a request that may be repeated
_SERVICES = (".core.windows.net", ".storage.azure.net", ".core.chinacloudapi.cn", ".core.usgovcloudapi.net")

METADATA = "x-ms-meta-"
WRITE_ID_HEADER = METADATA + WRITE_ID.replace("-", "")  # names of metadata are identifiers in Azure
CONDITION_CODES = frozenset({"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet"})
BLOCKS_GONE = "InvalidBlockList"


@dataclass(frozen=True, slots=True)
class AzureAnswer:
    """An answer of the server; names of headers are found in any case. Of a part of an object that came as a whole, ``body`` has the
    wanted part and the object's size.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes | tuple[memoryview, int]

    def xml(self, what: str) -> ElementTree.Element:
        """Return the body as XML. Raises ``StorageError`` if it is something else."""
        assert isinstance(self.body, bytes)
        try:
            return ElementTree.fromstring(self.body)
        except ElementTree.ParseError as exc:
            raise StorageError(f"{what}: the server answered {self.status} with something that is not XML") from exc

    @property
    def is_directory(self) -> bool:
        """True of the marker of a directory in a hierarchical namespace, which is no object."""
        return self.headers.get("x-ms-resource-type") == "directory" or self.headers.get("x-ms-meta-hdi_isfolder", "").lower() == "true"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Bytes of the object ``key`` that a request asks for: ``request`` of it, or all of it, up to ``most_nbytes``."""

    request: ByteRequest
    most_nbytes: int | None
    key: str
    unasked_nbytes: int


def condition_headers(condition: Condition) -> dict[str, str]:
    """Return the headers that make a request conditional."""
    match condition:
        case IfAbsent():
            return {"If-None-Match": "*"}
        case IfGeneration(generation):
            return {"If-Match": generation.token}
        case Unconditional():
            return {}


class AzureClient(BucketClient):
    """Requests on the blobs below ``prefix`` of the container ``bucket``; at most ``concurrency`` at once."""

    scheme = "az"
    block_bytes = 8 << 20
    max_blocks = 50_000
    """The most blocks that a blob has."""

    def __init__(self, fs: Any, bucket: str, prefix: str, concurrency: int) -> None:
        super().__init__(fs, bucket, prefix, concurrency)
        if getattr(fs, "version_aware", False):
            raise InvalidInput(
                f"version_aware=True of {self.url!r} puts versions into the names of blobs: leave it out. A version is pinned by its ETag"
            )

    @property
    def endpoint(self) -> str:
        """The account that this talks to, without its credentials."""
        return str(self.fs.service_client.url).partition("?")[0].rstrip("/")

    @property
    def is_azure(self) -> bool:
        """True if the server is Microsoft's own, whose manual can be trusted."""
        return (urlsplit(self.endpoint).hostname or "").endswith(_SERVICES)

    def forget_listing(self, key: str) -> None:
        path = f"{self.bucket}/{self.full_key(key)}"
        while path:
            self.fs.dircache.pop(path, None)
            path = path.rpartition("/")[0]

    async def request(
        self,
        method: str,
        name: str,
        what: str,
        *,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        wanted: Wanted | None = None,
        repeats: bool = False,
    ) -> AzureAnswer:
        """Make one request on the blob ``name``, or on the container where that is empty. It is repeated after broken connections and by
        busy servers if ``repeats``, and reads and probes are always. Where ``wanted`` is given, no more of the answer is read than it
        allows.

        Raises ``AccessDenied``, ``RequestFailed``, or ``StorageError`` where another try would not help.
        """
        sends = 0
        repeats = repeats or method in ("GET", "HEAD") or PROBE_PREFIX in name
        async with self.bound.slot():
            while True:
                sends += 1
                try:
                    return await self._send(method, name, what, headers or {}, query or {}, body, wanted)
                except RequestFailed as exc:
                    if sends >= _SENDS or exc.is_unreachable or not (exc.is_lost or exc.is_busy) or not repeats:
                        raise
                await lost_answers.wait_to_resend(sends)

    async def _send(
        self,
        method: str,
        name: str,
        what: str,
        headers: Mapping[str, str],
        query: Mapping[str, str],
        body: bytes | None,
        wanted: Wanted | None,
    ) -> AzureAnswer:
        service = self.fs.service_client
        sent = {"x-ms-version": service.api_version, "Accept-Encoding": "identity", **headers}
        if body is not None:
            sent |= {"Content-Length": str(len(body)), "Content-Type": "application/octet-stream"}
        content = io.BytesIO(body) if body else body  # of bytes aiohttp would complain where they are many
        try:
            asked = import_module("azure.core.rest").HttpRequest(method, self._url(service.url, name, query), headers=sent, content=content)
            response = (await service._pipeline.run(asked, stream=True, retry_total=0)).http_response
            async with response:
                answer = AzureAnswer(response.status_code, response.headers, await _body_of(response, wanted))
        except ShardStoreError:
            raise
        except Exception as exc:  # noqa: BLE001 - none is lost, but for the chain of one that shows a token
            raise self._translated(exc, what) from shown_cause(exc)
        if answer.status >= 400:
            raise self._refusal(answer, what)
        return answer

    def _url(self, service_url: str, name: str, query: Mapping[str, str]) -> str:
        base, _, signature = service_url.partition("?")
        path = "/".join(quote(part, safe="~/") for part in (self.bucket, name) if part)
        asked = "&".join(part for part in (urlencode(query, quote_via=quote), signature) if part)
        return f"{base.rstrip('/')}/{path}{'?' if asked else ''}{asked}"

    def _translated(self, exc: Exception, what: str) -> ShardStoreError:
        """Return the error to raise, from ``exc``, if there was no answer to the request for ``what``."""
        text = redacted(" ".join(str(exc).split()))
        if not {"ClientAuthenticationError", "AzureSigningError"}.isdisjoint(base.__name__ for base in type(exc).__mro__):
            return self._denied(f"{what}: no usable credentials were found ({text})")
        if is_unreachable(exc):
            error = RequestFailed(f"{what}: {self.endpoint} cannot be reached: check the network and the name of the account ({text})")
            error.is_unreachable = True
            return error
        return RequestFailed(f"{what} failed: {type(exc).__name__}: {text}")

    def _denied(self, message: str) -> AccessDenied:
        return AccessDenied(
            f"{message}. Give {storage_option('az', 'account_key')}, sas_token or connection_string; for a public container "
            f"{storage_option('az', 'anon', True)}"
        )

    def _refusal(self, answer: AzureAnswer, what: str) -> ShardStoreError:
        """Return the error to raise after an answer that is a refusal."""
        status, code = answer.status, str(answer.headers.get("x-ms-error-code") or "")
        error: StorageError
        if status in (401, 403):
            error = self._denied(f"{what}: the server denied access ({code or status})")
        elif status == 404 and code == "ContainerNotFound":
            error = RequestFailed(
                f"the container {self.bucket!r} does not exist at {self.endpoint}. Create it, or correct its name or that of the account"
            )
            code = NO_SUCH_BUCKET
        elif code in CONDITION_CODES:
            error, status = RequestFailed(f"{what}: the server refused the condition ({status}, {code})"), 412
        elif code in ("BlobArchived", "BlobBeingRehydrated"):
            error = StorageError(f"{what}: it is in the archive tier, where nothing can be read: rehydrate it first ({code})")
        elif code == "InvalidBlobOrBlock":
            error = StorageError(
                f"{what}: another program has sent blocks of it whose ids have another length, and has not stored them ({code}). Let that "
                "program end its upload, or store the blob once by one request; after a week Azure drops such blocks"
            )
        elif status in (409, 412) and code:  # a lease, a snapshot, a policy: no condition of ours
            error = StorageError(f"{what}: the server refused it: {code}: {_message_of(answer)}")
        else:
            error = RequestFailed(f"{what} failed: {status} {code}: {_message_of(answer)}")
        error.status, error.code = status, code
        return error

    async def head(self, key: str) -> Head | None:
        try:
            answer = await self.request("HEAD", self.full_key(key), f"looking up {key!r}")
        except RequestFailed as exc:
            if exc.is_absent:
                return None
            raise
        if answer.is_directory:
            return None
        return Head(generation_of(answer.headers, key), int(answer.headers["Content-Length"]), answer.headers.get(WRITE_ID_HEADER))

    async def commit(self, key: str, blocks: str, action: str, headers: Mapping[str, str]) -> AzureAnswer:
        """Make blocks the blob of ``key``, in the order of the elements in ``blocks``, in XML."""
        document = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{blocks}</BlockList>'.encode()
        what = f"{action} {key!r}"
        return await self.request("PUT", self.full_key(key), what, headers=headers, query={"comp": "blocklist"}, body=document)

    async def put_empty(self, key: str, condition: Condition) -> None:
        headers = {"x-ms-blob-type": "BlockBlob", **condition_headers(condition)}
        await self.request("PUT", self.full_key(key), f"probing conditional writes with {key!r}", headers=headers, body=b"")

    async def delete(self, key: str, condition: Condition, action: str = "deleting") -> bool:
        try:
            await self.request("DELETE", self.full_key(key), f"{action} {key!r}", headers=condition_headers(condition))
        except RequestFailed as exc:
            if exc.is_absent or (exc.status == 412 and await self.head(key) is None):  # 412 also where there is nothing
                return False
            raise
        return True


async def _body_of(response: Any, wanted: Wanted | None) -> bytes | tuple[memoryview, int]:
    """Return the body of an answer; see ``AzureAnswer``."""
    blocks = response.iter_raw()
    status, headers = response.status_code, response.headers
    if status >= 400:
        return await at_most(blocks, REFUSAL_NBYTES)
    if wanted is None:
        return b"".join([block async for block in blocks])

    async def read() -> bytes:
        return b"".join([block async for block in blocks])

    length = headers.get("Content-Length")
    return await received(
        *(wanted.request, status, headers.get("Content-Range"), None if length is None else int(length), read, blocks),
        *(wanted.most_nbytes, wanted.key, wanted.unasked_nbytes),
    )


def _message_of(answer: AzureAnswer) -> str:
    """Return the text of a refusal, in one line."""
    try:
        text = answer.xml("").findtext("Message") or ""
    except StorageError:
        return ""
    return redacted(" ".join(text.split()).partition(" RequestId:")[0])


_MADE_UP = Generation('"0x0000000000000A1"')


async def probe_server(client: AzureClient, claimed: Capabilities) -> Capabilities:
    """Return ``claimed`` with what the server honours. One other than Microsoft's is asked about lists of blocks, too."""
    found = await probe_conditions(client, claimed, _MADE_UP, is_trusted=client.is_azure)
    if client.is_azure or not found.compare_and_swap:
        return found
    key = probe_key()
    if await is_refused(client.commit(key, "", "probing conditional writes with", condition_headers(IfGeneration(_MADE_UP)))):
        return found
    await remove(client, key)
    return replace(found, compare_and_swap=False, create_if_absent=False)
