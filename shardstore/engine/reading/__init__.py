"""Chunks out of shards: the index of each shard, then the ranges of its chunks, all of one version.

Other rooms import ``reader``; ``listing`` lists chunks, and ``pinned`` is what open files read. Begin with ``reader.py``, then
``shard_chunks.py``.
"""
