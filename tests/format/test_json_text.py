"""JSON that comes out as it went in."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.errors import Corruption
from shardstore.format.json_text import dumps, loads, loads_object


@pytest.mark.parametrize(
    "number", ["0", "-0", "1.50", "1e400", "-1E-3", "0.1", "123456789012345678901234567890", "NaN", "-Infinity", "1.0", "9" * 5000]
)
def test_the_form_of_a_number_is_kept(number: str) -> None:
    assert f'"a": {number}' in dumps(loads(f'{{"a": {number}}}'.encode())).decode()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_values_survive(value: object) -> None:
    assert json.loads(dumps(loads(json.dumps(value).encode()))) == json.loads(json.dumps(value))


def test_order_and_surrogates() -> None:
    text = b'{"b": 1, "a": "\\ud800", "c": {"z": null, "y": "\xc3\xa4"}}'
    assert list(json.loads(dumps(loads(text)))) == ["b", "a", "c"]
    assert json.loads(dumps(loads(text)))["a"] == "\ud800"


@given(st.binary(max_size=60))
def test_anything_else_is_corrupt(data: bytes) -> None:
    try:
        loads(data)
    except Corruption:
        return
    json.loads(data)  # and what was accepted is JSON


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b'{"a": 01}', b"nul"])
def test_bad_documents(data: bytes) -> None:
    with pytest.raises(Corruption, match="not a JSON document"):
        loads(data)


def test_a_document_has_to_be_an_object() -> None:
    with pytest.raises(Corruption, match="list"):
        loads_object(b"[]")


def test_numbers_are_numbers() -> None:
    assert loads(b"[1, 2.5]") == [1, 2.5]
    assert math.isinf(float(loads(b"[1e400]")[0].text))
