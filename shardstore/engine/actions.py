"""The actions that updates carry out on values, and their checks against the size of a chunk.

If the codecs of an array give all chunks one length, every reader takes a chunk of another length for damaged. So none is stored, and an
update with all bytes needs no read.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shardstore.engine.metadata.hierarchy import ChunkTarget
from shardstore.engine.metadata.translation import OwnShards
from shardstore.errors import Conflict, InvalidInput
from shardstore.format.json_text import parse_object
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation
from shardstore.model.ranges import BytesLike
from shardstore.storage.requests.writes import holds
from shardstore.threads import in_threads


@dataclass(frozen=True, slots=True)
class SetValue:
    """The chunk becomes these bytes."""

    data: BytesLike
    own_shards: OwnShards = OwnShards.REFUSED
    """The shards that an array's document asks for."""
    seen_shape: tuple[int, ...] | None = None
    """Of an array's document: the shape that the client has seen, on which what it writes is built; ``None``: it may be any."""

    def check_seen(self, key: str, shown: BytesLike | None) -> None:
        """Check that a document still has the shape that the client has seen.

        Raises:
            Conflict: it has another one.
        """
        if self.seen_shape is None or shown is None:
            return
        shape = (parse_object(shown) or {}).get("shape")
        if isinstance(shape, list) and tuple(shape) != self.seen_shape:
            raise Conflict(
                f"{key!r} is not written: another client has made the array's shape {tuple(shape)} since it was opened here with "
                f"{self.seen_shape}, so this would cut off, or write over, what that client has added. Open the array again, and repeat "
                "it. Several clients that append at once need shardstore.append"
            )


@dataclass(slots=True)
class Creation:
    """The outcome of a ``SetIfMissing``: whether it created the value; to be believed once the update has ended without an error."""

    happened: bool = False


@dataclass(frozen=True, slots=True)
class SetIfMissing:
    """The chunk becomes these bytes if it does not exist; ``creation``, if given, notes whether that was so."""

    data: BytesLike
    creation: Creation | None = None


@dataclass(frozen=True, slots=True)
class Patch:
    """Bytes from ``start`` of the chunk become these; the chunk grows if they reach past its end.

    ``at_end``: on condition that the chunk ends at ``start``. ``may_be_whole``: the bytes may be all of the chunk; ``with_whole`` finds
    out, without reading it.
    """

    start: int
    data: BytesLike
    at_end: bool = False
    may_be_whole: bool = False


@dataclass(frozen=True, slots=True)
class EraseValue:
    """The chunk ceases to exist."""


@dataclass(frozen=True, slots=True)
class Revise:
    """The value becomes what ``compute`` makes of it; ``None`` stands for a value that does not exist.

    Called again with a newer value after a lost race, so it must not do anything else. What it raises, if it is a
    ``ShardStoreError``, is the error of the update. Of a chunk it is called in any thread.
    """

    compute: Callable[[bytes | None], bytes | None]
    nbytes: int = 0
    """The bytes that it decodes and encodes: many are worked on by threads."""


@dataclass(slots=True)
class Swapped:
    """The outcome of a ``Swap``; to be believed once the update has ended without an error."""

    happened: bool = False
    """True if its condition held. If not, it changed nothing."""
    existed: bool = False
    """True if there was a value."""
    lasted: bool = False
    """True if no later action of the same commit changed the value again."""
    version: Generation | None = None
    """The version of the value that it stored, if that lasted."""


@dataclass(frozen=True, slots=True)
class Swap:
    """The value becomes these bytes, or ceases to exist (``None``), on condition of the version that is there."""

    data: BytesLike | None
    condition: Condition
    outcome: Swapped

    def apply(self, version: Generation | None) -> bool:
        """Note in ``outcome``, and return, whether it is carried out on a value of this version; ``None``: there is no value."""
        self.outcome.existed = version is not None
        self.outcome.version = None
        self.outcome.happened = self.outcome.lasted = holds(self.condition, version)
        return self.outcome.happened


Action = SetValue | SetIfMissing | Patch | EraseValue | Revise | Swap

ERASE = EraseValue()

_NEW = Generation("new")  # the version of what an action of this commit has made


def content_version(data: BytesLike, modified: float | None = None) -> Generation:
    """Return a version that depends on the bytes of the value alone; ``modified`` says when they were stored."""
    return Generation(hashlib.blake2b(data, digest_size=16).hexdigest(), modified)


def revising(swap: Swap) -> Callable[[bytes | None], bytes | None]:
    """Return, for ``Revise``, a swap of a value that has the version of its content."""

    def compute(old: bytes | None) -> bytes | None:
        if not swap.apply(None if old is None else content_version(old)):
            return old
        swap.outcome.version = None if swap.data is None else content_version(swap.data)
        return None if swap.data is None else bytes(swap.data)

    return compute


def apply_actions(
    actions: Sequence[Action], old: BytesLike | None, key: Callable[[], str], version: Generation | None = None
) -> BytesLike | None:
    """Return what a value becomes by ``actions`` in their order; ``None``: it does not exist.

    ``version`` is that of ``old``, and of a value whose bytes were not needed. ``key`` is called for the text of an error only.

    Raises:
        InvalidInput: a patch starts behind the end of the value.
    """
    value = old
    last: Swapped | None = None
    for action in actions:
        if isinstance(action, Swap):
            if not action.apply(version):
                continue
            if last is not None:
                last.lasted = False
            last, value = action.outcome, action.data
            version = None if value is None else _NEW
            continue
        if last is not None:
            last.lasted, last = False, None
        value = _apply(action, value, key)
        version = None if value is None else _NEW
    return value


def _apply(
    action: SetValue | SetIfMissing | Patch | EraseValue | Revise, value: BytesLike | None, key: Callable[[], str]
) -> BytesLike | None:
    match action:
        case SetValue(data):
            return data
        case SetIfMissing(data, creation):
            if creation is not None:
                creation.happened = value is None  # set again where a conflict makes this be planned again
            return data if value is None else value
        case EraseValue():
            return None
        case Revise(compute):
            return compute(None if value is None else bytes(value))
        case Patch(start, data, at_end):
            before = b"" if value is None else bytes(value)
            if at_end and start != len(before):
                raise InvalidInput(f"{key()!r} had {start} bytes when it was opened to append to it, and has {len(before)} now")
            if not 0 <= start <= len(before):
                raise InvalidInput(
                    f"bytes of {key()!r} cannot be set from {start}: it has {len(before)} bytes"
                    + (" because it does not exist" if value is None else "")
                )
            return before[:start] + bytes(data) + before[start + len(data) :]


async def applied(actions: Sequence[Action], old: BytesLike | None, key: str) -> BytesLike | None:
    """Return what ``apply_actions`` does, which a thread finds out where there is much to do."""
    (value,) = await in_threads(1, work_nbytes(actions), lambda start, end: apply_actions(actions, old, lambda: key))
    return value


def work_nbytes(actions: Iterable[Action]) -> int:
    """Return how many bytes actions decode and encode."""
    return sum(action.nbytes for action in actions if isinstance(action, Revise))


def needs_old_value(actions: Sequence[Action]) -> bool:
    """Return whether the outcome depends on the bytes that are stored."""
    if not isinstance(actions[0], Swap):
        return isinstance(actions[0], SetIfMissing | Patch | Revise)
    first = next((action for action in actions if not isinstance(action, Swap) or action.condition == UNCONDITIONAL), None)
    return isinstance(first, SetIfMissing | Patch | Revise)


def has_swaps(actions: Sequence[Action]) -> bool:
    return any(isinstance(action, Swap) for action in actions)


def needs_old_version(actions: Sequence[Action]) -> bool:
    """Return whether the outcome depends on the version that is stored, or a caller asks whether there is one."""
    return any(isinstance(action, Swap) and (action.condition != UNCONDITIONAL or action.data is None) for action in actions)


def changes_nothing(actions: Sequence[Action]) -> bool:
    """Return whether all that was applied were swaps whose conditions did not hold."""
    return all(isinstance(action, Swap) and not action.outcome.happened for action in actions)


def reports_outcome(actions: Sequence[Action]) -> bool:
    """Return whether a caller asks what an action found, even if a later one makes it irrelevant."""
    return any(isinstance(action, Swap) or (isinstance(action, SetIfMissing) and action.creation is not None) for action in actions)


def simplified(actions: list[Action]) -> list[Action]:
    """Return the actions without those that a later ``SetValue`` or ``EraseValue`` makes irrelevant."""
    if len(actions) == 1 or reports_outcome(actions):
        return actions
    last = max((i for i, a in enumerate(actions) if isinstance(a, SetValue | EraseValue)), default=0)
    return actions[last:]


# -- against the size of a chunk ---------------------------------------------------------------------------------------


def refusal_of_update(target: ChunkTarget, action: Action) -> InvalidInput | None:
    """Return the error if an update would store a chunk of a wrong length, whatever is stored; else ``None``."""
    nbytes = target.layout.encoded_chunk_nbytes
    if nbytes is None:
        return None
    match action:
        case SetValue(data) | SetIfMissing(data) | Swap(data):
            return None if data is None or len(data) == nbytes else refusal(target.key, data, nbytes)
        case Patch(start, data) if start + len(data) > nbytes:
            return InvalidInput(
                f"bytes [{start}, {start + len(data)}) of chunk {target.key!r} are not written: the array's codecs make {nbytes} bytes of "
                "each chunk"
            )
        case _:
            return None


def refusal(key: str, data: BytesLike, nbytes: int) -> InvalidInput:
    """Return the error of bytes that are not all of a chunk; ``nbytes`` is the length of every chunk."""
    return InvalidInput(
        f"chunk {key!r} is not written: it would have {len(data)} bytes, and the array's codecs make {nbytes} of each chunk. Give all "
        f"{nbytes} bytes of it at once"
    )


def with_whole(updates: list[tuple[ChunkTarget, Action]]) -> list[tuple[ChunkTarget, Action]]:
    """Return the updates, with patches that give all bytes of a chunk as ``SetValue``, which reads nothing.

    A patch gives all bytes if every chunk of the array has its size, or, as the draft has it, if every chunk of the shard is given from its
    first byte. Specification: sharding storage transformer 1.0 (draft), ``set_partial_values``.
    """
    if not any(isinstance(action, Patch) and action.may_be_whole for _, action in updates):
        return updates
    given = _given_from_start(updates)

    def whole(target: ChunkTarget, action: Action) -> Action:
        if not (isinstance(action, Patch) and action.may_be_whole and target.slot in given.get(target.shard_key, ())):
            return action
        nbytes = target.layout.encoded_chunk_nbytes
        is_shard_given = len(given[target.shard_key]) == target.layout.grid.nslots
        is_whole = is_shard_given if nbytes is None else len(action.data) >= nbytes
        return SetValue(action.data) if is_whole else action

    return [(target, whole(target, action)) for target, action in updates]


def _given_from_start(updates: list[tuple[ChunkTarget, Action]]) -> dict[str, set[int]]:
    """Return, by key of shard, the slots whose only update gives bytes from the first one on."""
    counts = Counter((target.shard_key, target.slot) for target, _ in updates)
    given: dict[str, set[int]] = {}
    for target, action in updates:
        is_first = isinstance(action, Patch) and action.may_be_whole and action.start == 0 and len(action.data) > 0
        if counts[target.shard_key, target.slot] == 1 and (is_first or isinstance(action, SetValue)):
            given.setdefault(target.shard_key, set()).add(target.slot)
    return given
