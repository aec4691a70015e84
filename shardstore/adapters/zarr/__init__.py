"""The face for zarr-python: a store, and a codec pipeline that hands whole selections to the engine.

``shardstore.open`` imports ``store``. ``pyproject.toml`` names the modules that import zarr. Begin with ``store.py``, then
``chunk_pipeline.py``.
"""
