"""Tests for storages and catalogs of one's own: suites that check the contract, and storages that fail, wait or record.

Nothing in the package imports them. Begin with ``storage_suite.py``.
"""
