"""Store one blob: by one request, or as blocks, which a later version can keep.

A blob is a list of blocks. Blocks are sent first, and become the blob when a list of them is committed, on a condition::

    send blocks ─► commit the list (If-Match)

The list may name blocks of the version that it replaces, too: their bytes are neither read nor sent. So an append keeps the blocks of the
old chunks, and sends the new ones and the index, which is always a block of its own. A blob that was stored by one request has no blocks
to keep: the first append stores all of it as blocks.

Any commit or put on a blob discards the blocks that were sent and not committed, also those of another writer. The list of that writer is
refused then, which is a condition that failed.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from xml.sax.saxutils import escape

from shardstore.errors import StorageError
from shardstore.model.generation import Condition, Generation, IfAbsent, IfGeneration, Unconditional
from shardstore.model.ranges import CopiedRange, NewBytes, Segment
from shardstore.storage.azure.client import BLOCKS_GONE, WRITE_ID_HEADER, AzureAnswer, AzureClient, condition_headers
from shardstore.storage.base import ConditionFailed, Storage
from shardstore.storage.requests.lost_answers import ObjectWrite
from shardstore.storage.requests.outcomes import Head, RequestFailed, generation_of
from shardstore.storage.requests.parts import (
    SentPart,
    bytes_of,
    joined_copies,
    part_bytes_for,
    sent_parts,
    source_gone,
    upload_parts,
    write_instead,
)
from shardstore.storage.requests.writes import Body, failed, joined, parts

T = TypeVar("T")

# -- which blocks ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """A committed block of a blob."""

    id: str
    nbytes: int


def block_id(write_id: str, number: int) -> str:
    """Return the id of a block: all ids of a blob have to be of one length."""
    return base64.b64encode(f"{write_id}-{number:06d}".encode("ascii")).decode("ascii")


_ID_LENGTH = len(block_id("0" * 32, 0))


def plan_blocks(segments: Sequence[Segment], old: Sequence[Block], block_bytes: int, max_blocks: int) -> list[Block | SentPart]:
    """Return the blocks of a new version, in order: those of the ``old`` one that lie in a range that is copied, and what is sent.

    None is kept if there would be more than ``max_blocks``, or if the ids of the old ones are of another length than ours.
    """
    if any(len(block.id) != _ID_LENGTH for block in old):
        old = ()
    part_bytes = part_bytes_for(sum(segment.nbytes for segment in segments), block_bytes, max_blocks // 2)
    plan = _planned(segments, old, part_bytes)
    return plan if len(plan) <= max_blocks else _planned(segments, (), part_bytes)


def _planned(segments: Sequence[Segment], old: Sequence[Block], part_bytes: int) -> list[Block | SentPart]:
    plan: list[Block | SentPart] = []
    waiting: list[Segment] = []
    found = list(joined_copies(segments))
    for segment in found:
        if isinstance(segment, CopiedRange) and (kept := _inside(segment, old)) is not None:
            start, end, blocks = kept
            before = CopiedRange(segment.offset, start - segment.offset)
            plan += sent_parts([*waiting, before], part_bytes)
            plan += blocks
            waiting = [CopiedRange(end, segment.offset + segment.nbytes - end)]
            continue
        if segment is found[-1] and isinstance(segment, NewBytes):  # the index, which the next append replaces
            plan += sent_parts(waiting, part_bytes)
            waiting = []
        waiting.append(segment)
    return [*plan, *sent_parts(waiting, part_bytes)]


def _inside(segment: CopiedRange, old: Sequence[Block]) -> tuple[int, int, list[Block]] | None:
    """Return the blocks that lie wholly in a range, with the start and end of them; ``None`` if there are none."""
    start, end, at = None, 0, 0
    blocks: list[Block] = []
    for block in old:
        if segment.offset <= at and at + block.nbytes <= segment.offset + segment.nbytes:
            start, end = at if start is None else start, at + block.nbytes
            blocks.append(block)
        at += block.nbytes
    return None if start is None else (start, end, blocks)


# -- writing -----------------------------------------------------------------------------------------------------------


class AzureWrite(ObjectWrite):
    """One write of one blob."""

    def __init__(self, client: AzureClient, key: str, condition: Condition) -> None:
        super().__init__(key, client.url, condition, self._look_at)
        self.client = client
        self.found_none = False
        """True if the last look at the blob showed that there is none."""

    async def _look_at(self, key: str) -> Head | None:
        head = await self.client.head(key)
        self.found_none = head is None
        return head

    @property
    def headers(self) -> dict[str, str]:
        return {WRITE_ID_HEADER: self.write_id, **condition_headers(self.condition)}

    async def stored(self, answer: AzureAnswer) -> Generation:
        """Return the version that this write made, from the answer to it."""
        return generation_of(answer.headers, self.key) if answer.headers.get("ETag") else await self.unnamed_version()

    async def unless_discarded(self, exc: RequestFailed) -> Generation:
        """Return the version that was stored, after the answer that there are no such blocks: a request that was sent before has committed
        them, or another writer has discarded them.

        Raises:
            ConditionFailed: another writer; there is a condition.
            StorageError: another writer; there is none.
        """
        if (stored := await self.stored_in_spite_of(exc)) is not None:
            return stored
        if not isinstance(self.condition, Unconditional):
            raise failed(self.key, self.client.url) from exc
        raise StorageError(
            f"writing {self.key!r}: another writer stored it, and so discarded the parts that were sent: write it again"
        ) from exc


Send = Callable[[bytes, Mapping[str, str]], Awaitable[AzureAnswer]]
"""A function that stores a blob by one request, with the headers of its condition and its write id. Raises ``RequestFailed``."""


async def send_blob(client: AzureClient, key: str, data: bytes, headers: Mapping[str, str]) -> AzureAnswer:
    """Store a blob by one request, as ``Send`` says."""
    headers = {"x-ms-blob-type": "BlockBlob", **headers}
    return await client.request("PUT", client.full_key(key), f"writing {key!r}", headers=headers, body=data)


async def put(client: AzureClient, key: str, body: Body, nbytes: int, condition: Condition, send: Send | None = None) -> Generation:
    """Store a body that fits into memory by one request, or by one of ``send``, another transport to the same place."""
    data = await joined(body, nbytes, key)
    write = AzureWrite(client, key, condition)
    send = send or partial(send_blob, client, key)
    try:
        return await write.carry_out(lambda: send(data, write.headers))
    except ConditionFailed:
        if not (isinstance(condition, IfAbsent) and write.found_none):
            raise
    # To Azurite, blocks that were sent for an absent blob are a blob that is there, for ever if their writer is dead; not for a list.
    return await _commit(write, [await _send_block(write, 1, data)] if data else [])


async def put_large(client: AzureClient, key: str, body: Body, nbytes: int, condition: Condition) -> Generation:
    """Store a large body in bounded memory, as blocks."""
    write = AzureWrite(client, key, condition)
    part_bytes = part_bytes_for(nbytes, client.block_bytes, client.max_blocks // 2)
    return await _commit(write, await upload_parts(parts(body, nbytes, part_bytes, key), partial(_send_block, write)))


async def compose(
    client: AzureClient, storage: Storage, key: str, source: Generation, segments: Sequence[Segment], condition: Condition
) -> Generation:
    """Carry out ``Storage.compose``. Where nothing is kept, and it is no append, the bytes are read, and written by ``write``.

    Raises:
        ConditionFailed: the condition does not hold, or ``source`` is gone.
    """
    version, old = await committed_blocks(client, key)
    if version not in (source, None):
        raise source_gone(key)
    plan = plan_blocks(segments, old, client.block_bytes, client.max_blocks)
    is_append = len(segments) > 1 and isinstance(segments[0], CopiedRange) and all(isinstance(s, NewBytes) for s in segments[1:])
    if not is_append and not any(isinstance(block, Block) for block in plan):
        return await write_instead(storage, key, source, [part for part in plan if isinstance(part, SentPart)], condition)
    write = AzureWrite(client, key, condition)

    async def send(number: int, block: Block | SentPart) -> str | Block:
        if isinstance(block, Block):
            return block
        return await _send_block(write, number, b"".join(await bytes_of(storage, key, source, block)))

    blocks = await upload_parts(_each(plan), send)
    if condition != IfGeneration(source):  # with it, the commit is that check
        head = await client.head(key)
        if head is None or head.generation != source:
            raise source_gone(key)
    return await _commit(write, blocks)


async def _each(items: Iterable[T]) -> AsyncIterator[T]:
    for item in items:
        yield item


async def _send_block(write: AzureWrite, number: int, data: bytes) -> str:
    """Send one block; return its id."""
    client, key, name = write.client, write.key, block_id(write.write_id, number)
    query = {"comp": "block", "blockid": name}
    await client.request("PUT", client.full_key(key), f"writing a block of {key!r}", query=query, body=data, repeats=True)
    return name


async def _commit(write: AzureWrite, blocks: Sequence[str | Block]) -> Generation:
    """Make blocks the blob: those that were sent, and those that are kept."""
    listed = "".join(
        f"<Committed>{escape(block.id)}</Committed>" if isinstance(block, Block) else f"<Uncommitted>{block}</Uncommitted>"
        for block in blocks
    )
    try:
        return await write.carry_out(lambda: write.client.commit(write.key, listed, "writing", write.headers))
    except RequestFailed as exc:
        if exc.code != BLOCKS_GONE:
            raise
        return await write.unless_discarded(exc)


async def committed_blocks(client: AzureClient, key: str) -> tuple[Generation | None, list[Block]]:
    """Return the version of a blob, with its blocks; neither if it is absent, or has no blocks: then Azure does not name the version."""
    what = f"looking up the blocks of {key!r}"
    query = {"comp": "blocklist", "blocklisttype": "committed"}
    try:
        answer = await client.request("GET", client.full_key(key), what, query=query)
    except RequestFailed as exc:
        if exc.is_absent:
            return None, []
        raise
    if not answer.headers.get("ETag"):
        return None, []
    found = answer.xml(what).iterfind("CommittedBlocks/Block")
    return generation_of(answer.headers, key), [Block(block.findtext("Name") or "", int(block.findtext("Size") or 0)) for block in found]
