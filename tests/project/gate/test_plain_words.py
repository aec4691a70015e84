"""Docstrings, messages, help and pages use plain words; a name means one thing; a function is short enough to be followed."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from tests.project.trees import MODULES, PACKAGE, nodes_of

ROOT = Path(__file__).parents[3]

AVOIDED = re.compile(r"\b(others|nobody|somebody|anew|surely|told|tells|whoever|lately|in vain|rid of)\b", re.IGNORECASE)
"""Say instead: another process, writer or client; no process; again; reported; whichever; recently; without effect; remove."""

MOST_BRANCHES = 25


def branches(function: ast.AST) -> int:
    count = 1
    for node in ast.walk(function):
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(
            node,
            ast.If | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler | ast.IfExp | ast.comprehension | ast.Assert | ast.match_case,
        ):
            count += 1
    return count


def test_words_that_strangers_stumble_over_are_avoided() -> None:
    found = [
        (path.name, node.lineno, word)
        for path in MODULES
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
        for word in AVOIDED.findall(node.value)
    ]
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "docs").rglob("*.ipynb"))]:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            found += [(page.name, number, word) for word in AVOIDED.findall(line)]
    assert found == []


def test_no_name_is_that_of_more_than_two_classes() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(str(path.relative_to(PACKAGE)))
    assert {name: where for name, where in places.items() if len(where) > 2} == {}


def test_no_function_has_too_many_branches() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}:{node.name}": count
        for path in MODULES
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (count := branches(node)) > MOST_BRANCHES
    }
    assert found == {}
