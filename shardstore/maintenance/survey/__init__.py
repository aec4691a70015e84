"""A survey of a store: its nodes, how they are stored, how many of their chunks exist, and which are damaged.

The commands ``info`` and ``advise`` import ``run``. Begin with ``run.py``.
"""
