"""The kernel is fuzzed under sanitizers, which see each byte that it reads or writes where it may not, and each overflow."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.scale import sized
from tests.native.compiling import SANITIZERS, compile_kernel, sanitizer_environment, why_no_compiler

SECONDS = sized(1200, 110)
TREE = Path(__file__).parents[3]


@pytest.mark.timeout(SECONDS + 190)
def test_no_chunk_makes_the_kernel_write_where_it_may_not(tmp_path: Path) -> None:
    if (reason := why_no_compiler()) is not None:
        pytest.skip(reason)
    if (settings := sanitizer_environment()) is None:
        pytest.skip("the compiler has no address sanitizer: libasan and libubsan are missing")
    built = compile_kernel(tmp_path / "libkernel.2.so", *SANITIZERS)
    seed = random.randrange(2**32)
    environment = {**os.environ, **settings, "SHARDSTORE_KERNEL": "1", "SHARDSTORE_KERNEL_FILE": str(built)}
    command = [sys.executable, "-m", "tests.native.fuzz", str(SECONDS), str(seed)]
    done = subprocess.run(command, cwd=TREE, env=environment, capture_output=True, text=True, timeout=SECONDS + 120)
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}{done.stderr}"
    rounds = int(done.stdout.split()[0])
    assert rounds > 5 * SECONDS, done.stdout
    for what in ("cut while it is read", "bad strides", "ZSTD, damaged, status 0", "BLOSC, whole, status 0", "encoded as BLOSC"):
        assert what in done.stdout
