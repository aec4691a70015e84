"""What the process has imported that all turns are forked from: no thread is started, no connection is made."""

from __future__ import annotations

from importlib import import_module

for _module in (
    "s3fs",
    "shardstore.adapters.mapping.mapping",
    "shardstore.adapters.zarr.chunk_pipeline",
    "shardstore.adapters.zarr.store",
    "shardstore.testing.latency",
    "worker",
):
    import_module(_module)
