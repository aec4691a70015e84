"""``import shardstore``, beside what it needs."""

from __future__ import annotations

import statistics
import subprocess
import sys
from dataclasses import dataclass

from contenders import Address, Contender, OpenArray

from workloads.workload import Arena, Extra, Task, Workload

_TIMES = 5


@dataclass(frozen=True, slots=True)
class Imported(Contender):
    """Modules."""

    name: str
    modules: str

    def open(self, address: Address) -> OpenArray:
        raise NotImplementedError("it is imported")


@dataclass(frozen=True, slots=True)
class Import(Workload):
    """In interpreters of their own, which say how long the import itself took; the median of some."""

    def prepare(self, arena: Arena) -> Task:
        contender = arena.contender
        assert isinstance(contender, Imported)
        program = (
            f"import time; b, c = time.perf_counter(), time.process_time(); import {contender.modules}; "
            "print(time.perf_counter() - b, time.process_time() - c)"
        )

        def once() -> tuple[float, float]:
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            seconds, cpu = map(float, done.stdout.split())
            return seconds, cpu

        def run() -> Extra:
            once()  # writes the byte code
            taken = [once() for _ in range(_TIMES)]
            return {
                "seconds": statistics.median(seconds for seconds, _ in taken),
                "cpu_seconds": statistics.median(cpu for _, cpu in taken),
            }

        return Task(run)


IMPORT = (
    Import(
        "import",
        "Importing the package",
        ("local",),
        (
            Imported("import fsspec, numpy", "fsspec, numpy"),
            Imported("import shardstore", "shardstore"),
            Imported("import zarr", "zarr"),
            Imported("import tensorstore", "tensorstore"),
        ),
    ),
)
