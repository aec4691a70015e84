"""Reference sets of fsspec, in JSON and in Parquet, as a storage for reading.

``storage`` reads a set by ``json_set`` or ``parquet_set``, and what it leads to by ``reading``; ``opening`` makes it from URLs and options.
``filesystems`` is for sets that fsspec itself reads, behind another link of a chain. Begin with ``storage.py``.
"""
