"""Compiles the kernel while a wheel is built, where there is a C compiler; elsewhere the wheel is pure Python.

Hatchling runs it (``pyproject.toml``), and it is not part of the wheel. ``SHARDSTORE_KERNEL=0`` leaves the kernel out,
``SHARDSTORE_KERNEL=1`` fails where it cannot be compiled. ``CC`` and ``CFLAGS`` are respected.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "shardstore/native/kernel.c"
TARGET = "shardstore/native/libkernel.2.so"
"""Not ``kernel.so``, which Python would take for the module ``kernel``."""
FLAGS = ("-std=gnu11", "-O3", "-Werror=implicit-function-declaration", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")


class KernelHook(BuildHookInterface[Any]):
    """Adds a plain shared library, which ctypes loads, so that one wheel serves every version of Python."""

    scratch: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the kernel: into the wheel, or beside its source where the package is imported from there."""
        wanted = os.environ.get("SHARDSTORE_KERNEL", "").strip().lower()
        beside_source = Path(self.root, TARGET)
        if version == "editable":
            beside_source.unlink(missing_ok=True)  # one of an older source would be worse than none
        if wanted in ("0", "false", "no", "off"):
            return
        self.scratch = Path(tempfile.mkdtemp(prefix="shardstore-kernel-"))
        built = self.scratch / beside_source.name
        fault = self._compile(built)
        if fault is not None:
            if wanted:
                raise RuntimeError(f"the kernel cannot be compiled: {fault}")
            self.app.display_warning(f"shardstore is built without its kernel, and will read local shards more slowly: {fault}")
        elif version == "editable":
            shutil.move(built, beside_source)
        else:
            build_data["force_include"][str(built)] = TARGET
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-linux_{platform.machine()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled outside of the source."""
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _compile(self, built: Path) -> str | None:
        """Compile the kernel into a file; return in words why not, if it cannot be done."""
        if sys.platform != "linux" or sys.maxsize < 2**32 or sys.byteorder != "little":
            return f"it is for little-endian 64-bit Linux, and this is {sys.platform} on {platform.machine()}"
        compiler = shlex.split(os.environ.get("CC") or "cc")
        flags = shlex.split(os.environ.get("CFLAGS", ""))
        try:
            done = subprocess.run(
                [*compiler, *FLAGS, *flags, str(Path(self.root, SOURCE)), "-o", str(built)], capture_output=True, text=True, timeout=300
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            return str(exc)
        return None if done.returncode == 0 else f"{shlex.join(compiler)} says {done.stderr.strip()[-500:]}"
