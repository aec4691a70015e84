"""Translate the arguments that fsspec gives a chained filesystem into a target of ours and the root of its paths."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from fsspec.core import has_magic, strip_protocol
from fsspec.registry import get_filesystem_class
from fsspec.spec import AbstractFileSystem

from shardstore.engine.options import EngineOptions
from shardstore.errors import InvalidInput
from shardstore.model.redaction import redacted
from shardstore.opening.address import LOCAL_PROTOCOLS, reads_through_another, scheme_of
from shardstore.opening.kinds import kind_of_protocol
from shardstore.opening.open import chained_target
from shardstore.storage.base import Storage

_CHAIN_OPTIONS = frozenset({"fo", "fs", "target_protocol"})
_OWN_OPTIONS = sorted(
    {field.name for field in fields(EngineOptions)}
    | {"fsync", "locks", "pipeline", "present", "read_only", "snapshot", "static", "stored", "transport"}
)


@dataclass(frozen=True, slots=True)
class ChainLink:
    """The target below one link of a chain.

    ``target`` and ``storage_options`` are what ``shardstore.open`` takes, so that the URL there and the chain here name the
    same engine. ``root`` is the target's path in its own filesystem, without a trailing ``/``.
    """

    target: Any
    storage_options: dict[str, Any] | None
    root: str


def check_options(names: Iterable[str], target_protocol: object) -> None:
    """Refuse options that this link does not have, such as those that were meant for the link below.

    Raises:
        InvalidInput: an option is unknown, and is not a misspelling of a known one.
    """
    for name in names:
        if name not in _OWN_OPTIONS and not difflib.get_close_matches(name, _OWN_OPTIONS, 1):
            raise InvalidInput(
                f"{_remedy(name, target_protocol)}; {name!r} is not an option of sharded, which has {', '.join(_OWN_OPTIONS)}"
            )


def _remedy(name: str, target_protocol: object) -> str:
    below = target_protocol if isinstance(target_protocol, str) else "s3"
    kind = kind_of_protocol(below)
    if kind is not None and name in kind.protocols:
        return f"the link below is {below!r}: say {below}={{…}} instead of {name}={{…}}, in storage_options too"
    return f"give options of a link below by its protocol: {below}={{{name!r}: …}}, in storage_options too"


def link_below(fo: object, target_protocol: object, target_options: Mapping[str, Any] | None, fs: object) -> ChainLink:
    """Return the link that ``fo`` and its companions describe.

    Raises:
        InvalidInput: they describe no link, or contradict each other.
    """
    if not isinstance(fo, str):
        raise InvalidInput(f"fo={fo!r} is not a path: give the root of the store, as in sharded::s3://bucket/data.zarr")
    if isinstance(fs, Storage):
        return ChainLink(fs, None, fo.strip("/"))
    if fs is not None:
        return _link_in_filesystem(fs, fo, is_alone=target_protocol is None and not target_options)
    options = dict(target_options or {})
    if target_protocol is None:
        if not fo:
            raise InvalidInput("sharded:// alone names no storage: put one below it, as in sharded::s3://bucket/data.zarr")
        return ChainLink(fo, options or None, str(strip_protocol(fo)).rstrip("/"))
    if not isinstance(target_protocol, str):
        raise InvalidInput(f"target_protocol={target_protocol!r} is not the name of a protocol")
    return _link_by_protocol(target_protocol, fo, options)


def _link_in_filesystem(fs: object, fo: str, *, is_alone: bool) -> ChainLink:
    if not isinstance(fs, AbstractFileSystem):
        raise InvalidInput(f"fs={fs!r} is not an fsspec filesystem")
    if not is_alone:
        raise InvalidInput("give either fs, or target_protocol with target_options")
    root = str(fs._strip_protocol(fo))
    return ChainLink((fs, root), None, root.rstrip("/"))


def _link_by_protocol(target_protocol: str, fo: str, options: dict[str, Any]) -> ChainLink:
    _check_links(target_protocol, options, fo)
    cls = get_filesystem_class(target_protocol)
    root = str(cls._strip_protocol(fo))
    if not _CHAIN_OPTIONS.isdisjoint(options):  # a chain goes on below
        # fsspec gives the path below a bare "dir::" twice: as the directory, and as the path in it.
        path = "" if target_protocol == "dir" and fo == options.get("fo") else root
        return ChainLink(chained_target(target_protocol, options, path), None, root.rstrip("/"))
    if has_magic(root):  # a pattern: the root is the directory above it
        root = root[: root.index(next(c for c in root if c in "*?["))].rpartition("/")[0]
    url = root if scheme_of(root) else f"{target_protocol}://{root}"
    return ChainLink(url, options or None, root.rstrip("/"))


def _check_links(protocol: object, options: Any, path: object) -> None:
    """Check each link that has one behind it: fsspec cuts URLs at every ``::``, and ``sharded::/data/run::v2`` would open ``/data/run``.

    Raises:
        InvalidInput: the filesystem of a link would ignore what is behind it.
    """
    while isinstance(protocol, str) and isinstance(options, Mapping) and "target_protocol" in options:
        if not reads_through_another(protocol):
            how = "open such a path by shardstore.open(pathlib.Path(…)) or get_mapper, or give it as fo, with target_protocol='file'"
            raise InvalidInput(
                f"{protocol!r}, the link of {redacted(str(path))!r}, reads through no other link, and '::' is between two: "
                f"{how if protocol in LOCAL_PROTOCOLS else 'give fs=, and the path in it as fo'}"
            )
        protocol, options, path = options["target_protocol"], options.get("target_options"), options.get("fo")
