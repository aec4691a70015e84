"""One contender's turn at one workload, in the process that this is called in, which should be a new one."""

from __future__ import annotations

import gc
import random
import time
from dataclasses import dataclass
from typing import Any

from contenders import Place
from counting_s3 import Counts, take_counts
from datasets import SCALES, ScaleName
from process_figures import forget_peak, memory_nbytes, process_io, touch_memory
from workloads import WORKLOADS
from workloads.workload import Arena, Task

Figures = dict[str, Any]
_TOUCHED_NBYTES = 2**29


@dataclass(frozen=True, slots=True)
class Turn:
    """What to do where."""

    workload: str
    contender: str
    scale: ScaleName
    place: Place
    run_name: str


def take(turn: Turn) -> Figures:
    """The figures of one turn: times in seconds, sizes in bytes."""
    scale = SCALES[turn.scale]
    workload = WORKLOADS[turn.workload]
    (contender,) = (each for each in workload.entrants if each.name == turn.contender)
    if scale.name != "tiny":
        touch_memory(_TOUCHED_NBYTES)
    task = workload.prepare(Arena(contender, turn.place, scale, turn.run_name))
    task.before()
    gc.collect()
    gc.freeze()
    figures = _measured(task, turn.place)
    figures |= task.facts()
    figures["checksum"] = task.checksum()
    return figures


@dataclass(frozen=True, slots=True)
class Together:
    """What several contenders do in turn, in one process."""

    workload: str
    turns: dict[str, int]
    """Of each contender. Those that have fewer take them in the first rounds."""
    scale: ScaleName
    place: Place
    run_name: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Why there are no figures."""

    reason: str
    is_unsupported: bool

    @classmethod
    def by(cls, exc: Exception) -> Failed:
        if isinstance(exc, NotImplementedError):
            return cls(str(exc) or "it has no such operation", True)
        return cls(f"{type(exc).__name__}: {exc}"[:500], False)


def take_together(together: Together) -> dict[str, list[Figures] | Failed]:
    """The figures of all turns, by contender: seconds and seconds of the processor; with the first, what was read."""
    workload = WORKLOADS[together.workload]
    scale = SCALES[together.scale]
    if scale.name != "tiny":
        touch_memory(_TOUCHED_NBYTES)
    tasks: dict[str, Task] = {}
    found: dict[str, list[Figures] | Failed] = {}
    for contender in workload.entrants:
        if contender.name in together.turns:
            try:
                tasks[contender.name] = workload.prepare(Arena(contender, together.place, scale, together.run_name))
                found[contender.name] = []
            except Exception as exc:  # noqa: BLE001 - whatever a library raises is reported
                found[contender.name] = Failed.by(exc)
    gc.collect()
    gc.freeze()
    for number in range(max(together.turns.values())):
        names = [name for name in tasks if together.turns[name] > number]
        for name in random.Random(number).sample(names, len(names)):  # so none always comes after the same one
            so_far = found[name]
            if not isinstance(so_far, Failed):
                try:
                    so_far.append(_turn(tasks[name], is_first=number == 0))
                except Exception as exc:  # noqa: BLE001 - whatever a library raises is reported
                    found[name] = Failed.by(exc)
    return found


def _turn(task: Task, *, is_first: bool) -> Figures:
    task.before()
    cpu, began = time.process_time(), time.perf_counter()
    task.run()
    figures: Figures = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
    return figures | ({"checksum": task.checksum()} if is_first else {})


def _measured(task: Task, place: Place) -> Figures:
    server = place.endpoint or place.http_url
    inside = task.counts()
    if server is not None:
        take_counts(server)
    fresh_peak = forget_peak()
    base_nbytes = memory_nbytes("VmRSS")
    io = process_io()
    cpu, began = time.process_time(), time.perf_counter()
    extra = task.run()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    figures: Figures = {"seconds": seconds, "cpu_seconds": cpu_seconds}
    figures |= _moved(io, process_io(), inside, task.counts(), place)
    peak_nbytes = memory_nbytes("VmHWM")
    if fresh_peak and peak_nbytes:
        figures |= {"base_nbytes": base_nbytes, "peak_nbytes": peak_nbytes}
    return figures | (extra or {})


def _moved(io: Counts | None, io_after: Counts | None, inside: Counts | None, inside_after: Counts | None, place: Place) -> Figures:
    """Requests and bytes: by the server where there is one, by the model of latency, by the kernel on a local disk."""
    if place.endpoint is not None:
        counts = take_counts(place.endpoint)
    elif place.latency_seconds and inside is not None and inside_after is not None:
        counts = _difference(inside, inside_after)
    elif place.http_url is not None:
        counts = take_counts(place.http_url)
    elif io is not None and io_after is not None:
        counts = _difference(io, io_after)
    else:
        return {}
    return {"requests": sum(counts.requests.values()), "bytes_read": counts.bytes_read, "bytes_written": counts.bytes_written}


def _difference(before: Counts, after: Counts) -> Counts:
    requests = {name: number - before.requests.get(name, 0) for name, number in after.requests.items()}
    return Counts(requests, after.bytes_read - before.bytes_read, after.bytes_written - before.bytes_written)
