"""Questions before something is done that cannot be undone."""

from __future__ import annotations

import sys

import typer

from shardstore.apps.cli.output import complain, stderr_console
from shardstore.errors import InvalidInput


def is_interactive() -> bool:
    """Return whether a user can answer a question on a terminal."""
    return sys.stdin.isatty()


def ask(doing: str, nothing: str) -> None:
    """Ask whether to go on; if the answer is no, end the command with the message ``nothing``, which says what was not done.

    ``doing`` says what would be done: "remove array data.zarr/ct: 9 objects".

    Raises:
        InvalidInput: there is no terminal to ask on.
    """
    if not is_interactive():
        raise InvalidInput(f"this would {doing}. Give --yes to do it")
    stderr_console().print(f"This would {doing}.")
    if not typer.confirm("Go on?", err=True):
        complain("error", nothing)
        raise typer.Exit(1)
