"""xarray's own tests of its Zarr backend, on shardstore. What they are is imported from the installed xarray."""
