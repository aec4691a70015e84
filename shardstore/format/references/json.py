"""Sets of references in JSON, read from a stream: no more of the document is held at once than a piece of it.

::

    {"a": "text", "b": ["url", 100, 10], …}                                              version 0
    {"version": 1, "templates": {…}, "gen": [{…}], "refs": {"a": "text", "b": ["url", 100, 10], …}}     its members in any order

The text is cut where an entry seems to end, as behind ``],`` before ``"``, and the piece is put in braces and parsed as an object of its
own. A cut within a text or a nested value leaves something open, and cannot be parsed: then the entries are parsed one by one.

Specification: fsspec's reference sets, "Version 0" and "Version 1".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shardstore.errors import Corruption, Unsupported
from shardstore.format.references.generators import MOST_GENERATED, generate
from shardstore.format.references.table import ReferenceTable, TableBuilder
from shardstore.format.references.templates import Templates

PIECE_CHARACTERS = 1 << 20
MOST_VALUE = 1 << 28

_MEMBERS = ("version", "templates", "gen", "refs")
_ENDS = (re.compile(r'\]\s*(,)\s*"'), re.compile(r'["}\]]\s*(,)\s*"'))
_SPACE = re.compile(r"[ \t\n\r]*")
_CUT_OFF = 32  # the most characters before the end at which a value that was cut off there can be at fault

_decode = json.JSONDecoder().raw_decode


class NeedsFlat(Exception):
    """A set of version 0 has a key ``refs``, whose value was taken for the references of version 1."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """The choices that decide what a set means."""

    overrides: Mapping[str, str] = field(default_factory=dict)
    """Templates in place of the set's own."""
    only_plain: bool = False
    """True: generated keys are left out, and annotations are names."""
    most_generated: int = MOST_GENERATED


class Document:
    """The members of a set, as they come."""

    def __init__(self, expansion: Expansion) -> None:
        self._expansion = expansion
        self._members: dict[str, Any] = {}
        self._entries = TableBuilder()
        self._fault: Corruption | None = None
        self._refs: TableBuilder | None = None
        self._refs_fault: Corruption | None = None

    def add(self, entries: dict[str, Any]) -> None:
        """Add members of the document: entries, if it is of version 0."""
        for name in _MEMBERS:
            if name in entries:
                self._members[name] = entries.pop(name)
                if name == "refs":
                    self._refs = self._refs_fault = None
        if self._fault is None:
            try:
                self._entries.add_values(entries)
            except Corruption as exc:  # of version 1 it is a member that means nothing
                self._fault = exc

    def begin_refs(self) -> None:
        """Begin the references of version 1, in place of those that came before."""
        self._members.pop("refs", None)
        self._refs, self._refs_fault = TableBuilder(), None

    def add_refs(self, entries: Mapping[str, Any]) -> None:
        assert self._refs is not None
        if self._refs_fault is None:
            try:
                self._refs.add_values(entries)
            except Corruption as exc:  # the version may come behind them
                self._refs_fault = exc

    @property
    def leaves_out(self) -> bool:
        """True if the set has generated keys, and they are left out."""
        return self._expansion.only_plain and self._members.get("version") is not None and bool(self._members.get("gen"))

    def finish(self) -> ReferenceTable:
        """Return the references.

        Raises:
            Corruption: the set contradicts the specification; the message names the key.
            Unsupported: the version is not known, an annotation needs jinja2, which is not installed, or there are too many keys.
            NeedsFlat: see there.
        """
        version = self._members.get("version")
        if version is None:
            if self._refs is not None:
                raise NeedsFlat
            if self._fault is not None:
                raise self._fault
            self._entries.add_values(self._members)
            return self._entries.finish()
        if version != 1 or isinstance(version, bool):
            raise Unsupported(f"version {version!r} of sets of references is not known: 0, without that member, and 1 are")
        if self._refs_fault is not None:
            raise self._refs_fault
        self._entries = TableBuilder()
        templates = Templates({**self._member("templates", Mapping), **self._expansion.overrides}, only_plain=self._expansion.only_plain)
        refs = self._refs or TableBuilder()
        refs.add_values(self._member("refs", Mapping))
        refs.rename(lambda url, what: templates.rendered(url, what) if "{{" in url else url)
        if not self._expansion.only_plain:
            for made in generate(self._member("gen", Sequence), templates, self._expansion.most_generated):
                refs.add_columns(*made)
        return refs.finish()

    def _member(self, name: str, kind: type) -> Any:
        """Return a member that may be missing."""
        value = self._members.get(name)
        if value is None:
            return {} if kind is Mapping else []
        if not isinstance(value, kind) or isinstance(value, str):
            wanted = "an object" if kind is Mapping else "a list"
            raise Corruption(f"the member {name!r} of a set of references is {wanted}, not {value!r:.100}")
        return value


def is_generated(document: object) -> bool:
    """Return whether a set, as parsed from JSON, has generators: their keys are not written in it."""
    return isinstance(document, Mapping) and document.get("version") is not None and bool(document.get("gen"))


def document_of(parsed: Any, expansion: Expansion) -> Document:
    """Return a set that has been parsed. Raises ``Corruption`` if it is no object."""
    if not isinstance(parsed, Mapping):
        raise Corruption("a set of references is a JSON object")
    document = Document(expansion)
    document.add(dict(parsed))
    return document


class ReferenceParser:
    """A set that comes as text, piece by piece. With ``flat``, a key ``refs`` is an entry like any other.

    Some ``piece_nchars`` characters are parsed at once, and no more than ``most_nchars`` are held of an entry that does not end. Raises
    ``Corruption`` if the text is no JSON object. Faults in entries show when it is finished.
    """

    def __init__(
        self, expansion: Expansion, *, flat: bool = False, piece_nchars: int = PIECE_CHARACTERS, most_nchars: int = MOST_VALUE
    ) -> None:
        self._piece_nchars = piece_nchars
        self._most_nchars = most_nchars
        self.document = Document(expansion)
        self._expansion = expansion
        self._flat = flat
        self._text = ""
        self._pending: list[str] = []  # text behind that
        self._pending_nchars = 0
        self._position = 0
        self._wanted = self._piece_nchars
        self._level: Literal["start", "top", "refs", "end"] = "start"
        self._is_first = True  # in its object: no comma comes before it

    def feed(self, text: str) -> None:
        self._pending.append(text)
        self._pending_nchars += len(text)
        if len(self._text) - self._position + self._pending_nchars < self._wanted and self._level != "end":
            return
        self._join()
        while len(self._text) - self._position >= self._wanted and self._level != "end":
            before = self._position
            self._advance(final=False)
            if self._position == before:
                self._wanted *= 2  # a long value
                if self._wanted > self._most_nchars:
                    raise Corruption(f"it has a value of more than {self._most_nchars // 2} characters")
                continue
            self._wanted = self._piece_nchars
            self._text, self._position = self._text[self._position :], 0
        if self._level == "end":
            self._check_end()

    def finish(self) -> ReferenceTable:
        """Return the references. Raises as ``Document.finish`` does."""
        self._join()
        if self._level == "start":
            try:
                whole = json.loads(self._text)
            except ValueError as exc:
                raise _no_json(str(exc)) from exc
            except RecursionError as exc:
                raise _too_deep() from exc
            self.document = document_of(whole, self._expansion)
            return self.document.finish()
        while self._level != "end":
            self._advance(final=True)
        self._check_end()
        return self.document.finish()

    def _check_end(self) -> None:
        if self._behind_space(self._position) != len(self._text):
            raise _no_json("something follows the end")
        self._text, self._position = "", 0

    def _join(self) -> None:
        self._text = "".join([self._text, *self._pending])
        self._pending, self._pending_nchars = [], 0

    # -- the objects that entries are in -------------------------------------------------------------------------------

    def _advance(self, *, final: bool) -> None:
        """Read on, if an entry or the end of an object is complete. With ``final``, no more text comes."""
        text = self._text
        start = self._behind_space(self._position)
        if start == len(text):
            if final:
                raise _no_json("it is cut short")
            self._position = start
            return
        if self._level == "start":
            if text[start] != "{":
                raise Corruption("a set of references is a JSON object")
            self._level, self._position = "top", start + 1
        elif text[start] == "}":
            self._level, self._position, self._is_first = "top" if self._level == "refs" else "end", start + 1, False
        elif self._is_first:
            self._read_entries(start, final)
        elif text[start] == ",":
            self._read_entries(start + 1, final)
        else:
            raise _no_json(f"{text[start : start + 20]!r} is not expected there")

    def _behind_space(self, position: int) -> int:
        matched = _SPACE.match(self._text, position)
        assert matched is not None
        return matched.end()

    def _read_entries(self, start: int, final: bool) -> None:
        end = self._last_end(start, min(len(self._text), start + max(self._wanted, self._piece_nchars)))
        if end is not None:
            try:
                entries = json.loads(f"{{{self._text[start:end]}}}")
            except ValueError:
                pass  # the cut is not between two entries of this object, or the fault comes to light below
            except RecursionError as exc:
                raise _too_deep() from exc
            else:
                if entries:
                    self._take(entries, end)
                    return
        self._read_one_by_one(start, final)

    def _take(self, entries: dict[str, Any], end: int) -> None:
        if self._level == "refs":
            self.document.add_refs(entries)
        else:
            self.document.add(entries)
        self._position, self._is_first = end, False

    def _last_end(self, start: int, stop: int) -> int | None:
        """Return the last comma that seems to be between two entries."""
        for pattern in _ENDS:
            window = 1024
            while True:
                begin = max(start, stop - window)
                commas = [matched.start(1) for matched in pattern.finditer(self._text, begin, stop)]
                if commas:
                    return commas[-1]
                if begin == start:
                    break
                window *= 32
        return None

    def _read_one_by_one(self, start: int, final: bool) -> None:
        """Read the entries that are complete, up to the end of their object or the beginning of the references."""
        text, entries = self._text, dict[str, Any]()
        stop = min(len(text), start + max(self._wanted, self._piece_nchars))
        while not entries or start < stop:
            try:
                key, value, end = self._entry(start)
            except _CutOff:
                if final:
                    raise _no_json("it is cut short") from None
                break
            if value is _REFS:
                self._take(entries, end)
                self.document.begin_refs()
                self._level, self._is_first = "refs", True
                return
            behind = self._behind_space(end)
            if not final and text[behind : behind + 1] not in (",", "}") and behind >= len(text) - _CUT_OFF:
                break  # a number may go on, as behind "0."
            entries[key] = value
            self._position, self._is_first = end, False
            if text[behind : behind + 1] != ",":
                break
            start = behind + 1
        if entries:
            self._take(entries, self._position)

    def _entry(self, start: int) -> tuple[str, Any, int]:
        """Return key, value and end of an entry; of references of version 1, ``_REFS`` and where they begin. May raise ``_CutOff``."""
        key, end = self._value(self._behind_space(start))
        if not isinstance(key, str):
            raise _no_json(f"{key!r:.100} is not a key")
        colon = self._behind_space(end)
        if colon == len(self._text):
            raise _CutOff
        if self._text[colon] != ":":
            raise _no_json(f"no value follows the key {key!r:.100}")
        begin = self._behind_space(colon + 1)
        if key == "refs" and self._level == "top" and not self._flat and self._text[begin : begin + 1] == "{":
            return key, _REFS, begin + 1
        value, end = self._value(begin)
        return key, value, end

    def _value(self, start: int) -> tuple[Any, int]:
        try:
            return _decode(self._text, start)
        except RecursionError as exc:
            raise _too_deep() from exc
        except json.JSONDecodeError as exc:
            if exc.msg.startswith("Unterminated string") or exc.pos >= len(self._text) - _CUT_OFF:
                raise _CutOff from exc
            raise _no_json(str(exc)) from exc
        except ValueError as exc:  # a number of thousands of digits
            raise _no_json(str(exc)) from exc


_REFS = object()


class _CutOff(Exception):
    """An entry goes on behind the end of the text."""


def _no_json(why: str) -> Corruption:
    return Corruption(f"it is not a JSON object, and so no set of references: {why}")


def _too_deep() -> Corruption:
    return Corruption("it is nested too deep for a set of references")
