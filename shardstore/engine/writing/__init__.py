"""Updates of chunks into commits of shards, each on the condition that the shard is still the version it was planned from.

Other rooms import ``writer``, ``erasing`` and ``transaction``. Begin with ``writer.py``, then ``committer.py``.
"""
