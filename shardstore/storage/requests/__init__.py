"""Shared parts of all object stores over a network: conditions, ranges, bodies, bounds on concurrent requests, and lost answers.

Only the kinds of storage import these modules. Begin with ``bucket.py``, then read ``ranged_reads.py`` for reads and
``lost_answers.py`` for writes.
"""
