"""Questions before something is done that cannot be undone."""

from __future__ import annotations

import sys

import typer

from shardstore.cli.output import complain, stderr_console
from shardstore.errors import InvalidInput


def is_interactive() -> bool:
    """Return whether somebody is there to answer a question."""
    return sys.stdin.isatty()


def ask(doing: str, nothing: str) -> None:
    """Ask whether to go on; end the command with ``nothing``, what was not done, if the answer is no.

    ``doing`` says what would be done: "remove array data.zarr/ct: 9 objects".

    Raises:
        InvalidInput: nobody is there to answer.
    """
    if not is_interactive():
        raise InvalidInput(f"this would {doing}. Give --yes to do it")
    stderr_console().print(f"This would {doing}.")
    if not typer.confirm("Go on?", err=True):
        complain("error", nothing)
        raise typer.Exit(1)
