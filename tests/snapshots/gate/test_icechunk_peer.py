"""The same histories in Icechunk 2: two sessions change something, and the second one is rebased when it commits.

Contents must agree, and whether there is a conflict, but for the differences that are named here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from shardstore.snapshots import BasicConflictSolver, ConflictDetector, ConflictError
from tests.snapshots.repositories import new_repository

icechunk = pytest.importorskip("icechunk")
pytestmark = [pytest.mark.skipif(int(icechunk.__version__.split(".")[0]) < 2, reason="Icechunk 1 has no moves, and another solver")]

SHAPE, CHUNK = 32, 8
ARRAYS, GROUPS = ("a", "g/b"), ("g", "e")
TARGETS = ("m", "n", "e/n")

Operation = tuple[str, str, int, int]
"""What to do, to which node, where or to what, and a value."""

DIFFERENCES = {
    "attributes of one node": "Icechunk does not look into documents: two that were changed are a conflict, whatever was changed in them. "
    "Here attributes are merged by name, and only one that both have set to different values is a conflict",
    "chunks of an array whose attributes they changed": "to Icechunk the document has changed, and it might be the shape; here attributes "
    "do not matter to chunks",
    "shape of an array whose chunks they changed": "Icechunk lets whoever changes the document win. Here it is a conflict in both orders: "
    "chunks may be outside of the new shape, and in a serial order the resize would have erased them",
    "chunks that they erased where there was none": "Icechunk notes such an erasure, here the commit leaves it out: nothing was changed",
    "deleted arrays in which they erased chunks where there was none": "likewise: to Icechunk the array was updated",
    "nodes made in a group that is deleted": "Icechunk brings both together, and the node has no group above it; here it is a conflict",
    "anything onto moves": "Icechunk brings nothing onto a snapshot that moved a node; here nodes are known by their ids",
    "moves onto what contradicts them": "Icechunk does not look whether the target is taken by then, or its group is gone",
    "the same group": "both have made a group with the same document, which is then one; to Icechunk it is two nodes at one path",
}


def prepare(session: Any) -> None:
    for path in GROUPS:
        zarr.create_group(session.store, path=path)
    for path in ARRAYS:
        array = zarr.create_array(session.store, name=path, shape=(SHAPE,), chunks=(CHUNK,), dtype="i4")
        array[: SHAPE // 2] = np.arange(1, SHAPE // 2 + 1)


def history(rng: random.Random) -> list[Operation]:
    """Return what one session does: each thing once, so that it can always be done."""
    kinds = ["chunk", "chunk", "zeros", "attribute", "group attribute", "resize", "array", "group", "delete", "delete group"]
    if rng.random() < 0.2:  # Icechunk has sessions of their own for moves
        return [("move", rng.choice(["a", "g", "g/b"]), rng.randrange(3), 0)]
    found: list[Operation] = []
    for kind in rng.sample(kinds, rng.randint(1, 2)):
        if kind in ("chunk", "zeros", "attribute", "resize"):
            found.append((kind, rng.choice(ARRAYS), rng.randrange(4), rng.randint(1, 3)))
        elif kind == "group attribute":
            found.append((kind, rng.choice(GROUPS), rng.randrange(2), rng.randint(1, 3)))
        elif kind in ("array", "group"):
            path = rng.choice(["n", "g/n", "e/n"])
            if all(one[1] != path for one in found):
                found.append((kind, path, 0, rng.randint(1, 3)))
        elif kind == "delete":
            found.append((kind, rng.choice(ARRAYS), 0, 0))
        else:
            found.append((kind, "e", 0, 0))
    # What is deleted is deleted last, and nothing is made in it.
    found.sort(key=lambda one: one[0].startswith("delete"))
    return [one for one in found if not (one[1].startswith("e/") and ("delete group", "e", 0, 0) in found)]


def do(session: Any, operation: Operation) -> None:
    kind, path, where, value = operation
    match kind:
        case "chunk" | "zeros":
            array = zarr.open_array(session.store, path=path, mode="r+")
            array[where * CHUNK : where * CHUNK + CHUNK] = 100 * value if kind == "chunk" else 0
        case "attribute" | "group attribute":
            zarr.open(session.store, path=path, mode="r+").attrs["xy"[where % 2]] = value
        case "resize":
            zarr.open_array(session.store, path=path, mode="r+").resize((CHUNK * (1 + where) if where != 3 else SHAPE + CHUNK,))
        case "array":
            zarr.create_array(session.store, name=path, shape=(CHUNK,), chunks=(CHUNK,), dtype="i4")[:] = value
        case "group":
            zarr.create_group(session.store, path=path, attributes={"value": value % 2})
        case "move":
            session.move(f"/{path}", f"/{TARGETS[where]}")
        case _:
            del zarr.open_group(session.store, mode="r+")[path]


def begin(repo: Any, changes: list[Operation]) -> Any:
    if isinstance(repo, icechunk.Repository) and changes[0][0] == "move":
        return repo.rearrange_session("main")
    return repo.writable_session("main")


def contents(session: Any) -> dict[str, Any]:
    root = zarr.open_group(session.store, mode="r")
    return {
        path: (node.attrs.asdict(), np.asarray(node[...]).tolist() if isinstance(node, zarr.Array) else None)
        for path, node in root.members(max_depth=None)
    }


def outcome(
    repo: Any, ours: list[Operation], theirs: list[Operation], solver: Any, conflict: type[Exception], kinds: Callable[[Any], list[Any]]
) -> tuple[dict[str, Any] | None, dict[str, set[str]]]:
    """Return the contents when both have committed, ``None`` if that was a conflict; and the paths of conflicts by kind."""
    first = repo.writable_session("main")
    prepare(first)
    first.commit("begin")
    session, other = (begin(repo, changes) for changes in (ours, theirs))
    for one in ours:
        do(session, one)
    for one in theirs:
        do(other, one)
    other.commit("theirs")
    try:
        session.commit("ours", rebase_with=solver)
    except conflict as exc:
        found: dict[str, set[str]] = {}
        for kind, path in kinds(exc):
            found.setdefault(kind, set()).add(path.strip("/"))
        return None, found
    return contents(repo.readonly_session("main")), {}


def explained(ours: list[Operation], theirs: list[Operation], mine: dict[str, set[str]], peer: dict[str, set[str]]) -> set[str] | None:
    """Return the named differences by which only one of the two has a conflict; ``None`` if there is another one."""

    def paths(operations: list[Operation], *kinds: str) -> set[str]:
        return {path for kind, path, *_ in operations if kind in kinds}

    attributes = [paths(side, "attribute", "group attribute") for side in (ours, theirs)]
    groups = {path for kind, path, _, value in ours if any(one[:2] == (kind, path) and one[3] % 2 == value % 2 for one in theirs)}
    named = {
        "attributes of one node": ("ZarrMetadataDoubleUpdate", attributes[0] & attributes[1], peer),
        "chunks of an array whose attributes they changed": (
            "ChunksUpdatedInUpdatedArray",
            paths(ours, "chunk", "zeros", "resize") & attributes[1],
            peer,
        ),
        "shape of an array whose chunks they changed": (
            "ChunksUpdatedInUpdatedArray",
            paths(ours, "resize") & paths(theirs, "chunk", "zeros"),
            mine,
        ),
        "chunks that they erased where there was none": (
            "ChunkDoubleUpdate",
            paths(ours, "chunk", "zeros", "resize") & paths(theirs, "zeros", "resize"),
            peer,
        ),
        "deleted arrays in which they erased chunks where there was none": (
            "DeleteOfUpdatedArray",
            paths(ours, "delete") & paths(theirs, "zeros"),
            peer,
        ),
        "nodes made in a group that is deleted": (
            "NewNodeInInvalidGroup" if paths(theirs, "delete group") else "DeleteOfUpdatedGroup",
            {path for path in paths(ours, "array", "group") | paths(theirs, "array", "group") if path.startswith("e/")},
            mine,
        ),
        "the same group": ("NewNodeConflictsWithExistingNode", groups & paths(ours, "group"), peer),
        "anything onto moves": ("MoveOperationCannotBeRebased", {""} if paths(theirs, "move") else set(), peer),
        "moves onto what contradicts them": ("MoveOperationCannotBeRebased", _at_or_below(paths(ours, "move")), mine),
    }
    left = {(kind, path) for side in (mine, peer) for kind, at in side.items() for path in at}
    used = set()
    for name, (kind, at, side) in named.items():
        if hit := side.get(kind, set()) & at:
            left -= {(kind, path) for path in hit}
            used.add(name)
    return None if left else used


def _at_or_below(paths: set[str]) -> set[str]:
    return {node for node in (*ARRAYS, *GROUPS) for path in paths if f"{node}/".startswith(f"{path}/")}


def run_both(place: Path, ours: list[Operation], theirs: list[Operation], *, by_solver: bool) -> set[str]:
    """Run a history in both; return the named differences that were met."""
    mine, my_conflicts = outcome(
        new_repository(place),
        ours,
        theirs,
        BasicConflictSolver() if by_solver else ConflictDetector(),
        ConflictError,
        lambda exc: [(one.conflict_type.name, one.path) for one in exc.conflicts],
    )
    peer, peer_conflicts = outcome(
        icechunk.Repository.create(icechunk.in_memory_storage()),
        ours,
        theirs,
        icechunk.BasicConflictSolver() if by_solver else icechunk.ConflictDetector(),
        icechunk.IcechunkError,
        lambda exc: [("".join(map(str.capitalize, str(one.conflict_type).split())), one.path) for one in getattr(exc, "conflicts", [])],
    )
    said = f"{ours} onto {theirs}: {'fine' if mine else my_conflicts}, and Icechunk {'fine' if peer else peer_conflicts}"
    if (mine is None) != (peer is None):
        used = explained(ours, theirs, my_conflicts, peer_conflicts)
        assert used, said
        return used
    assert mine == peer, said
    return set()


def run_random(place: Path, seed: int) -> None:
    rng = random.Random(seed)
    ours, theirs, by_solver = history(rng), history(rng), rng.random() < 0.5
    if ours and theirs:
        run_both(place / f"{seed}", ours, theirs, by_solver=by_solver)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    icechunk.set_logs_filter("error")


def test_icechunk_does_the_same_but_for_named_differences(tmp_path: Path) -> None:
    for seed in range(25):
        run_random(tmp_path, seed)


@pytest.mark.night
@pytest.mark.timeout(1200)
def test_there_are_no_other_differences(tmp_path: Path) -> None:
    for seed in range(1000, 3000):
        run_random(tmp_path, seed)


EXAMPLES: dict[str, tuple[Operation, Operation]] = {
    "attributes of one node": (("attribute", "a", 0, 1), ("attribute", "a", 1, 1)),
    "chunks of an array whose attributes they changed": (("chunk", "a", 0, 1), ("attribute", "a", 0, 1)),
    "shape of an array whose chunks they changed": (("resize", "a", 3, 0), ("chunk", "a", 0, 1)),
    "chunks that they erased where there was none": (("chunk", "a", 3, 1), ("zeros", "a", 3, 0)),
    "deleted arrays in which they erased chunks where there was none": (("delete", "g/b", 0, 0), ("zeros", "g/b", 2, 3)),
    "nodes made in a group that is deleted": (("array", "e/n", 0, 1), ("delete group", "e", 0, 0)),
    "anything onto moves": (("chunk", "a", 0, 1), ("move", "g/b", 0, 0)),
    "moves onto what contradicts them": (("move", "a", 1, 0), ("group", "n", 0, 1)),
    "the same group": (("group", "n", 0, 1), ("group", "n", 0, 1)),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_every_named_difference_is_one(tmp_path: Path, name: str) -> None:
    ours, theirs = EXAMPLES[name]
    assert run_both(tmp_path, [ours], [theirs], by_solver=False) == {name}
