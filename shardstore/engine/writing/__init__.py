"""Updates of chunks into commits of shards, each on the condition that the shard is still the version it was planned from.

Other rooms import ``writer``, ``erasing``, ``committer`` and ``plan_writer``. Begin with ``writer.py``, then ``committer.py``.
"""
