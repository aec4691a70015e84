"""Sets of references in JSON: version 1, with its templates and generated keys, written out as version 0.

::

    {"version": 1,
     "templates": {"u": "server.domain/path", "f": "{{c}}"},
     "gen": [{"key": "x/{{i}}", "url": "http://{{u}}_{{i}}", "offset": "{{(i + 1) * 10}}", "length": "10", "dimensions": {"i": [0, 1]}}],
     "refs": {"a": "text", "b": ["http://{{u}}", 100, 10], "c": ["http://{{f(c='text')}}"]}}

    {"a": "text", "b": ["http://server.domain/path", 100, 10], "c": ["http://text"], "x/0": ["http://server.domain/path_0", 10, 10], …}

Annotations that are plain names are filled in here. Anything else in ``{{…}}`` is left to jinja2, in its sandbox. A name that is not
known is an error, never an empty string.

Specification: fsspec's reference sets, "Version 0" and "Version 1".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from shardstore.errors import Corruption, Unsupported

if TYPE_CHECKING:  # an extra
    from jinja2.sandbox import SandboxedEnvironment

MOST_GENERATED = 10_000_000
"""The most generated keys; so many take about 4 GB as Python objects."""

_PLAIN = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_MARKS = ("{{", "{%", "{#")

Renderer = Callable[[Mapping[str, Any]], str]
"""A function that fills variables, by name, into one text."""


def is_generated(document: object) -> bool:
    """Return whether a set, as parsed from JSON, has generators: their keys are not written in it."""
    return isinstance(document, Mapping) and document.get("version") is not None and bool(document.get("gen"))


def expanded(
    document: object, overrides: Mapping[str, str] | None = None, *, only_plain: bool = False, most_generated: int = MOST_GENERATED
) -> dict[str, Any]:
    """Return the references of a set, as parsed from JSON, by key: text, documents as JSON objects, ``[url]`` or ``[url, offset, nbytes]``.

    ``overrides`` are templates in place of the set's own. ``only_plain`` leaves out generated keys, and fills in only annotations that
    are plain names.

    Raises:
        Corruption: the set contradicts the specification; the message names the key.
        Unsupported: the version is not known, an annotation needs jinja2, which is not installed, or there are too many keys.
    """
    if not isinstance(document, Mapping):
        raise Corruption("a set of references is a JSON object")
    version = document.get("version")
    if version is None:
        return {key: _checked(key, value) for key, value in document.items()}
    if version != 1:
        raise Unsupported(f"version {version!r} of sets of references is not known: 0, without that member, and 1 are")
    templates = _Templates({**_member(document, "templates", Mapping), **(overrides or {})}, only_plain=only_plain)
    references = {key: _checked(key, value) for key, value in _member(document, "refs", Mapping).items()}
    for key, value in references.items():
        if isinstance(value, list) and isinstance(value[0], str) and "{{" in value[0]:
            references[key] = [templates.rendered(value[0], f"the URL of {key!r}"), *value[1:]]
    if not only_plain:
        generators = _member(document, "gen", Sequence)
        _check_count(generators, most_generated)
        for number, generator in enumerate(generators):
            references.update(_generated(generator, templates, f"gen[{number}]"))
    return references


def _member(document: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return a member of a JSON object that may be missing."""
    value = document.get(name)
    if value is None:
        return {} if kind is Mapping else []
    if not isinstance(value, kind) or isinstance(value, str):
        wanted = "an object" if kind is Mapping else "a list"
        raise Corruption(f"the member {name!r} of a set of references is {wanted}, not {value!r:.100}")
    return value


def _checked(key: str, value: Any) -> Any:
    if isinstance(value, str | Mapping):
        return value
    is_one = isinstance(value, list | tuple) and len(value) in (1, 3) and (value[0] is None or isinstance(value[0], str))
    if is_one and all(isinstance(n, int) and n >= 0 for n in value[1:]):
        return list(value)
    raise Corruption(f"the reference {key!r} is {value!r:.200}, and neither text, an object, [url] nor [url, offset, length]")


# -- templates ---------------------------------------------------------------------------------------------------------


class _Function:
    """A template with variables of its own, as jinja2 calls it."""

    def __init__(self, name: str, render: Renderer) -> None:
        self._name = name
        self._render = render

    def __call__(self, **variables: Any) -> str:
        return self._render(variables)

    def __str__(self) -> str:
        raise TypeError(f"the template {self._name!r} has variables: it is used as {{{{{self._name}(name=value)}}}}")


class _Templates:
    """The templates of one set, and texts with annotations, each compiled once."""

    def __init__(self, given: Mapping[str, Any], *, only_plain: bool) -> None:
        self._only_plain = only_plain
        self._environment: SandboxedEnvironment | None = None
        self._constants: dict[str, str] = {}
        self._functions: dict[str, _Function] = {}
        self._compiled: dict[str, str] = {}
        for name, text in given.items():
            if not isinstance(text, str):
                raise Corruption(f"the template {name!r} is {text!r:.100}, not text")
            if "{{" in text:
                self._functions[name] = _Function(name, _late(self, text, f"the template {name!r}"))
            else:
                self._constants[name] = text

    def rendered(self, text: str, what: str) -> str:
        """Return ``text`` filled in with no variables except the templates. ``what`` says where it stands."""
        found = self._compiled.get(text)
        if found is None:
            found = self._compiled[text] = self.renderer(text, (), what)({})
        return found

    def renderer(self, text: str, variables: Sequence[str], what: str, *, with_templates: bool = True) -> Renderer:
        """Return the function that fills ``variables`` and the templates into ``text``."""
        constants = self._constants if with_templates else {}
        literals, names = _PLAIN.split(text)[::2], _PLAIN.findall(text)
        if not any(mark in literal for literal in literals for mark in _MARKS):
            if not names:
                return lambda _: text
            if all(name in constants or name in variables for name in names):
                pieces = [literals[0]]
                for name, literal in zip(names, literals[1:], strict=True):
                    pieces += [name, literal]
                return _Filled(pieces, constants)
        return self._by_jinja(text, what, {**constants, **self._functions} if with_templates else {})

    def _by_jinja(self, text: str, what: str, known: Mapping[str, Any]) -> Renderer:
        if self._only_plain:
            raise Unsupported(f"{what} of a set of references is {text!r:.200}, which simple_templates=True does not allow: leave that out")
        try:
            from jinja2 import StrictUndefined, TemplateError
            from jinja2.sandbox import SandboxedEnvironment
        except ModuleNotFoundError as exc:
            raise Unsupported(f"{what} of a set of references is {text!r:.200}, for which jinja2 is needed: pip install jinja2") from exc
        if self._environment is None:
            self._environment = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
        wrong = (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)
        try:
            template = self._environment.from_string(text)
        except wrong as exc:
            raise _unusable(what, text, exc) from exc

        def render(variables: Mapping[str, Any]) -> str:
            try:
                return template.render({**known, **variables})
            except wrong as exc:
                raise _unusable(what, text, exc) from exc

        return render


class _Filled:
    """A text whose annotations are plain names: literal pieces, and names between them."""

    def __init__(self, pieces: Sequence[str], constants: Mapping[str, str]) -> None:
        self._literals = pieces[::2]
        self._names = pieces[1::2]
        self._constants = constants

    def __call__(self, variables: Mapping[str, Any]) -> str:
        filled = [self._literals[0]]
        for name, literal in zip(self._names, self._literals[1:], strict=True):
            filled += [str(variables[name] if name in variables else self._constants[name]), literal]
        return "".join(filled)


def _late(templates: _Templates, text: str, what: str) -> Renderer:
    """Return the renderer of a template with variables, which become known when it is called."""
    compiled: dict[tuple[str, ...], Renderer] = {}

    def render(variables: Mapping[str, Any]) -> str:
        names = tuple(variables)
        if names not in compiled:
            compiled[names] = templates.renderer(text, names, what, with_templates=False)
        return compiled[names](variables)

    return render


def _unusable(what: str, text: str, exc: Exception) -> Corruption:
    return Corruption(f"{what} of a set of references, {text!r:.200}, cannot be filled in: {type(exc).__name__}: {exc}")


# -- generated keys ----------------------------------------------------------------------------------------------------


def _dimensions(generator: Any, what: str) -> dict[str, Sequence[Any]]:
    """Return the values of each variable."""
    given = generator.get("dimensions") if isinstance(generator, Mapping) else None
    if not isinstance(given, Mapping) or not given:
        raise Corruption(f"{what} of a set of references has no dimensions")
    found: dict[str, Sequence[Any]] = {}
    for name, values in given.items():
        if isinstance(values, list):
            found[name] = values
            continue
        start, stop, step = (
            (values.get("start", 0), values.get("stop"), values.get("step", 1)) if isinstance(values, Mapping) else (0, None, 1)
        )
        if not (isinstance(start, int) and isinstance(stop, int) and isinstance(step, int)) or step == 0:
            raise Corruption(f"the dimension {name!r} in {what} of a set of references is {values!r:.100}: no list, start, stop and step")
        found[name] = range(start, stop, step)
    return found


def _check_count(generators: Sequence[Any], most: int) -> None:
    count = sum(prod(map(len, _dimensions(one, f"gen[{n}]").values())) for n, one in enumerate(generators))
    if count > most:
        raise Unsupported(f"the set of references generates {count} keys; more than {most} are not held in memory")


def _generated(generator: Mapping[str, Any], templates: _Templates, what: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the keys of one generator with their references: the product of its dimensions, the last one varying fastest."""
    dimensions = _dimensions(generator, what)
    members = ["key", "url", *(name for name in ("offset", "length") if generator.get(name) is not None)]
    if len(members) == 3:
        raise Corruption(f"{what} of a set of references has an offset or a length: it takes both, or none")
    renderers = [_renderer_of(generator, name, dimensions, templates, what) for name in members]
    names = list(dimensions)
    for values in itertools.product(*dimensions.values()):
        variables = dict(zip(names, values, strict=True))
        key, url, *numbers = (render(variables) for render in renderers)
        if not all(number.strip().isdecimal() for number in numbers):
            numbered = " and ".join(numbers)
            raise Corruption(f"{what} of a set of references gives {key!r} offset and length {numbered}, which are no numbers of bytes")
        yield key, [url, *map(int, numbers)]


def _renderer_of(
    generator: Mapping[str, Any], name: str, dimensions: Mapping[str, Sequence[Any]], templates: _Templates, what: str
) -> Renderer:
    text = generator.get(name)
    if isinstance(text, int):  # a number instead of its text
        text = str(text)
    if not isinstance(text, str):
        raise Corruption(f"{what} of a set of references has the {name} {text!r:.100}: it is text, with variables in {{{{…}}}}")
    return templates.renderer(text, tuple(dimensions), f"the {name} in {what}")
