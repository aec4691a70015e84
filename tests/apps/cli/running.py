"""Running commands, and stores for them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zarr
from typer.testing import CliRunner

import shardstore
from shardstore.apps.cli.app import app
from tests.stored import Objects

# What a terminal says of itself would change what is printed; unbuffered output would hide that it is flushed too late.
PLAIN = {"NO_COLOR": "1", "TERM": "dumb", "FORCE_COLOR": "", "COLUMNS": "80", "PYTHONUNBUFFERED": ""}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str
    raw: bytes

    @property
    def json(self) -> Any:
        """What was printed, which has to be one JSON document and nothing else."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def error(self) -> str:
        """The one line of an error."""
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("error: "), self.err
        assert self.out == ""
        return self.err.removeprefix("error: ").rstrip("\n")


class Terminal(io.StringIO):
    """A screen."""

    def isatty(self) -> bool:
        return True


def run(*arguments: str, stdin: str | None = None) -> Outcome:
    """A command, in this process. What is not an exit is a mistake of the program's."""
    result = CliRunner(env=PLAIN).invoke(app, list(arguments), input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr, result.stdout_bytes)


def succeed(*arguments: str, stdin: str | None = None) -> Outcome:
    outcome = run(*arguments, stdin=stdin)
    assert outcome.code == 0, outcome.err
    return outcome


def spawn(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """A command in a process of its own."""
    environment = {**os.environ, **PLAIN, **options.pop("env", {})}
    command = [sys.executable, "-m", "shardstore", *arguments]
    return subprocess.run(command, capture_output=True, check=False, timeout=120, env=environment, **options)


def options_of(storage_options: dict[str, Any]) -> list[str]:
    return ["--storage-options", json.dumps(storage_options)]


@dataclass(frozen=True, slots=True)
class Place:
    """A store by URL, the options that it takes, and its stored objects."""

    url: str
    objects: Objects
    storage_options: dict[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> list[str]:
        return options_of(self.storage_options) if self.storage_options else []


VALUES = np.random.default_rng(0).integers(1, 9999, (12, 35), dtype="u2")


def make_store(url: Any, storage_options: dict[str, Any] | None = None) -> zarr.Group:
    """``ct``: 6 of 9 shards and 21 of 42 chunks; ``scans/pt``: whole; ``time``: two unsharded chunks of three."""
    policy = {"ct": (2, 3), "scans/pt": (4,), "*": None}
    root = zarr.open_group(shardstore.open(url, chunks_per_shard=policy, storage_options=storage_options), mode="w")
    ct = root.create_array("ct", shape=(30, 35), chunks=(5, 5), dtype="u2", fill_value=0, compressors=None)
    ct[:12, :] = VALUES
    pt = root.create_group("scans").create_array("pt", shape=(40,), chunks=(4,), dtype="f4", compressors=None)
    pt[...] = np.arange(40, dtype="f4") + 1
    time = root.create_array("time", shape=(6,), chunks=(2,), dtype="i8", compressors=None)
    time[:4] = [1, 2, 3, 4]
    return root
