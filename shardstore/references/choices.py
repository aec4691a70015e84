"""Check the arguments of a new set: which arrays, described how, under which URLs."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from shardstore.errors import InvalidInput, Unsupported
from shardstore.format.json_text import JsonObject
from shardstore.format.references.documents import DocumentFlavour, NodeDocuments, documents
from shardstore.format.store_keys import groups_above
from shardstore.opening.address import Address, links_of_url
from shardstore.references.batches import ReferenceSource
from shardstore.references.stores import ArrayChoice, OnError
from shardstore.storage.base import Storage
from shardstore.storage.local.storage import LocalFiles

Flavour = Literal["auto", "v2", "v3", "dual"]
Urls = Literal["absolute", "relative", "versioned"]
PathChoice = None | Literal["shards", "chunks"] | Mapping[str, Any]
Paths = Mapping[str, PathChoice]


_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Choices:
    """What a set refers to, and how; the names are those of ``write_json``."""

    paths: Paths | None = None
    urls: Urls = "absolute"
    base_url: str | None = None
    inline_nbytes: int = 0
    mixed_protocols: bool = False
    on_error: OnError = "raise"

    def __post_init__(self) -> None:
        if self.paths is not None and not isinstance(self.paths, Mapping):
            raise InvalidInput(f"paths {self.paths!r} is no mapping from patterns of paths")
        if self.on_error not in ("raise", "skip"):
            raise InvalidInput(f"on_error {self.on_error!r} is neither 'raise' nor 'skip'")
        if type(self.inline_nbytes) is not int or self.inline_nbytes < 0:
            raise InvalidInput(f"inline_nbytes {self.inline_nbytes!r} is not a number of bytes")


def check_patterns(choices: Choices, found: Iterable[str]) -> None:
    """Raise ``InvalidInput`` if a pattern of ``paths`` matches none of the arrays that were ``found``: it may be misspelt.

    One with wildcards may leave nothing out.
    """
    there = list(found)
    needed = [pattern for pattern, choice in (choices.paths or {}).items() if choice is not None or not _WILDCARDS & set(pattern)]
    unused = [pattern for pattern in needed if not any(_covers(pattern, path) for path in there)]
    if unused:
        raise InvalidInput(f"{unused[0]!r} matches the path of no array: there are {', '.join(map(repr, there[:10])) or 'none'}")


def _covers(pattern: str, path: str) -> bool:
    """Return whether a pattern matches an array, or a group that it is in."""
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}/*")


def chosen(choices: Choices, path: str) -> ArrayChoice | None:
    """Return how an array is referred to, by the first pattern that matches; ``None``: not. Raises ``InvalidInput`` if it is no choice."""
    found = next((choice for pattern, choice in (choices.paths or {}).items() if _covers(pattern, path)), "chunks")
    if found is None:
        return None
    if found in ("shards", "chunks"):
        return ArrayChoice(found == "shards", choices.inline_nbytes)
    if (
        isinstance(found, Mapping)
        and set(found) <= {"inline_nbytes", "flavour"}
        and found.get("flavour", "v2") in get_args(DocumentFlavour)
    ):
        return ArrayChoice(
            False, Choices(inline_nbytes=found.get("inline_nbytes", choices.inline_nbytes)).inline_nbytes, found.get("flavour")
        )
    raise InvalidInput(
        f"the choice {found!r} for array {path!r} is neither None, 'chunks', 'shards' nor a mapping of inline_nbytes and flavour"
    )


@dataclass(frozen=True, slots=True)
class Described:
    """The documents of a set by path and name, in the order in which they are written."""

    flavour: DocumentFlavour
    why: str
    documents: Mapping[str, dict[str, JsonObject]]


def described(source: ReferenceSource, flavour: Flavour, *, only_v2_keys: bool) -> Described:
    """Return the documents of all nodes of a source, and of the groups above them. With ``only_v2_keys`` chunk keys have to be those of v2.
    Raises ``InvalidInput`` if some arrays cannot be described so, all of which are named, or the flavour is none.
    """
    if flavour not in get_args(Flavour):
        raise InvalidInput(f"flavour {flavour!r} is not one of {', '.join(get_args(Flavour))}")
    own = {array.path: array.flavour for array in source.arrays if array.flavour is not None}
    if only_v2_keys and "v3" in (flavour, *own.values()):
        raise InvalidInput(
            "flavour='v3' cannot be read from Parquet: fsspec would take every chunk for missing, without an error. flavour='dual' writes "
            "the documents of both"
        )
    if source.impossible:
        raise _refusal("at all", source.impossible, "leave them out by paths={'…': None}")
    nodes = _nodes(source)
    wanted, why = flavour, "readers of Parquet know v2" if flavour == "v2" and only_v2_keys else "as was asked for"
    if wanted == "auto":
        wanted, why = "v2", "every reader of references knows v2, which can describe all arrays"
        if problems := _problems(nodes, "v2", own):
            wanted, why = "dual" if only_v2_keys else "v3", "; ".join(f"{path!r}: {reason}" for path, reason in list(problems.items())[:3])
    if problems := _problems(nodes, wanted, own):
        other = "; flavour='dual' writes documents of v3 too" if only_v2_keys else "; flavour='v3' may describe them" * (wanted == "v2")
        raise _refusal(f"as {wanted}", problems, f"leave them out by paths={{'…': None}}{other}")
    return Described(wanted, why, {path: documents(node, _flavour_of(path, node, wanted, own)) for path, node in nodes.items()})


def _nodes(source: ReferenceSource) -> dict[str, NodeDocuments]:
    nodes = {array.path: array.node for array in source.arrays}
    above = {path for array in source.arrays for path in groups_above(array.path)}
    for path in above | set(source.groups):
        nodes.setdefault(path, source.groups.get(path, NodeDocuments()))
    return {path: nodes[path] for path in sorted(nodes, key=lambda path: (path.count("/") + bool(path), path))}


def _flavour_of(path: str, node: NodeDocuments, flavour: DocumentFlavour, own: Mapping[str, DocumentFlavour]) -> DocumentFlavour:
    """Return the flavour of one node: groups above arrays of different flavours have the documents of both versions."""
    if node.is_array:
        return own.get(path, flavour)
    return flavour if all(one == flavour for one in own.values()) else "dual"


def _problems(nodes: Mapping[str, NodeDocuments], flavour: DocumentFlavour, own: Mapping[str, DocumentFlavour]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path, node in nodes.items():
        try:
            documents(node, _flavour_of(path, node, flavour, own))
        except Unsupported as exc:
            found[path] = str(exc)
    return found


def _refusal(how: str, problems: Mapping[str, str], remedy: str) -> InvalidInput:
    named = "; ".join(f"{path!r}: {reason}" for path, reason in problems.items())
    return InvalidInput(f"{len(problems)} of the arrays cannot be referred to {how}: {named}. Nothing was written: {remedy}")


# -- URLs ----------------------------------------------------------------------------------------------------------------


def base_of(storage: Storage, urls: Urls, base_url: str | None, directory: str) -> str:
    """Return what comes in front of keys in the URLs of a set in ``directory``. Raises ``InvalidInput`` if no such URLs lead to the objects
    of ``storage``.
    """
    if urls not in get_args(Urls):
        raise InvalidInput(f"urls {urls!r} is not one of {', '.join(get_args(Urls))}")
    if base_url is not None:
        if urls == "relative" or not base_url:
            raise InvalidInput(f"base_url {base_url!r} goes in front of the keys of objects, and not with urls='relative'")
        return base_url.rstrip("/") + "/"
    local = storage.ability(LocalFiles)
    url = storage.url if local is None else f"file://{os.path.abspath(local.root)}"
    if "://" not in url or len(links_of_url(url)) > 1:
        raise InvalidInput(f"the objects of {storage.url} have no URL that another program could open: give base_url")
    if urls != "relative":
        return url.rstrip("/") + "/"
    ours, theirs = Address.parse(url), Address.parse(directory)
    if (ours.head, ours.tail) != (theirs.head, theirs.tail) and not (ours.is_absolute and theirs.is_absolute):
        raise InvalidInput(f"urls='relative' needs set and store at one place, but {directory} and {storage.url} are apart")
    return posixpath.relpath("/" + "/".join(ours.segments), "/" + "/".join(theirs.segments)).rstrip("/") + "/"
