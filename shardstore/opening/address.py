"""Addresses: URLs cut into the links of their chain, and into the segments of their path, to find the places next to and above one.

A chain is ``link::link::…``: every link but the last is the name or the URL of a filesystem that reads through another one, such as
``zip``, ``simplecache`` or ``reference``. fsspec cuts at every ``::`` instead, and drops what the first filesystem does not use, so that
``/data/run::v2`` would open ``/data/run``, another store. Local paths, whose names may hold ``::`` as well, are distinguished from URLs.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
from dataclasses import dataclass
from functools import lru_cache

from fsspec.registry import available_protocols, get_filesystem_class, known_implementations, registry
from fsspec.spec import AbstractFileSystem

from shardstore.errors import InvalidInput
from shardstore.model.redaction import redacted
from shardstore.opening.kinds import kind_of_protocol

OURS = "sharded"
"""The protocol of views of stores in fsspec; registered by ``adapters.fsspec.filesystem``."""

LOCAL_PROTOCOLS = frozenset({"file", "local"})

_HOW_A_PATH = "A local path with '::' in its name is given as a pathlib.Path, or in full, with a '/' in front"


def text_of(target: str | os.PathLike[str]) -> str:
    """Return a target as text. A path object becomes an absolute path, which is never a URL; those of packages that know URLs keep them."""
    if isinstance(target, str):
        return target
    path = os.fsdecode(target)
    return path if "://" in path or not path else os.path.abspath(os.path.expanduser(path))


def scheme_of(link: str) -> str:
    """Return the text before ``://`` in a link; ``""`` of a path, and of a link that is a name alone. A letter alone is a drive."""
    protocol, separator, _ = link.partition("://")
    return protocol if separator and "/" not in protocol and len(protocol) > 1 else ""


def links_of_url(url: str) -> list[str]:
    """Return the links of a chain, outermost first; a URL or a path alone is one link.

    What cannot begin a chain is a local path with all that follows: an absolute path, one with a ``/`` before the first ``::``, a
    ``file://`` URL. A name such as ``run::v2`` is one if there is a file or directory of that name.

    Raises:
        InvalidInput: it is neither a chain nor such a path, or is nearly a URL, as ``s3:/bucket`` and ``s3//bucket``, which are paths.
    """
    first, separator, rest = url.partition("::")
    if not separator:
        _check_slashes(url)
        return [url]
    scheme = scheme_of(first)
    name = scheme or ("" if "/" in first else first)
    if name == OURS or (name and reads_through_another(name)):
        return [first, *links_of_url(rest)]
    if "://" not in rest and (not name or scheme in LOCAL_PROTOCOLS or (not scheme and _is_there(first, rest))):
        return [url]
    raise InvalidInput(_why_no_chain(url, name))


_NEARLY_URL = re.compile(r"([a-z][a-z0-9]*)(:/|//)(?!/)(.*)", re.DOTALL)


def _check_slashes(url: str) -> None:
    match = _NEARLY_URL.fullmatch(url)
    if match is None or os.path.lexists(url.partition("/")[0]):
        return
    protocol, slashes, rest = match.groups()
    is_local = protocol in LOCAL_PROTOCOLS
    if is_known(protocol) and (slashes == ":/" or (kind_of_protocol(protocol) is not None and not is_local)):
        meant = f"{protocol}://{'/' if is_local else ''}{rest}"
        raise InvalidInput(
            f"{redacted(url)!r} is not a path that exists: did you mean {redacted(meant)}? A new directory of this name needs './' in front"
        )


def check_cut(url: str, links: list[str]) -> None:
    """Raise ``InvalidInput`` if fsspec would cut a chain elsewhere than ``links_of_url`` has done: in the path at its end."""
    if len(links) != url.count("::") + 1:
        raise InvalidInput(
            f"{redacted(links[-1])!r}, the last link of {redacted(url)!r}, has '::' in its name, where fsspec would cut it: move what is "
            "there to a place without '::' in its name"
        )


def protocols_of_links(links: list[str]) -> list[str]:
    """Return the protocol of every link of a chain; ``""`` for a plain path."""
    found: list[str] = []
    for i, link in enumerate(links):
        scheme = scheme_of(link)
        is_name = i < len(links) - 1 or (len(links) > 1 and link in available_protocols())
        found.append(scheme or (link if is_name else ""))  # a link without a path, as in "simplecache::s3://…"
    return found


def check_known(url: str, protocols: list[str]) -> None:
    """Raise ``InvalidInput`` if a protocol is not known: fsspec would take ``foo::s3://bucket`` for a local path."""
    for protocol in protocols:
        if protocol and not is_known(protocol):
            raise InvalidInput(_why_unknown(url, protocol))


def is_known(protocol: str) -> bool:
    return protocol in known_implementations or protocol in registry


@lru_cache
def parameters_of(cls: type[AbstractFileSystem]) -> tuple[frozenset[str], bool]:
    """Return the names of the parameters of a filesystem and of its base classes, and whether it accepts any other name."""
    named: set[str] = set()
    takes_any = True
    for base in cls.__mro__:
        if base in (AbstractFileSystem, object) or "__init__" not in vars(base):
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        named |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        if not takes_any:
            break
    return frozenset(named - {"self"}), takes_any


def reads_through_another(protocol: str) -> bool:
    """Return whether the filesystem of a protocol can read through the link behind it. It may if its package is not installed."""
    try:
        cls = get_filesystem_class(protocol)
    except ImportError:
        return True
    except ValueError:
        return False
    named, _ = parameters_of(cls)
    return not named.isdisjoint({"fo", "target_protocol"})


def _is_there(first: str, rest: str) -> bool:
    """Return whether the first segment with ``::`` in it is the name of a file or directory."""
    return os.path.lexists(os.path.expanduser(f"{first}::{rest.partition('/')[0]}"))


def _why_no_chain(url: str, name: str) -> str:
    """Return the message for a URL with ``::`` behind something that reads through no other link."""
    if not name:
        return f"{redacted(url)!r} is no chain of links: a path reads through no other link. {_HOW_A_PATH}"
    if not is_known(name):
        return f"{_why_unknown(url, name)}. {_HOW_A_PATH}"
    how = _HOW_A_PATH if name in LOCAL_PROTOCOLS else f"For an object with '::' in its key give (fs, path). {_HOW_A_PATH}"
    return f"{redacted(url)!r} is no chain of links: {name!r} reads through no other link, and '::' is between two. {how}"


def _why_unknown(url: str, protocol: str) -> str:
    close = difflib.get_close_matches(protocol.lower(), [known for known in {*available_protocols(), *registry} if known != OURS], 1, 0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return (
        f"the protocol {protocol!r} of {redacted(url)!r} is not known: {hint}Any that fsspec knows will do, such as file://, "
        "memory://, s3://, gs://, https://; a package that brings another has to be installed"
    )


# Protocols without a storage kind whose paths begin with no bucket, container or host that could not itself be a key.
_WITHOUT_HOST = frozenset({"", "zip", "tar", "libarchive", "reference", "dir", "arrow_hdfs"})
_ABSOLUTE = LOCAL_PROTOCOLS | {""}


def has_host(protocol: str) -> bool:
    """Return whether paths of the protocol begin with a bucket, container or host."""
    kind = kind_of_protocol(protocol)
    return protocol not in _WITHOUT_HOST if kind is None else kind.has_host


def has_revisions(protocol: str) -> bool:
    """Return whether the first ``@`` in paths of the protocol names a revision of a repository."""
    kind = kind_of_protocol(protocol)
    return kind is not None and kind.has_revisions


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
        url = url.removeprefix(f"{OURS}::")
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
        """Return the URL of the place with this name and ``suffix`` behind it; ``None`` of a place without a name: a bucket, an archive."""
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
