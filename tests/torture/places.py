"""The storages on which the torture tests run, and the servers behind them, each in a process of its own.

A server in a thread of the process that tests would wait for that process's other threads, and eight clients for it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardstore.opening.open import open_storage
from shardstore.storage.azure.blocks import committed_blocks
from shardstore.storage.azure.storage import AzureStorage
from shardstore.storage.wrappers import innermost
from shardstore.testing.storage_suite import on_io_loop
from tests.harness.azurite import connection_string
from tests.harness.moto_as_aws import behave_as_aws, make_conditions_hold, take_small_parts
from tests.harness.scale import FULL
from tests.torture.crew import ROOT
from tests.torture.small_parts import SMALL_PART_BYTES, limit_parts

if TYPE_CHECKING:
    import zarr

    from shardstore import ShardedMap, ShardedStore
    from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
    from tests.stored import Objects

APPENDING = ("append", "moto-append", "ministack-append", "azure-append")
"""Where shards are appended to: local files in place, objects of S3 by copying, blobs of Azure as blocks."""

KINDS = (
    "local",
    "append",
    "moto",
    *(("moto-append",) if FULL else ()),
    "ministack",
    *(("ministack-append",) if FULL else ()),
    "ceph",
    *(("gcs", "azure-append") if FULL else ()),
    "azure",
)

_START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Place:
    """A fresh root in a storage, as any process can open it."""

    kind: str
    url: str
    storage_options: dict[str, Any] = field(default_factory=dict)
    strategy: str = "rewrite"
    small_parts: bool = False
    """Whether uploads to this server, which takes them, may have parts of a few bytes."""

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        limit_parts(small=self.small_parts)
        # A storage that turned out to have no compare-and-swap would pass many of these tests by luck.
        return {"storage_options": self.storage_options, "require_atomic": True, "strategy": self.strategy, **options}

    def store(self, **options: Any) -> ShardedStore:
        import shardstore

        return shardstore.open(self.url, **self._options(options))

    def mapper(self, **options: Any) -> ShardedMap:
        import shardstore

        return shardstore.get_mapper(self.url, **self._options(options))

    def filesystem(self, **options: Any) -> ShardedFileSystem:
        """The filesystem whose paths are presented keys behind ``self.path``."""
        from shardstore.adapters.fsspec.filesystem import ShardedFileSystem

        limit_parts(small=self.small_parts)
        protocol, _, path = self.url.rpartition("://")
        return ShardedFileSystem(
            fo=path,
            target_protocol=protocol or "file",
            target_options=self.storage_options,
            require_atomic=True,
            strategy=self.strategy,
            **options,
        )

    @property
    def path(self) -> str:
        return self.url.rpartition("://")[2]

    def is_appended(self, key: str) -> bool:
        """Whether the object was put together from what was there and new bytes."""
        storage = innermost(open_storage(self.url, self.storage_options))
        if isinstance(storage, AzureStorage):
            return len(on_io_loop(committed_blocks(storage.client, key))[1]) > 2
        found = on_io_loop(storage.stat(key))
        return found is not None and found.generation is not None and found.generation.token.strip('"').endswith("-2")

    @property
    def objects(self) -> Objects:
        """What is stored, past shardstore."""
        from tests.stored import FsspecObjects, LocalObjects

        return LocalObjects(Path(self.url)) if self.kind == "local" else FsspecObjects(self.url, self.storage_options)

    def native(self, path: str) -> zarr.Array[Any]:
        """The array by plain zarr-python, which decodes the shards itself."""
        import zarr

        from tests.stored import as_zarr_memory

        array = zarr.open_array(as_zarr_memory(self.objects), path=path, mode="r")
        assert array.shards is not None
        return array

    def native_beside(self, path: str) -> zarr.Array[Any]:
        """The same, straight from the storage, while others write there."""
        import zarr
        from zarr.storage import FsspecStore, LocalStore

        is_local = "://" not in self.url
        store = LocalStore(self.url, read_only=True) if is_local else FsspecStore.from_url(self.url, self.storage_options, read_only=True)
        array = zarr.open_array(store, path=path, mode="r")
        assert array.shards is not None
        return array


# -- servers ---------------------------------------------------------------------------------------------------------------


def _moto_process(connection: Connection, as_aws: bool) -> None:
    if as_aws:
        take_small_parts(SMALL_PART_BYTES)
    from moto.server import ThreadedMotoServer

    if as_aws:
        behave_as_aws()
    else:
        make_conditions_hold()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    connection.send(f"http://{host}:{port}")
    with contextlib.suppress(EOFError):  # the other end is gone: that is the sign to stop
        connection.recv()
    server.stop()


@contextlib.contextmanager
def moto(*, as_aws: bool = False) -> Iterator[str]:
    """The address of moto, which is written in Python; ``as_aws``: with conditions wherever AWS has them, and small parts."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_moto_process, args=(theirs, as_aws), daemon=True)
    process.start()
    theirs.close()
    try:
        assert ours.poll(_START_SECONDS), "moto does not start"
        yield ours.recv()
    finally:
        ours.close()
        process.join(30)
        process.kill()
        process.join()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def free_port(also: int = 0) -> int:
    """A port at which nobody listens, nor ``also`` behind it. Below those that the system gives to clients."""
    for port in range(20000 + os.getpid() % 5000, 30000):
        if not _listens(port) and not (also and _listens(port + also)):
            return port
    raise OSError("no free port")


@contextlib.contextmanager
def ministack(program: str) -> Iterator[str]:
    """The address of MiniStack."""
    port = free_port()
    environment = {**os.environ, "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "SERVICES": "s3"}
    process = subprocess.Popen([program], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + _START_SECONDS
        while not _listens(port):
            assert process.poll() is None, f"{program} ended by itself"
            assert time.monotonic() < end, f"{program} does not start"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def ceph(directory: str) -> Iterator[str]:
    """The address of a Ceph RADOS Gateway; its packages are kept in ``directory``."""
    script, port = str(Path(__file__).with_name("ceph_rgw.sh")), str(free_port(also=4000))
    started = subprocess.run(["bash", script, "start", directory, port], capture_output=True, text=True, timeout=900, check=False)
    try:
        assert started.returncode == 0, started.stderr
        yield started.stdout.strip().splitlines()[-1]
    finally:
        subprocess.run(["bash", script, "stop", directory, port], check=True, timeout=120)


def azure_place(kind: str, endpoint: str, *, appends: bool = False) -> Place:
    """The same in a fresh container of Azurite."""
    import adlfs

    options = {"connection_string": connection_string(endpoint)}
    container = f"container-{uuid.uuid4().hex}"
    adlfs.AzureBlobFileSystem(**options).mkdir(container)
    return Place(kind, f"az://{container}/root", options, strategy="append" if appends else "rewrite", small_parts=appends)


def s3_place(kind: str, endpoint: str, *, appends: bool = False) -> Place:
    """A place in a fresh bucket; ``appends``: by the strategy ``append``, to shards of any size."""
    import s3fs

    options: dict[str, Any] = {"key": "test", "secret": "test", "endpoint_url": endpoint}
    bucket = f"bucket-{uuid.uuid4().hex}"
    s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket=bucket)
    return Place(kind, f"s3://{bucket}/root", options, strategy="append" if appends else "rewrite", small_parts=appends)
