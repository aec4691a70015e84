"""Generated keys of reference sets (``gen``): all values of some variables, filled into a key, a URL, an offset and a length.

::

    {"key": "x/{{i}}", "url": "http://{{u}}", "offset": "{{i * 10}}", "length": "10", "dimensions": {"i": {"stop": 2}}}

    "x/0": ["http://…", 0, 10], "x/1": ["http://…", 10, 10]

A set of a few hundred bytes can have any number of them: they are counted before anything is made. They are made in batches, and numbers
that are computed from the variables alone for a whole batch at once.

Specification: fsspec's reference sets, "Version 1".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption, Unsupported
from shardstore.format.references.expressions import Value, evaluate_all, names_in
from shardstore.format.references.templates import Templates, Text, constant_parts

MOST_GENERATED = 10_000_000
"""The most generated keys of a set; they take about 1 GB."""
MOST_WORK = 2**32
"""The most characters of texts that are evaluated for all generated keys of a set: a character takes up to 0.2 µs."""
MOST_CHARACTERS = 2**29
"""The most characters of all generated keys and URLs of a set."""

_FIRST_BATCH = 1 << 8
_MOST_BATCH = 1 << 16
_BATCH_CHARACTERS = 1 << 22
_MOST_INDEX = 2**62

Values = range | list[Value]


class Generated(NamedTuple):
    """Successive generated keys, with what they refer to."""

    keys: Sequence[str]
    urls: Sequence[str]
    offsets: Sequence[int] | None
    """Together with ``lengths``; ``None``: they refer to whole objects."""
    lengths: Sequence[int] | None


def generate(generators: Sequence[Any], templates: Templates, most: int = MOST_GENERATED) -> Iterator[Generated]:
    """Yield the keys of all generators of a set: of each the product of its dimensions, the last one varying fastest.

    Raises:
        Corruption: a generator contradicts the specification; the message names it.
        Unsupported: there are more than ``most`` keys, or they are too long, or would take too long to make.
    """
    compiled = [_Generator(generator, templates, f"gen[{number}]") for number, generator in enumerate(generators)]
    count = sum(one.count for one in compiled)
    if count > most:
        raise Unsupported(f"the set of references generates {count} keys; more than {most} are not held in memory")
    if sum(one.count * one.nbytes for one in compiled) > MOST_WORK:
        raise Unsupported(f"the set of references generates {count} keys from long texts, which would take hours")
    characters = 0
    for one in compiled:
        start, batch = 0, _FIRST_BATCH
        while start < one.count:
            made = one.batch(start, min(start + batch, one.count))
            start += batch
            new = sum(map(len, made.keys)) + (sum(map(len, made.urls)) if one.has_many_urls else 0)
            batch = min(2 * batch, _MOST_BATCH) if new < _BATCH_CHARACTERS else max(1, batch // 2)
            characters += new
            if characters > MOST_CHARACTERS:
                raise Unsupported(f"the set of references generates keys and URLs of more than {MOST_CHARACTERS} characters")
            yield made


class _Generator:
    """One generator, compiled."""

    def __init__(self, generator: Any, templates: Templates, what: str) -> None:
        self._what = what
        self._dimensions = _dimensions(generator, what)
        self.count = prod(_count(values) for values in self._dimensions.values())
        names = ["key", "url", *(name for name in ("offset", "length") if generator.get(name) is not None)]
        if len(names) == 3:
            raise Corruption(f"{what} of a set of references has an offset or a length: it takes both, or none")
        self._texts = [_text_of(generator, name, templates, what) for name in names]
        self.nbytes = sum(len(text.text) for text in self._texts)
        self.has_many_urls = not _is_constant(self._texts[1], self._dimensions)

    def batch(self, start: int, stop: int) -> Generated:
        """Return the keys with these numbers."""
        variables = _Batch(self._dimensions, start, stop)
        key, url, *numbers = self._texts
        keys = variables.rendered(key)
        urls = variables.rendered(url) if self.has_many_urls else [variables.rendered_one(url, 0)] * (stop - start)
        if not numbers:
            return Generated(keys, urls, None, None)
        offsets, lengths = (variables.numbers(text) for text in numbers)
        if None in offsets or None in lengths:
            i = next(i for i, pair in enumerate(zip(offsets, lengths, strict=True)) if None in pair)
            shown = " and ".join(variables.rendered_one(text, i) for text in numbers)
            raise Corruption(
                f"{self._what} of a set of references gives {keys[i]!r} offset and length {shown}, which are no numbers of bytes"
            )
        return Generated(keys, urls, offsets, lengths)  # type: ignore[arg-type]  # no None is among them


class _Batch:
    """The values of all variables for successive keys."""

    def __init__(self, dimensions: Mapping[str, Values], start: int, stop: int) -> None:
        self._count = stop - start
        places = np.unravel_index(np.arange(start, stop), tuple(map(len, dimensions.values())))
        self.columns: dict[str, list[Value]] = {}
        self._integers: dict[str, npt.NDArray[np.int64]] = {}
        for (name, values), place in zip(dimensions.items(), places, strict=True):
            if isinstance(values, range):
                self._integers[name] = values.start + place.astype(np.int64) * values.step
                self.columns[name] = self._integers[name].tolist()
                continue
            self.columns[name] = [values[i] for i in place.tolist()]
            if all(isinstance(value, int) and abs(value) < _MOST_INDEX for value in values):
                self._integers[name] = np.array(self.columns[name], dtype=np.int64)

    def rendered_one(self, text: Text, i: int) -> str:
        return text.render({name: values[i] for name, values in self.columns.items()})

    def rendered(self, text: Text) -> list[str]:
        """Return the text, filled in for each key."""
        parts = constant_parts(text, list(self.columns))
        if parts is None:
            return [self.rendered_one(text, i) for i in range(self._count)]
        pieces, nodes = parts
        columns: list[list[int]] = []
        for node in nodes:
            found = evaluate_all(node, self._integers)
            if found is None:
                return [self.rendered_one(text, i) for i in range(self._count)]
            columns.append(found.tolist() if isinstance(found, np.ndarray) else [found] * self._count)
        if not columns:
            return pieces * self._count
        form = "%d".join(piece.replace("%", "%%") for piece in pieces)
        return list(map(form.__mod__, zip(*columns, strict=True)))

    def numbers(self, text: Text) -> Sequence[int | None]:
        """Return the text as a number of bytes for each key; ``None`` where it is none."""
        if text.is_parsed and len(text.nodes) == 1 and not "".join(text.literals).strip():
            found = evaluate_all(text.nodes[0], self._integers)
            if found is not None:
                column: list[int] = found.tolist() if isinstance(found, np.ndarray) else [found] * self._count
                return column if not column or min(column) >= 0 else [number if number >= 0 else None for number in column]
        texts = [text.text.strip()] * self._count if _is_constant(text, self.columns) and not text.nodes else self.rendered(text)
        stripped = map(str.strip, texts)
        return [int(number) if number.isascii() and number.isdecimal() and len(number) < 40 else None for number in stripped]


def _is_constant(text: Text, variables: Mapping[str, Any]) -> bool:
    return text.is_parsed and not any(names_in(node) & variables.keys() for node in text.nodes)


def _dimensions(generator: Any, what: str) -> dict[str, Values]:
    """Return the values of each variable."""
    given = generator.get("dimensions") if isinstance(generator, Mapping) else None
    if not isinstance(given, Mapping) or not given:
        raise Corruption(f"{what} of a set of references has no dimensions")
    return {name: _values(name, values, what) for name, values in given.items()}


def _values(name: str, values: Any, what: str) -> Values:
    if isinstance(values, list) and all(isinstance(value, int | str) for value in values):
        return values
    found = (values.get("start", 0), values.get("stop"), values.get("step", 1)) if isinstance(values, Mapping) else (None,)
    if not all(isinstance(number, int) and abs(number) < _MOST_INDEX for number in found) or found[-1] == 0:
        raise Corruption(f"the dimension {name!r} in {what} of a set of references is {values!r:.100}: no list, start, stop and step")
    return range(*found)


def _count(values: Values) -> int:
    """Return the number of values; of a range, it may be more than ``len`` can return."""
    if isinstance(values, range):
        return max(0, -((values.start - values.stop) // values.step))
    return len(values)


def _text_of(generator: Mapping[str, Any], name: str, templates: Templates, what: str) -> Text:
    text = generator.get(name)
    if isinstance(text, int):  # a number instead of its text
        text = str(text)
    if not isinstance(text, str):
        raise Corruption(f"{what} of a set of references has the {name} {text!r:.100}: it is text, with variables in {{{{…}}}}")
    return templates.text(text, f"the {name} in {what}")
