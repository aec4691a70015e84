"""Turn an exception into one line on stderr and a meaningful exit code."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from shardstore.errors import (
    AccessDenied,
    Corruption,
    Incomplete,
    InvalidInput,
    NotFound,
    ShardStoreError,
    Unsupported,
)


class ExitCode(IntEnum):
    """The meanings of a command's exit codes, for scripts."""

    OK = 0
    FAILED = 1
    INVALID = 2
    NOT_FOUND = 3
    DENIED = 4
    CORRUPT = 5
    CONFLICT = 6
    UNSUPPORTED = 7
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "the storage failed, or something else went wrong",
    ExitCode.INVALID: "wrong usage, or input that cannot be right; nothing was changed",
    ExitCode.NOT_FOUND: "there is no such key, node, bucket or file",
    ExitCode.DENIED: "access was denied",
    ExitCode.CORRUPT: "damaged data was found",
    ExitCode.CONFLICT: "the target exists, or another writer changed it first",
    ExitCode.UNSUPPORTED: "the storage or this version cannot do that",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.BROKEN_PIPE: "the reader of the output has stopped reading",
}

_BY_CLASS: tuple[tuple[type[Exception], ExitCode], ...] = (
    (NotFound, ExitCode.NOT_FOUND),
    (AccessDenied, ExitCode.DENIED),
    (InvalidInput, ExitCode.INVALID),
    (Corruption, ExitCode.CORRUPT),
    (Unsupported, ExitCode.UNSUPPORTED),
)

_NO_SUCH_BUCKET = "NoSuchBucket"  # the server's word for it, which the storages leave in an error's ``code``


def first_error(exc: BaseException) -> BaseException:
    """Return the error that matters: for a group, its first one."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc


def exit_code(exc: BaseException) -> ExitCode:
    """Return the exit code for an exception; for incomplete long work, that of the first failure."""
    if isinstance(exc, Incomplete) and exc.__cause__ is not None:
        first = exit_code(exc.__cause__)
        return ExitCode.FAILED if first is ExitCode.INVALID else first  # INVALID says that nothing was changed
    if getattr(exc, "code", None) == _NO_SUCH_BUCKET:
        return ExitCode.NOT_FOUND
    if getattr(exc, "is_conflict", False):
        return ExitCode.CONFLICT
    return next((code for cls, code in _BY_CLASS if isinstance(exc, cls)), ExitCode.FAILED)


def message(exc: BaseException) -> str:
    """Return the message for an exception, in one line."""
    text = " ".join(str(exc).split())
    if not isinstance(exc, ShardStoreError):
        name = type(exc).__name__
        text = f"{name}: {text}" if text else name
        text += " (not an error that shardstore expects: --debug shows where it comes from)"
    notes = [" ".join(note.split()) for note in getattr(exc, "__notes__", ())]
    return " ".join([text, *(f"[{note}]" for note in notes)])
