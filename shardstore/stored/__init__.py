"""Other formats that are stored, shown as storages with the keys and documents of final Zarr v3."""
