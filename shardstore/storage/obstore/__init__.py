"""Reading from S3, GCS and Azure through the client library obstore, with the settings of the user's own fsspec filesystem.

``opening.kinds`` imports ``s3``, ``gcs`` and ``azure``, and these are the only modules that need obstore. Begin with ``reading.py``.
"""
