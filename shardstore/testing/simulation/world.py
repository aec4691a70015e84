"""A world from one seed: a loop, a network, a bucket, and clients, each of which is as if it were a process of its own."""

from __future__ import annotations

import hashlib
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.storage.base import Storage
from shardstore.storage.gcs.probe import forget_facts as forget_gcs_facts
from shardstore.storage.gcs.storage import GCSStorage
from shardstore.storage.s3.client import forget_facts as forget_s3_facts
from shardstore.storage.s3.storage import S3Storage
from shardstore.testing.simulation import gcs, s3, sources
from shardstore.testing.simulation.loop import Process, SimulationLoop
from shardstore.testing.simulation.network import Conduct, Network
from shardstore.testing.simulation.objects import Version

Kind = Literal["aws", "s3", "weak", "gcs"]
"""The kinds of storage: Amazon's S3; another server that honours all conditions; one that honours none on DELETE, on uploads in parts and
on copies; and Google Cloud Storage.
"""


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
        weak = s3.Conditions(delete=False, complete=False, copy_source=False)
        self.bucket: s3.Bucket | gcs.Bucket = (
            gcs.Bucket() if kind == "gcs" else s3.Bucket(self.loop.time, weak if kind == "weak" else s3.Conditions())
        )
        self.bucket.objects.on_change = self._changed
        self.kills = self.pauses = 0
        self._begun = 0

    def _changed(self, name: str, version: Version | None) -> None:
        self.trace.note(f"delete {name}" if version is None else f"put {name} {version.etag}")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let this world give time and chance to the process."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None  # of coroutines that were killed
        try:
            with sources.replaced(self.seed, self.loop.time), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            self.loop.close()
            sys.unraisablehook = hook

    def process(self, name: str) -> Process:
        """Return a new process."""
        self._begun += 1
        return Process(f"{name}#{self._begun}")

    def storage(self, process: Process) -> Storage:
        """Return the storage as one process opens it: it knows nothing of what others have learned about the server."""
        endpoint, part_bytes = f"http://{process.name}.example", self.rng.choice([64 << 20, 64 << 20, 60])
        if isinstance(self.bucket, gcs.Bucket):
            return GCSStorage(gcs.GCSFileSystem(self.network, self.bucket, endpoint), "bucket/root", resumable_bytes=part_bytes)
        fs = s3.S3FileSystem(self.network, self.bucket, endpoint, is_aws=self.kind == "aws")
        return S3Storage(fs, "bucket/root", multipart_bytes=part_bytes)

    def engine(self, process: Process, options: EngineOptions) -> Engine:
        return Engine(self.storage(process), options, clock=self.loop.time, rng=random.Random(f"engine {self.seed} {process.name}"))

    def kill(self, process: Process) -> None:
        process.is_alive = False
        self.kills += 1
        self.trace.note(f"killed {process.name}")

    def pause(self, process: Process, seconds: float) -> None:
        self.pauses += 1
        self.trace.note(f"paused {process.name} for {seconds:.3f} s")
        self.loop.pause(process, seconds)

    def run(self, main: Callable[[], Any]) -> Any:
        """Run ``main()`` to its end, as the world itself."""
        forget_s3_facts()  # each world has servers of its own
        forget_gcs_facts()
        with self.running():
            return self.loop.run_until_complete(main())
