"""Tests for storages that others build: a suite that holds a kind of storage to its contract, and storages that fail, wait or record.

Nothing in the package imports them. Begin with ``storage_suite.py``.
"""
