"""How the objects of arrays are gathered into tasks: of one array each, of a size that does not matter to memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from shardstore.maintenance.array_plans import ArrayPlan
from shardstore.maintenance.walk import Located

_OBJECTS_A_TASK = 256
_INDEX_BYTES_A_TASK = 4 * 2**20
_CONTENT_BYTES_A_TASK = 64 * 2**20  # so that there are enough tasks to go round


def gathered(objects: Iterable[Located], reads_all: Callable[[ArrayPlan], bool]) -> Iterator[tuple[ArrayPlan, list[Located]]]:
    """Objects of arrays, in the order in which they come; ``reads_all`` says of which arrays all bytes will be read."""
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
