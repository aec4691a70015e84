"""Sets of references of fsspec, in JSON and in Parquet, as filesystems to read from.

``opening`` imports ``json`` and ``parquet``. Begin with ``json.py``.
"""
