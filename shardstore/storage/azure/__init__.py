"""Azure Blob Storage, through the client of the user's adlfs instance.

``opening`` imports ``storage``. Begin with ``storage.py``, then ``blocks.py``.
"""
