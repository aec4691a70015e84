"""Keys of the 2022 draft's hierarchy, and the keys of final Zarr v3 with the same meaning.

::

    stored (draft)                        canonical (final v3)
    zarr.json                             none: the entry point is no node
    meta/root.array.json, .group.json     zarr.json
    meta/root/x/y.array.json, .group.json x/y/zarr.json
    data/root/x/c0/1                      x/c/0/1
    data/root/x/c0.1                      x/c.0.1
    data/root/x/c5                        x/c/5        (1-d: the key does not show the separator)
    data/root/x/c                         x/c          (0-d)
    data/root/c0/1                        c/0/1        (the array at the root)
    data/root/x/notes.txt                 x/notes.txt  (a foreign key)

A chunk key is recognised by its tail alone: a segment ``c`` followed by canonical decimal numbers to the end of the key. The last such
segment counts, so nodes may be called ``c``, ``0`` and ``c0``. Two stored keys never have one canonical key, except the array's and the
group's document of one node; the draft allows only one of them. Keys that would be confused have no counterpart: ``data/root/x/c/5``
(``x/c/5`` is the chunk of ``data/root/x/c5``), ``data/root/x/c00``, which zarr-python 2.18 reads as chunk 0, and everything outside
``meta/root`` and ``data/root``. For callers that need them, ``verbatim_key`` names such keys. Specification: draft core protocol 3.0,
"Storage keys".
"""

from __future__ import annotations

import re

from shardstore.format.metadata_v3 import METADATA_NAME
from shardstore.format.store_keys import is_path

ENTRY_POINT_KEY = "zarr.json"
ARRAY_SUFFIX = ".array.json"
GROUP_SUFFIX = ".group.json"
META_ROOT = "meta/root"
DATA_ROOT = "data/root/"

VERBATIM = ".draft2022/"
"""The prefix for stored keys in their stored form: no node or foreign key has this name."""

_VERBATIM_END = "~"  # so that none looks like a document's or a chunk's
_NUMBER = "(?:0|[1-9][0-9]{0,18})"  # as in chunk_keys: below 10**19, so that it fits 64 bits
# Numbers joined by one separator. "5" alone is written "c5" whatever the separator, and shown as "c/5".
_COORDS = f"(?:{_NUMBER}(?:/{_NUMBER})*|{_NUMBER}(?:\\.{_NUMBER})+)"
_STORED_CHUNK = re.compile(f"((?:.*/)?c)({_COORDS})?", re.ASCII | re.DOTALL)
_CANONICAL_CHUNK = re.compile(f"((?:.*/)?c)(?:/({_NUMBER}(?:/{_NUMBER})*)|\\.({_NUMBER}(?:\\.{_NUMBER})+))?", re.ASCII | re.DOTALL)
# What is no chunk key but would be taken for one somewhere: c00, c/00, c0/1.2, c.5
_RESEMBLES_CHUNK = re.compile(r"(?:.*/)?c[/.]?[0-9]+(?:[/.][0-9]+)*", re.ASCII | re.DOTALL)
# A canonical prefix that ends inside the coordinates; the last number may go on.
_CHUNK_PREFIX = re.compile(f"((?:.*/)?c)(?:/((?:{_NUMBER}/)*(?:{_NUMBER})?)|\\.((?:{_NUMBER}\\.)*(?:{_NUMBER})?))", re.ASCII | re.DOTALL)
# A stored prefix that ends inside the coordinates.
_STORED_CHUNK_PREFIX = re.compile(r"((?:.*/)?c)([0-9][0-9./]*)", re.ASCII | re.DOTALL)

_NODE_NAME = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,255}", re.ASCII)


def array_document_key(path: str) -> str:
    """Return the stored key of the document of an array at ``path``; ``""`` is the root."""
    return _node_key(path) + ARRAY_SUFFIX


def group_document_key(path: str) -> str:
    """Return the stored key of the document of a group at ``path``; ``""`` is the root."""
    return _node_key(path) + GROUP_SUFFIX


def _node_key(path: str) -> str:
    return f"{META_ROOT}/{path}" if path else META_ROOT


def verbatim_key(stored: str) -> str:
    """Return the name of any stored key among canonical ones, in addition to the canonical key that it may have."""
    return VERBATIM + stored + _VERBATIM_END


def verbatim_stored(key: str) -> str | None:
    """Return the stored key that ``verbatim_key`` named, or ``None`` where this is a canonical key."""
    is_named = key.startswith(VERBATIM) and key.endswith(_VERBATIM_END)
    return key[len(VERBATIM) : -len(_VERBATIM_END)] if is_named else None


def document_path(canonical: str) -> str | None:
    """Return the path of the node whose document has this canonical key, or ``None`` where it is the key of no document."""
    parent, _, name = canonical.rpartition("/")
    return parent if name == METADATA_NAME and (not parent or _is_path(parent)) and not canonical.startswith("/") else None


def data_key(canonical: str) -> str | None:
    """Return the stored key of data, a chunk or a foreign key; ``None`` for documents and what the draft cannot give back unchanged."""
    if not _is_path(canonical) or document_path(canonical) is not None:
        return None
    chunk = _CANONICAL_CHUNK.fullmatch(canonical)
    if chunk is not None:
        head, *coords = chunk.groups()
        return DATA_ROOT + head + next((c for c in coords if c is not None), "")
    return None if _resembles_chunk(canonical) else DATA_ROOT + canonical


def canonical_key(stored: str) -> str | None:
    """Return the canonical key of a stored document, chunk or foreign key, or ``None`` where it has none."""
    if stored.startswith(META_ROOT):
        return _canonical_document(stored.removeprefix(META_ROOT))
    tail = stored.removeprefix(DATA_ROOT)
    if tail == stored or not _is_path(tail) or document_path(tail) is not None:
        return None
    chunk = _STORED_CHUNK.fullmatch(tail)
    if chunk is None:
        return None if _resembles_chunk(tail) else tail
    head, coords = chunk.groups()
    return head if coords is None else f"{head}{'.' if '.' in coords else '/'}{coords}"


def _canonical_document(tail: str) -> str | None:
    for suffix in (ARRAY_SUFFIX, GROUP_SUFFIX):
        path = tail.removesuffix(suffix)
        if path != tail:
            if not path:
                return METADATA_NAME
            return f"{path[1:]}/{METADATA_NAME}" if path[0] == "/" and _is_path(path[1:]) else None
    return None


def scalar_data_keys(path: str) -> tuple[str, str]:
    """Return the two stored keys that the one chunk of a 0-d array may have: the draft's ``c`` and zarr-python 2.18's ``c0``.

    By its key alone the second is ``c/0`` of a 1-d array; only the array's document shows the difference. A reader of ``<path>/c``
    tries first the one that ``storage_transformers.scalar_key_name`` names, then the other. A writer writes the first. An erasure
    removes both.
    """
    prefix = f"{DATA_ROOT}{path}/" if path else DATA_ROOT
    return f"{prefix}c", f"{prefix}c0"


def stored_prefixes(canonical_prefix: str) -> list[str]:
    """Return the stored prefixes below which every stored key lies whose canonical key starts with ``canonical_prefix``.

    The prefix need not end at a slash. Other keys lie below them too: filter by ``canonical_key``. There are at most four, and none of
    them covers another. A caller that knows that it is inside an array needs none of those in ``META_ROOT``.
    """
    if not canonical_prefix:
        return [DATA_ROOT, META_ROOT]
    *parents, last = canonical_prefix.split("/")
    if parents and not is_path("/".join(parents)):
        return []
    data = [DATA_ROOT + canonical_prefix]
    chunk = _CHUNK_PREFIX.fullmatch(canonical_prefix)
    if chunk is not None:
        head, *coords = chunk.groups()
        data.insert(0, DATA_ROOT + head + next(c for c in coords if c is not None))
    if len(data) == 2 and data[1].startswith(data[0]):
        data.pop()
    meta = [f"{META_ROOT}/{canonical_prefix}"]
    if METADATA_NAME.startswith(last):  # the document of the node itself, not only of those below
        meta.insert(0, _node_key("/".join(parents)) + ".")
    return data + meta


def canonical_prefixes(stored_prefix: str) -> list[str]:
    """Return the canonical prefixes below which every canonical key lies whose stored key starts with ``stored_prefix``.

    The prefix need not end at a slash. Other keys lie below them too: filter by the stored key. None of them covers another.
    """
    for root in (DATA_ROOT, META_ROOT + "/", META_ROOT + "."):
        if root.startswith(stored_prefix):
            return [""]
    if stored_prefix.startswith(DATA_ROOT):
        tail = stored_prefix.removeprefix(DATA_ROOT)
        chunk = _STORED_CHUNK_PREFIX.fullmatch(tail)
        return [tail] if chunk is None else [tail, f"{chunk[1]}/{chunk[2]}", f"{chunk[1]}.{chunk[2]}"]
    tail = stored_prefix.removeprefix(META_ROOT)
    if tail == stored_prefix or tail[0] not in "./":
        return []
    if tail[0] == ".":
        return [METADATA_NAME]
    for ending in (tail[1:].rfind(".", 0, tail.rfind(".") - 1), tail.rfind(".") - 1):  # ".array.json" may have begun at either period
        if ending >= 0 and any(suffix.startswith(tail[1 + ending :]) for suffix in (ARRAY_SUFFIX, GROUP_SUFFIX)):
            return [tail[1 : 1 + ending]]
    return [tail[1:]]


def unwritable_name(path: str) -> str | None:
    """Return why the draft cannot have a node of this path, ``None`` where it can. Stored nodes are not refused for this."""
    for name in path.split("/") if path else ():
        if not _NODE_NAME.fullmatch(name):
            return f"the 2022 draft has no node named {name!r}: names are 1 to 255 of a-z, A-Z, 0-9, '-', '_', '.', not periods alone"
    return None


def _resembles_chunk(key: str) -> bool:
    """Return whether a key that is no chunk key on its own side is a chunk key on the other, or nearly one on either."""
    return _STORED_CHUNK.fullmatch(key) is not None or _RESEMBLES_CHUNK.fullmatch(key) is not None


def _is_path(path: str) -> bool:
    return is_path(path) and not path.startswith(VERBATIM)
