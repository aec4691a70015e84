"""What an update does to a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardstore.errors import InvalidInput
from shardstore.model.ranges import BytesLike


@dataclass(frozen=True, slots=True)
class SetValue:
    """The chunk becomes these bytes."""

    data: BytesLike


@dataclass(slots=True)
class Creation:
    """Whether a ``SetIfMissing`` found nothing in its way; to be believed once the update has ended without an error."""

    happened: bool = False


@dataclass(frozen=True, slots=True)
class SetIfMissing:
    """The chunk becomes these bytes where it does not exist; ``creation``, where given, tells whether that was so."""

    data: BytesLike
    creation: Creation | None = None


@dataclass(frozen=True, slots=True)
class Patch:
    """Bytes from ``start`` of the chunk become these; the chunk grows where they reach past its end.

    ``at_end``: on condition that the chunk ends at ``start``.
    """

    start: int
    data: BytesLike
    at_end: bool = False


@dataclass(frozen=True, slots=True)
class EraseValue:
    """The chunk ceases to exist."""


@dataclass(frozen=True, slots=True)
class Revise:
    """The value becomes what ``compute`` makes of it; ``None`` stands for a value that does not exist.

    Called again with a newer value where another client was faster, so it must not do anything else. What it raises, if it is a
    ``ShardStoreError``, is the error of the update.
    """

    compute: Callable[[bytes | None], bytes | None]


Action = SetValue | SetIfMissing | Patch | EraseValue | Revise

ERASE = EraseValue()


def apply_actions(actions: Sequence[Action], old: BytesLike | None, key: str) -> BytesLike | None:
    """What a value becomes by ``actions`` in their order; ``None``: it does not exist.

    Raises:
        InvalidInput: a patch starts behind the end of the value.
    """
    value = old
    for action in actions:
        match action:
            case SetValue(data):
                value = data
            case SetIfMissing(data, creation):
                if creation is not None:
                    creation.happened = value is None  # set again where a conflict makes this be planned again
                value = data if value is None else value
            case EraseValue():
                value = None
            case Revise(compute):
                value = compute(None if value is None else bytes(value))
            case Patch(start, data, at_end):
                before = b"" if value is None else bytes(value)
                if at_end and start != len(before):
                    raise InvalidInput(f"{key!r} had {start} bytes when it was opened to append to it, and has {len(before)} now")
                if not 0 <= start <= len(before):
                    raise InvalidInput(
                        f"bytes of {key!r} cannot be set from {start}: it has {len(before)} bytes"
                        + (" because it does not exist" if value is None else "")
                    )
                value = before[:start] + bytes(data) + before[start + len(data) :]
    return value


def needs_old_value(actions: Sequence[Action]) -> bool:
    """Whether the outcome depends on what is stored."""
    return isinstance(actions[0], SetIfMissing | Patch | Revise)


def tells_creation(actions: Sequence[Action]) -> bool:
    """Whether someone wants to know what an action found, even if a later one makes it irrelevant."""
    return any(isinstance(action, SetIfMissing) and action.creation is not None for action in actions)


def simplified(actions: list[Action]) -> list[Action]:
    """Without what a later ``SetValue`` or ``EraseValue`` makes irrelevant."""
    if tells_creation(actions):
        return actions
    last = max((i for i, a in enumerate(actions) if isinstance(a, SetValue | EraseValue)), default=0)
    return actions[last:]
