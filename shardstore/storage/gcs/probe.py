"""Probes of what a server that speaks the JSON API of GCS honours, once for each endpoint, bucket and process.

An emulator may answer 200 to conditions that it does not know, so the questions are such that the right answer is 412.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardstore.model.capabilities import Capabilities
from shardstore.storage.gcs.body import MemoryBody, resource
from shardstore.storage.gcs.client import OBJECT, GCSClient
from shardstore.storage.requests.outcomes import RequestFailed, probe_key

_MADE_UP_GENERATION = "1"  # generations are microseconds since 1970

_NOT_KNOWN = (400, 405, 501)

CLAIMED_WITHOUT_PROBE = Capabilities(pinned_reads=True, durable=True, across_machines=True, unique_versions=True)
"""Capabilities that need no probe: reads compare generations themselves."""


@dataclass
class GCSFacts:
    """The known facts of one endpoint and bucket, shared by all storages of this process."""

    capabilities: Capabilities | None = None
    resumable_conditions: bool | None = None
    """True if the end of a resumable upload honours the condition of its start: fake-gcs-server's does not. ``None``: not known yet."""
    tells_generation: bool = True
    """True if an answer with an object's bytes gives its generation: gcp-storage-emulator's does not."""
    warned: bool = False


_facts: dict[tuple[str, str], GCSFacts] = {}


def facts_of(client: GCSClient) -> GCSFacts:
    return _facts.setdefault((client.endpoint, client.bucket), GCSFacts())


def forget_facts() -> None:
    """Forget all facts, so that servers are asked again; for tests, and after a server was updated."""
    _facts.clear()


async def _upload(client: GCSClient, key: str, **condition: str) -> None:
    body = MemoryBody([], resource(client.full_key(key), {}))
    await client.insert("probing conditional writes", {"uploadType": "multipart", **condition}, headers=body.headers, data=body.start())


async def _is_refused(request: Any) -> bool:
    """Return whether the server refuses the condition of a request that it should."""
    try:
        await request
    except RequestFailed as exc:
        if exc.status == 412:
            return True
        if exc.status in _NOT_KNOWN:
            return False
        raise
    return False


async def _remove(client: GCSClient, key: str) -> None:
    await client.object("DELETE", OBJECT, key, "removing the probe")


async def probe_server(client: GCSClient) -> Capabilities:
    """Ask for the abilities of the server: by one request that changes nothing. Servers other than Google's get four more, about an object
    that is removed again.
    """
    key = probe_key()
    swap = await _is_refused(_upload(client, key, ifGenerationMatch=_MADE_UP_GENERATION))
    create = delete = swap
    if not (swap and client.is_google):
        try:
            await _upload(client, key)
            create = await _is_refused(_upload(client, key, ifGenerationMatch="0"))
            query = {"ifGenerationMatch": _MADE_UP_GENERATION}
            delete = await _is_refused(client.object("DELETE", OBJECT, key, "probing conditional deletes with", query=query))
        finally:
            await _remove(client, key)
    return Capabilities(
        pinned_reads=True,
        durable=True,
        across_machines=True,
        unique_versions=True,
        compare_and_swap=swap,
        create_if_absent=create,
        conditional_delete=delete,
    )


async def probe_resumable(client: GCSClient) -> bool:
    """Return whether a resumable upload honours its condition when it ends, not only when it starts. Leaves
    nothing, whatever the answer.
    """
    key = probe_key()
    what = "probing resumable uploads"
    document = resource(client.full_key(key), {})
    query = {"uploadType": "resumable", "name": client.full_key(key), "ifGenerationMatch": "0"}
    started = await client.insert(what, query, document=document)
    try:
        await _upload(client, key)
        # The condition held when the upload was started, and does not any more.
        end = client.request("PUT", started.headers.get("Location", ""), what=what, headers={"Content-Range": "bytes 0-0/1"}, data=b"p")
        return await _is_refused(end)
    finally:
        await _remove(client, key)
