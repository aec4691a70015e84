"""Underlying storage: one small protocol in ``base``, one folder or module for each kind of storage, and wrappers that forward everything.

Everybody imports ``base``; a storage is opened by ``opening.open`` only, so that the kinds are imported when they are needed.
Begin with ``base.py``, then ``memory.py``, the smallest kind that can do everything.
"""
