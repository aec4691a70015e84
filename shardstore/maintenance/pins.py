"""Pins: shards that must stay as they are, because offsets into them are held elsewhere, such as by references and snapshots.

The caller gives all pins to every operation that rewrites shards; an empty set says that no such offsets are held.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import floordiv, lt

from shardstore.engine.engine import Engine
from shardstore.errors import Conflict, InvalidInput
from shardstore.format.object_layout import ObjectLayout
from shardstore.format.store_keys import check_key, join
from shardstore.maintenance.nodes import SurveyedNodes
from shardstore.model.chunks import ChunkCoords
from shardstore.model.containers import batched
from shardstore.model.words import some_of
from shardstore.storage.base import Storage
from shardstore.storage.local.versions import may_be_same_bytes
from shardstore.tasks import gather_all

__all__ = ["Pin"]

_NAMED = 5  # pins, in one error
_KEYS_AT_ONCE = 10_000
_REQUESTS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Pin:
    """One held object: ``key`` from the root of the store, and the token of the held version, or ``None`` for any version.

    A slash in front of the key is removed. Where nothing is stored under the key and an array has such a chunk, the pin is one of the
    shard that the chunk lies in.

    Raises:
        InvalidInput: ``key`` cannot be the key of an object.
    """

    key: str
    generation: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", check_key(str(self.key).removeprefix("/")))


@dataclass(frozen=True)
class Pins:
    """All pins of one run, by key."""

    generations: Mapping[str, frozenset[str | None]]

    @classmethod
    def of(cls, pins: Iterable[Pin]) -> Pins:
        """Return the pins as a set. Raises ``InvalidInput`` if one of them is not a ``Pin``."""
        found: dict[str, set[str | None]] = {}
        for pin in pins:
            if not isinstance(pin, Pin):
                raise InvalidInput(f"{pin!r} is not a pin: give shardstore.maintenance.pins.Pin(key), or Pin(key, generation)")
            found.setdefault(pin.key, set()).add(pin.generation)
        return cls({key: frozenset(tokens) for key, tokens in found.items()})

    async def resolved(self, engine: Engine) -> Pins:
        """Return the pins by the keys of stored objects. A key that no array has would silently hold nothing, and is refused.

        Pins with a generation cost no requests, but for those outside of their array's shape. One without costs one, where its key may be
        that of a chunk in another shard.

        Raises:
            InvalidInput: pins name no chunk and no shard of any array, or one that lies outside of the array's shape and is not stored.
            StorageError: a request failed.
        """
        nodes = SurveyedNodes(engine)
        held: defaultdict[str, frozenset[str | None]] = defaultdict(frozenset)
        refused: list[str] = []
        keys = sorted(self.generations)
        for some in batched(keys, _KEYS_AT_ONCE):
            for key, meant in (await self._objects_meant(engine.storage, nodes, some)).items():
                if isinstance(meant, str):
                    refused.append(meant)
                    continue
                for one in meant:
                    held[one] |= self.generations[key]
        if refused:
            raise InvalidInput(
                f"{len(refused):,} of {len(keys):,} pins match nothing: {some_of(refused, _NAMED)}: no array in {engine.storage.url} has a "
                "chunk or shard of such a key. Keys are those of stored objects, from the root of the store, such as 'ct/c/0/1'"
            )
        return Pins(dict(held))

    async def _objects_meant(self, storage: Storage, nodes: SurveyedNodes, keys: Sequence[str]) -> dict[str, list[str] | str]:
        """Return the keys of the objects that each of these pins holds, or in words that it holds none."""
        meant: dict[str, list[str] | str] = {}
        arrays: dict[str, _PinnedArray] = {}
        unproven: dict[str, tuple[_PinnedArray, ChunkCoords]] = {}
        for key, (record, coords) in zip(keys, await nodes.owners(keys), strict=True):
            if record is None or (coords is None and record.objects is not None):
                meant[key] = repr(key)
                continue
            meant[key] = [key]
            if coords is not None and record.objects is not None:
                array = arrays.setdefault(record.node.path, _PinnedArray(record.node.path, record.objects))
                if not array.must_be_object(coords, may_be_chunk=None in self.generations[key]):
                    unproven[key] = array, coords
        stored = await _stored(storage, list(unproven))
        for key, (array, coords) in unproven.items():
            if key not in stored:
                meant[key] = array.meant_instead(coords) or array.refusal(key)
        return meant

    def at(self, key: str) -> frozenset[str | None]:
        """Return the held tokens of one object, to travel with a task."""
        return self.generations.get(key, frozenset())


@dataclass(frozen=True, slots=True)
class _PinnedArray:
    """An array, and the layout of its objects."""

    path: str
    objects: ObjectLayout

    def must_be_object(self, coords: ChunkCoords, *, may_be_chunk: bool) -> bool:
        """Return whether the key of these coordinates is an object's, whatever is stored: none outside of the shape is, nor one that may be
        the key of a chunk in another object.
        """
        return self.objects.holds(coords) and not (may_be_chunk and self._object_of(coords) != coords)

    def meant_instead(self, coords: ChunkCoords) -> list[str]:
        """Return the keys of the objects that are meant, where none is stored at these coordinates: the one that holds the chunk there.

        Inside of the shape an object may be meant that is not there any more, and holding that as well costs nothing.
        """
        meant = [coords] if self.objects.holds(coords) else []
        meant += [self._object_of(coords)] if all(map(lt, coords, self.objects.chunk_grid)) else []
        return [self._key(one) for one in meant]

    def refusal(self, key: str) -> str:
        """Return in words what the array has instead of ``key``."""
        if not all(self.objects.chunk_grid):
            return f"{key!r} (array {self.path!r} has no chunks)"
        last = tuple(n - 1 for n in self.objects.chunk_grid)
        shards = f"shards up to {self._key(self._object_of(last))!r} and " if self.objects.index_format is not None else ""
        return f"{key!r} (array {self.path!r} has {shards}chunks up to {self._key(last)!r})"

    def _object_of(self, chunk_coords: ChunkCoords) -> ChunkCoords:
        return tuple(map(floordiv, chunk_coords, self.objects.chunks_per_object))

    def _key(self, coords: ChunkCoords) -> str:
        return join(self.path, self.objects.key_encoding.encode(coords))


async def _stored(storage: Storage, keys: Sequence[str]) -> set[str]:
    """Return those of the keys that an object is stored under."""
    found: set[str] = set()
    for some in batched(keys, _REQUESTS_AT_ONCE):
        infos = await gather_all(*map(storage.stat, some))
        found.update(key for key, info in zip(some, infos, strict=True) if info is not None)
    return found


def is_held(tokens: frozenset[str | None], generation: str) -> bool:
    """Return whether pins with these tokens hold this version of their object.

    Pins of local files hold after a new mode, owner or hard link too: these change the token but not the bytes.
    """
    return None in tokens or any(may_be_same_bytes(token, generation) for token in tokens if token is not None)


async def current_tokens(storage: Storage, keys: Sequence[str]) -> dict[str, str]:
    """Return the tokens of those objects that exist: by one listing, and one request for each object of which it does not show any."""
    wanted = set(keys)
    found: dict[str, str] = {}
    unversioned: list[str] = []
    if keys:
        first, last = min(keys), max(keys)
        common = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
        async for listed in storage.list(first[:common]):
            if listed.key in wanted and listed.generation is not None:
                found[listed.key] = listed.generation.token
            elif listed.key in wanted:
                unversioned.append(listed.key)
    for some in batched(unversioned, _REQUESTS_AT_ONCE):
        for info in await gather_all(*map(storage.stat, some)):
            if info is not None and info.generation is not None:
                found[info.key] = info.generation.token
    return found


async def check_none_held(storage: Storage, pins: Iterable[Pin]) -> None:
    """Check that no pinned version is stored, before all that is there is replaced.

    Raises:
        Conflict: some are, and they are named.
        StorageError: a request failed.
    """
    held = Pins.of(pins)
    now = await current_tokens(Engine(storage).storage, [*held.generations])
    named = [key for key, token in sorted(now.items()) if is_held(held.at(key), token)]
    if named:
        shown = some_of([repr(key) for key in named], _NAMED)
        raise Conflict(
            f"{len(named):,} pinned objects are at {storage.url}, which would be replaced: {shown}. Offsets into them are held elsewhere: "
            "write elsewhere, or give up the sets that hold them. Nothing was changed"
        )


def parse_pins(text: str) -> list[Pin]:
    """Return the pins in a file, one per line: a bare key, or a JSON object with ``key`` and, for one version only, ``generation``.

    Raises:
        InvalidInput: a line begins like JSON, but is not such an object.
    """
    return [_parse_line(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def _parse_line(number: int, line: str) -> Pin:
    key, generation = line, None
    if line.startswith("{"):
        try:
            document = json.loads(line)
        except ValueError as exc:
            raise InvalidInput(f"line {number} of the pins begins like JSON but is not ({exc})") from exc
        key, generation = document.get("key"), document.get("generation")
        if not isinstance(key, str) or not key or not isinstance(generation, str | None):
            raise InvalidInput(f'line {number} of the pins is not of the form {{"key": "ct/c/0/1", "generation": "…"}}')
    try:
        return Pin(key, generation)
    except InvalidInput as exc:
        raise InvalidInput(f"line {number} of the pins: {exc}") from exc
