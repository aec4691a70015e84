"""What the tests run in other processes: importable by a spawned child, and light to import."""

from __future__ import annotations

from typing import Any

inherited: Any = None  # by a forked child


def write_some(fs: Any, worker: int) -> int:
    """Write every second chunk of an array of 16, one by one, read them back; how many."""
    fs = inherited if fs is None else fs
    mine = range(worker, 16, 2)
    for i in mine:
        fs.pipe_file(f"a/c/{i}", bytes([100 + worker, i]))
    assert [fs.cat_file(f"a/c/{i}") for i in mine] == [bytes([100 + worker, i]) for i in mine]
    return len(mine)
