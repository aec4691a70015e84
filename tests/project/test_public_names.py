"""What is public: names, signatures and docstrings. A change of them is meant, and seen in the snapshot."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from shardstore.snapshots import Catalog
from shardstore.storage.base import Storage
from tests.project.public_names import RENEW, SNAPSHOT, lines, public_modules

ROOT = Path(__file__).parents[2]
FOR_USERS = [
    ROOT / "README.md",
    *(path for name in ("start", "howto", "reference") for path in sorted((ROOT / "docs" / name).rglob("*.md"))),
]

_IMPORTED = re.compile(r"^ *from (shardstore[\w.]*) import ([\w, ]+)", re.MULTILINE)
_DOTTED = re.compile(r"(?<![\w./@:-])(shardstore(?:\.[a-z_]\w*)+)\.([A-Z]\w*)")


def test_public_names_and_signatures_are_those_of_the_snapshot() -> None:
    known, found = SNAPSHOT.read_text().splitlines(), list(lines())
    changed = [*(f"- {line}" for line in known if line not in found), *(f"+ {line}" for line in found if line not in known)]
    assert found == known, "\n".join([*changed, f"if that is meant, and the changelog says it: {RENEW}"])


def test_a_page_for_users_names_nothing_that_is_not_public() -> None:
    public = {f"{module}.{name}" for module in public_modules() for name in import_module(module).__all__} | {*public_modules()}
    for page in FOR_USERS:
        text = page.read_text()
        named = {f"{module}.{name.strip()}" for module, names in _IMPORTED.findall(text) for name in names.split(",")}
        named |= {f"{module}.{name}" for module, name in _DOTTED.findall(text)}
        assert named - public == set(), page.name


def undescribed(cls: type) -> Iterator[str]:
    """Yield the public methods and properties of a class that no docstring describes, of it or of a protocol that it implements."""
    for name, value in vars(cls).items():
        if name.startswith(("_", "test_")) or not (inspect.isroutine(value) or isinstance(value, property | classmethod)):
            continue
        if not any(inspect.getdoc(getattr(owner, name, None)) for owner in (cls, Storage, Catalog) if hasattr(owner, name)):
            yield name


def test_every_public_function_and_class_has_a_docstring_and_so_has_every_method() -> None:
    without: list[str] = []
    for module in public_modules():
        owner = import_module(module)
        assert owner.__doc__, module
        for name in owner.__all__:
            value = getattr(owner, name)
            if inspect.isroutine(value) or inspect.isclass(value):
                assert value.__doc__, f"{module}.{name}"
            if inspect.isclass(value):
                without += [f"{module}.{name}.{member}" for member in undescribed(value)]
    assert without == []
