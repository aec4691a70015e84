"""``shardstore ls``: keys as a client sees them, with their sizes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Protocol

import typer

from shardstore._sync import iterate
from shardstore.adapters.store_paths import StorePath
from shardstore.apps.cli.arguments import AsJson, StorageOptions, Url
from shardstore.apps.cli.failures import first_error
from shardstore.apps.cli.output import JsonList
from shardstore.errors import Corruption, NotFound
from shardstore.format.store_keys import check_prefix, join
from shardstore.presented.flavours import Presented

_SIZE_COLUMNS = 14


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key relative to the store's root, or a directory, whose name ends with ``/`` and which has no size."""

    key: str
    nbytes: int | None = None

    @property
    def is_directory(self) -> bool:
        return self.key.endswith("/")


class Printer(Protocol):
    """A printer that writes entries as they arrive."""

    def add(self, entry: ListedKey, name: str) -> None: ...

    def end(self) -> None: ...


def ls(
    *,
    url: Url,
    prefix: Annotated[str | None, typer.Argument(metavar="[PREFIX]", help="A directory or key below URL.", show_default=False)] = None,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Everything below, not only the first level.")] = False,
    long: Annotated[bool, typer.Option("--long", "-l", help="Sizes in bytes too.")] = False,
    stored: Annotated[bool, typer.Option("--stored", help="The stored objects, shards and all, instead of chunks.")] = False,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """List keys: metadata documents, chunks, and other objects. Names are relative to URL; directories end with `/`.

    Chunks are listed from the indices of the shards, one request a shard.

    Examples:

        shardstore ls data.zarr

        shardstore ls -l s3://bucket/data.zarr ct/c/0

        shardstore ls -r --json s3://bucket/data.zarr/ct

        shardstore ls -r -l --stored data.zarr
    """
    target = storage.resolve(url)
    path = check_prefix(join(target.path, (prefix or "").strip("/"))).strip("/")
    printer: Printer = JsonPrinter() if as_json else TextPrinter(long)
    # Names are what can be given to other commands behind the same URL; a URL that is a key itself is named by it.
    base = join(target.path, "")
    source = _Source(target.engine, stored, sizes=long or as_json)
    try:
        found = asyncio.run(_print(source, path, recursive, printer, base))
    except Exception as exc:
        if not isinstance(error := first_error(exc), Corruption) or stored:
            raise
        # Chunks of a damaged index cannot be listed; stored objects can.
        raise Corruption(f"{error}. shardstore ls --stored lists the stored objects, and shardstore info the damaged shards") from exc
    if not found:
        raise NotFound(_nothing(target, path))
    printer.end()


def _nothing(target: StorePath, path: str) -> str:
    return f"there is nothing at {target.shown(path)}: list the directory above it, or check the spelling"


class TextPrinter:
    """A printer of one line per entry."""

    def __init__(self, long: bool) -> None:
        self._long = long

    def add(self, entry: ListedKey, name: str) -> None:
        size = ""
        if self._long:
            size = f"{'-' if entry.nbytes is None else entry.nbytes:>{_SIZE_COLUMNS}}  "
        sys.stdout.write(f"{size}{name}\n")

    def end(self) -> None:
        """Do nothing: there is nothing left to write."""


class JsonPrinter:
    """A printer of one JSON object per entry."""

    def __init__(self) -> None:
        self._list = JsonList()

    def add(self, entry: ListedKey, name: str) -> None:
        self._list.add({"name": name, "key": entry.key, "type": "directory" if entry.is_directory else "key", "nbytes": entry.nbytes})

    def end(self) -> None:
        self._list.end()


async def _print(source: _Source, path: str, recursive: bool, printer: Printer, base: str) -> bool:
    """Print what is at ``path``; return whether there was anything."""
    found = False
    async for entry in iterate(lambda: source.everything(path) if recursive else source.level(path)):
        name = entry.key.removeprefix(base) if entry.key.startswith(base) else entry.key
        printer.add(entry, name)
        found = True
    return found


class _Source:
    """Entries of one store, presented or stored. Runs on the IO loop."""

    def __init__(self, engine: Presented, stored: bool, *, sizes: bool) -> None:
        self._engine = engine
        self._stored = stored
        self._sizes = sizes

    async def everything(self, path: str) -> AsyncIterator[ListedKey]:
        """Yield the key ``path`` itself, and everything below it, in the order of discovery."""
        if (itself := await self._itself(path)) is not None:
            yield itself
        below = join(path, "")
        if self._stored:
            async for info in self._engine.storage.list(below):
                yield ListedKey(info.key, info.nbytes)
            return
        async for value in self._engine.list(below):
            yield ListedKey(value.key, await self._nbytes(value.key, value.nbytes))

    async def level(self, path: str) -> AsyncIterator[ListedKey]:
        """Yield the key ``path`` itself, and its direct children: directories first, then keys, in order."""
        if (itself := await self._itself(path)) is not None:
            yield itself
        below = join(path, "")
        values: list[tuple[str, int | None]]
        if self._stored:
            objects = await self._engine.storage.list_dir(below)
            prefixes, values = objects.prefixes, [(info.key, info.nbytes) for info in objects.objects]
        else:
            listed = await self._engine.list_dir(below)
            prefixes, values = listed.prefixes, [(value.key, value.nbytes) for value in listed.values]
        for prefix in sorted(prefixes, key=_in_order):
            yield ListedKey(prefix)
        for key, nbytes in sorted(values, key=lambda value: _in_order(value[0])):
            yield ListedKey(key, await self._nbytes(key, nbytes))

    async def _itself(self, path: str) -> ListedKey | None:
        if not path:
            return None
        if self._stored:
            info = await self._engine.storage.stat(path)
            return None if info is None else ListedKey(path, info.nbytes)
        nbytes = await self._engine.size(path)
        return None if nbytes is None else ListedKey(path, nbytes)

    async def _nbytes(self, key: str, nbytes: int | None) -> int | None:
        """Return the size of an entry, if sizes are wanted: a document's presented size is known only after reading it."""
        return await self._engine.size(key) if nbytes is None and self._sizes else nbytes


def _in_order(key: str) -> list[tuple[int, int | str]]:
    """Return a sort key with numbers in numerical order: ``c/2`` before ``c/10``."""
    parts = key.replace(".", "/").split("/")
    return [(0, int(part)) if part.isascii() and part.isdecimal() else (1, part) for part in parts]
