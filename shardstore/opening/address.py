"""Addresses: URLs cut into the segments of their path, to find the places next to and above one."""

from __future__ import annotations

import os
from dataclasses import dataclass

from shardstore.errors import InvalidInput
from shardstore.model.redaction import redacted
from shardstore.opening.chains import LOCAL_PROTOCOLS, links_of_url, scheme_of
from shardstore.opening.kinds import kind_of_protocol

_OURS = "sharded::"

# Protocols without a storage kind whose paths begin with no bucket, container or host that could not itself be a key.
_WITHOUT_HOST = frozenset({"", "zip", "tar", "libarchive", "reference", "dir", "arrow_hdfs"})
_ABSOLUTE = LOCAL_PROTOCOLS | {""}


def has_host(protocol: str) -> bool:
    """Return whether paths of the protocol begin with a bucket, container or host."""
    kind = kind_of_protocol(protocol)
    return protocol not in _WITHOUT_HOST if kind is None else kind.has_host


# Their paths are within an archive or a set of references: above a URL that names no such path there is nothing.
_CONTAINERS = frozenset({"zip", "tar", "libarchive", "reference"})


@dataclass(frozen=True, slots=True)
class Address:
    """A URL, cut at the slashes of the path in its filesystem: ``head``, ``segments`` and, of a chain, ``tail``.

    ``head`` ends with the bucket or host; ``slash`` comes behind it if there are segments.
    """

    protocol: str
    head: str
    segments: tuple[str, ...]
    tail: str = ""
    slash: str = ""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parse a URL. Raises ``InvalidInput`` if it is empty, no chain, or a path of ``file://`` that is not absolute."""
        url = url.removeprefix(_OURS)
        if not url:
            raise InvalidInput("an empty string names no place; '.' is the current directory")
        links = links_of_url(url)
        own = next((i for i, link in enumerate(links) if scheme_of(link)), len(links) - 1)
        if not _CONTAINERS.isdisjoint(links[:own]):
            return cls(links[0], url, ())
        before, link, tail = "::".join([*links[:own], ""]), links[own], "::".join(["", *links[own + 1 :]])
        protocol = scheme_of(link)
        separator, path = ("://", link[len(protocol) + 3 :]) if protocol else ("", os.path.abspath(os.path.expanduser(link)))
        if protocol in LOCAL_PROTOCOLS and not path.startswith("/"):
            raise InvalidInput(
                f"{link!r} is not absolute: {protocol}:// needs three slashes, as in {protocol}:///data/x.zarr; or give {path!r}"
            )
        if "?" in path and protocol.startswith("http"):
            return cls(protocol, before + link, (), tail)  # a query belongs to the whole address
        host, below = "", path
        if has_host(protocol):
            host, _, below = path.partition("/")
        segments = tuple(below.strip("/").split("/")) if below.strip("/") else ()
        if "" in segments:
            return cls(protocol, before + link, (), tail)  # no key of ours is spelled like that
        return cls(protocol, before + protocol + separator + host, segments, tail, "/" if host or protocol in _ABSOLUTE else "")

    @property
    def is_absolute(self) -> bool:
        """True if the path begins at the root directory of a machine."""
        return self.protocol in _ABSOLUTE

    def at(self, depth: int) -> str:
        """Return the URL of the first ``depth`` segments."""
        slash = self.slash if depth or self.is_absolute else ""
        return self.head + slash + "/".join(self.segments[:depth]) + self.tail

    def beside(self, suffix: str) -> str | None:
        """Return the URL of the place with this name and ``suffix`` behind it; ``None`` if this place has no name: a bucket, a whole
        archive.
        """
        if not self.segments:
            return None
        return Address(self.protocol, self.head, (*self.segments[:-1], self.segments[-1] + suffix), self.tail, self.slash).at(
            len(self.segments)
        )

    def path_from(self, depth: int) -> str:
        return "/".join(self.segments[depth:])

    def shown(self, depth: int) -> str:
        """Return the URL of the first ``depth`` segments for people: without user, password and query."""
        return redacted(self.at(depth))

    def shown_below(self, depth: int, path: str) -> str:
        """Return the URL of ``path`` below the first ``depth`` segments, for people."""
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
