"""What docstrings name exists: the modules that a room is introduced by, and the exceptions under "Raises"."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.trees import MODULES, PACKAGE, nodes_of

ROOMS = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)

_BEGIN = re.compile(r"Begin\s+with\s+``([\w/]+\.py)``")
_MODULE = re.compile(r"``(\w+\.py)``")
_RAISED = re.compile(r"^\s+(\w+(?:, \w+)*):", re.MULTILINE)
_OF_LIBRARIES = {"CancelledError", "RequestError"}


def docstring_of(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text())) or ""


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(PACKAGE)))
def test_a_room_says_where_to_begin_and_names_modules_that_exist(room: Path) -> None:
    docstring = docstring_of(room / "__init__.py")
    assert (room / (_BEGIN.search(docstring) or ["", "nothing"])[1]).is_file()
    for name in _MODULE.findall(docstring):
        assert (room / name).is_file(), name


def exceptions() -> set[str]:
    """The names of all classes of the package, and of Python's exceptions."""
    found = {name for name in dir(builtins) if isinstance(getattr(builtins, name), type)} | _OF_LIBRARIES
    for path in MODULES:
        found |= {node.name for node in nodes_of(path) if isinstance(node, ast.ClassDef)}
    return found


def raised(path: Path) -> Iterator[str]:
    """The names of the exceptions in the sections "Raises" of a module's docstrings."""
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            _, _, section = (ast.get_docstring(node) or "").partition("Raises:\n")
            for names in _RAISED.findall(re.split(r"\n(?=\S)", section)[0]):
                yield from names.split(", ")


def test_docstrings_say_that_exceptions_are_raised_that_exist() -> None:
    known = exceptions()
    named = [(str(path.relative_to(PACKAGE)), name) for path in MODULES for name in raised(path)]
    assert len(named) > 200
    assert [each for each in named if each[1] not in known] == []
