"""What is measured: one module a kind of work."""

from __future__ import annotations

from workloads.hierarchy import HIERARCHY
from workloads.imports import IMPORT
from workloads.listing import LISTING
from workloads.reading import READING
from workloads.single_chunks import SINGLE_CHUNKS
from workloads.updates import UPDATES
from workloads.workload import Workload
from workloads.writing import WRITING

WORKLOADS: dict[str, Workload] = {each.name: each for each in (*READING, *SINGLE_CHUNKS, *WRITING, *UPDATES, *LISTING, *HIERARCHY, *IMPORT)}
