"""A world from one seed: a loop, a network, a bucket, and clients, each of which is as if it were a process of its own."""

from __future__ import annotations

import hashlib
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Literal
from unittest import mock

from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.maintenance.execution import _opened
from shardstore.maintenance.packing.record import Record
from shardstore.presented.flavours import Presented, presented
from shardstore.storage.azure.client import AzureClient
from shardstore.storage.azure.storage import AzureStorage
from shardstore.storage.base import Storage
from shardstore.storage.gcs.storage import GCSStorage
from shardstore.storage.local.mounts import Mount
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.requests.bucket import forget_facts
from shardstore.storage.s3 import parts as s3_parts
from shardstore.storage.s3.storage import S3Storage
from tests.simulation import azure, gcs, s3, sources, threads
from tests.simulation.calls import ROOT, Calls, Habits
from tests.simulation.disk import Disk, Inode
from tests.simulation.loop import Process, SimulationLoop, current_process
from tests.simulation.network import Conduct, Network
from tests.simulation.objects import Version

Kind = Literal["aws", "s3", "weak", "bare", "gcs", "azure", "local"]
"""The kinds of storage: Amazon's S3; another server that honours all conditions; one that honours none on DELETE, on uploads in parts and
on copies; one that honours none but those of reads; Google Cloud Storage; Azure Blob Storage; and files of a local disk.
"""

_CONDITIONS = {
    "weak": s3.Conditions(delete=False, complete=False, copy_source=False),
    "bare": s3.Conditions(put=False, delete=False, complete=False, copy_source=False),
}

_BEGINS_NS = round(sources.EPOCH) * 10**9 + 123_456_789  # not at a whole second: that would look like a disk that keeps no others


class Trace:
    """All that happened, line by line, and its digest."""

    def __init__(self, now: Callable[[], float], *, keeps: bool) -> None:
        self.now = now
        self.keeps = keeps
        self.lines: list[str] = []
        self._digest = hashlib.sha256()

    def note(self, what: str) -> None:
        line = f"{self.now():.6f} {what}"
        self._digest.update(f"{line}\n".encode())
        if self.keeps:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


class World:
    """Everything that there is in one run; all chance in it comes from ``seed``."""

    def __init__(self, seed: int, kind: Kind, conduct: Conduct, *, keeps_trace: bool = False) -> None:
        self.seed = seed
        self.kind = kind
        self.loop = SimulationLoop()  # type: ignore[abstract]  # sockets, signals and the like are not there
        self.rng = random.Random(f"world {seed}")
        self.trace = Trace(self.loop.time, keeps=keeps_trace)
        self.network = Network(self.loop, random.Random(f"network {seed}"), conduct)
        self.bucket: s3.Bucket | gcs.Bucket | azure.Bucket | None = None
        self.calls: Calls | None = None
        if kind == "local":
            self.calls = self._disk()
        else:
            self.bucket = self._container(kind)
            self.bucket.objects.on_change = self._changed
        if kind == "bare" and isinstance(self.bucket, s3.Bucket) and self.rng.random() < 0.5:
            self.bucket.listing_lag_seconds = conduct.mean_seconds * self.rng.choice([1.0, 20.0])
        self.on_change: Callable[[str], None] = lambda name: None
        """Called after each change of an object, with its name or the last part of it, and after a loss of power."""
        self.processes: list[Process] = []
        self.kills = self.pauses = 0
        self._begun = 0

    def _container(self, kind: Kind) -> s3.Bucket | gcs.Bucket | azure.Bucket:
        match kind:
            case "gcs":
                return gcs.Bucket()
            case "azure":
                return azure.Bucket(self.loop.time, azure.manner_of(self.rng))
        return s3.Bucket(self.loop.time, _CONDITIONS.get(kind, s3.Conditions()))

    def _disk(self) -> Calls:
        """Return a disk of some make, on which the clients are processes of one machine, or of several by a network file system."""
        tick_ns, has_attributes = self.rng.choice([(1, True), (1, True), (1, False), (100, True), (1_000_000_000, True)])
        disk = Disk(lambda: _BEGINS_NS + round(self.loop.time() * 1e9), tick_ns=tick_ns, has_attributes=has_attributes)
        disk.create("/root", is_directory=True)
        disk.sync(disk.root)
        disk.on_change = self._renamed
        mount = Mount(f"{ROOT}", "nfs4") if self.rng.random() < 0.2 else None
        self.locks: Literal["auto", "cluster"] = "cluster" if mount is not None or self.rng.random() < 0.1 else "auto"
        mean = self.network.conduct.mean_seconds / 200
        habits = Habits(mean, self.rng.choice([0.05, 0.3, 1.0]))
        return Calls(self.loop, disk, random.Random(f"calls {self.seed}"), habits, mount)

    @property
    def faults(self) -> Counter[str]:
        """How often each fault happened."""
        return self.network.faults if self.calls is None else self.calls.faults

    @property
    def requests(self) -> int:
        """Requests to servers, or system calls, so far."""
        return self.network.exchanges if self.calls is None else self.calls.calls

    def _changed(self, name: str, version: Version | None) -> None:
        self.trace.note(f"delete {name}" if version is None else f"put {name} {version.etag}")
        self.on_change(name)

    def _renamed(self, what: str, name: str, inode: Inode | None) -> None:
        stored = "" if inode is None else f" inode {inode.number}, {len(inode.content.data)} bytes"
        self.trace.note(f"{what} {'a hidden file' if name.startswith('.') else name}{stored}")
        if not name.startswith("."):
            self.on_change(name)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let this world give time and chance to the process."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None  # of coroutines that were killed
        try:
            with sources.replaced(self.seed, self.loop.time), warnings.catch_warnings(), ExitStack() as stack:
                warnings.simplefilter("ignore")
                stack.enter_context(threads.in_place(self.loop))
                if self.calls is not None:
                    stack.enter_context(self.calls.in_place())
                if self.rng.random() < 0.5:  # what AWS takes from 5 MiB on, here a few bytes are enough for
                    claimed = replace(S3Storage.claimed_without_probe, copy_pays_nbytes=32)
                    stack.enter_context(mock.patch.object(S3Storage, "claimed_without_probe", claimed))
                    for name, nbytes in (("MIN_PART_BYTES", 16), ("COPY_PAYS_NBYTES", 32)):
                        stack.enter_context(mock.patch.object(s3_parts, name, nbytes))
                if self.kind == "azure":
                    self._draw_blocks(stack)
                stack.enter_context(mock.patch.object(Record, "units_per_segment", self.rng.choice([2, 1000])))
                stack.callback(self.loop.close)
                yield
        finally:
            sys.unraisablehook = hook

    def _draw_blocks(self, stack: ExitStack) -> None:
        """Let blocks be small in half of the worlds, and few of them be allowed in some, so that all are stored again."""
        if self.rng.random() < 0.5:
            stack.enter_context(mock.patch.object(AzureClient, "block_bytes", 40))
            claimed = replace(AzureStorage.claimed_without_probe, copy_pays_nbytes=32)
            stack.enter_context(mock.patch.object(AzureStorage, "claimed_without_probe", claimed))
        if self.rng.random() < 0.3:
            stack.enter_context(mock.patch.object(AzureClient, "max_blocks", 6))

    def process(self, name: str) -> Process:
        """Return a new process."""
        self._begun += 1
        process = Process(f"{name}#{self._begun}")
        if self.calls is None:  # of one machine all see the same clock
            process.clock_seconds = self.rng.choice([0.0, 0.0, 1.5, -1.5, 86400.0, -86400.0])
        self.processes.append(process)
        return process

    def storage(self, process: Process, root: str = "root") -> Storage:
        """Return the storage as one process opens it: it knows nothing of what others have learned about the server."""
        part_bytes = self.rng.choice([64 << 20, 64 << 20, 60])
        if self.calls is not None:
            local = LocalStorage(f"{ROOT}/{root}", locks=self.locks)
            # Found out once, now: Python 3.11 asks for it already when it asks whether this is a storage.
            assert local.capabilities is not None
            return local
        fs = self.filesystem(process)
        if self.kind == "gcs":
            return GCSStorage(fs, f"bucket/{root}", resumable_bytes=part_bytes)
        if self.kind == "azure":
            return AzureStorage(fs, f"bucket/{root}", put_bytes=part_bytes)
        return S3Storage(fs, f"bucket/{root}", multipart_bytes=part_bytes)

    def filesystem(self, process: Process) -> Any:
        """Return what a process has in place of a filesystem of s3fs, gcsfs or adlfs."""
        endpoint = f"http://{process.name}.example"
        if isinstance(self.bucket, gcs.Bucket):
            return gcs.GCSFileSystem(self.network, self.bucket, endpoint, _filesystem)
        if isinstance(self.bucket, azure.Bucket):
            return azure.AzureBlobFileSystem(self.network, self.bucket, process.name, _filesystem)
        assert self.bucket is not None
        return s3.S3FileSystem(self.network, self.bucket, endpoint, is_aws=self.kind == "aws", elsewhere=_filesystem)

    def stored(self) -> dict[str, bytes]:
        """Return the bytes of all objects by their names, as others would find them; hidden files too."""
        if self.bucket is not None:
            return {name: version.data for name, version in self.bucket.objects.versions.items()}
        assert self.calls is not None
        return dict(_files(self.calls.disk.root, ""))

    @property
    def listing_lag_seconds(self) -> float:
        """How old listings may be."""
        return (self.bucket.listing_lag_seconds or 0.0) if isinstance(self.bucket, s3.Bucket) else 0.0

    def never_lists_late(self) -> None:
        """Let listings show what is there."""
        if isinstance(self.bucket, s3.Bucket):
            self.bucket.listing_lag_seconds = None

    def uploads(self) -> list[str]:
        """Return the keys of uploads that have not ended."""
        return [upload.key for upload in self.bucket.uploads.values()] if isinstance(self.bucket, s3.Bucket) else []

    def engine(self, process: Process, options: EngineOptions, storage: Storage | None = None) -> Presented:
        """Return an engine of a process, on the store as it opens it, or on ``storage``, as its clients see it."""
        rng = random.Random(f"engine {self.seed} {process.name}")
        return presented(Engine(storage or self.storage(process), options, clock=self.loop.time, rng=rng))

    def kill(self, process: Process) -> None:
        self.kills += 1
        self.trace.note(f"killed {process.name}")
        self.loop.kill(process)
        if self.calls is not None:
            self.calls.end(process)

    def lose_power(self) -> None:
        """Let the machine go out: all its processes die, and of what was not synced any part is lost."""
        assert self.calls is not None
        for process in self.processes:
            if process.is_alive:
                self.loop.kill(process)
        self.calls.end()
        self.trace.note("power lost")
        self.calls.faults["power"] += 1
        self.calls.disk.lose_power(self.rng)
        self.on_change("")

    def pause(self, process: Process, seconds: float) -> None:
        self.pauses += 1
        self.trace.note(f"paused {process.name} for {seconds:.3f} s")
        self.loop.pause(process, seconds)

    def run(self, main: Callable[[], Any]) -> Any:
        """Run ``main()`` to its end, as the world itself."""
        forget_facts()  # each world has servers of its own
        _opened.cache_clear()
        _running[:] = [self]
        with self.running():
            return self.loop.run_until_complete(main())


_running: list[World] = []
"""The world that runs, or was the last to run."""


def _filesystem() -> Any:
    """Return a filesystem of the process that calls, in the world that runs."""
    process = current_process()
    assert process is not None
    return _running[0].filesystem(process)


def _files(directory: Inode, above: str) -> Iterator[tuple[str, bytes]]:
    for name, inode in directory.names.items():
        if inode.is_directory:
            yield from _files(inode, f"{above}{name}/")
        else:
            yield f"{above}{name}", bytes(inode.content.data)
