"""Sets of references in JSON, written out."""

from __future__ import annotations

import base64
import copy
import json
import sys
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.errors import Corruption, Unsupported
from shardstore.format.references.json import Expansion, ReferenceParser, document_of, is_generated
from shardstore.format.references.table import Reference
from tests.golden import FIXTURES

SEED = json.loads((FIXTURES / "kerchunk/k_seed_example/refs.json").read_text())


def shown(found: Reference | bytes) -> Any:
    if isinstance(found, bytes):
        return found.decode()
    return [found.url] if found.nbytes is None else [found.url, found.offset, found.nbytes]


def expanded(document: Any, overrides: Any = None, *, only_plain: bool = False, most_generated: int = 10**7) -> dict[str, Any]:
    """The references of a set, from the parsed document; and from its text, which must give the same."""
    expansion = Expansion(overrides or {}, only_plain, most_generated)
    found = {key: shown(entry) for key, entry in document_of(document, expansion).finish().items()}
    parser = ReferenceParser(expansion)
    parser.feed(json.dumps(document))
    assert {key: shown(entry) for key, entry in parser.finish().items()} == found
    return found


def meant(references: dict[str, Any]) -> dict[str, Any]:
    """The references, with documents parsed: the spaces in them mean nothing."""
    found = dict(references)
    for key, value in references.items():
        if isinstance(value, bytes) or (isinstance(value, str) and value.startswith("base64:")):
            found[key] = value.decode() if isinstance(value, bytes) else base64.b64decode(value[7:]).decode()
        elif key.rpartition("/")[2].startswith(".z"):
            found[key] = json.loads(value)
    return found


def by_fsspec(document: Any) -> dict[str, Any]:
    fs = fsspec.filesystem(
        "reference", fo=copy.deepcopy(document), simple_templates=False, remote_protocol="memory", skip_instance_cache=True
    )
    return dict(fs.references)


def test_example_of_the_specification() -> None:
    before = copy.deepcopy(SEED)
    assert expanded(SEED) == {
        "key0": "data",
        "key1": ["http://target_url", 10000, 100],
        "key2": ["http://server.domain/path", 10000, 100],
        "key3": ["http://text", 10000, 100],
        **{f"gen_key{i}": [f"http://server.domain/path_{i}", 1000 * (i + 1), 1000] for i in range(5)},
    }
    assert before == SEED


def test_templates_and_generators_equal_fsspec_without_simple_templates() -> None:
    for name in ("k_seed_example", "k_v1_templates_gen"):
        document = json.loads((FIXTURES / "kerchunk" / name / "refs.json").read_text())
        theirs = by_fsspec(document)
        assert meant(expanded(document)) == meant(theirs), name


NAMES = st.sampled_from(["{{i}}", "{{j}}", "{{u}}", "{{ i }}", "{{ u}}"])
TEXTS = st.lists(st.sampled_from(["s3://", "a/b", ".", "}", " ", "%"]) | NAMES, max_size=5).map("".join)


@pytest.mark.gate
@given(key=TEXTS, url=TEXTS, offset=st.sampled_from(["7", "{{i}}", "{{i * 3 + j}}", "{{ (j + 1) // 2 }}"]))
def test_plain_names_are_filled_in_as_jinja_does(key: str, url: str, offset: str) -> None:
    dimensions = {"i": [3, 1], "j": {"start": 1, "stop": 6, "step": 2}}
    generator = {"key": key, "url": url, "offset": offset, "length": "4", "dimensions": dimensions}
    document = {"version": 1, "templates": {"u": "place"}, "gen": [generator]}
    assert expanded(document) == by_fsspec(document)


def test_version_0_stays_as_it_is() -> None:
    document = {"a": "{{text}}", "b": ["s3://{{x}}", 1, 2], "c": {"zarr_format": 2}, "d": [None, 0, 4]}
    assert expanded(document) == {**document, "c": '{"zarr_format": 2}'}
    assert not is_generated(document)
    assert not is_generated({"gen": [None, 0, 4]})


def test_overrides_replace_templates() -> None:
    document = {"version": 1, "templates": {"u": "s3://there"}, "refs": {"a": ["{{u}}/x"], "b": ["{{u}}/y", 1, 2]}}
    assert expanded(document, {"u": "file:///here"}) == {"a": ["file:///here/x"], "b": ["file:///here/y", 1, 2]}


GEN = {"key": "x/{{i}}", "url": "u", "dimensions": {"i": {"stop": 2}}}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "JSON object"),
        ({"a": 1}, "'a' is 1"),
        ({"a": ["u", 1]}, "'a' is"),
        ({"a": ["u", -1, 2]}, "'a' is"),
        ({"a": ["u", "1", 2]}, "'a' is"),
        ({"version": 1, "refs": []}, "'refs'"),
        ({"version": 1, "gen": {}, "refs": {}}, "'gen'"),
        ({"version": 1, "templates": {"u": 1}}, "'u' is 1"),
        ({"version": 1, "refs": {"a": ["{{u}}/x"]}}, "'a' .* 'u' is undefined"),
        ({"version": 1, "templates": {"f": "{{c}}"}, "refs": {"a": ["{{f}}/x"]}}, "'f' has variables"),
        ({"version": 1, "templates": {"f": "{{c}}"}, "refs": {"a": ["{{f(d='x')}}"]}}, "'c' is undefined"),
        ({"version": 1, "refs": {"a": ["{{u"]}}, "'a'"),
        ({"version": 1, "refs": {"a": ["{{''.__class__.__mro__}}"]}}, "SecurityError"),
        ({"version": 1, "gen": [{**GEN, "key": "{{k}}"}]}, r"key in gen\[0\].*'k' is undefined"),
        ({"version": 1, "gen": [GEN, {**GEN, "offset": "1"}]}, r"gen\[1\].*both, or none"),
        ({"version": 1, "gen": [{**GEN, "offset": "{{i / 1}}", "length": "1"}]}, "0.0 and 1"),
        ({"version": 1, "gen": [{**GEN, "offset": "{{i - 9}}", "length": "1"}]}, "-9 and 1"),
        ({"version": 1, "gen": [{**GEN, "offset": "{{1 // i}}", "length": "1"}]}, "ZeroDivisionError"),
        ({"version": 1, "gen": [{"key": "x", "url": "u"}]}, "no dimensions"),
        ({"version": 1, "gen": [{**GEN, "dimensions": {"i": {"start": 1}}}]}, "'i'"),
        ({"version": 1, "gen": [{**GEN, "dimensions": {"i": {"stop": 2, "step": 0}}}]}, "'i'"),
        ({"version": 1, "gen": [{"key": "x", "dimensions": {"i": [1]}}]}, "url None"),
        ({"version": 1, "gen": ["x"]}, "dimensions"),
    ],
)
def test_contradictions_are_corruption_and_name_the_place(document: Any, message: str) -> None:
    with pytest.raises(Corruption, match=message):
        expanded(document)


def test_unknown_version_and_too_many_keys_are_unsupported() -> None:
    with pytest.raises(Unsupported, match="version 2"):
        expanded({"version": 2, "refs": {}})
    six = {**GEN, "dimensions": {"i": {"stop": 3}, "j": [0, 1]}}
    with pytest.raises(Unsupported, match="6 keys"):
        expanded({"version": 1, "gen": [six]}, most_generated=5)
    assert len(expanded({"version": 1, "gen": [{**GEN, "dimensions": {"i": {"stop": 5}}}]}, most_generated=5)) == 5


def test_without_jinja_plain_names_work_and_the_rest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    plain = {"version": 1, "templates": {"u": "s3://b"}, "gen": [{**GEN, "url": "{{u}}/{{ i }}"}], "refs": {"a": ["{{u}}/x"]}}
    assert expanded(plain) == {"a": ["s3://b/x"], "x/0": ["s3://b/0"], "x/1": ["s3://b/1"]}
    assert len(expanded(SEED)) == 9
    with pytest.raises(Unsupported, match=r"the URL of 'a'.*1 / 2.*pip install 'shardstore\[report]'"):
        expanded({"version": 1, "refs": {"a": ["{{ 1 / 2 }}"]}})


def test_only_plain_leaves_generated_keys_out_and_refuses_expressions() -> None:
    plain: dict[str, Any] = {"version": 1, "gen": [GEN], "refs": {"a": ["x"]}}
    assert is_generated(plain)
    assert expanded(plain, only_plain=True) == {"a": ["x"]}
    with pytest.raises(Unsupported, match="simple_templates=True"):
        expanded({"version": 1, "refs": {"a": ["{{1 + 1}}"]}}, only_plain=True)
