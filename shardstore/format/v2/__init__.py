"""Zarr v2: its documents, data types, fill values, codecs and keys, and their translation to Zarr v3 and back.

Other rooms import ``arrays``, ``groups`` and ``keys``. Begin with ``arrays.py``.
"""
