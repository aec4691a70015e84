"""A sharded array on a server that is reached through a proxy which misbehaves, and what is really stored there.

The array ``x`` has ``CHUNKS`` chunks in two shards; ``p``, where it is asked for, is not sharded. Set-up and checks go straight to
the server and past shardstore: shards are put together and taken apart by ``tests.shards``.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import itertools
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import adlfs
import aiohttp
import fsspec
import gcsfs
import s3fs

from shardstore.engine.actions import ERASE, SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.model.ranges import EVERYTHING, ByteRequest
from shardstore.opening.transports import Transport, carried_by
from shardstore.storage.azure.storage import AzureStorage
from shardstore.storage.base import Storage
from shardstore.storage.gcs.storage import GCSStorage
from shardstore.storage.http import client as http_client
from shardstore.storage.http.client import Retries
from shardstore.storage.http.storage import HTTPStorage
from shardstore.storage.requests.bucket import forget_facts
from shardstore.storage.s3.storage import S3Storage
from shardstore.testing.storage_suite import on_io_loop
from tests import shards
from tests.documents import array_v3, sharding_codec
from tests.harness import misbehaviours as mis
from tests.harness.azurite import ACCOUNT, connection_string, signed_connection_string
from tests.harness.misbehaving_server import MisbehavingServer
from tests.storage.http.http_servers import WebServer
from tests.stored import FsspecObjects

Kind = Literal["s3", "gcs", "azure", "http"]

CHUNKS = 8
A_SHARD = 4
NBYTES = 48
DOCUMENT = "x/zarr.json"
PLAIN = "p/c/0"
PATIENCE_SECONDS = 60.0
HASTE_SECONDS = 0.7
"""How long clients wait for an answer, where it comes and where it does not."""

Values = dict[int, bytes | None]

_numbers = itertools.count()


def value(chunk: int, version: int) -> bytes:
    """A chunk that cannot be taken for another, nor for another version, whole or in part."""
    return b"".join(hashlib.blake2b(b"%d %d %d" % (chunk, version, i), digest_size=8).digest() for i in range(NBYTES // 8))


INITIAL: Values = {chunk: value(chunk, 1) if chunk < CHUNKS - 1 else None for chunk in range(CHUNKS)}


def chunk_key(chunk: int) -> str:
    return f"x/c/{chunk}"


def _document(chunk: int, codecs: list[dict[str, Any]], nchunks: int) -> bytes:
    return json.dumps(array_v3([nchunks * NBYTES], [chunk], codecs=codecs, attributes={"what": "to be read back as it is"})).encode()


BYTES = {"name": "bytes"}
SHARDING = sharding_codec([NBYTES], [BYTES], index_location="end")
PRESENTED = _document(NBYTES, [BYTES], CHUNKS)
STORED = _document(NBYTES * A_SHARD, [SHARDING], CHUNKS)
PLAIN_DOCUMENT = _document(NBYTES, [BYTES], 1)
_LAYOUT = shards.sharding("x", json.loads(STORED))


def shard_bytes(shard: int, values: Mapping[int, bytes | None]) -> bytes:
    """A shard of these chunks, those of other shards left out. Chunks lie in another order than shardstore writes them."""
    assert _LAYOUT is not None
    body, entries = b"", {}
    for chunk in reversed(range(shard * A_SHARD, (shard + 1) * A_SHARD)):
        if (data := values.get(chunk)) is not None:
            entries[chunk] = len(body), len(data)
            body += data
    places = [entries.get(chunk, (shards.MISSING, shards.MISSING)) for chunk in range(shard * A_SHARD, (shard + 1) * A_SHARD)]
    return body + shards.encode_index(_LAYOUT, places)


class _Files:
    """What a server of files serves below ``root``."""

    def __init__(self, server: WebServer) -> None:
        self._server = server
        self.root = ""

    def get(self, key: str) -> bytes | None:
        return self._server.objects.get(f"{self.root}/{key}")

    def put(self, key: str, data: bytes) -> None:
        self._server.objects[f"{self.root}/{key}"] = data

    def delete(self, key: str) -> None:
        del self._server.objects[f"{self.root}/{key}"]

    def keys(self) -> list[str]:
        return sorted(path.removeprefix(f"{self.root}/") for path in self._server.objects if path.startswith(f"{self.root}/"))


class Case:
    """One prefix with ``x`` in it, the chunks of ``x`` of version 1; the last one is missing."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.prefix = f"case-{next(_numbers)}"
        self.objects = copy.copy(wire.objects)
        self.objects.root += f"/{self.prefix}"
        self.put_shards(INITIAL)
        self.objects.put(DOCUMENT, STORED)

    def put_plain(self) -> None:
        """An array that is not sharded, beside."""
        self.objects.put("p/zarr.json", PLAIN_DOCUMENT)
        self.objects.put(PLAIN, value(99, 1))

    def put_shards(self, values: Mapping[int, bytes | None]) -> None:
        for shard in range(CHUNKS // A_SHARD):
            self.objects.put(f"x/c/{shard}", shard_bytes(shard, values))

    def stored(self) -> Values:
        """Every chunk of ``x``, by a reader of shards that knows nothing of shardstore."""
        shown = shards.presented(self.objects)
        return {chunk: shown.get(chunk_key(chunk)) for chunk in range(CHUNKS)}

    def storage(self, **options: Any) -> Storage:
        return self.wire.storage(self.prefix, **options)

    def client(self, *, direct: bool = False, **options: Any) -> Client:
        """Somebody who has read nothing yet. Not through the proxy, where ``direct``."""
        return Client(self.storage(direct=direct), **options)


class Client:
    """An engine of its own, used from synchronous code."""

    def __init__(self, storage: Storage, **options: Any) -> None:
        self.storage = storage
        self.engine = Engine(
            storage, EngineOptions(chunks_per_shard=(A_SHARD,), **{"commit_attempts": 4, "index_location": "end", **options})
        )

    def get(self, keys: Iterable[str], request: ByteRequest = EVERYTHING) -> list[bytes | Exception | None]:
        found = on_io_loop(self.engine.get_many([(key, request) for key in keys]))
        return [bytes(one) if isinstance(one, memoryview) else one for one in found]

    def read(self, *chunks: int) -> list[bytes | Exception | None]:
        return self.get(map(chunk_key, chunks))

    def write(self, values: Mapping[int, bytes | None]) -> list[Exception | None]:
        """The errors; ``None`` for what is stored. All at once, as one assignment."""
        actions = [(chunk_key(chunk), ERASE if data is None else SetValue(data)) for chunk, data in values.items()]
        return on_io_loop(self.engine.update_many(actions))

    def put(self, key: str, data: bytes) -> None:
        on_io_loop(self.engine.update((key, SetValue(data))))


@dataclass
class Wire:
    """One kind of server behind a proxy, and clients of both."""

    kind: Kind
    server: MisbehavingServer
    objects: FsspecObjects | _Files
    bucket: str
    transport: Transport = "fsspec"
    _filesystems: dict[tuple[bool, bool, bool], Any] = field(default_factory=dict)

    def storage(self, prefix: str, *, retries: bool = False, direct: bool = False, hasty: bool = False, **options: Any) -> Storage:
        """A place on the server. ``retries``: those of the client library, as they are by default; without, none."""
        way = retries, direct, hasty
        if way not in self._filesystems:
            self._filesystems[way] = self._filesystem(*way)
        fs = self._filesystems[way]
        match self.kind:
            case "s3":
                return carried_by(self.transport, S3Storage(fs, f"{self.bucket}/{prefix}", **options))
            case "gcs":
                return GCSStorage(fs, f"{self.bucket}/{prefix}", **options)
            case "azure":
                return carried_by(self.transport, AzureStorage(fs, f"{self.bucket}/{prefix}", **options))
            case "http":
                url = self.server.upstream if direct else self.server.url
                return HTTPStorage(fs, f"{url}/{prefix}", retries=Retries(4 if retries else 1, 0.0, 0.0), **options)

    def _filesystem(self, retries: bool, direct: bool, hasty: bool) -> Any:
        url = self.server.upstream if direct else self.server.url
        seconds = HASTE_SECONDS if hasty else PATIENCE_SECONDS
        timeout = aiohttp.ClientTimeout(sock_read=seconds)
        match self.kind:
            case "s3":
                config: dict[str, Any] = {"read_timeout": seconds} | ({} if retries else {"retries": {"max_attempts": 0}})
                fs = s3fs.S3FileSystem(key="test", secret="test", endpoint_url=url, config_kwargs=config, skip_instance_cache=True)
                if not retries:
                    fs.retries = 1
            case "gcs":
                fs = gcsfs.GCSFileSystem(token="anon", endpoint_url=url, project="test", requests_timeout=timeout, skip_instance_cache=True)
                if not retries:
                    fs._request = functools.partial(type(fs)._request.__wrapped__, fs)
            case "azure":
                account = f"{url}/{ACCOUNT}"
                fs = adlfs.AzureBlobFileSystem(connection_string=signed_connection_string(account), skip_instance_cache=True)
                fs.service_client._pipeline._transport.connection_config.read_timeout = seconds
            case "http":
                fs = fsspec.filesystem("http", client_kwargs={"timeout": timeout}, skip_instance_cache=True)
        return fs


@contextlib.contextmanager
def wire(kind: Kind, endpoint: str, transport: Transport = "fsspec") -> Iterator[Wire]:
    """A proxy before the server at ``endpoint``, in which a bucket is made. ``http`` brings its own server; ``s3`` and ``azure`` know two
    transports.
    """
    if kind == "http":
        files = WebServer()
        try:
            with MisbehavingServer(files.url) as server:
                yield Wire(kind, server, _Files(files), "")
        finally:
            files.close()
        return
    bucket = f"bucket-{uuid.uuid4().hex}"
    with MisbehavingServer(endpoint.removesuffix(f"/{ACCOUNT}")) as server:
        if kind == "gcs":
            objects = FsspecObjects(f"gs://{bucket}", {"token": "anon", "project": "test", "endpoint_url": endpoint})
            objects.fs.call("POST", "b", project="test", json={"name": bucket})
        elif kind == "azure":
            objects = FsspecObjects(f"az://{bucket}", {"connection_string": connection_string(endpoint)})
            objects.fs.mkdir(bucket)
        else:
            objects = FsspecObjects(f"s3://{bucket}", {"key": "test", "secret": "test", "endpoint_url": endpoint})
            objects.fs.call_s3("create_bucket", Bucket=bucket)
        yield Wire(kind, server, objects, bucket, transport)


def forget() -> None:
    """What is known of servers, of any kind."""
    forget_facts()
    http_client.forget_facts()


def without_checksums(server: MisbehavingServer) -> None:
    """Of AWS every answer with a whole body has a checksum, which botocore compares; many servers know no such."""
    for name in ("crc32", "crc32c", "crc64nvme", "sha1", "sha256"):
        server.on(mis.change_header(f"x-amz-checksum-{name}", lambda _: None))
