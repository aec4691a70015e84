"""Texts in templates of reference sets that ``expressions.py`` does not evaluate, by jinja2, if that is installed.

jinja2's sandbox keeps a text from Python's objects, but not from computing without end. So no statements, globals or methods are left
to it, of filters only those that cannot make a text long, and the results of operators are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from shardstore.errors import Unsupported
from shardstore.extras import how_to_install
from shardstore.format.references.expressions import MOST_NUMBER, MOST_TEXT, Unusable, bounded

if TYPE_CHECKING:  # an extra
    from jinja2.sandbox import SandboxedEnvironment

_MOST_TEMPLATE = 4096
_FILTERS = ("abs", "int", "length", "lower", "string", "trim", "upper")
_LONG_WIDTH = re.compile(r"[0-9]{4}|\*")


def compile_by_jinja(text: str, why: str) -> Callable[[Mapping[str, Any]], str]:
    """Return the function that fills variables and functions, by name, into a text. ``why`` says what makes jinja2 necessary.

    Raises:
        Unsupported: jinja2 is not installed, or the text has statements.
        Unusable: it is no text that jinja2 understands. The returned function raises it as well.
    """
    if "{%" in text or "{#" in text or len(text) > _MOST_TEMPLATE:
        raise Unsupported(f"only annotations in {{{{…}}}} are known there: {why}")
    from jinja2 import TemplateError

    wrong = (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError, MemoryError)
    try:
        template = _environment().from_string(text)
    except wrong as exc:
        raise _unusable(exc) from exc

    def render(known: Mapping[str, Any]) -> str:
        try:
            return bounded(template.render(dict(known)))
        except wrong as exc:
            raise _unusable(exc) from exc

    return render


def check_installed(why: str) -> None:
    """Raise ``Unsupported`` if jinja2 is not installed."""
    try:
        import jinja2  # noqa: F401  # whether it can be
    except ModuleNotFoundError as exc:
        raise Unsupported(f"jinja2 is needed for that ({why}): {how_to_install('references')}") from exc


def _unusable(exc: Exception) -> Unusable:
    return Unusable(f"{type(exc).__name__}: {exc}")


def _check_format(format_: str) -> None:
    if _LONG_WIDTH.search(format_):
        raise ValueError(f"the format {format_!r:.100} may make a long text")


def _formatted(value: str, *arguments: Any) -> str:
    _check_format(value)
    return value % arguments


@cache
def _environment() -> SandboxedEnvironment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    class Bounded(SandboxedEnvironment):
        intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

        def is_safe_callable(self, obj: Any) -> bool:
            return getattr(obj, "is_template", False) is True

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "**" and not (abs(right) <= 127 and abs(left) <= 2**32):
                raise ValueError("the power is too large")
            if operator == "*" and not (isinstance(left, int | float) and isinstance(right, int | float)):
                sequence, count = (right, left) if isinstance(left, int) else (left, right)
                if len(sequence) * count > MOST_TEXT:
                    raise ValueError("the product is too long")
            if operator == "%" and isinstance(left, str):
                _check_format(left)
            found = super().call_binop(context, operator, left, right)
            if isinstance(found, int) and abs(found) > MOST_NUMBER:
                raise ValueError("the number has more than 127 bits")
            return bounded(found) if isinstance(found, str) else found

    environment = Bounded(undefined=StrictUndefined, keep_trailing_newline=True)
    environment.globals.clear()
    environment.tests.clear()
    environment.filters = {name: environment.filters[name] for name in _FILTERS} | {"format": _formatted}
    return environment
