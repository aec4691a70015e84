"""Find and prove shard indices in damaged bytes.

Begin with ``index_proofs.py``; ``crc_algebra`` is the arithmetic of checksums behind it.
"""
