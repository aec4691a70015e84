"""The face for zarr-python: a store, and a codec pipeline that hands whole selections to the engine.

``shardstore.open`` imports ``store``, and no module outside this room imports zarr. Begin with ``store.py``, then
``pipeline.py``.
"""
