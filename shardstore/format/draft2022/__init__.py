"""The *sharding storage transformer* draft of 2022: its documents, data types and keys, and their translation to final Zarr v3 and back.

Other rooms import ``metadata`` and ``keys``. Begin with ``metadata.py``.
"""
