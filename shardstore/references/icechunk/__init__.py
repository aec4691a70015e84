"""References in repositories of icechunk: the checksums of objects, and references as columns.

Begin with ``writing.py``.
"""
