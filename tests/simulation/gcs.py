"""A bucket of Google Cloud Storage, as the requests of its JSON API see it, and the client library that ``GCSStorage`` makes them through.

What is asked of the bucket is carried out in one step, and each request sees all that was carried out before. Generations are numbers that
never come again. A resumable upload checks its condition when it begins and when it ends.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote

import google_crc32c

from tests.simulation.network import Answer, ConnectionLost, ConnectTimeout, Network
from tests.simulation.objects import Objects, asked_range

_ATTEMPTS = 6  # of the client library, for one call
_LOCATION = "https://storage.googleapis.com"
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of an object."""

    data: bytes
    generation: int
    metadata: Mapping[str, str]

    @property
    def etag(self) -> str:
        return str(self.generation)

    def resource(self, name: str) -> dict[str, Any]:
        checksum = base64.b64encode(google_crc32c.value(self.data).to_bytes(4, "big")).decode()
        return {
            "name": name,
            "generation": str(self.generation),
            "size": str(len(self.data)),
            "crc32c": checksum,
            "metadata": dict(self.metadata),
        }


@dataclass
class Upload:
    """A resumable upload that is under way."""

    name: str
    metadata: Mapping[str, str]
    match: str | None
    data: bytearray = field(default_factory=bytearray)


Content = tuple[dict[str, str], bytes]


class Bucket:
    """All objects, and what each request does to them."""

    def __init__(self) -> None:
        self.objects: Objects[Stored] = Objects()
        self.uploads: dict[str, Upload] = {}
        self._number = 0

    # -- objects -------------------------------------------------------------------------------------------------------

    def put(self, name: str, data: bytes, metadata: Mapping[str, str]) -> Stored:
        self._number += 1
        return self.objects.put(name, Stored(data, 1_750_000_000_000_000 + self._number, dict(metadata)))

    def _refuses(self, name: str, match: str | None) -> bool:
        there = self.objects.versions.get(name)
        return match is not None and match != ("0" if there is None else str(there.generation))

    # -- requests ------------------------------------------------------------------------------------------------------

    def serve(self, method: str, url: str, headers: Mapping[str, str], query: Mapping[str, str], body: bytes) -> Answer[Content]:
        """Carry out one request."""
        path = url.removeprefix(_LOCATION)
        if path.startswith("/upload/session/"):
            return self._session(method, path.rpartition("/")[2], headers, body)
        if path.startswith("/upload/"):
            return self._insert(headers, query, body)
        parts = [unquote(part) for part in re.sub(r"^(/download)?(/storage/v1)?/", "", "/" + path.lstrip("/")).split("/")]
        match parts, method:
            case ["b", _, "o"], "GET":
                return self._list(query)
            case ["b", _, "o", name], "GET":
                return self._get(name, headers, query)
            case ["b", _, "o", name], "DELETE":
                if name not in self.objects.versions:
                    return Answer(404)
                if self._refuses(name, query.get("ifGenerationMatch")):
                    return Answer(412)
                self.objects.remove(name)
                return Answer(204, content=({}, b""))
            case ["b", _, "o", source, "rewriteTo", "b", _, "o", target], "POST":
                there = self.objects.versions.get(source)
                if there is None or query.get("sourceGeneration", str(there.generation)) != str(there.generation):
                    return Answer(404)
                return _json({"done": True, "resource": self.put(target, there.data, there.metadata).resource(target)})
        raise AssertionError(f"{method} {url} is not known")

    def _get(self, name: str, headers: Mapping[str, str], query: Mapping[str, str]) -> Answer[Content]:
        there = self.objects.versions.get(name)
        if there is None:
            return Answer(404)
        if self._refuses(name, query.get("ifGenerationMatch")):
            return Answer(412)
        if query.get("alt") != "media":
            return _json(there.resource(name))
        told = {"X-Goog-Generation": str(there.generation)}
        wanted = headers.get("Range")
        if wanted is None:
            return Answer(200, content=(told, there.data))
        nbytes = len(there.data)
        asked = asked_range(wanted, nbytes)
        if asked is None:
            return Answer(416)
        told["Content-Range"] = f"bytes {asked.start}-{asked.stop - 1}/{nbytes}"
        return Answer(206, content=(told, there.data[asked.start : asked.stop]))

    def _insert(self, headers: Mapping[str, str], query: Mapping[str, str], body: bytes) -> Answer[Content]:
        match = query.get("ifGenerationMatch")
        if query["uploadType"] == "resumable":
            if self._refuses(query["name"], match):
                return Answer(412)
            self._number += 1
            self.uploads[str(self._number)] = Upload(query["name"], json.loads(body).get("metadata") or {}, match)
            return Answer(200, content=({"Location": f"{_LOCATION}/upload/session/{self._number}"}, b""))
        boundary = re.search(r'boundary="([^"]+)"', headers["Content-Type"])
        assert boundary is not None
        mark = f"--{boundary[1]}".encode()
        _, document, data, _ = body.split(mark)
        resource = json.loads(document.partition(b"\r\n\r\n")[2])
        stored = data.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
        if self._refuses(resource["name"], match):
            return Answer(412)
        return _json(self.put(resource["name"], stored, resource.get("metadata") or {}).resource(resource["name"]))

    def _session(self, method: str, number: str, headers: Mapping[str, str], body: bytes) -> Answer[Content]:
        upload = self.uploads.get(number)
        if upload is None:
            return Answer(404)
        if method == "DELETE":
            del self.uploads[number]
            return Answer(499, content=({}, b""))
        matched = _CONTENT_RANGE.fullmatch(headers["Content-Range"])
        assert matched is not None
        start, total = int(matched[1]), int(matched[3])
        if start == len(upload.data):
            upload.data += body
        if len(upload.data) < total:
            told = {"Range": f"bytes=0-{len(upload.data) - 1}"} if upload.data else {}
            return Answer(308, content=(told, b""))
        if self._refuses(upload.name, upload.match):
            return Answer(412)
        del self.uploads[number]
        return _json(self.put(upload.name, bytes(upload.data), upload.metadata).resource(upload.name))

    def _list(self, query: Mapping[str, str]) -> Answer[Content]:
        names, prefixes, last = self.objects.page(query.get("prefix", ""), query.get("delimiter"), query.get("pageToken", ""))
        page: dict[str, Any] = {"items": [self.objects.versions[name].resource(name) for name in names], "prefixes": prefixes}
        return _json(page if last is None else page | {"nextPageToken": last})


def _json(document: Mapping[str, Any]) -> Answer[Content]:
    return Answer(200, content=({}, json.dumps(document).encode()))


# -- the client library --------------------------------------------------------------------------------------------------


class HttpError(Exception):
    """A refusal, as gcsfs shows it."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the server answered {code}")
        self.code = code


class _Response:
    """An answer as aiohttp shows it, whose body may break off."""

    def __init__(self, status: int, content: Content, *, torn: bool) -> None:
        self.status = status
        self.headers, self._body = content
        self.content_length = len(self._body)
        self.content = SimpleNamespace(iter_any=self._blocks)
        self._torn = torn

    async def _blocks(self) -> AsyncIterator[bytes]:
        yield await self.read()

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        if self._torn:
            raise ConnectionLost("the connection broke within the body")
        return self._body


class _Session:
    """What stands for a session of aiohttp."""

    def __init__(self, network: Network, bucket: Bucket) -> None:
        self._network = network
        self._bucket = bucket

    @asynccontextmanager
    async def request(
        self, method: str, url: str, headers: Mapping[str, str], query: Mapping[str, str], body: bytes
    ) -> AsyncIterator[_Response]:
        answer = await self._network.exchange(lambda: self._bucket.serve(method, url, headers, query, body))
        content = answer.content or ({}, b"")
        yield _Response(answer.status, content, torn=bool(content[1]) and self._network.happens("torn"))


class GCSFileSystem:
    """What ``GCSStorage`` uses of ``gcsfs.GCSFileSystem``: its requests, with its retries."""

    protocol = ("gs", "gcs")
    storage_options: Mapping[str, Any] = {}
    credentials = None

    def __init__(self, network: Network, bucket: Bucket, endpoint: str, elsewhere: Callable[[], Any]) -> None:
        self._elsewhere = elsewhere
        self._location = endpoint
        self._session: Any = _Session(network, bucket)
        self.on_google = True

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        """Let a pickle be what ``elsewhere()`` returns where it is unpickled."""
        return self._elsewhere, ()

    @staticmethod
    def _strip_protocol(path: str) -> str:
        return path.partition("://")[2] or path

    def invalidate_cache(self, path: str | None = None) -> None:
        """Do nothing: nothing is remembered."""

    async def _set_session(self) -> Any:
        return self._session

    async def _request(
        self,
        method: str,
        path: str,
        *parts: str,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        data: Any = None,
        **query: str,
    ) -> tuple[int, Mapping[str, str], None, bytes]:
        url = path.format(*(quote(part, safe="") for part in parts)).replace(self._location, _LOCATION)
        attempt = 0
        while True:
            attempt += 1
            if data is None:
                body = b"" if json is None else _dumps(json)
            else:
                if hasattr(data, "seek"):
                    data.seek(0)
                body = data.read() if hasattr(data, "read") else bytes(data)
            try:
                async with self._session.request(method, url, dict(headers or {}), query, body) as answer:
                    content = await answer.read()
                if answer.status < 400:
                    return answer.status, answer.headers, None, content
                if answer.status == 404:
                    raise FileNotFoundError(url)
                if answer.status == 412:
                    raise FileExistsError(url)
                if answer.status not in (408, 429, 500, 502, 503, 504) or attempt == _ATTEMPTS:
                    raise HttpError(answer.status)
            except (ConnectionLost, ConnectTimeout):
                if attempt == _ATTEMPTS:
                    raise
            await asyncio.sleep(min(2.0 ** (attempt - 1), 32.0))


def _dumps(document: Any) -> bytes:
    return json.dumps(document).encode()
