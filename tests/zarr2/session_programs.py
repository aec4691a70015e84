# mypy: ignore-errors
# The types are those of zarr-python 2, which is not installed where they are checked.
"""Programs of zarr-python 2 on sessions of a versioned store: ``python session_programs.py NAME URL``, run by its own interpreter.

Each program writes through ``session.mapping("v2")``, and into a plain ``MemoryStore``. Both hold the same, and read the same: before the
commit, in another writable session after it, in which more is written, and in read-only sessions of both snapshots.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import programs
import zarr

from shardstore.snapshots import Repository


@programs.program
def copying_nodes(store: Any) -> None:
    """What ``copying`` does, but for ``zarr.copy_store``, which writes the attributes of a node before the node."""
    source = zarr.group()
    source.attrs["s"] = 1
    source.create_dataset("g/a", data=programs.numbers(6, 6), chunks=(4, 4), fill_value=3).attrs["u"] = "m"
    source.create_group("h").attrs["only"] = "attributes"
    root = zarr.open_group(store, mode="w")
    zarr.copy(source["g/a"], root, name="again")
    zarr.copy_all(source, root.require_group("all"))


def said(store: Any) -> dict[str, bytes]:
    """Return keys and values, without empty attributes: a snapshot does not tell them from none."""
    return {key: bytes(value) for key, value in store.items() if not (key.endswith(".zattrs") and json.loads(bytes(value)) == {})}


def compare(mapping: Any, plain: Any) -> None:
    """Raise ``AssertionError`` unless both have the same keys, values and arrays."""
    held, wanted = said(mapping), said(plain)
    assert sorted(held) == sorted(wanted), sorted(set(held) ^ set(wanted))
    assert {key: value for key, value in held.items() if value != wanted[key]} == {}
    values, expected = programs.values_of(mapping), programs.values_of(plain)
    assert values.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_array_equal(values[path], value)


def change(store: Any) -> None:
    """Change a part of every array, erase one and add one."""
    root = zarr.open(store, mode="r+")
    arrays: list[Any] = [root]
    if not isinstance(root, zarr.Array):
        arrays = []
        root.visititems(lambda _, node: arrays.append(node) if isinstance(node, zarr.Array) else None)
        root.create_dataset("added", data=programs.numbers(5, 5), chunks=(2, 2))
    for array in arrays:
        if array.size and array.dtype.kind in "iuf":
            array[(slice(0, 2),) * array.ndim or ...] = 3
        array.attrs["changed"] = True
    if len(arrays) > 1:
        del root[arrays[-1].path]


def main(name: str, url: str) -> None:
    repo, plain = Repository.create(url, pack=lambda info: (2,) * len(info.shape) or None, fsync=False), zarr.MemoryStore()
    session = repo.writable_session()
    mapping = session.mapping("v2")
    programs.PROGRAMS[name](mapping)
    programs.PROGRAMS[name](plain)
    compare(mapping, plain)
    assert sorted(mapping) == sorted(plain)
    first = session.commit(name)
    before = zarr.MemoryStore()
    before.update(plain)
    session = Repository.open(url).writable_session()
    compare(session.mapping("v2"), plain)
    change(session.mapping("v2"))
    change(plain)
    compare(session.mapping("v2"), plain)
    session.commit("changed")
    again = Repository.open(url)
    compare(again.readonly_session().mapping("v2"), plain)
    compare(again.readonly_session(snapshot_id=first).mapping("v2"), before)
    np.savez(f"{url}.npz", **{path or "__root__": value for path, value in programs.values_of(plain).items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
