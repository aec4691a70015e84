"""Formats as pure functions on bytes and JSON, without files and event loops.

Everybody may import these modules; they import only ``model`` and ``errors``. Begin with ``metadata_v3.py`` for documents and
``shard_index.py`` for the index of a shard.
"""
