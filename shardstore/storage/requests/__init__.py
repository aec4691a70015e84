"""Shared parts of all object stores over a network: conditions, ranges, bodies, bounds on concurrent requests, and lost answers.

The kinds of storage import these modules. Begin with ``bucket.py``, the base of stores that have buckets, then read
``ranged_reads.py`` for reads and ``lost_answers.py`` for writes.
"""
