"""Templates of reference sets: the evaluator of the specification's part of jinja, against jinja itself, and its bounds."""

from __future__ import annotations

import sys
import time
from typing import Any

import jinja2
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jinja2.sandbox import SandboxedEnvironment

from shardstore.errors import Corruption, Unsupported
from shardstore.format.references.expressions import MOST_TEXT, NotInSubset, evaluate_all, parse_text
from shardstore.format.references.generators import generate
from shardstore.format.references.templates import Templates

JINJA = SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
VARIABLES: dict[str, Any] = {"i": 7, "j": -3, "zero": 0, "u": "server/path", "e": ""}


def by_jinja(text: str) -> str | None:
    """The text, or ``None`` if it cannot be filled in."""
    try:
        return JINJA.from_string(text).render(VARIABLES)
    except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError):
        return None


def ours(text: str) -> str | None:
    templates = Templates({name: value for name, value in VARIABLES.items() if isinstance(value, str)})
    try:
        return templates.text(text, "a text").render({name: value for name, value in VARIABLES.items() if isinstance(value, int)})
    except Corruption:
        return None


LEAVES = st.sampled_from(["0", "1", "2", "10", "i", "j", "zero", "u", "e", "none_such", "'text'", '"a b"', "'}}'", "''"])
SIGNS = st.sampled_from([" + ", "-", " * ", "//", " % ", "+", " - "])
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, SIGNS, inner).map("".join), inner.map("({})".format), inner.map("-({})".format), inner.map("( +{} )".format)
    ),
    max_leaves=8,
)
TEXTS = st.lists(st.sampled_from(["s3://", "}", "%d", " ", "\n", "é", "{", "{ {"]) | EXPRESSIONS.map("{{{{ {} }}}}".format), max_size=5)


@pytest.mark.gate
@given(TEXTS.map("".join))
def test_texts_are_filled_in_as_jinja_does(text: str) -> None:
    try:
        parse_text(text)
    except NotInSubset:
        assume(False)
    if (
        "%" in text and "none_such" in text
    ):  # Python's "text" % ignores an undefined value, so that jinja hides a wrong name; here that is an error
        assert ours(text) in (None, by_jinja(text))
    else:
        assert ours(text) == by_jinja(text)


def test_an_unknown_name_is_an_error_though_python_would_ignore_it() -> None:
    assert by_jinja("{{ u % none_such }}") == "server/path"
    assert ours("{{ u % none_such }}") is None


@pytest.mark.gate
@given(EXPRESSIONS, st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=5))
def test_many_values_at_once_are_those_one_by_one(expression: str, values: list[int]) -> None:
    text = Templates({}).text(f"{{{{ {expression} }}}}", "a text")
    assume(text.is_parsed)
    variables = {"i": np.array(values), "j": np.array(values[::-1]), "zero": np.zeros(len(values), dtype=np.int64)}
    found = evaluate_all(text.nodes[0], variables)
    if found is not None:
        column = np.broadcast_to(np.array(found), len(values)).tolist()
        each = [{name: int(column_[k]) for name, column_ in variables.items()} for k in range(len(values))]
        assert [str(value) for value in column] == [text.render(one) for one in each]


@pytest.mark.parametrize("text", ["{{-1}}", "{{+1}}", "{{ 1 / 2 }}", "{{ i ** 2 }}", "{{ u.upper() }}", "{{ i|string }}", "{{ 'a' 'b' }}"])
def test_what_else_jinja_knows_is_left_to_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotInSubset):
        parse_text(text)
    if "upper" not in text:  # methods are not called
        assert ours(text) == by_jinja(text) is not None
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(Unsupported, match=r"a text of a set of references is .*pip install 'shardstore\[report]'"):
        ours(text)


@pytest.mark.parametrize(
    "expression",
    [
        "u * 100000000000",
        "'a' * 1000000",
        "999999999999999999999999999999 * 999999999999999999999999999999",
        "9 ** 9 ** 9",
        "2 ** 100000000",
        "'%999999999d' % i",
        "'%999999999d'|format(i)",
        "'x'.ljust(1000000000)",
        "'x'|center(1000000000)",
        "range(1000000000)|list",
        "lipsum(n=100000)",
        "[0] * 1000000000",
        "''.__class__",
        "(" * 3000 + "1" + ")" * 3000,
        "-" * 10000 + "1",
        "+".join(["1"] * 20000),
        "9" * 10000,
    ],
)
def test_no_text_computes_without_end(expression: str) -> None:
    start = time.process_time()
    with pytest.raises((Corruption, Unsupported)):
        Templates({"u": "x"}).text(f"{{{{ {expression} }}}}", "a text").render({"i": 1})
    assert time.process_time() - start < 5


def test_statements_are_refused() -> None:
    with pytest.raises(Unsupported, match="only annotations"):
        Templates({}).rendered("{% for i in range(10) %}a{% endfor %}", "a text")


def test_a_long_text_is_refused() -> None:
    with pytest.raises(Corruption, match="more than 65536 characters"):
        Templates({"u": "x" * MOST_TEXT}).rendered("{{u}}" * 10_000, "a text")
    with pytest.raises((Corruption, Unsupported)):
        Templates({"u": "x"}).rendered("{{u}}" * 20_000, "a text")


@pytest.mark.gate
def test_bombs_of_generated_keys_are_refused_before_they_are_made() -> None:
    dimension = {"stop": 10**6}
    bomb: dict[str, Any] = {"key": "x{{i}}", "url": "u", "dimensions": dict.fromkeys("ijklmnop", dimension)}
    for generators in ([bomb], [{**bomb, "dimensions": {"i": {"stop": 4 * 10**18}}}], [{**bomb, "dimensions": {"i": dimension}}] * 11):
        start = time.process_time()
        with pytest.raises(Unsupported, match=r"generates .* keys"):
            list(generate(generators, Templates({})))
        assert time.process_time() - start < 1
    with pytest.raises(Corruption, match="'i'"):
        list(generate([{**bomb, "dimensions": {"i": {"stop": 2**63}}}], Templates({})))
    long = {"key": "{{i}}" + "x" * 60_000, "url": "u", "dimensions": {"i": {"stop": 10**6}}}
    with pytest.raises(Unsupported, match=r"characters|long texts"):
        for _ in generate([long], Templates({})):
            pass


def test_generated_numbers_of_more_than_62_bits_are_exact() -> None:
    generator = {"key": "{{i}}", "url": "u", "offset": "{{i * 4611686018427387904 // 8}}", "length": "1", "dimensions": {"i": [0, 1, 9]}}
    (made,) = generate([generator], Templates({}))
    assert made.offsets == [0, 2**59, 9 * 2**59]
