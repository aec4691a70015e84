"""Shared parts of all object stores over a network: conditions, ranges, bodies, bounds on concurrent requests, and lost answers.

Only the kinds of storage import these modules. Begin with ``lost_answers.py`` for writes and ``pinned_ranges.py`` for reads.
"""
