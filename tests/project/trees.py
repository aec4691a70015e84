"""The syntax trees of the package, each read once."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import shardstore

PACKAGE = Path(shardstore.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a module's tree, the module first."""
    return list(ast.walk(ast.parse(path.read_text())))
