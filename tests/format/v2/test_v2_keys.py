"""Keys of Zarr v2 against canonical ones: every kind by example, and the laws by Hypothesis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.format.store_keys import is_path
from shardstore.format.v2.keys import (
    DOCUMENT_NAMES,
    V2DocumentKey,
    canonical_chunk_key,
    canonical_chunk_prefix,
    document_key,
    v2_chunk_key,
)

DOTS, SLASHES = ChunkKeyEncoding("default", "."), ChunkKeyEncoding("default", "/")
FOREIGN = ChunkKeyEncoding("v2", "/")


@pytest.mark.parametrize("name", [".zarray", ".zgroup", ".zattrs", ".zmetadata"])
def test_documents(name: str) -> None:
    assert document_key(name) == V2DocumentKey("", name)
    assert document_key(f"a/0/{name}") == V2DocumentKey("a/0", name)
    assert document_key(f"{name}/{name}") == V2DocumentKey(name, name)
    for key in (f"{name}x", f"x{name}", f"{name}/", f"/{name}", f"a//{name}", f"a/../{name}", f"./{name}", name.upper(), f"a\\{name}"):
        assert document_key(key) is None


@pytest.mark.parametrize("key", ["", "zarr.json", "a/zarr.json", "0.0", ".z", ".zgroups"])
def test_what_is_no_document(key: str) -> None:
    assert document_key(key) is None


@pytest.mark.parametrize(
    ("key", "canonical", "encoding", "ndim"),
    [
        ("0.1", "c.0.1", DOTS, 2),
        ("0/1", "c/0/1", SLASHES, 2),
        ("10", "c.10", DOTS, 1),
        ("10", "c/10", SLASHES, 1),
        ("0", "c", DOTS, 0),
        ("0", "c", SLASHES, 0),
        ("9999999999999999999.0.0", "c.9999999999999999999.0.0", DOTS, 3),
        ("0/1", "0/1", FOREIGN, 2),
        ("0", "0", FOREIGN, 0),
    ],
)
def test_chunk_keys_go_both_ways(key: str, canonical: str, encoding: ChunkKeyEncoding, ndim: int) -> None:
    assert canonical_chunk_key(key, encoding, ndim) == canonical
    assert v2_chunk_key(canonical, encoding, ndim) == key


@pytest.mark.parametrize(
    ("key", "encoding", "ndim"),
    [
        ("0/1", DOTS, 2),
        ("0.1", SLASHES, 2),
        ("0", DOTS, 2),
        ("0.1.2", DOTS, 2),
        ("00.1", DOTS, 2),
        ("+0.1", DOTS, 2),
        ("-1.0", DOTS, 2),
        ("0.1 ", DOTS, 2),
        ("0.1\n", DOTS, 2),
        ("٣.1", DOTS, 2),
        ("10000000000000000000", DOTS, 1),
        ("1e2", DOTS, 1),
        ("", DOTS, 1),
        ("", DOTS, 0),
        ("1", DOTS, 0),
        ("c", DOTS, 0),
        ("0.0", DOTS, 0),
        ("c.0.1", DOTS, 2),
        ("c/0/1", SLASHES, 2),
        ("0/1/", SLASHES, 2),
        ("0//1", SLASHES, 2),
        (".zarray", DOTS, 1),
        ("notes.txt", DOTS, 2),
    ],
)
def test_what_is_no_chunk_key(key: str, encoding: ChunkKeyEncoding, ndim: int) -> None:
    assert canonical_chunk_key(key, encoding, ndim) is None


@pytest.mark.parametrize("canonical", ["0.1", "c.0", "c/0/1", "c.00.1", "c.0.1.2", "c", "zarr.json"])
def test_what_is_no_canonical_chunk_key(canonical: str) -> None:
    assert v2_chunk_key(canonical, DOTS, 2) is None


@pytest.mark.parametrize(
    ("prefix", "encoding", "ndim", "expected"),
    [
        ("", SLASHES, 2, "c/"),
        ("1", SLASHES, 2, "c/"),
        ("1/", SLASHES, 2, "c/1/"),
        ("1/2", SLASHES, 2, "c/1/"),
        ("1.2.", DOTS, 3, "c.1.2."),
        ("", DOTS, 0, "c"),
        ("1/", FOREIGN, 2, "1/"),
        ("01/", SLASHES, 2, "c/"),
    ],
)
def test_prefixes(prefix: str, encoding: ChunkKeyEncoding, ndim: int, expected: str) -> None:
    assert canonical_chunk_prefix(prefix, encoding, ndim) == expected


encodings = st.builds(ChunkKeyEncoding, st.sampled_from(["default", "v2"]), st.sampled_from("./"))
coords = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 10**19 - 1)), max_size=4).map(tuple)
# Few characters, so that texts are keys, or nearly so, as often as possible.
texts = st.text("01c./", max_size=8)


@given(encodings, coords, st.data())
def test_every_chunk_has_one_key_of_each_kind(encoding: ChunkKeyEncoding, position: tuple[int, ...], data: st.DataObject) -> None:
    canonical, ndim = encoding.encode(position), len(position)
    key = v2_chunk_key(canonical, encoding, ndim)
    assert key is not None
    assert key == (encoding.separator.join(map(str, position)) or "0")
    assert canonical_chunk_key(key, encoding, ndim) == canonical
    prefix = key[: data.draw(st.integers(0, len(key)))]
    assert canonical.startswith(canonical_chunk_prefix(prefix, encoding, ndim))


@given(texts, encodings, st.integers(0, 4))
def test_whatever_is_taken_for_a_chunk_comes_back(text: str, encoding: ChunkKeyEncoding, ndim: int) -> None:
    canonical = canonical_chunk_key(text, encoding, ndim)
    if canonical is not None:
        assert v2_chunk_key(canonical, encoding, ndim) == text
        assert encoding.name == "v2" or canonical.startswith("c")
    key = v2_chunk_key(text, encoding, ndim)
    assert key is None or canonical_chunk_key(key, encoding, ndim) == text


@given(st.lists(st.sampled_from(["a", "0", ".zarray", ".", "..", "", "c"]), max_size=4), st.sampled_from(DOCUMENT_NAMES))
def test_documents_lie_where_a_node_can(segments: list[str], name: str) -> None:
    path = "/".join(segments)
    found = document_key(f"{path}/{name}" if segments else name)
    if not segments or is_path(path):
        assert found == V2DocumentKey(path, name)
    else:
        assert found is None
