"""A hierarchy of the 2022 draft that is stored, shown as a storage with the keys and documents of final Zarr v3.

``stored.detect`` and the faces import ``storage``. Begin with ``storage.py``.
"""
