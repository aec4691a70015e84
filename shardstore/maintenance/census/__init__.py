"""A census of the existing chunks of a store: counted, kept in a small file, and drawn.

Other rooms import ``run`` to take a census and ``file`` to read one. Begin with ``run.py``.
"""
