"""``shardstore verify``: checks that stored data are sound, and shows what can be known of that."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from shardstore.adapters.store_paths import pair_options, resolve
from shardstore.adapters.tools.verification import decoder, verify_step
from shardstore.apps.cli.arguments import AgainstOptionsJson, AsJson, StorageOptions, Url, other_options
from shardstore.apps.cli.execution import WorkOptions
from shardstore.apps.cli.failures import ExitCode, exit_code
from shardstore.apps.cli.output import alike, complain, print_json, show, show_more, wrapped
from shardstore.maintenance.census import merged, read_census
from shardstore.maintenance.execution import Execution
from shardstore.maintenance.verify.findings import Detectable, Finding
from shardstore.maintenance.verify.run import ArrayVerified, Copy, VerifyReport, verify_engine
from shardstore.model.words import count, plural, size
from shardstore.progress.shown import step_bar

_ARRAYS_NAMED = 8


def verify(
    *,
    url: Url,
    deep: Annotated[bool, typer.Option("--deep", help="Decode every chunk, by zarr's codecs.")] = False,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="URL", help="Compare metadata and every chunk with another copy.", show_default=False),
    ] = None,
    census: Annotated[
        list[Path] | None,
        typer.Option(
            "--census",
            metavar="FILE",
            help="Find what is missing or has moved since a census; repeat it if parts have taken it.",
            show_default=False,
        ),
    ] = None,
    work: WorkOptions,
    as_json: AsJson = False,
    storage: StorageOptions,
    against_options: AgainstOptionsJson = None,
) -> None:
    """Check metadata, indexes, bounds and checksums, and find objects that belong to no node. Writes nothing.

    Chunks are read if they have checksums, or with --deep. The output says for each array which damage can be detected, and which cannot.
    Errors make readers fail or see wrong values: the exit code is 5 then. Notes are about valid data, or about what harms no reader.

    Examples:

        shardstore verify data.zarr

        shardstore verify --deep s3://bucket/data.zarr/ct -o anon=true

        shardstore verify packed.zarr --against s3://bucket/original.zarr

        shardstore verify data.zarr --census monday.census

        shardstore verify --json s3://bucket/data.zarr --part 3/16
    """
    expected = merged([read_census(file) for file in census]) if census else None
    given = storage.parsed()
    target = storage.resolve(url)
    copy = None
    if against is not None:
        copy_options = other_options(against_options, "--against-options")
        there = resolve(against, pair_options(url, against, given, copy_options)[1])
        copy = Copy(there.engine.canonical, there.path)
    advice = "nothing was changed, and the findings so far are not shown; --part I/N verifies in smaller pieces"
    with work.arguments(advice) as arguments, step_bar() as bar:
        report = verify_engine(
            target.engine.canonical,
            target.path,
            execution=Execution.of(**arguments),
            decoder=decoder() if deep else None,
            census=expected,
            against=copy,
            progress=lambda objects, nbytes, total: bar(verify_step(objects, nbytes, total)),
            shown=str(target),
        )
    if as_json:
        print_json(report.to_json())
    else:
        _show(str(target), report)
    work.write_failures(report.unread)
    _conclude(report)


def _conclude(report: VerifyReport) -> None:
    """Report the main results on stderr, and exit accordingly."""
    sys.stdout.flush()
    if report.unread:
        first = report.unread[0]
        complain("error", f"{plural(len(report.unread), 'object')} could not be read, the first of them {first.key}: {first.error}")
    if report.errors:
        complain("error", f"{plural(report.errors, 'error was', 'errors were')} found")
        raise typer.Exit(ExitCode.CORRUPT)
    if report.unread:
        raise typer.Exit(exit_code(report.unread[0].error))


# -- for people --------------------------------------------------------------------------------------------------------


def _show(where: str, report: VerifyReport) -> None:
    arrays, objects = plural(len(report.arrays), "array"), plural(report.objects, "object")
    show(Text.assemble((where, "bold"), f"  {arrays}, {objects}, {size(report.nbytes_read)} read"))
    if report.arrays:
        show("", *map(_array, report.arrays))
    for arrays_alike in _by_detectable(report.arrays):
        show("", wrapped("in ", _named(arrays_alike, report.arrays), "dim"))
        for label, sentences in (("detects", arrays_alike[0].detectable.found), ("cannot detect", arrays_alike[0].detectable.missed)):
            for sentence in sentences:
                show(wrapped(f"{label}  ", sentence, "dim", indent=2))
    errors = [finding for finding in report.findings if finding.severity == "error"]
    notes = [finding for finding in report.findings if finding.severity == "note"]
    if errors or notes:
        show("")
    _show_findings("error  ", "bold red", errors, report.errors)
    _show_findings("note   ", "yellow", notes, report.notes)
    show("", Text(f"{plural(report.errors, 'error')}, {plural(report.notes, 'note')}", "bold"))


def _show_findings(label: str, style: str, findings: Sequence[Finding], total: int) -> None:
    for first, more in alike(findings, lambda finding: finding.what, lambda finding: (finding.path, finding.kind)):
        show(wrapped(label, _said(first), style))
        show_more([other.key or other.path or "/" for other in more], " " * len(label))
    if len(findings) < total:
        show(f"{' ' * len(label)}and {count(total - len(findings))} more, which are not listed")


def _by_detectable(arrays: Sequence[ArrayVerified]) -> list[list[ArrayVerified]]:
    groups: dict[Detectable, list[ArrayVerified]] = {}
    for array in arrays:
        groups.setdefault(array.detectable, []).append(array)
    return list(groups.values())


def _named(some: Sequence[ArrayVerified], arrays: Sequence[ArrayVerified]) -> str:
    if len(some) == len(arrays) > 1:
        return "all arrays"
    named = [array.path or "/" for array in some[:_ARRAYS_NAMED]]
    return ", ".join(named) + (f" and {count(len(some) - len(named))} more" if len(some) > len(named) else "")


def _array(array: ArrayVerified) -> Text:
    looked_at = f"{plural(array.objects, 'object')}, {plural(array.chunks, 'chunk')}"
    return Text.assemble((array.path or "/", "bold cyan"), f"  {looked_at}, {plural(array.errors, 'error')}")


def _said(finding: Finding) -> str:
    return f"{finding.kind}  {finding.key or finding.path or '/'}: {finding.what}. {finding.remedy[:1].upper()}{finding.remedy[1:]}"
