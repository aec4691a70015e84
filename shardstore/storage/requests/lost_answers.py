"""Find out the outcome of a request that changes an object, after a lost answer or a refusal: one rule for all object stores.

A proxy, or a client's own retry, can send a conditional write a second time after the server carried out the first; it then fails
against its own success. So every write carries an id in the object's user metadata, and after any refusal or lost answer a look shows
whose object is there:

    ours                                        it was stored
    what the condition asks for                 nothing was stored so far: the same request is sent again
    something else, and there is a condition    it cannot be stored any more, or was and has been replaced: ``ConditionFailed``
    something else, and there is none           sent again

Sending again is safe: if both requests are carried out after all, the condition refuses the second. ``WriteOutcomeUnknown``
is left for answers that get lost again and again, and for objects that cannot be looked at.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from shardstore.errors import NO_SUCH_BUCKET, StorageError, WriteOutcomeUnknown
from shardstore.model.generation import Condition, Generation, IfGeneration, Unconditional
from shardstore.storage.requests.outcomes import Head, RequestFailed
from shardstore.storage.requests.writes import failed, holds

logger = logging.getLogger(__name__)

_SENDS = 4  # above the retries of the client library
_FIRST_WAIT_SECONDS = 0.2

Look = Callable[[str], Awaitable[Head | None]]


class Failure(enum.Enum):
    """The meaning of a failed request: what it says about the write."""

    REFUSED = "nothing was stored: the condition does not hold"
    BUSY = "nothing was stored: another request was under way, or there were too many"
    LOST = "it may have been stored"
    FINAL = "nothing was stored, and sending it again would not help"


async def wait_to_resend(sends: int) -> None:
    """Wait before a request is sent again that was sent so many times."""
    await asyncio.sleep(random.uniform(0, _FIRST_WAIT_SECONDS * 2**sends))


class ObjectWrite:
    """One write of one object: its id, its condition, and the judgement of its failures. Kinds of storage subclass it."""

    def __init__(self, key: str, url: str, condition: Condition, look: Look) -> None:
        self.key = key
        self.condition = condition
        self.write_id = uuid.uuid4().hex
        self._url = url
        self._look_up = look
        self._sends = 1

    def failure(self, exc: RequestFailed) -> Failure:
        """Return what the status and code of a failed request mean."""
        if exc.code == NO_SUCH_BUCKET:
            return Failure.FINAL
        if exc.is_busy:
            return Failure.BUSY
        if exc.status in (404, 412) and not isinstance(self.condition, Unconditional):  # 404: there is no object to match
            return Failure.REFUSED
        return Failure.LOST if exc.is_lost else Failure.FINAL

    async def stored(self, answer: Any) -> Generation:
        """Return the version that this write made, from the answer to its request, of whatever type this kind of storage has."""
        raise NotImplementedError

    async def carry_out(self, send: Callable[[], Awaitable[Any]]) -> Generation:
        """Store by ``send``, which makes the request and returns the answer, as often as ``judge`` says; return the new version.

        Raises as ``judge`` does.
        """
        while True:
            try:
                return await self.stored(await send())
            except RequestFailed as exc:
                if (stored := await self.judge(exc)) is not None:
                    return stored

    def has_other_etag_syntax(self, exc: RequestFailed) -> bool:
        """Return whether there is another way to write the condition, which the next request uses."""
        return False

    @property
    def etag_syntax_confirmed(self) -> bool:
        """True if the server is known to match versions as this client writes them."""
        return False

    @property
    def versions_come_again(self) -> bool:
        """True if an object that is changed, and changed back to equal bytes, has its old version again."""
        return False

    def busy_error(self, exc: RequestFailed) -> StorageError:
        """Return the error for a server that stays busy."""
        return exc

    async def unnamed_version(self) -> Generation:
        """Return the version that this write made, after a success that does not name it: something before the server may have answered,
        with nothing stored.

        Raises:
            RequestFailed: the object does not show it either: as if the answer had been lost.
            WriteOutcomeUnknown: it cannot be looked up.
        """
        lost = RequestFailed(f"writing {self.key!r}: the server's answer names no version, and the object is not this write's")
        if (stored := await self.stored_in_spite_of(lost)) is not None:
            return stored
        raise lost

    async def stored_in_spite_of(self, exc: RequestFailed) -> Generation | None:
        """Return the version that is there now, if it is this write's, after the failure ``exc``.

        Raises:
            WriteOutcomeUnknown: it cannot be looked up.
        """
        head = await self._look(exc)
        return head.generation if head is not None and head.write_id == self.write_id else None

    async def judge(self, exc: RequestFailed, *, can_resend: bool = True) -> Generation | None:
        """Return the version that was stored in spite of ``exc``; ``None``: send the same request again now.

        Without ``can_resend`` the write has to be made again. A busy server then counts as a failed condition; after a lost answer
        nothing can have been stored yet.

        Raises:
            ConditionFailed: the condition does not hold, and the object is not ours. (It looks the same if ours was stored and then
                replaced by another writer: a caller that writes again comes after that writer.)
            StorageError: refused; nothing was stored.
            WriteOutcomeUnknown: it may have been stored.
        """
        failure = self.failure(exc)
        if failure is Failure.FINAL or (failure is Failure.LOST and not can_resend):
            raise exc
        head = await self._look(exc)
        if head is not None and head.write_id == self.write_id:
            logger.info("the write of %r was stored although its answer was: %s", self.key, exc)
            return head.generation
        found = None if head is None else head.generation
        is_mismatch = failure is Failure.REFUSED and isinstance(self.condition, IfGeneration)
        # Asked even if the object did change: under contention it always has, and the next write is to try the other way.
        has_other_syntax = is_mismatch and self.has_other_etag_syntax(exc)
        if is_mismatch and holds(self.condition, found):
            if has_other_syntax:
                return None
            if self.versions_come_again and (self.etag_syntax_confirmed or not can_resend):
                raise failed(self.key, self._url) from exc  # changed, and changed back before the look
            if not self.versions_come_again or self._sends >= _SENDS:
                raise StorageError(f"the server does not accept the version that it gave for {self.key!r} in {self._url}: {exc}") from exc
            await wait_to_resend(self._sends)  # either that, or the server cannot match: then it refuses each time
            self._sends += 1
            return None
        is_conditional = not isinstance(self.condition, Unconditional)
        if failure is Failure.REFUSED or not holds(self.condition, found) or (is_conditional and not can_resend):
            raise failed(self.key, self._url) from exc
        if self._sends >= _SENDS or not can_resend:
            raise self._exhausted(exc, failure) from exc
        await wait_to_resend(self._sends)
        self._sends += 1
        return None

    async def _look(self, exc: RequestFailed) -> Head | None:
        try:
            return await self._look_up(self.key)
        except StorageError as look_error:
            raise WriteOutcomeUnknown(
                f"writing {self.key!r} to {self._url}: the answer was lost or was a refusal, and {self.key!r} cannot be looked up to see "
                f"whether it was stored: {look_error}. Read it, and write it again if that is needed. {exc}"
            ) from exc

    def _exhausted(self, exc: RequestFailed, failure: Failure) -> StorageError | WriteOutcomeUnknown:
        if failure is Failure.BUSY:
            return self.busy_error(exc)
        return WriteOutcomeUnknown(
            f"the answers to writing {self.key!r} to {self._url} were lost {self._sends} times, and what is there now is not this "
            f"write: it may still be carried out, or have been replaced. Read it, and write it again if that is needed. {exc}"
        )


async def delete_object(send: Callable[[], Awaitable[bool]], look: Look, key: str, url: str, condition: Condition) -> bool:
    """Delete an object by ``send``, which returns whether there was one, or raises ``RequestFailed``; return whether there was one.

    Raises:
        ConditionFailed: another version is there.
        StorageError: refused; nothing was deleted.
        WriteOutcomeUnknown: it may have been deleted.
    """
    for sends in range(1, _SENDS + 1):
        try:
            return await send()
        except RequestFailed as exc:
            error = exc
        is_refused = error.is_absent or error.status == 412
        if not (is_refused or error.is_lost or error.is_busy):
            raise error
        try:
            head = await look(key)
        except StorageError as look_error:
            raise WriteOutcomeUnknown(
                f"deleting {key!r} from {url}: the answer was lost or was a refusal, and {key!r} cannot be looked up to see whether it "
                f"was deleted: {look_error}. {error}"
            ) from error
        if head is None:
            return True  # deleted by this request, perhaps sent twice, or by another client
        if not holds(condition, head.generation):
            raise failed(key, url) from error
        if is_refused:  # although that version is there: changed, and changed back to equal bytes, before the look
            raise failed(key, url) from error
        if sends < _SENDS:
            await wait_to_resend(sends)
    raise WriteOutcomeUnknown(
        f"the answers to deleting {key!r} from {url} were lost {_SENDS} times; it was still there at the last look: it may yet be "
        f"deleted. Delete it again. {error}"
    ) from error
