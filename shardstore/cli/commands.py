"""The commands by name. Each is loaded when it is used: the program's own help needs none of them, and no command needs another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from shardstore.cli.arguments import with_single_options

_PANEL = "Commands"


@dataclass(frozen=True, slots=True)
class Listed:
    """A command as the program's help lists it; ``summary`` is the first paragraph of the command's own help."""

    module: str
    function: str
    summary: str
    is_group: bool = False
    """True if it has commands of its own, which ``COMMANDS`` of its module lists."""

    def load(self) -> Callable[..., None]:
        """Return the function whose signature and docstring are the command's options and help."""
        command: Callable[..., None] = getattr(import_module(self.module), self.function)
        return command


COMMANDS: Mapping[str, Listed] = {
    "info": Listed(
        "shardstore.cli.info",
        "info",
        "Show each array: how it is stored and presented, which shards and chunks exist, bytes, dead bytes, and damage.",
    ),
    "ls": Listed(
        "shardstore.cli.ls",
        "ls",
        "List keys: metadata documents, chunks, and other objects. Names are relative to URL; directories end with `/`.",
    ),
    "cat": Listed(
        "shardstore.cli.cat",
        "cat",
        "Write the bytes of a chunk, a metadata document or another object to stdout, as a client sees them.",
    ),
    "cp": Listed("shardstore.cli.cp", "cp", "Copy a node with all that is in it, shards as they are: nothing is decoded or packed anew."),
    "mv": Listed("shardstore.cli.cp", "mv", "Move a node with all that is in it, shards as they are."),
    "rm": Listed("shardstore.cli.rm", "rm", "Remove an array, a group, a directory, or a single chunk."),
    "advise": Listed(
        "shardstore.cli.advise", "advise", "Compare shard shapes by the requests and bytes that an access costs, and recommend one."
    ),
    "pack": Listed(
        "shardstore.cli.pack",
        "pack_command",
        "Pack a Zarr hierarchy into shards, chunk by chunk as they are: nothing is decoded or compressed anew.",
    ),
    "reshard": Listed(
        "shardstore.cli.pack",
        "reshard_command",
        "Move chunks from shards into others: inner chunks stay as they are, arrays without shards too.",
    ),
    "unpack": Listed("shardstore.cli.pack", "unpack_command", "The way back: every chunk becomes an object, as it is."),
    "verify": Listed(
        "shardstore.cli.verify",
        "verify",
        "Check metadata, indexes, bounds and checksums, and find objects that belong to nothing. Writes nothing.",
    ),
    "census": Listed(
        "shardstore.cli.census", "census", "Count which chunks exist, array by array, as a table, a compact file, and a picture."
    ),
    "compact": Listed(
        "shardstore.cli.compact",
        "compact",
        "Rewrite the shards whose dead bytes pass a bound, and delete those that hold no chunk. Chunks are kept byte for byte.",
    ),
    "refs": Listed(
        "shardstore.cli.refs",
        "refs",
        "Write and keep sets of references: every inner chunk, in place, for programs that know no shards.",
        is_group=True,
    ),
    "snapshots": Listed(
        "shardstore.cli.snapshots",
        "snapshots",
        "Make versioned stores, show and change their history, and keep them well.",
        is_group=True,
    ),
    "report": Listed(
        "shardstore.cli.report",
        "report",
        "Make one page that says what a store is, and how it is: arrays, shards, sizes, which chunks exist, damage, and advice.",
    ),
    "serve": Listed(
        "shardstore.cli.serve", "serve", "Serve a store over HTTP for reading, chunk by chunk, to browsers, viewers and clients of S3."
    ),
    "mount": Listed(
        "shardstore.cli.mount",
        "mount",
        "Mount a store as a tree of plain chunk files, for programs that know neither shards nor object stores.",
    ),
    "unmount": Listed(
        "shardstore.cli.mount",
        "unmount",
        "Unmount a store that `shardstore mount` has mounted, after what is held back has been stored.",
    ),
    "repair": Listed("shardstore.cli.repair", "repair", "Say what would be done about damaged shards, and with --yes do it."),
}


class LazyCommands(TyperGroup):
    """A group that lists ``COMMANDS`` by their summaries, and loads one when it is called, or its help or completion is asked for."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that ``args`` begin with, its name, and the remaining arguments."""
        if args and args[0] in COMMANDS:
            listed = COMMANDS[args[0]]
            self.commands[args[0]] = _loaded_group(args[0], listed) if listed.is_group else _loaded(args[0], listed.load())
        return super().resolve_command(ctx, args)


def add_commands(app: typer.Typer) -> None:
    """Make ``app``, whose class is a ``LazyCommands``, list all commands."""
    for name, listed in COMMANDS.items():
        app.command(name, help=listed.summary, rich_help_panel=_PANEL)(_not_loaded)


def _not_loaded() -> None:
    raise AssertionError("a command is loaded before it is invoked")


def _loaded_group(name: str, listed: Listed) -> Any:
    group = typer.Typer(name=name, rich_markup_mode="markdown", add_completion=False)
    of_group = listed.load()

    @group.callback(help=of_group.__doc__, invoke_without_command=True)
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    for inner, function in import_module(listed.module).COMMANDS.items():
        group.command(inner)(with_single_options(function))
    return get_command(group)


def _loaded(name: str, function: Callable[..., None]) -> Any:
    one = typer.Typer(rich_markup_mode="markdown", add_completion=False)
    one.command(name)(with_single_options(function))
    return get_command(one)
