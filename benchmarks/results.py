"""What runs of the benchmark wrote, read again: medians, and medians of the ratios of a round."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
SHARDSTORE = "shardstore"
PER_OPERATION = ("scattered updates",)
"""Of which contenders do different numbers."""


class Missing(Exception):
    """What is asked for was not measured; the message says why."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run, on one Python."""

    head: dict[str, Any]
    cells: list[dict[str, Any]]

    @classmethod
    def load(cls, path: Path) -> Run:
        found = json.loads(path.read_text())
        return cls(found["head"], found["cells"])

    @property
    def zarr_version(self) -> tuple[int, int]:
        major, minor, *_ = self.head["versions"]["zarr"].split(".")
        return int(major), int(minor)

    @property
    def name(self) -> str:
        """Of this run among others."""
        return f"zarr {self.head['versions']['zarr']}, Python {self.head['python']}"

    @property
    def plain_cells(self) -> list[dict[str, Any]]:
        """Those with a process for each turn of a contender, but for the workloads that have a table of their own."""
        apart = ("public: ", *(f"{codec}: " for codec in ("zstd", "blosc", "gzip", "raw")))
        return [cell for cell in self.cells if not cell.get("is_side_by_side") and not cell["workload"].startswith(apart)]

    def rounds(self, workload: str, storage: str, contender: str) -> list[Figures]:
        """All that a contender measured.

        Raises:
            Missing: it did not take part, or failed.
        """
        for cell in self.cells:
            if (cell["workload"], cell["storage"]) == (workload, storage):
                if contender not in cell["entries"]:
                    raise Missing(f"{contender} did not run")
                entry = cell["entries"][contender]
                if entry["error"] or entry["left_out"]:
                    raise Missing(f"{contender}: {entry['error'] or entry['left_out']}")
                found: list[Figures] = entry["rounds"]
                return found
        raise Missing(f"{workload} was not run on {storage}")

    def median(self, workload: str, storage: str, contender: str, figure: str) -> float:
        """Raises ``Missing``."""
        values = [figures[figure] for figures in self.rounds(workload, storage, contender) if figure in figures]
        if not values:
            raise Missing(f"{contender}: {figure} was not taken")
        return float(statistics.median(values))

    def seconds(self, workload: str, storage: str, contender: str, *, per_operation: bool) -> float:
        """The median of all, or of one operation. Raises ``Missing``."""
        return statistics.median(_each(figures, per_operation, "seconds") for figures in self.rounds(workload, storage, contender))

    def ratio(self, workload: str, storage: str, above: str, below: str, *, per_operation: bool = False, figure: str = "seconds") -> float:
        """The median over the rounds of a figure of one contender over that of the other. Raises ``Missing``."""
        pairs = zip(self.rounds(workload, storage, above), self.rounds(workload, storage, below), strict=False)
        return median_of_ratios([(_each(a, per_operation, figure), _each(b, per_operation, figure)) for a, b in pairs])


def _each(figures: Figures, per_operation: bool, figure: str) -> float:
    return float(figures[figure]) / (figures["operations"] if per_operation else 1)


def median_of_ratios(pairs: Sequence[tuple[float, float]]) -> float:
    """Of the first of each pair over its second."""
    return statistics.median(above / below for above, below in pairs)
