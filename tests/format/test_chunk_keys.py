"""Chunk key encodings: canonical both ways, and nothing else is a key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.format.chunk_keys import (
    ChunkKeyEncoding,
    looks_like_chunk_key,
    looks_like_chunk_prefix,
    parse_chunk_key_encoding,
)

ENCODINGS = [
    ChunkKeyEncoding("default", "/"),
    ChunkKeyEncoding("default", "."),
    ChunkKeyEncoding("v2", "/"),
    ChunkKeyEncoding("v2", "."),
]
encodings = st.sampled_from(ENCODINGS)
coords = st.lists(st.integers(0, 2**60), max_size=5).map(tuple)


@pytest.mark.parametrize(
    ("encoding", "key", "scalar"),
    [(ENCODINGS[0], "c/0/3/1", "c"), (ENCODINGS[1], "c.0.3.1", "c"), (ENCODINGS[2], "0/3/1", "0"), (ENCODINGS[3], "0.3.1", "0")],
)
def test_the_forms_of_the_specification(encoding: ChunkKeyEncoding, key: str, scalar: str) -> None:
    assert encoding.encode((0, 3, 1)) == key
    assert encoding.decode(key, 3) == (0, 3, 1)
    assert encoding.encode(()) == scalar
    assert encoding.decode(scalar, 0) == ()


@given(encodings, coords)
def test_what_is_encoded_is_decoded(encoding: ChunkKeyEncoding, position: tuple[int, ...]) -> None:
    key = encoding.encode(position)
    assert encoding.decode(key, len(position)) == position
    if position:  # the v2 key of a 0-d array, "0", is also that of the first chunk of a 1-d one
        assert encoding.decode(key, len(position) + 1) is None
    assert looks_like_chunk_key(key)


@given(encodings, st.text("c0123456789/. -+_a\u0660", max_size=12), st.integers(0, 4))
def test_what_is_decoded_is_canonical(encoding: ChunkKeyEncoding, key: str, ndim: int) -> None:
    position = encoding.decode(key, ndim)
    if position is not None:
        assert encoding.encode(position) == key
        assert looks_like_chunk_key(key)


@pytest.mark.parametrize(
    "key", ["c/00/1", "c/+1/0", "c/-1/0", "c/1", "c/1/2/3", "c/1/ 2", "c/\u0661/2", "c//1", "C/0/1", "c0/1", "c.0.1", "", "c/0/1/"]
)
def test_no_other_spelling_is_a_key(key: str) -> None:
    assert ENCODINGS[0].decode(key, 2) is None


@given(encodings, coords, st.data())
def test_every_beginning_of_a_key_looks_like_one(encoding: ChunkKeyEncoding, position: tuple[int, ...], data: st.DataObject) -> None:
    key = encoding.encode(position)
    prefix = key[: data.draw(st.integers(0, len(key)))]
    assert looks_like_chunk_prefix(prefix)
    leading = encoding.leading_coords(prefix, len(position))
    assert position[: len(leading)] == leading
    # Whatever the prefix settles, all keys below start with it.
    assert key.startswith(encoding.prefix_of(leading, len(position)))


@pytest.mark.parametrize("prefix", ["x", "cx", "c0/zarr.json", "ct", "c/0/a"])
def test_other_prefixes_do_not(prefix: str) -> None:
    assert not looks_like_chunk_prefix(prefix)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"name": "default", "configuration": {"separator": "."}}, ENCODINGS[1]),
        ({"name": "default"}, ENCODINGS[0]),
        ("default", ENCODINGS[0]),
        ({"name": "v2"}, ENCODINGS[3]),
        ({"name": "v2", "configuration": {"separator": "/"}}, ENCODINGS[2]),
        ({"name": "v2", "configuration": {"separator": "_"}}, None),
        ({"name": "suffix"}, None),
        ({"name": "default", "configuration": {"separator": "/", "other": 1}}, None),
        ({"name": "default", "configuration": 3}, None),
        (None, None),
        (7, None),
    ],
)
def test_documents(document: object, expected: ChunkKeyEncoding | None) -> None:
    assert parse_chunk_key_encoding(document) == expected


odd_keys = st.one_of(
    st.lists(st.integers(0, 10**19), min_size=1, max_size=3).map(lambda c: "c/" + "/".join(map(str, c))),
    st.text("c/.0123-+ \n\u0661", max_size=8),
)


@given(st.sampled_from(["default", "v2"]), st.sampled_from(["/", "."]), st.integers(0, 3), st.lists(odd_keys, min_size=1, max_size=5))
def test_many_keys_are_decoded_as_each_by_itself(name: Any, separator: Any, ndim: int, keys: list[str]) -> None:
    encoding = ChunkKeyEncoding(name, separator)
    each = [encoding.decode(key, ndim) for key in keys]
    together = encoding.decode_all(keys, ndim)
    if together is None:
        assert not ndim or None in each or any(c >= 10**18 for coords in each for c in coords or ())
    else:
        assert [tuple(row) for row in together.tolist()] == each


@given(st.sampled_from(["default", "v2"]), st.sampled_from(["/", "."]), st.lists(st.tuples(*[st.integers(0, 10**18 - 1)] * 2), min_size=1))
def test_many_canonical_keys(name: Any, separator: Any, coords: list[tuple[int, int]]) -> None:
    encoding = ChunkKeyEncoding(name, separator)
    together = encoding.decode_all([encoding.encode(c) for c in coords], 2)
    assert together is not None
    assert [tuple(row) for row in together.tolist()] == coords
