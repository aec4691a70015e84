"""fsspec's sets of references, as bytes: files of references in Parquet, and the versions that a set was made of.

Begin with ``parquet.py``.
"""
