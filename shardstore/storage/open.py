"""From what a user calls a target to a storage."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any

import fsspec.asyn
import fsspec.core
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.mapping import FSMap
from fsspec.registry import available_protocols
from fsspec.spec import AbstractFileSystem

from shardstore.errors import InvalidInput, Unsupported
from shardstore.storage.base import Storage
from shardstore.storage.local import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.s3 import S3Storage

_LOCAL = ("file", "local")
_S3 = ("s3", "s3a")

# Options of fsspec itself that change nothing here; others would be ignored in silence if they were let through.
_HARMLESS_OPTIONS = frozenset(
    {"asynchronous", "auto_mkdir", "loop", "skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths"}
)


def open_storage(target: object, storage_options: Mapping[str, Any] | None = None, *, fsync: bool = True) -> Storage:
    """The storage that ``target`` names.

    ``target`` is a path, an fsspec URL or chain, an fsspec filesystem with a path as ``(fs, path)``, an fsspec mapping, or a
    storage, which is returned as it is. ``fsync`` concerns local files only.

    Raises:
        InvalidInput: the target names no storage: an unknown protocol, a wrong type, options with an object that has its own.
        Unsupported: this version has no storage of that kind, or a package that it needs is missing.
    """
    options = dict(storage_options or {})
    if isinstance(target, str):
        return _open_url(target, options, fsync)
    if isinstance(target, os.PathLike):
        path = os.fsdecode(target)
        if "://" in path:  # path objects of packages that know URLs
            return _open_url(path, options, fsync)
        _refuse_options(path, options)
        return LocalStorage(path, fsync)
    if options:
        raise InvalidInput(f"storage_options go with a URL; a {type(target).__name__} has options of its own")
    if isinstance(target, Storage):
        return target
    if isinstance(target, FSMap):
        return _open_filesystem(target.fs, target.root, fsync)
    if isinstance(target, tuple) and len(target) == 2 and isinstance(target[0], AbstractFileSystem):
        return _open_filesystem(target[0], str(target[1]), fsync)
    if isinstance(target, AbstractFileSystem):
        raise InvalidInput("a filesystem needs a path in it: give (fs, path)")
    raise InvalidInput(f"a target is a path, a URL, (fs, path), an fsspec mapping or a storage, not a {type(target).__name__}")


# -- URLs --------------------------------------------------------------------------------------------------------------


def _protocols(url: str) -> list[str]:
    """The protocol of every link of the chain, outermost first; ``""`` for a plain path."""
    links = url.split("::")
    found: list[str] = []
    for i, link in enumerate(links):
        protocol, separator, _ = link.partition("://")
        if separator and "/" not in protocol:
            found.append(protocol)
        elif i < len(links) - 1 or (link in available_protocols() and len(links) > 1):
            found.append(link)  # a link without a path, as in "simplecache::s3://…"
        else:
            found.append("")
    return found


def _is_drive(protocol: str) -> bool:
    return len(protocol) == 1 and protocol.isalpha()


def _check_protocols(url: str, protocols: list[str]) -> None:
    """Every link must be known: fsspec would take ``foo::s3://bucket`` for a local path."""
    known = available_protocols()
    for protocol in protocols:
        if not protocol or protocol in known or _is_drive(protocol):
            continue
        close = difflib.get_close_matches(protocol.lower(), [*_LOCAL, "memory", *_S3], 1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InvalidInput(
            f"the protocol {protocol!r} of {_without_secrets(url)!r} is not known: {hint}"
            "This version stores in paths, file://, memory:// and s3://"
        )


def _without_secrets(url: str) -> str:
    """``url`` without the user and password that some protocols carry in it."""
    head, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return head + separator + host.rpartition("@")[2] + slash + path


def _open_url(url: str, options: dict[str, Any], fsync: bool) -> Storage:
    if not url:
        raise InvalidInput("an empty string names no target; '.' is the current directory")
    protocols = _protocols(url)
    if protocols == [""] or (len(protocols) == 1 and _is_drive(protocols[0])):
        _refuse_options(url, options)
        return LocalStorage(url, fsync)
    _check_protocols(url, protocols)
    if len(protocols) > 1:
        raise _unsupported(url, "::".join(protocols))
    (protocol,) = protocols
    if protocol in _LOCAL:
        _refuse_options(url, _own_options(protocol, options))
        return LocalStorage(LocalFileSystem._strip_protocol(url), fsync)
    if protocol == "memory":
        _refuse_options(url, _own_options(protocol, options))
        return MemoryStorage(MemoryFileSystem._strip_protocol(url))
    if protocol not in _S3:
        raise _unsupported(url, protocol)
    try:
        fs, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as exc:
        raise Unsupported(f"{_without_secrets(url)!r} needs s3fs: pip install shardstore[s3]") from exc
    except (TypeError, KeyError) as exc:
        raise InvalidInput(f"the storage_options of {_without_secrets(url)!r} are not what s3fs takes: {exc}") from exc
    return _open_filesystem(fs, path, fsync)


def _own_options(protocol: str, options: dict[str, Any]) -> dict[str, Any]:
    """fsspec also takes the options of a link by its protocol."""
    nested = options.get(protocol)
    return {k: v for k, v in options.items() if k != protocol} | (dict(nested) if isinstance(nested, Mapping) else {})


def _refuse_options(url: str, options: Mapping[str, Any]) -> None:
    if unknown := sorted(set(options) - _HARMLESS_OPTIONS):
        raise InvalidInput(f"storage_options {', '.join(unknown)} mean nothing to {url!r}")


def _unsupported(where: str, kind: str) -> Unsupported:
    return Unsupported(
        f"{_without_secrets(where)!r}: storage of the kind {kind!r} is not supported by this version; there are local paths, "
        "file://, memory:// and s3://"
    )


# -- filesystems -------------------------------------------------------------------------------------------------------


def _open_filesystem(fs: AbstractFileSystem, path: str, fsync: bool) -> Storage:
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
    if isinstance(fs, LocalFileSystem):
        return LocalStorage(fs._strip_protocol(path), fsync)
    if isinstance(fs, MemoryFileSystem):
        if fs.store is not MemoryFileSystem.store:
            raise Unsupported("memory filesystems with a store of their own are not supported: only the global one")
        return MemoryStorage(fs._strip_protocol(path))
    if not set(_S3).isdisjoint(protocols):
        return S3Storage(on_io_loop(fs), path)
    raise _unsupported(path, str(protocols[0]))


def on_io_loop(fs: AbstractFileSystem) -> AbstractFileSystem:
    """``fs``, or one with the same options where it belongs to another loop, or to the process that this one was forked from."""
    if not fs.asynchronous and fs._loop is fsspec.asyn.get_loop() and getattr(fs, "_pid", os.getpid()) == os.getpid():
        return fs
    options = {k: v for k, v in fs.storage_options.items() if k not in ("asynchronous", "loop")}
    return type(fs)(*fs.storage_args, **options, asynchronous=False)
