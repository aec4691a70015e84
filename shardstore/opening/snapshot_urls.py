"""Snapshots by URL: ``URL@ref`` names one snapshot of the versioned store at ``URL``, and a path may follow.

::

    s3://bucket/run.ice@main/ct        the array ct in the snapshot at the tip of the branch main
    └── the store ─────┘ └ref┘└ path

Other places may have an ``@`` in their names too. So for each ``@`` in the path, the text before it is asked for the pointer of a versioned
store, ``catalog.json``, by one request; where there is none, the target means what it would mean otherwise. Nothing is asked if there is no
``@`` in the path: users, passwords and hosts, and the links behind the first in a chain, are no part of it. Nor is it for a path object
where there is a file or directory whose name holds the ``@``.

The layer that knows the files of versioned stores lies above this one. It is loaded when a pointer was found, and not before.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from fsspec.mapping import FSMap
from fsspec.spec import AbstractFileSystem

from shardstore.errors import AccessDenied, Corruption, InvalidInput, ReadOnly, ShardStoreError
from shardstore.format.json_text import loads_object
from shardstore.model.ranges import EVERYTHING
from shardstore.model.redaction import redacted
from shardstore.opening.address import Address, has_host, has_revisions, text_of
from shardstore.opening.open import open_storage
from shardstore.opening.snapshot_place import (
    HOW_TO_CHANGE,
    MOST_POINTER_NBYTES,
    POINTER_KEY,
    WHY_READ_ONLY,
    Pinned,
    SnapshotName,
    SnapshotPlace,
)
from shardstore.opening.transports import Transport
from shardstore.storage.base import Failed, Found, Read, ReadOutcome, Storage
from shardstore.storage.generic.links import protocols_of
from shardstore.storage.requests.ranged_reads import TooMuch

_READER = "shardstore.snapshots.named"
"""The module above whose ``find_snapshot`` is a ``SnapshotFinder``."""


class SnapshotFinder(Protocol):
    """Finds a snapshot by its name, once there is something in the place of the store's pointer."""

    async def __call__(self, name: SnapshotName, storage: Storage, found: Found, pinned: Pinned | None) -> SnapshotPlace | None:
        """Return the snapshot; ``None`` if ``found`` is no pointer of a versioned store.

        Raises:
            NotFound: there is no such branch, tag or snapshot.
            Unsupported: a package that versioned stores need is missing.
        """


def may_name_snapshot(target: object) -> bool:
    """Return whether the path of a target holds an ``@``, so that the storage has to be asked what the target names."""
    return next(_names(target, None, "fsspec"), None) is not None


async def named_snapshot(
    target: object,
    storage_options: Mapping[str, Any] | None = None,
    *,
    transport: Transport = "auto",
    pinned: Pinned | None = None,
) -> SnapshotPlace | None:
    """Return the snapshot that a target of ``open_storage`` names; ``None`` if it names another place. Runs on the IO loop.

    With ``pinned``, it is what the branch or tag in the target pointed to once.

    Raises:
        NotFound: the text before an ``@`` is a versioned store, and has no such branch, tag or snapshot.
        StorageError: the storage could not be asked.
        Unsupported: it is a versioned store, and a package that it needs is missing.
    """
    if isinstance(target, SnapshotPlace):
        return target
    asked: list[tuple[SnapshotName, Storage]] = []
    for name in _names(target, dict(storage_options or {}) or None, transport):
        try:
            asked.append((name, open_storage(name.target, name.storage_options, transport=name.transport)))
        except ShardStoreError:  # nor is there a way to the target itself, which says so better when it is opened
            continue
    answers = await asyncio.gather(*(storage.read([_read()]) for _, storage in asked))
    for (name, storage), (answer,) in zip(asked, answers, strict=True):
        if (found := _found(answer, name)) is None:
            continue
        find: SnapshotFinder = import_module(_READER).find_snapshot
        if (place := await find(name, storage, found, pinned)) is not None:
            return place
    return None


async def holds_versioned_store(storage: Storage) -> bool:
    """Return whether the root of a storage looks like that of a versioned store: there is a pointer to a state."""
    (answer,) = await storage.read([_read()])
    if not isinstance(answer, Found):
        return False
    try:
        return {"location", "generation", "id"} <= loads_object(answer.buffers[0]).keys()
    except Corruption:
        return False


def refuse_to_change(place: SnapshotPlace | None, what: str) -> None:
    """Raise ``ReadOnly`` if a target that is to be changed names a snapshot; ``what`` is to be done, such as "packing into"."""
    if place is not None:
        raise ReadOnly(f"{what} {redacted(place.url)}: {WHY_READ_ONLY}. {HOW_TO_CHANGE}. Nothing was changed")


def _read() -> Read:
    return Read(POINTER_KEY, (EVERYTHING,), most_nbytes=MOST_POINTER_NBYTES)


def _found(answer: ReadOutcome, name: SnapshotName) -> Found | None:
    """Return what is in the place of a pointer. Raises what keeps it from being looked at, if that is not for want of a permission."""
    if not isinstance(answer, Failed):
        return answer if isinstance(answer, Found) else None
    if isinstance(answer.error, AccessDenied | TooMuch):  # S3 denies access where nothing is; no pointer is so long
        return None
    answer.error.add_note(f"asked for {POINTER_KEY!r} of a versioned store, since there is an '@' before {name.rest!r}")
    raise answer.error


# -- cutting -----------------------------------------------------------------------------------------------------------


def _names(target: object, options: dict[str, Any] | None, transport: Transport) -> Iterator[SnapshotName]:
    """Yield a target cut at each ``@`` of its path, the outermost first."""
    found: Iterator[tuple[Any, str, int]]
    if isinstance(target, str | os.PathLike):
        found = _stores_in_url(text_of(target), is_path=not isinstance(target, str))
    elif isinstance(target, FSMap):
        found = _stores_in_filesystem(target.fs, target.root)
    elif isinstance(target, tuple) and len(target) == 2 and isinstance(target[0], AbstractFileSystem):
        found = _stores_in_filesystem(target[0], str(target[1]))
    else:
        return
    for store, rest, depth in found:
        yield SnapshotName(store, rest, depth, options, transport)


def _stores_in_url(url: str, *, is_path: bool) -> Iterator[tuple[str, str, int]]:
    """Yield the URL of each store that the text before an ``@`` may be, with the text and the depth as ``_cuts`` does."""
    if "@" not in url:
        return
    try:
        address = Address.parse(url)
    except InvalidInput:  # which it is, however it is opened
        return
    for before, rest, depth in _cuts("/".join(address.segments), [address.protocol]):
        segments = tuple(before.split("/")) if before else ()
        if is_path and os.path.lexists(address.at(depth + 1)):
            return  # a directory of this name, and what is in it
        store = Address(address.protocol, address.head, segments, address.tail, address.slash)
        yield store.at(len(segments)), rest, depth


def _stores_in_filesystem(fs: AbstractFileSystem, path: str) -> Iterator[tuple[tuple[AbstractFileSystem, str], str, int]]:
    """Yield each store that the text before an ``@`` may be, as ``_stores_in_url`` does."""
    path = str(fs._strip_protocol(path)).rstrip("/")
    inside = path.lstrip("/")
    protocols = protocols_of(fs)
    if any(has_host(protocol) for protocol in protocols):
        inside = inside.partition("/")[2]
    above = path.removesuffix(inside)
    for before, rest, depth in _cuts(inside, protocols):
        yield (fs, (above + before).rstrip("/") or above), rest, depth


def _cuts(path: str, protocols: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """Yield the texts before and behind each ``@``, without a ``/`` between them, and the number of segments before that of the ``@``.

    The ``@`` behind the name of a repository, ``[TYPE/]OWNER/NAME``, is not one of them: it is part of the name of a place.
    """
    at = path.find("@")
    if any(has_revisions(protocol) for protocol in protocols) and path[: at + 1].count("/") <= 1:
        at = path.find("@", at + 1) if at >= 0 else at
    while at >= 0:
        yield path[:at].rstrip("/"), path[at + 1 :].strip("/"), path[:at].count("/")
        at = path.find("@", at + 1)
