"""Find out which conditions a server honours, once for each server, bucket and process; nothing is left behind.

One that does not know conditional writes may answer 200 to them and overwrite. Success alone proves nothing, so each question is such that
the right answer is a refusal.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

from shardstore.errors import NO_SUCH_BUCKET
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Generation, IfGeneration
from shardstore.storage.requests.bucket import BucketClient
from shardstore.storage.requests.outcomes import RequestFailed, probe_key

NOT_KNOWN = (400, 405, 501)
"""The answers of servers to requests that they do not know."""

_REMOVING = "removing the probe"


async def is_refused(request: Awaitable[object], refusals: tuple[int, ...] = (412,)) -> bool | None:
    """Return whether the server refuses a request that it should; ``None`` if it does not know such requests."""
    try:
        await request
    except RequestFailed as exc:
        if exc.code == NO_SUCH_BUCKET:
            raise
        if exc.code == "NoSuchUpload":  # completed, if the answer was lost and the client asked again
            return False
        if exc.status in refusals:
            return True
        if exc.status in NOT_KNOWN:
            return None
        raise
    return False


async def probe_conditions(
    client: BucketClient, claimed: Capabilities, made_up: Generation, *, is_trusted: bool, refusals: tuple[int, ...] = (412,)
) -> Capabilities:
    """Return ``claimed`` with what the server honours: of one whose manual ``is_trusted`` by one request that changes nothing, of any
    other one also by some about an object that is removed again. ``made_up`` is a version that no object has.

    Some servers know one condition and not the other.
    """
    key, condition = probe_key(), IfGeneration(made_up)
    swap = await is_refused(client.put_empty(key, condition), refusals)
    create = delete = swap
    if not (swap and is_trusted):
        try:
            create = delete = None
            if await is_refused(client.put_empty(key, UNCONDITIONAL), refusals) is False:
                create = await is_refused(client.put_empty(key, IF_ABSENT), refusals)
                delete = await is_refused(client.delete(key, condition, "probing conditional deletes with"), refusals)
                # Carried out, its answer lost, and sent again, a delete is refused because there is nothing any more.
                delete = delete and await client.head(key) is not None
        finally:
            await remove(client, key)
    return replace(claimed, compare_and_swap=swap is True, create_if_absent=create is True, conditional_delete=delete is True)


async def remove(client: BucketClient, key: str) -> None:
    """Remove the object of a probe, if it is there."""
    try:
        await client.delete(key, UNCONDITIONAL, _REMOVING)
    except RequestFailed as exc:
        if not exc.is_absent:
            raise
