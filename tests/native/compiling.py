"""Compiles the kernel of this source tree into a directory of the tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import shardstore.native

SOURCE = Path(shardstore.native.__file__).with_name("kernel.c")
_FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")
SANITIZERS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


def why_no_compiler() -> str | None:
    """Return in words why nothing can be compiled here, if so."""
    if sys.platform != "linux" or sys.maxsize < 2**32 or sys.byteorder != "little":
        return "the kernel is for little-endian 64-bit Linux"
    if shutil.which("cc") is None:
        return "there is no C compiler"
    return None


def compile_kernel(target: Path, *flags: str, source: str | None = None) -> Path:
    """Compile the kernel, or another source of it; return ``target``."""
    command = ["cc", *_FLAGS, *flags, "-x", "c", "-", "-o", str(target)]
    done = subprocess.run(command, input=SOURCE.read_text() if source is None else source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def sanitizer_environment() -> dict[str, str] | None:
    """Return what a process that loads a kernel with sanitizers has to be started with; ``None`` if they are not installed."""
    files = []
    for name in ("libasan.so", "libubsan.so"):
        found = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        if not Path(found).is_absolute():
            return None
        files.append(found)
    return {
        "LD_PRELOAD": " ".join(files),
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=99",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
