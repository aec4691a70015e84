"""Array documents: which node lies at which path, and how documents are read, translated, written and cached.

Other rooms import ``hierarchy`` for the array that a key belongs to, and ``documents`` to write one. Begin with ``hierarchy.py``.
"""
