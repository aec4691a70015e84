"""Repair damaged shards from what can be proved, and keep their old bytes in quarantine.

Other rooms import ``run``. Begin with ``run.py``, then ``shard.py``, which plans the repair of one shard.
"""
