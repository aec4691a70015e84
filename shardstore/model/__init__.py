"""Frozen values that every layer shares, without input or output: ranges and their merging, versions, conditions, positions of chunks.

Everybody may import them; they import only ``errors``. Begin with ``ranges.py``, then ``generation.py``.
"""
