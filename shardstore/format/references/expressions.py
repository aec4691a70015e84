"""Expressions in the templates of reference sets: the part of jinja's language that the specification uses, evaluated within bounds.

::

    text         "http://{{u}}_{{(i + 1) * 10}}.nc"  =  literal, expression, literal, expression, literal
    expression   term { ("+" | "-") term }
    term         factor { ("*" | "//" | "%") factor }
    factor       ("+" | "-") factor | number | string | name | name "(" [name "=" expression {"," …}] ")" | "(" expression ")"

Python parses them: the tokens that are admitted mean the same in both languages. Values are integers and texts. Whatever else jinja knows
is ``NotInSubset``, names that are keywords of Python too. Numbers, texts and nesting have bounds, so no set can make a reader compute
without end.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
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


Node = ast.expr
"""An expression as Python parses it, of the nodes that ``_check`` admits."""

_OPERATORS: Mapping[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
}


# -- parsing -----------------------------------------------------------------------------------------------------------

_ANNOTATION = re.compile(
    r"""(?> \s++ | (?:0|[1-9][0-9]{0,38}+)(?![0-9A-Za-z_.]) | [A-Za-z_][A-Za-z0-9_]*+(?!["'])
        | '[^'\\\r\n]*+'(?!\s*['"]) | "[^"\\\r\n]*+"(?!\s*['"]) | // | \*(?!\*) | =(?!=) | [-+%(),] )*+\}\}""",
    re.VERBOSE | re.ASCII,
)
"""An annotation to its end, of tokens that mean the same to Python and to jinja."""
_MOST_EXPRESSION = 4096
_SPACES = str.maketrans("\r\n", "  ")
_CONSTANTS = ("true", "false", "none")  # of jinja
OTHER_MARKS = ("{%", "{#")
PLAIN_NAME = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}", re.ASCII)
"""An annotation that is a name."""


def parse_text(text: str) -> tuple[list[str], list[Node]]:
    """Return the literal pieces of a text, and the expressions between them, one fewer. Raises ``NotInSubset`` if it has more."""
    if len(text) > MOST_TEXT:
        raise NotInSubset(f"it has {len(text)} characters, more than {MOST_TEXT}")
    literals: list[str] = []
    nodes: list[Node] = []
    position = 0
    while (start := text.find("{{", position)) >= 0:
        literals.append(text[position:start])
        annotation = _ANNOTATION.match(text, start + 2)
        if annotation is None or annotation[0][0] in "+-":  # a sign there is white space control
            raise NotInSubset(f"{text[start : start + 40]!r} has more than names, numbers, texts, calls and operators")
        nodes.append(_parse(annotation[0][:-2]))
        position = annotation.end()
    literals.append(text[position:])
    if any(mark in literal for literal in literals for mark in OTHER_MARKS):
        raise NotInSubset("it has {% or {#")
    return literals, nodes


def _parse(text: str) -> Node:
    """Return an expression. Raises ``NotInSubset`` if it has anything but the nodes of the module's docstring."""
    if len(text) > _MOST_EXPRESSION:
        raise NotInSubset(f"it has an expression of {len(text)} characters, more than {_MOST_EXPRESSION}")
    try:
        node = ast.parse(text.translate(_SPACES).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        raise NotInSubset(f"{text!r:.100} is no expression: {exc}") from exc
    _check(node, 0)
    return node


def _check(node: ast.AST, depth: int) -> None:
    """Raise ``NotInSubset`` unless all of an expression can be evaluated here."""
    if depth > MOST_DEPTH:
        raise NotInSubset(f"it is nested more than {MOST_DEPTH} deep")
    match node:
        case ast.Constant(int() | str() as value) if not isinstance(value, bool):
            operands: list[ast.expr] = []
        case ast.Name(name) if name not in _CONSTANTS:
            operands = []
        case ast.UnaryOp(ast.UAdd() | ast.USub(), operand):
            operands = [operand]
        case ast.BinOp(left, sign, right) if type(sign) in _OPERATORS:
            operands = [left, right]
        case ast.Call(ast.Name(), [], keywords) if all(keyword.arg for keyword in keywords):
            operands = [keyword.value for keyword in keywords]
        case _:
            raise NotInSubset(f"it has a {type(node).__name__}")
    for operand in operands:
        _check(operand, depth + 1)


# -- evaluating --------------------------------------------------------------------------------------------------------


def names_in(node: Node) -> set[str]:
    """Return all names that an expression uses, except for those of functions."""
    functions = {id(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and id(name) not in functions}


def evaluate(node: Node, known: Mapping[str, Value | Function]) -> Value:
    """Return the value of an expression.

    Raises:
        NotInSubset: an operator has operands for which it is not evaluated here.
        Unusable: a name is not known, a value has the wrong type, or a bound is passed.
    """
    match node:
        case ast.Constant(int() | str() as value):
            return value
        case ast.Name(name):
            found = _known(name, known)
            if callable(found):
                raise Unusable(f"the template {name!r} has variables: it is used as {{{{{name}(name=value)}}}}")
            return found
        case ast.Call(ast.Name(name), _, keywords):
            function = _known(name, known)
            if not callable(function):
                raise Unusable(f"{name!r} is not a template with variables")
            return function(**{str(keyword.arg): evaluate(keyword.value, known) for keyword in keywords})
        case ast.UnaryOp(sign, operand):
            value = evaluate(operand, known)
            if isinstance(value, str):
                raise Unusable(f"TypeError: a sign has the operand {value!r:.100}")
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left, operation, right):
            return _combined(operation, evaluate(left, known), evaluate(right, known))
        case _:
            raise AssertionError(f"{node} is in no expression")


def _known(name: str, known: Mapping[str, Value | Function]) -> Value | Function:
    try:
        return known[name]
    except KeyError:
        raise Unusable(f"{name!r} is undefined") from None


def _combined(operation: ast.operator, left: Value, right: Value) -> Value:
    sign, function = _OPERATORS[type(operation)]
    if isinstance(left, int) and isinstance(right, int):
        try:
            number: int = function(left, right)
        except ZeroDivisionError as exc:
            raise Unusable(f"ZeroDivisionError: {left} {sign} 0") from exc
        if abs(number) > MOST_NUMBER:
            raise Unusable(f"{left} {sign} {right} has more than 127 bits")
        return number
    return _combined_texts(sign, left, right)


def _combined_texts(sign: str, left: Value, right: Value) -> str:
    """Return the value of an operator that has a text among its operands."""
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
        case ast.Constant(int() as value):
            found = _Interval(value, value, value)
        case ast.Name(name):
            found = variables.get(name)
        case ast.UnaryOp(sign, operand):
            found = _interval(operand, variables)
            if found is not None and isinstance(sign, ast.USub):
                found = _Interval(-found.values, -found.most, -found.least)
        case ast.BinOp(left, operation, right):
            one, other = _interval(left, variables), _interval(right, variables)
            if one is not None and other is not None:
                found = _combined_intervals(operation, one, other)
        case _:
            pass
    return None if found is None or max(-found.least, found.most) >= _INT64 else found


def _combined_intervals(operation: ast.operator, one: _Interval, other: _Interval) -> _Interval | None:
    sign, function = _OPERATORS[type(operation)]
    if sign in ("//", "%") and other.least <= 0 <= other.most:
        return None
    if sign == "%":
        corners = [0, other.most - 1 if other.least > 0 else other.least + 1]
    else:
        corners = [function(a, b) for a, b in product((one.least, one.most), (other.least, other.most))]
    if max(map(abs, corners)) >= _INT64:  # before anything overflows
        return None
    values: Array = function(one.values, other.values)
    return _Interval(values, min(corners), max(corners))
