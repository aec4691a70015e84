"""The commands by name. Each is loaded when it is used: the program's own help needs none of them, and no command needs another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from shardstore.apps.cli.arguments import with_single_options

_PANEL = "Commands"


@dataclass(frozen=True, slots=True)
class Command:
    """A command in the list of the program's help; ``summary`` is the first paragraph of the command's own help."""

    module: str
    function: str
    summary: str
    is_group: bool = False
    """True if it has commands of its own, which ``COMMANDS`` of its module lists."""

    def load(self) -> Callable[..., None]:
        """Return the function whose signature and docstring are the command's options and help."""
        function: Callable[..., None] = getattr(import_module(self.module), self.function)
        return function


COMMANDS: Mapping[str, Command] = {
    "info": Command(
        "shardstore.apps.cli.info",
        "info",
        "Show each array: how it is stored and presented, which shards and chunks exist, bytes, dead bytes, and damage.",
    ),
    "ls": Command(
        "shardstore.apps.cli.keys",
        "ls",
        "List keys: metadata documents, chunks, and other objects. Names are relative to URL; directories end with `/`.",
    ),
    "cat": Command(
        "shardstore.apps.cli.keys",
        "cat",
        "Write the bytes of a chunk, a metadata document or another object to stdout, as a client sees them.",
    ),
    "cp": Command(
        "shardstore.apps.cli.nodes",
        "cp",
        "Copy a node with all that is in it. Shards are copied unchanged: nothing is decoded or packed again.",
    ),
    "mv": Command("shardstore.apps.cli.nodes", "mv", "Move a node with all that is in it. Shards are moved unchanged."),
    "rm": Command("shardstore.apps.cli.nodes", "rm", "Remove an array, a group, a directory, or a single chunk."),
    "advise": Command(
        "shardstore.apps.cli.advise", "advise", "Compare shard shapes by the requests and bytes that an access costs, and recommend one."
    ),
    "pack": Command(
        "shardstore.apps.cli.pack",
        "pack_command",
        "Pack a Zarr hierarchy into shards. Chunks are moved unchanged: nothing is decoded or compressed again.",
    ),
    "reshard": Command(
        "shardstore.apps.cli.pack",
        "reshard_command",
        "Move the chunks of sharded arrays into other shards. Chunks, and arrays without shards, stay unchanged.",
    ),
    "unpack": Command("shardstore.apps.cli.pack", "unpack_command", "Unpack shards: write every chunk as its own object, bytes unchanged."),
    "verify": Command(
        "shardstore.apps.cli.checking",
        "verify",
        "Check metadata, indexes, bounds and checksums, and find objects that belong to no node. Writes nothing.",
    ),
    "census": Command(
        "shardstore.apps.cli.checking", "census", "Count which chunks exist, array by array, as a table, a compact file, and a picture."
    ),
    "compact": Command(
        "shardstore.apps.cli.rewriting",
        "compact",
        "Rewrite the shards with too many dead bytes, and delete those that hold no chunk. Chunks are kept byte for byte.",
    ),
    "refs": Command(
        "shardstore.apps.cli.refs",
        "refs",
        "Write and update sets of references, through which programs that know no shards read every chunk in place.",
        is_group=True,
    ),
    "snapshots": Command(
        "shardstore.apps.cli.snapshots",
        "snapshots",
        "Make versioned stores, show and change their history, and maintain them.",
        is_group=True,
    ),
    "report": Command(
        "shardstore.apps.cli.info",
        "report",
        "Make one page about a store and its state: arrays, shards, sizes, which chunks exist, damage, and advice.",
    ),
    "serve": Command(
        "shardstore.apps.cli.serving",
        "serve",
        "Serve a store over HTTP for reading, chunk by chunk, to browsers, viewers and clients of S3.",
    ),
    "mount": Command(
        "shardstore.apps.cli.serving",
        "mount",
        "Mount a store as a tree of plain chunk files, for programs that know neither shards nor object stores.",
    ),
    "unmount": Command(
        "shardstore.apps.cli.serving",
        "unmount",
        "Unmount a store that `shardstore mount` has mounted, after everything written has been stored.",
    ),
    "repair": Command("shardstore.apps.cli.rewriting", "repair", "Show how damaged shards would be repaired; with --yes, repair them."),
}


class LazyCommands(TyperGroup):
    """A group that lists ``COMMANDS`` by their summaries, and loads one when it is called, or its help or completion is asked for."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that ``args`` begin with, its name, and the remaining arguments."""
        if args and args[0] in COMMANDS:
            command = COMMANDS[args[0]]
            self.commands[args[0]] = _loaded_group(args[0], command) if command.is_group else _loaded(args[0], command.load())
        return super().resolve_command(ctx, args)


def add_commands(app: typer.Typer) -> None:
    """Make ``app``, whose class is a ``LazyCommands``, list all commands."""
    for name, command in COMMANDS.items():
        app.command(name, help=command.summary, rich_help_panel=_PANEL)(_not_loaded)


def _not_loaded() -> None:
    raise AssertionError("a command is loaded before it is invoked")


def _loaded_group(name: str, command: Command) -> Any:
    group = typer.Typer(name=name, rich_markup_mode="markdown", add_completion=False)

    @group.callback(help=command.load().__doc__, invoke_without_command=True)
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    for inner, function in import_module(command.module).COMMANDS.items():
        group.command(inner)(with_single_options(function))
    return get_command(group)


def _loaded(name: str, function: Callable[..., None]) -> Any:
    one = typer.Typer(rich_markup_mode="markdown", add_completion=False)
    one.command(name)(with_single_options(function))
    return get_command(one)
