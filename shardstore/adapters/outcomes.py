"""What became of a batch of updates, for callers that want an exception."""

from __future__ import annotations

from collections.abc import Sequence


def raise_failed(errors: Sequence[Exception | None]) -> None:
    """Raise the first error of a batch, with a note that says how many keys it is about; nothing where there is none."""
    failed = [error for error in errors if error is not None]
    if not failed:
        return
    if len(errors) > 1:
        failed[0].add_note(f"{len(failed)} of {len(errors)} keys of this batch failed, the others are stored")
    raise failed[0]
