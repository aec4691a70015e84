"""What is measured: one module a kind of work."""

from __future__ import annotations

from workloads.hierarchy import HIERARCHY
from workloads.imports import IMPORT
from workloads.listing import LISTING
from workloads.locking import LOCKING
from workloads.public import PUBLIC
from workloads.reading import READING
from workloads.side_by_side import SIDE_BY_SIDE
from workloads.single_chunks import SINGLE_CHUNKS
from workloads.updates import UPDATES
from workloads.workload import Workload
from workloads.writing import WRITING

_ALL = (*SIDE_BY_SIDE, *LOCKING, *PUBLIC, *READING, *SINGLE_CHUNKS, *WRITING, *UPDATES, *LISTING, *HIERARCHY, *IMPORT)
WORKLOADS: dict[str, Workload] = {each.name: each for each in _ALL}
TABLE = tuple(each.name for each in (*SIDE_BY_SIDE, *LOCKING, *PUBLIC))
"""The workloads of the tables that the page of results begins with."""
BARRED = (
    *("shardstore", "shardstore, obstore", "shardstore, without its kernel", "codecs alone", "a GET each", "bytes and codecs"),
    *("tensorstore", "tensorstore, cache pool", "tensorstore, cache pool, nothing validated", "icechunk"),
    *("zarr-python", "zarr-python, fused pipeline", "zarr-python, zarrs pipeline"),
)
"""The contenders of these tables."""
