"""Functions of the package that need more than the engine: ``align`` for dask, ``verify`` and ``census`` with zarr's codecs, pictures, and
versions of what is installed.

The package and the command line import ``align``, ``verification`` and ``versions``. Begin with ``verification.py``.
"""
