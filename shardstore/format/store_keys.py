"""Keys of a store: which are allowed, which name the document of a node, and which array could own one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from shardstore.errors import InvalidInput
from shardstore.format.chunk_keys import looks_like_chunk_key
from shardstore.format.metadata_v3 import METADATA_NAME

# What may be wrong with one of many keys, one a line: an empty segment or one of dots, NUL, a backslash, half of a surrogate pair.
_PECULIAR = re.compile(r"[/\n](?:\.{0,2})(?=[/\n])|[\0\\\ud800-\udfff]")
_NOT_UTF8 = re.compile(r"[\ud800-\udfff]")
_OF_DOCUMENTS = re.compile(rf"[/\n]{re.escape(METADATA_NAME)}[/\n]")  # as a segment of one of many paths, one a line


def check_key(key: object) -> str:
    """Return the key, if it stays inside the store. Raises ``InvalidInput`` if it is empty, absolute, has empty, ``.`` or ``..`` segments,
    NUL or a backslash, or UTF-8 cannot hold it.
    """
    if not isinstance(key, str):
        raise InvalidInput(f"a key has to be a string, not {type(key).__name__}")
    if not key:
        raise InvalidInput("the empty string is not a key")
    if key[0] == "/":
        raise InvalidInput(f"key {key!r} starts with '/': keys are relative to the store")
    _check_characters(key)
    if not is_path(key):
        raise InvalidInput(f"key {key!r} has an empty, '.' or '..' segment")
    return key


def check_keys(keys: Sequence[str]) -> None:
    """Like ``check_key``, of many, which are looked at all together first."""
    try:
        text = "\n".join(("", *keys, ""))
    except TypeError:
        text = "//"
    if _PECULIAR.search(text) is not None:
        for key in keys:
            check_key(key)


def check_node_path(path: object) -> str:
    """Return the path of a node, ``""`` for the root, if a node can have it. Whatever brings a node to a path asks this before. Raises
    ``InvalidInput`` if it is no key of a store, or a segment of it is the name that documents have.
    """
    if path == "":
        return ""
    try:
        key = check_key(path)
    except InvalidInput as exc:
        raise InvalidInput(f"{path!r} cannot be the path of an array or a group: {exc}. Choose another name") from exc
    if METADATA_NAME in key.split("/"):
        raise InvalidInput(
            f"{path!r} cannot be the path of an array or a group: {METADATA_NAME!r} is the document of one. Choose another name"
        )
    return key


def check_node_paths(paths: Iterable[str]) -> None:
    """Like ``check_node_path``, of many, which are looked at all together first."""
    found = [path for path in paths if path]
    text = "\n".join(("", *found, ""))
    if _PECULIAR.search(text) is not None or _OF_DOCUMENTS.search(text) is not None:
        for path in found:
            check_node_path(path)


def check_prefix(prefix: object) -> str:
    """Return a prefix of keys. One that no key could start with passes where it only lists nothing. Raises ``InvalidInput`` if it would
    climb out of the store, or UTF-8 cannot hold it.
    """
    if not isinstance(prefix, str):
        raise InvalidInput(f"a prefix has to be a string, not {type(prefix).__name__}")
    prefix = prefix.lstrip("/")  # "/" means everything, as the 2022 draft has it
    _check_characters(prefix)
    if prefix and not is_path(prefix.rstrip("/") or "x"):
        raise InvalidInput(f"prefix {prefix!r} has an empty, '.' or '..' segment")
    return prefix


def check_directory(prefix: str) -> str:
    """Return a prefix whose names are listed one level deep, with the ``/`` at its end that may be left out."""
    prefix = check_prefix(prefix)
    return prefix if not prefix or prefix.endswith("/") else prefix + "/"


def check_erased(prefix: str) -> str:
    """Return a prefix below which everything is erased. Raises ``InvalidInput`` if it is neither ``""`` nor ends with ``/``."""
    prefix = check_prefix(prefix)
    if prefix and not prefix.endswith("/"):
        raise InvalidInput(f"prefix {prefix!r} does not end with '/': it would cut names in two")
    return prefix


def _check_characters(text: str) -> None:
    if "\0" in text or "\\" in text:
        raise InvalidInput(f"key {text!r} holds NUL or a backslash")
    if not text.isascii() and (found := _NOT_UTF8.search(text)) is not None:
        raise InvalidInput(f"key {text!r} holds {found[0]!r}, half of a surrogate pair, which UTF-8 cannot hold: rename it")


def is_path(path: str) -> bool:
    """Return whether a node other than the root can have this path: no segment is empty, ``.`` or ``..``."""
    return all(segment not in ("", ".", "..") for segment in path.split("/"))


def join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def metadata_key(path: str) -> str:
    return join(path, METADATA_NAME)


def metadata_path(key: str) -> str | None:
    """Return the path of the node whose document ``key`` is, or ``None``."""
    if key == METADATA_NAME:
        return ""
    return key[: -len(METADATA_NAME) - 1] if key.endswith("/" + METADATA_NAME) else None


def ancestors(key: str) -> Iterator[tuple[str, str]]:
    """Yield ``(path, rest)`` for every way to cut ``key`` at a slash, the shortest path first; the root is ``""``."""
    yield "", key
    at = key.find("/")
    while at >= 0:
        yield key[:at], key[at + 1 :]
        at = key.find("/", at + 1)


def groups_above(path: str) -> Iterator[str]:
    """Yield the paths of the groups that a node is in, the innermost first and the root last; none for the root."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def possible_owners(key: str) -> list[tuple[str, str]]:
    """Return ``(path, relative key)`` of every array that could own the chunk key ``key``, the outermost first.

    Only metadata shows which one does: ``0/0/0`` may be a chunk of the root, of ``0`` or of ``0/0``. The outermost
    array wins, because an array has no nodes below it.
    """
    return [(path, rest) for path, rest in ancestors(key) if looks_like_chunk_key(rest)]
