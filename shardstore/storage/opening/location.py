"""The real places of a storage's objects, through every layer: chains, caches, directories, archives, references, mappings, links.

An operation that erases or replaces objects must not do it to those that it reads. Two storages may be the same place by different
names, one may lie in the other, and one may read from files that lie in the other: an archive, or what a set of references refers to.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fsspec.core
from fsspec.core import OpenFile, split_protocol
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from shardstore.storage.base import Storage
from shardstore.storage.generic.links import ARCHIVES, CACHES, REFERENCES, is_one, protocols_of, without_dirs
from shardstore.storage.generic.storage import GenericStorage
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.mapping import MappingStorage
from shardstore.storage.opening.kinds import kind_of_protocol
from shardstore.storage.opening.open import open_storage
from shardstore.storage.wrappers import innermost

_SERVERS = frozenset(
    {"ftp", "sftp", "ssh", "smb", "webdav", "hdfs", "webhdfs", "github", "git", "gist", "hf", "az", "abfs", "adl", "oss", "oci"}
)
"""Protocols where a host, or an account, and a path identify the place."""
_OWN_BYTES = frozenset({"data"})
_HOSTS = ("host", "endpoint_url", "base_url", "account_name", "org", "repo")


@dataclass(frozen=True)
class Location:
    """The places that a storage reads from and writes to; ``is_known`` is false if there may be others."""

    places: frozenset[str]
    is_known: bool = True

    def overlaps(self, other: Location) -> bool:
        """Return whether a place of one is a place of the other, or lies in it, as far as the places are known."""
        if _has_within(self.places, other.places) or _has_within(other.places, self.places):
            return True
        ones, others = _directories(self.places), _directories(other.places)
        return _has_directory_above(self.places, others) or _has_directory_above(other.places, ones)


def _has_within(places: frozenset[str], above: frozenset[str]) -> bool:
    return any(not above.isdisjoint(_and_above(place)) for place in places)


def _and_above(place: str) -> Iterator[str]:
    yield place
    while "/" in place:
        place = place.rpartition("/")[0]
        yield place or "/"


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
    """Return the location of ``path`` in a storage, whatever root that has. With ``links``, it includes the targets of links at any depth
    of a local directory, since its objects are read from there too.
    """
    storage = innermost(storage)
    if isinstance(storage, LocalStorage):
        top = _of_file(os.path.join(storage.root, path))
        return _together([top, _of_links(os.path.join(storage.root, path))]) if links else top
    if isinstance(storage, MappingStorage):
        return _of_mapping(storage.mapping, links)
    if isinstance(storage, GenericStorage):
        found = _of_filesystem(storage.fs, f"{storage.path}/{path}" if path else storage.path)
        return _together([found, *(_of_links(place) for place in found.places if place.startswith("/"))]) if links else found
    url = storage.url if storage.url.endswith("/") else storage.url + "/"
    return _of_url(str(getattr(storage, "endpoint", "") or ""), f"{url}{path}")


def _of_file(path: str) -> Location:
    """Return the location of a file: its own name, and the targets of links on the way."""
    return Location(frozenset({os.path.realpath(path), os.path.abspath(path)}))


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
        return location_of(engine.storage, str(getattr(mapping, "path", "") or ""), links=links)
    return Location(frozenset(), is_known=type(mapping) is dict)


def _of_filesystem(fs: AbstractFileSystem, path: str) -> Location:
    fs, path = without_dirs(fs, path)
    attributes = object.__getattribute__(fs, "__dict__")
    path = str(fs._strip_protocol(path))
    if isinstance(fs, LocalFileSystem):
        return _of_file(path)
    if is_one(fs, CACHES) or "sync_fs" in attributes:
        inner = attributes.get("fs", attributes.get("sync_fs"))
        return _of_filesystem(inner, path) if isinstance(inner, AbstractFileSystem) else Location(frozenset(), is_known=False)
    if is_one(fs, ARCHIVES):
        return _of_open_file(attributes.get("of") or attributes.get("_fo_ref"))
    if is_one(fs, REFERENCES):
        return _together([_of_set(fs), *_of_references(fs)])
    if isinstance(fs, MemoryFileSystem):
        own = "" if fs.store is MemoryFileSystem.store else f"{id(fs.store):x}"
        return _of_url("", f"memory://{own}{path.lstrip('/')}")
    protocols = protocols_of(fs)
    if not _OWN_BYTES.isdisjoint(protocols):
        return Location(frozenset())
    if any(kind.has_host for kind in map(kind_of_protocol, protocols) if kind is not None):
        return location_of(open_storage((fs, path)))
    if not _SERVERS.isdisjoint(protocols):
        options = {**fs.storage_options, **{name: value for name in _HOSTS if (value := attributes.get(name))}}
        host = " ".join(str(options[name]) for name in _HOSTS if options.get(name))
        return _of_url(host, f"{protocols[0]}://{path.lstrip('/')}")
    return Location(frozenset({f"{type(fs).__module__}.{type(fs).__qualname__} {path}"}), is_known=False)


def _of_open_file(file: object) -> Location:
    if isinstance(file, io.BytesIO):
        return Location(frozenset())
    fs, path = getattr(file, "fs", None), getattr(file, "path", None)
    if isinstance(fs, AbstractFileSystem) and path is not None:
        return _of_filesystem(fs, str(path))
    name = getattr(file, "name", None)  # a file of Python's
    return _of_file(name) if isinstance(name, str) and os.path.exists(name) else Location(frozenset(), is_known=False)


def _of_set(fs: AbstractFileSystem) -> Location:
    """Return the location that a set of references itself is read from."""
    options = fs.storage_options
    fo = fs.storage_args[0] if fs.storage_args else options.get("fo")
    if isinstance(fo, Mapping):
        return Location(frozenset())
    if not isinstance(fo, str):
        return _of_open_file(fo) if isinstance(fo, OpenFile) else Location(frozenset(), is_known=False)
    given = options.get("ref_storage_args") or options.get("target_options") or {}
    return _of_filesystem(*fsspec.core.url_to_fs(fo, **{**given, "protocol": options.get("target_protocol")}))


def _of_references(fs: Any) -> Iterator[Location]:
    """Yield the location of everything that a set refers to; each directory once."""
    if not isinstance(fs.references, dict):
        yield Location(frozenset(), is_known=False)
        return
    urls = {fs.target if value[0] is None else value[0] for value in fs.references.values() if isinstance(value, list)}
    for url in urls:
        protocol, _ = split_protocol(url)
        try:
            yield _of_filesystem(fs.fss[protocol], url)
        except (ValueError, ImportError):  # no such filesystem: then nothing can be read there either
            yield Location(frozenset(), is_known=False)


def _together(locations: Iterable[Location]) -> Location:
    found = list(locations)
    return Location(frozenset().union(*(one.places for one in found)), all(one.is_known for one in found))
