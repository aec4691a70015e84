"""Rules for the tests themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]

_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")

EXCEPTIONS = {
    ("tests/together/test_toys.py", "_KINDS"),  # the table of all kinds of storage in the process, which a test may not leave longer
    ("tests/torture/small_parts.py", "MIN_PART_BYTES"),  # whole processes work with small parts, whatever opens their storages
    ("tests/torture/small_parts.py", "COPY_PAYS_NBYTES"),
    ("tests/storage/local/user_workers.py", "_REFUSALS"),  # the same: processes that become other users
}


def patched_constants(path: Path) -> Iterator[str]:
    """Yield the constants of modules of shardstore that a file of tests replaces, in whatever way."""
    tree = ast.parse(path.read_text())
    others = set()  # what is imported from elsewhere
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] not in ("shardstore", "tests"):
                others |= {name.asname or name.name for name in names}
            case ast.Import(names=names):
                others |= {name.asname or name.name.split(".")[0] for name in names} - {"shardstore"}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="setattr" | "object"), args=[owner, ast.Constant(value=str(name)), *_]):
                pass
            case ast.Call(func=ast.Attribute(attr="setattr" | "patch"), args=[ast.Constant(value=str(dotted)), *_]):
                owner, name = ast.Name(dotted.split(".")[0]), dotted.rpartition(".")[2]
            case ast.Assign(targets=targets):
                for target in targets:
                    match target:
                        case ast.Attribute(value=ast.Name(id=module), attr=name) if _CONSTANT.fullmatch(name) and module not in others:
                            yield name
                        case ast.Subscript(value=ast.Attribute(attr="__dict__"), slice=ast.Constant(value=str(name))):
                            if _CONSTANT.fullmatch(name):
                                yield name
                continue
            case _:
                continue
        while isinstance(owner, ast.Attribute):
            owner = owner.value
        if _CONSTANT.fullmatch(name) and not (isinstance(owner, ast.Name) and owner.id in others):
            yield name


def test_limits_are_given_not_patched() -> None:
    """A limit that a test makes small is an argument or a public attribute of what uses it: a constant can be renamed, or be bound
    elsewhere, and the test would go on without it.
    """
    found = {
        (str(path.relative_to(ROOT)), name)
        for folder in ("tests", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in patched_constants(path)
    }
    assert found == EXCEPTIONS
