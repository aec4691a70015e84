"""Plans: which bytes to read and what to write, as pure functions on frozen values.

The engine and ``maintenance`` import them; they import only ``format``, ``model`` and ``errors``. Begin with ``commits.py``.
"""
