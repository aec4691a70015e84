"""The face for fsspec: the filesystem ``sharded``, its files, transfers and transactions.

fsspec itself imports ``filesystem``, through an entry point. Begin with ``filesystem.py``.
"""
