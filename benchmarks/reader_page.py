"""The page of what reads what: ``docs/evidence/readers.md``, from the results of ``benchmarks/readers.py``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reader_stores import StoreCase

# It shows a chunk of what was read, and no more of an error than tells it from others.
_MOST_SAID = 160

_MARKS = {"ok": "✓", "none": ""}

_HEAD = """# What reads the shards

What shardstore stores is ordinary Zarr v3. This page says which programs have read it without
shardstore. Each store was written through shardstore. Each program, in an environment of its own, read the whole store, and then a
part that begins and ends inside shards. The values were compared with those that were written. `make readers` writes this page.
"""

_OTHERS = """## Not run

- **neuroglancer**: its reader is part of a page. `make browser-test` lets it draw a pyramid, from shards and chunk by chunk.
- **zarr-java** and other readers that are neither on PyPI, nor on npm, nor in Debian; programs that know Zarr v2 only.

Programs that know Zarr v2 only read the same stores [through shardstore](../howto/zarr-v2.md). Programs that take fsspec URLs
read them chunk by chunk as [`sharded::` URLs](../howto/fsspec.md).
"""

_HOW = """Python {python} for those from PyPI. Programs with a version of zarr read through zarr-python. zarrs decodes by
itself; if it leaves that to zarr-python, it counts as an error. VirtualiZarr and Icechunk keep references to the stored
shards. There are two versions of GDAL: that of rasterio's wheels, and Debian's.
"""


def write_page(results: dict[str, Any], cases: Sequence[StoreCase], page: Path) -> None:
    """Write the page."""
    readers = results["readers"]
    page.write_text("\n".join([_HEAD, *table(readers, cases), "", *_failures(readers, cases), *_programs(results), _OTHERS]))


def table(readers: Sequence[dict[str, Any]], cases: Sequence[StoreCase]) -> Iterator[str]:
    """One row a store, one column a reader that was run."""
    run = [reader for reader in readers if not reader["why"]]
    yield "| what is stored | " + " | ".join(reader["name"] for reader in run) + " |"
    yield "|---|" + ":-:|" * len(run)
    for case in cases:
        yield f"| {case.what} | " + " | ".join(_mark(reader["cases"][case.name]) for reader in run) + " |"
    yield ""
    yield "✓: the values are right. ✗: an error. **wrong**: other values, without an error. Empty: the program does not read such data."


def _mark(outcome: str) -> str:
    return _MARKS.get(outcome, "**wrong**" if outcome == "wrong" else "✗")


def _failures(readers: Sequence[dict[str, Any]], cases: Sequence[StoreCase]) -> Iterator[str]:
    """What each reader that failed said, once for all stores of which it said the same."""
    lines = []
    for reader in readers:
        said: dict[str, list[str]] = {}
        for case in cases:
            outcome = reader["cases"].get(case.name, "none")
            if outcome not in ("ok", "none"):
                said.setdefault("other values, and no error" if outcome == "wrong" else f"`{_short(outcome)}`", []).append(case.what)
        for words, where in said.items():
            of = "every store" if len(where) == sum(outcome != "none" for outcome in reader["cases"].values()) else "; ".join(where)
            lines.append(f"- **{reader['name']}**, {of}: {words}")
    if lines:
        yield from ["## What failed, with the error", "", *lines, ""]


def _short(text: str) -> str:
    text = text.replace("`", "'").replace("|", "/")
    return text if len(text) <= _MOST_SAID else text[:_MOST_SAID].rstrip() + " …"


def _programs(results: dict[str, Any]) -> Iterator[str]:
    yield from ["## The programs", ""]
    for reader in results["readers"]:
        versions = ", ".join(f"{name} {version}" for name, version in reader["versions"].items())
        yield f"- **{reader['name']}**: {versions or 'not run: ' + reader['why']}"
    yield from ["", _HOW.format(python=results["python"])]
