"""Storages that forward everything to another one: they check what the engine relies on, and count requests.

``opening`` puts them around the storages that it opens, and ``base`` is for other wrappers, such as those in ``shardstore.testing``.
Begin with ``base.py``.
"""
