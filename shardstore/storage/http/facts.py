"""The known facts of HTTP servers, learned from their answers, shared by all storages of this process."""

from __future__ import annotations

import warnings
from dataclasses import dataclass


@dataclass
class ServerFacts:
    """The observed behaviour of one server; ``None``: not seen yet. An answer that contradicts a fact corrects it."""

    ranges: bool | None = None
    """True where it sends ranges of objects, rather than the whole object instead."""
    suffixes: bool | None = None
    """True where it understands ranges that count from the end."""
    head: bool | None = None
    """True where HEAD shows the size."""
    if_match: bool = True
    """True where it matches the ETags that it gives."""
    warned: bool = False

    def ignored_a_range(self, origin: str) -> None:
        """Note that an answer held the whole object where a range of it was asked for."""
        self.ranges = False
        if not self.warned:
            self.warned = True
            warnings.warn(
                f"{origin} ignores byte ranges and sends whole objects: reading a chunk costs the whole shard there. Serve the data "
                "from a server that supports range requests, or copy it first",
                RuntimeWarning,
                stacklevel=2,
            )


_facts: dict[str, ServerFacts] = {}


def facts_of(origin: str) -> ServerFacts:
    return _facts.setdefault(origin, ServerFacts())


def forget_facts() -> None:
    """Forget all facts, so that they are learned again; for tests, and after a server was reconfigured."""
    _facts.clear()
