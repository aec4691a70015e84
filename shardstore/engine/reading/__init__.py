"""Chunks out of shards: the index of each shard, then the ranges of its chunks, all of one version.

Other rooms import ``reader``, ``read_plan``, ``shard_chunks``, and ``listing``, which lists chunks. Begin with ``reader.py``, then
``read_plan.py``.
"""
