"""How it is learned whether a server wants ETags in quotes, while several write at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from shardstore.model.generation import Generation, IfGeneration
from shardstore.storage.base import ConditionFailed
from shardstore.storage.requests.bucket import forget_facts
from shardstore.storage.requests.outcomes import Head, RequestFailed
from shardstore.storage.s3.upload import put


class Server:
    """Objects by key, as ETag and write id; ``If-Match`` holds without quotes, or in either wording."""

    url = "s3://bucket"
    endpoint = "http://ceph"
    bucket = "bucket"
    fs = SimpleNamespace(s3_additional_kwargs={})

    def __init__(self, takes_quotes: bool) -> None:
        self.objects: dict[str, tuple[str, str]] = {}
        self.meanwhile: Callable[[], object] = lambda: None
        self._takes_quotes = takes_quotes
        self._writes = 0

    async def head(self, key: str) -> Head:
        await asyncio.sleep(0.01)
        etag, write_id = self.objects[key]
        return Head(Generation(f'"{etag}"'), 1, write_id)

    async def call(self, _method: str, _action: str, key: str, *, Body: bytes, Metadata: dict[str, str], IfMatch: str) -> dict[str, str]:  # noqa: N803 - S3's names
        await asyncio.sleep(0.01)
        self.meanwhile()
        etag, _ = self.objects[key]
        if IfMatch != etag and not (self._takes_quotes and IfMatch == f'"{etag}"'):
            refusal = RequestFailed("412")
            refusal.status, refusal.code = 412, "PreconditionFailed"
            raise refusal
        self._writes += 1
        self.objects[key] = (f"e{self._writes}", Metadata["shardstore-write-id"])
        return {"ETag": f'"e{self._writes}"'}


@pytest.fixture(autouse=True)
def nothing_is_known() -> Iterator[None]:
    forget_facts()
    yield
    forget_facts()


async def replace(server: Server, key: str, etag: str) -> object:
    client: Any = server
    return await put(client, key, [b"1"], 1, IfGeneration(Generation(f'"{etag}"')))


def test_two_writers_learn_it_at_once() -> None:
    server = Server(takes_quotes=False)
    server.objects = {"a": ("x", ""), "b": ("y", "")}

    async def both() -> None:
        await asyncio.gather(replace(server, "a", "x"), replace(server, "b", "y"))

    asyncio.run(both())


def test_an_object_that_is_changed_back_before_the_look_is_a_conflict() -> None:
    server = Server(takes_quotes=True)
    server.objects = {"a": ("x", ""), "b": ("y", "")}

    def change_and_change_back() -> None:
        server.objects["a"] = ("z", "")
        asyncio.get_running_loop().call_soon(server.objects.__setitem__, "a", ("x", ""))

    async def run() -> None:
        await replace(server, "b", "y")  # this shows that quotes are right
        server.meanwhile = change_and_change_back
        with pytest.raises(ConditionFailed):
            await replace(server, "a", "x")
        server.meanwhile = lambda: None
        await replace(server, "a", "x")

    asyncio.run(run())
