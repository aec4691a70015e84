"""A cache of directory listings: names and sizes, believed for ``attr_seconds``.

A call of the engine for each name would cost fifteen times the processor time. So everything below a directory is listed at once, where it
is not too much, and the listing answers what is asked below it. Inside an array whose chunk keys have ``/`` between numbers, directories
are not looked up at all: they are there if their numbers lie in the chunk grid. What this mount itself changes is noted here at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from shardstore.adapters.file_access import FileAccess
from shardstore.adapters.read_views import ValueRead, VersionedValue, VersionGone
from shardstore.apps.mounting.names import DIRECTORY, is_scratch, moved_path, name_of, parent_of, shown_order
from shardstore.apps.mounting.reading import Values
from shardstore.errors import Corruption
from shardstore.format.chunk_keys import looks_like_chunk_prefix
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.format.store_keys import ancestors, join
from shardstore.model.containers import Lru

_UNKNOWN = -2  # the size of a document that has not been read yet

WHOLE_NAMES = 200_000
"""All below a directory of an array is listed at once if its chunk grid has no more chunks there."""

_MOST_REMEMBERED = 200_000
"""Arrays, lookups and directories of chunks that are remembered."""

MOST_NAMES = 1_000_000
"""Listings that are no longer believed are kept, for reading ahead, up to so many names."""

_SMALL_NAMES = 4096
_MISS_SECONDS = 5.0
_MISSES = 2


@dataclass(slots=True)
class DirectoryNames:
    """The names of one directory with their sizes in bytes; ``at`` is when the listing began."""

    names: dict[str, int]
    at: float
    top: str = ""
    """The directory whose listing this was part of."""
    order: list[str] | None = None
    """The names in the order in which they are shown: directories first, documents last."""

    def ordered(self, path: str) -> list[str]:
        if self.order is None:
            self.order = shown_order(path, self.names)
        return self.order


_Listings = dict[str, DirectoryNames]  # by directory


@dataclass(eq=False)
class Tree:
    """The tree of one store. Paths are presented keys, and those of directories; ``""`` is the root."""

    store: FileAccess
    values: Values
    attr_seconds: float
    clock: Callable[[], float] = time.monotonic
    whole_names: int = WHOLE_NAMES
    most_names: int = MOST_NAMES
    made_here: set[str] = field(default_factory=set)
    """Arrays that this mount has made. Their directories of chunks are there only once there is something in them: ``cp -r`` does not
    look before it makes a directory in one that it has made, and would fail."""
    _listed: dict[str, DirectoryNames] = field(default_factory=dict)  # the oldest first
    _names: int = 0  # in listings, and in some that have been forgotten
    _arrays: dict[str, tuple[ArrayLayout | None, float]] = field(default_factory=dict)  # by directory; and when it was looked up
    _under_way: dict[tuple[str, bool], asyncio.Future[_Listings]] = field(default_factory=dict)  # by directory; whole or one level
    _spaces: dict[str, tuple[_Space | None, float]] = field(default_factory=dict)
    _epoch: int = 0
    """Increased when the document of an array has been changed here."""
    _changes: dict[str, int | None] = field(default_factory=dict)  # while listings are under way
    _moves: int = 0
    """Increased when a directory has been renamed here."""

    def __post_init__(self) -> None:
        # Lookups below each directory that the cache could not answer.
        self._misses: Lru[str, int] = Lru(_MOST_REMEMBERED, seconds=_MISS_SECONDS, clock=self.clock)

    # -- what is asked ---------------------------------------------------------------------------------------------------

    async def find(self, path: str) -> int | None:
        """Return the size of the file at ``path`` in bytes, or ``DIRECTORY``; ``None`` if there is nothing.

        Raises:
            ShardStoreError: the storage could not be asked.
        """
        if not path:
            return DIRECTORY
        parent, name = parent_of(path), name_of(path)
        nbytes = await self._find(path, parent, name)
        return await self._document_size(path) if nbytes == _UNKNOWN else nbytes

    async def _find(self, path: str, parent: str, name: str) -> int | None:
        if (listed := self._fresh(parent)) is not None:
            found = listed.names.get(name)
            return DIRECTORY if found is None and await self._is_implied(path) else found
        space = await self._space(parent)
        if space is None or (parent == space.path and not space.has_directory(path)):
            return await self._found_in(self._list_level(parent), path)
        if is_scratch(name):
            return None
        if space.path in self.made_here:
            return await self._found_in(self._list(space.path if space.chunks_below(space.path) <= self.whole_names else parent), path)
        if space.has_directory(path):
            return DIRECTORY
        if space.is_chunk(path):
            return await self._find_chunk(path, parent, space)
        return await self.store.size(path)

    @staticmethod
    async def _found_in(listing: Awaitable[_Listings], path: str) -> int | None:
        """Return the size of a file, or ``DIRECTORY``, as a listing has it."""
        listed = (await listing).get(parent_of(path))
        return None if listed is None else listed.names.get(name_of(path))

    async def _is_implied(self, path: str) -> bool:
        """Return whether a directory of chunks is there though nothing is in it, and no listing shows it."""
        if not looks_like_chunk_prefix(name_of(path)):
            return False
        space = await self._space(parent_of(path))
        return space is not None and space.path not in self.made_here and space.has_directory(path)

    async def names(self, path: str) -> DirectoryNames:
        """Return all names in a directory, with their sizes. Raises as ``find``."""
        listed = self._fresh(path)
        if listed is None:
            listed = (await self._list(path))[path]
        for name in [name for name, nbytes in listed.names.items() if nbytes == _UNKNOWN]:
            nbytes = await self._document_size(join(path, name))
            if listed.names.get(name) != _UNKNOWN:
                continue  # it has been stored or removed since then
            if nbytes is None:
                del listed.names[name]
                listed.order = None
            else:
                listed.names[name] = nbytes
        return listed

    def known_names(self, path: str) -> Mapping[str, int] | None:
        """Return the names in a directory as they were listed, however long ago, with what this mount has changed since."""
        listed = self._listed.get(path)
        return None if listed is None else listed.names

    def following(self, path: str) -> Iterator[str]:
        """Yield the files that come after ``path`` in the order of listings, as far as directories have been listed, however long ago."""
        return self._walk(path, 1)

    def preceding(self, path: str) -> Iterator[str]:
        """Yield the files that come before ``path``, the nearest first."""
        return self._walk(path, -1)

    def _walk(self, path: str, step: int) -> Iterator[str]:
        while path:
            parent, name = parent_of(path), name_of(path)
            listed = self._listed.get(parent)
            if listed is None or name not in listed.names:
                return
            order = listed.ordered(parent)
            at = order.index(name)
            for sibling in order[at + 1 :] if step > 0 else reversed(order[:at]):
                yield from self._inside(join(parent, sibling), listed.names.get(sibling, 0), step)
            path = parent

    def _inside(self, path: str, nbytes: int, step: int) -> Iterator[str]:
        if nbytes != DIRECTORY:
            yield path
            return
        listed = self._listed.get(path)
        if listed is not None:
            for name in listed.ordered(path)[::step]:
                yield from self._inside(join(path, name), listed.names.get(name, 0), step)

    def nbytes(self, path: str) -> int | None:
        """Return the size of a file as it was listed, however long ago; ``None`` if it is not known."""
        listed = self._listed.get(parent_of(path))
        found = None if listed is None else listed.names.get(name_of(path))
        return None if found is None or found < 0 else found

    async def chunk_area(self, path: str) -> bool:
        """Return whether a file would lie among the chunks of a sharded array, below its directory."""
        space = await self._space(parent_of(path))
        return space is not None and parent_of(path) != space.path

    async def is_hidden(self, path: str) -> bool:
        """Return whether a directory is there only because its numbers lie in the chunk grid: no listing shows it."""
        space = await self._space(parent_of(path))
        if space is None or not space.has_directory(path):
            return False
        listed = self._fresh(parent_of(path))
        return listed is None or name_of(path) not in listed.names

    async def is_chunk(self, path: str) -> bool:
        """Return whether a path is that of a chunk of a sharded array, in its grid or beyond."""
        space = await self._space(parent_of(path))
        return space is not None and space.is_chunk(path)

    # -- what this mount has changed -------------------------------------------------------------------------------------

    def put(self, path: str, nbytes: int) -> None:
        """Note that there is a file of this size at ``path``, or a directory."""
        self._note(path, nbytes)
        while path:
            listed = self._listed.get(parent_of(path))
            if listed is not None:
                if name_of(path) not in listed.names:
                    listed.order = None
                listed.names[name_of(path)] = nbytes
            path, nbytes = parent_of(path), DIRECTORY

    def remove(self, path: str) -> None:
        """Note that there is nothing at ``path`` or below it."""
        self._note(path, None)
        listed = self._listed.get(parent_of(path))
        known = None if listed is None else listed.names.pop(name_of(path), None)
        if listed is not None and known is not None:
            listed.order = None
        if known == DIRECTORY or path in self._listed or path in self._arrays:
            self._forget_below(path)
            self.forget_array(path)

    def _note(self, path: str, nbytes: int | None) -> None:
        """Remember a change, in the order of changes, for listings that are under way."""
        if self._under_way:
            self._changes.pop(path, None)
            self._changes[path] = nbytes

    def forget_array(self, path: str) -> None:
        """Look again whether there is an array at ``path``, whose document has been changed here."""
        self._arrays.pop(path, None)
        self._spaces.clear()
        self._epoch += 1

    def forget(self, path: str) -> None:
        """Ask the storage again for all at and below a directory, and for its name."""
        self._listed.pop(parent_of(path), None)
        self._forget_below(path)
        self.forget_array(path)

    def moved(self, source: str, target: str) -> None:
        """Ask the storage again for what a renamed directory was and is."""
        self._moves += 1
        for path in (source, target):
            self.forget(path)
        moved = {path for path in self.made_here if path == source or path.startswith(f"{source}/")}
        self.made_here = (self.made_here - moved) | {moved_path(path, source, target) for path in moved}

    def _forget_below(self, path: str) -> None:
        for other in self._below(self._listed, path):
            del self._listed[other]
        for other in self._below(self._arrays, path):
            del self._arrays[other]

    @staticmethod
    def _below(kept: Mapping[str, object], path: str) -> list[str]:
        begin = f"{path}/" if path else ""
        return [other for other in kept if other == path or other.startswith(begin)]

    # -- listings --------------------------------------------------------------------------------------------------------

    def _fresh(self, path: str) -> DirectoryNames | None:
        listed = self._listed.get(path)
        return listed if listed is not None and self.clock() - listed.at < self.attr_seconds else None

    async def _document_size(self, path: str) -> int | None:
        """Return the size of a document, which is shown as no listing has it."""
        value = await self.values.read(path)
        if value is not None:
            self.put(path, value.nbytes)
        return None if value is None else value.nbytes

    async def _once(self, path: str, work: Callable[[float], Awaitable[_Listings]], *, whole: bool) -> _Listings:
        """Return the listings that the work makes, or those of a task that does it already. They may be forgotten by then: a directory that
        was listed may be removed or renamed before who has asked goes on.
        """
        if (task := self._under_way.get((path, whole))) is None:
            task = self._under_way[path, whole] = asyncio.ensure_future(self._work(path, work, whole=whole))
        return await asyncio.shield(task)

    async def _work(self, path: str, work: Callable[[float], Awaitable[_Listings]], *, whole: bool) -> _Listings:
        try:
            moves = -1
            while moves != self._moves:  # what was listed before may have another name
                moves = self._moves
                listed = await work(self.clock())
            self._keep(path, listed, whole=whole)
        finally:
            del self._under_way[path, whole]
            if not self._under_way:
                self._changes.clear()
        return listed

    async def _list_level(self, path: str) -> _Listings:
        async def work(at: float) -> _Listings:
            listed = await self.store.list_dir(join(path, "") if path else "")
            names: dict[str, int] = {name_of(prefix.rstrip("/")): DIRECTORY for prefix in listed.prefixes}
            for value in listed.values:
                names[name_of(value.key)] = _UNKNOWN if value.nbytes is None else value.nbytes
            return {path: DirectoryNames(names, at, path)}

        return await self._once(path, work, whole=False)

    async def _list(self, path: str) -> _Listings:
        """List a directory, and all below it if it belongs to an array and that is not too much."""
        space = await self._space(path)
        if space is None or space.chunks_below(path) > self.whole_names:
            return await self._list_level(path)
        return await self._list_below(path)

    async def _list_below(self, path: str) -> _Listings:
        async def work(at: float) -> _Listings:
            below: _Listings = {path: DirectoryNames({}, at, path)}
            prefix = join(path, "") if path else ""
            async for batch in self.store.list_batches(prefix):
                for key, nbytes in zip(batch.keys, batch.nbytes, strict=True):
                    parent, _, name = key.rpartition("/")
                    listed = below.get(parent)
                    if listed is None:
                        listed = below[parent] = DirectoryNames({}, at, path)
                        self._link(below, path, parent, at)
                    listed.names[name] = _UNKNOWN if nbytes is None else nbytes
            return below

        return await self._once(path, work, whole=True)

    def _keep(self, top: str, listed: _Listings, *, whole: bool) -> None:
        """Keep new listings, with what was changed while they were made and may not be in them, and forget the oldest ones where that makes
        too many names.
        """
        for other in self._below(self._listed, top) if whole else ():
            del self._listed[other]
        for path, one in listed.items():
            self._listed.pop(path, None)
            self._listed[path] = one
            self._names += len(one.names)
        for changed, nbytes in list(self._changes.items()):
            self._keep_change(changed, nbytes, top, listed, whole=whole)
        if self._names > self.most_names:
            self._names = sum(len(one.names) for one in self._listed.values())
            for path in list(self._listed):
                if self._names <= self.most_names // 2:
                    break
                if self._fresh(path) is None and path not in listed:
                    self._names -= len(self._listed.pop(path).names)

    def _keep_change(self, path: str, nbytes: int | None, top: str, listed: _Listings, *, whole: bool) -> None:
        """Note in new listings what was changed while they were made."""
        if nbytes is None:
            self.remove(path)
            return
        parent = parent_of(path)
        if whole and nbytes != DIRECTORY and parent not in listed and parent.startswith(f"{top}/"):  # it is the first one there
            at = listed[top].at
            self._listed[parent] = listed[parent] = DirectoryNames({}, at, top)
            self._link(listed, top, parent, at)
        self.put(path, nbytes)

    @staticmethod
    def _link(below: _Listings, top: str, path: str, at: float) -> None:
        """Note a directory in those above it, up to ``top``."""
        while path != top:
            above = parent_of(path)
            known = above in below
            below.setdefault(above, DirectoryNames({}, at, top)).names[name_of(path)] = DIRECTORY
            if known:
                return
            path = above

    # -- arrays ----------------------------------------------------------------------------------------------------------

    async def _space(self, path: str) -> _Space | None:
        """Return the sharded array that the directory ``path`` is, or is inside of; ``None`` if it is another one."""
        if not self.store.is_canonical:
            return None  # of other flavours only the listing is known
        kept = self._spaces.get(path)
        if kept is not None and self.clock() - kept[1] < self.attr_seconds:
            return kept[0]
        at, epoch = self.clock(), -1
        while epoch != self._epoch:  # a document may be stored in between
            epoch = self._epoch
            space = await self._find_space(path)
        if len(self._spaces) > _MOST_REMEMBERED:
            self._spaces.clear()
        self._spaces[path] = space, at
        return space

    async def _find_space(self, path: str) -> _Space | None:
        # The outermost array wins, as in the engine: an array has no nodes below it.
        for above, rest in [*((above, rest) for above, rest in ancestors(path) if path and looks_like_chunk_prefix(rest)), (path, "")]:
            if (layout := await self._layout(above)) is not None:
                space = _Space(above, layout)
                return space if not rest or space.has_directory(path) else None
        return None

    async def _layout(self, path: str) -> ArrayLayout | None:
        known = self._arrays.get(path)
        if known is not None and self.clock() - known[1] < self.attr_seconds:
            return known[0]
        at, epoch = self.clock(), self._epoch
        try:
            layout = await self.store.layout(path)
        except Corruption:
            layout = None  # a program that reads the document gets the error
        if len(self._arrays) > _MOST_REMEMBERED:
            self._arrays.clear()
        if epoch == self._epoch:
            self._arrays[path] = layout, at
        return layout

    async def _find_chunk(self, path: str, parent: str, space: _Space) -> int | None:
        """Look a chunk up of which no listing knows. The second in one directory lists it; the second such directory lists all of them."""
        if self._missed(parent) >= _MISSES:
            return await self._found_in(self._list(self._top_for(parent, space)), path)
        (found,) = await self.store.read([ValueRead(path)])
        match found:
            case VersionedValue() | None:
                return None if found is None else found.nbytes
            case VersionGone():
                return await self.store.size(path)
            case _:
                raise found

    def _top_for(self, path: str, space: _Space) -> str:
        """Return the directory to be listed, with all below it, because names in ``path`` are asked for."""
        known = self._listed.get(path)
        if known is not None and known.top != path and space.chunks_below(known.top) <= _SMALL_NAMES:
            return known.top  # a small listing that has expired is made again as a whole
        while path != space.path:
            above = parent_of(path)
            if space.chunks_below(above) > self.whole_names or self._missed(above) < _MISSES:
                break
            path = above
        return path

    def _missed(self, path: str) -> int:
        """Note a miss below a directory; return how many there were recently."""
        return self._misses.put(path, (self._misses.peek(path) or 0) + 1)


@dataclass(frozen=True, slots=True)
class _Space:
    """The directories and chunk files of a sharded array."""

    path: str
    layout: ArrayLayout

    def _leading(self, path: str) -> tuple[int, ...] | None:
        """Return the coordinates that a directory at or below the array fixes; ``None`` if it holds no chunks."""
        rest = path[len(self.path) :].lstrip("/")
        if not rest:
            return ()
        encoding, ndim = self.layout.key_encoding, self.layout.ndim
        if encoding.separator != "/" or ndim == 0:
            return None
        leading = encoding.leading_coords(rest + "/", ndim)
        if rest + "/" != encoding.prefix_of(leading, ndim) or len(leading) >= ndim:
            return None
        return leading if all(n < most for n, most in zip(leading, self.layout.chunk_grid_shape, strict=False)) else None

    def has_directory(self, path: str) -> bool:
        """Return whether a path is that of a directory of chunks; also of the array's own."""
        return self._leading(path) is not None

    def is_chunk(self, path: str) -> bool:
        rest = path[len(self.path) :].lstrip("/")
        coords = self.layout.key_encoding.decode(rest, self.layout.ndim)
        return coords is not None

    def chunks_below(self, path: str) -> int:
        """Return the number of chunks of the grid below a directory."""
        leading = self._leading(path)
        return 0 if leading is None else prod(self.layout.chunk_grid_shape[len(leading) :])
