"""The state file: the snapshots of a store, and the branches and tags that point to them, as JSON.

::

    {"id": "9f0c…", "generation": 7, "store_root": "s3://bucket/run.ice",
     "snapshots": [
    {"snapshot-id": "1CZ3…", "parent-snapshot-id": null, "timestamp-ms": 1764000000000, "structure-file": "Q2W3…",
     "properties": {"message": "day 1", …}},
    …],
     "refs": {"main": {"name": "main", "snapshot-id": "1CZ3…", "type": "branch"}, …},
     "shardstore.crc32c": "9b2c01fe"}                                                   of all bytes before this member

Members that are not known here are kept. ``shardstore.previous`` names the states before, ``shardstore.collection`` the last garbage
collection. Specification: Icechunk draft, "State File", with D37 and D38.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import google_crc32c

from shardstore.errors import Corruption, InvalidInput, NotFound
from shardstore.format.json_text import dumps_line
from shardstore.format.snapshots.file_names import STRUCTURES, generation_of_garbage_list
from shardstore.format.store_keys import check_key
from shardstore.model.words import is_utf8

ORIGINAL_PARENT = "shardstore.parent"
"""Property of a snapshot whose parent was left out: the id of that (D8)."""

PREVIOUS = "shardstore.previous"
"""Member of the file: the locations of the states before, the oldest first (D37)."""
MOST_PREVIOUS = 32

COLLECTION = "shardstore.collection"
"""Member of the file: the last garbage collection (D38)."""

KEEPS_VALUES = "shardstore.keeps_values"
"""Property of a snapshot whose commit has moved chunks, and given none another value (D39)."""

RefType = Literal["branch", "tag"]

_CHECKSUM = "shardstore.crc32c"
_SEAL = re.compile(rb',"shardstore\.crc32c":"([0-9a-f]{8})"\}\n\Z')
_SEAL_NBYTES = 64
_NO_NAME = re.compile(r"[@*?\[\x00-\x1f\x7f-\x9f]|::|:\Z")
_MOST_LEVELS = 100
"""Levels of nested values in metadata: Python's parser of JSON ends at the depth of its stack."""
_MOST_BITS = 13_000
"""Bits of a whole number in metadata: Python reads no number of more than 4,300 digits."""
_MEMBERS = ("id", "generation", "store_root", "snapshots", "refs", _CHECKSUM)
_TYPES: tuple[RefType, ...] = ("branch", "tag")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot."""

    id: str
    parent: str | None
    timestamp_ms: int
    """Milliseconds since the epoch by the writer's clock; more than the parent's (D7)."""
    structure: str
    """The name of the structure file, relative to ``s/`` (D13)."""
    properties: Mapping[str, Any] = field(default_factory=dict)
    """``message``, ``metadata``, ``writer``, and members that are not known here (D9)."""
    _known_text: str | None = field(default=None, init=False, repr=False, compare=False)

    def text(self) -> str:
        """Return its line in a state file, made once: each commit writes all of them. Raises ``InvalidInput`` if a file cannot say it."""
        known = self._known_text
        if known is None:
            if (wrong := self._wrong()) is not None:
                raise InvalidInput(f"the state of a versioned store cannot be stored: {wrong}. Nothing was changed")
            members = {
                "snapshot-id": self.id,
                "parent-snapshot-id": self.parent,
                "timestamp-ms": self.timestamp_ms,
                "structure-file": self.structure,
                **({"properties": dict(self.properties)} if self.properties else {}),
            }
            known = dumps_line(members)
            object.__setattr__(self, "_known_text", known)
        return known

    def _wrong(self) -> str | None:
        """Return what of it a file cannot say, or ``None``."""
        wrong = _wrong_text("the id of a snapshot", self.id) or _wrong_text(f"the structure of snapshot {self.id!r}", self.structure)
        if wrong is None and self.structure.startswith(STRUCTURES):
            return f"the structure of snapshot {self.id!r} is {self.structure!r}, with the folder that it is in"
        return wrong or _wrong_whole(f"the time of snapshot {self.id!r}", self.timestamp_ms)


@dataclass(frozen=True, slots=True)
class Ref:
    """What a branch or a tag points to."""

    snapshot: str
    type: RefType


@dataclass(frozen=True, slots=True)
class LastCollection:
    """The last garbage collection, of which commits must know."""

    garbage: str
    """The location of the list of what nothing referred to; see ``format.snapshots.garbage``."""
    fence: int
    """The generation from which files were removed that nothing referred to; 0: none ever were."""
    is_removing: bool
    """True until those in the list that are doomed have been removed."""
    late: tuple[str, ...] = ()
    """The structures of the snapshots that were committed since by sessions which had begun before it: files that these need may be in the
    list.
    """

    @property
    def generation(self) -> int:
        """The generation of the state that named the list first."""
        return generation_of_garbage_list(self.garbage) or 0

    def to_json(self) -> dict[str, Any]:
        """Return the member of the file."""
        said = {"garbage": self.garbage, "fence": self.fence, "removing": self.is_removing}
        return said | ({"late": list(self.late)} if self.late else {})


@dataclass(frozen=True, slots=True)
class State:
    """The content of one state file."""

    id: str
    """The store's own id, compared when it is opened (D2)."""
    generation: int
    """One more than that of the state that it was made from (D5)."""
    root: str
    """The URL of the store; where it is blank, the folder above that of the state file (D3)."""
    snapshots: Mapping[str, Snapshot]
    """The active ones by id, in the order of their commits (D6)."""
    refs: Mapping[str, Ref]
    """Branches and tags; no name is both (D10)."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Members of the file that the draft does not know."""

    @property
    def previous(self) -> Sequence[str]:
        """The locations of the states before, as many as are remembered, the oldest first."""
        found = self.extra.get(PREVIOUS)
        return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []

    @property
    def collection(self) -> LastCollection | None:
        """The last garbage collection; ``None`` if there was none. Raises ``Corruption``."""
        found = self.extra.get(COLLECTION)
        match found:
            case None:
                return None
            case {"garbage": str() as garbage, "fence": int() as fence, "removing": bool() as is_removing, **more}:
                late = more.get("late", [])
                if isinstance(late, list) and all(isinstance(one, str) for one in late):
                    return LastCollection(garbage, fence, is_removing, tuple(late))
        raise Corruption(f"the state file says of the last garbage collection {found!r}, which is none")

    def collected(self, collection: LastCollection) -> State:
        """Return the next state, after this garbage collection, or within it."""
        return replace(self, generation=self.generation + 1, extra={**self.extra, COLLECTION: collection.to_json()})

    def made_from(self, location: str) -> State:
        """Return the same state, which remembers that it was made from the one at this location."""
        return replace(self, extra={**self.extra, PREVIOUS: [*self.previous, location][-MOST_PREVIOUS:]})

    def ref(self, name: str, type_: RefType) -> Ref:
        """Return a branch or tag. Raises ``NotFound`` if there is none."""
        found = self.refs.get(name)
        if found is None or found.type != type_:
            names = sorted(known for known, ref in self.refs.items() if ref.type == type_)
            there = f"there are {', '.join(map(repr, names[:10]))}" if names else "there is none"
            raise NotFound(f"there is no {type_} {name!r}: {there}")
        return found

    def ancestry(self, snapshot: str) -> Iterator[Snapshot]:
        """Yield a snapshot and its active ancestors, the newest first. Raises ``NotFound`` if there is no such snapshot."""
        if snapshot not in self.snapshots:
            raise NotFound(f"there is no snapshot {snapshot!r}: it has expired, or belongs to another store")
        at: str | None = snapshot
        while at is not None:
            found = self.snapshots[at]
            yield found
            at = found.parent

    def committed(self, snapshot: Snapshot, branch: str | None, began: int | None = None) -> State:
        """Return the next state: with one more snapshot, to which the branch points. ``began``: the generation of the state with which the
        session began that commits it, if it has one.
        """
        refs = self.refs if branch is None else {**self.refs, branch: Ref(snapshot.id, "branch")}
        last, extra = self.collection, self.extra
        if last is not None and began is not None and began < last.generation:
            extra = {**extra, COLLECTION: replace(last, late=(*last.late, snapshot.structure)).to_json()}
        snapshots = {**self.snapshots, snapshot.id: snapshot}
        return replace(self, generation=self.generation + 1, snapshots=snapshots, refs=refs, extra=extra)

    def without(self, snapshots: Collection[str]) -> State:
        """Return the next state, without some snapshots: those that followed them follow the nearest ancestor that is left (D8). Raises
        ``InvalidInput`` if a branch or tag points to one of them.
        """
        for name, ref in self.refs.items():
            if ref.snapshot in snapshots:
                raise InvalidInput(f"{ref.type} {name!r} points to snapshot {ref.snapshot!r}, which cannot be left out")
        left: dict[str, Snapshot] = {}
        nearest: dict[str | None, str | None] = {None: None}
        for id_, one in self.snapshots.items():  # parents come first
            parent = nearest[one.parent]
            nearest[id_] = parent if id_ in snapshots else id_
            if id_ in snapshots:
                continue
            original = {} if parent == one.parent else {ORIGINAL_PARENT: one.parent}
            left[id_] = replace(one, parent=parent, properties={**original, **one.properties})
        return replace(self, generation=self.generation + 1, snapshots=left)

    def with_refs(self, refs: Mapping[str, Ref]) -> State:
        """Return the next state, with other branches and tags."""
        return replace(self, generation=self.generation + 1, refs=refs)


def check_ref_name(name: object) -> str:
    """Return the name of a branch or tag if it can be one: one that a URL can name, as ``URL@name``; else raise ``InvalidInput``."""
    try:
        found = check_key(name)  # an empty segment, '.' and '..' would be lost from a URL
    except InvalidInput as exc:
        raise InvalidInput(f"{name!r} cannot be the name of a branch or tag: {exc}") from exc
    if _NO_NAME.search(found) is not None or found != found.strip():
        raise InvalidInput(
            f"{name!r} cannot be the name of a branch or tag: it must not hold '@', '*', '?', '[', '::' or control characters, "
            "end with ':', or begin or end with a blank, so that a URL can name it"
        )
    return found


def check_said(message: object, metadata: object = None) -> None:
    """Check the message and the metadata of a commit, before anything of it is stored. Raises ``InvalidInput`` if the message is no text
    that UTF-8 can hold, or the metadata is no mapping from names to what JSON can hold.
    """
    if not isinstance(message, str):
        raise InvalidInput(f"message {message!r} of a commit is no text")
    if not is_utf8(message):
        raise InvalidInput(f"message {message!r} of a commit holds half of a surrogate pair, which UTF-8 cannot hold: leave it out")
    if metadata is None:
        return
    if not isinstance(metadata, Mapping):
        raise InvalidInput(f"metadata of a commit is a mapping from names to values, not of type {type(metadata).__name__}")
    if (wrong := _not_json(dict(metadata), _MOST_LEVELS)) is not None:
        raise InvalidInput(f"metadata of a commit cannot be stored: {wrong}")


def _not_json(value: object, levels: int) -> str | None:
    """Return why a value cannot be stored as JSON and be read again unchanged, or ``None``."""
    match value:
        case None | bool() | float():
            return None
        case str():
            return None if is_utf8(value) else f"{value!r} holds half of a surrogate pair, which UTF-8 cannot hold"
        case int():
            return None if value.bit_length() < _MOST_BITS else f"a number has {value.bit_length()} bits, and {_MOST_BITS} are too many"
        case dict() | list() | tuple() if not levels:
            return f"it has more than {_MOST_LEVELS} levels"
        case dict():
            if (name := next((name for name in value if not isinstance(name, str)), None)) is not None:
                return f"{name!r} is no name: give a text"
            return next((wrong for one in (*value, *value.values()) if (wrong := _not_json(one, levels - 1)) is not None), None)
        case list() | tuple():
            return next((wrong for one in value if (wrong := _not_json(one, levels - 1)) is not None), None)
    return f"{value!r} is a {type(value).__name__}, for which JSON has no form: convert it"


def encode_state(state: State) -> bytes:
    """Return the bytes of a state file: a line for each snapshot. Raises ``InvalidInput`` if the state contradicts itself, or holds what
    JSON cannot: ``decode_state`` would refuse it.
    """
    if (wrong := _mistyped(state) or _contradiction(state)) is not None:
        raise InvalidInput(f"the state of a versioned store cannot be stored: {wrong}. Nothing was changed")
    try:
        return _encoded(state)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidInput(f"the state of a versioned store cannot be stored: {type(exc).__name__}: {exc}. Nothing was changed") from exc


def _encoded(state: State) -> bytes:
    before = dumps_line({"id": state.id, "generation": state.generation, "store_root": state.root})
    refs = {name: {"name": name, "snapshot-id": ref.snapshot, "type": ref.type} for name, ref in state.refs.items()}
    after = dumps_line({"refs": refs, **state.extra})
    snapshots = ",\n".join(one.text() for one in state.snapshots.values())
    body = f'{before[:-1]},"snapshots":[\n{snapshots}],\n{after[1:-1]}'.encode()
    return body + f',"{_CHECKSUM}":"{google_crc32c.value(body):08x}"}}\n'.encode()


def decode_state(data: bytes | memoryview) -> State:
    """Return the state that the bytes of a file are. Raises ``Corruption`` if they are none, or contradict themselves."""
    whole = bytes(data)
    seal = _SEAL.search(whole, max(0, len(whole) - _SEAL_NBYTES))
    if seal is not None and int(seal[1], 16) != google_crc32c.value(whole[: seal.start()]):
        raise Corruption(f"the {len(whole)} bytes of the state file are not those that were written: their checksum is wrong")
    try:
        found = json.loads(whole)
        snapshots = [_snapshot(one) for one in found["snapshots"]]
        refs = {name: _ref(name, one) for name, one in (found.get("refs") or {}).items()}
        state = State(
            _text(found, "id"),
            _whole(found, "generation"),
            found.get("store_root") or "",
            {one.id: one for one in snapshots},
            refs,
            {name: value for name, value in found.items() if name not in _MEMBERS},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise Corruption(f"this is no state file of a versioned store: {type(exc).__name__}: {exc}") from exc
    if len(state.snapshots) != len(snapshots):
        raise Corruption("the state file names a snapshot twice")
    if (wrong := _contradiction(state)) is not None:
        raise Corruption(wrong)
    return state


def _contradiction(state: State) -> str | None:
    """Return what contradicts itself in a state, or ``None``. Each snapshot follows its parent: so no ancestry is a circle."""
    seen: set[str | None] = {None}
    for one in state.snapshots.values():
        if one.parent not in seen:
            return f"snapshot {one.id!r} does not stand behind its parent {one.parent!r} in the state file"
        seen.add(one.id)
    for name, ref in state.refs.items():
        if ref.snapshot not in state.snapshots:
            return f"{ref.type} {name!r} points to snapshot {ref.snapshot!r}, which is not in the state file"
    return None


def _mistyped(state: State) -> str | None:
    """Return what of a state, but for its snapshots, a file cannot say, or ``None``."""
    if (wrong := _wrong_text("id", state.id) or _wrong_whole("generation", state.generation)) is not None:
        return wrong
    if (listed := next(((key, one.id) for key, one in state.snapshots.items() if key != one.id), None)) is not None:
        return f"snapshot {listed[1]!r} is listed as {listed[0]!r}"
    for name, ref in state.refs.items():
        if ref.type not in _TYPES:
            return f"{name!r} is a {ref.type!r}, and not the name of a branch or a tag"
    if taken := sorted(state.extra.keys() & set(_MEMBERS)):
        return f"{taken[0]!r} is a member that every state has"
    return None


def _wrong_text(name: str, value: object) -> str | None:
    return None if isinstance(value, str) and value else f"{name} is {value!r}"


def _wrong_whole(name: str, value: object) -> str | None:
    return None if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else f"{name} is {value!r}"


def _snapshot(found: Mapping[str, Any]) -> Snapshot:
    parent = found["parent-snapshot-id"]
    if parent is not None and not isinstance(parent, str):
        raise TypeError(f"parent-snapshot-id is {parent!r}")
    structure = _text(found, "structure-file").removeprefix(STRUCTURES)
    return Snapshot(_text(found, "snapshot-id"), parent, _whole(found, "timestamp-ms"), structure, dict(found.get("properties") or {}))


def _ref(name: str, found: Mapping[str, Any]) -> Ref:
    if found["name"] != name:
        raise ValueError(f"the ref {name!r} names itself {found['name']!r}")
    if found["type"] not in _TYPES:
        raise ValueError(f"the ref {name!r} is of type {found['type']!r}")
    return Ref(_text(found, "snapshot-id"), found["type"])


def _text(found: Mapping[str, Any], name: str) -> str:
    value: str = found[name]
    if (wrong := _wrong_text(name, value)) is not None:
        raise TypeError(wrong)
    return value


def _whole(found: Mapping[str, Any], name: str) -> int:
    value: int = found[name]
    if (wrong := _wrong_whole(name, value)) is not None:
        raise TypeError(wrong)
    return value
