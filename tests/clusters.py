"""Dask clusters on this machine, as the tests start them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def dask_cluster(workers: int = 1, *, threads_per_worker: int = 1, processes: bool = True) -> Iterator[Any]:
    """The ``Client`` of a cluster that ends with the context; it is nobody's default.

    What a scheduler shows of itself is at a port of its own: of clusters in two processes, the second would warn about the usual one.
    """
    from distributed import Client, LocalCluster

    cluster = LocalCluster(  # type: ignore[no-untyped-call]  # distributed has no types
        n_workers=workers,
        threads_per_worker=threads_per_worker,
        processes=processes,
        host="127.0.0.1" if processes else None,
        dashboard_address="127.0.0.1:0",
        memory_limit=0,
    )
    with cluster, Client(cluster, set_as_default=False) as client:  # type: ignore[no-untyped-call]  # as above
        yield client
