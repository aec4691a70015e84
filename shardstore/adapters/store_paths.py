"""Resolve a URL to the root of the hierarchy that it lies in, and the path from there.

A URL may name a store, a node in it, or a key. Where there is no node at or above it, the URL itself is the root. The root of a snapshot of
a versioned store, ``run.ice@main``, is where its name ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardstore._sync import run_sync
from shardstore.adapters.fsspec.root import root_depth
from shardstore.adapters.handle import Handle
from shardstore.errors import InvalidInput
from shardstore.model.redaction import redacted
from shardstore.opening.address import Address
from shardstore.opening.kinds import kind_of_protocol
from shardstore.opening.open import open_storage
from shardstore.opening.options import options_of_another
from shardstore.opening.snapshot_place import SnapshotPlace
from shardstore.opening.snapshot_urls import holds_versioned_store, named_snapshot, refuse_to_change
from shardstore.presented.flavours import Presented
from shardstore.stored.detect import is_draft


@dataclass(frozen=True, slots=True)
class StorePath:
    """A place in a store: ``handle`` is open at the root, the first ``depth`` segments of the address; ``path`` leads on from there.

    ``has_root`` if a ``zarr.json``, or the name of a snapshot, showed the root.
    """

    address: Address
    options: Mapping[str, Any]
    depth: int
    has_root: bool
    handle: Handle

    def __str__(self) -> str:
        return str(self.address)

    @property
    def engine(self) -> Presented:
        return self.handle.engine

    @property
    def path(self) -> str:
        return self.address.path_from(self.depth)

    @property
    def has_name(self) -> bool:
        """False if the URL is that of a whole bucket or storage."""
        return bool(self.address.segments)

    def shown(self, path: str) -> str:
        """Return the URL of ``path`` in the engine, for people."""
        return self.address.shown_below(self.depth, path)

    def rooted_at(self, depth: int) -> StorePath:
        """Return the same place with an engine whose root is the first ``depth`` segments of the address."""
        return self if depth == self.depth else _at(self.address, self.options, depth, self.has_root)

    def check_changeable(self, what: str) -> None:
        """Raise ``ReadOnly`` if the place is, or is in, a snapshot; ``what`` is to be done, such as "compacting"."""
        refuse_to_change(self.handle.snapshot, what)

    def as_key(self) -> StorePath:
        """Return the place as a key in the directory above, if no document showed the root."""
        if self.has_root or self.path or not self.has_name:
            return self
        return self.rooted_at(len(self.address.segments) - 1)

    def is_versioned_store(self) -> bool:
        """Return whether the root looks like that of a versioned store. One request."""
        return run_sync(holds_versioned_store(self.engine.storage))


def snapshot_in(url: str, options: Mapping[str, Any]) -> SnapshotPlace | None:
    """Return the snapshot that a URL names, if it names one."""
    return run_sync(named_snapshot(url, options))


def refuse_snapshot(url: str, options: Mapping[str, Any]) -> None:
    """Raise ``InvalidInput`` if a URL names a snapshot, where a whole store is to be named."""
    if (place := snapshot_in(url, options)) is not None:
        store = redacted(place.url).removesuffix(f"@{place.pinned.ref}")
        raise InvalidInput(f"{redacted(url)} names a snapshot: give the store itself, {store}, and the name of the snapshot behind it")


def resolve(url: str, options: Mapping[str, Any]) -> StorePath:
    """Find the root that ``url`` lies in, and open it.

    Raises:
        InvalidInput: the URL or the options name no storage.
        NotFound: it names a snapshot that is not there.
        StorageError: its server cannot be reached.
        Unsupported: this version has no such storage, or a package that it needs is missing.
    """
    address = Address.parse(url)
    if (place := snapshot_in(url, options)) is not None:
        return StorePath(address, options, place.depth, True, Handle.of_snapshot(place, {}))
    depth = run_sync(root_depth(address, options))
    return _at(address, options, len(address.segments) if depth is None else depth, depth is not None)


def resolve_pair(
    source: str, target: str, source_options: Mapping[str, Any], target_options: Mapping[str, Any]
) -> tuple[StorePath, StorePath]:
    """Return two places, with one engine if they are in one storage: then a move can be a rename, and a copy the server's."""
    one, other = resolve(source, source_options), resolve(target, target_options)
    a, b = one.address, other.address
    if (
        one.handle.snapshot is not None
        or other.handle.snapshot is not None
        or (a.protocol, a.head, a.tail) != (b.protocol, b.head, b.tail)
        or dict(one.options) != dict(other.options)
    ):
        return one.as_key(), other.as_key()
    common = _common(a.segments[: one.depth], b.segments[: other.depth])
    if (one.depth, other.depth) != (common, common) or not (one.path and other.path):
        # A root itself can be renamed from above only.
        most = min(len(a.segments), len(b.segments)) - 1
        common = max(0, min(common, most))
    if any(place.depth != common and _holds_draft(place) for place in (one, other)):
        return one, other  # its keys mean something from its own root only
    return one.rooted_at(common), other.rooted_at(common)


def _holds_draft(place: StorePath) -> bool:
    """Return whether the root is that of a hierarchy of the 2022 draft."""
    run_sync(place.engine.exists("zarr.json"))
    return is_draft(place.engine.storage)


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Return the number of segments that both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _takes_options(protocol: str) -> bool:
    kind = kind_of_protocol(protocol)
    return bool(protocol) and (kind is None or kind.plain_options is None)


def pair_options(
    source: str, target: str, given: dict[str, Any], target_options: dict[str, Any] | None
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the options of two URLs. The given ones are for both, but not for a local one if the other one takes options."""
    takes = {url: _takes_options(Address.parse(url).protocol) for url in (source, target)}
    if target_options is not None:
        return given, target_options
    return given if takes[source] or not takes[target] else {}, given if takes[target] or not takes[source] else {}


def _at(address: Address, options: Mapping[str, Any], depth: int, has_root: bool) -> StorePath:
    return StorePath(address, options, depth, has_root, Handle.make(address.at(depth), dict(options) or None, {}))


def url_below(url: str, path: str) -> str | None:
    """Return the URL of what lies at ``path`` below another URL, for people; ``None`` if that is no URL of a place."""
    try:
        address = Address.parse(url)
    except InvalidInput:
        return None
    return address.shown_below(len(address.segments), path)


def options_for(url: str, own: str, own_options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the options for a URL: those of the place ``own`` if both have one protocol, otherwise ``None``."""
    return options_of_another(url, None, own, own_options)


def is_versioned_store(url: str, options: Mapping[str, Any] | None) -> bool:
    """Return whether a versioned store seems to be at a URL. One request."""
    return run_sync(holds_versioned_store(open_storage(url, None if options is None else dict(options))))
