"""The faces of a store, each thin over one engine and in the words of the programs that use it.

The package's public names come from here, from ``engine`` and from ``maintenance``. Begin with ``handle.py``, which every face
holds.
"""
