"""``shardstore report``: one page about a store and its state."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from shardstore.adapters.store_paths import StorePath, resolve
from shardstore.apps.cli.arguments import AsJson, OptionsJson, Url, storage_options
from shardstore.apps.cli.execution import check_writable
from shardstore.apps.cli.failures import ExitCode
from shardstore.apps.cli.output import complain
from shardstore.apps.cli.progress import progress_bar
from shardstore.apps.reports.facts import MOST_ARRAYS
from shardstore.apps.reports.reporting import Report, page_module, report_on, write_whole
from shardstore.errors import InvalidInput, NotFound
from shardstore.model.words import plural

_STDOUT = "-"
_DEFAULT_FILE = "report.html"


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The file for the page, and options of the filesystem: ``-o`` may be either, since it is common for both."""

    output: Annotated[
        str | None,
        typer.Option("--output", metavar="FILE", help="Where the page goes: a file, or - for stdout.", show_default="report.html"),
    ] = None
    options: Annotated[
        list[str] | None,
        typer.Option(
            "-o", "--option", metavar="FILE|KEY=VALUE", help="As --output; or, with a =, one option of the filesystem; may be repeated."
        ),
    ] = None
    options_json: OptionsJson = None

    def parsed(self) -> tuple[str | None, dict[str, object]]:
        """Return the file, if one is given, and the options of the filesystem. Raises ``InvalidInput``."""
        files = [text for text in self.options or () if "=" not in text]
        if self.output is not None:
            files.append(self.output)
        if len(files) > 1:
            raise InvalidInput(f"{' and '.join(files)}: give one file for the page")
        return (files[0] if files else None), storage_options(self.options_json, [text for text in self.options or () if "=" in text])


def report(
    *,
    url: Url,
    given: ReportOptions,
    as_json: AsJson = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file, if there is one.")] = False,
    fast: Annotated[bool, typer.Option("--fast", help="Metadata only: shards are neither counted nor read.")] = False,
    no_pictures: Annotated[bool, typer.Option("--no-pictures", help="Do not draw which chunks exist.")] = False,
    preview: Annotated[bool, typer.Option("--preview", help="Show a slice of each array: at most 4 MiB of chunks each.")] = False,
    access: Annotated[
        list[str] | None,
        typer.Option(
            "--access", "-a", metavar="PATTERN", help="What is read at once, for advice, as for shardstore advise.", show_default=False
        ),
    ] = None,
    verified: Annotated[
        Path | None,
        typer.Option(
            "--verified",
            metavar="FILE",
            help="A file with the output of shardstore verify --json, to be shown on the page.",
            show_default=False,
        ),
    ] = None,
    most_arrays: Annotated[
        int, typer.Option("--most-arrays", metavar="N", help="Show at most this many arrays; all are counted.", min=0)
    ] = MOST_ARRAYS,
) -> None:
    """Make one page about a store and its state: arrays, shards, sizes, which chunks exist, damage, and advice.

    The page needs no network and no other file. Makes one listing, and one request for the index of each shard. --json prints the same
    facts. Where something is damaged, the page is made, and the exit code is 5.

    Examples:

        shardstore report data.zarr

        shardstore report s3://bucket/data.zarr -o report.html -o anon=true

        shardstore verify --deep --json data.zarr > verified.json; shardstore report data.zarr --verified verified.json --preview

        shardstore report --json data.zarr
    """
    output, options = given.parsed()
    file = _checked_file(output, as_json, force)
    if not as_json:
        page_module()  # its package may be missing: that is reported before the work
    target = resolve(url, options)
    with progress_bar("looking", "objects") as bar:
        made = Report(
            report_on(
                target.handle,
                target.path,
                str(target),
                fast=fast,
                pictures=not no_pictures and not as_json,
                preview=preview and not as_json,
                access=access or (),
                verified=verified,
                most_arrays=most_arrays,
                progress=bar,
            )
        )
    _check_found(target, made)
    if as_json or file is None:
        sys.stdout.write(made.json + "\n" if as_json else made.html)
    else:
        write_whole(file, made.html)
        arrays = plural(len(made.facts.survey.arrays), "array")
        advice = plural(len(made.facts.advice), "piece of advice", "pieces of advice")
        typer.echo(f"{file}: {arrays}, {made.facts.state}, {advice}")
    if made.facts.state == "damaged":
        sys.stdout.flush()
        complain("error", f"{target} is damaged: {_damage(made)}")
        raise typer.Exit(ExitCode.CORRUPT)


def _checked_file(output: str | None, as_json: bool, force: bool) -> Path | None:
    """Return the file for the page, which can be written; ``None`` for stdout. Raises ``InvalidInput``."""
    if as_json and output is not None:
        raise InvalidInput("--json prints on stdout: give no file with it")
    if as_json or output == _STDOUT:
        return None
    file = Path(output or _DEFAULT_FILE)
    check_writable("--output", file)
    if file.exists() and not force:
        raise InvalidInput(f"{file} exists: give another file, or --force to replace it")
    return file


def _check_found(target: StorePath, made: Report) -> None:
    """Check that there is something to report on.

    Raises:
        NotFound: there is no node.
        InvalidInput: the URL is that of a versioned store.
    """
    found = made.facts.survey
    if found.kind != "directory" or found.arrays or found.groups:
        return
    if target.has_root:
        raise NotFound(f"there is no node at {target}: shardstore ls and cat show keys")
    if target.is_versioned_store():
        raise InvalidInput(f"{target} is a versioned store: name a snapshot, such as {target}@main")


def _damage(made: Report) -> str:
    facts = made.facts
    parts = []
    if facts.survey.damaged_objects:
        parts.append(plural(facts.survey.damaged_objects, "shard"))
    if facts.survey.unreadable:
        parts.append(f"the metadata of {plural(len(facts.survey.unreadable), 'node')}")
    if facts.verified is not None and facts.verified.errors:
        parts.append(f"{plural(facts.verified.errors, 'error')} of the verification")
    return ", ".join(parts)
