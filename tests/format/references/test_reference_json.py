"""Sets of references in JSON, read as a stream: the same as parsed at once, whatever the pieces."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.errors import Corruption, ShardStoreError
from shardstore.format.references.json import Expansion, NeedsFlat, ReferenceParser, document_of
from shardstore.format.references.table import Reference, ReferenceTable, TableBuilder


def streamed(text: str, nchars: int, piece: int = 64) -> dict[str, Any] | type[ShardStoreError]:
    """The references, or the kind of error, of a text that comes in pieces of ``nchars``."""
    for flat in (False, True):
        parser = ReferenceParser(Expansion(), flat=flat, piece_nchars=piece)
        try:
            return dict(read([text[start : start + nchars] for start in range(0, len(text), nchars)], parser).items())
        except NeedsFlat:
            continue
        except ShardStoreError as exc:
            return type(exc)
    raise AssertionError


def at_once(text: str) -> dict[str, Any] | type[ShardStoreError]:
    try:
        return dict(document_of(json.loads(text), Expansion()).finish().items())
    except (ValueError, RecursionError):
        return Corruption
    except ShardStoreError as exc:
        return type(exc)


KEYS = st.sampled_from(["refs", "version", "gen", "templates", "a", "b/c/0.0", 'q"],"', "é\n", "b/c/0.1", "\\", "x/{{u}}"]) | st.text(
    max_size=3
)
SIZES = st.integers(0, 2**62) | st.sampled_from([0, 1])
URLS = st.none() | st.sampled_from(["s3://b/x", "file:///y", "{{u}}/z", '],"', "\u2028"])
VALUES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(['],"', '"],', "{}", "base64:YQ=="]),
    st.tuples(URLS, SIZES, SIZES).map(list),
    URLS.map(lambda url: [url]),
    st.dictionaries(st.text(max_size=3), st.lists(st.text(max_size=2), max_size=2) | st.floats(allow_nan=False), max_size=3),
)
V0 = st.dictionaries(KEYS, VALUES, max_size=12)
GENERATOR = {"key": "g{{i}}", "url": "{{u}}/g", "offset": "{{i * 3}}", "length": "3", "dimensions": {"i": {"stop": 3}}}
MEMBERS = st.fixed_dictionaries(
    {"version": st.just(1), "refs": V0},
    optional={"gen": st.just([GENERATOR]), "templates": st.just({"u": "s3://t"}), "other": VALUES | st.integers()},
)
SHAPES = st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}, {"separators": (" ,\n", " : ")}])


@pytest.mark.gate
@given(V0 | MEMBERS.flatmap(lambda m: st.permutations(list(m.items())).map(dict)), SHAPES, st.integers(1, 200), st.integers(1, 100))
def test_a_stream_gives_what_the_document_says(document: dict[str, Any], shape: dict[str, Any], nchars: int, piece: int) -> None:
    text = json.dumps(document, **shape)
    assert streamed(text, nchars, piece) == at_once(text)


@pytest.mark.gate
@given(V0, st.integers(1, 40), st.data())
def test_a_damaged_text_is_an_error_or_what_json_says(document: dict[str, Any], nchars: int, data: Any) -> None:
    text = json.dumps({"version": 1, "refs": document})
    place = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:place] + data.draw(st.sampled_from(["", "}", '"', ",", "[", "x", "\x00"])) + text[place + 1 :]
    assert streamed(damaged, nchars) == at_once(damaged)


def test_of_two_references_with_one_key_the_later_counts() -> None:
    entries = ",".join(f'"{i % 40}": ["u", {i}, 1]' for i in range(200))
    for text in (f"{{{entries}}}", f'{{"refs": {{"x": "1"}}, "version": 1, "refs": {{{entries}}}}}'):
        found = streamed(text, 50)
        assert isinstance(found, dict)
        assert found == {str(i % 40): Reference("u", i, 1) for i in range(160, 200)}


def test_keys_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardstore.format.references.table.hash", lambda key: len(key), raising=False)
    builder = TableBuilder()
    builder.add_values({f"k{i:03}": ["u", i, 1] for i in range(100)})
    builder.add_values({"k050": "new"})
    table = builder.finish()
    assert len(table) == 100
    assert (table.find("k049"), table.find("k050"), table.find("k999")) == (Reference("u", 49, 1), b"new", None)
    assert [key for key, _ in table.items("k09")] == [f"k{i:03}" for i in range(90, 100)]


def test_version_0_may_have_a_key_refs() -> None:
    document = {"refs": {"shape": [1, 2], "more": "x" * 200}, "a": ["u", 1, 2]}
    for nchars in (7, 10_000):
        assert streamed(json.dumps(document), nchars) == {"refs": json.dumps(document["refs"]).encode(), "a": Reference("u", 1, 2)}


@pytest.mark.parametrize("number", ["0.0", "-0.5e-10", "123456", "1E+5", "-Infinity"])
def test_a_number_that_is_cut_goes_on(number: str) -> None:
    for text in (f'{{"refs": {{"a": {number}}}, "b": "1"}}', f'{{"other": {number}, "version": 1, "refs": {{}}}}'):
        for piece in range(1, len(text)):
            assert streamed(text, 1, piece) == at_once(text)


def test_children_and_keys_by_prefix() -> None:
    builder = TableBuilder()
    keys = ["a", "a-b", "a/b/c", "a/b", "a/z", "a0", "ab/c", "é/x", "b"]
    builder.add_values(dict.fromkeys(keys, "1"))
    table = builder.finish()
    assert table.children("") == (["a", "a-b", "a0", "b"], ["a/", "ab/", "é/"])
    assert table.children("a/") == (["a/b", "a/z"], ["a/b/"])
    assert [key for key, _ in table.items("a")] == sorted(key for key in keys if key.startswith("a"))
    assert [key for key, _ in table.items()] == sorted(keys)


def read(texts: Sequence[str], parser: ReferenceParser | None = None) -> ReferenceTable:
    parser = parser or ReferenceParser(Expansion())
    for text in texts:
        parser.feed(text)
    return parser.finish()


@pytest.mark.parametrize(
    "entry",
    [
        '["u", 0, 9223372036854775808]',
        '["u", 9223372036854775807, 1]',
        '["u", -1, 1]',
        '["u", 1, -1]',
        '["u", 1, 1e400]',
        '["u", 1.0, 1]',
        '["u", 1]',
        '["u", "0", 1]',
        "[]",
        "[0, 0, 0]",
        f'["u", 0, {"9" * 30}]',
        f'["u", 0, {"9" * 5000}]',
        "null",
        "7",
    ],
)
def test_references_that_nothing_can_have_are_named(entry: str) -> None:
    for others in ("", ", ".join(f'"k{i}": ["u", {i}, 1]' for i in range(100)) + ", "):
        for text in (f'{{{others}"bad": {entry}}}', f'{{"version": 1, "refs": {{{others}"bad": {entry}}}}}'):
            with pytest.raises(Corruption, match=r"'bad'|digits"):
                read([text])


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"refs":'])
def test_deep_nesting_is_an_error_with_bounded_memory(opening: str) -> None:
    tracemalloc.start()
    with pytest.raises(Corruption, match=r"nested too deep|JSON object"):
        read(['{"version": 1, "refs": {"a": ', *[opening * (1 << 18)] * 50])
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


def test_a_text_that_is_no_json_is_told_early() -> None:
    parser = ReferenceParser(Expansion())
    with pytest.raises(Corruption, match="no set of references"):
        read(['{"a": ["u", 1, 2] "b": ' + "x" * (1 << 20)] * 100, parser)
    assert len(parser._text) < 8 << 20


@pytest.mark.parametrize(
    "text", ["", "{", '{"a"', '{"a":', '{"a": "1",', '{"a": "1"', '{"a": "1"}}', '{"refs": {', '{"refs": {"a": "1",', "[]", "1"]
)
def test_a_text_that_ends_too_early_or_goes_on(text: str) -> None:
    for nchars in (1, 3, 100):
        assert streamed(text, nchars, 1) is Corruption


def test_a_stream_of_a_value_without_end_is_refused() -> None:
    with pytest.raises(Corruption, match="value of more than"):
        read(['{"a": "', *["x" * (1 << 20)] * 100], ReferenceParser(Expansion(), most_nchars=1 << 23))
