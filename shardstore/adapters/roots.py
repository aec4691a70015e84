"""Which hierarchy a URL points into: the root above a node, a chunk, or any other key.

The root is found by asking for ``zarr.json`` at the URL and at the directories above it: from the innermost that has one
upwards, as long as the next has one too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardstore.engine.keys import metadata_key
from shardstore.errors import InvalidInput, ShardStoreError
from shardstore.storage.base import Storage
from shardstore.storage.open import open_storage
from shardstore.storage.redaction import redacted

_MOST_LEVELS = 32  # requests at most, all at once; chunk keys of six dimensions use eight
_OURS = "sharded::"

# Protocols whose paths begin with no bucket, container or host that could not itself be a key.
_WITHOUT_HOST = frozenset({"", "file", "local", "memory", "zip", "tar", "libarchive", "reference", "dir", "arrow_hdfs"})
_LOCAL = frozenset({"file", "local"})
_ABSOLUTE = _LOCAL | {""}

# Their paths are within an archive or a set of references: above a URL that names no such path there is nothing.
_CONTAINERS = frozenset({"zip", "tar", "libarchive", "reference"})


@dataclass(frozen=True, slots=True)
class Address:
    """A URL, cut at the slashes of the path in its filesystem: ``head``, ``segments`` and, of a chain, ``tail``.

    ``head`` ends with the bucket or host; ``slash`` comes behind it where there are segments.
    """

    protocol: str
    head: str
    segments: tuple[str, ...]
    tail: str = ""
    slash: str = ""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises ``InvalidInput`` where there is nothing, or a path of ``file://`` that is not absolute."""
        url = url.removeprefix(_OURS)
        if not url:
            raise InvalidInput("an empty string names no place; '.' is the current directory")
        links = url.split("::")
        own = next((i for i, link in enumerate(links) if "://" in link), len(links) - 1)
        if not _CONTAINERS.isdisjoint(links[:own]):
            return cls(links[0], url, ())
        before, link, tail = "".join(f"{x}::" for x in links[:own]), links[own], "".join(f"::{x}" for x in links[own + 1 :])
        protocol, separator, path = link.rpartition("://") if "://" in link else ("", "", os.path.abspath(os.path.expanduser(link)))
        if protocol in _LOCAL and not path.startswith("/"):
            raise InvalidInput(
                f"{link!r} is not absolute: {protocol}:// needs three slashes, as in {protocol}:///data/x.zarr; or give {path!r}"
            )
        if "?" in path and protocol.startswith("http"):
            return cls(protocol, before + link, (), tail)  # a query belongs to the whole address
        host, below = "", path
        if protocol not in _WITHOUT_HOST:
            host, _, below = path.partition("/")
        segments = tuple(below.strip("/").split("/")) if below.strip("/") else ()
        if "" in segments:
            return cls(protocol, before + link, (), tail)  # no key of ours is spelled like that
        return cls(protocol, before + protocol + separator + host, segments, tail, "/" if host or protocol in _ABSOLUTE else "")

    def at(self, depth: int) -> str:
        """The URL of the first ``depth`` segments."""
        slash = self.slash if depth or self.protocol in _ABSOLUTE else ""
        return self.head + slash + "/".join(self.segments[:depth]) + self.tail

    def path_from(self, depth: int) -> str:
        return "/".join(self.segments[depth:])

    def shown(self, depth: int) -> str:
        """As ``at``, for people: without user, password and query."""
        return redacted(self.at(depth))

    def shown_below(self, depth: int, path: str) -> str:
        """The URL of ``path`` in what the first ``depth`` segments name, for people."""
        if not path:
            return self.shown(depth)
        place = "/".join((*self.segments[:depth], path))
        if self.slash or not self.head or self.head.endswith("://"):
            return redacted(self.head + (self.slash or ("/" if not self.head else "")) + place + self.tail)
        if self.protocol in _CONTAINERS and self.head.startswith(f"{self.protocol}::"):
            return redacted(f"{self.protocol}://{place}{self.head.removeprefix(self.protocol)}")
        return f"{redacted(self.head)}/{place}"

    def __str__(self) -> str:
        return self.shown(len(self.segments))


async def root_depth(address: Address, options: Mapping[str, Any]) -> int | None:
    """How many segments of the address name the root, or ``None`` where there is no node at or above it.

    Raises:
        StorageError: the server cannot be reached. It was tried for long enough.
    """
    last = len(address.segments)
    # The root directory of a machine is no store, unless it is named.
    first = max(int(address.protocol in _ABSOLUTE and last > 0), last - _MOST_LEVELS)
    storage = open_storage(address.at(first), dict(options) or None)
    answers = await _are_nodes(storage, address, first)
    for answer in answers:
        if isinstance(answer, ShardStoreError) and getattr(answer, "is_unreachable", False):
            raise answer
    is_node = dict(zip(range(first, last + 1), (answer is True for answer in answers), strict=True))
    innermost = next((depth for depth in reversed(is_node) if is_node[depth]), None)
    if innermost is None:
        return None
    depth = innermost
    while depth > first and is_node[depth - 1]:
        depth -= 1
    return depth


async def _are_nodes(storage: Storage, address: Address, first: int) -> list[bool | ShardStoreError]:
    """Whether there is a ``zarr.json`` at each level from ``first`` on, or what was raised instead of an answer."""
    paths = ["/".join(address.segments[first:depth]) for depth in range(first, len(address.segments) + 1)]
    return list(await asyncio.gather(*(_is_node(storage, path) for path in paths)))


async def _is_node(storage: Storage, path: str) -> bool | ShardStoreError:
    try:
        return await storage.stat(metadata_key(path)) is not None
    except ShardStoreError as exc:
        # Access may be denied above the store, or a file be where a directory would have to be. What is wrong with the
        # place itself will show when it is used.
        return exc
