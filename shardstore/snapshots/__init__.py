"""Versioned stores: commits that are all or nothing, branches, tags and time travel, on the Icechunk draft of August 2024.

Begin with ``catalog.py``, which holds the one thing that changes; the files are described in ``format.snapshots``.
"""
