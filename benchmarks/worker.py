"""One contender's turn at one workload, in the process that this is called in, which should be a new one."""

from __future__ import annotations

import gc
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
    gc.collect()
    gc.freeze()
    figures = _measured(task, turn.place)
    figures |= task.facts()
    figures["checksum"] = task.checksum()
    return figures


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
