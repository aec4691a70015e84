"""``shardstore serve``, ``mount`` and ``unmount``: a store over HTTP, and as a tree of plain chunk files."""

from __future__ import annotations

import os
import signal
import sys
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from shardstore.apps.cli.arguments import ARGUMENTS, Shards, StorageOptions, argument, parse_policy, secret_in
from shardstore.apps.cli.output import complain
from shardstore.apps.mounting import mounts
from shardstore.errors import InvalidInput, NotFound
from shardstore.model.options import CommandOption, option
from shardstore.model.redaction import redacted


@dataclass(frozen=True)
class ServeOptions:
    """Options of ``shardstore.serve``."""

    host: str = option("127.0.0.1", "The address to listen at.", "ADDRESS")
    port: int = option(8080, CommandOption("The port to listen at; 0 is any free one.", "N", "number", most=65535))
    cors: Sequence[str] = option((), "A web page that may read, or '*'; repeatable.", "ORIGIN", form="texts")
    hosts: Sequence[str] = option((), "Another name of this server; repeatable.", "NAME", form="texts", flags=("--allow-host",))
    max_age: str = option("0s", "How long clients may keep a value.", "TIME", form="duration", group="Expert")
    in_flight: int = option(256, "Requests that are carried out at once.", "N", form="number", group="Expert")
    stored: bool = option(True, "Do not show the stored objects.", group="Selection")
    listing: bool = option(True, "Do not list directories and buckets.", group="Selection")
    report: bool = option(True, "Make the front page from metadata only.", group="Selection")
    follow_links: bool = option(False, "Follow links that lead out of a local directory.", group="Selection")


StoreOrSnapshot = Annotated[str, argument("URL", "A path, URL or chain of URLs: of a store, or a snapshot, URL@REF.")]


def serve(
    *,
    url: StoreOrSnapshot,
    options: ServeOptions,
    token_file: Annotated[Path | None, CommandOption("The file with the token that requests need.", "FILE")] = None,
    token_env: Annotated[str | None, CommandOption("The environment variable with the token.", "NAME")] = None,
    no_token: Annotated[bool, CommandOption("Let everyone read with your credentials.")] = False,
    open_browser: Annotated[bool, CommandOption("Open the front page in a browser.", flags=("--open",))] = False,
    storage: StorageOptions,
) -> None:
    """Serve a store over HTTP for reading, to browsers, viewers and clients of S3.

    / is the report on the store. /zarr3/ and /zarr2/ show its chunks in Zarr v3 and v2, and /stored/ the stored objects. The three are
    also buckets of an S3 endpoint. Ctrl-C ends it: requests have ten seconds to finish, and a second Ctrl-C stops them.

    Examples:
      shardstore serve data.zarr
      shardstore serve s3://bucket/data.zarr --cors https://viewer.example
      shardstore serve run.ice@main --host 0.0.0.0 --token-file token
    """
    from shardstore.apps import server  # imports much that mounting does not need
    from shardstore.apps.server.access import is_loopback

    host, storage_options = options.host, storage.parsed()
    token = _token(token_file, token_env)
    is_open = not is_loopback(host) and token is None
    if is_open and not no_token and (secret := secret_in(url, storage_options)) is not None:
        raise InvalidInput(
            f"every client that reaches {host} could read with your {secret!r}: give --token-file or --token-env, or --no-token"
        )
    has_been_asked = False

    def stop() -> None:
        nonlocal has_been_asked
        serving.stop(at_once=has_been_asked)
        has_been_asked = True

    serving = server.serve(url, storage_options=storage_options, token=token, **vars(options))
    with serving:
        _call_on_signals(stop, signal.SIGINT, signal.SIGTERM)
        if is_open:
            complain("warning", f"every client that reaches {host} can read: --token-file or --token-env requires a token")
        typer.echo(f"serving {serving.application.served.url} at {serving.url}")
        sys.stdout.flush()
        if open_browser:
            webbrowser.open(serving.url)
        while not serving.wait(0.5):  # in short turns, so that signals are noticed
            pass


def _call_on_signals(function: Callable[[], None], *numbers: signal.Signals) -> None:
    for number in numbers:
        signal.signal(number, lambda _number, _frame: function())


def _token(file: Path | None, variable: str | None) -> str | None:
    """Return the token that a file or a variable has. Raises ``InvalidInput`` or ``NotFound``."""
    if file is not None and variable is not None:
        raise InvalidInput("give --token-file or --token-env, not both")
    if file is not None:
        try:
            return file.read_text().strip()
        except OSError as exc:
            raise NotFound(f"the token cannot be read from {file}: {exc.strerror}") from exc
        except UnicodeDecodeError as exc:
            raise InvalidInput(f"{file} is not a text file, so it cannot hold a token") from exc
    if variable is not None:
        if (token := os.environ.get(variable)) is None:
            raise NotFound(f"the environment variable {variable} is not set")
        return token
    return None


@dataclass(frozen=True)
class MountOptions:
    """Options of ``shardstore.mount``."""

    read_only: bool = option(False, "Refuse every write.")
    present: str = option("v3", "The format that is shown.", "v3|v2|draft", group="Shape")
    durable: str = option("close", "When files are stored; fsync: in batches.", "close|fsync", group="Run")
    read_ahead: int = option(16 << 20, "How much is read ahead.", "BYTES", form="bytes", group="Run")
    write_memory: int = option(256 << 20, "Memory for writes that are not stored yet.", "BYTES", form="bytes", group="Run")
    attr_ttl: str = option("1s", "How long names and sizes are cached.", "TIME", form="duration", group="Run")
    allow_other: bool = option(False, "Let other users of this machine read and write.")
    uid: int | None = option(None, "The user who owns all files, as a number.", "N", form="number", group="Expert", words="yours")
    gid: int | None = option(None, "Their group, as a number.", "N", form="number", group="Expert", words="yours")
    non_empty: bool = option(False, "Mount over a directory that is not empty.", group="Expert")
    xattrs: bool = option(False, "Show where chunks are stored, in an attribute.", group="Expert")
    outlives: bool = option(False, "Return once it is mounted.", flags=("--background",), group="Run")
    log_file: str | None = option(None, "Log errors to this file.", "FILE", flags=("--log",), group="Run")


def mount(
    *,
    url: StoreOrSnapshot,
    directory: Annotated[Path, argument("DIR", "An empty directory.")],
    options: MountOptions,
    chunks_per_shard: Shards = "auto",
    umask: Annotated[str, CommandOption("Permission bits that no file has, octal.", "MODE", group="Expert")] = "022",
    storage: StorageOptions,
) -> None:
    """Mount a store as a tree of plain chunk files. Linux only.

    Chunks are files that can be read, written, renamed and removed. A file is stored when it is closed; if that fails, close returns the
    error. Ctrl-C, or shardstore unmount DIR, stores what is not stored yet, and unmounts.

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
        chunks_per_shard=parse_policy(chunks_per_shard),
        umask=_bits(umask),
        storage_options=storage_options,
        **vars(options),
    )
    if not options.outlives:
        _call_on_signals(mounted.end, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    how = ", for reading only" if mounted.read_only else ""
    process = f" by process {mounted.pid}" if options.outlives else ""
    typer.echo(f"mounted {mounted.url} at {mounted.directory}{how}{process}")
    sys.stdout.flush()
    while not options.outlives and not mounted.wait(0.5):  # in short turns, so that signals are noticed
        pass


def unmount(
    *,
    directory: Annotated[Path, argument("DIR", "Where a store is mounted.")],
    force: Annotated[bool, CommandOption("Unmount even if files are in use or cannot be stored: these are lost.")] = False,
) -> None:
    """Unmount a store, after everything written has been stored.

    Examples:
      shardstore unmount /mnt/data
    """
    mounts.unmount(directory, force=force)


def _bits(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError as exc:
        raise InvalidInput(f"--umask {text!r} is not an octal number, such as 022") from exc
