"""Histories of versioned stores and of Icechunk, made at random, and what is compared of them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from shardstore.snapshots import Repository

IS_2 = not icechunk.__version__.startswith("1.")
CHUNK = 4
KINDS = (*["create"] * 2, *["write"] * 3, "erase", "resize", "document", "attribute", "delete", "replace", "group")


def access(*prefixes: str) -> Any:
    """What readers of local files give to icechunk; version 1 has no name for it."""
    local = getattr(icechunk.credentials, "LocalFileSystemAccess", None)
    return icechunk.containers_credentials(dict.fromkeys(prefixes, local))


def new_icechunk(place: Path, *prefixes: str) -> Any:
    """A new repository of icechunk, whose virtual chunks may be below these prefixes."""
    config = icechunk.RepositoryConfig.default()
    for prefix in prefixes:
        folder = icechunk.local_filesystem_store(prefix.removeprefix("file://"))
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, folder))
    storage = icechunk.local_filesystem_storage(str(place))
    made = icechunk.Repository.create(storage, config, authorize_virtual_chunk_access=access(*prefixes))
    made.save_config()
    return made


def contents(session: Any) -> dict[str, Any]:
    """All nodes of a session with their attributes, shapes, fill values and elements."""
    try:
        root = zarr.open_group(session.store, mode="r")
    except zarr.errors.GroupNotFoundError:
        return {}
    found: dict[str, Any] = {"": root.attrs.asdict()}
    for path, node in root.members(max_depth=None):
        if isinstance(node, zarr.Array):
            found[path] = node.attrs.asdict(), node.shape, node.chunks, str(node.dtype), np.asarray(node[...]).tolist()
        else:
            found[path] = node.attrs.asdict()
    return found


def history(repo: Repository) -> tuple[Any, ...]:
    """All that is known of a versioned store's history, in order, but for its chunks."""
    state = repo._now().state
    snapshots = [
        (one.id, one.parent, one.timestamp_ms, one.properties.get("message"), one.properties.get("metadata"))
        for one in state.snapshots.values()
    ]
    return snapshots, {name: (ref.snapshot, ref.type) for name, ref in state.refs.items()}


def set_document(session: Any, path: str, **members: Any) -> None:
    """Write the document of an array as it is, with other members: so no chunk is erased that is outside of a new shape."""

    async def write() -> None:
        prototype = default_buffer_prototype()
        data = await session.store.get(f"{path}/zarr.json", prototype)
        document = json.loads(data.to_bytes()) | members
        await session.store.set(f"{path}/zarr.json", prototype.buffer.from_bytes(json.dumps(document).encode()))

    sync(write())


def change(session: Any, rng: random.Random, *, shards: bool = False) -> None:
    """Do one thing at random in a session of either. ``shards``: make arrays with shards too, which a versioned store does not take."""
    root = zarr.open_group(session.store, mode="a")
    nodes = dict(root.members(max_depth=None))
    arrays = [path for path, node in nodes.items() if isinstance(node, zarr.Array)]
    groups = ["", *(path for path in nodes if path not in arrays)]
    kind = rng.choice(KINDS)
    if kind in ("create", "replace"):
        parent = rng.choice(groups)
        path = f"{parent}/{rng.choice('abk')}".strip("/")
        if path in nodes:
            if kind == "create":
                return
            del root[path]
        ndim = rng.choice([0, 1, 2, 2])
        shape = tuple(rng.randint(1, 20) for _ in range(ndim))
        chunks = (rng.choice([1, CHUNK]),) * ndim if ndim == 1 else (CHUNK,) * ndim
        dtype = rng.choice(["i2", "f8"])
        said: dict[str, Any] = {"compressors": None, "fill_value": 7, "attributes": {"n": rng.randint(0, 9)}}
        if shards and ndim and rng.random() < 0.5:
            said["shards"] = tuple(2 * size for size in chunks)
        made = root.create_array(path, shape=shape, chunks=chunks, dtype=dtype, **said)
        if rng.random() < 0.8:
            made[...] = np.full(shape, rng.randint(0, 99), dtype=dtype)
    elif kind == "group":
        path = f"{rng.choice(groups)}/{rng.choice('gh')}".strip("/")
        if path not in nodes and path.count("/") < 3:
            root.create_group(path, attributes={"g": rng.randint(0, 9)})
    elif kind == "attribute":
        node = zarr.open(session.store, path=rng.choice([*groups, *arrays]), mode="r+")
        node.attrs[rng.choice("xy")] = rng.choice([1, "text" * 5000, [1.5, None]])
    elif kind == "delete" and nodes:
        del root[rng.choice(list(nodes))]
    elif arrays:
        path = rng.choice(arrays)
        array: Any = nodes[path]
        if kind in ("write", "erase"):
            where = tuple(slice(start := rng.randrange(size), start + rng.randint(1, size)) for size in array.shape)
            array[where] = 7 if kind == "erase" else rng.randint(0, 99)
        elif array.ndim:
            shape = tuple(rng.randint(1, 20) for _ in array.shape)
            if kind == "resize":
                array.resize(shape)
            else:
                set_document(session, path, shape=list(shape))


def write_key(session: Any, key: str, data: bytes | None) -> None:
    """Write the bytes of a chunk, or erase it, wherever it is."""
    if data is None:
        sync(session.store.delete(key))
    else:
        sync(session.store.set(key, default_buffer_prototype().buffer.from_bytes(data)))


def read_key(session: Any, key: str) -> bytes | None:
    """The bytes of a chunk."""
    data = sync(session.store.get(key, default_buffer_prototype()))
    return None if data is None else data.to_bytes()
