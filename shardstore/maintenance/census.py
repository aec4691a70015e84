"""A census: which chunks exist, array by array. One listing, and one request for the index of each shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from shardstore.engine.engine import Engine
from shardstore.errors import NotFound
from shardstore.maintenance.array_plans import ArrayPlan
from shardstore.maintenance.census_file import DIGEST_NBYTES, ArrayCensus, Census, bitmap_nbytes
from shardstore.maintenance.census_objects import CensusTask, Counted, count_objects
from shardstore.maintenance.execution import Execution, Failure
from shardstore.maintenance.object_tasks import gathered
from shardstore.maintenance.place import Place
from shardstore.maintenance.walk import Located, Walk

Progress = Callable[[int, int], None]


def take_census(
    engine: Engine,
    path: str = "",
    *,
    of_contents: bool = False,
    execution: Execution | None = None,
    progress: Progress | None = None,
    shown: str | None = None,
) -> Census:
    """Of everything at and below ``path``. Not to be called on the IO loop.

    With ``of_contents`` every object is read whole, and its digest recorded. ``progress`` is called with the number of objects that have
    been looked at, and their bytes. What others write meanwhile is in it or not, each object as it was at one moment.

    Raises:
        NotFound: there is nothing at ``path``.
        Conflict: an object, or an array, was replaced again and again.
        StorageError: a request failed.
    """
    return _Taking(engine, path, of_contents, execution or Execution(), progress, shown).run()


@dataclass
class _Rows:
    """Of one array, as they come."""

    coords: list[tuple[int, ...]] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    bitmaps: list[bytes] = field(default_factory=list)

    def census(self, plan: ArrayPlan) -> ArrayCensus:
        n, ndim = len(self.nbytes), len(plan.shape)
        coords = np.array(self.coords, dtype=np.int64).reshape(n, ndim)
        order = np.lexsort(coords.T[::-1]) if ndim else np.arange(n)
        return ArrayCensus(
            path=plan.path,
            shape=plan.shape,
            chunk_shape=plan.chunk_shape,
            chunks_per_object=plan.chunks_per_object,
            is_sharded=plan.layout is not None,
            coords=coords[order],
            nbytes=np.array(self.nbytes, dtype=np.int64)[order],
            digests=np.frombuffer(b"".join(self.digests), np.uint8).reshape(n, DIGEST_NBYTES)[order],
            bitmaps=np.frombuffer(b"".join(self.bitmaps), np.uint8).reshape(n, bitmap_nbytes(plan.chunks_per_object))[order],
        )


class _Taking:
    """One census while it goes on."""

    def __init__(
        self, engine: Engine, path: str, of_contents: bool, execution: Execution, progress: Progress | None, shown: str | None
    ) -> None:
        self._engine = engine
        self._walk = Walk(engine, path)
        self._of_contents = of_contents
        self._execution = execution
        self._progress = progress
        self._shown = shown
        self._place = Place(engine.storage)
        self._rows: dict[str, _Rows] = {}
        self._damaged: list[str] = []
        self._listed = self._done = self._nbytes = 0

    def run(self) -> Census:
        self._execution.carry_out(count_objects, self._tasks(), self._take, self._give_up)
        if not self._listed and not self._walk.nodes.records(self._walk.path):
            where = self._shown or f"{self._engine.storage.url.rstrip('/')}/{self._walk.path}".rstrip("/")
            raise NotFound(f"there is no node at {where}, and nothing below it: check the address; a key alone is no node")
        arrays = tuple(self._rows.get(plan.path, _Rows()).census(plan) for plan in self._walk.plans())
        return Census(arrays, self._of_contents, tuple(sorted(self._damaged)))

    def _tasks(self) -> Iterator[CensusTask]:
        def wanted(located: Located) -> bool:
            self._listed += 1
            return located.plan is not None and located.plan.holds(located.coords)

        for plan, some in gathered(filter(wanted, self._walk.located()), reads_all=lambda plan: self._of_contents):
            objects = tuple((located.coords, located.info.nbytes) for located in some)
            yield CensusTask(self._execution.run, self._place, plan, objects, self._of_contents)

    def _take(self, task: CensusTask, counted: Counted) -> None:
        rows = self._rows.setdefault(task.plan.path, _Rows())
        for coords, entry in counted.entries:
            rows.coords.append(coords)
            rows.nbytes.append(entry.nbytes)
            rows.digests.append(entry.digest)
            rows.bitmaps.append(entry.bitmap)
        self._damaged += counted.damaged
        self._done += len(task.objects)
        self._nbytes += sum(entry.nbytes for _, entry in counted.entries)
        if self._progress is not None:
            self._progress(self._done, self._nbytes)

    def _give_up(self, failure: Failure[CensusTask]) -> None:
        raise failure.error
