"""Files of versioned stores: names, coordinates of chunks, states and manifests, as the draft has them and where it is silent (D…)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.errors import Corruption, InvalidInput, NotFound
from shardstore.format.snapshots.file_names import encode_id, encode_ids, generation_of_state, is_id, new_state_name
from shardstore.format.snapshots.manifest import (
    GONE,
    INLINE,
    ChunkRefs,
    VirtualCheck,
    decode_coords,
    decode_table,
    encode_coords,
    encode_manifest,
    manifest_schema,
    manifest_table,
    merged,
    width_for,
)
from shardstore.format.snapshots.state import (
    COLLECTION,
    LastCollection,
    Ref,
    Snapshot,
    State,
    check_ref_name,
    decode_state,
    encode_state,
)

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

DRAFT = Path(__file__).parents[2] / "fixtures" / "icechunk_draft"


# -- names and coordinates ---------------------------------------------------------------------------------------------


@given(st.lists(st.binary(min_size=12, max_size=12), min_size=1, max_size=3))
def test_ids_are_named_as_released_icechunk_names_its_files(ids: list[bytes]) -> None:
    """D28"""
    names = [encode_id(data) for data in ids]
    assert [name.decode() for name in encode_ids(ids).tolist()] == names
    for data, name in zip(ids, names, strict=True):
        assert re.fullmatch("[0-9A-HJKMNP-TV-Z]{19}[0G]", name)
        assert is_id(name)
        number = sum("0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(digit) << 5 * place for place, digit in enumerate(reversed(name)))
        assert (number >> 4).to_bytes(12) == data


@pytest.mark.parametrize("name", ["1CZ33ZREE1WVR4D62DV0", "GEP1MZD507PA97F64K40", "X640V190QJCA2M9G9X70"])
def test_names_of_released_icechunk_are_understood(name: str) -> None:
    assert is_id(name)


@pytest.mark.parametrize("name", ["", "1CZ33ZREE1WVR4D62DV", "1CZ33ZREE1WVR4D62DV1", "1CZ33ZREE1WVR4D62DVU", "1cz33zree1wvr4d62dv0"])
def test_other_names_are_refused(name: str) -> None:
    assert not is_id(name)


def test_state_files_are_named_by_their_generation() -> None:
    """D4"""
    key = new_state_name(7, lambda n: bytes(range(n)))
    assert re.fullmatch(r"t/00000000000000000007-[0-9A-HJKMNP-TV-Z]{16}\.json", key)
    assert generation_of_state(key) == 7
    assert generation_of_state("t/7.json") is None
    assert generation_of_state("s/00000000000000000007-0123456789ABCDEF.json") is None
    names = [new_state_name(generation, lambda n: b"\xff" * n) for generation in (9, 10, 100)]
    assert names == sorted(names)


def test_coordinates_are_those_of_the_draft() -> None:
    known = json.loads((DRAFT / "coords.json").read_text())
    for text, wanted in known["big_endian_uint16_hex"].items():
        coords = json.loads(text)
        assert encode_coords(np.array([coords], dtype=np.uint64).reshape(1, -1), 2).tobytes().hex() == wanted
        assert decode_coords(bytes.fromhex(wanted), 1, len(coords)).tolist() == [coords]
    for coords in known["not_representable"]:
        assert min(coords) < 0 or width_for(max(coords)) > 2


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 70_000)), min_size=1, max_size=20))
def test_coordinates_sort_as_their_bytes_in_every_width(rows: list[tuple[int, int]]) -> None:
    """D16"""
    coords = np.array(rows, dtype=np.uint64)
    width = width_for(max(map(max, rows)))
    encoded = encode_coords(coords, width)
    assert decode_coords(encoded.tobytes(), len(rows), 2).tolist() == [list(row) for row in rows]
    assert (encode_coords(np.asfortranarray(coords), width) == encoded).all()
    as_bytes = [bytes(row) for row in encoded]
    assert [rows[i] for i in sorted(range(len(rows)), key=as_bytes.__getitem__)] == sorted(rows)


def test_coordinates_of_other_lengths_are_refused() -> None:
    with pytest.raises(Corruption, match="not 2, 4 or 8"):
        decode_coords(b"123", 1, 1)
    with pytest.raises(Corruption, match="0 dimensions"):
        decode_coords(b"1", 1, 0)
    with pytest.raises(InvalidInput):
        width_for(2**64)


# -- states ------------------------------------------------------------------------------------------------------------

FIRST = Snapshot("A", None, 1, "S1", {"message": "first"})
SECOND = Snapshot("B", "A", 2, "S2")
STATE = State("store", 3, "memory://x", {"A": FIRST, "B": SECOND}, {"main": Ref("B", "branch"), "v1": Ref("A", "tag")}, {"other": [1]})


def changed(**members: Any) -> bytes:
    return json.dumps(json.loads(encode_state(STATE)) | members).encode()


def test_a_state_comes_back() -> None:
    assert decode_state(encode_state(STATE)) == STATE
    found = json.loads(encode_state(STATE))
    assert found["refs"]["v1"] == {"name": "v1", "snapshot-id": "A", "type": "tag"}
    assert found["snapshots"][1] == {"snapshot-id": "B", "parent-snapshot-id": "A", "timestamp-ms": 2, "structure-file": "S2"}


def test_what_may_be_missing_may_be_missing() -> None:
    """D3, D13"""
    bare = {"id": "x", "generation": 0, "snapshots": [{**json.loads(encode_state(STATE))["snapshots"][0], "structure-file": "s/S1"}]}
    state = decode_state(json.dumps(bare).encode())
    assert (state.root, dict(state.refs), state.snapshots["A"].structure) == ("", {}, "S1")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no state file"),
        (b"[]", "no state file"),
        (changed(generation=-1), "generation is -1"),
        (changed(generation=True), "generation is True"),
        (changed(id=""), "id is ''"),
        (changed(snapshots=[*json.loads(encode_state(STATE))["snapshots"]] * 2), "names a snapshot twice"),
        (changed(snapshots=json.loads(encode_state(STATE))["snapshots"][1:]), "behind its parent 'A'"),
        (changed(snapshots=json.loads(encode_state(STATE))["snapshots"][::-1]), "'B' does not stand behind its parent 'A'"),
        (changed(refs={"main": {"name": "other", "snapshot-id": "A", "type": "tag"}}), "names itself 'other'"),  # D10
        (changed(refs={"main": {"name": "main", "snapshot-id": "A", "type": "twig"}}), "type 'twig'"),
        (changed(refs={"main": {"name": "main", "snapshot-id": "C", "type": "tag"}}), "points to snapshot 'C'"),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(Corruption, match=re.escape(message)):
        decode_state(data)


def test_the_parent_of_a_snapshot_that_is_left_out_takes_its_place() -> None:
    """D8"""
    parents = {"a": None, "b": "a", "c": "b", "d": "c", "e": "b"}
    snapshots = {id_: Snapshot(id_, parent, 10 + number, f"s{id_}") for number, (id_, parent) in enumerate(parents.items())}
    state = State("x", 7, "", snapshots, {"main": Ref("d", "branch"), "v": Ref("e", "tag")})
    left = state.without({"b", "c"})
    assert {id_: one.parent for id_, one in left.snapshots.items()} == {"a": None, "d": "a", "e": "a"}
    assert {id_: dict(one.properties) for id_, one in left.snapshots.items()} == {
        "a": {},
        "d": {"shardstore.parent": "c"},
        "e": {"shardstore.parent": "b"},
    }
    again = left.without({"a"})
    assert {id_: one.parent for id_, one in again.snapshots.items()} == {"d": None, "e": None}
    assert again.snapshots["d"].properties == {"shardstore.parent": "c"}
    assert (left.generation, again.generation) == (8, 9)
    assert decode_state(encode_state(again)) == again
    with pytest.raises(InvalidInput, match="branch 'main' points to snapshot 'd'"):
        state.without({"d"})


def test_state_names_snapshots_of_sessions_that_are_older_than_the_last_collection() -> None:
    """D38"""
    collected = STATE.collected(LastCollection("t/garbage-00000000000000000004-0123456789ABCDEFGHJK.parquet", 0, is_removing=False))
    assert collected.collection is not None
    assert (collected.generation, collected.collection.generation) == (4, 4)
    late = {began: collected.committed(Snapshot("C", "B", 3, "S3"), "main", began).collection for began in (0, 3, 4, 5)}
    assert {began: one.late for began, one in late.items() if one is not None} == {0: ("S3",), 3: ("S3",), 4: (), 5: ()}
    again = decode_state(encode_state(collected.committed(Snapshot("C", "B", 3, "S3"), "main", 3)))
    assert again.collection == replace(collected.collection, late=("S3",))
    both = again.committed(Snapshot("D", "C", 4, "S4"), "main", 2)
    assert both.collection is not None
    assert both.collection.late == ("S3", "S4")
    assert both.collected(collected.collection).collection == collected.collection
    for late_ in ("S3", [3], None):
        damaged = decode_state(encode_state(replace(STATE, extra={COLLECTION: {**both.collection.to_json(), "late": late_}})))
        with pytest.raises(Corruption, match="which is none"):
            _ = damaged.collection


def test_the_next_state_has_the_next_generation() -> None:
    """D5, D6"""
    then = STATE.committed(Snapshot("C", "B", 3, "S3"), "main")
    assert (then.generation, list(then.snapshots), then.refs["main"].snapshot) == (4, ["A", "B", "C"], "C")
    assert [one.id for one in then.ancestry("C")] == ["C", "B", "A"]
    assert STATE.committed(Snapshot("C", "B", 3, "S3"), None).refs == STATE.refs
    with pytest.raises(NotFound, match="has expired"):
        list(STATE.ancestry("C"))
    with pytest.raises(NotFound, match="there is no branch 'v1': there are 'main'"):
        STATE.ref("v1", "branch")
    assert STATE.ref("v1", "tag") == Ref("A", "tag")
    for name in ("", "a@b", " a", "a\0"):
        with pytest.raises(InvalidInput):
            check_ref_name(name)


# -- manifests ---------------------------------------------------------------------------------------------------------


def refs_of(rows: dict[tuple[int, ...], Any], ndim: int) -> ChunkRefs:
    """Return references from ``(file, offset, nbytes)``, with a check behind them or without one, bytes, or ``None`` by coordinates."""
    files: list[tuple[Any, Any]] = []
    file, offset, nbytes, inline = [], [], [], {}
    for number, coords in enumerate(sorted(rows)):
        match rows[coords]:
            case None:
                place = (GONE, 0, 0)
            case bytes() as data:
                inline[number] = data
                place = (INLINE, 0, len(data))
            case (name, start, length, *check):
                one = name, check[0] if check else None
                files += [] if one in files else [one]
                place = (files.index(one), start, length)
        file.append(place[0])
        offset.append(place[1])
        nbytes.append(place[2])
    coords_ = np.array(sorted(rows), dtype=np.uint64).reshape(len(rows), ndim)
    columns = np.array(file, np.int32), np.array(offset, np.uint64), np.array(nbytes, np.uint64)
    checks = {number: check for number, (_, check) in enumerate(files) if check is not None}
    return ChunkRefs(coords_, *columns, [name for name, _ in files], inline, checks)


def rows_of(refs: ChunkRefs) -> dict[tuple[int, ...], Any]:
    found: dict[tuple[int, ...], Any] = {}
    for row, coords in enumerate(refs.coords.tolist()):
        number = int(refs.file[row])
        place: Any = None
        if number >= 0:
            check = refs.checks.get(number)
            place = refs.files[number], int(refs.offset[row]), int(refs.nbytes[row]), *([] if check is None else [check])
        found[tuple(coords)] = refs.inline[row] if number == INLINE else place
    return found


FILES: list[Any] = [b"123456789012", b"abcdefghijkl", "s3://bucket/a.nc", "file:///b.nc"]
CHECKS = [VirtualCheck("one", None), VirtualCheck("other", None), VirtualCheck(None, 5), VirtualCheck(None, 6), VirtualCheck("one", 5)]
spans = st.integers(0, 2**64 - 1), st.integers(0, 2**40)
places = st.one_of(
    st.none(),
    st.binary(max_size=4),
    st.tuples(st.sampled_from(FILES), *spans),
    st.tuples(st.sampled_from(FILES[2:]), *spans, st.sampled_from(CHECKS)),
)
chunks = st.dictionaries(st.tuples(st.integers(0, 70_000), st.integers(0, 3)), places, max_size=12)


@given(chunks, chunks, st.booleans())
def test_manifests_come_back(one: dict[tuple[int, ...], Any], other: dict[tuple[int, ...], Any], scalar: bool) -> None:
    arrays = {3: refs_of(one, 2), 9: refs_of(other, 2)} | ({5: refs_of({(): b"x"}, 0)} if scalar else {})
    table = pq.read_table(pa.BufferReader(encode_manifest(arrays)))
    found = decode_table(table, {3: 2, 5: 0, 9: 2})
    assert {number: rows_of(refs) for number, refs in found.items()} == {n: rows_of(refs) for n, refs in arrays.items() if len(refs)}
    assert set(decode_table(table, {9: 2})) <= {9}
    assert table["array_id"].to_pylist() == sorted(table["array_id"].to_pylist())  # D23


def test_the_schema_is_the_draft_s() -> None:
    """D27"""
    assert manifest_schema() == pa.ipc.read_schema(pa.py_buffer((DRAFT / "manifest.arrows").read_bytes()))
    rows: dict[tuple[int, ...], Any] = {(5, 30): (FILES[0], 7, 8), (65535, 0): b""}
    found = pq.read_table(pa.BufferReader(encode_manifest({0: refs_of(rows, 2)}, draft=True)))
    assert found.schema == manifest_schema()
    assert not found.schema.metadata
    assert found["coord"].to_pylist() == [bytes.fromhex("0005001e"), bytes.fromhex("ffff0000")]


@pytest.mark.parametrize(
    ("rows", "message"),
    [({(65536,): None}, "65,535"), ({(0,): (FILES[0], 0, 2**32)}, "4 GiB")],  # D16, D36
)
def test_what_does_not_fit_is_wider_or_refused(rows: dict[tuple[int, ...], Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        encode_manifest({0: refs_of(rows, 1)}, draft=True)
    table = manifest_table({0: refs_of(rows, 1)})
    assert table.schema.metadata
    assert rows_of(decode_table(table, {0: 1})[0]) == rows


def test_virtual_files_have_checks_where_they_are_known() -> None:
    """D30"""
    rows: dict[tuple[int, ...], Any] = {}
    rows |= {(0,): (FILES[2], 0, 1, CHECKS[0]), (1,): (FILES[0], 0, 1), (2,): (FILES[3], 0, 1, CHECKS[2]), (3,): (FILES[2], 0, 1)}
    refs = refs_of(rows, 1)
    table = manifest_table({0: refs})
    assert table["etag"].to_pylist() == ["one", None, None, None]
    assert table["last_modified"].to_pylist() == [None, None, 5, None]
    assert rows_of(decode_table(table, {0: 1})[0]) == rows
    with pytest.raises(InvalidInput, match="checksums"):
        encode_manifest({0: refs}, draft=True)


def table_of(**columns: Any) -> Any:
    n = len(next(iter(columns.values())))
    empty: dict[str, list[Any]] = {name: [None] * n for name in manifest_schema().names} | {"array_id": [0] * n, "length": [0] * n}
    return pa.table(empty | columns, schema=manifest_schema())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (table_of(coord=[b"\0\0"], inline_data=[b"x"], chunk_id=[b"123456789012"]), "two places"),  # D29
        (table_of(coord=[b"\0\1", b"\0\0"]), "not sorted"),
        (table_of(coord=[b"\0\1", b"\0\1"]), "there twice"),
        (table_of(coord=[b"\0\0", b"\0\0\0\1"]), "bytes"),
        (table_of(coord=[b"\0"]), "bytes"),
        (table_of(coord=[b"\0\0"], chunk_id=[b"short"]), "5 bytes, and not 12"),
        (table_of(coord=[b"\0\0", b"\0\0", b"\0\1"], array_id=[0, 1, 0]), "not sorted by its arrays"),
        (table_of(coord=[b"\0\0", b"\0\0"], array_id=[1, 0]), "not sorted by its arrays"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(table: Any, message: str) -> None:
    with pytest.raises(Corruption, match=message):
        decode_table(table, {0: 1, 1: 1})


def test_an_offset_that_is_not_given_is_0() -> None:
    """D29"""
    (refs,) = decode_table(table_of(coord=[b"\0\0"], chunk_id=[b"123456789012"], length=[4]), {0: 1}).values()
    assert rows_of(refs) == {(0,): (b"123456789012", 0, 4)}


@given(chunks, chunks)
def test_the_newer_of_two_manifests_counts(older: dict[tuple[int, ...], Any], newer: dict[tuple[int, ...], Any]) -> None:
    """D25, D26"""
    assert rows_of(merged(refs_of(older, 2), refs_of(newer, 2))) == dict(sorted((older | newer).items()))


def test_no_flipped_bit_of_a_state_is_taken_for_content() -> None:
    state = State("id", 7, "s3://b/r", {"A": Snapshot("A", None, 5, "S", {"message": "one"})}, {"main": Ref("A", "branch")}, {"x": 1})
    data = encode_state(state)
    assert decode_state(data) == state
    for number in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[number // 8] ^= 1 << number % 8
        try:
            found = decode_state(bytes(damaged))
        except Corruption:
            continue
        assert replace(found, extra={"x": 1}) == state  # the name of the checksum itself is another one now
        assert found.extra["x"] == 1
