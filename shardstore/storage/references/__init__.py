"""fsspec's sets of references, in JSON and in Parquet, as filesystems for reading.

``opening`` imports ``json`` and ``parquet``. Begin with ``json.py``.
"""
