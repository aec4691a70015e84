"""What an encoder of a versioned store's files accepts, its decoder gives back; all else it refuses, before anything is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardstore.errors import InvalidInput
from shardstore.format.json_text import dumps, loads_object, same_text
from shardstore.format.snapshots.manifest import GONE, INLINE, ChunkRefs, VirtualCheck, check_settable, decode_table, encode_manifest
from shardstore.format.snapshots.node_columns import NodeColumns, to_columns, to_document
from shardstore.format.snapshots.state import Ref, Snapshot, State, check_said, decode_state, encode_state
from shardstore.format.snapshots.structure import (
    AttributesPlace,
    ManifestFile,
    ManifestPart,
    Node,
    NodeChanges,
    decode_attributes,
    decode_structure,
    encode_attributes,
    encode_structure,
    parse_changes,
)
from shardstore.format.store_keys import check_node_path, check_node_paths, metadata_key, metadata_path
from shardstore.model.words import is_utf8
from tests.documents import array_v3

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

HALF = "half of \ud83d"

texts = st.one_of(st.sampled_from(["", "a", "é", HALF, "\0", "main", "\u2028", '"}', "s/x", "refs"]), st.text(max_size=3))
wholes = st.one_of(st.integers(-1, 3), st.sampled_from([True, 2**63, 2**64]))


# -- messages and metadata -----------------------------------------------------------------------------------------------

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts, st.binary(max_size=2)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.one_of(texts, st.integers(0, 1)), inner, max_size=2)),
    max_leaves=5,
)


def nested(levels: int) -> Any:
    value: Any = "end"
    for _ in range(levels):
        value = [value]
    return value


@given(st.one_of(texts, st.none(), st.integers()), st.one_of(st.none(), texts, st.dictionaries(texts, values, max_size=2)))
@example(HALF, None)
@example("deep", {"a": nested(99)})
@example("array", {"a": np.zeros(1)})
def test_what_is_said_of_a_commit_comes_back_or_is_refused(message: Any, metadata: Any) -> None:
    try:
        check_said(message, metadata)
    except InvalidInput:
        assert metadata is not None or not isinstance(message, str) or not is_utf8(message)
        return
    said = {"message": message} if metadata is None else {"message": message, "metadata": dict(metadata)}
    state = State("id", 0, "", {"A": Snapshot("A", None, 0, "S", said)}, {"main": Ref("A", "branch")})
    assert decode_state(encode_state(state)) == state
    json.dumps(said, ensure_ascii=False).encode()  # what shows it can write it


@pytest.mark.parametrize(
    ("message", "metadata", "why"),
    [
        (HALF, None, "half of a surrogate pair"),
        (b"bytes", None, "is no text"),
        ("m", {HALF: 1}, "half of a surrogate pair"),
        ("m", {"a": [{"b": HALF}]}, "half of a surrogate pair"),
        ("m", {"a": {1: 2}}, "1 is no name"),
        ("m", {"a": {2.5}}, "is a set, for which JSON has no form"),
        ("m", {"a": nested(100)}, "more than 100 levels"),
        ("m", {"a": 10**4000}, "are too many"),
        ("m", [("a", 1)], "a mapping from names to values, not of type list"),
    ],
)
def test_what_cannot_be_said_of_a_commit_is_named(message: Any, metadata: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        check_said(message, metadata)


def test_values_deeper_than_the_stack_are_refused() -> None:
    deep = nested(100_000)
    with pytest.raises(InvalidInput, match="more than 100 levels"):
        check_said("m", {"a": deep})
    with pytest.raises(InvalidInput, match="RecursionError"):
        encode_state(State("id", 0, "", {}, {}, {"x": deep}))


# -- states --------------------------------------------------------------------------------------------------------------

names = st.sampled_from(["A", "B", "C", "", HALF])
snapshots = st.builds(Snapshot, names, st.one_of(st.none(), names), wholes, texts, st.just({}))
refs = st.builds(Ref, names, st.sampled_from(["branch", "tag", "twig"]))
states = st.builds(
    State,
    texts,
    wholes,
    texts,
    st.one_of(
        st.lists(snapshots, max_size=3, unique_by=lambda one: one.id).map(lambda found: {one.id: one for one in found}),
        st.dictionaries(names, snapshots, max_size=2),
    ),
    st.dictionaries(texts, refs, max_size=2),
    st.dictionaries(texts, st.one_of(texts, wholes, st.lists(texts, max_size=2)), max_size=2),
)
CHAIN = {"A": Snapshot("A", None, 1, "S"), "B": Snapshot("B", "A", 2, "T")}


@given(states)
@example(State("id", 0, "", {}, {}))
@example(State("id", 0, "", dict(reversed(CHAIN.items())), {}))
@example(State("id", 0, "", {"B": CHAIN["B"]}, {}))
@example(State("id", 0, "", CHAIN, {"main": Ref("C", "branch")}))
@example(State("id", 0, "", CHAIN, {"main": Ref("B", "branch"), HALF: Ref("A", "tag")}))
@example(State("id", True, "", CHAIN, {}))
@example(State("id", 0, "", CHAIN, {}, {"refs": {}}))
@example(State("id", 0, "", CHAIN, {}, {"x": {1, 2}}))
@example(State("id", 0, "", {"A": replace(CHAIN["A"], properties={"x": object()})}, {}))
@example(State("id", 0, "", {"A": replace(CHAIN["A"], structure="s/x")}, {}))
def test_a_state_comes_back_or_is_refused(state: State) -> None:
    try:
        data = encode_state(state)
    except InvalidInput:
        return
    assert decode_state(data) == state
    assert list(decode_state(data).snapshots) == list(state.snapshots)


# -- structures ----------------------------------------------------------------------------------------------------------

PATHS = [
    "",
    "a",
    "a/b",
    "a-b",
    "g//x",
    "/a",
    "a/",
    "../x",
    "x/../y",
    ".",
    "./x",
    "x\0y",
    "zarr.json",
    "g/zarr.json/x",
    "a\\b",
    HALF,
    "zarr",
    "é",
]
FILES = [ManifestFile("7CETCYESXYW6ZQ59MB70", 4410, 1000, 7), ManifestFile("9H3RCH8GNF2SN393TWD0", 10, 1, 8, (5, 6), "RUN")]
GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {"a": HALF}}


def array(*shape: int, **members: Any) -> dict[str, Any]:
    return array_v3(shape, [1] * len(shape), **members)


DOCUMENTS = [GROUP, array(4), array(2, 70_000), array(3, future=1), array(5, dimension_names=[HALF])]
columns_of_nodes = st.one_of(
    st.sampled_from([to_columns(document) for document in DOCUMENTS]),
    st.builds(NodeColumns, st.none(), st.one_of(st.none(), st.just(b"{}")), st.none()),
)
parts = st.builds(ManifestPart, st.sampled_from(FILES), st.sampled_from([0, 70_000, 2**32, -1]), st.just(((0, 4),)))
nodes = st.builds(
    Node,
    st.one_of(st.integers(0, 3), st.sampled_from([2**32 - 1, 2**32, -1])),
    st.one_of(st.sampled_from(PATHS), texts),
    columns_of_nodes,
    st.one_of(st.none(), st.builds(AttributesPlace, st.just("M5TZFN2ZQSHMB2C9RV70"), st.integers(-1, 2))),
    st.lists(parts, max_size=2).map(tuple),
)
ROOT = Node.of(9, "", {"zarr_format": 3, "node_type": "group"})


@given(st.lists(nodes, max_size=3).map(lambda found: [ROOT, *found]))
@example([])
@example([replace(ROOT, path="x")])
@example([ROOT, replace(ROOT, id=1)])
@example([ROOT, replace(ROOT, path="x")])
@example([ROOT, replace(ROOT, path="x", id=2**32)])
@example([replace(ROOT, manifests=(ManifestPart(FILES[0], 0, ((0, 4),)),))])
@example(
    [
        Node.of(1, "", GROUP),
        replace(Node.of(2, "a", array(4)), columns=to_columns(array(4, attributes={"b": 1})), attributes=AttributesPlace("M", 0)),
    ]
)
def test_a_structure_comes_back_or_is_refused(found: list[Node]) -> None:
    try:
        data = encode_structure(found, {"text": HALF})
    except InvalidInput:
        return
    read = decode_structure(data)
    assert dict(read.nodes) == {node.path: node for node in found}
    assert read.changes == {"text": HALF}
    for node in found:
        check_node_path(node.path)


@pytest.mark.parametrize(
    "path", ["g//x", "/a", "a/", "../x", "x/../y", ".", "./x", "x\0y", "zarr.json", "g/zarr.json", "zarr.json/x", "a\\b", HALF]
)
def test_paths_that_no_node_can_have_are_refused(path: str) -> None:
    for refused in (
        lambda: check_node_path(path),
        lambda: check_node_paths(["fine", path]),
        lambda: encode_structure([ROOT, replace(ROOT, path=path, id=1)], {}),
    ):
        with pytest.raises(InvalidInput, match=r"cannot be the path of an array or a group: .*Choose another name"):
            refused()


@given(st.lists(st.one_of(st.sampled_from(PATHS), st.text(max_size=3), st.text("/.z\0", max_size=4)), max_size=3))
def test_many_paths_are_checked_as_one_is(paths: list[str]) -> None:
    def is_refused(check: Any, *arguments: Any) -> bool:
        try:
            check(*arguments)
        except InvalidInput:
            return True
        return False

    each = [is_refused(check_node_path, path) for path in paths]
    assert is_refused(check_node_paths, paths) is any(each)
    for path, refused in zip(paths, each, strict=True):
        if not refused:
            assert metadata_path(metadata_key(path)) == path


@given(
    st.dictionaries(st.integers(0, 9), texts, max_size=2),
    st.dictionaries(st.integers(0, 9), st.tuples(texts, texts), max_size=2),
    st.frozensets(st.integers(0, 9), max_size=2),
    st.lists(texts, max_size=2),
)
def test_what_a_commit_did_comes_back(
    paths: dict[int, str], moved: dict[int, tuple[str, str]], ids: frozenset[int], manifests: list[str]
) -> None:
    changes = NodeChanges(paths, dict(reversed(paths.items())), moved, ids, ids)
    data = encode_structure([ROOT], changes.to_json(manifests))
    assert parse_changes(decode_structure(data).changes) == (changes, manifests)


# -- documents of nodes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "members",
    [
        {"dimension_names": [HALF]},
        {"codecs": [{"name": HALF}]},
        {"codecs": [{"name": "bytes", "configuration": {HALF: HALF}}]},
        {"chunk_grid": {"name": HALF, "configuration": {"chunk_shape": [1]}}},
        {"chunk_key_encoding": {"name": HALF, "configuration": {"separator": "/"}}},
        {"chunk_key_encoding": {"name": "default", "configuration": {"separator": HALF}}},
        {"data_type": "string", "fill_value": HALF},
        {"attributes": {HALF: HALF}},
        {"future": HALF},
    ],
    ids=str,
)
def test_a_document_with_what_utf8_cannot_hold_comes_back(members: Mapping[str, Any]) -> None:
    """JSON can: as ``\\ud83d``."""
    document = loads_object(dumps(array(4, **members)))
    node = Node.of(1, "a", document)
    (_, read) = decode_structure(encode_structure([ROOT, node], {})).nodes.values()
    assert read == node
    found = to_document(read.columns)
    assert same_text({name: found[name] for name in document}, document)


def test_a_data_type_that_utf8_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidInput, match="data_type"):
        to_columns(array(4, data_type=HALF))


@given(st.lists(st.binary(max_size=4), max_size=4))
def test_attributes_come_back(rows: list[bytes]) -> None:
    assert decode_attributes(encode_attributes(rows)) == rows


# -- manifests -----------------------------------------------------------------------------------------------------------

files_of_chunks: st.SearchStrategy[bytes | str] = st.sampled_from(
    [b"123456789012", b"abcdefghijkl", b"short", "s3://bucket/a.nc", f"file:///{HALF}", ""]
)
checks = st.builds(VirtualCheck, st.one_of(st.none(), texts), st.one_of(st.none(), st.integers(-5, 5)))


@st.composite
def some_refs(draw: st.DrawFn) -> ChunkRefs:
    n = draw(st.integers(0, 3))
    files: list[bytes | str] = draw(st.lists(files_of_chunks, max_size=3, unique=True))
    coords = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    if draw(st.booleans()):
        coords = sorted(set(coords))
    file = draw(st.lists(st.integers(-3, 3), min_size=n, max_size=n))[: len(coords)]
    inline = draw(
        st.one_of(
            st.just({row: b"x" for row, one in enumerate(file) if one == INLINE}),
            st.dictionaries(st.integers(0, 3), st.just(b"x"), max_size=2),
        )
    )
    numbers = np.array([row if file[row] >= 0 else 0 for row in range(len(coords))], dtype=np.uint64)
    known = draw(st.dictionaries(st.integers(0, 2), checks, max_size=1)) if draw(st.booleans()) else {}
    known = {number: check for number, check in known.items() if number < len(files) and isinstance(files[number], str)}
    return ChunkRefs(
        np.array(coords, dtype=np.uint64).reshape(-1, 1), np.array(file, dtype=np.int32), numbers, numbers, files, inline, known
    )


def places(refs: ChunkRefs) -> list[Any]:
    """Return what references say of each chunk."""
    found: list[Any] = []
    for row, coords in enumerate(refs.coords.tolist()):
        number = int(refs.file[row])
        check = refs.checks.get(number)
        known = None if check is None or (check.etag is None and check.last_modified is None) else check
        name = refs.files[number] if number >= 0 else number
        found.append((coords, name, int(refs.offset[row]), int(refs.nbytes[row]), refs.inline.get(row), known))
    return found


@given(st.sampled_from([0, 7, 2**32 - 1, 2**32, -1]), some_refs())
def test_references_come_back_or_are_refused(number: int, found: ChunkRefs) -> None:
    try:
        data = encode_manifest({number: found})
    except InvalidInput:
        return
    read = decode_table(pq.read_table(pa.BufferReader(data)), {number: 1})
    assert [places(one) for one in read.values()] == ([places(found)] if len(found) else [])


def refs_at(file: int, name: Any, **members: Any) -> ChunkRefs:
    one = np.ones(1, dtype=np.uint64)
    return replace(ChunkRefs(np.zeros((1, 1), dtype=np.uint64), np.array([file], dtype=np.int32), one, one, [name]), **members)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (refs_at(0, b"short"), "5 bytes, and not 12"),
        (refs_at(1, b"123456789012"), "in file 1 of 1"),
        (refs_at(GONE - 1, b"123456789012"), "in file -3 of 1"),
        (refs_at(INLINE, b"123456789012"), "the bytes that are given"),
        (refs_at(0, b"123456789012", inline={0: b"x"}), "the bytes that are given"),
        (refs_at(0, b"123456789012", nbytes=np.ones(2, dtype=np.uint64)), "1 coordinates, 1 files, 1 offsets and 2 lengths"),
        (refs_at(0, f"file:///{HALF}"), "half of a surrogate pair"),
        (refs_at(0, "file:///a", checks={0: VirtualCheck(HALF, None)}), "half of a surrogate pair"),
    ],
)
def test_references_that_would_not_come_back_are_refused(found: ChunkRefs, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        encode_manifest({0: found})


@pytest.mark.parametrize("coords", [[1, 0], [1, 1]])
def test_references_out_of_order_are_refused(coords: list[int]) -> None:
    two = np.zeros(2, dtype=np.uint64)
    found = ChunkRefs(np.array(coords, dtype=np.uint64).reshape(2, 1), np.array([GONE, GONE], dtype=np.int32), two, two, [])
    with pytest.raises(InvalidInput, match="not sorted, or one is there twice"):
        encode_manifest({0: found})


def test_references_are_refused_when_they_are_set() -> None:
    for found in (refs_at(0, f"file:///{HALF}"), refs_at(0, "file:///a", checks={0: VirtualCheck(HALF, None)})):
        with pytest.raises(InvalidInput, match="chunks cannot be referred to"):
            check_settable(found)


@pytest.mark.parametrize(("offset", "nbytes"), [(2**63, 1), (2**63 - 1, 1), (0, 2**63), (2**64 - 1, 2**64 - 1)])
def test_references_beyond_every_object_are_refused_when_they_are_set(offset: int, nbytes: int) -> None:
    at = np.zeros((1, 1), dtype=np.uint64), np.zeros(1, dtype=np.int32)
    found = ChunkRefs(*at, np.array([offset], dtype=np.uint64), np.array([nbytes], dtype=np.uint64), ["file:///a"])
    with pytest.raises(InvalidInput, match="no object has so many bytes"):
        check_settable(found)
    check_settable(replace(found, offset=np.array([2**63 - 2], dtype=np.uint64), nbytes=np.ones(1, dtype=np.uint64)))
