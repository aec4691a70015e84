"""URLs and messages without the secrets that they may carry: users and passwords, and queries, which can be signatures."""

from __future__ import annotations

import re

# Greedy up to the last "@" before the path: a password may hold one.
_USER = re.compile(r"(?<=://)[^/\s'\"<>]*@")
# Of HTTP only: elsewhere "?" is a character of a name, or a version.
_QUERY = re.compile(r"(https?://[^\s?'\"<>]*)\?[^\s'\"<>)]*", re.IGNORECASE)


def redacted(text: str) -> str:
    """``text`` with every URL in it freed of user, password and query; the mark of a query stays, ``?…``."""
    return _QUERY.sub(r"\1?…", _USER.sub("", text))
