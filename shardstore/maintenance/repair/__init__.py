"""Damaged shards are mended from what can be proved, and their old bytes are kept in quarantine.

Other rooms import ``run``. Begin with ``run.py``, then ``shard.py``, which plans the repair of one shard.
"""
