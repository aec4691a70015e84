"""Reading from S3 and GCS through the client library obstore, with the settings of the user's own fsspec filesystem.

``opening.kinds`` imports ``s3`` and ``gcs``, and these are the only modules that need obstore. Begin with ``reading.py``.
"""
