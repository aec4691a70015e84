"""``shardstore mount`` and ``shardstore unmount``: a store as a tree of plain chunk files."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from shardstore.apps.cli.arguments import StorageOptions
from shardstore.apps.cli.pack import parse_policy
from shardstore.apps.cli.secrets import ARGUMENTS
from shardstore.apps.mounting import mounts
from shardstore.errors import InvalidInput
from shardstore.model.options import option
from shardstore.model.redaction import redacted


@dataclass(frozen=True)
class MountOptions:
    """Options of ``shardstore.mount``."""

    read_only: bool = option(False, "Refuse every write.")
    present: str = option("v3", "The format that is shown.", "v3|v2|draft")
    durable: str = option("close", "Store a file when it is closed; or in batches, at fsync or 1 to 5 s after.", "close|fsync")
    read_ahead: int = option(16 << 20, "Bytes to read ahead when chunks are opened in order.", "BYTES", form="bytes")
    write_memory: int = option(256 << 20, "The most bytes of unstored writes in memory.", "BYTES", form="bytes")
    allow_other: bool = option(False, "Let other users of this machine read and write.")
    uid: int | None = option(None, "The user of all files.", form="number")
    gid: int | None = option(None, "The group of all files.", form="number")
    non_empty: bool = option(False, "Mount over a directory that is not empty.")
    xattrs: bool = option(False, "Show where a chunk is stored in the attribute user.shardstore.place; ls -l takes longer.")
    outlives: bool = option(False, "Return once it is mounted.", flags=("--background",))
    log_file: str | None = option(None, "Log errors to this file.", "FILE", flags=("--log",))


def mount(
    *,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="A path, URL or chain of URLs: of a store, or a snapshot, URL@REF.", show_default=False)
    ],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="An empty directory.", show_default=False)],
    options: MountOptions,
    attr_seconds: Annotated[
        float, typer.Option("--attr-seconds", metavar="SECONDS", help="How long names and sizes are cached.", min=0)
    ] = 1.0,
    chunks_per_shard: Annotated[
        str, typer.Option("--chunks-per-shard", metavar="auto|none|I,J,K", help="Shards of arrays that are created.")
    ] = "auto",
    umask: Annotated[str, typer.Option("--umask", metavar="MODE", help="Permission bits that no file has, octal.")] = "022",
    storage: StorageOptions,
) -> None:
    """Mount a store as a tree of plain chunk files, for programs that know neither shards nor object stores.

    Chunks are files that can be read, written, renamed and removed; below lie shards. A file is stored whole when it is closed; if that
    fails, close returns the error. Ctrl-C, or `shardstore unmount DIR`, stores unstored writes, and unmounts. Linux only.

    Examples:

        shardstore mount s3://bucket/data.zarr /mnt/data

        shardstore mount data.zarr /mnt/data --durable fsync --background

        shardstore mount run.ice@main /mnt/run
    """
    storage_options = storage.parsed()
    if storage_options or redacted(url) != url:
        ARGUMENTS.hide(["mount", redacted(url), str(directory)])  # lists of processes would show them as long as the store is mounted
    mounted = mounts.mount(
        url,
        directory,
        attr_seconds=attr_seconds,
        chunks_per_shard=parse_policy(chunks_per_shard),
        umask=_bits(umask),
        storage_options=storage_options,
        **vars(options),
    )
    if not options.outlives:
        _end_on_signals(mounted)
    how = ", for reading only" if mounted.read_only else ""
    process = f" by process {mounted.pid}" if options.outlives else ""
    typer.echo(f"mounted {mounted.url} at {mounted.directory}{how}{process}")
    sys.stdout.flush()
    while not options.outlives and not mounted.wait(0.5):  # in short turns, so that signals are noticed
        pass


def unmount(
    *,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where a store is mounted.", show_default=False)],
    force: Annotated[bool, typer.Option("--force", help="Unmount even if files are in use or cannot be stored: these are lost.")] = False,
) -> None:
    """Unmount a store that `shardstore mount` has mounted, after everything written has been stored.

    Examples:

        shardstore unmount /mnt/data
    """
    mounts.unmount(directory, force=force)


def _end_on_signals(mounted: mounts.Mount) -> None:
    def end(_number: int, _frame: FrameType | None) -> None:
        mounted.end()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def _bits(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError as exc:
        raise InvalidInput(f"--umask {text!r} is not an octal number, such as 022") from exc
