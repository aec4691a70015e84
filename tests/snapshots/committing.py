"""A repository with some history, and a session that changes it in every way: what commits are put to the test with.

The commit writes chunk files, inline chunks, a manifest of the differences, a merged one, attributes, a structure and a state. ``OLD`` and
``NEW`` are what ``main`` shows before and after it. No zarr: children that are killed import this.
"""

from __future__ import annotations

import json
from typing import Any

from shardstore.snapshots import Repository, Session
from shardstore.storage.base import Storage
from tests.documents import array_v3

LEVELS = 7
"""Commits to the array ``a`` before: the next one merges its manifests."""
MESSAGE = "new"
THEIRS = b"\xff" * 1024
"""What others make of the chunk ``a/c/5``."""

Contents = dict[str, bytes]


def document(nchunks: int, chunk_nbytes: int, attributes: dict[str, Any] | None = None) -> bytes:
    """Return the document of an array of bytes."""
    return json.dumps(array_v3([nchunks * chunk_nbytes], [chunk_nbytes], attributes=attributes or {})).encode()


def group(attributes: dict[str, Any] | None = None) -> bytes:
    """Return the document of a group."""
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes or {}}).encode()


def _chunk(value: int, nbytes: int) -> bytes:
    return bytes([value]) * nbytes


def contents_of(session: Session) -> Contents:
    """Return everything that a session shows: each document, its members in order, and each chunk."""
    shown = session.mapping()
    found: Contents = {}
    for key, data in shown.getitems(list(shown)).items():
        assert isinstance(data, bytes), data
        found[key] = json.dumps(json.loads(data), sort_keys=True).encode() if key.endswith("zarr.json") else data
    return found


def make_history(storage: Storage) -> None:
    """Make a repository with ``main``, the branch ``side`` and the tag ``v1``."""
    repo = Repository.create(storage, pack=(4,))
    session = repo.writable_session()
    shown = session.mapping()
    shown["a/zarr.json"] = document(8, 1024)
    shown["small/zarr.json"] = document(8, 16)
    shown["gone/zarr.json"] = document(2, 1024)
    shown["g/zarr.json"] = group({"long": "x" * 20_000})
    for number in range(8):
        shown[f"a/c/{number}"] = _chunk(number, 1024)
        shown[f"small/c/{number}"] = _chunk(number, 16)
    shown["gone/c/0"] = _chunk(9, 1024)
    repo.create_tag("v1", session.commit("first"))
    for number in range(LEVELS):
        session = repo.writable_session()
        session.mapping()["a/c/0"] = _chunk(100 + number, 1024)
        session.commit(f"level {number}")
    repo.create_branch("side", repo.lookup("main"))


def change(session: Session) -> None:
    """Change everything, in a session that is to be committed to ``main``."""
    shown = session.mapping()
    shown["a/c/1"] = _chunk(201, 1024)  # some chunks of a shard
    del shown["a/c/7"]
    shown["small/c/3"] = _chunk(203, 16)
    shown["new/zarr.json"] = document(9, 1024, {"long": "y" * 20_000})
    for number in (4, 5, 6, 7, 8):  # a whole shard, and some of another
        shown[f"new/c/{number}"] = _chunk(210 + number, 1024)
    shown["g/zarr.json"] = group({"long": "z" * 20_000})
    for key in ("gone/c/0", "gone/zarr.json"):
        del shown[key]
    shown["n/zarr.json"] = group()


def change_side(session: Session) -> None:
    """Change something on another branch, or on top."""
    session.mapping()["a/c/5"] = THEIRS
