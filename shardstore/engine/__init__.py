"""The engine of one store carries plans out over a storage, as coroutines on fsspec's IO loop.

The faces and ``maintenance`` import ``engine``, ``options``, ``actions`` and ``keyed_store``, and few other modules. Begin with
``engine.py``, then follow one read into ``reading`` and one write into ``writing``.
"""
