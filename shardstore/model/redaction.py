"""Remove secrets from URLs and messages: users and passwords, tokens, and queries, which can be signatures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shardstore.errors import InvalidInput

# None of them may take more than linear time: clients of a server send texts that end up in messages.

# Greedy up to the last "@" before the path: a password may hold one. Memory has no users, but names with "@": there, only what looks like
# a user with a password goes.
_USER = re.compile(r"(?<=://)(?:(?<!memory://)[^/\s'\"<>]*|[^/\s'\"<>:]*:[^/\s'\"<>]*)@")
# Of HTTP only: elsewhere "?" is a character of a name, or a version.
_QUERY = re.compile(r"(https?://(?:(?!https?://)[^\s?'\"<>])*)\?[^\s'\"<>)]*", re.IGNORECASE)
# Of a URL that its package shows in parts, as "Max retries exceeded with url: /tokeninfo?access_token=…".
_SECRET = re.compile(
    r"((?<![a-z0-9])(?:access_token|id_token|refresh_token|token|sig|signature|x-(?:amz|goog)-(?:signature|security-token))=)"
    r"[^\s&'\"<>)]+",
    re.IGNORECASE,
)


def redacted(text: str) -> str:
    """Return ``text`` without tokens, and without user, password and query in every URL; a query is shown as ``?…``."""
    return _SECRET.sub(r"\1…", _QUERY.sub(r"\1?…", _USER.sub("", text)))


def shown_cause(exc: BaseException) -> BaseException | None:
    """Return ``exc``, or ``None`` if it or its causes would show a secret in a traceback; for ``raise … from``."""
    error: BaseException | None = exc
    looked_at: set[int] = set()
    while error is not None and id(error) not in looked_at:  # a cause may lead back to where it came from
        looked_at.add(id(error))
        if redacted(str(error)) != str(error):
            return None
        error = error.__cause__ or error.__context__
    return exc


HARMLESS = frozenset(
    {"asynchronous", "auto_mkdir", "loop", "skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths"}
)
"""Options of fsspec itself, which mean nothing to a storage that does without fsspec."""


def unusable_options(what: str, options: Mapping[str, Any], exc: Exception) -> InvalidInput:
    """Return the error for a filesystem that fails on its options by one of Python's exceptions. It names the options, not their values."""
    given = ", ".join(sorted(set(options) - HARMLESS)) or "none"
    return InvalidInput(f"{what}: check these options of the filesystem: {given} ({type(exc).__name__}: {redacted(str(exc))})")
