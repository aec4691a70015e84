"""Reads and writes values by presented key: the keys are located, then each is a chunk, a document or an object of its own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from shardstore.engine.actions import (
    Action,
    EraseValue,
    Revise,
    SetIfMissing,
    SetValue,
    Swap,
    applied,
    reports_outcome,
    revising,
    with_whole,
)
from shardstore.engine.contention import Contention
from shardstore.engine.index_cache import LayoutProof, StaleLayout, each_with_fresh_layout, with_fresh_layout
from shardstore.engine.metadata.documents import Documents
from shardstore.engine.metadata.hierarchy import (
    ChunkTarget,
    GoneTarget,
    Hierarchy,
    LocatedChunks,
    MetadataTarget,
    Node,
    PlainTarget,
    Target,
)
from shardstore.engine.metadata.translation import WrittenV2Arrays
from shardstore.engine.reading.reader import Reader
from shardstore.engine.reading.shard_chunks import Value, group_by_shard, group_located
from shardstore.engine.writing.writer import Writer
from shardstore.errors import AccessDenied, Conflict, Corruption, InvalidInput, ShardStoreError
from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.format.json_text import loads_object
from shardstore.format.metadata_v3 import METADATA_NAME
from shardstore.format.store_keys import ancestors, check_keys, join, metadata_key, metadata_path, possible_owners
from shardstore.format.v2.keys import ARRAY_NAME, GROUP_NAME, is_document
from shardstore.model.generation import UNCONDITIONAL, Generation, IfGeneration
from shardstore.model.ranges import EVERYTHING, ByteRequest, cut
from shardstore.storage.base import (
    Absent,
    ConditionFailed,
    Failed,
    Found,
    GuardChanged,
    Read,
    ReadOutcome,
    Storage,
    document_read,
    in_its_place,
    read_one,
)

_PLAIN_AT_ONCE = 64
_NOT_THERE = Generation("not there")  # no object has it: a deletion on this condition fails where one was created meanwhile

KeyRequest = tuple[str, ByteRequest]
KeyUpdate = tuple[str, Action]

_LIKE_V2_CHUNK = re.compile(r"[0-9]+([./][0-9]+)*", re.ASCII)
_OF_A_NODE = (METADATA_NAME, ARRAY_NAME, GROUP_NAME)
"""Documents of which each node has one."""


@dataclass(eq=False, repr=False)
class Values:
    """Reads and writes of many keys at once; outcomes are values, so that one key's error is not another's."""

    _storage: Storage
    _hierarchy: Hierarchy
    _documents: Documents
    _proof: LayoutProof
    _reader: Reader
    _writer: Writer
    _contention: Contention
    _v2_arrays: WrittenV2Arrays

    # -- reading ---------------------------------------------------------------------------------------------------

    async def get_many(self, requests: Sequence[KeyRequest], located: LocatedChunks | None = None) -> list[Value]:
        """Return the bytes that each request asks for, clipped to the value; ``None`` if there is no value."""
        keys = [key for key, _ in requests]
        check_keys(keys)
        if (together := await self._get_together(keys, requests, located)) is not None:
            return together
        values: list[Value] = [None] * len(requests)
        strictly = False

        async def attempt(pending: list[int]) -> list[int]:
            nonlocal strictly
            targets = await self.locate_each([requests[i][0] for i in pending], for_write=strictly)
            left, strictly = await self._read(pending, targets, requests, values)
            return left

        for i in await each_with_fresh_layout(range(len(requests)), attempt):
            values[i] = Conflict(f"the metadata that decides where {requests[i][0]!r} lies kept changing; try again")
        return values

    async def _get_together(self, keys: Sequence[str], requests: Sequence[KeyRequest], located: LocatedChunks | None) -> list[Value] | None:
        """Return the values of many chunks of one array; ``None`` if they are not, or the array has to be looked up first."""
        try:
            if located is None:
                located = await self._hierarchy.locate_together(keys, for_write=False)
            if located is None or located.node.is_uncommitted:
                return None
            return await self._reader.read(group_located(located, [request for _, request in requests]), len(keys))
        except (StaleLayout, ShardStoreError):
            return None

    async def _read(
        self, numbers: Sequence[int], targets: Sequence[Target | ShardStoreError], requests: Sequence[KeyRequest], values: list[Value]
    ) -> tuple[list[int], bool]:
        """Read what was located; return the requests that have to be located again, and whether that has to be as for a write."""
        chunks: list[tuple[int, ChunkTarget]] = []
        plain: list[tuple[int, PlainTarget]] = []
        documents: list[tuple[int, MetadataTarget]] = []
        for i, target in zip(numbers, targets, strict=True):
            match target:
                case ChunkTarget(node=node) if not node.is_uncommitted:
                    chunks.append((i, target))
                case PlainTarget(may_read=True):
                    plain.append((i, target))
                case MetadataTarget():
                    documents.append((i, target))
                case _:
                    values[i] = _value_without_read(target)
        paths = list(dict.fromkeys(target.path for _, target in documents))
        owners = [self._plain_owner(target.key) for _, target in plain]
        guards = {path: self._proof.guard(owner) for path, owner in {owner.path: owner for owner in owners if owner is not None}.items()}
        reads = [
            Read(target.key, (requests[i][1],), None, None if owner is None else guards[owner.path])
            for (i, target), owner in zip(plain, owners, strict=True)
        ]
        reads += [document_read(metadata_key(path)) for path in paths]
        if chunks and reads:
            again, outcomes = await asyncio.gather(self._read_chunks(chunks, requests, values), self._storage.read(reads))
            if again:  # an array is laid out otherwise by now: what was read at the same time may be of before
                outcomes = await self._storage.read(reads)
        else:
            again = await self._read_chunks(chunks, requests, values)
            outcomes = await self._storage.read(reads) if reads else []
        shown = {path: self._document(path, outcome) for path, outcome in zip(paths, outcomes[len(plain) :], strict=True)}
        for i, target in documents:
            document = shown[target.path]
            values[i] = cut(document, requests[i][1]) if isinstance(document, memoryview) else document
        doubtful = await self._show_plain(plain, owners, reads, outcomes[: len(plain)], values)
        await self._settle_hidden([*((i, target.key) for i, target in plain), *((i, target.key) for i, target in documents)], values)
        return again + doubtful, bool(doubtful)

    async def _read_chunks(self, chunks: list[tuple[int, ChunkTarget]], requests: Sequence[KeyRequest], values: list[Value]) -> list[int]:
        """Read chunks; return the requests that have to be located again."""
        shards = group_by_shard((n, target, requests[i][1]) for n, (i, target) in enumerate(chunks))
        try:
            found = await self._reader.read(shards, len(chunks))
        except StaleLayout:
            return [i for i, _ in chunks]
        except ShardStoreError as exc:  # of some array's document: the rest is read without it
            arrays: dict[str, list[tuple[int, ChunkTarget]]] = {}
            for chunk in chunks:
                arrays.setdefault(chunk[1].node.path, []).append(chunk)
            if len(arrays) > 1:
                again = await asyncio.gather(*(self._read_chunks(mine, requests, values) for mine in arrays.values()))
                return [i for mine in again for i in mine]
            for i, _ in chunks:
                values[i] = exc
            return []
        for (i, _), value in zip(chunks, found, strict=True):
            values[i] = value
        return []

    async def _show_plain(
        self,
        plain: list[tuple[int, PlainTarget]],
        owners: Sequence[Node | None],
        reads: Sequence[Read],
        outcomes: Sequence[ReadOutcome],
        values: list[Value],
    ) -> list[int]:
        """Set the values of plain objects; return the requests whose objects may have become shards since they were located.

        What did not bring its own proof that its array has no shards is proven by the array's document, in a round of its own.
        """
        unproven = [
            owner
            for owner, read, outcome in zip(owners, reads, outcomes, strict=False)
            if owner is not None and not self._proof.came_with_read(owner, read.guard, outcome)
        ]
        errors = await self._learn_again(list(dict.fromkeys(owner.path for owner in unproven)))
        found: list[tuple[int, str]] = []
        outdated: list[int] = []
        for (i, target), owner, outcome in zip(plain, owners, outcomes, strict=True):
            values[i] = await self._plain_value(target.key, owner, outcome)
            if isinstance(outcome, Found):
                found.append((i, target.key))
            if owner is None:
                continue
            if owner.path in errors:
                values[i] = errors[owner.path]
            elif isinstance(outcome, GuardChanged) or self._plain_owner(target.key) is None:
                self._hierarchy.distrust(owner.path)
                outdated.append(i)
        return list(dict.fromkeys([*await self.owned_now(found), *outdated]))

    async def _plain_value(self, key: str, owner: Node | None, outcome: ReadOutcome) -> Value:
        """Return the value of a plain object: the error if there is a directory where an object has to be."""
        match outcome:
            case Found(_, _, (data,)):
                return data
            case Failed(error):
                return error
            case Absent(is_directory=True) if owner is not None or is_document(key) or await self._is_v2_chunk(key):
                return in_its_place(key, "a directory")
            case _:
                return None

    async def owned_now(self, found: Sequence[tuple[int, str]]) -> list[int]:
        """Return the numbers of plain objects that may be shards, given with their keys: ones that look like chunks, and whose array was
        created since they were located.
        """
        doubtful = [(i, key) for i, key in found if self.may_be_shard(key)]
        targets = await self.locate_each([key for _, key in doubtful], for_write=True) if doubtful else []
        return [i for (i, _), target in zip(doubtful, targets, strict=True) if not isinstance(target, PlainTarget)]

    async def _is_v2_chunk(self, key: str) -> bool:
        """Return whether a key is that of a chunk of an array that is stored as Zarr v2. Reads the documents that may say so."""
        owners = [(path, rest) for path, rest in ancestors(key) if _LIKE_V2_CHUNK.fullmatch(rest)]
        outcomes = await self._storage.read([document_read(join(path, ARRAY_NAME)) for path, _ in owners])
        for (_, rest), outcome in zip(owners, outcomes, strict=True):
            if isinstance(outcome, Found):
                document = loads_object(outcome.buffers[0])
                shape, separator = document.get("shape"), document.get("dimension_separator", ".")
                if isinstance(shape, list) and separator in (".", "/"):
                    return ChunkKeyEncoding("v2", separator).decode(rest, len(shape)) is not None
        return False

    async def _settle_hidden(self, keys: Sequence[tuple[int, str]], values: list[Value]) -> None:
        """Show documents that may not be read as absent where another document of the same path shows what is there.

        A server that may not say which objects there are denies access to all that are absent, and clients ask for the documents of every
        format. A document of a node that is known stays denied, and so does one of a path of which nothing can be read.
        """
        hidden = [(i, key, key.rpartition("/")[0]) for i, key in keys if isinstance(values[i], AccessDenied) and is_document(key)]
        paths = list(dict.fromkeys(path for _, _, path in hidden))
        if not paths:
            return
        reads = [document_read(join(path, name)) for path in paths for name in _OF_A_NODE]
        outcomes = iter(await self._storage.read(reads))
        is_shown = {path: [isinstance(next(outcomes), Found) for _ in _OF_A_NODE] for path in paths}
        for i, key, path in hidden:
            if any(is_shown[path]) and (metadata_path(key) is None or self._hierarchy.known(path) is None):
                values[i] = None

    async def _learn_again(self, paths: Sequence[str]) -> dict[str, ShardStoreError]:
        """Read the documents of ``paths`` in a round of their own; return their errors by path."""
        documents = await self._storage.read([document_read(metadata_key(path)) for path in paths]) if paths else []
        errors: dict[str, ShardStoreError] = {}
        for path, outcome in zip(paths, documents, strict=True):
            try:
                self._hierarchy.learn(path, outcome)
            except ShardStoreError as exc:
                errors[path] = exc
        return errors

    def _plain_owner(self, key: str) -> Node | None:
        """Return the known array without shards that has such a chunk, if it has to be proven that it has no shards by now."""
        if self._hierarchy.never_checks:
            return None
        owner = self._hierarchy.owner(possible_owners(key))
        return None if owner is None or owner[0].layout is not None or not self._proof.is_needed(owner[0]) else owner[0]

    def may_be_shard(self, key: str) -> bool:
        """Return whether the key looks like a chunk, and no array is known that has it."""
        owners = possible_owners(key)
        return bool(owners) and self._hierarchy.owner(owners) is None

    def _document(self, path: str, outcome: ReadOutcome) -> Value:
        try:
            stored = self._documents.learn(path, outcome)
        except ShardStoreError as exc:
            return exc
        return None if stored is None else memoryview(stored.presented())

    async def read_documents(self, paths: Sequence[str]) -> dict[str, tuple[Value, float | None]]:
        """Return the documents of the nodes at ``paths``, as presented, each with the time at which it was stored; in one round."""
        asked = list(dict.fromkeys(paths))
        outcomes = await self._storage.read([document_read(metadata_key(path)) for path in asked]) if asked else []
        return {
            path: (self._document(path, outcome), outcome.generation.modified if isinstance(outcome, Found) else None)
            for path, outcome in zip(asked, outcomes, strict=True)
        }

    async def size(self, key: str) -> int | None:
        """Return the size of a value, which is read only if it is a document; ``None`` if there is no value.

        Raises:
            Corruption: the index of the chunk's shard is damaged, or its entry.
        """
        strictly = False

        async def attempt() -> int | None:
            nonlocal strictly
            (target,) = await self._hierarchy.locate([key], for_write=strictly)
            match target:
                case GoneTarget():
                    return None
                case MetadataTarget(_, path):
                    stored = await self._documents.read(path)
                    return None if stored is None else len(stored.presented())
                case PlainTarget():
                    found = await self._storage.stat(key)
                    if found is None or strictly or not self.may_be_shard(key):
                        return None if found is None else found.nbytes
                    strictly = True  # it looks like a chunk, and no array was known to own it: one may have been created since
                    raise StaleLayout
                case ChunkTarget():
                    (shard,) = group_by_shard([(0, target, EVERYTHING)])
                    place = await self._reader.chunk_place(shard)
                    return None if place is None else place[1].nbytes

        try:
            return await with_fresh_layout(attempt, f"the metadata that decides where {key!r} lies kept changing; try again")
        except AccessDenied as exc:
            values: list[Value] = [exc]
            await self._settle_hidden([(0, key)], values)
            if values[0] is not None:
                raise
            return None

    # -- writing ---------------------------------------------------------------------------------------------------

    async def update_many(self, updates: Sequence[KeyUpdate]) -> list[Exception | None]:
        """Carry out updates, durable on return. Documents that are set go first, documents that are erased go last.

        So the order in which programs send a node's keys does not matter (``c/…`` sorts before ``zarr.json``).
        """
        check_keys([key for key, _ in updates])
        errors: list[Exception | None] = [None] * len(updates)
        documents = [i for i, (key, _) in enumerate(updates) if metadata_path(key) is not None]
        rest = [i for i, (key, _) in enumerate(updates) if metadata_path(key) is None]
        rest = await self._without_refused_v2(rest, updates, errors)
        if not documents:
            await self._update_values(rest, updates, errors)
            return errors
        set_first = [i for i in documents if not isinstance(updates[i][1], EraseValue)]
        # A group's consolidated metadata is translated by the documents of its arrays: they go first.
        actions = {i: updates[i][1] for i in set_first}
        groups = [i for i, a in actions.items() if isinstance(a, SetValue) and b'"consolidated_metadata"' in bytes(a.data)]
        await self._update_documents(sorted({*set_first}.difference(groups)), updates, errors)
        await self._update_documents(groups, updates, errors)
        self._refuse_chunks(rest, updates, errors, [i for i in set_first if errors[i] is not None])
        await self._update_values([i for i in rest if errors[i] is None], updates, errors)
        erased_last = [i for i in documents if isinstance(updates[i][1], EraseValue)]
        await self._update_documents(sorted(erased_last, key=lambda i: -updates[i][0].count("/")), updates, errors)
        return errors

    async def _without_refused_v2(self, rest: list[int], updates: Sequence[KeyUpdate], errors: list[Exception | None]) -> list[int]:
        """Refuse what came with the document of a new array of Zarr v2 that is refused; return the rest."""
        for i in [i for i in rest if updates[i][0].rpartition("/")[2] == ARRAY_NAME]:
            key, action = updates[i]
            if not isinstance(action, SetValue | SetIfMissing):
                continue
            try:
                await self._v2_arrays.check(key, action.data)
            except ShardStoreError as exc:
                below = key.removesuffix(ARRAY_NAME)
                for j in [j for j in rest if updates[j][0].startswith(below) and not isinstance(updates[j][1], EraseValue)]:
                    errors[j] = exc if j == i else _came_with(updates[j][0], key, exc)
        return [i for i in rest if errors[i] is None]

    @staticmethod
    def _refuse_chunks(rest: list[int], updates: Sequence[KeyUpdate], errors: list[Exception | None], failed: list[int]) -> None:
        """Refuse chunks if their document came with them and was refused: they do not belong to the document that is there."""
        refused = {metadata_path(updates[i][0]): i for i in failed}
        if not refused:
            return
        for i in rest:
            key, action = updates[i]
            document = next((refused[path] for path, _ in possible_owners(key) if path in refused), None)
            if document is not None and not isinstance(action, EraseValue):
                errors[i] = _came_with(key, updates[document][0], errors[document])

    async def _update_documents(self, numbers: Sequence[int], updates: Sequence[KeyUpdate], errors: list[Exception | None]) -> None:
        """Update documents of different nodes at once, those of one node in their order."""
        of_key: dict[str, list[int]] = {}
        for i in numbers:
            of_key.setdefault(updates[i][0], []).append(i)

        async def one(mine: list[int]) -> None:
            for i in mine:
                errors[i] = await self._update_document(updates[i])

        await asyncio.gather(*map(one, of_key.values()))

    async def _update_document(self, update: KeyUpdate) -> Exception | None:
        key, action = update
        path = metadata_path(key)
        assert path is not None
        try:
            match action:
                case SetValue(data, own_shards):
                    check = partial(action.check_seen, key) if action.seen_shape is not None else None
                    await self._documents.write(path, data, own_shards=own_shards, check=check)
                case SetIfMissing(data, creation):
                    created = await self._documents.write(path, data, only_if_absent=True)
                    if creation is not None:
                        creation.happened = created
                case EraseValue():
                    await self._documents.erase(path)
                case Revise(compute):
                    await self._documents.revise(path, compute)
                case Swap():
                    await self._documents.revise(path, revising(action))
                case _:
                    raise InvalidInput(f"the metadata document {key!r} can only be written as a whole: it may be stored in another form")
        except ShardStoreError as exc:
            return exc
        return None

    async def _update_values(self, numbers: list[int], updates: Sequence[KeyUpdate], errors: list[Exception | None]) -> None:
        async def attempt(pending: list[int]) -> list[int]:
            targets = await self.locate_each([updates[i][0] for i in pending], for_write=True)
            chunks: list[tuple[int, ChunkTarget]] = []
            plain: list[tuple[int, PlainTarget]] = []
            for i, target in zip(pending, targets, strict=True):
                match target:
                    case ShardStoreError():
                        errors[i] = target
                    case ChunkTarget():
                        chunks.append((i, target))
                    case PlainTarget():
                        plain.append((i, target))
                    case _:
                        raise AssertionError(f"{target!r} is not to be written as a value")
            commits = self._writer.commit(with_whole([(t, updates[i][1]) for i, t in chunks]))
            outcomes, _ = await asyncio.gather(commits, self._update_plain(plain, updates, errors)) if plain else (await commits, None)
            left: list[int] = []
            for (i, _), outcome in zip(chunks, outcomes, strict=True):
                if isinstance(outcome, StaleLayout):
                    left.append(i)
                else:
                    errors[i] = outcome
            return left

        for i in await each_with_fresh_layout(numbers, attempt):
            errors[i] = Conflict(f"the metadata that decides where {updates[i][0]!r} lies kept changing; it was not written")

    async def _update_plain(
        self, targets: Sequence[tuple[int, PlainTarget]], updates: Sequence[KeyUpdate], errors: list[Exception | None]
    ) -> None:
        by_key: dict[PlainTarget, list[int]] = {}
        for i, target in targets:
            by_key.setdefault(target, []).append(i)
        bound = asyncio.Semaphore(_PLAIN_AT_ONCE)

        async def one(target: PlainTarget, mine: list[int]) -> None:
            async with bound:
                try:
                    await self._update_object(target, [updates[i][1] for i in mine])
                except ShardStoreError as exc:
                    for i in mine:
                        errors[i] = exc

        await asyncio.gather(*(one(target, mine) for target, mine in by_key.items()))

    async def _update_object(self, target: PlainTarget, actions: list[Action]) -> None:
        """Update an object that is stored as it is presented."""
        key = target.key
        if not target.may_create or (target.unreadable and await self._storage.stat(key) is not None):
            raise Corruption(
                f"{key!r} is not written, because what is there may be a shard: the metadata that says so cannot be read "
                f"({target.unreadable}). Restore the metadata first, or delete the node"
            )
        if any(isinstance(action, Swap) for action in actions):
            for action in actions:
                await (self._swap_object(key, action) if isinstance(action, Swap) else self._update_object(target, [action]))
            return
        match None if reports_outcome(actions) else actions[-1]:
            case SetValue(data):
                await self._storage.write(key, [data], len(data), UNCONDITIONAL)
            case EraseValue():
                await self._storage.delete(key, UNCONDITIONAL)
            case _:
                await self._revise_object(key, actions)

    async def _revise_object(self, key: str, actions: list[Action]) -> None:
        """Update an object by what is there."""
        capabilities = await self._storage.probe()

        async def attempt() -> None:
            outcome = await read_one(self._storage, Read(key, (EVERYTHING,)))
            found = outcome if isinstance(outcome, Found) else None
            old = None if found is None else found.buffers[0]
            new = await applied(actions, old, key)
            if new is old and new is not None:
                return
            if new is None:  # also where there is nothing: that there is nothing has to last, and sessions note it
                generation = _NOT_THERE if found is None else found.generation
                await self._storage.delete(key, IfGeneration(generation) if capabilities.atomic_commits else UNCONDITIONAL)
            else:
                await self._storage.write(key, [new], len(new), capabilities.condition_on(None if found is None else found.generation))

        await self._contention.turn(key).swap(f"object {key!r}", attempt)

    async def _swap_object(self, key: str, swap: Swap) -> None:
        """Swap an object that is stored as it is presented: its versions are those of the storage."""
        outcome = swap.outcome
        try:
            if swap.data is None:
                outcome.existed = await self._storage.delete(key, swap.condition)
            else:
                outcome.version = await self._storage.write(key, [swap.data], len(swap.data), swap.condition)
        except ConditionFailed:
            outcome.happened = outcome.lasted = False
            outcome.existed = True  # of deletions: where there is nothing, no condition fails
        else:
            outcome.happened = outcome.lasted = True

    async def locate_each(self, keys: Sequence[str], *, for_write: bool) -> Sequence[Target | ShardStoreError]:
        """Return what each key means, or the error if an array's document cannot be read; the keys of other arrays have no error then."""
        try:
            return await self._hierarchy.locate(keys, for_write=for_write)
        except ShardStoreError as exc:
            groups: dict[str, list[int]] = {}
            for i, key in enumerate(keys):
                owners = possible_owners(key)
                groups.setdefault(owners[0][0] if owners else f"/{key}", []).append(i)
            if len(groups) == 1:
                return [exc] * len(keys)
        by_number: dict[int, Target | ShardStoreError] = {}
        for group in groups.values():
            by_number.update(zip(group, await self.locate_each([keys[i] for i in group], for_write=for_write), strict=True))
        return [by_number[i] for i in range(len(keys))]


def _value_without_read(target: Target | ShardStoreError) -> Value:
    """Return the value of what need not be read."""
    match target:
        case ShardStoreError():
            return target
        case PlainTarget():
            return unreadable(target)
        case _:  # gone; or an uncommitted chunk: what the transaction brings was looked up before, and what else is there is not of it
            return None


def _came_with(key: str, document: str, refusal: Exception | None) -> InvalidInput:
    error = InvalidInput(f"{key!r} was not written: {document!r}, which came with it, was refused: {refusal}")
    error.__cause__ = refusal
    return error


def unreadable(target: PlainTarget) -> Corruption:
    return Corruption(
        f"{target.key!r} cannot be read: it looks like a chunk, and the metadata that says where it lies cannot be read "
        f"({target.unreadable}). Restore the metadata"
    )
