"""Messages about the options of a filesystem, without their values, which can be secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardstore.errors import InvalidInput
from shardstore.model.redaction import redacted, shown_cause

__all__ = ["HARMLESS", "redacted", "shown_cause", "unusable_options"]

HARMLESS = frozenset(
    {"asynchronous", "auto_mkdir", "loop", "skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths"}
)
"""Options of fsspec itself, which mean nothing to a storage that does without fsspec."""


def unusable_options(what: str, options: Mapping[str, Any], exc: Exception) -> InvalidInput:
    """Return the error for a filesystem that fails on its options by one of Python's exceptions. It names the options, not their values."""
    given = ", ".join(sorted(set(options) - HARMLESS)) or "none"
    return InvalidInput(f"{what}: check the values of its storage_options, which are {given} ({type(exc).__name__}: {redacted(str(exc))})")
