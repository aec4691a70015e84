"""``shardstore cat``: the bytes of one key."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from shardstore._sync import run_sync
from shardstore.adapters.store_paths import StorePath
from shardstore.apps.cli.arguments import StorageOptions, Url
from shardstore.errors import InvalidInput, NotFound
from shardstore.format.store_keys import join, metadata_key

_PIECE_NBYTES = 16 * 2**20

_RANGE = re.compile(r"(?P<start>-?[0-9]+)?:(?P<end>-?[0-9]+)?", re.ASCII)


def cat(
    *,
    url: Url,
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="A key below URL.", show_default=False)] = None,
    byte_range: Annotated[
        str | None, typer.Option("--range", metavar="A:B", help="Bytes from A to before B, as in Python: 0:100, 100:, -16:.")
    ] = None,
    storage: StorageOptions,
) -> None:
    """Write the bytes of a chunk, a metadata document or another object to stdout, as a client sees them.

    A chunk is read out of its shard; metadata documents are those of the chunk-level view.

    Examples:

        shardstore cat s3://bucket/data.zarr ct/zarr.json

        shardstore cat s3://bucket/data.zarr/ct/c/0/3/1 > chunk.bin

        shardstore cat data.zarr ct/c/0/0/0 --range 0:16 | xxd
    """
    wanted = parse_range(byte_range)
    target = storage.resolve(url).as_key()
    path = join(target.path, key.strip("/")) if key else target.path
    run_sync(write_out(target, path, wanted))
    sys.stdout.flush()


def parse_range(text: str | None) -> slice:
    """Return the slice for ``a:b``, as in Python.

    Raises:
        InvalidInput: the text has another form.
    """
    match = _RANGE.fullmatch(text if text is not None else ":")
    if match is None:
        raise InvalidInput(f"range {text!r} is not of the form A:B, such as 0:100, 100: or -16:")
    start, end = match["start"], match["end"]
    return slice(None if start is None else int(start), None if end is None else int(end))


async def write_out(target: StorePath, path: str, wanted: slice, piece_nbytes: int = _PIECE_NBYTES) -> None:
    """Write a value in pieces, all of one version, so that an object of any size fits into memory."""
    value = await target.engine.pin(path) if path else None
    if value is None:
        raise NotFound(await _why_not(target, path))
    start, end, _ = wanted.indices(value.nbytes)
    for piece in range(start, end, piece_nbytes):
        sys.stdout.buffer.write(await value.read(piece, min(end, piece + piece_nbytes)))


async def _why_not(target: StorePath, path: str) -> str:
    where = target.shown(path)
    if await target.engine.is_node(path):
        return f"{where} is a node, not a key: its document is {metadata_key(path)!r}"
    listed = await target.engine.list_dir(path)
    if listed.values or listed.prefixes:
        return f"{where} is a directory, not a key: shardstore ls shows what is in it"
    return f"there is no key at {where}; a chunk that was never written does not exist, and reads as the fill value"
