"""``shardstore mount`` and ``shardstore unmount``: a store as a tree of plain chunk files."""

from __future__ import annotations

import signal
import sys
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from shardstore.cli.arguments import StorageOptions, parse_bytes
from shardstore.cli.pack import parse_policy
from shardstore.cli.secrets import ARGUMENTS
from shardstore.errors import InvalidInput
from shardstore.model.redaction import redacted
from shardstore.mounting import mounts


class PresentedAs(StrEnum):
    """The flavours that are shown."""

    V3 = "v3"
    V2 = "v2"
    DRAFT = "draft"


class Durability(StrEnum):
    """When a file is stored."""

    CLOSE = "close"
    FSYNC = "fsync"


def mount(
    *,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="A path, URL or chain of URLs: of a store, or a snapshot, URL@REF.", show_default=False)
    ],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="An empty directory.", show_default=False)],
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every write.")] = False,
    present: Annotated[PresentedAs, typer.Option("--present", help="The format that is shown.")] = PresentedAs.V3,
    durable: Annotated[
        Durability, typer.Option("--durable", help="Store a file when it is closed; or in batches, at fsync or 1 to 5 s after.")
    ] = Durability.CLOSE,
    attr_seconds: Annotated[
        float, typer.Option("--attr-seconds", metavar="SECONDS", help="How long names and sizes are cached.", min=0)
    ] = 1.0,
    read_ahead: Annotated[
        str, typer.Option("--read-ahead", metavar="BYTES", help="Bytes to read ahead when chunks are opened in order.")
    ] = "16MiB",
    write_memory: Annotated[
        str, typer.Option("--write-memory", metavar="BYTES", help="The most bytes of unstored writes in memory.")
    ] = "256MiB",
    chunks_per_shard: Annotated[
        str, typer.Option("--chunks-per-shard", metavar="auto|none|I,J,K", help="Shards of arrays that are created.")
    ] = "auto",
    allow_other: Annotated[bool, typer.Option("--allow-other", help="Let other users of this machine read and write.")] = False,
    uid: Annotated[int | None, typer.Option("--uid", help="The user of all files.", min=0, show_default=False)] = None,
    gid: Annotated[int | None, typer.Option("--gid", help="The group of all files.", min=0, show_default=False)] = None,
    umask: Annotated[str, typer.Option("--umask", metavar="MODE", help="Permission bits that no file has, octal.")] = "022",
    non_empty: Annotated[bool, typer.Option("--non-empty", help="Mount over a directory that is not empty.")] = False,
    xattrs: Annotated[
        bool, typer.Option("--xattrs", help="Show where a chunk is stored in the attribute user.shardstore.place; ls -l takes longer.")
    ] = False,
    background: Annotated[bool, typer.Option("--background", help="Return once it is mounted.")] = False,
    log: Annotated[Path | None, typer.Option("--log", metavar="FILE", help="Log errors there.", show_default=False)] = None,
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
    options = storage.parsed()
    if options or redacted(url) != url:
        ARGUMENTS.hide(["mount", redacted(url), str(directory)])  # lists of processes would show them as long as the store is mounted
    mounted = mounts.mount(
        url,
        directory,
        read_only=read_only,
        present=present.value,
        durable=durable.value,
        attr_seconds=attr_seconds,
        read_ahead=parse_bytes("--read-ahead", read_ahead),
        write_memory=parse_bytes("--write-memory", write_memory),
        chunks_per_shard=parse_policy(chunks_per_shard),
        allow_other=allow_other,
        uid=uid,
        gid=gid,
        umask=_bits(umask),
        non_empty=non_empty,
        xattrs=xattrs,
        outlives=background,
        log_file=log,
        storage_options=options,
    )
    if not background:
        _end_on_signals(mounted)
    how = ", for reading only" if mounted.read_only else ""
    process = f" by process {mounted.pid}" if background else ""
    typer.echo(f"mounted {mounted.url} at {mounted.directory}{how}{process}")
    sys.stdout.flush()
    while not background and not mounted.wait(0.5):  # in short turns, so that signals are noticed
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
