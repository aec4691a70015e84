"""Google Cloud Storage, through the requests of the user's gcsfs instance to the JSON API.

``opening`` imports ``storage``; nothing else is for other rooms. Begin with ``storage.py``.
"""
