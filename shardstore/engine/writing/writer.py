"""Gathers updates into commits: one commit a shard for a batch.

Updates that arrive for a shard during a commit of it go into the next commit together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from shardstore.engine.actions import Action, refusal_of_update, simplified
from shardstore.engine.index_cache import StaleLayout
from shardstore.engine.metadata.hierarchy import ChunkTarget
from shardstore.engine.writing.committer import Committer, Refused, Shard, SlotActions
from shardstore.engine.writing.contents import ShardContents
from shardstore.errors import ShardStoreError
from shardstore.format.shard_index import IndexFormat

T = TypeVar("T")

_SHORTEST_PAUSE_SECONDS = 0.003
_LONGEST_PAUSE_SECONDS = 0.005
_PAUSES = 10


@dataclass(slots=True)
class _Submission:
    """One caller's updates of one shard."""

    done: asyncio.Future[Refused]
    actions: SlotActions = field(default_factory=dict)
    contents: ShardContents | None = None
    """In place of actions: what becomes of the whole shard."""


@dataclass(slots=True)
class _ShardQueue:
    """The queue of updates for the next commit of one shard."""

    shard: Shard
    waiting: list[_Submission] = field(default_factory=list)
    runner: asyncio.Task[None] | None = None


_QueueName = tuple[str, IndexFormat]


class Writer:
    """Updates of the chunks of one store. Used on one event loop only."""

    def __init__(self, committer: Committer, concurrency: int) -> None:
        self._committer = committer
        self._bound = asyncio.Semaphore(concurrency)
        self._queues: dict[_QueueName, _ShardQueue] = {}

    async def commit(self, updates: Sequence[tuple[ChunkTarget, Action]]) -> list[ShardStoreError | StaleLayout | None]:
        """Carry out updates of chunks, one commit a shard, durable on return; the error of each, or ``None``.

        Updates of one chunk apply in their order. Shards succeed and fail by themselves. When this is cancelled, commits
        on their way are carried out.
        """
        submissions: dict[_QueueName, _Submission] = {}
        of_update: list[tuple[_Submission, int] | ShardStoreError] = []
        loop = asyncio.get_running_loop()
        for target, action in updates:
            if (refused := refusal_of_update(target, action)) is not None:
                of_update.append(refused)
                continue
            name = (target.shard_key, target.layout.index_format)
            submission = submissions.get(name)
            if submission is None:
                submission = submissions[name] = _Submission(loop.create_future())
                self._queue(name, Shard(target.node, target.layout, target.shard_coords)).waiting.append(submission)
            slot = target.slot
            submission.actions.setdefault(slot, []).append(action)
            of_update.append((submission, slot))
        results = await _all([s.done for s in submissions.values()])
        of_submission = {id(s): r for s, r in zip(submissions.values(), results, strict=True)}
        return [one if isinstance(one, ShardStoreError) else _outcome(of_submission[id(one[0])], one[1]) for one in of_update]

    async def replace(self, shard: Shard, contents: ShardContents) -> None:
        """Write a whole shard, durable on return, in its turn.

        Raises:
            NotMade: the shard has to be written by updates of its chunks; nothing was stored.
        """
        submission = _Submission(asyncio.get_running_loop().create_future(), contents=contents)
        self._queue((shard.key, shard.layout.index_format), shard).waiting.append(submission)
        await submission.done

    def _queue(self, name: _QueueName, shard: Shard) -> _ShardQueue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _ShardQueue(shard)
            queue.runner = asyncio.create_task(self._run(name, queue))
        return queue

    async def _run(self, name: _QueueName, queue: _ShardQueue) -> None:
        """Commit what waits for one shard, again and again, until nothing waits.

        A task of its own: what arrives in the same tick joins.
        """
        clock = asyncio.get_running_loop().time
        try:
            while queue.waiting:
                async with self._bound:
                    together, queue.waiting = _next_commit(queue.waiting)
                    began = clock()
                    await self._commit_together(queue.shard, together)
                if queue.waiting:
                    await self._let_join(queue, clock() - began)
        finally:
            del self._queues[name]
            for submission in queue.waiting:  # only where this was cancelled
                submission.done.cancel()

    async def _let_join(self, queue: _ShardQueue, commit_seconds: float) -> None:
        """Wait as long as more keeps arriving for a shard that several write at once: that is cheaper than commits of their own.

        Threads that start to write at the same time arrive over some milliseconds, and a local commit takes one.
        """
        pause = min(max(commit_seconds, _SHORTEST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
        waiting = 0
        for _ in range(_PAUSES):
            if len(queue.waiting) == waiting:
                return
            waiting = len(queue.waiting)
            await asyncio.sleep(pause)

    async def _commit_together(self, shard: Shard, submissions: list[_Submission]) -> None:
        merged: SlotActions = {}
        for submission in submissions:
            for slot, actions in submission.actions.items():
                merged.setdefault(slot, []).extend(actions)
        result: Refused | BaseException
        try:
            if (contents := submissions[0].contents) is not None:
                await self._committer.make(shard, contents)
                result = {}
            else:
                result = await self._committer.commit(shard, {slot: simplified(actions) for slot, actions in merged.items()})
        except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001  # handed to everyone who waits
            result = exc
        for submission in submissions:
            if submission.done.done():
                continue  # its caller was cancelled
            if isinstance(result, BaseException):
                submission.done.set_exception(result)
            else:
                submission.done.set_result(result)
        if isinstance(result, asyncio.CancelledError):
            raise result


def _next_commit(waiting: list[_Submission]) -> tuple[list[_Submission], list[_Submission]]:
    """Return the submissions that are one commit, and the rest: new contents of a whole shard are one by themselves."""
    count = next((i for i, submission in enumerate(waiting) if submission.contents is not None), len(waiting)) or 1
    return waiting[:count], waiting[count:]


async def _all(futures: Sequence[asyncio.Future[Refused]]) -> list[Refused | BaseException]:
    """Return the result of each, or its exception. A single future, the usual case of small writes, is awaited without ``gather``."""
    if len(futures) == 1:
        try:
            return [await futures[0]]
        except Exception as exc:  # noqa: BLE001  # handed on as a result
            return [exc]
    return await asyncio.gather(*futures, return_exceptions=True)


def _outcome(result: Refused | BaseException, slot: int) -> ShardStoreError | StaleLayout | None:
    if isinstance(result, ShardStoreError | StaleLayout):
        return result
    if isinstance(result, BaseException):
        raise result
    return result.get(slot)
