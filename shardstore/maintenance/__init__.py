"""Long work on whole stores: verification, census, compaction, repair and packing, without need of zarr.

The faces and the command line import ``compact``, ``pins`` and the ``run`` module of each folder. Begin with ``walk.py``, which lists a
store, and ``execution.py``, which carries out tasks.
"""
