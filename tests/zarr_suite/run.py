"""Fetch the tests of the zarr-python that is installed, and run them on shardstore: ``python -m tests.zarr_suite.run``.

They come from the source distribution of that very version, which pip downloads. Arguments are passed to pytest: with any that names a
test, only that is run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from tests.zarr_suite.exclusions import NOT_RUN

ROOT = Path(__file__).parents[2]
FETCHED = ROOT / "build/zarr-suite"

# pip asks a source distribution for its metadata even if it is only to be downloaded, and needs what it is built with for it.
_BACKEND = ("hatchling>=1.29", "hatch-vcs")

_OPTIONS = (
    *("-p", "zarr_suite.plugin"),
    *("-o", "addopts="),  # zarr's name plugins that measure
    *("-o", "log_cli_level=WARNING"),
    *("--timeout=300", "-q", "--tb=short"),
)


def fetch(zarr_version: str) -> Path:
    """The directory of the source distribution; downloaded where that was not done before."""
    source = FETCHED / f"zarr-{zarr_version}"
    if not (source / "tests/conftest.py").is_file():
        backend = FETCHED / "backend"
        _pip("install", "--upgrade", "--target", str(backend), *_BACKEND)
        _pip(
            *("download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", str(FETCHED), f"zarr=={zarr_version}"),
            environment={"PYTHONPATH": str(backend)},
        )
        with tarfile.open(FETCHED / f"zarr-{zarr_version}.tar.gz") as archive:
            archive.extractall(FETCHED, filter="data")
    return source


def _pip(*arguments: str, environment: Mapping[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    subprocess.run(command, check=True, env={**os.environ, **(environment or {})})


def run(source: Path, arguments: Sequence[str]) -> int:
    """pytest's exit status. zarr's tests are the package ``tests`` there, so ours go by another name."""
    tests = [argument for argument in arguments if argument.startswith("tests/")]
    options = [argument for argument in arguments if argument not in tests]
    chosen = tests or ["tests", *(f"--ignore=tests/{path}" for path in NOT_RUN if (source / "tests" / path).exists())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), str(ROOT)))}
    command = [sys.executable, "-m", "pytest", *_OPTIONS, *options, *chosen]
    return subprocess.run(command, cwd=source, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(run(fetch(version("zarr")), sys.argv[1:]))
