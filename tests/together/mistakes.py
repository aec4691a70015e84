"""What new users do wrong, as they type it, and what is said then."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import zarr

import shardstore
from shardstore import snapshots
from shardstore.errors import ShardStoreError
from tests.apps.cli.running import make_store, run

NAMES: Mapping[str, Any] = {"fsspec": fsspec, "np": np, "shardstore": shardstore, "snapshots": snapshots, "zarr": zarr}


@dataclass(frozen=True, slots=True)
class Mistake:
    """A line of Python, or a command if it begins with ``$``, and parts of the message, in order."""

    made: str
    says: tuple[str, ...]

    @property
    def is_command(self) -> bool:
        return self.made.startswith("$ shardstore")


def mistake(made: str, *says: str) -> Mistake:
    return Mistake(made, says)


def make_places(root: Path) -> None:
    """Make the places that the mistakes name, in a directory."""
    make_store(str(root / "data.zarr"))
    zarr.create_array(str(root / "plain.zarr"), name="x", shape=(8, 8), chunks=(2, 2), dtype="i4")[...] = 1
    shutil.copytree(root / "data.zarr", root / "broken.zarr")
    shard = root / "broken.zarr/ct/c/0/0"
    shard.write_bytes(shard.read_bytes()[:-7])
    snapshots.Repository.create(root / "versions.ice")


def said(one: Mistake, names: Mapping[str, Any] | None = None) -> str:
    """Make a mistake, and return the message."""
    if one.is_command:
        outcome = run(*shlex.split(one.made)[2:])
        assert outcome.code not in (0, 1) or "reach" in outcome.err or "scheduler" in outcome.err, outcome
        return outcome.err.removeprefix("error: ").strip()
    try:
        exec(one.made, {**NAMES, **(names or {})})
    except ShardStoreError as exc:
        error = exc
    else:
        raise AssertionError(f"not refused: {one.made}")
    assert getattr(shardstore.errors, type(error).__name__) is type(error), "users can catch it by its class"
    return str(error)


_INTERNAL = re.compile(r"RequestFailed|Traceback|<class|object at 0x|not an error that shardstore expects|  |\n|``")
_PYTHON = re.compile(r"storage_options|=(True|False|None)\b|in Python:|\b[a-z]+_[a-z]+=(?!http|…)")


def check(one: Mistake, message: str) -> None:
    """Check that a message has the parts, in order, is one sentence or few, shows no internals, and no Python to users of commands."""
    position = 0
    for part in one.says:
        found = message.find(part, position)
        assert found >= 0, (part, message)
        position = found + len(part)
    assert _INTERNAL.search(message) is None, message
    assert len(message) < 500, message
    if one.is_command:
        assert _PYTHON.search(re.sub(r"-o \S+", "", message)) is None, message
