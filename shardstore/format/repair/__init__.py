"""Finding and proving shard indices in bytes that are damaged.

``maintenance.repair.run`` imports ``index_proofs`` and ``index_search``; ``crc_algebra`` is the arithmetic of checksums behind them.
Begin with ``index_proofs.py``.
"""
