"""Find where the paths of a filesystem begin: at the hierarchy that its URL points to, or into. And the link of the chain below it.

The root is found by asking for ``zarr.json`` at the URL and at the directories above it: from the innermost that has one upwards, as
long as the next has one too.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fsspec.core import has_magic, strip_protocol
from fsspec.registry import get_filesystem_class, known_implementations
from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from shardstore._sync import run_async
from shardstore.adapters.handle import Handle, StoreOptions
from shardstore.errors import AccessDenied, InvalidInput, NotFound, ShardStoreError, StorageError
from shardstore.format.store_keys import metadata_key, metadata_path
from shardstore.model.redaction import redacted
from shardstore.opening.address import LOCAL_PROTOCOLS, Address, links_of_url, protocols_of_links, reads_through_another, scheme_of
from shardstore.opening.open import chained_target, open_storage
from shardstore.opening.options import knows, link_of
from shardstore.opening.snapshot_place import Pinned
from shardstore.opening.snapshot_urls import may_name_snapshot, named_snapshot
from shardstore.storage.base import Storage

_CHAIN_OPTIONS = frozenset({"fo", "fs", "target_protocol"})
_OWN_OPTIONS = sorted(StoreOptions.__annotations__.keys() | {"pipeline", "read_only", "snapshot"})


@dataclass(frozen=True, slots=True)
class ChainLink:
    """The target below one link of a chain.

    ``target`` and ``storage_options`` are what ``shardstore.open`` takes, so that the URL there and the chain here name the
    same engine. ``root`` is the target's path in its own filesystem, without a trailing ``/``.
    """

    target: Any
    storage_options: dict[str, Any] | None
    root: str


def options_of_links(
    options: Mapping[str, Any], fo: object, target_protocol: object, target_options: Mapping[str, Any] | None, fs: object
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of this link, and those of the links below: fsspec gives it all options that are under no protocol.

    What no link knows is for those below as well, whose filesystems are checked for it, unless it is nearly an option of this link.
    """
    links = _links_below(fo, target_protocol, target_options or {}) if fs is None else []
    chain = [protocol for protocol, _ in links]
    flat = {name: value for name, value in options.items() if name not in _OWN_OPTIONS and _is_below(name, chain)}
    own = {name: value for name, value in options.items() if name not in flat}
    below = dict(target_options or {})
    for i in reversed(range(len(links))):
        protocol, given = links[i]
        of_link = {name: value for name, value in flat.items() if not isinstance(target_protocol, str) or link_of(name, chain) == protocol}
        below = {**given, **of_link, **({"target_options": below} if i + 1 < len(links) else {})}
    return own, below


def _links_below(fo: object, target_protocol: object, target_options: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the protocols of the chain below with the options of each; of a URL in ``fo``, all are with the first one."""
    if isinstance(target_protocol, str):
        further = target_options.get("target_protocol")
        rest = [] if further is None else _links_below(fo, further, target_options.get("target_options") or {})
        return [(target_protocol, target_options), *rest]
    if isinstance(fo, str) and fo:
        return [(protocols_of_links(links_of_url(fo))[0], target_options)]
    return []


def _is_below(name: str, chain: Sequence[str]) -> bool:
    if not chain:
        return False
    return any(knows(protocol, name) for protocol in chain) or not difflib.get_close_matches(name, _OWN_OPTIONS, 1)


def link_below(fo: object, target_protocol: object, target_options: Mapping[str, Any] | None, fs: object) -> ChainLink:
    """Return the link that ``fo`` and its companions describe.

    Raises:
        InvalidInput: they describe no link, or contradict each other.
    """
    if not isinstance(fo, str):
        raise InvalidInput(f"fo={fo!r} is not a path: give the root of the store, as in sharded::s3://bucket/data.zarr")
    if isinstance(fs, Storage):
        return ChainLink(fs, None, fo.strip("/"))
    if fs is not None:
        if not isinstance(fs, AbstractFileSystem):
            raise InvalidInput(f"fs={fs!r} is not an fsspec filesystem")
        if target_protocol is not None or target_options:
            raise InvalidInput("give either fs, or target_protocol with target_options")
        root = str(fs._strip_protocol(fo))
        return ChainLink((fs, root), None, root.rstrip("/"))
    options = dict(target_options or {})
    if target_protocol is None:
        if not fo:
            raise InvalidInput("sharded:// alone names no storage: put one below it, as in sharded::s3://bucket/data.zarr")
        return ChainLink(fo, options or None, str(strip_protocol(fo)).rstrip("/"))
    if not isinstance(target_protocol, str):
        raise InvalidInput(f"target_protocol={target_protocol!r} is not the name of a protocol")
    return _link_by_protocol(target_protocol, fo, options)


def _link_by_protocol(target_protocol: str, fo: str, options: dict[str, Any]) -> ChainLink:
    _check_links(target_protocol, options, fo)
    cls = get_filesystem_class(target_protocol)
    root = str(cls._strip_protocol(fo))
    if not _CHAIN_OPTIONS.isdisjoint(options):  # a chain goes on below
        # fsspec gives the path below a bare "dir::" twice: as the directory, and as the path in it.
        path = "" if target_protocol == "dir" and fo == options.get("fo") else root
        return ChainLink(chained_target(target_protocol, options, path), None, root.rstrip("/"))
    if has_magic(root):  # a pattern: the root is the directory above it
        root = root[: root.index(next(c for c in root if c in "*?["))].rpartition("/")[0]
    url = root if scheme_of(root) else f"{target_protocol}://{root}"
    return ChainLink(url, options or None, root.rstrip("/"))


def _check_links(protocol: object, options: Any, path: object) -> None:
    """Check each link that has one behind it: fsspec cuts URLs at every ``::``, and ``sharded::/data/run::v2`` would open ``/data/run``.

    Raises:
        InvalidInput: the filesystem of a link would ignore what is behind it.
    """
    while isinstance(protocol, str) and isinstance(options, Mapping) and "target_protocol" in options:
        if not reads_through_another(protocol):
            how = "open such a path by shardstore.open(pathlib.Path(…)) or get_mapper, or give it as fo, with target_protocol='file'"
            raise InvalidInput(
                f"{protocol!r}, the link of {redacted(str(path))!r}, reads through no other link, and '::' is between two: "
                f"{how if protocol in LOCAL_PROTOCOLS else 'give fs=, and the path in it as fo'}"
            )
        protocol, options, path = options["target_protocol"], options.get("target_options"), options.get("fo")


_LINKS = ("sharded::", "sharded://")
_MOST_LEVELS = 32  # requests at most, all at once; chunk keys of six dimensions use eight


def without_protocol(path: Any) -> Any:
    """Return what follows our own protocol in a path, or in each of a list, without a trailing ``/``."""
    if isinstance(path, list):
        return [without_protocol(p) for p in path]
    path = str(stringify_path(path))
    for link in _LINKS:
        path = path.removeprefix(link)
    return path.rstrip("/")


class Root:
    """The root of one filesystem's paths, and the engine there.

    Nothing in ``sharded::s3://bucket/data.zarr/ct/c/0/0`` says where the hierarchy begins, and in such a URL fsspec gives the whole
    path as the root. It is corrected once, before the first operation; full paths mean the same before and after. Nor is it known before
    whether the URL names a snapshot of a versioned store. ``pinned`` is what the name in it stands for, if that is known already;
    ``on_snapshot`` is called once it is.
    """

    def __init__(self, below: ChainLink, options: dict[str, Any], pinned: Pinned | None, on_snapshot: Callable[[], None]) -> None:
        self.path = below.root
        self.handle = Handle.make(below.target, below.storage_options, options)
        self.pinned = pinned
        self._on_snapshot = on_snapshot
        self._below = below
        self._options = options
        self._is_looked_up = isinstance(below.target, str) and bool(below.root.strip("/"))
        self.may_be_snapshot = may_name_snapshot(below.target)
        """True as long as it is not known whether the URL names a snapshot."""
        if pinned is not None and not self.may_be_snapshot:
            raise InvalidInput(f"{self.handle.url} names no snapshot, as in run.ice@main, and snapshot={str(pinned)!r} is asked for")
        self._settled = not self._is_looked_up and not self.may_be_snapshot
        self._moved = False
        self._settling: asyncio.Task[None] | None = None

    def full_path(self, path: Any) -> Any:
        """Return the full path of one that is whole, a URL, or relative to the root."""
        if isinstance(path, list):
            return [self.full_path(p) for p in path]
        path = without_protocol(path)
        protocol, separator, _ = path.partition("://")
        if separator and protocol in known_implementations and not self.path.startswith(protocol + separator):
            path = str(get_filesystem_class(protocol)._strip_protocol(path))
        if path == self.path or path.startswith(self.path + "/"):
            return path
        inside = path.strip("/")
        return f"{self.path}/{inside}" if inside else self.path

    def key_of(self, path: str) -> str:
        """Return the presented key that a path names; ``""`` for the root."""
        return str(self.full_path(path))[len(self.path) + 1 :]

    def path_of(self, key: str) -> str:
        return f"{self.path}/{key}" if key else self.path

    async def settle(self, *, to_create: bool = False, again: bool = False) -> None:
        """Find out, once, whether the root lies inside of a hierarchy or is a file; from then on the root is right.

        One request if there is a node at the root. ``to_create``: a missing path is going to be a file. ``again``: look
        once more, if nothing was found at the root.
        """
        if not self._settled or ((to_create or again) and not self._moved):
            await run_async(self._settle(to_create, again))

    async def _settle(self, to_create: bool, again: bool) -> None:
        """Settle on the IO loop, one call at a time: each would move the root up once more."""
        loop = asyncio.get_running_loop()
        while self._settling is not None and self._settling.get_loop() is loop and not self._settling.done():
            await asyncio.wait([self._settling])
        if self._moved or (self._settled and not to_create and not again):
            return
        self._settling = loop.create_task(self._look(to_create))
        await asyncio.shield(self._settling)

    async def _look(self, to_create: bool) -> None:
        if self.may_be_snapshot:
            self._moved = await self._show_snapshot()
            self.may_be_snapshot = False
        if self._is_looked_up and not self._moved:
            await self._look_for_root(to_create)
        self._settled = True

    async def _show_snapshot(self) -> bool:
        """Make the snapshot that the URL names the root, if it names one; return whether it does.

        Raises:
            InvalidInput: it is not there. ``NotFound`` would be taken for a file that does not exist, and chunks for such as were never
                written.
        """
        options, transport = self._below.storage_options, self.handle.recipe.transport
        try:
            place = await named_snapshot(self._below.target, options, transport=transport, pinned=self.pinned)
        except NotFound as exc:
            raise InvalidInput(str(exc)) from exc
        if place is None and self.pinned is not None:
            raise InvalidInput(f"{self.handle.url} is no snapshot of a versioned store, and snapshot={str(self.pinned)!r} is asked for")
        if place is not None:
            self.handle = Handle.of_snapshot(place, self._options)
            self.path = self.path[: len(self.path) - len(place.path)].rstrip("/")
            self.pinned = place.pinned
            self._on_snapshot()
        return place is not None

    async def _look_for_root(self, to_create: bool) -> None:
        engine = self.handle.engine
        root = None
        with suppress(AccessDenied):  # as some servers answer of what is absent
            root = await engine.hierarchy.node("")
        if root is None:
            address = Address.parse(self._below.target)
            depth = await root_depth(address, self._below.storage_options or {})
            above, inside = ("", "") if depth is None else (address.at(depth), address.path_from(depth))
            if inside and await self._is_within(above, inside, to_create):
                self._move_up(above, inside)
            elif not inside:
                with suppress(StorageError):  # if access is denied there, the place is taken for a root
                    await self._move_up_from_file(to_create)

    async def _move_up_from_file(self, to_create: bool) -> None:
        """Make the directory of a file the root, if the file belongs to no hierarchy."""
        parent, _, name = self._below.target.rstrip("/").rpartition("/")
        if "://" not in parent or await self._has_any():
            return
        if to_create or await open_storage(parent, self._below.storage_options).stat(name) is not None:
            self._move_up(parent, name)

    async def _has_any(self) -> bool:
        async for _ in self.handle.engine.list(""):
            return True
        return False

    async def _is_within(self, root: str, inside: str, to_create: bool) -> bool:
        """Return whether the path ``inside`` of the hierarchy at ``root`` means something from there only."""
        around = Handle.make(root, self._below.storage_options, self._options).engine
        if metadata_path(inside) is not None:
            return True
        with suppress(AccessDenied):  # of documents that may be absent: then it counts whether there is a value
            if await around.is_inside_array(inside):
                return True
        return await around.size(inside) is not None or (to_create and not await self._has_any())

    def _move_up(self, root: str, inside: str) -> None:
        self.handle = Handle.make(root, self._below.storage_options, self._options)
        self.path = self.path[: -len(inside) - 1]
        self._moved = True


async def root_depth(address: Address, options: Mapping[str, Any]) -> int | None:
    """Return how many segments of the address name the root, or ``None`` if there is no node at or above it.

    Raises:
        StorageError: the server cannot be reached. It was tried for long enough.
    """
    last = len(address.segments)
    # The root directory of a machine is not a store, unless it is named.
    first = max(int(address.is_absolute and last > 0), last - _MOST_LEVELS)
    try:
        storage = open_storage(address.at(first), dict(options) or None)
    except ShardStoreError:
        open_storage(address.at(last), dict(options) or None)  # whose error names what was asked for, not what is above it
        raise
    paths = ["/".join(address.segments[first:depth]) for depth in range(first, last + 1)]
    answers = await asyncio.gather(*(_is_node(storage, path) for path in paths))
    for answer in answers:
        if isinstance(answer, StorageError) and answer.is_unreachable:
            raise answer
    is_node = dict(zip(range(first, last + 1), (answer is True for answer in answers), strict=True))
    depth = next((depth for depth in reversed(is_node) if is_node[depth]), None)
    while depth is not None and depth > first and is_node[depth - 1]:
        depth -= 1
    return depth


async def _is_node(storage: Storage, path: str) -> bool | ShardStoreError:
    """Return whether there is a ``zarr.json``, or what was raised instead of an answer."""
    try:
        return await storage.stat(metadata_key(path)) is not None
    except ShardStoreError as exc:
        # Access may be denied above the store, or a file may be in the place of a directory. An error of the store itself
        # comes again when the store is used.
        return exc
