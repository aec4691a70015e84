"""Long work on whole stores: verification, census, compaction, repair and packing, without need of zarr.

The faces and the command line import ``compact``, ``census``, ``pins``, ``execution`` and ``cluster``, and of each folder the module that
runs it (``run``, of packing ``pack``) and its results. Begin with ``walk.py``, which lists a store, ``nodes.py``, which reads its
documents, and ``execution.py``, which carries out tasks.
"""
