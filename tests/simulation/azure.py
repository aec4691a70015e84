"""A container of Azure Blob Storage, as its requests see it, and the client that ``AzureStorage`` makes them through.

What is asked of the container is carried out in one step, and each request sees all that was carried out before. A blob has committed
blocks, if a list of blocks made it, and blocks that were sent and not committed. Any put discards the latter, whoever has sent them. No
ETag ever comes again. There are no leases. What the manual leaves open, or Azurite does otherwise, is drawn for each world: ``Manner``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, fields
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from azure.core.exceptions import ServiceRequestError, ServiceResponseError
from azure.core.rest import HttpRequest
from azure.core.utils import case_insensitive_dict

from tests.simulation.network import Answer, ConnectionLost, ConnectTimeout, Network
from tests.simulation.objects import Objects, asked_range
from tests.simulation.sources import EPOCH

_RETRIES = 3  # of the client library, for one request
_METADATA = "x-ms-meta-"


@dataclass(frozen=True, slots=True)
class Manner:
    """What servers do differently."""

    is_azure: bool
    """It has an address of Microsoft's."""
    condition_is_first: bool
    """A list of blocks that are not there is refused for its condition, if that does not hold either; else for its blocks."""
    put_discards: bool
    """A put of a whole blob discards the blocks that were sent, as the manual says; Azurite keeps them."""
    delete_discards: bool
    blocks_are_there: bool
    """To Azurite blocks that were sent for a blob which is absent are one that is there, for a put of a whole blob."""
    names_no_version: bool
    """A list of no committed blocks has no ETag, as the manual says."""
    refuses_delete: bool
    """To a conditional delete of what is not there the answer is 412, in place of 404."""
    has_empty_ranges: bool
    """Azurite has 206 for a range of an empty blob, in place of 416."""
    names_size: bool
    """An answer 416 says how large the blob is."""
    has_empty_pages: bool
    """Pages of a listing that have only a marker of the next one, as the manual allows."""


def manner_of(rng: random.Random) -> Manner:
    """Draw how a server behaves."""
    return Manner(**{one.name: rng.random() < 0.5 for one in fields(Manner)})


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of a blob; ``blocks`` is empty, if it was stored by one request."""

    data: bytes
    etag: str
    metadata: Mapping[str, str]
    at: float
    blocks: tuple[tuple[str, bytes], ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        return {"ETag": self.etag, "Last-Modified": formatdate(self.at, usegmt=True)} | dict(self.metadata)


Content = tuple[dict[str, str], bytes]

_EXISTS = "BlobAlreadyExists"
_NOT_MET = "ConditionNotMet"
_NOT_FOUND = "BlobNotFound"


@dataclass
class Bucket:
    """All blobs of a container, and what each request does to them."""

    now: Callable[[], float]
    manner: Manner
    objects: Objects[Stored] = field(default_factory=Objects)
    sent: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """The blocks of each blob that were sent and not committed."""
    _number: int = 0

    def _put(self, name: str, data: bytes, headers: Mapping[str, str], blocks: tuple[tuple[str, bytes], ...] = ()) -> Answer[Content]:
        self._number += 1
        metadata = {key.lower(): value for key, value in headers.items() if key.lower().startswith(_METADATA)}
        etag = f'"0x8DD{self._number:012X}"'
        made = self.objects.put(name, Stored(data, etag, metadata, EPOCH + self.now(), blocks))
        return Answer(201, content=({"ETag": made.etag}, b""))

    def _refusal(self, name: str, headers: Mapping[str, str]) -> Answer[Content] | None:
        """Return the answer to a write whose condition does not hold."""
        there = self.objects.versions.get(name)
        if headers.get("If-None-Match") == "*" and there is not None:
            return Answer(409, _EXISTS)
        match = headers.get("If-Match")
        return Answer(412, _NOT_MET) if match is not None and (there is None or there.etag != match) else None

    # -- requests ------------------------------------------------------------------------------------------------------

    def serve(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Answer[Content]:
        """Carry out one request."""
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        name = unquote(parts.path.partition("/bucket")[2].lstrip("/"))
        match method, query.get("comp"):
            case "GET", "list":
                return self._list(query)
            case "GET", "blocklist":
                return self._blocks(name)
            case "PUT", "block":
                self.sent.setdefault(name, {})[query["blockid"]] = body
                return Answer(201, content=({}, b""))
            case "PUT", "blocklist":
                return self._commit(name, headers, body)
            case "PUT", None:
                if (refusal := self._refusal(name, headers)) is not None:
                    return refusal
                if headers.get("If-None-Match") == "*" and self.manner.blocks_are_there and name in self.sent:
                    return Answer(409, _EXISTS)
                if self.manner.put_discards:
                    self.sent.pop(name, None)
                return self._put(name, body, headers)
            case "DELETE", None:
                return self._delete(name, headers)
            case (("GET" | "HEAD"), None):
                return self._get(name, headers, method)
        raise AssertionError(f"{method} {url} is not known")

    def _commit(self, name: str, headers: Mapping[str, str], body: bytes) -> Answer[Content]:
        there = self.objects.versions.get(name)
        committed = dict(there.blocks) if there is not None else {}
        sent = self.sent.get(name, {})
        wanted = [
            (block.text or "", {"Committed": committed, "Uncommitted": sent, "Latest": committed | sent}[block.tag])
            for block in ElementTree.fromstring(body)
        ]
        refusal = self._refusal(name, headers)
        if refusal is not None and self.manner.condition_is_first:
            return refusal
        if any(block not in blocks for block, blocks in wanted):
            return Answer(400, "InvalidBlockList")
        if refusal is not None:
            return refusal
        blocks = tuple((block, blocks[block]) for block, blocks in wanted)
        self.sent.pop(name, None)
        return self._put(name, b"".join(data for _, data in blocks), headers, blocks)

    def _blocks(self, name: str) -> Answer[Content]:
        there = self.objects.versions.get(name)
        if there is None and name not in self.sent:
            return Answer(404, _NOT_FOUND)
        blocks = () if there is None else there.blocks
        listed = "".join(f"<Block><Name>{escape(block)}</Name><Size>{len(data)}</Size></Block>" for block, data in blocks)
        document = f"<BlockList><CommittedBlocks>{listed}</CommittedBlocks></BlockList>".encode()
        is_named = there is not None and (blocks or not self.manner.names_no_version)
        return Answer(200, content=(there.headers if there is not None and is_named else {}, document))

    def _delete(self, name: str, headers: Mapping[str, str]) -> Answer[Content]:
        is_there = name in self.objects.versions
        if not is_there and not ("If-Match" in headers and self.manner.refuses_delete):
            return Answer(404, _NOT_FOUND)
        if (refusal := self._refusal(name, headers)) is not None:
            return refusal
        self.objects.remove(name)
        if self.manner.delete_discards:
            self.sent.pop(name, None)
        return Answer(202, content=({}, b""))

    def _get(self, name: str, headers: Mapping[str, str], method: str) -> Answer[Content]:
        there = self.objects.versions.get(name)
        if there is None:
            return Answer(404, _NOT_FOUND)
        if headers.get("If-Match", there.etag) != there.etag:
            return Answer(412, _NOT_MET)
        nbytes, wanted = len(there.data), headers.get("x-ms-range") or headers.get("Range")
        described = there.headers | {"Content-Length": str(nbytes)}
        if method == "HEAD" or wanted is None:
            return Answer(200, content=(described, b"" if method == "HEAD" else there.data))
        asked = asked_range(wanted, nbytes)
        if asked is None:
            if not nbytes and self.manner.has_empty_ranges:
                return Answer(206, content=(described | {"Content-Range": "bytes 0--1/0"}, b""))
            return Answer(416, "InvalidRange", ({"Content-Range": f"bytes */{nbytes}"} if self.manner.names_size else {}, b""))
        place = {"Content-Length": str(len(asked)), "Content-Range": f"bytes {asked.start}-{asked.stop - 1}/{nbytes}"}
        return Answer(206, content=(described | place, there.data[asked.start : asked.stop]))

    def _list(self, query: Mapping[str, str]) -> Answer[Content]:
        behind, _, is_full = query.get("marker", "").partition("\n")
        if self.manner.has_empty_pages and not is_full:
            return self._page([], [], f"{behind}\nfull")
        names, prefixes, last = self.objects.page(query.get("prefix", ""), query.get("delimiter"), behind)
        return self._page(names, prefixes, last)

    def _page(self, names: list[str], prefixes: list[str], last: str | None) -> Answer[Content]:
        listed = "".join(self._listed(name, self.objects.versions[name]) for name in names)
        listed += "".join(f"<BlobPrefix><Name>{escape(prefix)}</Name></BlobPrefix>" for prefix in prefixes)
        marker = f"<NextMarker>{escape(last or '')}</NextMarker>"
        return Answer(200, content=({}, f"<EnumerationResults><Blobs>{listed}</Blobs>{marker}</EnumerationResults>".encode()))

    @staticmethod
    def _listed(name: str, there: Stored) -> str:
        facts = {"Content-Length": len(there.data), "Etag": there.etag.strip('"'), "Last-Modified": there.headers["Last-Modified"]}
        properties = "".join(f"<{key}>{value}</{key}>" for key, value in facts.items())
        return f"<Blob><Name>{escape(name)}</Name><Properties>{properties}</Properties><Metadata/></Blob>"


# -- the client ----------------------------------------------------------------------------------------------------------


class _Response:
    """An answer as azure-core shows it, whose body may break off."""

    def __init__(self, status: int, content: Content, *, torn: bool) -> None:
        self.status_code = status
        self.headers = case_insensitive_dict(content[0])
        self._body = content[1]
        self._torn = torn

    async def __aenter__(self) -> _Response:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def iter_raw(self) -> AsyncIterator[bytes]:
        await asyncio.sleep(0)
        yield self._body[: len(self._body) // 2]
        if self._torn:
            raise ServiceResponseError("the connection broke within the body")
        yield self._body[len(self._body) // 2 :]


class _Pipeline:
    """What stands for the pipeline of a client: it sends requests, and some of them again."""

    def __init__(self, network: Network, bucket: Bucket) -> None:
        self._network = network
        self._bucket = bucket

    async def run(self, request: HttpRequest, *, stream: bool, retry_total: int = _RETRIES) -> Any:
        assert stream
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = await self._once(request)
                if attempt > retry_total or answer.status_code < 500:
                    return SimpleNamespace(http_response=answer)
            except (ServiceRequestError, ServiceResponseError):
                if attempt > retry_total:
                    raise
            await asyncio.sleep(15.0 + 3.0 ** (attempt - 1))

    async def _once(self, request: HttpRequest) -> _Response:
        content, headers = request.content or b"", case_insensitive_dict(request.headers)
        if not isinstance(content, bytes):  # a file, which is sent again from its beginning
            content.seek(0)
            content = content.read()
        body = content
        method, url = request.method, request.url
        try:
            answer = await self._network.exchange(lambda: self._bucket.serve(method, url, headers, body))
        except ConnectTimeout as exc:
            raise ServiceRequestError(str(exc), error=exc) from exc
        except ConnectionLost as exc:
            raise ServiceResponseError(str(exc), error=exc) from exc
        told, received = answer.content or ({}, b"")
        if answer.status >= 400:
            told = told | {"x-ms-error-code": answer.code}
            received = b"" if method == "HEAD" else f"<Error><Code>{answer.code}</Code><Message>No.</Message></Error>".encode()
        torn = answer.status < 400 and bool(received) and self._network.happens("torn")
        return _Response(answer.status, (told, received), torn=torn)


class AzureBlobFileSystem:
    """What ``AzureStorage`` uses of ``adlfs.AzureBlobFileSystem``: the client that it has made."""

    protocol = ("abfs", "az", "abfss")
    asynchronous = False
    storage_options: Mapping[str, Any] = {}

    def __init__(self, network: Network, bucket: Bucket, name: str, elsewhere: Callable[[], Any]) -> None:
        self._elsewhere = elsewhere
        self.dircache: dict[str, Any] = {}
        account = name.replace("#", "-")
        url = f"https://{account}.blob.core.windows.net/" if bucket.manner.is_azure else f"http://{account}.example/account"
        self.service_client = SimpleNamespace(url=url, api_version="2026-02-06", _pipeline=_Pipeline(network, bucket))

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        """Let a pickle be what ``elsewhere()`` returns where it is unpickled."""
        return self._elsewhere, ()

    @staticmethod
    def _strip_protocol(path: str) -> str:
        return path.partition("://")[2] or path
