"""Keys of the 2022 draft against canonical ones: every kind by example, and the laws by Hypothesis."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardstore.format.draft2022.keys import (
    array_document_key,
    canonical_key,
    canonical_prefixes,
    data_key,
    document_path,
    group_document_key,
    scalar_data_keys,
    stored_prefixes,
    unwritable_name,
)

CHUNKS = [
    ("x/c/0/1", "data/root/x/c0/1"),
    ("x/c.0.1", "data/root/x/c0.1"),
    ("x/c/5", "data/root/x/c5"),
    ("x/c", "data/root/x/c"),
    ("c", "data/root/c"),
    ("c/0", "data/root/c0"),
    ("c.10.0.3", "data/root/c10.0.3"),
    ("x/c/0/c/1", "data/root/x/c/0/c1"),  # array "0" in a group "c"
    ("x/c/c/1/2", "data/root/x/c/c1/2"),  # array "c"
    ("c0/c/1", "data/root/c0/c1"),  # array "c0"
    ("c0/c1/c/2", "data/root/c0/c1/c2"),
    ("c/0/c", "data/root/c/0/c"),
    ("0/c.0.0", "data/root/0/c0.0"),
    ("x.y/c/9999999999999999999", "data/root/x.y/c9999999999999999999"),
]


@pytest.mark.parametrize(("canonical", "stored"), CHUNKS)
def test_chunk_keys_go_both_ways(canonical: str, stored: str) -> None:
    assert data_key(canonical) == stored
    assert canonical_key(stored) == canonical


def test_documents() -> None:
    assert array_document_key("") == "meta/root.array.json"
    assert group_document_key("") == "meta/root.group.json"
    assert array_document_key("foo/bar") == "meta/root/foo/bar.array.json"
    assert group_document_key("foo") == "meta/root/foo.group.json"
    for path in ("", "foo", "foo/bar", "x.array", "c/0", "zarr.json"):
        canonical = f"{path}/zarr.json" if path else "zarr.json"
        assert canonical_key(array_document_key(path)) == canonical_key(group_document_key(path)) == canonical
        assert document_path(canonical) == path
        assert data_key(canonical) is None
    assert document_path("x/zarr.json.old") is None
    assert document_path("/zarr.json") is None


@pytest.mark.parametrize("stored", ["data/root/x/notes.txt", "data/root/x/cx", "data/root/notes", "data/root/0/0", "data/root/x/c0/a"])
def test_foreign_keys_keep_their_name(stored: str) -> None:
    canonical = canonical_key(stored)
    assert canonical == stored.removeprefix("data/root/")
    assert data_key(canonical) == stored


@pytest.mark.parametrize(
    "stored",
    [
        "zarr.json",  # the entry point
        "README",
        "data/rooted/x",
        "metadata",
        "meta/rooted.array.json",
        "meta/root/x.txt",
        "meta/root/x/zarr.json",
        "meta/root/.array.json",
        "meta/root/x//y.array.json",
        "meta/root/../y.array.json",
        "data/root/",
        "data/root/x//c0",
        "data/root/./c0",
        "data/root/x/zarr.json",  # would be a document
        "data/root/x/c/5",  # would be the chunk of x/c5
        "data/root/x/c.0.1",
        "data/root/x/c.5",
        "data/root/x/c00",  # zarr-python 2.18 reads chunk 0
        "data/root/x/c0/01",
        "data/root/x/c0/1.2",
        "data/root/x/c10000000000000000000",
    ],
)
def test_what_has_no_canonical_key(stored: str) -> None:
    assert canonical_key(stored) is None


@pytest.mark.parametrize(
    "canonical", ["x/c0", "x/c0.1", "x/c0/1", "x/c/00", "x/c.5", "x/c/0.1", "", "/c/0", "x//c", "x/../c", "x/zarr.json"]
)
def test_what_cannot_be_stored(canonical: str) -> None:
    assert data_key(canonical) is None


def test_the_chunk_of_a_scalar() -> None:
    assert scalar_data_keys("x/y") == ("data/root/x/y/c", "data/root/x/y/c0")
    assert scalar_data_keys("") == ("data/root/c", "data/root/c0")
    assert canonical_key("data/root/x/c0") == "x/c/0"


def test_names_that_the_draft_can_write() -> None:
    assert unwritable_name("") is None
    assert unwritable_name("a/B-_.9/..x") is None
    for path in ("é", "a/b c", "...", "a//b", "x" * 256):
        assert "no node named" in (unwritable_name(path) or "")


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("", ["data/root/", "meta/root"]),
        ("x", ["data/root/x", "meta/root/x"]),
        ("x/", ["data/root/x/", "meta/root/x.", "meta/root/x/"]),
        ("x/c", ["data/root/x/c", "meta/root/x/c"]),
        ("x/c/", ["data/root/x/c", "meta/root/x/c.", "meta/root/x/c/"]),
        ("x/c/1", ["data/root/x/c1", "data/root/x/c/1", "meta/root/x/c/1"]),
        ("x/c.1.", ["data/root/x/c1.", "data/root/x/c.1.", "meta/root/x/c.1."]),
        ("x/c/01", ["data/root/x/c/01", "meta/root/x/c/01"]),
        ("zar", ["data/root/zar", "meta/root.", "meta/root/zar"]),
        ("x/zarr.json", ["data/root/x/zarr.json", "meta/root/x.", "meta/root/x/zarr.json"]),
        ("/", []),
        ("x//", []),
        ("../", []),
    ],
)
def test_prefixes(prefix: str, expected: list[str]) -> None:
    assert stored_prefixes(prefix) == expected


# Few names and small numbers, so that keys of different meaning collide as often as possible.
names = st.sampled_from(["c", "0", "1", "c0", "c1", "x", "c.0", "0.1", "c0.1", "zarr.json", "01", "c00", "x.array.json", "10", ".", ""])
texts = st.builds("/".join, st.lists(names, min_size=1, max_size=5))
paths = st.builds("/".join, st.lists(names.filter(lambda n: n not in ("", ".")), max_size=3))
numbers = st.one_of(st.integers(0, 12), st.integers(0, 10**19 - 1)).map(str)


@st.composite
def chunk_keys(draw: st.DrawFn) -> str:
    separator, path = draw(st.sampled_from("/.")), draw(paths)
    coords = draw(st.lists(numbers, max_size=4))
    separator = "/" if len(coords) < 2 else separator  # 1-d arrays are always shown with "/"
    return (f"{path}/" if path else "") + separator.join(("c", *coords))


@st.composite
def stored_keys(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(["chunk", "data", "array", "group", "other"]))
    if kind == "chunk":
        key = data_key(draw(chunk_keys()))
        assert key is not None
        return key
    if kind == "data":
        return "data/root/" + draw(texts)
    if kind == "other":
        return draw(st.sampled_from(["", "meta/", "meta/root/", "meta/root", "data/"])) + draw(texts)
    return (array_document_key if kind == "array" else group_document_key)(draw(paths))


@given(chunk_keys())
def test_every_chunk_key_comes_back(key: str) -> None:
    stored = data_key(key)
    assert stored is not None
    assert canonical_key(stored) == key


@given(texts)
def test_whatever_can_be_stored_comes_back(key: str) -> None:
    stored = data_key(key)
    assert stored is None or canonical_key(stored) == key


@given(stored_keys())
def test_whatever_is_shown_goes_back(stored: str) -> None:
    canonical = canonical_key(stored)
    if canonical is None:
        return
    path = document_path(canonical)
    if path is None:
        assert data_key(canonical) == stored
    else:
        assert stored in (array_document_key(path), group_document_key(path))


@given(st.lists(stored_keys(), max_size=30))
def test_two_stored_keys_never_share_a_canonical_key(keys: list[str]) -> None:
    seen: dict[str, str] = {}
    for stored in keys:
        canonical = canonical_key(stored)
        # The one exception: the draft forbids that a node has both documents.
        one = stored.replace(".group.json", ".array.json") if stored.startswith("meta/") else stored
        if canonical is not None:
            assert seen.setdefault(canonical, one) == one


@given(st.lists(stored_keys(), max_size=40), st.one_of(chunk_keys(), texts), st.integers(0, 12))
@example(["data/root/x/c1", "data/root/x/c/1/c0"], "x/c/1", 0)
@example(["data/root/c0/c1.2"], "c0/c.1.2", 1)
def test_prefixes_find_what_brute_force_finds(keys: list[str], text: str, cut: int) -> None:
    derived = [c for c in map(canonical_key, keys) if c is not None]
    for base in [text, *derived]:
        prefix = base[: max(0, len(base) - cut)]
        stored = stored_prefixes(prefix)
        assert len(stored) <= 4
        assert not any(a.startswith(b) for a in stored for b in stored if a is not b)
        found = {k for k in keys if any(k.startswith(p) for p in stored) and (canonical_key(k) or "").startswith(prefix)}
        assert found - {k for k in keys if canonical_key(k) is None} == {
            k for k in keys if (c := canonical_key(k)) is not None and c.startswith(prefix)
        }


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("", [""]),
        ("da", [""]),
        ("meta/root", [""]),
        ("data/root/", [""]),
        ("data/root/x/", ["x/"]),
        ("data/root/x/c", ["x/c"]),
        ("data/root/x/c0/", ["x/c0/", "x/c/0/", "x/c.0/"]),
        ("data/root/x/c1", ["x/c1", "x/c/1", "x/c.1"]),
        ("meta/root.a", ["zarr.json"]),
        ("meta/root/x", ["x"]),
        ("meta/root/x.ar", ["x"]),
        ("meta/root/x.array.js", ["x"]),
        ("meta/roots", []),
        ("other/", []),
    ],
)
def test_canonical_prefixes(prefix: str, expected: list[str]) -> None:
    assert canonical_prefixes(prefix) == expected


@given(st.lists(stored_keys(), min_size=1, max_size=8), st.integers(0, 12))
def test_canonical_prefixes_cover_all(keys: list[str], cut: int) -> None:
    for key in keys:
        prefix = key[: max(0, len(key) - cut)]
        prefixes = canonical_prefixes(prefix)
        assert not any(a.startswith(b) for a in prefixes for b in prefixes if a is not b)
        for other in keys:
            canonical = canonical_key(other)
            if other.startswith(prefix) and canonical is not None:
                assert sum(canonical.startswith(p) for p in prefixes) == 1
