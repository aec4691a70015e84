"""The kinds of filesystems that an fsspec filesystem is made of, which decide how it may be used."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.spec import AbstractFileSystem

ARCHIVES = frozenset({"zip", "tar", "libarchive"})
CACHES = frozenset({"simplecache", "filecache", "blockcache", "cached"})
REFERENCES = frozenset({"reference"})
READ_ONLY = ARCHIVES | CACHES | REFERENCES | {"git", "github", "gist", "data", "http", "https"}
"""Filesystems in which objects cannot be replaced, or, as in caches, not without losing what other writers stored since."""
SERIAL = ARCHIVES | {"filecache", "blockcache", "cached", "ftp", "sftp", "ssh", "smb"}
"""Filesystems that hold one file or connection, which two threads must not use at once."""
UNCHANGING = ARCHIVES | REFERENCES | {"git", "github", "gist", "data"}
"""Filesystems that are read when they are opened, so that dropping what they remember would only cost requests."""
DIRECTORIES = frozenset({"file", "local", "memory", "ftp", "sftp", "ssh", "smb"})
"""Filesystems that keep empty directories, and whose ``rmdir`` refuses full ones. (On WebDAV or HDFS it takes all below.)"""
BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "adl", "oss", "oci", "ocilake", "tos", "tosfs"})
"""Filesystems without directories, where making one may make a bucket."""


def protocols_of(fs: AbstractFileSystem) -> tuple[str, ...]:
    """Return the names of one filesystem's own protocol, without those of filesystems below."""
    protocol = type(fs).protocol  # of the class: instances of caching filesystems pass most questions on
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def links_of(fs: AbstractFileSystem) -> Iterator[AbstractFileSystem]:
    """Yield ``fs`` and all filesystems that it reads through."""
    yield fs
    attributes = object.__getattribute__(fs, "__dict__")
    below = [attributes.get("fs"), attributes.get("sync_fs"), getattr(attributes.get("of"), "fs", None)]
    if isinstance(of_references := attributes.get("fss"), dict):
        below += of_references.values()
    for inner in below:
        if isinstance(inner, AbstractFileSystem):
            yield from links_of(inner)


def is_any(fs: AbstractFileSystem, protocols: frozenset[str]) -> bool:
    """Return whether ``fs``, or a filesystem that it reads through, is one of these."""
    return any(not protocols.isdisjoint(protocols_of(link)) for link in links_of(fs))


def is_one(fs: AbstractFileSystem, protocols: frozenset[str]) -> bool:
    """Return whether ``fs`` itself is one of these."""
    return not protocols.isdisjoint(protocols_of(fs))


def without_dirs(fs: AbstractFileSystem, path: str) -> tuple[AbstractFileSystem, str]:
    """Return the same place without filesystems that only put a directory before every path: they would hide what is below."""
    while type(fs) is DirFileSystem:
        path = fs._join(path.strip("/"))
        fs = fs.fs
    return fs, path


def has_inherited_find(fs: AbstractFileSystem) -> bool:
    """Return whether ``fs`` finds files by fsspec's own walk, and not by one that was made for it."""
    cls = type(object.__getattribute__(fs, "__dict__")["fs"] if is_one(fs, CACHES) else fs)
    if cls.find is not AbstractFileSystem.find or cls.walk is not AbstractFileSystem.walk:
        return False
    return not issubclass(cls, AsyncFileSystem) or (cls._find is AsyncFileSystem._find and cls._walk is AsyncFileSystem._walk)


_COMMIT = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_REVISION = {"git": "ref", "github": "root", "gist": "sha"}  # protocol: attribute that holds the revision


def is_static(fs: AbstractFileSystem) -> bool:
    """Return whether nothing that ``fs`` shows changes while it is open: it is an archive, a set of references, or one revision by its
    hash.

    A branch or a tag is no such place, since it can be moved; nor is a cache, except a cache of one of these.
    """
    if is_one(fs, ARCHIVES | REFERENCES | {"data"}):
        return True
    attributes = object.__getattribute__(fs, "__dict__")
    if is_one(fs, CACHES):
        inner = attributes.get("fs")
        return isinstance(inner, AbstractFileSystem) and is_static(inner)
    revisions = [attributes.get(attribute) for protocol, attribute in _REVISION.items() if is_one(fs, frozenset({protocol}))]
    return any(isinstance(revision, str) and _COMMIT.fullmatch(revision) is not None for revision in revisions)
