"""What the manual of Azure says and Azurite does otherwise, on the simulated container."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from shardstore.errors import StorageError
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, IfGeneration
from shardstore.model.ranges import EVERYTHING, ByteSuffix, CopiedRange, NewBytes
from shardstore.storage.azure.storage import AzureStorage
from shardstore.storage.base import ConditionFailed, Found, Read, read_one
from tests.simulation import azure
from tests.simulation.network import Answer, Conduct
from tests.simulation.world import World

AZURE = azure.Manner(
    is_azure=True,
    condition_is_first=False,
    put_discards=True,
    delete_discards=True,
    blocks_are_there=False,
    names_no_version=True,
    refuses_delete=False,
    has_empty_ranges=False,
    names_size=True,
    has_empty_pages=True,
)


class Container(azure.Bucket):
    """The first requests get these answers, in place of being carried out."""

    instead: list[Answer[Any]]

    def serve(self, *request: Any) -> Answer[Any]:
        self.requests += 1
        return self.instead.pop(0) if self.instead else super().serve(*request)

    requests = 0


def on_azure(act: Callable[[AzureStorage, Container], Awaitable[None]], manner: azure.Manner = AZURE, *instead: Answer[Any]) -> None:
    """Act on a storage in a world without faults."""
    world = World(0, "azure", Conduct())
    world.bucket = container = Container(world.loop.time, manner)
    container.instead = list(instead)
    storage = AzureStorage(world.filesystem(world.process("client")), "bucket/root")
    world.run(lambda: act(storage, container))


async def found(storage: AzureStorage, key: str) -> bytes:
    outcome = await read_one(storage, Read(key, (EVERYTHING,)))
    assert isinstance(outcome, Found)
    return bytes(outcome.buffers[0])


@pytest.mark.parametrize("names_no_version", [True, False])
def test_appending_to_a_blob_without_blocks(names_no_version: bool) -> None:
    """The list of its blocks, which are none, names no version."""

    async def act(storage: AzureStorage, container: Container) -> None:
        first = await storage.write("x", [b"chunks"], 6, IF_ABSENT)
        second = await storage.compose("x", first, [CopiedRange(0, 6), NewBytes(b" more")], IfGeneration(first))
        assert await found(storage, "x") == b"chunks more"
        with pytest.raises(ConditionFailed):
            await storage.compose("x", first, [CopiedRange(0, 6), NewBytes(b" else")], IfGeneration(first))
        third = await storage.compose("x", second, [CopiedRange(0, 11), NewBytes(b" and more")], UNCONDITIONAL)
        assert await found(storage, "x") == b"chunks more and more"
        assert third != second

    on_azure(act, replace(AZURE, names_no_version=names_no_version))


@pytest.mark.parametrize("data", [b"", b"ours"])
def test_blocks_that_a_dead_writer_sent_are_no_blob(data: bytes) -> None:
    """To Azurite they are one for ever, if the blob is stored by one request."""

    async def act(storage: AzureStorage, container: Container) -> None:
        container.sent["root/x"] = {"of another writer": b"theirs"}
        await storage.write("x", [data], len(data), IF_ABSENT)
        assert await found(storage, "x") == data
        requests = container.requests
        with pytest.raises(ConditionFailed):
            await storage.write("x", [b"again"], 5, IF_ABSENT)
        assert container.requests == requests + 2  # the put and a look at what is there

    on_azure(act, replace(AZURE, blocks_are_there=True))


def test_blocks_of_another_program_with_ids_of_another_length() -> None:
    async def act(storage: AzureStorage, container: Container) -> None:
        await storage.probe()
        container.instead.append(Answer(400, "InvalidBlobOrBlock"))
        with pytest.raises(StorageError, match=r"block of 'x': another program .* store the blob once by one request"):
            await AzureStorage(storage.fs, storage.path, put_bytes=0).write("x", [b"data"], 4, UNCONDITIONAL)

    on_azure(act)


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_probe_is_sent_again_to_a_busy_server(status: int) -> None:
    async def act(storage: AzureStorage, container: Container) -> None:
        assert (await storage.probe()).compare_and_swap
        assert container.requests == 3

    on_azure(act, AZURE, Answer(status, "ServerBusy"), Answer(status, "ServerBusy"))


@pytest.mark.parametrize("names_size", [True, False])
@pytest.mark.parametrize("has_empty_ranges", [True, False])
def test_ends_of_an_empty_blob(names_size: bool, has_empty_ranges: bool) -> None:
    async def act(storage: AzureStorage, container: Container) -> None:
        version = await storage.write("x", [], 0, IF_ABSENT)
        outcome = await read_one(storage, Read("x", (ByteSuffix(4),), version))
        assert isinstance(outcome, Found)
        assert (bytes(outcome.buffers[0]), outcome.nbytes) == (b"", 0)

    on_azure(act, replace(AZURE, names_size=names_size, has_empty_ranges=has_empty_ranges))


def test_pages_without_names() -> None:
    async def act(storage: AzureStorage, container: Container) -> None:
        keys = [f"k{number}" for number in range(7)]
        for key in keys:
            await storage.write(key, [b"x"], 1, IF_ABSENT)
        assert [info.key async for info in storage.list("")] == keys

    on_azure(act)
