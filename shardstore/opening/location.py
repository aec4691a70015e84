"""The real places of a storage's objects, through every layer: chains, caches, directories, archives, references, mappings, links,
mounts, and the servers that a client talks to.

An operation that erases or replaces objects must not do it to those that it reads. Two storages may be the same place by different
names, one may lie in the other, and one may read from files that lie in the other: an archive, or what a set of references refers to.
"""

from __future__ import annotations

import io
import ipaddress
import os
import re
import socket
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any
from urllib.parse import unquote, urlsplit

import fsspec.core
from fsspec.asyn import get_loop, sync
from fsspec.core import OpenFile, split_protocol
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from shardstore.errors import ShardStoreError
from shardstore.opening.kinds import kind_of_protocol
from shardstore.opening.open import open_storage
from shardstore.storage.abilities import HasIdentity
from shardstore.storage.base import Storage
from shardstore.storage.generic.links import ARCHIVES, CACHES, REFERENCES, is_one, protocols_of, without_dirs
from shardstore.storage.generic.storage import GenericStorage
from shardstore.storage.http.storage import HTTPStorage
from shardstore.storage.local.mounts import Mounts
from shardstore.storage.local.storage import LocalFiles
from shardstore.storage.python_stores import MappingStorage
from shardstore.storage.references.storage import ReferenceStorage
from shardstore.storage.requests.bucket import BucketClient, BucketStorage
from shardstore.storage.wrappers import innermost

_SERVERS = frozenset({"ftp", "sftp", "ssh", "smb", "webdav", "hdfs", "webhdfs", "github", "git", "gist", "hf", "adl", "oss", "oci"})
"""Protocols where a host, or an account, and a path identify the place."""
_OWN_BYTES = frozenset({"data"})
_HOSTS = ("host", "endpoint_url", "base_url", "account_name", "org", "repo")

_DEFAULT_PORTS = {"http": 80, "https": 443}

# All regions, and all kinds of addresses of AWS's S3, lead to the same buckets: a bucket's name is one of a kind. So is one of GCS.
_SERVICES = (
    (re.compile(r"(?:(?P<bucket>.+)\.)?s3(?:[.-][a-z0-9.-]+)?\.amazonaws\.com"), "https://s3.amazonaws.com"),
    (re.compile(r"(?:(?P<bucket>.+)\.)?s3(?:[.-][a-z0-9.-]+)?\.amazonaws\.com\.cn"), "https://s3.amazonaws.com.cn"),
    (
        re.compile(r"(?:(?P<bucket>.+)\.)?(?:storage(?:\.mtls)?\.googleapis|commondatastorage\.googleapis|storage\.cloud\.google)\.com"),
        "https://storage.googleapis.com",
    ),
)
_INTERFACE = re.compile(r"(?:(?P<bucket>.+)\.)?bucket\.vpce-[^.]+")
"""The name before that of the service, in addresses of a private network's own interface to AWS's S3."""

ANYWHERE = frozenset({""})


@dataclass(frozen=True)
class Location:
    """The places that a storage reads from and writes to; ``is_known`` is false if there may be more."""

    places: frozenset[str]
    served: frozenset[str] = frozenset()
    """Those of the places that are URLs of HTTP, with the name by which the server is asked; it may have other names."""
    unknown: frozenset[str] = frozenset()
    """The beginnings of further places of which nothing else is known; ``ANYWHERE`` where nothing is known at all."""
    only_read: frozenset[str] = frozenset()
    """Places that are read from, and where nothing is ever replaced; so several that read from one are apart."""
    stores: tuple[StorePlace, ...] = ()
    """Paths in stores that are objects of this process, and have no name."""

    @property
    def is_known(self) -> bool:
        return not self.unknown

    def overlaps(self, other: Location) -> bool:
        """Return whether a place of one is a place of the other, or lies in it, as far as the places are known."""
        pairs = (self.places, other.places), (self.only_read, other.places), (self.places, other.only_read)
        return any(_overlap(ours, theirs) for ours, theirs in pairs) or any(
            one.overlaps(another) for one, another in product(self.stores, other.stores)
        )

    def may_overlap(self, other: Location) -> bool:
        """Return whether it is unknown that the two are apart, although no overlap is known: a place of one cannot be traced, or the
        servers of both may be one by two names. The latter asks for the addresses of servers.
        """
        if _may_have_within(self.unknown, other) or _may_have_within(other.unknown, self):
            return True
        ours, theirs = _servers_by_path(self.served), _servers_by_path(other.served)
        pairs = {*_servers_within(ours, theirs), *_servers_within(theirs, ours)}
        return any(may_be_one(one, another) for one, another in pairs)


@dataclass(frozen=True, eq=False)
class StorePlace:
    """A path in a store that is an object of this process."""

    store: object
    path: str

    def overlaps(self, other: StorePlace) -> bool:
        """Return whether the stores are one, or say that they are, and one path is the other or lies in it."""
        if self.store is not other.store and (isinstance(self.store, Mapping) or not bool(self.store == other.store)):
            return False  # two mappings are equal by what they hold
        return (
            not self.path or not other.path or f"{self.path}/".startswith(f"{other.path}/") or f"{other.path}/".startswith(f"{self.path}/")
        )

    def location(self, *, is_known: bool) -> Location:
        """Return it as a location, of which no more ``is_known`` if the store keeps its bytes elsewhere."""
        return Location(frozenset(), unknown=frozenset() if is_known else ANYWHERE, stores=(self,))


class HasPhysicalLocation(ABC):
    """A storage that knows the real places of its objects."""

    @abstractmethod
    def lies_in(self, path: str, *, links: bool) -> Location:
        """Return the location of ``path``, as ``location_of`` does."""


UNTRACED = Location(frozenset(), unknown=ANYWHERE)


def why_not_apart(named: Sequence[tuple[str, Location]]) -> str | None:
    """Return in words why it is unknown that these places, of which no overlap is known, are apart; ``None``: they are."""
    for i, (name, one) in enumerate(named):
        for other_name, other in named[i + 1 :]:
            if one.may_overlap(other):
                untraced = [shown for shown, location in ((name, one), (other_name, other)) if not location.is_known]
                if untraced:
                    return f"{' and '.join(untraced)} cannot be traced to where its bytes are"
                return (
                    f"{name} and {other_name} may be one place: their servers have an address in common, or one that cannot be found out "
                    "(where they are one, give it the same name in both)"
                )
    return None


def _may_have_within(unknown: Iterable[str], other: Location) -> bool:
    found = (*other.places, *other.unknown)
    return any(place.startswith(beginning) or beginning.startswith(place) for beginning in unknown for place in found)


def _servers_by_path(urls: Iterable[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for url in urls:
        scheme, separator, rest = url.partition("://")
        host, _, path = rest.partition("/")
        found.setdefault(f"/{path}", set()).add(f"{scheme}{separator}{host}")
    return found


def _servers_within(inner: Mapping[str, set[str]], outer: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    """Yield the servers of which one has, by its path, a place in a place of the other."""
    for path, servers in inner.items():
        for above in _and_above(path):
            yield from product(servers, outer.get(above, ()))


def _has_within(places: frozenset[str], above: frozenset[str]) -> bool:
    return any(not above.isdisjoint(_and_above(place)) for place in places)


def _and_above(place: str) -> Iterator[str]:
    yield place
    while "/" in place:
        place = place.rpartition("/")[0]
        yield place or "/"


def _overlap(ours: frozenset[str], theirs: frozenset[str]) -> bool:
    if _has_within(ours, theirs) or _has_within(theirs, ours):
        return True
    return _has_directory_above(ours, _directories(theirs)) or _has_directory_above(theirs, _directories(ours))


_Identity = tuple[int, int]
"""Device and inode of a directory. They identify one that has two names: by another mount of it, or in letters of another case."""


def _identity(path: str) -> _Identity | None:
    try:
        status = os.stat(path)
    except OSError:  # there is none yet, or it cannot be looked at
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


def _directories(places: Iterable[str]) -> set[_Identity]:
    found = {_identity(place) for place in places if place.startswith("/")}
    return {identity for identity in found if identity is not None}


def _has_directory_above(places: Iterable[str], directories: set[_Identity]) -> bool:
    """Return whether one of the places is one of the directories, or lies in it."""
    above = {path for place in places if place.startswith("/") and directories for path in _and_above(place)}
    return any(_identity(path) in directories for path in above)


def location_of(storage: Storage, path: str = "", *, links: bool = False) -> Location:
    """Return the location of ``path`` in a storage, whatever root that has, with what is mounted below it. With ``links``, it includes the
    targets of links at any depth of a local directory, since its objects are read from there too.

    Called from any thread but the IO loop's: servers are connected to, since only then it is known which ones they are.

    Raises:
        AccessDenied, StorageError: a client of a server cannot be set up.
    """
    return _with_mounts(_location_of(storage, path, links))


def _location_of(storage: Storage, path: str, links: bool) -> Location:
    if (known := storage.ability(HasPhysicalLocation)) is not None:
        return known.lies_in(path, links=links)
    if (local := storage.ability(LocalFiles)) is not None:
        top = _of_file(os.path.join(local.root, path))
        return _together([top, _of_links(os.path.join(local.root, path))]) if links else top
    storage = innermost(storage)
    if isinstance(storage, MappingStorage):
        return _of_mapping(storage.mapping, links)
    if isinstance(storage, GenericStorage):
        found = _of_filesystem(storage.fs, f"{storage.path}/{path}" if path else storage.path)
        return _together([found, *(_of_links(place) for place in found.places if place.startswith("/"))]) if links else found
    if isinstance(storage, ReferenceStorage):
        return _together(_of_references(storage))
    if isinstance(storage, HTTPStorage):
        root = canonical_url(storage.identity)
        return _of_server(f"{root}/{path}".rstrip("/"))
    if isinstance(storage, BucketStorage):
        return _of_bucket(storage.client, path)
    url = storage.url if storage.url.endswith("/") else storage.url + "/"
    identified = storage.ability(HasIdentity)
    return _of_url("" if identified is None else identified.identity, f"{url}{path}")


def _of_server(url: str, *aliases: str) -> Location:
    return Location(frozenset({url, *aliases}), served=frozenset({url}))


def _of_bucket(client: BucketClient, path: str) -> Location:
    server = sync(get_loop(), client.server)
    found = _of_server(*urls_in_bucket(server, client.bucket, client.full_key(path).rstrip("/")))
    # What an alias stands for can be any bucket there, or a part of one.
    return replace(found, unknown=frozenset({f"{canonical_url(server)}/"})) if client.is_alias else found


def _of_file(path: str) -> Location:
    """Return the location of a file: its own name, and the targets of links on the way."""
    return Location(frozenset({os.path.realpath(path), os.path.abspath(path)}))


def _with_mounts(location: Location) -> Location:
    """Return the location with what is mounted below its local directories, and with the names that these have by all of their mounts."""
    local = {os.path.realpath(place) for place in location.places if place.startswith("/")}
    if not local:
        return location
    mounts = Mounts()
    below = mounts.below(local)
    on_mounts = [(path, mount) for path in local if (mount := mounts.of(path)) is not None] + [(mount.point, mount) for mount in below]
    names = {name for path, mount in on_mounts if (name := mount.name_of(path)) is not None}
    places = location.places | names | {mount.point for mount in below}
    untold = below and not mounts.are_known  # what is mounted there may have another place among the local files
    return replace(location, places=frozenset(places), unknown=location.unknown | ({"/"} if untold else set()))


def _of_url(host: str, url: str) -> Location:
    return Location(frozenset({f"{host} {url}".rstrip("/")}))


def _of_links(top: str) -> Location:
    found: set[str] = set()
    waiting = [os.path.realpath(top)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if not entry.is_symlink():
                        if entry.is_dir():
                            waiting.append(entry.path)
                    elif (place := os.path.realpath(entry.path)) not in found:
                        found.add(place)
                        waiting.append(place)  # which may have links of its own
        except OSError:  # no directory, or none that can be read: nor will it be read as a part of the source
            continue
    return Location(frozenset(found))


def _of_mapping(mapping: Mapping[str, Any], links: bool) -> Location:
    if (engine := getattr(mapping, "engine", None)) is not None:  # a view of a store of this package
        return _location_of(engine.storage, str(getattr(mapping, "path", "") or ""), links)
    return Location(frozenset()) if type(mapping) is dict else UNTRACED


def _of_filesystem(fs: AbstractFileSystem, path: str) -> Location:
    fs, path = without_dirs(fs, path)
    attributes = object.__getattribute__(fs, "__dict__")
    path = str(fs._strip_protocol(path))
    if isinstance(fs, LocalFileSystem):
        return _of_file(path)
    if is_one(fs, CACHES) or "sync_fs" in attributes:
        inner = attributes.get("fs", attributes.get("sync_fs"))
        return _of_filesystem(inner, path) if isinstance(inner, AbstractFileSystem) else UNTRACED
    if is_one(fs, ARCHIVES):
        return _of_open_file(attributes.get("of") or attributes.get("_fo_ref"))
    if is_one(fs, REFERENCES):
        return _together([_of_set(fs), *_of_filesystem_references(fs)])
    if isinstance(fs, MemoryFileSystem):
        own = "" if fs.store is MemoryFileSystem.store else f"{id(fs.store):x}"
        return _of_url("", f"memory://{own}{path.lstrip('/')}")
    protocols = protocols_of(fs)
    if not _OWN_BYTES.isdisjoint(protocols):
        return Location(frozenset())
    if not _SERVERS.isdisjoint(protocols):
        return _of_url(_hosts(fs, attributes), f"{protocols[0]}://{path.lstrip('/')}")
    if any(kind.has_host for kind in map(kind_of_protocol, protocols) if kind is not None):
        return _location_of(open_storage((fs, path)), "", links=False)
    return Location(frozenset({f"{type(fs).__module__}.{type(fs).__qualname__} {path}"}), unknown=ANYWHERE)


def _hosts(fs: AbstractFileSystem, attributes: Mapping[str, Any]) -> str:
    """Return the names of the server, account and the like that a filesystem talks to."""
    given = [str(name) for option in _HOSTS if (name := attributes.get(option) or fs.storage_options.get(option))]
    return " ".join(canonical_url(name) if "://" in name else name.lower() for name in given)


def _of_references(storage: ReferenceStorage) -> Iterator[Location]:
    """Yield the location of a set, and of everything that it refers to; each object once."""

    async def urls() -> set[str | None]:
        return {url async for url in storage.urls()}

    found = sync(get_loop(), urls)
    if storage.place is not None:
        yield _location_of(storage.place.storage, storage.place.name, links=False)
    for url in found:
        try:
            target = storage.targets.target(url)
        except ShardStoreError:  # nothing can be read there either
            yield UNTRACED
            continue
        yield _location_of(target.storage, target.key, links=False)


def _of_open_file(file: object) -> Location:
    if isinstance(file, io.BytesIO):
        return Location(frozenset())
    fs, path = getattr(file, "fs", None), getattr(file, "path", None)
    if isinstance(fs, AbstractFileSystem) and path is not None:
        return _of_filesystem(fs, str(path))
    name = getattr(file, "name", None)  # a file of Python's
    return _of_file(name) if isinstance(name, str) and os.path.exists(name) else UNTRACED


def _of_set(fs: AbstractFileSystem) -> Location:
    """Return the location that a set of references itself is read from."""
    options = fs.storage_options
    fo = fs.storage_args[0] if fs.storage_args else options.get("fo")
    if isinstance(fo, Mapping):
        return Location(frozenset())
    if not isinstance(fo, str):
        return _of_open_file(fo) if isinstance(fo, OpenFile) else UNTRACED
    given = options.get("ref_storage_args") or options.get("target_options") or {}
    return _of_filesystem(*fsspec.core.url_to_fs(fo, **{**given, "protocol": options.get("target_protocol")}))


def _of_filesystem_references(fs: Any) -> Iterator[Location]:
    """Yield the location of everything that a set refers to; each directory once."""
    if not isinstance(fs.references, dict):
        yield UNTRACED
        return
    urls = {fs.target if value[0] is None else value[0] for value in fs.references.values() if isinstance(value, list)}
    for url in urls:
        protocol, _ = split_protocol(url)
        try:
            yield _of_filesystem(fs.fss[protocol], url)
        except (ValueError, ImportError):  # no such filesystem: then nothing can be read there either
            yield UNTRACED


def _together(locations: Iterable[Location]) -> Location:
    found = list(locations)
    return Location(
        frozenset().union(*(one.places for one in found)),
        frozenset().union(*(one.served for one in found)),
        frozenset().union(*(one.unknown for one in found)),
        frozenset().union(*(one.only_read for one in found)),
        tuple(place for one in found for place in one.stores),
    )


# -- servers: one name for each, however their URLs are spelled ---------------------------------------------------------


def canonical_url(url: str) -> str:
    """Return the URL of a place on a server, of HTTP or HTTPS, as any other spelling of it gives it: scheme and host in lower case; no
    user, query, default port or slashes at the end; no percent-encoding; one host for all of AWS's S3, where the bucket is in the path.
    """
    parts = urlsplit(url)
    scheme, host, path = parts.scheme, (parts.hostname or "").rstrip("."), unquote(parts.path).rstrip("/")
    for pattern, service in _SERVICES:
        if (match := pattern.fullmatch(host)) is not None:
            bucket = match["bucket"]
            if bucket is not None and (inside := _INTERFACE.fullmatch(bucket)) is not None:
                bucket = inside["bucket"]
            return f"{service}/{bucket}{path}" if bucket else service + path
    return f"{scheme}://{_with_port(host, parts.port, scheme)}{path}"


def urls_in_bucket(endpoint: str, bucket: str, key: str) -> tuple[str, str]:
    """Return the URLs by which an object, or a prefix, can be reached over HTTP: with the bucket in the path, and with it in the host."""
    server, inside = canonical_url(endpoint), f"/{key}" if key else ""
    scheme, separator, host = server.partition("://")
    return f"{server}/{bucket}{inside}", f"{scheme}{separator}{bucket}.{host}{inside}"


def _with_port(host: str, port: int | None, scheme: str) -> str:
    host = f"[{host}]" if ":" in host else host
    return host if port in (None, _DEFAULT_PORTS.get(scheme)) else f"{host}:{port}"


def may_be_one(one: str, other: str) -> bool:
    """Return whether two servers, ``scheme://host:port``, may be one by two names: with the same port, or the default ones of HTTP and
    HTTPS, at a common address or at one that cannot be found out. Asks for addresses.
    """
    a, b = urlsplit(one), urlsplit(other)
    if _port(a.port) != _port(b.port) or any(server == service for _, service in _SERVICES for server in (one, other)):
        return one == other
    ours, theirs = _addresses(a.hostname), _addresses(b.hostname)
    return ours is None or theirs is None or not ours.isdisjoint(theirs)


def _port(port: int | None) -> int:
    return 0 if port is None or port in _DEFAULT_PORTS.values() else port


def _addresses(host: str | None) -> set[str] | None:
    """Return the addresses of a host, all those of this machine's own loop as one; ``None`` where they cannot be found out."""
    try:
        found = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return None
    parsed = {address: ipaddress.ip_address(address) for address in found}
    return {"loopback" if ip.is_loopback or ip.is_unspecified else address for address, ip in parsed.items()}
