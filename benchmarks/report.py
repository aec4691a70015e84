"""The results of the experiments as one table: a line an experiment, a column a contender."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from appends import Appends
from contenders import StorageName
from experiments import Amplification, Experiment, Figures, Loss, TornReads

NONE = "–"

_WAYS = {
    "one by one": "{n} assignments of one chunk, one after the other",
    "together": "{n} assignments of one chunk, in {n} threads at once",
    "in a transaction": "{n} assignments of one chunk, in one transaction",
    "in one assignment": "one assignment of all {n} chunks",
}


@dataclass(frozen=True, slots=True)
class Result:
    """All rounds of one experiment on one contender."""

    storage: StorageName
    experiment: Experiment
    contender: str
    rounds: list[Figures]

    @property
    def table(self) -> str:
        """The table that it belongs to: contenders of appends are not those of the rest."""
        return f"{self.storage}, appends" if isinstance(self.experiment, Appends) else self.storage


@dataclass(frozen=True, slots=True)
class Row:
    table: str
    label: str
    cells: dict[str, str]


@dataclass(slots=True)
class Report:
    """What was measured, where, and with which command it is repeated."""

    head: dict[str, str]
    results: list[Result] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Contender and storage that could not take part, and why."""

    def rows(self) -> list[Row]:
        rows: dict[tuple[str, str], Row] = {}
        for result in self.results:
            for label, cell in lines_of(result.experiment, result.rounds):
                key = (result.table, label)
                rows.setdefault(key, Row(result.table, label, {})).cells[result.contender] = cell
        return list(rows.values())

    def as_json(self) -> str:
        results = [
            {
                "storage": result.storage,
                "experiment": type(result.experiment).__name__,
                "settings": asdict(result.experiment),  # type: ignore[call-overload]  # each is a dataclass
                "contender": result.contender,
                "rounds": result.rounds,
            }
            for result in self.results
        ]
        table = [{"table": row.table, "test": row.label, **row.cells} for row in self.rows()]
        return json.dumps({"head": self.head, "table": table, "results": results, "left_out": self.left_out}, indent=1)

    def as_markdown(self) -> str:
        lines = [*(f"- {name}: {text}" for name, text in self.head.items())]
        for table, rows, names in self._tables():
            lines += ["", f"| {table} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
            lines += [f"| {row.label} | {' | '.join(row.cells.get(name, NONE) for name in names)} |" for row in rows]
        lines += ["", *(f"- left out: {name}: {reason}" for name, reason in self.left_out.items())]
        return "\n".join(lines).rstrip() + "\n"

    def as_text(self, label_width: int = 44, cell_width: int = 20) -> str:
        lines = [*(f"{name}: {text}" for name, text in self.head.items())]
        for table, rows, names in self._tables():
            widths = [label_width, *([cell_width] * len(names))]
            rule = "  ".join("-" * width for width in widths)
            lines += ["", *_laid_out([table, *names], widths), rule]
            for row in rows:
                lines += _laid_out([row.label, *(row.cells.get(name, NONE) for name in names)], widths)
            lines.append(rule)
        lines += ["", *(f"left out: {name}: {reason}" for name, reason in self.left_out.items())]
        return "\n".join(lines).rstrip() + "\n"

    def _tables(self) -> list[tuple[str, list[Row], list[str]]]:
        rows = self.rows()
        found = []
        for table in dict.fromkeys(row.table for row in rows):
            names = list(dict.fromkeys(result.contender for result in self.results if result.table == table))
            found.append((table, [row for row in rows if row.table == table], names))
        return found


def _laid_out(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    wrapped = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
    height = max(len(lines) for lines in wrapped)
    padded = [lines + [""] * (height - len(lines)) for lines in wrapped]
    return ["  ".join(f"{lines[i]:{width}}" for lines, width in zip(padded, widths, strict=True)).rstrip() for i in range(height)]


# -- from figures to words ---------------------------------------------------------------------------------------------


def lines_of(experiment: Experiment, rounds: list[Figures]) -> list[tuple[str, str]]:
    """The lines that an experiment adds to the table, as label and cell."""
    if isinstance(experiment, Loss):
        return [_loss_line(experiment, rounds)]
    if isinstance(experiment, TornReads):
        return _torn_lines(experiment, rounds)
    if isinstance(experiment, Amplification):
        return [_amplification_line(experiment, rounds)]
    if isinstance(experiment, Appends):
        return _append_lines(experiment, rounds)
    raise TypeError(f"no words for {experiment!r}")


def _loss_line(experiment: Loss, rounds: list[Figures]) -> tuple[str, str]:
    share = experiment.chunks // experiment.writers
    what, where = ("parts", "chunk") if experiment.are_parts else ("chunks", "shard")
    label = f"{experiment.writers} processes × {share} writes of disjoint {what} of one {where}: {what} lost, by trial"
    damaged = sum(each["shard_damaged"] is not None for each in rounds)
    cell = ", ".join(str(each["lost"]) for each in rounds) + _errors(rounds, "write_errors")
    return label, cell + (f"; shard damaged in {damaged}" if damaged else "")


def _torn_lines(experiment: TornReads, rounds: list[Figures]) -> list[tuple[str, str]]:
    def total(name: str) -> int:
        return sum(each[name] for each in rounds)

    where = f"{experiment.readers} readers, {experiment.writers} writers of one shard"
    one = f"{total('single_wrong'):,} of {total('single'):,}"
    several = f"{total('several_wrong'):,} of {total('several'):,}"
    return [
        (f"{where}: reads of one chunk, wrong", one),
        (f"{where}: reads of {experiment.at_once} chunks, wrong", several),
        (f"{where}: reads of {experiment.at_once} chunks, each right but of two versions of the shard", f"{total('several_mixed'):,}"),
        (f"{where}: reads that raised an error", f"{total('read_errors'):,}"),
        (f"{where}: the shard was rewritten", f"{total('rewrites'):,} ×" + _errors(rounds, "write_errors")),
    ]


def _append_lines(experiment: Appends, rounds: list[Figures]) -> list[tuple[str, str]]:
    def total(name: str) -> str:
        return f"{sum(each[name] for each in rounds):,}"

    return [
        (
            f"{experiment.writers} processes × {experiment.appends} appends of 1 to 7 rows: acknowledged",
            total("appends") + _errors(rounds, "append_errors"),
        ),
        ("rows acknowledged", total("rows")),
        ("of these, missing in an array", total("lost")),
        ("of these, not at one place in both arrays", total("displaced")),
        ("views of a plain reader", total("views")),
        ("views with fill values", total("fill")),
        ("views of arrays of different lengths", total("lengths")),
        ("views whose arrays say different things", total("different")),
        ("views that raised an error", total("read_errors")),
    ]


def _amplification_line(experiment: Amplification, rounds: list[Figures]) -> tuple[str, str]:
    label = f"{_WAYS[experiment.way].format(n=experiment.chunks)}, into a full shard of {nbytes_text(experiment.shard_nbytes())}"
    [figures] = rounds
    if not figures["supported"]:
        return label, NONE
    if "bytes_read" not in figures:
        return label, "this system does not count"
    parts = [f"{nbytes_text(figures['bytes_read'])} read, {nbytes_text(figures['bytes_written'])} written"]
    if "requests" in figures:
        parts.append(" + ".join(f"{number} {method}" for method, number in sorted(figures["requests"].items())))
    if figures["lost"]:
        parts.append(f"{figures['lost']} chunks lost")
    return label, ", ".join(parts) + _errors(rounds, "write_errors")


def _errors(rounds: list[Figures], name: str) -> str:
    count = sum(each[name] for each in rounds)
    return f" ({count} {'error' if count == 1 else 'errors'})" if count else ""


def nbytes_text(nbytes: int) -> str:
    """With three digits, in B, kB or MB of powers of ten."""
    if nbytes < 1000:
        return f"{nbytes} B"
    return f"{nbytes / 1000:.3g} kB" if nbytes < 999_500 else f"{nbytes / 1_000_000:.3g} MB"


def describe(figures: Figures) -> str:
    """One line of progress: the numbers."""
    return ", ".join(f"{name} {value}" for name, value in figures.items() if type(value) is int)
