"""From what a user calls a target (a URL, a path, a filesystem) to an open storage.

The faces import ``open``; ``location`` says where the objects of a storage really lie, and ``redaction`` takes secrets out of
messages. Begin with ``open.py``.
"""
