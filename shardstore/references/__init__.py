"""Sets of references: every inner chunk readable, in place, by programs that know no shards.

``write_json``, ``write_parquet`` and ``write_icechunk`` refer to the chunks of a hierarchy; ``check`` and ``update`` keep what was written
honest; ``pins`` protects it; ``combine`` makes one set of several. Sets are read by ``shardstore.open("reference::…")``.

Contributors: Begin with ``writing.py``.
"""

from __future__ import annotations

from shardstore.references.combining import combine
from shardstore.references.icechunk.writing import write_icechunk
from shardstore.references.keeping import CheckReport, SetDescription, check, describe, pins, update
from shardstore.references.report import ReferenceProgress, ReferenceReport
from shardstore.references.writing import write_json, write_parquet

__all__ = [
    "CheckReport",
    "ReferenceProgress",
    "ReferenceReport",
    "SetDescription",
    "check",
    "combine",
    "describe",
    "pins",
    "update",
    "write_icechunk",
    "write_json",
    "write_parquet",
]
