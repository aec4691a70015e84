"""What writers do that are killed: run in children of ``tests.harness.crash``, and known to their parent by its seed."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import shardstore
from shardstore.storage.azure.client import AzureClient
from shardstore.storage.local import storage as local
from shardstore.storage.local.mounts import Mount
from shardstore.storage.local.rules import Locks
from shardstore.storage.s3.client import S3Client
from tests.harness.crash import Child
from tests.harness.scale import FULL
from tests.harness.system_calls import kill
from tests.limits import sweep_young_files
from tests.torture.places import Place

SHARDS = 4
SLOTS = 16
DOCUMENT = (
    b'{"zarr_format":3,"node_type":"array","shape":[%d],"data_type":"uint8","chunk_grid":{"name":"regular","configuration":'
    b'{"chunk_shape":[1]}},"chunk_key_encoding":{"name":"default"},"fill_value":0,"codecs":[{"name":"bytes"},"gzip"]}' % (SHARDS * SLOTS)
)

_OF_S3 = ("create_multipart_upload", "upload_part_copy", "upload_part", "complete_multipart_upload")
APPENDING_REQUESTS = {
    "moto-append": _OF_S3,
    "ministack-append": _OF_S3,
    "azure-append": ("GET-blocklist", "PUT-block", "PUT-blocklist"),
}
"""Requests at which a writer is killed in every run; at full size at all, those included by which it learns what the server can do."""

Change = dict[int, bytes | None]
"""New chunks by number; ``None``: erased."""


def key(chunk: int) -> str:
    return f"a/c/{chunk}"


def changes(seed: int, run: int) -> Iterator[Change]:
    """What run ``run`` writes, one change after the other; none is without effect at its start."""
    rng = random.Random(f"{seed} {run}")
    number = 0
    while True:
        first = rng.randrange(SHARDS) * SLOTS
        kind = rng.random() if number else 0.0
        if kind < 0.6:
            chunks = [first + rng.randrange(SLOTS)]
        elif kind < 0.8:
            chunks = [first + slot for slot in range(SLOTS) if rng.random() < 0.4]
        elif kind < 0.9:
            chunks = [chunk for chunk in range(SHARDS * SLOTS) if rng.random() < 0.2]
        else:
            chunks = list(range(first, first + SLOTS))
        if kind >= 0.9 and kind < 0.95:
            yield dict.fromkeys(chunks)
        else:
            yield {chunk: b"%d.%d.%d " % (run, number, chunk) * rng.randrange(1, 400) for chunk in chunks}
        number += 1


def _be_on_a_network() -> None:
    """In this process, every root lies on a network mount, and what was left there is old."""
    local.__dict__["mount_of"] = lambda path: Mount("/", "nfs4")
    sweep_young_files()


def opened(root: str, mode: str, **options: Any) -> shardstore.ShardedMap:
    """The store, as ``mode`` says: ``auto``, ``append``, ``cluster`` or ``network``."""
    if mode == "network":
        _be_on_a_network()
    if mode == "append":
        options["strategy"] = "append"
    locks: Locks = "auto" if mode in ("auto", "append") else "cluster"
    return shardstore.get_mapper(root, chunks_per_shard=(SLOTS,), locks=locks, **options)


def apply(store: shardstore.ShardedMap, change: Mapping[int, bytes | None]) -> None:
    """One change, in one batch."""
    new = {key(chunk): data for chunk, data in change.items() if data is not None}
    if new:
        store.setitems(new)
    if erased := [key(chunk) for chunk, data in change.items() if data is None]:
        store.delitems(erased)


def write_on(child: Child, root: str, seed: int, run: int, mode: str, fsync: bool) -> None:
    """Write until killed; each change is acknowledged by its number."""
    store = opened(root, mode, fsync=fsync)
    for number, change in enumerate(changes(seed, run)):
        apply(store, change)
        child.acknowledge(str(number))


def write_once(child: Child, root: str, change: Change, mode: str, fsync: bool) -> None:
    """One change, whose system calls are counted."""
    store = opened(root, mode, fsync=fsync)
    assert store["a/zarr.json"]
    with child.counted():
        apply(store, change)
    child.acknowledge("written")


def append_once(child: Child, place: Place, change: Change, at: int, after: bool) -> None:
    """One change of a store on S3 or Azure; this process dies at request number ``at``, from 1: before it is sent, or ``after`` its answer.

    Acknowledged by the names of the requests.
    """
    store = place.mapper()
    assert store["a/zarr.json"]
    made: list[str] = []
    of_s3, of_azure = S3Client.unbounded_call, AzureClient.request

    async def counted(name: str, is_of_shard: bool, send: Callable[[], Awaitable[Any]]) -> Any:
        is_struck = FULL or (is_of_shard and name in APPENDING_REQUESTS[place.kind])
        made.extend([name] if is_struck else [])
        is_last = is_struck and len(made) == at
        if is_last and not after:
            kill(name)
        try:
            return await send()
        finally:
            if is_last:
                kill(name)

    async def to_s3(self: S3Client, method: str, action: str, where: str, **parameters: Any) -> Any:
        return await counted(method, where == repr(key(0)), lambda: of_s3(self, method, action, where, **parameters))

    async def to_azure(self: AzureClient, method: str, name: str, what: str, **parameters: Any) -> Any:
        comp = (parameters.get("query") or {}).get("comp", "blob")
        return await counted(f"{method}-{comp}", name.endswith(key(0)), lambda: of_azure(self, method, name, what, **parameters))

    setattr(S3Client, "unbounded_call", to_s3)  # noqa: B010  # of this process, which ends with this function
    setattr(AzureClient, "request", to_azure)  # noqa: B010
    apply(store, change)
    child.acknowledge(" ".join(made))


def append_on(child: Child, place: Place, seed: int, run: int) -> None:
    """As ``write_on``, to a store on S3 or Azure."""
    store = place.mapper()
    for number, change in enumerate(changes(seed, run)):
        apply(store, change)
        child.acknowledge(str(number))


def wait_for_ever(child: Child, texts: list[str]) -> None:
    for text in texts:
        child.acknowledge(text)
    while True:
        pass


def acknowledge_and_fail(child: Child, text: str) -> None:
    child.acknowledge(text)
    raise ValueError(f"on purpose: {text}")
