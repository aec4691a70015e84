"""S3 and the servers that speak its language, through the client calls of the user's s3fs instance.

``opening`` imports ``storage``. Begin with ``storage.py``, then ``upload.py`` and ``compose.py``.
"""
