"""The engine: carries plans out over a storage. Everything here is async and runs on fsspec's IO loop."""
