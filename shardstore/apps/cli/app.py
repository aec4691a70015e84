"""The program ``shardstore``: its commands by name, and the handling of errors.

A command is loaded when it is used: the program's own help needs none of them, and no command needs another.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup
from typer.main import get_command

import shardstore
from shardstore.apps.cli.arguments import ARGUMENTS, DEBUG, help_of, with_single_options
from shardstore.apps.cli.output import MEANINGS, ExitCode, complain, exit_code, first_error, message
from shardstore.apps.cli.words import in_own_words
from shardstore.model.redaction import redacted

_PROGRAM = "shardstore"


@dataclass(frozen=True, slots=True)
class Command:
    """A command in the list of the program's help; ``summary`` is the first sentence of the command's own help."""

    module: str
    function: str
    summary: str
    is_group: bool = False
    """True if it has commands of its own, which ``COMMANDS`` of its module lists."""

    def load(self) -> Callable[..., None]:
        """Return the function whose signature and docstring are the command's options and help."""
        function: Callable[..., None] = getattr(import_module(self.module), self.function)
        return function


def _commands(module: str, *, is_group: bool = False, **summaries: str) -> dict[str, Command]:
    """Return the commands of a module by their names, which are those of its functions."""
    return {name: Command(f"shardstore.apps.cli.{module}", name, summary, is_group) for name, summary in summaries.items()}


COMMANDS: Mapping[str, Command] = {
    **_commands("info", info="Show the state of a store: its arrays, shards, chunks, bytes, and damage."),
    **_commands(
        "keys",
        ls="List keys: metadata documents, chunks, and other objects.",
        cat="Write the bytes of a chunk, a metadata document or another object to stdout.",
    ),
    **_commands(
        "nodes",
        cp="Copy a node with all that is in it; shards stay unchanged.",
        mv="Move a node with all that is in it; shards stay unchanged.",
        rm="Remove an array, a group, a directory, or a single chunk.",
    ),
    **_commands("advise", advise="Compare shard shapes by what a way of reading costs, and recommend one."),
    **_commands(
        "pack",
        pack="Pack a Zarr hierarchy into shards; chunks stay unchanged.",
        reshard="Move the chunks of sharded arrays into other shards; chunks stay unchanged.",
        unpack="Unpack shards: write every chunk as its own object; chunks stay unchanged.",
    ),
    **_commands("append", append="Append rows to the arrays of a group, while other programs append too."),
    **_commands(
        "checking",
        verify="Check that stored data is sound: metadata, indices, bounds and checksums.",
        census="Count which chunks exist, array by array.",
    ),
    **_commands(
        "rewriting",
        compact="Rewrite shards with too many dead bytes, and delete those that hold no chunk.",
        repair="Repair damaged shards, as far as can be proved.",
    ),
    **_commands("refs", is_group=True, refs="Write and update sets of references, for programs that do not know shards."),
    **_commands("snapshots", is_group=True, snapshots="Make versioned stores, show and change their history, and maintain them."),
    **_commands("info", report="Make one page about a store and its state."),
    **_commands(
        "serving",
        serve="Serve a store over HTTP for reading, to browsers, viewers and clients of S3.",
        mount="Mount a store as a tree of plain chunk files.",
        unmount="Unmount a store, after everything written has been stored.",
    ),
}


def _loaded_group(name: str, command: Command) -> Any:
    group = typer.Typer(name=name, rich_markup_mode="rich", add_completion=False)

    @group.callback(help=help_of(command.load()), invoke_without_command=True)
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    for inner, function in import_module(command.module).COMMANDS.items():
        group.command(inner, help=help_of(function))(with_single_options(function))
    return get_command(group)


def _loaded(name: str, function: Callable[..., None]) -> Any:
    one = typer.Typer(rich_markup_mode="rich", add_completion=False)
    one.command(name, help=help_of(function))(with_single_options(function))
    return get_command(one)


class Commands(TyperGroup):
    """A group that lists ``COMMANDS`` by their summaries, and loads one when it is called, or its help or completion is asked for. Errors,
    including those of usage, end in one line and an exit code of ``ExitCode``.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that ``args`` begin with, its name, and the remaining arguments."""
        if args and args[0] in COMMANDS:
            command = COMMANDS[args[0]]
            self.commands[args[0]] = _loaded_group(args[0], command) if command.is_group else _loaded(args[0], command.load())
        return super().resolve_command(ctx, args)

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
    text = " ".join(exc.format_message().split()).rstrip(".")  # type: ignore[attr-defined] # checked
    complain("error", f"{text}{'' if text.endswith('?') else '.'} See {command} --help")
    return ExitCode.INVALID


def _show_warnings_in_one_line() -> None:
    # Not as errors, nor with the line of the source: the user of a command has no code to look at.
    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
    ) -> None:
        complain("warning", in_own_words(" ".join(str(message).split())))

    warnings.showwarning = show


@contextmanager
def _without_tracebacks_of_gcsfs() -> Iterator[None]:
    """Hide tracebacks of gcsfs: it logs each request that it gives up, with a traceback, which Python shows if the program handles no logs.

    With ``--verbose`` the traceback of the error is shown in any case, without any secrets.
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


_EXIT_CODES = "Exit codes:\n" + ";\n".join(f"{code.value}: {meaning}" for code, meaning in MEANINGS.items())

app = typer.Typer(
    name=_PROGRAM,
    cls=Commands,
    invoke_without_command=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Work with Zarr stores whose chunks are packed into shards.",
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


def _not_loaded() -> None:
    raise AssertionError("a command is loaded before it is invoked")


for _name, _command in COMMANDS.items():
    app.command(_name, help=_command.summary, rich_help_panel="Commands")(_not_loaded)


def main() -> NoReturn:
    """Run the command line of this process."""
    ARGUMENTS.restore()
    app()
    raise AssertionError("the program returned instead of exiting")
