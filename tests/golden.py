"""Loads the conformance fixtures below ``tests/fixtures``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FIXTURES = Path(__file__).parent / "fixtures"
FAMILIES = ("sharding_indexed", "tensorstore", "zarrs")


@dataclass(frozen=True)
class GoldenCase:
    """One hierarchy that another implementation wrote, and the arrays it was given."""

    folder: Path

    @property
    def name(self) -> str:
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @cached_property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Expected values by node path."""
        with np.load(self.folder / "expected.npz") as expected:
            return {("" if path == "__root__" else path): expected[path] for path in expected.files}


@dataclass(frozen=True)
class HandmadeCase:
    """One array, eight bytes in four chunks of two, whose only shard is unusual or corrupt.

    Either ``values`` are what must be read, or ``bad_chunks`` are the chunks that must raise while others stay readable.
    """

    store: Path
    path: str
    note: str
    values: list[int] | None
    bad_chunks: frozenset[int]
    index_is_bad: bool


def golden_cases() -> list[GoldenCase]:
    """Every case of the families that software other than a hand has written."""
    return [GoldenCase(description.parent) for family in FAMILIES for description in sorted((FIXTURES / family).glob("*/case.json"))]


def handmade_cases() -> list[HandmadeCase]:
    """Every array of the family ``handmade_codec``."""
    folder = FIXTURES / "handmade_codec" / "index_end"
    described = json.loads((folder / "case.json").read_text())["cases"]
    cases = []
    for path, case in described.items():
        error_at = case.get("error_at", [])
        index_is_bad = error_at == "index"
        bad_chunks = frozenset(range(4)) if index_is_bad else frozenset(error_at)
        cases.append(HandmadeCase(folder / "store", path, case["note"], case.get("values"), bad_chunks, index_is_bad))
    return cases
