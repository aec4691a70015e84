"""``shardstore serve``: serves a store over HTTP for reading."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from shardstore.apps import server
from shardstore.apps.cli.arguments import StorageOptions
from shardstore.apps.cli.output import complain
from shardstore.apps.cli.secrets import secret_in
from shardstore.apps.server.access import is_loopback
from shardstore.errors import InvalidInput, NotFound
from shardstore.model.options import CommandOption, option


@dataclass(frozen=True)
class ServeOptions:
    """Options of ``shardstore.serve``."""

    host: str = option("127.0.0.1", "The address to listen at. By default only this machine can connect.")
    port: int = option(8080, CommandOption("The port to listen at; 0: any free one.", form="number", most=65535))
    cors: Sequence[str] = option((), "Web pages that may read: https://viewer.example, or '*'; may be repeated.", "ORIGIN", form="texts")
    hosts: Sequence[str] = option((), "Another name of this server; may be repeated.", "NAME", form="texts", flags=("--allow-host",))
    max_age: int = option(0, "How long clients may keep a value without asking again.", "SECONDS", form="number")
    in_flight: int = option(256, "The number of concurrent requests.", form="number")
    stored: bool = option(True, "Do not show the stored objects.")
    listing: bool = option(True, "Do not list directories and buckets.")
    report: bool = option(True, "Make the page at / from metadata only: no shard is read for it.")
    follow_links: bool = option(False, "Serve targets of links in a local directory, even outside of the directory.")


def serve(
    *,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="A path, URL or chain of URLs: of a store, or a snapshot, URL@REF.", show_default=False)
    ],
    options: ServeOptions,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="A file with the token that requests have to have.", show_default=False),
    ] = None,
    token_env: Annotated[
        str | None, typer.Option("--token-env", metavar="NAME", help="The variable that has the token.", show_default=False)
    ] = None,
    no_token: Annotated[
        bool,
        typer.Option(
            "--no-token", help="Serve without a token to every client that reaches --host, although the storage needs credentials."
        ),
    ] = False,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the front page in a browser.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print errors that occur while values are read.")] = False,
    storage: StorageOptions,
) -> None:
    """Serve a store over HTTP for reading, chunk by chunk, to browsers, viewers and clients of S3.

    / is the report on the store. /zarr3/ shows Zarr v3 and /zarr2/ Zarr v2, both chunk by chunk, and /stored/ the stored
    objects. The three are buckets of an S3 endpoint too. Nothing can be written. Ctrl-C ends it: requests have ten seconds to finish, and a
    second Ctrl-C stops them.

    Examples:

        shardstore serve data.zarr

        shardstore serve s3://bucket/data.zarr --cors https://viewer.example

        shardstore serve run.ice@main --host 0.0.0.0 --token-file token
    """
    host, storage_options = options.host, storage.parsed()
    token = _token(token_file, token_env)
    is_open = not is_loopback(host) and token is None
    if is_open and not no_token and (secret := secret_in(url, storage_options)) is not None:
        raise InvalidInput(
            f"every client that reaches {host} could read with your {secret!r}: give --token-file or --token-env, or --no-token"
        )
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
    ended = threading.Event()
    serving = server.serve(url, storage_options=storage_options, token=token, **vars(options))
    with serving:
        _stop_on_signals(serving, ended)
        if is_open:
            complain("warning", f"every client that reaches {host} can read: --token-file or --token-env requires a token")
        typer.echo(f"serving {serving.application.served.url} at {serving.url}")
        sys.stdout.flush()
        if open_browser:
            webbrowser.open(serving.url)
        while not serving.wait(0.5):  # in short turns, so that signals are noticed
            pass


def _stop_on_signals(serving: server.Serving, ended: threading.Event) -> None:
    def stop(_number: int, _frame: FrameType | None) -> None:
        serving.stop(at_once=ended.is_set())
        ended.set()

    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, stop)


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
            raise InvalidInput(f"{file} is no text, so there is no token in it") from exc
    if variable is not None:
        if (token := os.environ.get(variable)) is None:
            raise NotFound(f"there is no variable {variable!r} in the environment")
        return token
    return None
