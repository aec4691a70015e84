"""The public names of the package, with their signatures: those in ``__all__`` of every module that has it.

``python -m tests.project.public_names`` writes them into ``public_names.txt``, which a test compares with the code.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.project.trees import MODULES, PACKAGE

SNAPSHOT = Path(__file__).with_name("public_names.txt")
RENEW = "python -m tests.project.public_names"


def has_all(path: Path) -> bool:
    """Return whether a module says what is public in it."""
    return any(
        isinstance(target, ast.Name) and target.id == "__all__"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign)
        for target in node.targets
    )


def public_modules() -> list[str]:
    """Return the names of the modules that have public names."""
    found = [path.relative_to(PACKAGE.parent).with_suffix("") for path in MODULES if has_all(path)]
    return sorted(".".join(path.parts).removesuffix(".__init__") for path in found)


def as_text(value: object) -> str:
    """Return a default or an annotation as the code has it, the same with every version of Python."""
    if inspect.isroutine(value) or inspect.isclass(value):
        return str(value.__qualname__)
    return value if isinstance(value, str) else repr(value)


def parameter(each: inspect.Parameter) -> str:
    star = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
    kind = "" if each.annotation is each.empty else f": {as_text(each.annotation)}"
    default = repr(each.default) if isinstance(each.default, str) else as_text(each.default)
    return f"{star}{each.name}{kind}" + ("" if each.default is each.empty else f" = {default}")


def signature(function: Any) -> str:
    """Return ``(…) -> …``, with all names, types and defaults; of a class, without what it returns."""
    found = inspect.signature(function)
    texts: list[str] = []
    for each in found.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not any(text.startswith("*") for text in texts):
            texts.append("*")
        texts.append(parameter(each))
    has_result = found.return_annotation is not found.empty and not inspect.isclass(function)
    return f"({', '.join(texts)})" + (f" -> {as_text(found.return_annotation)}" if has_result else "")


def members(cls: type, public: set[object]) -> Iterator[str]:
    """Yield the public members of a class that the package defines: in it, and in bases that are not public themselves."""
    ours = [base for base in cls.__mro__ if base is cls or (base.__module__.startswith("shardstore") and base not in public)]
    names = {name for base in ours for name in vars(base)}
    if is_dataclass(cls):
        names |= {each.name for each in fields(cls)}
    for name in sorted(name for name in names if not name.startswith(("_", "test_"))):  # those of a suite are not called by name
        value = inspect.getattr_static(cls, name, None)
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        yield f"{name}{signature(function) if callable(function) else ''}"


def lines() -> Iterator[str]:
    """Yield a line for each public name, and one for each member of a class, by module."""
    owners = {module: import_module(module) for module in public_modules()}
    public: dict[object, str] = {}
    everything = {getattr(owner, name) for owner in owners.values() for name in owner.__all__ if inspect.isclass(getattr(owner, name))}
    for module, owner in owners.items():
        for name in sorted(owner.__all__):
            value, here = getattr(owner, name), f"{module}.{name}"
            if (inspect.isroutine(value) or inspect.isclass(value)) and (known := public.setdefault(value, here)) != here:
                yield f"{here} = {known}"
                continue
            if not inspect.isclass(value):
                yield f"{here}{signature(value) if inspect.isroutine(value) else ''}"
                continue
            bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
            is_made = not (issubclass(value, BaseException | Enum) or inspect.isabstract(value))
            yield f"{here}{signature(value) if is_made else ''}" + (f" of {bases}" if bases else "")
            yield from (f"    .{member}" for member in members(value, everything))


if __name__ == "__main__":
    SNAPSHOT.write_text("".join(f"{line}\n" for line in lines()))
