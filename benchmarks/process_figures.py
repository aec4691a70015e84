"""What the kernel says of this process: calls and bytes of input and output, and the most memory it has had."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from counting_s3 import Counts

_PROC_IO = Path("/proc/self/io")
_PROC_STATUS = Path("/proc/self/status")
_FORGET_PEAK = "5"


def process_io() -> Counts | None:
    """What this process has read and written by system calls since it began; ``None`` where the system does not count.

    Linux counts read, write and their variants, and copy_file_range on both sides, so bytes that only the kernel moved are
    in it; what is read through mapped memory is not.
    """
    try:
        lines = _PROC_IO.read_text().splitlines()
    except OSError:
        return None
    numbers = {name: int(number) for name, _, number in (line.partition(": ") for line in lines)}
    return Counts({"read": numbers["syscr"], "write": numbers["syscw"]}, numbers["rchar"], numbers["wchar"])


def memory_nbytes(name: str) -> int:
    """``VmRSS``, what this process has now, or ``VmHWM``, the most it has had; 0 where the system does not say.

    Not by getrusage, which begins with what the process had that started this one.
    """
    try:
        lines = _PROC_STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def forget_peak() -> bool:
    """Let the peak begin anew with what this process has now; whether that was permitted."""
    try:
        Path("/proc/self/clear_refs").write_text(_FORGET_PEAK)
    except OSError:
        return False
    return True


def touch_memory(nbytes: int) -> None:
    """Make the system have so much free memory at hand: a virtual machine gives what is free back to its host, and to get it again
    takes longer than all that is measured here.
    """
    touched = mmap.mmap(-1, max(nbytes, mmap.PAGESIZE))
    for at in range(0, len(touched), mmap.PAGESIZE):
        touched[at] = 1
    touched.close()


def load_average() -> float:
    """Of the last minute: what else the machine is doing."""
    return os.getloadavg()[0]
