"""A kernel for the tests of the room."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardstore.native.kernel import Kernel, load
from tests.native.compiling import compile_kernel, why_no_compiler


@pytest.fixture(scope="session")
def kernel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernel of this source tree, compiled."""
    if (reason := why_no_compiler()) is not None:
        pytest.skip(reason)
    return compile_kernel(tmp_path_factory.mktemp("kernel") / "libkernel.2.so", "-O1")


@pytest.fixture(scope="session")
def kernel(kernel_file: Path) -> Kernel:
    """It, loaded, with all functions that are installed."""
    loaded = load(kernel_file)
    assert isinstance(loaded, Kernel), loaded
    return loaded
