"""The face as a mapping from keys to bytes, for zarr-python 2 and whatever else takes one.

The package imports ``mapping``; the other modules make it a store of zarr-python 2. Begin with ``mapping.py``.
"""
