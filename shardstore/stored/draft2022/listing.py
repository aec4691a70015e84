"""Listings of a stored 2022-draft hierarchy by canonical keys.

A stored key gives its canonical key, except in two cases, where documents have to be read: the object ``c0`` is ``c/0``, or ``c`` of
a 0-d array; and a group may have no document. Stored directories are ambiguous as well: ``data/root/x/c0/`` holds rows of chunks of
``x`` (``x/c/0/``), or is the directory of a node ``x/c0``, or both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from shardstore.format.draft2022.keys import (
    ARRAY_SUFFIX,
    DATA_ROOT,
    META_ROOT,
    VERBATIM,
    array_document_key,
    canonical_key,
    document_path,
    group_document_key,
    scalar_data_keys,
    stored_prefixes,
    verbatim_key,
)
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_v3 import METADATA_NAME
from shardstore.format.store_keys import groups_above, metadata_key
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import DirListing, Found, ObjectInfo, Read, Storage, check_directory, document_read
from shardstore.storage.wrappers import KEYS_A_REQUEST
from shardstore.stored.draft2022.documents import (
    IMPLICIT,
    IMPLICIT_DOCUMENT,
    DraftDocuments,
    data_path,
    parsed,
    scalar_key,
    scalar_keys,
    sought,
)


@dataclass(eq=False, repr=False)
class DraftListing:
    """Lists the hierarchy in ``inner``."""

    _inner: Storage
    _documents: DraftDocuments

    # -- as it is stored -----------------------------------------------------------------------------------------------

    async def verbatim(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """List, below ``VERBATIM``, documents and what has no canonical key."""
        async for found in self._inner.list(prefix.removeprefix(VERBATIM)):
            if found.key.startswith(META_ROOT) or canonical_key(found.key) is None:
                yield found._replace(key=verbatim_key(found.key))

    async def verbatim_directory(self, prefix: str) -> DirListing:
        listed = await self._inner.list_dir(prefix.removeprefix(VERBATIM))
        objects = tuple(found._replace(key=verbatim_key(found.key)) for found in listed.objects)
        return DirListing(objects, tuple(VERBATIM + below for below in listed.prefixes))

    # -- all keys that start with a prefix -----------------------------------------------------------------------------

    async def objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield every canonical key that starts with ``prefix``, once; sizes of documents are those of the stored ones."""
        stored = stored_prefixes(prefix)
        async for info in self._data(prefix, [inside for inside in stored if inside.startswith(DATA_ROOT)]):
            if info.key.startswith(prefix):
                yield info
        if nodes := [inside for inside in stored if inside.startswith(META_ROOT)]:
            async for info in self._nodes(prefix, nodes):
                yield info

    async def _data(self, prefix: str, stored: Iterable[str]) -> AsyncIterator[ObjectInfo]:
        """Yield data below the stored prefixes, by canonical keys, of which some do not start with ``prefix``."""
        scalars: dict[str, tuple[str, str] | None] = {}  # what documents have said, for this listing
        waiting: list[ObjectInfo] = []  # for documents, and what came after those that wait
        for inside in stored:
            async for found in self._inner.list(inside):
                if (key := canonical_key(found.key)) is None or not key.startswith(prefix):
                    continue
                if waiting or found.key.endswith(("/c", "/c0")):
                    waiting.append(found)
                else:
                    yield found._replace(key=key)
                if len(waiting) >= KEYS_A_REQUEST:
                    for info in await self._decided(waiting, scalars):
                        yield info
                    waiting = []
        for info in await self._decided(waiting, scalars):
            yield info

    async def _decided(self, waiting: Iterable[ObjectInfo], scalars: dict[str, tuple[str, str] | None]) -> list[ObjectInfo]:
        """Return objects under their canonical keys, of two chunks of a 0-d array the one that counts; ``scalars`` remembers by path."""
        waiting = list(waiting)
        paths = {found.key: data_path(found.key) for found in waiting if found.key.endswith(("/c", "/c0"))}
        unknown = [path for path in dict.fromkeys(paths.values()) if path not in scalars]
        outcomes = await self._inner.read([document_read(array_document_key(path)) for path in unknown]) if unknown else []
        for path, outcome in zip(unknown, outcomes, strict=True):
            scalars[path] = scalar_keys(path, sought(outcome, array_document_key(path)))
        decided: list[ObjectInfo] = []
        for found in waiting:
            scalar = scalars[paths[found.key]] if found.key in paths else None
            if scalar is None:
                decided.append(found._replace(key=canonical_key(found.key) or found.key))
            elif found.key == scalar[0] or await self._inner.stat(scalar[0]) is None:
                decided.append(found._replace(key=scalar_key(paths[found.key])))
        return decided

    async def _nodes(self, prefix: str, stored: Iterable[str]) -> AsyncIterator[ObjectInfo]:
        """Yield the documents whose keys start with ``prefix``, those of implicit groups too."""
        paths = await self._stored_nodes(stored)
        implicit = {above for path in paths for above in groups_above(path)} - set(paths)
        # Where the prefix goes on after the path of a node, it has not been listed what is below; and the root may have nothing below.
        at, _, last = prefix.rpartition("/")
        is_open = METADATA_NAME.startswith(last) and (last or not at) and at not in paths and at not in implicit
        if is_open and await self._documents.is_implicit(at):
            implicit.add(at)
        for info in (*paths.values(), *map(_implicit, sorted(implicit))):
            if info.key.startswith(prefix):
                yield info

    async def _stored_nodes(self, prefixes: Iterable[str]) -> dict[str, ObjectInfo]:
        """Return the stored documents by path; where there are two of one path, that of the array."""
        paths: dict[str, ObjectInfo] = {}
        for prefix in prefixes:
            async for found in self._inner.list(prefix):
                key = canonical_key(found.key)
                path = None if key is None else document_path(key)
                if key is not None and path is not None and (path not in paths or found.key.endswith(ARRAY_SUFFIX)):
                    paths[path] = found._replace(key=key)
        return paths

    # -- what lies directly below a prefix -----------------------------------------------------------------------------

    async def directory(self, prefix: str) -> DirListing:
        """Return the direct children of ``prefix``. Exact, except for three things that would take more than listings of directories:

        - What is no chunk inside of a directory of chunks, ``data/root/x/c0/notes`` next to ``data/root/x/c0/1``, belongs to ``x/c0/``,
          which is left out where ``x`` is an array of two dimensions or more; the row ``x/c/0/`` is shown if nothing else is there (and
          hidden again by an engine above that lists exactly, where no chunk is in it).
        - A directory is shown if something is in it, even if that has no canonical key.
        - Where the storage inside shows directories that hold nothing, so does this.
        """
        check_directory(prefix)
        if not stored_prefixes(prefix):
            return DirListing((), ())
        return await _Directory(self._inner, self._documents, prefix).listing()


@dataclass(eq=False, repr=False)
class _Directory:
    """One directory, while it is being listed."""

    _inner: Storage
    _documents: DraftDocuments
    _prefix: str
    _objects: dict[str, ObjectInfo] = field(default_factory=dict, init=False)
    _prefixes: set[str] = field(default_factory=set, init=False)

    async def listing(self) -> DirListing:
        path = self._prefix.rstrip("/")
        chunks = _chunk_directory(self._prefix)  # where the array would be of whose chunks these are, and their directory
        keys = [array_document_key(path), *([] if chunks is None else [array_document_key(chunks[0])])]
        reads = [*(Read(key, (EVERYTHING,)) for key in keys), Read(group_document_key(path), ())]
        directories = [f"{META_ROOT}/{self._prefix}", DATA_ROOT + self._prefix, *([] if chunks is None else [chunks[1]])]
        outcomes, listings = await asyncio.gather(self._inner.read(reads), asyncio.gather(*map(self._inner.list_dir, directories)))
        nodes, data, *rest = listings
        array, group = sought(outcomes[0], keys[0]), sought(outcomes[-1], group_document_key(path))
        await self._add_data(data, path, array)
        for more in rest:
            assert chunks is not None
            await self._add_data(more, chunks[0], sought(outcomes[1], keys[1]))
        holds_nodes = self._add_nodes(nodes)
        if (found := array or group) is not None:
            own: ObjectInfo | None = ObjectInfo(self._prefix + METADATA_NAME, found.nbytes, found.generation)
        else:
            is_implicit = holds_nodes or ((nodes.prefixes or not path) and await self._documents.is_implicit(path))
            own = _implicit(path) if is_implicit else None
        if own is not None:
            self._objects[own.key] = own
        return DirListing(tuple(self._objects[key] for key in sorted(self._objects)), tuple(sorted(self._prefixes)))

    def _add(self, info: ObjectInfo) -> None:
        """Add an object below the prefix, by its canonical key."""
        if not info.key.startswith(self._prefix):
            return
        name, slash, _ = info.key[len(self._prefix) :].partition("/")
        if slash:
            self._prefixes.add(f"{self._prefix}{name}/")
        else:
            self._objects[info.key] = info

    def _add_nodes(self, nodes: DirListing) -> bool:
        """Add the directory of documents; return whether any is in it."""
        keys = [(canonical_key(found.key), found) for found in nodes.objects]
        for key, found in keys:
            if key is not None:
                self._add(found._replace(key=key))
        below = (prefix[len(META_ROOT) + 1 :] for prefix in nodes.prefixes)
        self._prefixes.update(prefix for prefix in below if stored_prefixes(prefix))
        return any(key is not None for key, _ in keys)

    async def _add_data(self, data: DirListing, path: str, array: Found | None) -> None:
        """Add a directory of data in which chunks of the array at ``path`` may be, whose stored document is ``array``."""
        doubtful: dict[str, ObjectInfo] = {}
        for found in data.objects:
            if found.key in scalar_data_keys(path):
                doubtful[found.key] = found
            elif (key := canonical_key(found.key)) is not None:
                self._add(found._replace(key=key))
        for info in _under_canonical_keys(path, doubtful, scalar_keys(path, array)):
            self._add(info)
        has_rows = _has_rows(parsed(array))
        for directory in data.prefixes:
            await self._add_directory(directory, has_rows)

    async def _add_directory(self, directory: str, has_rows: bool) -> None:
        """Add a stored directory of data: as itself, as one of chunks, or as both."""
        tail = directory[len(DATA_ROOT) :]
        own = _child(self._prefix, tail)
        shown = canonical_key(directory + "0")
        # The canonical prefix of chunks for a directory that is named like one of chunks: x/c/0/ for data/root/x/c0/.
        row = None if shown is None or shown.startswith(tail) else shown.removesuffix("0")
        as_chunks = None if row is None else _child(self._prefix, row)
        if row is not None and has_rows:
            if as_chunks is not None:
                self._prefixes.add(as_chunks)
            return
        wanted = {p for p in (own, as_chunks) if p is not None} - self._prefixes
        if not wanted:
            return
        if not _resembles_row(tail):
            self._prefixes |= wanted
            return
        holds_chunks, holds_more = await self._look(directory, tail, as_chunks in wanted, own in wanted)
        self._prefixes |= {p for p, holds in ((as_chunks, holds_chunks), (own, holds_more)) if holds and p in wanted}

    async def _look(self, directory: str, tail: str, for_chunks: bool, for_data: bool) -> tuple[bool, bool]:
        """Return whether chunks are in ``directory``, below one that is named like one of chunks, and whether other data is: what is shown
        below ``tail``, the name of that one.
        """
        listed = await self._inner.list_dir(directory)
        keys = [key for found in listed.objects if (key := canonical_key(found.key)) is not None]
        data = any(key.startswith(tail) for key in keys)
        chunks = not all(key.startswith(tail) for key in keys)
        below: list[str] = []
        for deeper in listed.prefixes:
            if _resembles_row(deeper[len(DATA_ROOT) :]):
                below.append(deeper)
            else:
                data = True
        for deeper in below:
            look_for_chunks, look_for_data = for_chunks and not chunks, for_data and not data
            if not look_for_chunks and not look_for_data:
                break
            more = await self._look(deeper, tail, look_for_chunks, look_for_data)
            chunks, data = chunks or more[0], data or more[1]
        return chunks, data


def _implicit(path: str) -> ObjectInfo:
    return ObjectInfo(metadata_key(path), len(IMPLICIT_DOCUMENT), IMPLICIT)


def _under_canonical_keys(path: str, objects: dict[str, ObjectInfo], scalar: tuple[str, str] | None) -> list[ObjectInfo]:
    """Return the objects ``c`` and ``c0`` of one path; ``scalar`` are both keys of a 0-d array, the one that counts first."""
    if scalar is None:
        return [info._replace(key=canonical_key(key) or key) for key, info in objects.items()]
    counts = objects.get(scalar[0]) or objects.get(scalar[1])
    return [] if counts is None else [counts._replace(key=scalar_key(path))]


def _has_rows(document: JsonObject | None) -> bool:
    """Return whether directories named like those of chunks are, in an array of this stored document."""
    if document is None:
        return False
    shape, grid = document.get("shape"), document.get("chunk_grid")
    return isinstance(shape, list) and len(shape) > 1 and isinstance(grid, dict) and grid.get("separator", "/") == "/"


def _chunk_directory(prefix: str) -> tuple[str, str] | None:
    """Return, for a prefix of chunk keys such as ``x/c/`` or ``x/c/0/1/``: ``x``, and the stored directory; ``None`` for another."""
    segments = prefix.split("/")[:-1]
    at = len(segments) - 1
    while at >= 0 and segments[at].isdecimal():
        at -= 1
    # The prefix of data that is not the canonical one: up to "c", or as far as numbers go.
    stored = [p for p in stored_prefixes(prefix) if p.startswith(DATA_ROOT) and p != DATA_ROOT + prefix]
    if at < 0 or segments[at] != "c" or not stored:
        return None
    return "/".join(segments[:at]), stored[0].removesuffix("c") if at == len(segments) - 1 else stored[0]


def _resembles_row(tail: str) -> bool:
    """Return whether what is below ``tail`` may be something else than the name says: of chunks, or without a canonical key."""
    return canonical_key(f"{DATA_ROOT}{tail}0") != f"{tail}0"


def _child(prefix: str, below: str) -> str | None:
    """Return the direct child of ``prefix`` in which ``below`` lies, if it does and is not ``prefix`` itself."""
    name = below[len(prefix) :].partition("/")[0]
    return f"{prefix}{name}/" if below.startswith(prefix) and name else None
