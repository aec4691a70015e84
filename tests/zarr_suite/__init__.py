"""zarr-python's own tests of arrays and groups, on shardstore. They are fetched, and run as a suite of their own (``make zarr-suite``)."""
