"""The keys and documents of the 2022 draft, of a stored draft hierarchy: ``meta/root/x.array.json``, ``data/root/x/c0/1``.

Arrays are shown without the storage transformer that is stored, as the draft's own transformer shows the store that it wraps; where
several are stored one upon the other, without the last. Everything that is neither a document nor a chunk is shown as it is stored.
Specification: draft core protocol 3.0, "Storage keys"; sharding storage transformer 1.0, "API implementation".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass

from shardstore.engine.actions import Action, EraseValue, Patch, Revise, SetIfMissing, SetValue, Swap
from shardstore.engine.reading.listing import ListedDir, ListedValue, directly_below
from shardstore.engine.reading.shard_chunks import Value
from shardstore.engine.transaction_view import HeldKeys
from shardstore.engine.values import KeyUpdate
from shardstore.errors import InvalidInput, ShardStoreError
from shardstore.format.draft2022.keys import (
    ARRAY_SUFFIX,
    DATA_ROOT,
    ENTRY_POINT_KEY,
    META_ROOT,
    VERBATIM,
    array_document_key,
    canonical_key,
    canonical_prefixes,
    data_key,
    document_path,
    group_document_key,
    scalar_data_keys,
    verbatim_key,
    verbatim_stored,
)
from shardstore.format.draft2022.metadata import array_to_v3, entry_point_problem, group_to_v3, is_entry_point, split_stored, with_stored
from shardstore.format.json_text import JsonObject, dumps, dumps_zarr2, loads_object, parse_object
from shardstore.format.metadata_v3 import is_array, is_group
from shardstore.format.storage_transformers import scalar_key_name
from shardstore.format.store_keys import ancestors, check_key, join, metadata_key, metadata_path
from shardstore.format.v2.kept import RESERVED
from shardstore.model.ranges import EVERYTHING
from shardstore.presented.view import (
    Canonical,
    DocumentPart,
    KnownArray,
    Meaning,
    Nothing,
    PresentedFlavour,
    ShownPart,
    Unknown,
    View,
    parsed_document,
)

_ARRAY, _GROUP = "array", "group"
_TRANSFORMERS = "storage_transformers"


@dataclass(frozen=True)
class DraftFlavour(PresentedFlavour):
    """The keys of the 2022 draft, of a hierarchy of the draft that is stored."""

    name: str = "draft"
    words: str = "the 2022 draft"
    shows_draft: bool = True
    moves_nodes: bool = False

    # -- what keys mean ------------------------------------------------------------------------------------------------

    async def meanings(self, view: View, keys: Sequence[str], *, for_write: bool) -> list[Meaning]:
        paths = [path for key in keys if (path := _path_of_scalar(key)) is not None]
        unreadable: dict[str, ShardStoreError] = {}
        arrays = await view.arrays(paths, for_write=for_write, unreadable=unreadable) if paths else {}
        errors = [None if (path := _path_of_scalar(key)) is None else unreadable.get(path) for key in keys]
        return [_meaning(key, arrays) if error is None else Unknown(error) for key, error in zip(keys, errors, strict=True)]

    async def meaning_of_new(self, view: View, key: str) -> Meaning:
        if metadata_path(key) is not None:  # at the root it is the entry point, so a node of final Zarr v3 has no parents here
            return Nothing("it is the key of a Zarr v3 document, and this view is of the 2022 draft: open the store with present='v3'")
        return await super().meaning_of_new(view, key)

    # -- documents -----------------------------------------------------------------------------------------------------

    async def show_parts(self, view: View, parts: Sequence[DocumentPart], documents: dict[str, Value]) -> list[ShownPart]:
        shown = [view.shown_part(part, documents[part.path]) for part in parts]
        # What cannot be translated is shown as it is stored, under the one of the two keys where it lies.
        foreign = [i for i, part in enumerate(parts) if isinstance(document := documents[part.path], memoryview) and not _is_node(document)]
        values = await view.engine.get_many([(verbatim_key(_document_key(parts[i])), EVERYTHING) for i in foreign]) if foreign else []
        for i, value in zip(foreign, values, strict=True):
            shown[i] = bytes(value) if isinstance(value, memoryview) else value
        return shown

    def shown(self, part: DocumentPart, document: bytes | None) -> bytes | None:
        if document is None:
            return None
        if not _is_node(document):
            return document
        canonical, stored = split_stored(loads_object(document))
        if stored is None or is_array(canonical) is not (part.kind == _ARRAY):
            return None  # a group is implicit that has none
        return dumps_zarr2(_without_ours(stored, canonical))

    def revised(self, part: DocumentPart, data: bytes | None, document: bytes | None) -> bytes | None:
        if data is None:
            return None
        key = _document_key(part)
        given = parsed_document(data, key)
        canonical = array_to_v3(given) if part.kind == _ARRAY else group_to_v3(given)
        if isinstance(canonical, str):
            raise InvalidInput(f"{key!r} cannot be stored: {canonical}")
        return dumps(with_stored(canonical, given))

    # -- writing -------------------------------------------------------------------------------------------------------

    async def update_many(self, view: View, updates: Sequence[KeyUpdate]) -> list[Exception | None]:
        """Update documents first, then data, whose keys they give a meaning. Documents that are erased go last."""
        errors: list[Exception | None] = [None] * len(updates)
        checked: list[KeyUpdate] = []
        waves: tuple[list[int], list[int], list[int]] = ([], [], [])
        for i, (key, action) in enumerate(updates):
            checked.append((key, action))
            is_document = _part(check_key(key)) is not None
            if key == ENTRY_POINT_KEY:
                is_document = True
                try:
                    checked[i] = (key, _entry_point_action(action))
                except InvalidInput as exc:
                    errors[i] = exc
                    continue
            waves[1 if not is_document else 2 if isinstance(action, EraseValue) else 0].append(i)
        for numbers in filter(None, waves):
            meanings = await self.meanings(view, [checked[i][0] for i in numbers], for_write=True)
            for i, error in zip(numbers, await view.update_meant([checked[i] for i in numbers], meanings), strict=True):
                errors[i] = error
        return errors

    # -- listing -------------------------------------------------------------------------------------------------------

    async def listed(self, view: View, prefix: str) -> AsyncIterator[ListedValue]:
        held = None if view.engine.held is None else view.engine.held.snapshot()
        if DATA_ROOT.startswith(prefix) or prefix.startswith(DATA_ROOT):
            async for value in self._listed_data(view, prefix):
                yield value
        async for value in self._listed_documents(view, prefix, held):
            yield value
        if held is not None:
            paths = [path for key, nbytes in held.sizes.items() if nbytes is not None and (path := metadata_path(key)) is not None]
            for key in await self._held_documents(view, paths):
                if key.startswith(prefix):
                    yield ListedValue(key, None)

    async def _listed_data(self, view: View, prefix: str) -> AsyncIterator[ListedValue]:
        """Yield chunks and other objects below the root of data."""
        for canonical_prefix in canonical_prefixes(prefix):
            async for value in view.engine.list(canonical_prefix):
                if metadata_path(value.key) is None and not value.key.startswith(VERBATIM):
                    key = await self._presented_key(view, value.key)
                    if key is not None and key.startswith(prefix):
                        yield ListedValue(key, value.nbytes)
        path = _path_of_scalar(prefix)
        if path is not None and prefix.endswith("c0") and _is_scalar((await view.arrays([path], for_write=False)).get(path)):
            nbytes = await view.engine.size(join(path, "c"))  # its canonical key starts otherwise
            if nbytes is not None and await self._scalar_key(view, path) == prefix:
                yield ListedValue(prefix, nbytes)

    async def _listed_documents(self, view: View, prefix: str, held: HeldKeys | None) -> AsyncIterator[ListedValue]:
        """Yield stored documents, and what has no canonical key; not the documents that a transaction decides."""
        async for value in view.engine.list(VERBATIM + prefix):
            stored = verbatim_stored(value.key)
            part = None if stored is None else _part(stored)
            if part is None and stored is not None:
                yield ListedValue(stored, value.nbytes)
            elif part is not None and (held is None or not held.decides(metadata_key(part.path))):
                yield ListedValue(_document_key(part), None)  # without its transformer it is shorter

    async def _held_documents(self, view: View, paths: Iterable[str]) -> list[str]:
        parts = [DocumentPart(path, kind) for path in paths for kind in (_ARRAY, _GROUP)]
        shown = await view.read_document_parts(parts)
        return [_document_key(part) for part, data in zip(parts, shown, strict=True) if isinstance(data, bytes)]

    async def _presented_key(self, view: View, canonical: str) -> str | None:
        """Return the presented key of a canonical one that is no document's."""
        parent, _, name = canonical.rpartition("/")
        if name == "c" and _is_scalar((await view.arrays([parent], for_write=False)).get(parent)):
            return await self._scalar_key(view, parent)
        return data_key(canonical)

    async def _scalar_key(self, view: View, path: str) -> str:
        """Return the one of its two keys under which the chunk of a 0-d array is shown, and written."""
        document = (await view.documents_of([DocumentPart(path, _ARRAY)]))[path]
        stored = split_stored(loads_object(document))[1] if isinstance(document, memoryview) and _is_node(document) else None
        return scalar_data_keys(path)[0 if scalar_key_name(stored or {}) == "c" else 1]

    async def list_dir(self, view: View, prefix: str, *, approximate: bool) -> ListedDir:
        """List one level. Values are exact; with ``approximate`` the prefixes are those of all chunks that the shards there could hold."""
        if view.engine.held is not None:
            return await directly_below(prefix, self.listed(view, prefix))
        listed = await view.storage.list_dir(VERBATIM + prefix)
        values = [ListedValue(verbatim_stored(found.key) or found.key, found.nbytes) for found in listed.objects]
        values = [ListedValue(v.key, None) if _part(v.key) is not None else v for v in values]
        prefixes = [below.removeprefix(VERBATIM) for below in listed.prefixes]
        found = await self._array_at(view, prefix)
        if found is None:
            return ListedDir(tuple(values), tuple(prefixes))
        path, array = found
        shards = {v.key for v in values if _is_chunk(v.key, path, array)}
        rows = {below for below in prefixes if _is_row(below, path, array)}
        chunks = await self._chunks_below(view, prefix, path, array, approximate=approximate)
        values = [v for v in values if v.key not in shards] + list(chunks.values)
        return ListedDir(tuple(values), tuple(dict.fromkeys([*(p for p in prefixes if p not in rows), *chunks.prefixes])))

    async def _array_at(self, view: View, prefix: str) -> tuple[str, KnownArray] | None:
        """Return the array below whose data ``prefix`` is."""
        if not prefix.startswith(DATA_ROOT):
            return None
        paths = [path.rstrip("/") for path, _ in ancestors(prefix.removeprefix(DATA_ROOT))]
        arrays = await view.arrays(paths, for_write=False)
        return next(((path, arrays[path]) for path in paths if path in arrays), None)

    async def _chunks_below(self, view: View, prefix: str, path: str, array: KnownArray, *, approximate: bool) -> ListedDir:
        """Return the chunks of an array that lie directly below ``prefix``, and the prefixes of deeper ones."""
        rest = prefix.removeprefix(DATA_ROOT + join(path, ""))
        if array.ndim == 0:
            nbytes = None if rest else await view.engine.size(join(path, "c"))
            return ListedDir(() if nbytes is None else (ListedValue(await self._scalar_key(view, path), nbytes),), ())
        separator = array.key_encoding.separator if array.ndim > 1 else "/"
        if not rest:
            canonical = f"{join(path, 'c')}{separator}"
        elif separator == "/" and (chunk := canonical_key(prefix + "0")) is not None:
            canonical = chunk[:-1]
        else:
            return ListedDir((), ())  # no chunk lies deeper
        if separator == "/":
            listed = await view.engine.list_dir(canonical, approximate=approximate)
        else:
            listed = ListedDir(tuple([value async for value in view.engine.list(canonical)]), ())
        return _chunks_of(listed, path, array)

    # -- erasing -------------------------------------------------------------------------------------------------------

    async def erase_prefix(self, view: View, prefix: str) -> None:
        """Erase everything below a prefix that is ``""`` or ends with ``/``: whole shards unread. Below ``data/root/`` no document goes."""
        if not prefix:
            await view.engine.erase_prefix("")
        elif view.engine.held is None:
            await self._erase_relayed(view, prefix)
        await view.erase_many([value.key async for value in self.listed(view, prefix)])

    async def _erase_relayed(self, view: View, prefix: str) -> None:
        """Erase objects and whole shards that no canonical prefix shows under other keys than those below ``prefix``."""
        if DATA_ROOT.startswith(prefix):
            await view.engine.erase_below("", keep_documents=True)
        if DATA_ROOT.startswith(prefix) or not prefix.startswith(DATA_ROOT):
            return
        tail = prefix.removeprefix(DATA_ROOT)
        if not _ends_like_chunks(tail):
            await view.engine.erase_below(tail, keep_documents=True)
        row = canonical_key(prefix + "0")
        if row is not None and not row.startswith(tail):
            await view.engine.erase_chunks_below(row.removesuffix("0"))


def _meaning(key: str, arrays: dict[str, KnownArray]) -> Meaning:
    if (part := _part(key)) is not None:
        return part
    path = _path_of_scalar(key)
    if path is not None and _is_scalar(arrays.get(path)):
        return Canonical(join(path, "c"))
    canonical = canonical_key(key)
    return Canonical(verbatim_key(key) if canonical is None else canonical)


def _part(key: str) -> DocumentPart | None:
    """Return the document that a presented key is of."""
    canonical = canonical_key(key) if key.startswith(META_ROOT) else None
    path = None if canonical is None else document_path(canonical)
    return None if path is None else DocumentPart(path, _ARRAY if key.endswith(ARRAY_SUFFIX) else _GROUP)


def _document_key(part: DocumentPart) -> str:
    return array_document_key(part.path) if part.kind == _ARRAY else group_document_key(part.path)


def _path_of_scalar(key: str) -> str | None:
    """Return the path of the array whose chunk ``key`` is, if that array is 0-d."""
    parent, slash, name = key.rpartition("/")
    return f"{parent}/"[len(DATA_ROOT) :].rstrip("/") if name in ("c", "c0") and f"{parent}{slash}".startswith(DATA_ROOT) else None


def _is_scalar(array: KnownArray | None) -> bool:
    return array is not None and array.ndim == 0


def _chunks_of(listed: ListedDir, path: str, array: KnownArray) -> ListedDir:
    """Return the chunks of an array, and the prefixes of chunks, of a listing by canonical keys, by presented ones."""
    values = [(data_key(value.key), value.nbytes) for value in listed.values if metadata_path(value.key) is None]
    below = [(data_key(deeper + "0") or "")[:-1] for deeper in listed.prefixes]
    return ListedDir(
        tuple(ListedValue(key, nbytes) for key, nbytes in values if key is not None and _is_chunk(key, path, array)),
        tuple(deeper for deeper in below if _is_row(deeper, path, array)),
    )


def _is_chunk(key: str, path: str, array: KnownArray) -> bool:
    """Return whether a stored or presented key is that of a shard or chunk of the array."""
    if array.ndim == 0:
        return key in scalar_data_keys(path)
    canonical, start = canonical_key(key), join(path, "")
    return (
        canonical is not None and canonical.startswith(start) and array.key_encoding.decode(canonical[len(start) :], array.ndim) is not None
    )


def _ends_like_chunks(tail: str) -> bool:
    """Return whether what is below a canonical prefix may be chunks, whose stored keys are elsewhere: it ends with ``c/``, or numbers
    after it.
    """
    *segments, _ = tail.split("/")
    while segments and segments[-1].isdecimal():
        segments.pop()
    return bool(segments) and segments[-1] == "c"


def _is_row(prefix: str, path: str, array: KnownArray) -> bool:
    """Return whether keys of shards or chunks of the array can start with ``prefix``, which ends with ``/``."""
    have = prefix.removeprefix(DATA_ROOT + join(path, "")).count("/")
    return 0 < have < array.ndim and _is_chunk(prefix + "/".join(["0"] * (array.ndim - have)), path, array)


def _is_node(document: bytes | memoryview) -> bool:
    """Return whether a canonical document is an array's or a group's."""
    canonical = parse_object(document)
    return canonical is not None and (is_array(canonical) or is_group(canonical))


def _without_ours(stored: JsonObject, canonical: JsonObject) -> JsonObject:
    """Return the draft's document without the transformer that the canonical one lacks, and without what is kept for other views."""
    shown = {member: value for member, value in stored.items() if member != _TRANSFORMERS or value == []}
    if canonical.get(_TRANSFORMERS):
        shown[_TRANSFORMERS] = canonical[_TRANSFORMERS]
    attributes = shown.get("attributes")
    if isinstance(attributes, dict) and RESERVED in attributes:
        shown["attributes"] = {name: value for name, value in attributes.items() if name != RESERVED}
    return shown


def _entry_point_action(action: Action) -> Action:
    """Return the same on the entry point, where what it becomes is one that this can be the hierarchy of."""

    def revised(compute: Callable[[bytes | None], bytes | None]) -> Callable[[bytes | None], bytes | None]:
        def checked(old: bytes | None) -> bytes | None:
            new = compute(old)
            return new if new is None else _checked_entry_point(new)

        return checked

    match action:
        case SetValue(data):
            return Revise(revised(lambda _: bytes(data)))
        case SetIfMissing(data, creation):
            return SetIfMissing(_checked_entry_point(bytes(data)), creation)
        case Revise(compute):
            return Revise(revised(compute))
        case Swap(new):
            if new is not None:
                _checked_entry_point(bytes(new))
            return action
        case Patch():
            raise InvalidInput(f"{ENTRY_POINT_KEY!r} can only be written as a whole")
        case _:
            return action


def _checked_entry_point(data: bytes) -> bytes:
    document = parsed_document(data, ENTRY_POINT_KEY)
    problem = entry_point_problem(document) if is_entry_point(document) else "it is not the entry point of a hierarchy of the 2022 draft"
    if problem is not None:
        raise InvalidInput(f"{ENTRY_POINT_KEY!r} cannot be stored: {problem}")
    return data
