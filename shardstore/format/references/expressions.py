"""Expressions in the templates of reference sets: the part of jinja's language that the specification uses, evaluated within bounds.

::

    text         "http://{{u}}_{{(i + 1) * 10}}.nc"  =  literal, expression, literal, expression, literal
    expression   term { ("+" | "-") term }
    term         factor { ("*" | "//" | "%") factor }
    factor       ("+" | "-") factor | number | string | name | name "(" [name "=" expression {"," …}] ")" | "(" expression ")"

Values are integers and texts; operators mean what they mean in Python. Whatever else jinja knows is ``NotInSubset``. Numbers, texts and
nesting have bounds, so no set can make a reader compute without end.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_NUMBER = 2**127
MOST_TEXT = 64 * 2**10
"""The most characters of a text, before and after it is filled in."""
MOST_DEPTH = 50

_INT64 = 2**62

Value = int | str
Function = Callable[..., str]
"""A template with variables, which it takes by name."""

Array = npt.NDArray[np.int64] | int


class NotInSubset(Exception):
    """The text has something that is not evaluated here."""


class Unusable(Exception):
    """The text cannot be filled in."""


@dataclass(frozen=True, slots=True)
class Constant:
    value: Value


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class Unary:
    sign: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Binary:
    operator: str
    left: Node
    right: Node


Node = Constant | Name | Call | Unary | Binary

_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}


# -- parsing -----------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>(?:0|[1-9][0-9]{0,38})(?![0-9A-Za-z_.]))
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<string>'[^'\\]*'|"[^"\\]*")
      | (?P<end>\}\})
      | (?P<sign>//|\*(?!\*)|=(?!=)|[-+%(),])
    )""",
    re.VERBOSE | re.ASCII,
)
OTHER_MARKS = ("{%", "{#")
PLAIN_NAME = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}", re.ASCII)
"""An annotation that is a name."""

_KEYWORDS = frozenset(["true", "false", "none", "True", "False", "None", "not", "and", "or", "if", "else", "is", "in"])


def parse_text(text: str) -> tuple[list[str], list[Node]]:
    """Return the literal pieces of a text, and the expressions between them, one fewer.

    Raises:
        NotInSubset: it has something that is not evaluated here.
    """
    if len(text) > MOST_TEXT:
        raise NotInSubset(f"it has {len(text)} characters, more than {MOST_TEXT}")
    literals: list[str] = []
    nodes: list[Node] = []
    position = 0
    while (start := text.find("{{", position)) >= 0:
        literals.append(text[position:start])
        parser = _Parser(text, start + 2)
        nodes.append(parser.annotation())
        position = parser.position
    literals.append(text[position:])
    if any(mark in literal for literal in literals for mark in OTHER_MARKS):
        raise NotInSubset("it has {% or {#")
    return literals, nodes


class _Parser:
    """A parser of one annotation; ``position`` is behind what has been read."""

    def __init__(self, text: str, position: int) -> None:
        self._text = text
        self.position = position
        if text[position : position + 1] in ("-", "+"):
            raise NotInSubset("it has white space control")
        self._kind, self._token = "", ""
        self._next()

    def annotation(self) -> Node:
        node = self._sum(0)
        if self._kind != "end":
            raise NotInSubset(f"{self._token!r} is not expected there")
        return node

    def _next(self) -> None:
        matched = _TOKEN.match(self._text, self.position)
        if matched is None:
            raise NotInSubset(f"{self._text[self.position : self.position + 10]!r} is not known")
        self._kind = str(matched.lastgroup)
        self._token = matched[self._kind]
        self.position = matched.end()

    def _accept(self, *signs: str) -> str | None:
        if self._kind != "sign" or self._token not in signs:
            return None
        sign = self._token
        self._next()
        return sign

    def _sum(self, depth: int) -> Node:
        node = self._product(depth)
        while (sign := self._accept("+", "-")) is not None:
            depth += 1  # a long chain nests as deep as it is long
            node = Binary(sign, node, self._product(depth))
        return node

    def _product(self, depth: int) -> Node:
        node = self._factor(depth)
        while (sign := self._accept("*", "//", "%")) is not None:
            depth += 1
            node = Binary(sign, node, self._factor(depth))
        return node

    def _factor(self, depth: int) -> Node:
        if depth > MOST_DEPTH:
            raise NotInSubset(f"it is nested more than {MOST_DEPTH} deep")
        if (sign := self._accept("+", "-")) is not None:
            return Unary(sign, self._factor(depth + 1))
        if self._accept("(") is not None:
            node = self._sum(depth + 1)
            self._expect(")")
            return node
        kind, token = self._kind, self._token
        if kind not in ("number", "string", "name") or token in _KEYWORDS:
            raise NotInSubset(f"{token!r} is not expected there")
        self._next()
        if kind == "number":
            return Constant(int(token))
        if kind == "string":
            return Constant(token[1:-1])
        return Name(token) if self._accept("(") is None else Call(token, self._arguments(depth + 1))

    def _arguments(self, depth: int) -> tuple[tuple[str, Node], ...]:
        found: dict[str, Node] = {}
        while self._accept(")") is None:
            if found:
                self._expect(",")
                if self._accept(")") is not None:
                    break
            name = self._token
            if self._kind != "name" or name in _KEYWORDS or name in found:
                raise NotInSubset(f"{name!r} is not the name of an argument")
            self._next()
            self._expect("=")
            found[name] = self._sum(depth)
        return tuple(found.items())

    def _expect(self, sign: str) -> None:
        if self._accept(sign) is None:
            raise NotInSubset(f"{self._token!r} is there in place of {sign!r}")


# -- evaluating --------------------------------------------------------------------------------------------------------


def names_in(node: Node) -> set[str]:
    """Return all names that an expression uses, except for those of functions."""
    match node:
        case Name(name):
            return {name}
        case Call(_, arguments):
            return set().union(*(names_in(argument) for _, argument in arguments))
        case Unary(_, operand):
            return names_in(operand)
        case Binary(_, left, right):
            return names_in(left) | names_in(right)
        case _:
            return set()


def evaluate(node: Node, known: Mapping[str, Value | Function]) -> Value:
    """Return the value of an expression.

    Raises:
        NotInSubset: an operator has operands for which it is not evaluated here.
        Unusable: a name is not known, a value has the wrong type, or a bound is passed.
    """
    match node:
        case Constant(value):
            return value
        case Name(name):
            found = _known(name, known)
            if callable(found):
                raise Unusable(f"the template {name!r} has variables: it is used as {{{{{name}(name=value)}}}}")
            return found
        case Call(name, arguments):
            function = _known(name, known)
            if not callable(function):
                raise Unusable(f"{name!r} is not a template with variables")
            return function(**{argument: evaluate(value, known) for argument, value in arguments})
        case Unary(sign, operand):
            value = evaluate(operand, known)
            if isinstance(value, str):
                raise Unusable(f"TypeError: {sign} has the operand {value!r:.100}")
            return -value if sign == "-" else value
        case Binary(sign, left, right):
            return _combined(sign, evaluate(left, known), evaluate(right, known))


def _known(name: str, known: Mapping[str, Value | Function]) -> Value | Function:
    try:
        return known[name]
    except KeyError:
        raise Unusable(f"{name!r} is undefined") from None


def _combined(sign: str, left: Value, right: Value) -> Value:
    if isinstance(left, int) and isinstance(right, int):
        try:
            number: int = _OPERATORS[sign](left, right)
        except ZeroDivisionError as exc:
            raise Unusable(f"ZeroDivisionError: {left} {sign} 0") from exc
        if abs(number) > MOST_NUMBER:
            raise Unusable(f"{left} {sign} {right} has more than 127 bits")
        return number
    if sign == "%" and isinstance(left, str):
        raise NotInSubset("it formats a text")
    if sign == "+" and isinstance(left, str) and isinstance(right, str):
        check_length(len(left) + len(right))
        return left + right
    if sign == "*" and isinstance(left, str) is not isinstance(right, str):
        text, count = (left, right) if isinstance(left, str) else (right, left)
        assert isinstance(count, int)
        assert isinstance(text, str)
        if len(text) * count > MOST_TEXT:
            raise Unusable(f"{text!r:.100} * {count} has more than {MOST_TEXT} characters")
        return text * count
    raise Unusable(f"TypeError: {sign} has the operands {left!r:.100} and {right!r:.100}")


def check_length(nchars: int) -> None:
    """Raise ``Unusable`` if a text of so many characters is too long."""
    if nchars > MOST_TEXT:
        raise Unusable(f"it is filled in with more than {MOST_TEXT} characters")


def bounded(text: str) -> str:
    """Return the text. Raises ``Unusable`` if it is too long."""
    check_length(len(text))
    return text


# -- many values at once -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Interval:
    """Values of an expression, ``(n,)`` or one for all, with their bounds."""

    values: Array
    least: int
    most: int

    @classmethod
    def of(cls, values: Array, corners: Collection[int]) -> _Interval:
        return cls(values, min(corners), max(corners))


def evaluate_all(node: Node, variables: Mapping[str, npt.NDArray[np.int64]]) -> Array | None:
    """Return the values of an expression for many values of its variables, ``(n,)``, or one for all.

    ``None``: it has texts or other names, divides by 0, or needs more than 62 bits; then the values have to be computed one by one.
    """
    bounds = {name: _Interval(values, int(values.min()), int(values.max())) for name, values in variables.items() if len(values)}
    found = _interval(node, bounds)
    return None if found is None else found.values


def _interval(node: Node, variables: Mapping[str, _Interval]) -> _Interval | None:
    found: _Interval | None = None
    match node:
        case Constant(int() as value):
            found = _Interval(value, value, value)
        case Name(name):
            found = variables.get(name)
        case Unary(sign, operand):
            found = _interval(operand, variables)
            if found is not None and sign == "-":
                found = _Interval(-found.values, -found.most, -found.least)
        case Binary(sign, left, right):
            one, other = _interval(left, variables), _interval(right, variables)
            if one is not None and other is not None:
                found = _combined_intervals(sign, one, other)
        case _:
            pass
    return None if found is None or max(-found.least, found.most) >= _INT64 else found


def _combined_intervals(sign: str, one: _Interval, other: _Interval) -> _Interval | None:
    if sign in ("//", "%") and other.least <= 0 <= other.most:
        return None
    if sign == "%":
        corners = [0, other.most - 1 if other.least > 0 else other.least + 1]
    else:
        corners = [_OPERATORS[sign](a, b) for a, b in product((one.least, one.most), (other.least, other.most))]
    if max(map(abs, corners)) >= _INT64:  # before anything overflows
        return None
    values: Array = _OPERATORS[sign](one.values, other.values)
    return _Interval.of(values, corners)
