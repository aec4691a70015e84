"""References in repositories of icechunk: ``writing.py``, which alone imports icechunk; checksums of objects, and columns for it.

``references`` imports ``writing``. Begin there.
"""
