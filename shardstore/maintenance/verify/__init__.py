"""Verify that stored data are sound: documents, indices, chunks, and comparisons with a copy or a census.

Other rooms import ``run`` to verify, and ``findings`` for the results. Begin with ``run.py``, then ``objects.py``, which looks at some
objects of one array.
"""
