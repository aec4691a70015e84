"""Ranges and entity tags by the grammar of RFC 9110."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.apps.server.http_rules import EntityTags, if_range, parse_entity_tags, parse_range, satisfied
from shardstore.model.ranges import ByteOffset, ByteRange, ByteSuffix

OPAQUE = st.text(st.sampled_from([chr(c) for c in (0x21, *range(0x23, 0x7F), *range(0x80, 0x100))]), max_size=8).map(lambda s: f'"{s}"')
TAG = st.tuples(st.sampled_from(["", "W/"]), OPAQUE)
BLANKS = st.text(st.sampled_from(" \t"), max_size=2)
NUMBER = st.integers(0, 10**30)


@st.composite
def lists(draw: st.DrawFn) -> tuple[str, list[tuple[str, str]]]:
    """A list of entity tags as section 5.6.1.2 lets recipients accept it, with empty elements, and its elements."""
    tags = draw(st.lists(TAG, min_size=1, max_size=4))
    text = draw(st.sampled_from(["", ",", " , "]))
    for number, (weak, opaque) in enumerate(tags):
        if number:
            text += draw(BLANKS) + "," + draw(st.sampled_from(["", " ", ",", " ,\t"])) + draw(BLANKS)
        text += weak + opaque
    return text + draw(st.sampled_from(["", ",", " , "])), tags


@given(lists())
def test_lists_of_entity_tags(found: tuple[str, list[tuple[str, str]]]) -> None:
    text, tags = found
    parsed = parse_entity_tags(text)
    assert parsed.strong == {opaque for weak, opaque in tags if not weak}
    assert parsed.weak == {opaque for weak, opaque in tags if weak}
    for weak, opaque in tags:
        assert parsed.match_weakly(opaque)
        assert parsed.match_strongly(opaque) or weak


@pytest.mark.parametrize("text", ["", "abc", '"a', 'a"', '"a" "b"', 'w/"a"', '"a\x7f"', '"a", *', "*, *", '"a"b', 'W/ "a"'])
def test_malformed_entity_tags_match_nothing(text: str) -> None:
    assert parse_entity_tags(text) == EntityTags()
    assert not parse_entity_tags(text).match_weakly('"a"')


def test_any_entity_tag() -> None:
    assert parse_entity_tags(" * ").any
    assert parse_entity_tags("*").match_strongly(None)
    assert not parse_entity_tags('"a"').match_strongly(None)


@given(st.sampled_from(["bytes", "Bytes", "BYTES"]), NUMBER, NUMBER, BLANKS)
def test_ranges(unit: str, first: int, more: int, blanks: str) -> None:
    most = 2**62
    assert parse_range(f"{unit}={blanks}{first}-{blanks}") == ByteOffset(min(first, most))
    assert parse_range(f"{unit}={first}-{first + more}") == ByteRange(min(first, most), min(first + more, most) + 1)
    assert parse_range(f"{unit}=-{more}") == ByteSuffix(min(more, most))
    assert parse_range(f"{unit}=,{blanks}-{more} ,") == ByteSuffix(min(more, most))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=5-4",
        "bytes=0-1,3-4",
        "items=0-1",
        "bytes 0-1",
        "bytes=0x0-1",
        "bytes=+1-2",
        "bytes=1--2",
        "bytes=٣-4",
    ],
)
def test_ranges_that_are_ignored(text: str) -> None:
    assert parse_range(text) is None


@given(st.text(st.sampled_from('bytes=0123456789-, \tW/"*x'), max_size=30))
def test_nothing_is_an_error(text: str) -> None:
    parse_range(text)
    parse_entity_tags(text)
    if_range(text)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_what_a_range_is_of_a_value(first: int, nbytes: int, length: int) -> None:
    data = bytes(range(nbytes))
    for request, wanted in (
        (ByteRange(first, first + length), data[first : first + length]),
        (ByteOffset(first), data[first:]),
        (ByteSuffix(length), data[max(0, nbytes - length) :] if length else b""),
    ):
        found = satisfied(request, nbytes)
        assert (b"" if found is None else data[found.start : found.end]) == wanted
        assert (found is None) == (not wanted)


def test_if_range_takes_a_strong_tag_only() -> None:
    assert if_range(' "a" ') == '"a"'
    for text in ('W/"a"', "Thu, 26 Nov 2026 00:00:00 GMT", "a", '"a", "b"'):
        assert if_range(text) is None
