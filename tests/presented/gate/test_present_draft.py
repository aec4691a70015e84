"""``present="draft"``: the 2022 draft's own keys and documents over a stored draft hierarchy, without its storage transformer."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore import ShardedMap, ShardingTransformer
from shardstore.errors import Corruption, InvalidInput, ShardStoreError, Unsupported
from tests.adapters.transformer.layers import document

FIXTURES = Path(__file__).parents[2] / "fixtures"
CASES = sorted(path for path in (FIXTURES / "transformer2022").iterdir() if path.is_dir())
HANDMADE = FIXTURES / "handmade_transformer/layout2022"
HAND_CASES = json.loads((HANDMADE / "case.json").read_text())["cases"]

LOST_CODEC = {"codec": "https://example.org/lost", "configuration": {}}
ENTRY_POINT = b'{"extensions": [], "metadata_encoding": "%b", "metadata_key_suffix": ".json", "zarr_format": "%b"}' % (
    (b"https://purl.org/zarr/spec/protocol/core/3.0",) * 2
)


def files(root: Path) -> set[str]:
    return {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and not p.name.startswith(".")}


def opened(root: Path, **options: Any) -> ShardingTransformer:
    return ShardingTransformer(str(root), present="draft", **({"chunks_per_shard": lambda array: (2,) * len(array.shape)} | options))


# -- fixtures: written by zarr-python 2.18, and by hand ------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_listings_of_fixtures(case: Path) -> None:
    store = ShardingTransformer(str(case / "store"), read_only=True, present="draft")
    with np.load(case / "expected_chunks.npz") as chunks:
        everything = {*chunks, "zarr.json", *(f"meta/{p.relative_to(case / 'store/meta')}" for p in (case / "store/meta").rglob("*.json"))}
    assert set(store.list()) == everything
    for expected in json.loads((case / "expected_listing.json").read_text()).values():
        for prefix, keys in expected["list_prefix"].items():
            assert store.list_prefix(prefix) == sorted(keys)
        for prefix, below in expected["list_dir"].items():
            keys, prefixes = store.list_dir(prefix)
            assert keys == sorted(below["keys"])
            assert set(prefixes) >= set(below["prefixes"])
            exact = ShardedMap(str(case / "store"), read_only=True, present="draft").listdir(prefix)
            assert exact == sorted(name[len(prefix) :].rstrip("/") for name in (*below["keys"], *below["prefixes"]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_chunks_and_ranges_of_fixtures(case: Path) -> None:
    store = ShardingTransformer(str(case / "store"), read_only=True, present="draft")
    with np.load(case / "expected_chunks.npz") as chunks:
        for key, value in chunks.items():
            assert store.get(key) == value.tobytes()
    ranges = json.loads((case / "expected_ranges.json").read_text())
    asked = [(r["key"], (r["start"], r["length"])) for r in ranges]
    assert store.get_partial_values(asked) == [None if r["value"] is None else bytes.fromhex(r["value"]) for r in ranges]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_documents_of_fixtures(case: Path) -> None:
    store = ShardingTransformer(str(case / "store"), read_only=True, present="draft")
    for path in (case / "store/meta").rglob("*.json"):
        stored, shown = json.loads(path.read_bytes()), json.loads(store.get(f"meta/{path.relative_to(case / 'store/meta')}") or b"")
        assert shown == {member: value for member, value in stored.items() if member != "storage_transformers"}
    assert store.get("zarr.json") == (case / "store/zarr.json").read_bytes()


@pytest.mark.parametrize("case", sorted(HAND_CASES))
def test_made_by_hand(case: str) -> None:
    store, expected = ShardingTransformer(str(HANDMADE / "store"), read_only=True, present="draft"), HAND_CASES[case]
    error_at = expected.get("error_at")
    for chunk in range(4):
        key = f"data/root/{case}/c{chunk}"
        if error_at == "index" or (error_at is not None and chunk in error_at):
            with pytest.raises(Corruption, match=case):
                store.get(key)
        elif error_at is None:
            assert list(store.get(key) or b"\0\0") == expected["values"][2 * chunk : 2 * chunk + 2]
        else:
            store.get(key)


def test_foreign_keys_made_by_hand() -> None:
    store = ShardingTransformer(str(HANDMADE / "store"), read_only=True, present="draft")
    prefix = "data/root/foreign_keys/"
    chunks = [f"{prefix}c{i}" for i in range(4)]
    assert store.list_prefix(prefix) == sorted([*chunks, f"{prefix}c/0", f"{prefix}cx", f"{prefix}notes.txt"])
    assert store.list_dir(prefix) == (sorted([*chunks, f"{prefix}cx", f"{prefix}notes.txt"]), [f"{prefix}c/"])
    for key in ("c/0", "cx", "notes.txt"):
        assert store.get(prefix + key) == (HANDMADE / "store" / prefix / key).read_bytes()


# -- written ---------------------------------------------------------------------------------------------------------------


def test_documents_come_back_as_they_were_given(tmp_path: Path) -> None:
    """But for white space: numbers keep their form, and members that nobody defines stay."""
    store = opened(tmp_path)
    odd = document((5, 3), (2, 2), fill_value=0, attributes={"scale": 1.50, "big": 10**30}, hint={"must_understand": False, "a": 1e2})
    given = odd.replace(b'"scale": 1.5', b'"scale": 1.500').replace(b"100.0", b"1E+2")
    store.set("meta/root/g/x.array.json", given)
    store.set("meta/root/g.group.json", b'{"attributes": {"a": 1.0}}')
    assert store.get("meta/root/g/x.array.json") == given
    assert json.loads(store.get("meta/root/g.group.json") or b"") == {"attributes": {"a": 1.0}}
    stored = (tmp_path / "meta/root/g/x.array.json").read_bytes()
    assert json.loads(stored) == json.loads(given) | {
        "storage_transformers": [
            {
                "configuration": {"chunks_per_shard": [2, 2]},
                "extension": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
                "type": "indexed",
            }
        ]
    }
    assert b"1.500" in stored
    assert b"1E+2" in stored
    assert json.loads((tmp_path / "zarr.json").read_bytes()) == json.loads(ENTRY_POINT)
    shown = zarr.open_array(shardstore.open(str(tmp_path)), path="g/x", mode="r")
    assert (shown.shape, shown.chunks, shown.attrs["big"]) == ((5, 3), (2, 2), 10**30)


def test_chunks_are_packed_and_seen_by_both_views(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.set_partial_values(
        [("data/root/x/c0/0", 0, b"aaaa"), ("data/root/x/c2/1", 0, b"bbbb")]
    )  # before there is an array: objects of their own
    assert files(tmp_path) == {"data/root/x/c0/0", "data/root/x/c2/1"}
    store.erase_values(["data/root/x/c0/0", "data/root/x/c2/1"])
    store.set("meta/root/x.array.json", document((6, 4), (2, 2)))
    store.set_partial_values([("data/root/x/c0/0", 0, b"aaaa"), ("data/root/x/c2/1", 0, b"bbbb")])
    assert files(tmp_path) == {"zarr.json", "meta/root/x.array.json", "data/root/x/c0/0", "data/root/x/c1/0"}
    other = ShardingTransformer(str(tmp_path))
    assert (other.get("x/c/0/0"), other.get("x/c/2/1")) == (b"aaaa", b"bbbb")
    assert other.list() == ["x/c/0/0", "x/c/2/1", "x/zarr.json", "zarr.json"]
    other.erase("x/c/2/1")
    assert store.list() == ["data/root/x/c0/0", "meta/root/x.array.json", "zarr.json"]
    assert not (tmp_path / "data/root/x/c1/0").exists()


def test_one_batch_in_any_order(tmp_path: Path) -> None:
    """A copy of a hierarchy brings chunks before the documents that give them a meaning, a 0-d array's too."""
    store = ShardedMap(str(tmp_path), present="draft", chunks_per_shard=lambda array: (2,) * len(array.shape))
    values = {
        "data/root/s/c0": b"s",
        "data/root/x/c0": b"aa",
        "data/root/x/c1": b"bb",
        "data/root/x/c00": b"foreign",
        "meta/root/s.array.json": document((), ()),
        "meta/root/x.array.json": document((4,), (2,)),
        "zarr.json": ENTRY_POINT,
    }
    store.setitems(values)
    assert {key: bytes(value) for key, value in store.items()} == values
    assert files(tmp_path) == {
        "zarr.json",
        *(f"meta/root/{n}.array.json" for n in "sx"),
        *(f"data/root/{n}" for n in ("s/c0", "x/c0", "x/c00")),
    }
    assert (tmp_path / "data/root/x/c0").stat().st_size == 4 + 2 * 16
    store.delitems(values)
    assert list(store) == []
    assert not files(tmp_path)


@pytest.mark.parametrize(
    "key",
    [
        "data/root/x/c00",
        "data/root/x/c0/00",
        "data/root/x/c/0",
        "data/root/x/c0/1/2",
        "data/root/x/c0.1",
        "data/root/x/notes.txt",
        "data/root/x/cx",
        "data/root/x/zarr.json",
        "data/root/y/c0/0",
        "meta/root/notes.txt",
        "meta/root/x",
        "other/key",
        "zarr.json.bak",
        "x/zarr.json",
        "data/root/.draft2022/a~",
    ],
)
def test_what_is_no_chunk_is_stored_as_it_is(tmp_path: Path, key: str) -> None:
    store = opened(tmp_path)
    store.set("meta/root/x.array.json", document((6, 4), (2, 2)))
    store.set("data/root/x/c0/0", b"aaaa")
    before = {"zarr.json", "meta/root/x.array.json", "data/root/x/c0/0"}
    assert store.get(key) is None
    store.set(key, b"something")
    store.set_partial_values([(key, 4, b"where")])
    assert (tmp_path / key).read_bytes() == b"somewhere"
    assert store.get_partial_values([(key, (1, 3)), (key, (-2, None)), ("data/root/x/c0/0", None)]) == [b"ome", b"re", b"aaaa"]
    assert set(store.list()) == before | {key}
    parent = key.rpartition("/")[0] + "/" if "/" in key else ""
    assert key in store.list_dir(parent)[0]
    assert store.list_prefix(key) == sorted(k for k in before | {key} if k.startswith(key))
    store.erase(key)
    assert files(tmp_path) == before


def test_the_array_at_the_root(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.set("meta/root.array.json", document((6, 6), (2, 2)))
    store.set_partial_values([(f"data/root/c{i}/{j}", 0, b"aaaa") for i in range(3) for j in range(3)])
    store.set("data/root/notes", b"foreign")
    assert files(tmp_path) == {
        "zarr.json",
        "meta/root.array.json",
        "data/root/notes",
        *(f"data/root/c{i}/{j}" for i in (0, 1) for j in (0, 1)),
    }
    assert store.list_dir("data/root/") == (["data/root/notes"], ["data/root/c0/", "data/root/c1/", "data/root/c2/"])
    assert store.list_dir("data/root/c2/") == ([f"data/root/c2/{j}" for j in range(3)], [])
    assert store.list_dir("meta/") == (["meta/root.array.json"], [])
    assert np.asarray(zarr.open_array(shardstore.open(str(tmp_path)), mode="r")[...]).tolist() == [[97] * 6] * 6
    store.erase_prefix("data/root/c1/")
    assert store.list_prefix("data/") == [*(f"data/root/c{i}/{j}" for i in (0, 2) for j in range(3)), "data/root/notes"]
    store.erase_prefix("data/root/")
    assert files(tmp_path) == {"zarr.json", "meta/root.array.json"}


def test_both_names_of_the_chunk_of_a_scalar(tmp_path: Path) -> None:
    """The draft's ``c`` and zarr-python 2.18's ``c0``; listed is the one that is stored."""
    store = opened(tmp_path)
    store.set("meta/root/s.array.json", document((), ()))
    store.set("data/root/s/c", b"x")
    assert [store.get(f"data/root/s/{name}") for name in ("c", "c0")] == [b"x", b"x"]
    assert files(tmp_path) == {"zarr.json", "meta/root/s.array.json", "data/root/s/c0"}
    assert store.list_dir("data/root/s/") == (["data/root/s/c0"], [])
    assert [store.list_prefix(prefix) for prefix in ("data/root/", "data/root/s/c", "data/root/s/c0")] == [["data/root/s/c0"]] * 3
    store.erase("data/root/s/c0")
    assert store.get("data/root/s/c") is None
    assert files(tmp_path) == {"zarr.json", "meta/root/s.array.json"}


def test_documents_of_a_transaction(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.set("meta/root/old.array.json", document((4,), (2,)))
    store.set("data/root/old/c0", b"oo")
    with store.transaction():
        store.set("meta/root/x.array.json", document((4,), (2,)))
        store.set("data/root/x/c1", b"bb")
        store.set("data/root/x/c00", b"foreign")
        store.erase("meta/root/old.array.json")
        store.erase("data/root/old/c0")
        inside = store.list()
        assert store.get("meta/root/x.array.json") == document((4,), (2,))
        assert "meta/root/x.array.json" not in files(tmp_path)
    assert store.list() == inside == ["data/root/x/c00", "data/root/x/c1", "meta/root/x.array.json", "zarr.json"]
    assert opened(tmp_path).list() == inside
    with store.transaction():
        store.erase_prefix("data/root/x/")
        inside = store.list()
    assert store.list() == inside == ["meta/root/x.array.json", "zarr.json"]


def test_erasing_by_prefix(tmp_path: Path) -> None:
    """Metadata and data are erased by prefixes of their own."""
    store = opened(tmp_path)
    for path in ("a", "g/a"):
        store.set(f"meta/root/{path}.array.json", document((6, 6), (2, 2)))
        store.set_partial_values([(f"data/root/{path}/c{i}/{j}", 0, b"aaaa") for i in range(3) for j in range(3)])
        store.set(f"data/root/{path}/notes", b"")
    store.erase_prefix("data/root/a/c1/")
    assert store.list_prefix("data/root/a/") == [f"data/root/a/{k}" for k in ("c0/0", "c0/1", "c0/2", "c2/0", "c2/1", "c2/2", "notes")]
    store.erase_prefix("data/root/a/c2/")
    assert not (tmp_path / "data/root/a/c1").exists()
    store.erase_prefix("data/root/a/")
    others = [*(f"data/root/g/a/c{i}/{j}" for i in range(3) for j in range(3)), "data/root/g/a/notes"]
    assert store.list() == [*others, "meta/root/a.array.json", "meta/root/g/a.array.json", "zarr.json"]
    assert store.get("meta/root/a.array.json") is not None
    store.erase_prefix("meta/root/g/")
    assert store.list_prefix("meta/") == ["meta/root/a.array.json"]
    assert len(store.list_prefix("data/root/g/a/")) > 0, "the draft erases an array by two operations"
    store.erase_prefix("data/")
    assert files(tmp_path) == {"zarr.json", "meta/root/a.array.json"}
    store.erase_prefix("")
    assert not files(tmp_path)
    store.set("meta/root/b.group.json", b'{"attributes": {}}')
    assert files(tmp_path) == {"zarr.json", "meta/root/b.group.json"}, "the entry point is made again"
    with pytest.raises(InvalidInput, match="does not end with"):
        store.erase_prefix("data/root/a")


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize(
    ("prefix", "erased"),
    [
        ("data/root/c0/", ["c0/c0/0", "c0/c1/1", "c0/notes"]),  # and not the array "0" in the group "c"
        ("data/root/c/", ["c/0/c0/0", "c/0/c1/1"]),
        ("data/root/c/0/", ["c/0/c0/0", "c/0/c1/1"]),
        ("data/root/c/0/c0/", ["c/0/c0/0"]),
        ("data/root/x/c/", ["x/c/0"]),  # a foreign key, and no chunk
        ("data/root/x/c/0/", []),
        ("data/root/x/c0/", ["x/c0/0", "x/c0/notes"]),
        ("data/root/x/c1/", ["x/c1/1"]),
        ("data/root/x/", ["x/c0/0", "x/c1/1", "x/c/0", "x/c0/notes"]),
    ],
)
def test_nothing_else_is_erased(tmp_path: Path, prefix: str, erased: list[str], in_transaction: bool) -> None:
    store = opened(tmp_path)
    for path in ("x", "c0", "c/0"):
        store.set(f"meta/root/{path}.array.json", document((6, 6), (2, 2)))
        store.set_partial_values([(f"data/root/{path}/c0/0", 0, b"aaaa"), (f"data/root/{path}/c1/1", 0, b"aaaa")])
    for key in ("x/c/0", "x/c0/notes", "c0/notes"):
        store.set(f"data/root/{key}", b"foreign")
    before = set(store.list())
    with store.transaction() if in_transaction else nullcontext():
        store.erase_prefix(prefix)
    assert before - set(store.list()) == {f"data/root/{key}" for key in erased}
    assert set(opened(tmp_path).list()) == set(store.list())


def test_a_row_of_whole_shards_is_erased_and_nothing_else(tmp_path: Path) -> None:
    store = opened(tmp_path, chunks_per_shard=(1, 2))
    store.set("meta/root/x.array.json", document((6, 6), (2, 2)))
    store.set_partial_values([(f"data/root/x/c{i}/{j}", 0, b"aaaa") for i in range(2) for j in range(3)])
    store.set("data/root/x/c/0/notes", b"foreign")
    store.erase_prefix("data/root/x/c0/")
    assert store.list_prefix("data/") == ["data/root/x/c/0/notes", *(f"data/root/x/c1/{j}" for j in range(3))]


def test_a_resize_of_zarr_python_2_loses_nothing(tmp_path: Path) -> None:
    """It writes the document anew without its transformers; here it never sees them."""
    store = opened(tmp_path)
    store.set("meta/root/x.array.json", document((8,), (2,)))
    store.set("data/root/x/c1", b"bb")
    store.set("meta/root/x.array.json", document((20,), (2,)))
    assert "storage_transformers" in json.loads((tmp_path / "meta/root/x.array.json").read_bytes())
    assert opened(tmp_path).get("data/root/x/c1") == b"bb"
    with pytest.raises(InvalidInput, match="cannot change while it has chunks"):
        store.set("meta/root/x.array.json", document((20,), (4,)))
    assert json.loads(store.get("meta/root/x.array.json") or b"")["shape"] == [20]


# -- refused ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("meta/root/x.array.json", b"[]", "not a JSON object|no JSON object|object"),
        ("meta/root/x.array.json", b'{"zarr_format": 3, "node_type": "array"}', "cannot be stored"),
        (
            "meta/root/x.array.json",
            document((4,), (2,), compressor=LOST_CODEC),
            "not known",
        ),
        ("meta/root/x.array.json", document((4,), (2,), data_type="<m9"), "cannot be stored"),
        ("meta/root/a b.array.json", document((4,), (2,)), "has no node named"),
        ("zarr.json", b"{}", "not the entry point"),
        ("zarr.json", ENTRY_POINT.replace(b".json", b".yaml"), "metadata_key_suffix"),
        ("zarr.json", b'{"zarr_format": 3, "node_type": "group"}', "not the entry point"),
    ],
)
def test_documents_that_cannot_be(tmp_path: Path, key: str, value: bytes, reason: str) -> None:
    store = opened(tmp_path)
    with pytest.raises(InvalidInput, match=reason):
        store.set(key, value)
    assert not {k for k in files(tmp_path) if k != "zarr.json"}
    with pytest.raises(InvalidInput, match="written as a whole"):
        store.set_partial_values([(key, 0, value)])


def test_final_v3_is_no_draft(tmp_path: Path) -> None:
    zarr.create_array(shardstore.open(str(tmp_path)), name="a", shape=(4,), chunks=(2,), dtype="<i4")
    zarr.open_group(shardstore.open(str(tmp_path)), mode="a")  # zarr-python 3.4 does not make the root's group by itself
    store = opened(tmp_path)
    for operation in (store.list, lambda: store.get("meta/root/a.array.json"), lambda: store.set("data/root/a/c0", b"x")):
        with pytest.raises(InvalidInput, match="document of a Zarr v3 node"):
            operation()
    for stored in ("codec", "transformer-v3"):
        with pytest.raises(InvalidInput, match="present='draft'"):
            ShardingTransformer(str(tmp_path), present="draft", stored=stored)


def test_whole_nodes_are_moved_elsewhere(tmp_path: Path) -> None:
    store = ShardedMap(str(tmp_path), present="draft")
    store["meta/root/x.array.json"] = document((8,), (2,))
    with pytest.raises(Unsupported, match="present='v3'"):
        store.rename("data/root/x", "data/root/y")


def test_what_cannot_be_translated_is_shown_as_it_is_stored(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.set("meta/root/x.array.json", document((4,), (2,)))
    for data in (
        document((4,), (2,), compressor=LOST_CODEC),
        b"{broken",
        b'{"zarr_format": 3, "node_type": "array"}',
    ):
        (tmp_path / "meta/root/y.array.json").write_bytes(data)
        other = opened(tmp_path, metadata_ttl=0)
        assert other.get("meta/root/y.array.json") == data
        assert other.get("meta/root/y.group.json") is None
        assert "meta/root/y.array.json" in other.list()
        with pytest.raises(ShardStoreError, match="y"):
            other.set("data/root/y/c0", b"x")
    store.erase("meta/root/y.array.json")
    assert store.list_prefix("meta/") == ["meta/root/x.array.json"]
