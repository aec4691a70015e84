"""What a client sees in place of final Zarr v3: the same engine under the keys and documents of another flavour."""
