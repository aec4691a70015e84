"""Open storages: from a target as a user writes it (a URL, a path, a filesystem) to an open storage.

The faces import ``open``, and ``location`` finds where the objects of a storage really lie. Begin with ``open.py``, then the table of
kinds in ``kinds.py``.
"""
