"""Templates of reference sets, and the texts that use them.

::

    {"templates": {"u": "server.domain/path", "f": "{{c}}"},          u is a constant, f has a variable
     "refs": {"b": ["http://{{u}}", 100, 10],                         http://server.domain/path
              "c": ["http://{{f(c='text')}}"]}}                       http://text

``expressions.py`` evaluates what stands in ``{{…}}``; what it does not know is left to jinja2 where that is installed. A name that is not
known is an error, never an empty text. jinja2's sandbox keeps a text from Python's objects, but not from computing without end. So no
statements, globals or methods are left to it, of filters only those that cannot make a text long, and the results of operators are bounded.

Specification: fsspec's reference sets, "Version 1".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from shardstore.errors import Corruption, Unsupported
from shardstore.extras import needed
from shardstore.format.references.expressions import (
    MOST_NUMBER,
    MOST_TEXT,
    OTHER_MARKS,
    PLAIN_NAME,
    Function,
    Node,
    NotInSubset,
    Unusable,
    Value,
    bounded,
    check_length,
    evaluate,
    parse_text,
)

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
    needed("jinja2", "report", f"jinja2 is needed for that ({why})")
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


ONLY_PLAIN = "simple_templates=True"


class Text:
    """A text with annotations, compiled: literal pieces with expressions between them, or a function of jinja2's.

    ``known`` are the templates that it may use.
    """

    def __init__(self, text: str, what: str, known: Mapping[str, Value | Function], *, only_plain: bool = False) -> None:
        self.text = text
        self._what = what
        self.known = known
        self.literals: list[str] = []
        self.nodes: list[Node] = []
        self._by_jinja: Callable[[Mapping[str, Any]], str] | None = None
        try:
            self.literals, self.nodes = parse_text(text)
        except NotInSubset as exc:
            self._leave_to_jinja(str(exc), only_plain)
        if only_plain and not all(isinstance(node, ast.Name) for node in self.nodes):
            raise self._not_plain()

    @property
    def is_parsed(self) -> bool:
        """True if ``literals`` and ``nodes`` are the whole text."""
        return self._by_jinja is None

    def render(self, variables: Mapping[str, Value]) -> str:
        """Return the text, filled in with variables and templates.

        Raises:
            Corruption: it cannot be filled in.
            Unsupported: it needs jinja2, which is not installed.
        """
        try:
            if self._by_jinja is None:
                return self._filled({**self.known, **variables})
        except NotInSubset as exc:
            self._leave_to_jinja(str(exc), False)
        except Unusable as exc:
            raise self._unusable(exc) from exc
        assert self._by_jinja is not None
        try:
            return self._by_jinja({**self.known, **variables})
        except Unusable as exc:
            raise self._unusable(exc) from exc

    def _filled(self, known: Mapping[str, Value | Function]) -> str:
        filled = [self.literals[0]]
        nchars = len(self.literals[0])
        for node, literal in zip(self.nodes, self.literals[1:], strict=True):
            value = str(evaluate(node, known))
            filled += [value, literal]
            nchars += len(value) + len(literal)
            check_length(nchars)
        return "".join(filled)

    def _leave_to_jinja(self, why: str, only_plain: bool) -> None:
        if only_plain:
            raise self._not_plain()
        where = f"{self._what} of a set of references is {self.text!r:.200}"
        try:
            self._by_jinja = compile_by_jinja(self.text, why)
        except Unsupported as exc:
            raise Unsupported(f"{where}: {exc}") from exc
        except Unusable as exc:
            raise self._unusable(exc) from exc

    def _not_plain(self) -> Unsupported:
        return Unsupported(f"{self._what} of a set of references is {self.text!r:.200}, which {ONLY_PLAIN} does not allow: leave that out")

    def _unusable(self, exc: Exception) -> Corruption:
        return Corruption(f"{self._what} of a set of references, {self.text!r:.200}, cannot be filled in: {exc}")


class _Function:
    """A template with variables of its own, which become known when it is called; it sees no other template."""

    is_template = True  # jinja2 may call it

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._given = text
        self._text: Text | None = None

    def __call__(self, **variables: Value) -> str:
        if self._text is None:
            self._text = Text(self._given, f"the template {self._name!r}", {})
        return self._text.render(variables)

    def __str__(self) -> str:  # what jinja2 would show of it
        raise TypeError(f"the template {self._name!r} has variables: it is used as {{{{{self._name}(name=value)}}}}")


class Templates:
    """The templates of one set, by name; ``only_plain``: annotations are names. Raises ``Corruption`` if one of them is no text."""

    def __init__(self, given: Mapping[str, Any], *, only_plain: bool = False) -> None:
        self._only_plain = only_plain
        self._known: dict[str, Value | Function] = {}
        for name, text in given.items():
            if not isinstance(text, str):
                raise Corruption(f"the template {name!r} is {text!r:.100}, not text")
            self._known[name] = _Function(name, text) if "{{" in text else text
        self._longest = max((len(text) for text in self._known.values() if isinstance(text, str)), default=0)

    def text(self, text: str, what: str) -> Text:
        """Return a text that uses the templates, compiled. ``what`` says in errors where it stands."""
        return Text(text, what, self._known, only_plain=self._only_plain)

    def rendered(self, text: str, what: str) -> str:
        """Return a text without variables of its own, filled in. Raises as ``Text`` and ``Text.render`` do."""
        if len(text) + self._longest * text.count("{{") <= MOST_TEXT and not any(mark in text for mark in OTHER_MARKS):
            plain = PLAIN_NAME.sub(self._constant, text)  # ten times as fast
            if "{{" not in plain:
                return plain
        return self.text(text, what).render({})

    def _constant(self, matched: re.Match[str]) -> str:
        found = self._known.get(matched[1])
        return found if isinstance(found, str) else matched[0]


def constant_parts(text: Text, variables: Sequence[str]) -> tuple[list[str], list[Node]] | None:
    """Return pieces and expressions of a text with all else but ``variables`` filled in; ``None`` if that can be done only one by one."""
    if not text.is_parsed:
        return None
    pieces, nodes = [text.literals[0]], []
    for node, literal in zip(text.nodes, text.literals[1:], strict=True):
        if isinstance(node, ast.Name) and node.id not in variables and isinstance(text.known.get(node.id), str):
            pieces[-1] += f"{text.known[node.id]}{literal}"
        else:
            nodes.append(node)
            pieces.append(literal)
    return pieces, nodes
