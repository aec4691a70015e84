"""Objects behind HTTP and HTTPS, for reading only, through the session of the user's fsspec filesystem.

``opening`` imports ``storage``; nothing else is for other rooms. Begin with ``storage.py``.
"""
