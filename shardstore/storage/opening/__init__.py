"""Open the storage that a user's target names: a URL, a path, a filesystem.

The faces import ``open``; ``kinds`` is the table of storage kinds, to which others can be added, and ``location`` says where the objects
of a storage really lie. Begin with ``open.py``, then ``kinds.py``.
"""
