"""From what a user calls a target (a URL, a path, a filesystem) to an open storage.

The faces import ``open``; ``kinds`` is the table of storage kinds, to which others can be added, and ``location`` says where the objects
of a storage really lie. Begin with ``open.py``, then ``kinds.py``.
"""
