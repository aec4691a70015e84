"""Open the storage that a target names."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

import fsspec.asyn
import fsspec.core
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.mapping import FSMap
from fsspec.registry import get_filesystem_class
from fsspec.spec import AbstractFileSystem

from shardstore.errors import AccessDenied, InvalidInput, NotFound, ShardStoreError, StorageError, Unsupported
from shardstore.extras import how_to_install
from shardstore.model.advice import check_endpoint
from shardstore.model.redaction import redacted, shown_cause, unusable_options
from shardstore.opening import options as open_options
from shardstore.opening.address import OURS, check_cut, check_known, is_known, links_of_url, protocols_of_links
from shardstore.opening.kinds import LocalOpener, extra_of_protocol, kind_of_filesystem, kind_of_protocol
from shardstore.opening.references import OWN_OPTIONS, open_set
from shardstore.opening.snapshot_place import SnapshotPlace
from shardstore.opening.transports import Transport, carried_by, check_transport, is_carried
from shardstore.storage.base import Storage
from shardstore.storage.generic.links import REFERENCES, is_any, without_dirs
from shardstore.storage.generic.storage import GenericStorage
from shardstore.storage.local.rules import Locks, check_follow_links, check_locks
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.references.filesystems import check_made_by_user, for_inner_link, for_inner_links
from shardstore.storage.references.storage import ReferenceStorage
from shardstore.storage.requests.outcomes import is_unreachable
from shardstore.storage.static import StaticStorage

__all__ = ["open_storage"]

_ZARR_CLASSES = (("zarr.abc.store", "Store"), ("zarr.storage", "StorePath"))
_ZARR_ADAPTER = "shardstore.adapters.zarr_storage"
"""The module that makes storages of them by ``storage_of``. It lies in a layer above, and is loaded when such a store is given."""


def open_storage(
    target: object,
    storage_options: Mapping[str, Any] | None = None,
    *,
    fsync: bool = True,
    locks: Locks = "auto",
    transport: Transport = "auto",
    static: bool | None = None,
) -> Storage:
    """Return the storage that ``target`` names.

    ``target`` is a path, an fsspec URL or chain, an fsspec filesystem with a path as ``(fs, path)``, an fsspec mapping, a store of
    zarr-python, a snapshot that ``snapshot_urls`` has found, or a storage, which is returned unchanged. ``storage_options`` are for the
    first link of a chain, or under a link's protocol for that link, as in fsspec. ``sharded::`` before a chain means the same as the chain
    without it. ``fsync`` and ``locks`` concern local files only, and so does ``follow_links``, which ``storage_options`` may hold: if it is
    false, what a link leads to outside of the directory is neither read nor listed. ``transport``, which ``storage_options`` may name too,
    concerns S3, GCS and Azure; by default obstore carries what it can, if it is installed. ``static``, which they may hold too, says that
    nothing changes while the place is open, or that something may; by default nothing changes in archives, sets of references and revisions
    that are named by their hash.

    Raises:
        InvalidInput: the target names no storage: an unknown protocol, a wrong type, options that nothing would use, a view of
            a store, or a store that was closed; ``locks``, ``transport`` or ``static`` is no value of that option.
        Unsupported: a package that it needs is missing, or the transport does not exist for it.
        NotFound: the archive or set of references that the target reads through does not exist.
        StorageError: it cannot be opened.
    """
    check_locks(locks)
    _check_encodable(target)
    options = dict(storage_options or {})
    given = None if check_transport(transport) == "auto" else transport  # the default contradicts nothing
    carrier: Transport = open_options.own_option(options, "transport", check_transport, given, is_carried) or "auto"
    static = open_options.own_option(options, "static", check_static, check_static(static), is_known)
    follow_links = open_options.own_option(options, "follow_links", check_follow_links, None, is_known) is not False
    local = partial(LocalStorage, fsync=fsync, locks=locks, follow_links=follow_links)
    opened = _open(target, options, local)
    if opened is target and carrier == "auto":  # it was made as the caller wants it
        carrier = "fsspec"
    return as_said(static, carried_by(carrier, opened))


def _check_encodable(target: object) -> None:
    """Refuse a place whose name no file system and no request can hold; names of local files in no encoding at all are accepted."""
    name = target[1] if isinstance(target, tuple) and len(target) == 2 else target
    if not isinstance(name, str) or name.isascii():
        return
    try:
        os.fsencode(name)
    except UnicodeEncodeError as exc:
        raise InvalidInput(f"{name!r} holds {exc.object[exc.start]!r}, which UTF-8 cannot encode: no storage can have this name") from exc


def _open(target: object, options: dict[str, Any], local: LocalOpener) -> Storage:
    if isinstance(target, str):
        return _open_url(target, options, local)
    if isinstance(target, os.PathLike):
        path = os.fsdecode(target)
        if "://" in path:  # path objects of packages that know URLs
            return _open_url(path, options, local)
        open_options.refuse(path, options)
        return local(path)
    if options:
        raise InvalidInput(f"storage_options can be given only with a URL: a {type(target).__name__} has its own options")
    if isinstance(target, SnapshotPlace):
        return target.open()
    if isinstance(target, Storage):
        return target
    if _is_zarr_store(target):
        of_zarr: Storage = import_module(_ZARR_ADAPTER).storage_of(target)
        return of_zarr
    if isinstance(target, FSMap):
        return _open_filesystem(target.fs, target.root, local)
    if isinstance(target, tuple) and len(target) == 2 and isinstance(target[0], AbstractFileSystem):
        return _open_filesystem(target[0], str(target[1]), local)
    if isinstance(target, AbstractFileSystem):
        raise InvalidInput("a filesystem needs a path in it: give (fs, path)")
    hint = ": give its store" if hasattr(target, "store_path") else ""
    raise InvalidInput(
        f"a target is a path, a URL, (fs, path), an fsspec mapping, a zarr store or a storage, not of type {type(target).__name__}{hint}"
    )


def _is_zarr_store(target: object) -> bool:
    """Return whether a target is a store of zarr-python 3, or a path in one. Programs that have made one have imported zarr."""
    classes = [getattr(sys.modules.get(module), name, None) for module, name in _ZARR_CLASSES]
    return isinstance(target, tuple(cls for cls in classes if isinstance(cls, type)))


# -- URLs --------------------------------------------------------------------------------------------------------------


def _without_ours(url: str, options: dict[str, Any]) -> str:
    """Return ``url`` without a ``sharded::`` before it, which means what this package does in any case.

    Raises:
        InvalidInput: a view of a store is elsewhere in the chain, so its chunks would be sharded twice.
    """
    first, separator, rest = url.partition("::")
    if first in (OURS, f"{OURS}://") and separator:
        if OURS in options:
            raise InvalidInput(f"storage_options[{OURS!r}] of {redacted(url)!r}: pass them to open() as arguments, not in storage_options")
        url = rest
    if OURS in protocols_of_links(links_of_url(url)):
        raise InvalidInput(
            f"{redacted(url)!r} is, or reads through, a shardstore view of a store. Opening it again would shard the chunks twice. "
            f"Leave {OURS}:: out, or put it at the very front with the path at the end"
        )
    return url


def _open_url(url: str, options: dict[str, Any], local: LocalOpener) -> Storage:
    url = _without_ours(url, options)
    if not url:
        raise InvalidInput("an empty string names no target; '.' is the current directory")
    links = links_of_url(url)
    protocols = protocols_of_links(links)
    if protocols == [""]:
        open_options.refuse(url, options)
        return local(url)
    check_known(url, protocols)
    shown = redacted(url)
    if protocols[0] in REFERENCES:
        return _open_references(url, shown, protocols, options)
    options_by_link = open_options.by_link(shown, [protocol or "file" for protocol in protocols], options)
    if len(protocols) == 1:
        (protocol,) = protocols
        kind, given = kind_of_protocol(protocol), options_by_link[protocol]
        if (
            kind is not None
            and kind.plain_options is not None
            and all(given.get(name, value) == value for name, value in kind.plain_options.items())
        ):
            open_options.refuse(shown, {name: value for name, value in given.items() if name not in kind.plain_options})
            return kind.open(kind.filesystem, url, local)
    check_cut(url, links)
    fs, path = _filesystem_of(url, shown, options_by_link)
    return _open_filesystem(fs, path, local, url)


def _check_links(url: str, shown: str, options_by_link: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that the filesystem of each link is installed, and uses its options."""
    chain = list(options_by_link)
    classes = {protocol: _class_of(protocol, shown) for protocol in chain}  # of all links, before one complains about its options
    for protocol, options in options_by_link.items():
        own = OWN_OPTIONS if protocol in REFERENCES and protocol == chain[0] else frozenset[str]()
        open_options.check(shown, protocol, classes[protocol], options, chain, own)


def _class_of(protocol: str, shown: str) -> type[AbstractFileSystem]:
    try:
        return get_filesystem_class(protocol)  # type: ignore[no-any-return]  # fsspec has no types
    except ImportError as exc:
        extra = extra_of_protocol(protocol)
        remedy = how_to_install(extra) if extra else str(exc)
        raise Unsupported(f"{shown!r} needs a package for {protocol!r} that is not installed: {remedy}") from exc


def _filesystem_of(url: str, shown: str, options_by_link: Mapping[str, Mapping[str, Any]]) -> tuple[AbstractFileSystem, str]:
    _check_links(url, shown, options_by_link)
    try:
        # All options by link: of those at the top fsspec drops some, "mode" among them, without a word.
        fs, path = fsspec.core.url_to_fs(url, **_given(options_by_link))
    except ImportError as exc:
        raise Unsupported(f"{shown!r} needs a package that is not installed: {exc}") from exc
    except ShardStoreError:
        raise
    except Exception as exc:  # noqa: BLE001 - none is lost, but for the chain of one that shows a secret
        raise _cannot_be_opened(shown, list(options_by_link), options_by_link, exc) from shown_cause(exc)
    # fsspec gives the path below a bare "dir::" twice: as the directory, and as the path in it.
    return fs, "" if url.startswith("dir::") else str(path)


def _given(options_by_link: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    given = {protocol: dict(options) for protocol, options in options_by_link.items()}
    for protocol in REFERENCES & given.keys():
        given[protocol] = for_inner_link(given[protocol])
    return given


# -- sets of references ------------------------------------------------------------------------------------------------


def _open_references(url: str, shown: str, protocols: list[str], options: Mapping[str, Any]) -> Storage:
    """Return the storage of a set: that of its options, or of the chain behind it. Options under the name of a protocol that is not in the
    chain are for what the references lead to.
    """
    chain = [protocol or "file" for protocol in protocols]
    of_targets = {name: given for name, given in options.items() if name not in chain and isinstance(given, Mapping) and is_known(name)}
    of_set = {name: given for name, given in options.items() if name not in of_targets}
    options_by_link = open_options.by_link(shown, chain, of_set)
    _check_links(url, shown, options_by_link)
    (protocol, given), *below = options_by_link.items()
    first, _, rest = url.partition("::")
    if below:
        given = {**given, "fo": rest, "target_options": dict(below)}
    if "fo" not in given:
        raise InvalidInput(
            f"{shown!r} is not the URL of a set of references: put its address behind it, as in {protocol}::s3://bucket/refs.json, or "
            "give it as the storage option fo"
        )
    return open_set(given, of_targets, first.partition("://")[2], url if below else None, open_storage, chained_filesystem)


def chained_target(protocol: str, options: Mapping[str, Any], path: str) -> object:
    """Return the target that a link is, from the arguments that fsspec makes of the chain behind it: ``fo``, ``target_protocol`` and so on.

    Raises whatever the filesystem raises.
    """
    if protocol in REFERENCES and "fo" in options:
        open_options.check(f"{protocol}://{path}", protocol, get_filesystem_class(protocol), options, [protocol], OWN_OPTIONS)
        return open_set(options, {}, path, None, open_storage, chained_filesystem)
    return chained_filesystem(protocol, options), path


def chained_filesystem(protocol: str, options: Mapping[str, Any]) -> AbstractFileSystem:
    """Return the filesystem of a link from the arguments that fsspec makes of the chain behind it.

    Raises whatever the filesystem raises.
    """
    given = for_inner_links(options)
    return get_filesystem_class(protocol)(**(for_inner_link(given) if protocol in REFERENCES else given))


def _cannot_be_opened(shown: str, chain: list[str], options: Mapping[str, Mapping[str, Any]], exc: Exception) -> ShardStoreError:
    """Return the error to raise, from ``exc``, if a filesystem could not be made."""
    what = f"{shown!r} cannot be opened"
    if isinstance(exc, TypeError | KeyError | AttributeError):
        given = {name: value for of_link in options.values() for name, value in of_link.items()}
        return unusable_options(f"{what}: {chain[0]!r} takes other options", given, exc)
    if isinstance(exc, FileNotFoundError):
        return NotFound(f"{what}: there is no such file ({_reason(exc)})")
    if isinstance(exc, PermissionError):
        return AccessDenied(f"{what}: access was denied ({_reason(exc)})")
    if is_unreachable(exc):
        return StorageError(f"{what}: the server cannot be reached: {check_endpoint(chain[0])} ({_reason(exc)})")
    if isinstance(exc, ValueError):
        return InvalidInput(f"{what}: {_reason(exc)}")
    return StorageError(f"{what}: {_reason(exc)}")


def _reason(exc: Exception) -> str:
    return f"{type(exc).__name__}: {redacted(str(exc))}"


# -- filesystems -------------------------------------------------------------------------------------------------------


def _open_filesystem(fs: AbstractFileSystem, path: str, local: LocalOpener, url: str | None = None) -> Storage:
    if is_any(fs, frozenset({OURS})):
        raise InvalidInput(
            f"the filesystem {type(fs).__name__} is, or reads through, a shardstore view of a store. Opening it again would shard the "
            "chunks twice. Give the filesystem below it"
        )
    if is_any(fs, REFERENCES):
        check_made_by_user(fs)
    fs, path = without_dirs(fs, path)
    kind = kind_of_filesystem(fs)
    if kind is not None and kind.plain_options is not None:
        return kind.open(fs, path, local)
    fs = on_io_loop(fs)
    return GenericStorage(fs, path, url) if kind is None else kind.open(fs, path, local)


# Synchronous filesystems do not know which process they belong to; this is where each was first seen.
_first_seen_in: WeakKeyDictionary[AbstractFileSystem, int] = WeakKeyDictionary()


def on_io_loop(fs: AbstractFileSystem) -> AbstractFileSystem:
    """Return ``fs``, or one with the same options if ``fs`` belongs to another loop, or to the process that this one was forked from."""
    if isinstance(fs, MemoryFileSystem):  # what it holds came with the fork, and cannot be made again
        return fs
    is_async = isinstance(fs, AsyncFileSystem)
    made_in = getattr(fs, "_pid", os.getpid()) if is_async else _first_seen_in.setdefault(fs, os.getpid())
    if made_in == os.getpid() and (not is_async or (not fs.asynchronous and fs._loop is fsspec.asyn.get_loop())):
        return fs
    options = {k: v for k, v in fs.storage_options.items() if k not in ("asynchronous", "loop")}
    return type(fs)(*fs.storage_args, **options, **({"asynchronous": False} if is_async else {}))


def check_static(static: object) -> bool | None:
    """Raise ``InvalidInput`` if the value is not true, false or ``None``, which leaves it to the kind of storage."""
    if static is None or isinstance(static, bool):
        return static
    raise InvalidInput(f"static={static!r} is neither True nor False: True promises that nothing changes while the store is open")


def as_said(static: bool | None, storage: Storage) -> Storage:
    """Return ``storage`` with the user's word that nothing changes in it, or that something may; ``None``: the user says neither."""
    if static is None:
        return storage
    if isinstance(storage, GenericStorage | ReferenceStorage):
        return storage.with_static(static)
    if not static or storage.capabilities.static:
        return storage
    return StaticStorage(storage)
