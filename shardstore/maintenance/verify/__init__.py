"""Verification of what is stored: documents, indices, chunks, and comparisons with a copy or a census.

Other rooms import ``run`` to verify, and ``findings`` for what is found. Begin with ``run.py``, then ``objects.py``, which looks
at some objects of one array.
"""
