"""Other formats that are stored, shown as storages with the keys and documents of final Zarr v3.

The engine imports ``detect``, which finds out what is stored. Begin with ``detect.py``, then the room ``draft2022``.
"""
