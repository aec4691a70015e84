"""What the documentation and the docstrings say of names, defaults and limits is what the code has."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import shardstore
from shardstore import errors
from shardstore.adapters.handle import StoreOptions
from shardstore.adapters.versioned.opened import RepositoryArguments
from shardstore.maintenance.packing.pack import PackKeywords
from shardstore.plan import policy
from shardstore.references.combining import ComparisonBounds
from tests.project.trees import MODULES, nodes_of

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_DOTTED = re.compile(r"(?<![\w./@:-])shardstore(?:\.[A-Za-z_]\w*)+")
_CLASSES = {name for name in vars(errors) if isinstance(getattr(errors, name), type)}
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def strings_of(path: Path) -> Iterator[str]:
    """The docstrings and messages of a module; the members of documents, which are names too, are left out."""
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value


def exists(dotted: str) -> bool:
    """Whether a name of a module, or of something in one, leads to anything."""
    owner: Any = shardstore
    at = "shardstore"
    for part in dotted.split(".")[1:]:
        at = f"{at}.{part}"
        if hasattr(owner, part):
            owner = getattr(owner, part)
            continue
        try:
            owner = import_module(at)
        except ModuleNotFoundError:
            return False
    return True


def mentioned() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for found in _DOTTED.findall(page.read_text()):
            yield str(page.relative_to(ROOT)), found
    for path in MODULES:
        for text in strings_of(path):
            for found in _DOTTED.findall(text):
                yield str(path.relative_to(ROOT)), found


def members() -> set[str]:
    """Names that stored documents and logs have, which are texts of their own in the code."""
    values = (node.value for path in MODULES for node in nodes_of(path) if isinstance(node, ast.Constant))
    texts = (value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in values)
    return {text for text in texts if re.fullmatch(r"shardstore\.[a-z_0-9]+", text) and not exists(text)}


def test_every_name_of_the_package_that_is_mentioned_exists() -> None:
    named = set(mentioned())
    assert len(named) > 150
    known = members()
    assert len(known) < 15
    assert {each for each in named if each[1] not in known and not exists(each[1])} == set()


def test_every_error_is_a_name_of_the_package_and_in_the_table() -> None:
    public = {name for name in _CLASSES if issubclass(getattr(errors, name), errors.ShardStoreError)}
    assert public <= set(shardstore.__all__)
    assert all(getattr(shardstore, name) is getattr(errors, name) for name in public)
    table = (ROOT / "docs/reference/reference.md").read_text().partition("## shardstore.errors")[2]
    rows = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", table, re.MULTILINE))
    assert rows.keys() == public - {"ShardStoreError"}
    for name, bases in rows.items():
        said = set(re.findall(r"`(\w+)`", bases))
        assert said == {base.__name__ for base in getattr(errors, name).__bases__} - {"ShardStoreError"}, name


# -- defaults ----------------------------------------------------------------------------------------------------------


def value_of(text: str) -> Any:
    """A default as a page shows it: ``"auto"``, ``64 MiB``, ``1.0``."""
    if found := re.fullmatch(r"([\d.]+) ([KMG]iB)", text.strip("`")):
        return int(found[1]) * _UNITS[found[2]]
    return ast.literal_eval(text.strip("`"))


def test_the_defaults_of_the_options_are_those_of_the_code() -> None:
    page = (ROOT / "docs/reference/options.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) \|", page, re.MULTILINE))
    defaults = {name: parameter.default for name, parameter in inspect.signature(shardstore.open).parameters.items()}
    shown = {name for name, default in rows.items() if default != "by kind of storage"}
    assert len(shown) > 20
    assert {name: value_of(rows[name]) for name in shown} == {name: defaults[name] for name in shown}
    assert {name for name in rows.keys() - shown if defaults.get(name) is not None} == set()


@pytest.mark.parametrize("function", [shardstore.open, shardstore.pack, shardstore.Repository.create], ids=lambda each: each.__qualname__)
def test_help_names_and_describes_every_argument(function: Callable[..., object]) -> None:
    described = re.findall(r"^    (\w+): ", inspect.getdoc(function) or "", re.MULTILINE)
    assert inspect.signature(function).parameters.keys() == {*described} - {error for error in described if error in _CLASSES}


def test_signatures_name_every_option() -> None:
    options = StoreOptions.__annotations__.keys()
    for face in (
        shardstore.open,
        shardstore.get_mapper,
        shardstore.ShardedStore,
        shardstore.ShardedStore.from_url,
        shardstore.ShardedMap,
        shardstore.ShardedFileSystem,
        shardstore.ShardingTransformer,
    ):
        assert options <= inspect.signature(face).parameters.keys(), face
    for function in (shardstore.pack, shardstore.reshard, shardstore.unpack):
        assert PackKeywords.__annotations__.keys() <= inspect.signature(function).parameters.keys(), function
    made = shardstore.Repository
    for method in (made.create, made.open, made.exists, made.open_or_create, made.adopt, made.import_icechunk):
        assert RepositoryArguments.__annotations__.keys() <= inspect.signature(method).parameters.keys(), method


# -- limits ------------------------------------------------------------------------------------------------------------

MOST_COMPARED = f"{ComparisonBounds().chunks} chunks and {ComparisonBounds().nbytes >> 20} MiB"
LEAST = f"{policy.AUTO_LEAST_CHUNK_NBYTES >> 10} KiB"
OF_AUTO = f"at most {policy.AUTO_MAX_CHUNKS:,} chunks"
SAID = [
    (shardstore.open, f"about {policy.AUTO_SHARD_NBYTES >> 20} MiB decoded a shard, {OF_AUTO}"),
    ("docs/start/quickstart.md", f"about {policy.AUTO_SHARD_NBYTES >> 20} MiB of decoded data per shard, and {OF_AUTO}"),
    ("docs/howto/pack.md", f"about {policy.AUTO_SHARD_NBYTES >> 20} MiB decoded, {OF_AUTO}"),
    (
        "docs/reference/options.md",
        f"less than {LEAST} count as {LEAST}, so a shard has {OF_AUTO}",
    ),
    ("docs/reference/options.md", f"one chunk of at most {policy.AUTO_SMALL_ARRAY_NBYTES >> 10} KiB (coordinates)"),
    (shardstore.references.combine, MOST_COMPARED),
    ("docs/howto/references.md", MOST_COMPARED),
]


@pytest.mark.parametrize(("where", "said"), SAID, ids=lambda value: str(getattr(value, "__name__", value)))
def test_the_limits_that_are_said_are_those_of_the_code(where: Any, said: str) -> None:
    text = (ROOT / where).read_text() if isinstance(where, str) else where.__doc__
    assert said in " ".join(text.split())


def test_no_docstring_gives_a_number_for_a_default_that_a_signature_does_not_have() -> None:
    """A number behind "default" in a docstring is that of an argument of the same function."""
    for path in MODULES:
        for node in nodes_of(path):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not (text := ast.get_docstring(node)):
                continue
            defaults = [ast.unparse(each) for each in (*node.args.defaults, *node.args.kw_defaults) if each is not None]
            for found in re.finditer(r"(?:by )?default(?:s to| is|:)? (\d[\d,.]*\d|\d)", text):
                assert any(found[1].replace(",", "") in default for default in defaults), (str(path), node.name, found[0])
