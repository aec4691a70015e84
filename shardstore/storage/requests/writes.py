"""What a write is given: pieces of a body, whose number of bytes is checked, and which are regrouped without holding more than one group;
and conditions: which of them a storage honours, and the fallback if it does not.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import AsyncIterator, Sequence

from shardstore.errors import InvalidInput
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import Condition, Generation, IfAbsent, IfGeneration, Unconditional
from shardstore.model.ranges import BytesLike
from shardstore.storage.base import ConditionFailed

_WAITING_BYTES = 1 << 20  # of small pieces, until they are worth while

Body = Sequence[BytesLike] | AsyncIterator[BytesLike]


def byte_view(piece: BytesLike) -> memoryview:
    """Return ``piece`` as a flat view whose length is its number of bytes; not copied if it is contiguous."""
    view = memoryview(piece)
    if view.ndim == 1 and view.format == "B":
        return view
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())


def wrong_length(key: str, nbytes: int, given: int) -> InvalidInput:
    """Return the error of a body that is not ``nbytes`` long."""
    return InvalidInput(f"the body of {key!r} was announced as {nbytes} bytes but has {given}: nothing was stored")


def checked_views(body: Sequence[BytesLike], nbytes: int, key: str) -> list[memoryview]:
    """Return the pieces of ``body``. Raises ``InvalidInput`` if they are not ``nbytes`` in all."""
    views = [byte_view(piece) for piece in body]
    given = sum(len(view) for view in views)
    if given != nbytes:
        raise wrong_length(key, nbytes, given)
    return views


async def groups(body: Body, nbytes: int, group_bytes: int, key: str) -> AsyncIterator[list[memoryview]]:
    """Yield the pieces of ``body`` in lists of at least ``group_bytes`` (the last one excepted).

    A piece is used before the next one is asked for, so a producer may reuse its buffer: bytes that have to wait are copied. Raises
    ``InvalidInput`` once it is clear that the body is not ``nbytes`` long.
    """
    if isinstance(body, Sequence):
        views = checked_views(body, nbytes, key)
        start = held = 0
        for stop, view in enumerate(views, 1):
            held += len(view)
            if held >= group_bytes:
                yield views[start:stop]
                start, held = stop, 0
        if start < len(views):
            yield views[start:]
        return
    given = 0
    waiting = bytearray()
    async for piece in body:
        view = byte_view(piece)
        given += len(view)
        if given > nbytes:
            raise wrong_length(key, nbytes, given)
        if len(waiting) + len(view) < group_bytes:
            waiting += view
            continue
        yield [memoryview(waiting), view] if waiting else [view]
        waiting = bytearray()
    if given != nbytes:
        raise wrong_length(key, nbytes, given)
    if waiting:
        yield [memoryview(waiting)]


async def parts(body: Body, nbytes: int, part_bytes: int, key: str) -> AsyncIterator[bytes]:
    """Yield the bytes of ``body`` in pieces of exactly ``part_bytes``, except the last one; nothing of the next piece is held."""
    part = io.BytesIO()  # gives what it holds away without a copy
    async for group in groups(body, nbytes, min(part_bytes, _WAITING_BYTES), key):
        for view in group:
            taken = 0
            while taken < len(view):
                taken += part.write(view[taken : taken + part_bytes - part.tell()])
                if part.tell() == part_bytes:
                    whole, part = part.getvalue(), io.BytesIO()
                    yield whole
                    del whole
    if part.tell():
        yield part.getvalue()


async def joined(body: Body, nbytes: int, key: str) -> bytes:
    """Return the whole body as one object that cannot be changed elsewhere; not copied if it is a single ``bytes``."""
    if isinstance(body, Sequence):
        if len(body) == 1 and isinstance(body[0], bytes):
            if len(body[0]) != nbytes:
                raise wrong_length(key, nbytes, len(body[0]))
            return body[0]
        return b"".join(checked_views(body, nbytes, key))
    whole = io.BytesIO()  # gives what it holds away without a copy
    async for piece in body:
        whole.write(byte_view(piece))
        if whole.tell() > nbytes:
            raise wrong_length(key, nbytes, whole.tell())
    if whole.tell() != nbytes:
        raise wrong_length(key, nbytes, whole.tell())
    return whole.getvalue()


def honours(condition: Condition, capabilities: Capabilities) -> bool:
    """Return whether a write on ``condition`` is atomic in a storage of these capabilities."""
    match condition:
        case IfAbsent():
            return capabilities.create_if_absent
        case IfGeneration():
            return capabilities.compare_and_swap
        case Unconditional():
            return True


def holds(condition: Condition, found: Generation | None) -> bool:
    """Return whether ``condition`` holds for the version that was ``found``; ``None``: no object."""
    match condition:
        case IfAbsent():
            return found is None
        case IfGeneration(generation):
            return found == generation
        case Unconditional():
            return True


def failed(key: str, url: str) -> ConditionFailed:
    """Return the error of a write whose condition does not hold."""
    return ConditionFailed(f"{key!r} in {url} is not what the write's condition asks for")


def warn_not_honoured(endpoint: str, url: str) -> None:
    """Warn that conditions are only checked first: a change before the check is refused, a change between check and write is lost."""
    warnings.warn(
        f"{endpoint} does not honour conditional writes: writers that share an object of {url} can lose "
        "each other's updates. Let one writer at a time write there",
        RuntimeWarning,
        stacklevel=3,
    )


def check_deletion(key: str, condition: Condition) -> None:
    """Raise ``InvalidInput`` if something is to be deleted on the condition that it does not exist."""
    if isinstance(condition, IfAbsent):
        raise InvalidInput(f"deleting {key!r} on condition that it is absent makes no sense")
