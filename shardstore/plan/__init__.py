"""Plans: what a commit writes, and how large shards are, as pure functions on frozen values.

The engine and ``maintenance`` import them; they import only ``format``, ``model`` and ``errors``. Begin with ``commits.py``.
"""
