"""Looking after stores as a whole: what lies in them. Needs no zarr."""
