"""Find and prove shard indices in damaged bytes.

``maintenance.repair.run`` imports ``index_proofs`` and ``index_search``; ``crc_algebra`` is the arithmetic of checksums behind them.
Begin with ``index_proofs.py``.
"""
