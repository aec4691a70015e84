"""A storage that fails on purpose, at the n-th request, in the way that a test asks for, and a sweep over every request.

The kind of failure is a value (``Fail``, ``DropReply``, …), its place is a ``Fault``. ``FaultStorage`` is a storage like any other:
``shardstore.open`` takes it in the place of a URL.

A plan of frozen values, and the order in which requests arrive, decide everything: the same plan fails in the same place again.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

from shardstore.errors import InvalidInput, ShardStoreError, StorageError, WriteOutcomeUnknown
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation, IfGeneration, Unconditional
from shardstore.model.ranges import ByteRequest, BytesLike, Segment
from shardstore.storage.base import CHANGED, ConditionFailed, DirListing, Failed, Found, ObjectInfo, Read, ReadOutcome, Storage
from shardstore.storage.requests.writes import Body, byte_view
from shardstore.storage.wrappers import KEYS_A_REQUEST, Sleep, StorageWrapper

__all__ = [
    "Cancel",
    "Change",
    "Delay",
    "DropReply",
    "Effect",
    "Fail",
    "Fault",
    "FaultStorage",
    "Kill",
    "Refuse",
    "Request",
    "TimeOut",
    "Truncate",
    "at_every_request",
]

_CHANGING = frozenset({"write", "compose", "copy", "rename_prefix", "delete", "delete_many"})


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fail:
    """The request is not carried out; its caller gets a ``StorageError``."""


@dataclass(frozen=True, slots=True)
class TimeOut:
    """The request fails as with ``Fail``, after ``seconds``."""

    seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Delay:
    """The request is carried out after ``seconds``, and answered."""

    seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class DropReply:
    """The request is carried out, but its caller gets no answer.

    A change ends in ``WriteOutcomeUnknown``, as if a storage could not confirm it by reading back; a query ends in a
    ``StorageError``.
    """


@dataclass(frozen=True, slots=True)
class Truncate:
    """The connection breaks in the middle.

    A range that is read has only its first ``nbytes`` bytes, which no sound storage returns. The body of a write ends after as many,
    which must leave the old object; its caller gets a ``StorageError``. A listing raises one after its first object, and so does a
    ``delete_many`` after its first key.
    """

    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """A read is answered by ``Changed``."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """A conditional write or delete raises ``ConditionFailed`` though its condition may hold."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """The request raises ``asyncio.CancelledError``, before it is carried out or ``after``."""

    after: bool = False


@dataclass(frozen=True, slots=True)
class Kill:
    """This process ends by SIGKILL, before the request is carried out or ``after``."""

    after: bool = False


Effect = Fail | TimeOut | Delay | DropReply | Truncate | Change | Refuse | Cancel | Kill
"""What happens to a request that a fault strikes."""


# -- where it goes wrong -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as ``TraceStorage`` and the engine count them: for a read, one range."""

    operation: str
    """The operation: ``read``, ``write``, ``compose``, ``copy``, ``rename_prefix``, ``delete``, ``delete_many``, ``list``, ``list_dir`` or
    ``stat``.
    """
    key: str
    """The key or prefix; for ``delete_many`` the first key, for ``copy`` and ``rename_prefix`` the target."""
    range: ByteRequest | None = None
    """The range as it was asked for; only for reads."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: ``effect`` strikes the request number ``at``, counted from 1 over those that match. Where it has no meaning, nothing
    happens.
    """

    at: int
    effect: Effect
    operations: frozenset[str] = frozenset()
    """The operations whose requests match; empty: all operations."""
    keys: str = "*"
    """The pattern of ``fnmatch`` for the keys of requests that match; a ``*`` also matches ``/``."""
    times: int | None = 1
    """The number of matching requests in a row that it strikes; ``None``: all from ``at`` on."""

    def matches(self, request: Request) -> bool:
        """Return whether a request is of the operations and keys that are struck."""
        return (not self.operations or request.operation in self.operations) and fnmatchcase(request.key, self.keys)

    def strikes(self, number: int) -> bool:
        """Return whether the fault strikes the matching request of this number."""
        return self.at <= number and (self.times is None or number < self.at + self.times)


class FaultStorage(StorageWrapper):
    """Forwards to ``inner``, except requests that ``faults`` strike; if several strike one, the first fault counts.

    Without faults it only counts: ``requests`` holds all requests, ``struck`` those that were struck. A ``rename_prefix`` counts even
    for kinds that cannot do it, which shows only afterwards. ``sleep`` is called for ``TimeOut`` and ``Delay``. A pickle has the same
    faults, and has counted nothing.
    """

    def __init__(self, inner: Storage, faults: Sequence[Fault] = (), sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(inner)
        self.sleep = sleep
        self.plan(*faults)

    def __reduce__(self) -> tuple[type[FaultStorage], tuple[Storage, tuple[Fault, ...], Sleep]]:
        return type(self), (self.inner, self.faults, self.sleep)

    def __repr__(self) -> str:
        return f"FaultStorage({self.inner!r}, {self.faults!r})"

    def plan(self, *faults: Fault) -> None:
        """Replace the planned faults by these; counting starts again."""
        self.faults = faults
        self.requests: list[Request] = []
        self.struck: list[tuple[Fault, Request]] = []
        self._matched = [0] * len(faults)

    # -- one request ---------------------------------------------------------------------------------------------------

    def _arrived(self, operation: str, key: str, asked: ByteRequest | None = None) -> _Struck:
        """Count a request; return the effect on it."""
        request = Request(operation, key, asked)
        self.requests.append(request)
        effect: Effect | None = None
        for i, fault in enumerate(self.faults):
            if not fault.matches(request):
                continue
            self._matched[i] += 1
            if effect is None and fault.strikes(self._matched[i]):
                effect = fault.effect
                self.struck.append((fault, request))
        return _Struck(request, effect, f"{operation} of {key!r} in {self.url}")

    async def _before(self, struck: _Struck) -> None:
        """Apply the effect before the request is carried out, or instead of that.

        Raises:
            StorageError: the request is not carried out.
        """
        match struck.effect:
            case Fail():
                raise StorageError(f"{struck.what}: planned to fail")
            case TimeOut(seconds):
                await self.sleep(seconds)
                raise StorageError(f"{struck.what}: timed out after {seconds} s, as planned")
            case Delay(seconds):
                await self.sleep(seconds)
            case Cancel(after=False):
                raise asyncio.CancelledError(struck.what)
            case Kill(after=False):
                os.kill(os.getpid(), signal.SIGKILL)

    def _after(self, struck: _Struck) -> None:
        """Apply the effect after the request was carried out.

        Raises:
            WriteOutcomeUnknown: for a change.
            StorageError: for a query.
        """
        match struck.effect:
            case DropReply():
                error: type[ShardStoreError] = WriteOutcomeUnknown if struck.request.operation in _CHANGING else StorageError
                raise error(f"{struck.what}: its answer was dropped, as planned")
            case Cancel(after=True):
                raise asyncio.CancelledError(struck.what)
            case Kill(after=True):
                os.kill(os.getpid(), signal.SIGKILL)

    @asynccontextmanager
    async def _request(self, operation: str, key: str, condition: Condition = UNCONDITIONAL) -> AsyncIterator[_Struck]:
        """Apply the effect on a request that the block carries out."""
        struck = self._arrived(operation, key)
        await self._before(struck)
        if isinstance(struck.effect, Refuse) and not isinstance(condition, Unconditional):
            raise ConditionFailed(f"{struck.what}: planned to be refused")
        yield struck
        self._after(struck)

    # -- the protocol --------------------------------------------------------------------------------------------------

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        struck = [[self._arrived("read", read.key, asked) for asked in read.ranges or (None,)] for read in reads]
        outcomes: dict[int, ReadOutcome] = {}
        for i, of_read in enumerate(struck):
            try:
                for one in of_read:
                    await self._before(one)
            except StorageError as exc:
                outcomes[i] = Failed(exc)
        asked = [i for i in range(len(reads)) if i not in outcomes]
        answers = await self.inner.read([reads[i] for i in asked]) if asked else []
        for i, answer in zip(asked, answers, strict=True):
            outcomes[i] = self._answer(struck[i], answer)
        return [outcomes[i] for i in range(len(reads))]

    def _answer(self, struck: Sequence[_Struck], outcome: ReadOutcome) -> ReadOutcome:
        """Return the answer to one read with the effect applied."""
        for i, one in enumerate(struck):
            try:
                self._after(one)
            except StorageError as exc:
                return Failed(exc)
            if isinstance(one.effect, Change):
                return CHANGED
            if isinstance(one.effect, Truncate) and isinstance(outcome, Found) and outcome.buffers:
                buffers = list(outcome.buffers)
                buffers[i] = buffers[i][: one.effect.nbytes]
                outcome = Found(outcome.generation, outcome.nbytes, tuple(buffers))
        return outcome

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        async with self._request("write", key, condition) as struck:
            if isinstance(struck.effect, Truncate) and struck.effect.nbytes < nbytes:
                try:
                    return await self.inner.write(key, _cut(body, struck.effect.nbytes), nbytes, condition)
                except InvalidInput as exc:
                    raise StorageError(f"{struck.what}: its body broke off, as planned") from exc
            return await self.inner.write(key, body, nbytes, condition)

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        async with self._request("compose", key, condition) as struck:
            if isinstance(struck.effect, Truncate):
                raise StorageError(f"{struck.what}: its body broke off, as planned")
            return await self.inner.compose(key, source, segments, condition)

    async def copy(self, source: str, target: str) -> Generation | None:
        async with self._request("copy", target):
            return await self.inner.copy(source, target)

    async def rename_prefix(self, source: str, target: str) -> bool:
        struck = self._arrived("rename_prefix", target)
        await self._before(struck)
        renamed = await self.inner.rename_prefix(source, target)
        if renamed:  # a kind that cannot rename makes no request: there is no reply to drop
            self._after(struck)
        return renamed

    async def delete(self, key: str, condition: Condition) -> bool:
        async with self._request("delete", key, condition if isinstance(condition, IfGeneration) else UNCONDITIONAL):
            return await self.inner.delete(key, condition)

    async def delete_many(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), KEYS_A_REQUEST):
            some = keys[start : start + KEYS_A_REQUEST]
            async with self._request("delete_many", some[0]) as struck:
                if isinstance(struck.effect, Truncate):
                    await self.inner.delete_many(some[:1])
                    raise StorageError(f"{struck.what}: it broke off, as planned")
                await self.inner.delete_many(some)

    async def stat(self, key: str) -> ObjectInfo | None:
        async with self._request("stat", key):
            return await self.inner.stat(key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        struck = self._arrived("list", prefix)
        await self._before(struck)
        listed = 0
        async for info in self.inner.list(prefix):
            if listed % KEYS_A_REQUEST == 0:
                if listed:
                    struck = self._arrived("list", prefix)
                    await self._before(struck)
                self._after(struck)
            listed += 1
            yield info
            if isinstance(struck.effect, Truncate):
                raise StorageError(f"{struck.what}: it broke off, as planned")
        if not listed:
            self._after(struck)

    async def list_dir(self, prefix: str) -> DirListing:
        async with self._request("list_dir", prefix):
            return await self.inner.list_dir(prefix)


@dataclass(frozen=True, slots=True)
class _Struck:
    """A request that arrived, the effect that strikes it, and the words for both."""

    request: Request
    effect: Effect | None
    what: str


def _cut(body: Body, nbytes: int) -> Body:
    """Return the first ``nbytes`` of ``body``."""
    if not isinstance(body, Sequence):
        return _cut_pieces(body, nbytes)
    kept: list[BytesLike] = []
    for piece in body:
        view = byte_view(piece)[:nbytes]
        kept.append(view)
        nbytes -= len(view)
    return kept


async def _cut_pieces(body: AsyncIterator[BytesLike], nbytes: int) -> AsyncIterator[BytesLike]:
    async for piece in body:
        view = byte_view(piece)[:nbytes]
        nbytes -= len(view)
        yield view
        if not nbytes:
            return


def at_every_request(effect: Effect, attempt: Callable[[Fault], bool], *, every: int = 1) -> int:
    """Call ``attempt`` with ``effect`` at the first request, the second, and so on, or at one in ``every`` of them; return how many were
    struck.

    ``attempt`` starts from the same state each time, runs the operation over a ``FaultStorage`` with the given fault, checks the
    outcome, and returns whether the fault struck anything: the sweep ends if it did not.
    """
    for struck, at in enumerate(itertools.count(1, every)):
        if not attempt(Fault(at, effect)):
            return struck
    raise AssertionError("counting never ends")
