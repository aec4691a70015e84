"""Everything in a store, by one listing, with the role of each object: a document, a chunk or shard of an array, the record of appends to
one, or a stray.

Neither keys nor objects are kept: memory grows with the number of nodes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from shardstore.engine.engine import Engine
from shardstore.engine.metadata.hierarchy import Node
from shardstore.format.json_text import JsonObject
from shardstore.format.store_keys import ancestors, check_prefix, metadata_path
from shardstore.format.v2.keys import document_key, is_document
from shardstore.maintenance.execution import one_by_one, pages
from shardstore.maintenance.nodes import ArrayPlan, SurveyedNodes, V2Nodes, plan_array
from shardstore.model.chunks import ChunkCoords
from shardstore.storage.base import ObjectInfo
from shardstore.storage.inferred_versions import is_unversioned
from shardstore.storage.local.storage import LocalFiles
from shardstore.storage.local.walk import LINK_TO_NOWHERE, Obstacle

_OBJECTS_A_TASK = 256
_INDEX_BYTES_A_TASK = 4 * 2**20
_CONTENT_BYTES_A_TASK = 64 * 2**20  # so that there are enough tasks to go round

Role = Literal["document", "v2-document", "array", "record", "stray", "hidden"]


@dataclass(frozen=True, slots=True)
class Located:
    """A stored object. ``plan`` and ``coords`` are set for an object of an array; ``hidden``: damaged metadata hide its role."""

    info: ObjectInfo
    role: Role
    plan: ArrayPlan | None = None
    coords: ChunkCoords = ()


class Walk:
    """One walk through everything at and below ``path``."""

    def __init__(self, engine: Engine, path: str, seen: Callable[[Node, JsonObject | None], None] | None = None) -> None:
        """Prepare the walk. ``seen`` is called with each node of Zarr v3 as it is read, including those above ``path``, and with its
        document.
        """
        self._engine = engine
        self._seen = seen
        self._plans: dict[str, ArrayPlan | None] = {}
        self.path = check_prefix(path).strip("/")
        self.nodes = SurveyedNodes(engine, self._note)
        self.v2 = V2Nodes(engine.storage)

    @property
    def prefix(self) -> str:
        return self.path + "/" if self.path else ""

    def plans(self) -> list[ArrayPlan]:
        """Return the arrays at and below ``path`` that have been read, in the order of their paths."""
        of_v3 = [plan for path, plan in self._plans.items() if plan is not None and self._is_below(path)]
        of_v2 = [plan for plan in self.v2.arrays() if self._is_below(plan.path)]
        return sorted(of_v3 + of_v2, key=lambda plan: plan.path)

    def _is_below(self, path: str) -> bool:
        return path == self.path or path.startswith(self.prefix)

    def _note(self, node: Node, document: JsonObject | None) -> None:
        self._plans[node.path] = plan_array(node, document)
        if self._seen is not None:
            self._seen(node, document)

    async def batches(self) -> AsyncIterator[list[Located]]:
        """Yield what the storage lists, a thousand objects at a time. Raises ``StorageError`` if a request failed."""
        async for page in pages(self._engine.storage, self.prefix):
            yield await self.locate(page)

    async def obstacles(self) -> list[Obstacle]:
        """Return what is in the place of an object or a document of the arrays that have been read, and is none: a named pipe, a socket, a
        device or a directory on a local disk. Listings leave it out, and reads of it fail.
        """
        local = self._engine.storage.ability(LocalFiles)
        if local is None:
            return []
        plans = {plan.path: plan for plan in self.plans()}

        def is_key(key: str) -> bool:
            return is_document(key) or any(path in plans and plans[path].has_key(rest) for path, rest in ancestors(key))

        return [one for one in await local.obstacles(self.prefix, is_key) if one.what != LINK_TO_NOWHERE and is_key(one.key)]

    def located(self) -> Iterator[Located]:
        """Yield what the storage lists, one by one. Not to be called on the IO loop. Raises as ``batches`` does."""
        return one_by_one(self.batches())

    async def locate(self, infos: list[ObjectInfo]) -> list[Located]:
        """Return the role of each object."""
        owners = await self.nodes.owners([info.key for info in infos])
        located: list[Located] = []
        strays: list[int] = []
        for info, (record, coords) in zip(infos, owners, strict=True):
            plan = None if record is None else self._plans.get(record.node.path)
            if metadata_path(info.key) is not None:
                located.append(Located(info, "document"))
            elif plan is not None and coords is not None:
                located.append(Located(info, "array", plan, coords))
            elif record is not None and record.is_record(info.key):
                located.append(Located(info, "record"))
            elif document_key(info.key) is not None:
                located.append(Located(info, "v2-document"))
            elif (record is not None and plan is None) or any(
                above.node.kind == "other" for path, _ in ancestors(info.key) if (above := self.nodes.get(path)) is not None
            ):
                located.append(Located(info, "hidden"))
            else:
                strays.append(len(located))
                located.append(Located(info, "stray"))
        found = await self.v2.owners([located[i].info.key for i in strays])
        for i, owner in zip(strays, found, strict=True):
            info = located[i].info
            if owner is not None:
                located[i] = Located(info, "array", *owner)
            elif self.v2.has_unreadable(info.key):
                located[i] = Located(info, "hidden")
        return located


def gathered(objects: Iterable[Located], reads_all: Callable[[ArrayPlan], bool]) -> Iterator[tuple[ArrayPlan, list[Located]]]:
    """Yield objects of arrays, in the order of their arrival; ``reads_all`` returns for which arrays all bytes will be read."""
    plan: ArrayPlan | None = None
    some: list[Located] = []
    nbytes = 0
    for located in objects:
        assert located.plan is not None
        if plan is not None and some and (plan is not located.plan or _is_full(plan, len(some), nbytes if reads_all(plan) else 0)):
            yield plan, some
            some, nbytes = [], 0
        plan = located.plan
        some.append(located)
        nbytes += located.info.nbytes
    if plan is not None and some:
        yield plan, some


def _is_full(plan: ArrayPlan, objects: int, nbytes: int) -> bool:
    index_nbytes = 0 if plan.layout is None else plan.layout.index_format.nbytes
    return objects >= _OBJECTS_A_TASK or (objects + 1) * index_nbytes > _INDEX_BYTES_A_TASK or nbytes >= _CONTENT_BYTES_A_TASK


class ListedDigests:
    """Digests of the objects of arrays as a storage lists them: of keys, sizes, and versions where it gives them.

    They differ if an object was written or erased since; where a listing gives no versions, one that was replaced by another of the same
    size is not noticed. Objects may come in any order.
    """

    def __init__(self) -> None:
        self._sums: dict[str, int] = {}

    def add(self, path: str, info: ObjectInfo) -> None:
        """Add an object of the array at ``path``."""
        is_told = info.generation is not None and not is_unversioned(info.generation)
        version = info.generation.token if is_told and info.generation is not None else ""
        text = f"{info.key}\0{info.nbytes}\0{version}".encode(errors="surrogatepass")
        self._sums[path] = self._sums.get(path, 0) + int.from_bytes(blake2b(text, digest_size=8).digest())

    def of(self, path: str) -> str:
        """Return the digest of an array."""
        return f"{self._sums.get(path, 0) % 2**64:016x}"
