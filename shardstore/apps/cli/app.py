"""The program ``shardstore``: its commands, and the handling of errors."""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn, TextIO

import typer

import shardstore
from shardstore.apps.cli.arguments import ARGUMENTS, DEBUG
from shardstore.apps.cli.commands import LazyCommands, add_commands
from shardstore.apps.cli.output import MEANINGS, ExitCode, complain, exit_code, first_error, message
from shardstore.model.redaction import redacted

_PROGRAM = "shardstore"


class Commands(LazyCommands):
    """A group whose errors, including those of usage, end in one line and an exit code of ``ExitCode``."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run a command line and exit, whatever ``standalone_mode``."""
        with warnings.catch_warnings():
            _show_warnings_in_one_line()
            try:
                outcome = super().main(args, prog_name or _PROGRAM, complete_var, False, windows_expand_args, **extra)
            except Exception as exc:
                if not (_is_usage(exc) or isinstance(exc, typer.Abort)):
                    raise
                outcome = _usage_error(exc)
        sys.exit(outcome if isinstance(outcome, int) else ExitCode.OK)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _without_tracebacks_of_gcsfs():
                outcome = super().invoke(ctx)
            sys.stdout.flush()  # if the reader has closed the pipe, the error comes here, not as the interpreter ends
        except (typer.Exit, typer.Abort):
            raise
        except BrokenPipeError:
            _discard(sys.stdout)
            raise typer.Exit(ExitCode.BROKEN_PIPE) from None
        except KeyboardInterrupt:
            complain("error", "interrupted")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except Exception as exc:
            if _is_usage(exc):
                raise
            error = first_error(exc)
            if ctx.meta.get(DEBUG):
                sys.stderr.write(redacted("".join(traceback.format_exception(exc))))
            complain("error", message(error))
            raise typer.Exit(exit_code(error)) from None
        return outcome


def _is_usage(exc: Exception) -> bool:
    """Return whether the parser of the command line raised it; its classes are not public, and moved between versions of typer."""
    return hasattr(exc, "format_message") and hasattr(exc, "exit_code")


def _usage_error(exc: Exception) -> ExitCode:
    if isinstance(exc, typer.Abort):
        complain("error", "interrupted")
        return ExitCode.INTERRUPTED
    context = getattr(exc, "ctx", None)
    command = context.command_path if context is not None else _PROGRAM
    complain("error", f"{' '.join(exc.format_message().split()).rstrip('.')}. See {command} --help")  # type: ignore[attr-defined] # checked
    return ExitCode.INVALID


def _show_warnings_in_one_line() -> None:
    # Not as errors, nor with the line of the source: the user of a command has no code to look at.
    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
    ) -> None:
        complain("warning", " ".join(str(message).split()))

    warnings.showwarning = show


@contextmanager
def _without_tracebacks_of_gcsfs() -> Iterator[None]:
    """Hide tracebacks of gcsfs: it logs each request that it gives up, with a traceback, which Python shows if the program handles no logs.

    With ``--debug`` the traceback of the error is shown in any case, without any secrets.
    """
    log, nowhere = logging.getLogger("gcsfs"), logging.NullHandler()
    log.addHandler(nowhere)
    try:
        yield
    finally:
        log.removeHandler(nowhere)


def _discard(stream: TextIO) -> None:
    """Discard the rest of the output, since nothing more can be written: the buffer is dropped without an error."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return  # a stream of a program that runs commands in its own process
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"{_PROGRAM} {shardstore.__version__}\n")
        raise typer.Exit


_EXIT_CODES = "Exit codes:\n\n" + "\n".join(f"* {code.value}: {meaning}" for code, meaning in MEANINGS.items())

app = typer.Typer(
    name=_PROGRAM,
    cls=Commands,
    invoke_without_command=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Work with Zarr stores whose chunks are packed into shards: pack, inspect, verify and repair them; copy, move and remove nodes.",
    epilog=_EXIT_CODES,
)


@app.callback()
def _program(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)] = False,
) -> None:
    """Options of the program itself; its help is the application's."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


add_commands(app)


def main() -> NoReturn:
    """Run the command line of this process."""
    ARGUMENTS.restore()
    app()
    raise AssertionError("the program returned instead of exiting")
