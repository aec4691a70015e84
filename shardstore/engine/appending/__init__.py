"""Appends along a dimension by many writers at once: their line of reservations, the documents that show the rows, a view to store through.

The adapter of zarr imports ``line`` and ``view``, the engine ``line`` and ``documents``. Begin with ``line.py``. Its record is a value of
the room ``format``.
"""
