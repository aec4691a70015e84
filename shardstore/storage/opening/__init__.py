"""Open storages: from a target as a user writes it (a URL, a path, a filesystem) to an open storage.

The faces import ``open``; ``location`` finds where the objects of a storage really lie, and ``redaction`` removes secrets from
messages. Begin with ``open.py``.
"""
