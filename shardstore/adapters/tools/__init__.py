"""Functions of the package that need more than the engine: ``align`` for dask, ``verify`` and ``census`` with zarr's codecs, pictures.

The package and the command line import ``align`` and ``verification``. Begin with ``verification.py``.
"""
