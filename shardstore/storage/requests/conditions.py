"""Conditions of writes: which of them a storage honours, and the fallback if it does not."""

from __future__ import annotations

import warnings

from shardstore.errors import InvalidInput
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import Condition, Generation, IfAbsent, IfGeneration, Unconditional
from shardstore.storage.base import ConditionFailed


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
