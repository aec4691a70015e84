"""S3 with parts of a few bytes, and Azure with blocks of a few, so that a shard of a few chunks is appended to by what it holds already.

AWS takes no part below 5 MiB but the last: a commit of the smallest shard that is copied would move 10 MiB within the server. What may go
wrong is the same with small ones. The server has to take such parts; MiniStack does, moto can be told.
"""

from __future__ import annotations

from dataclasses import replace

from shardstore.storage.azure.client import AzureClient
from shardstore.storage.azure.storage import AzureStorage
from shardstore.storage.s3 import parts as s3_parts
from shardstore.storage.s3.storage import S3Storage

SMALL_PART_BYTES = 32

_AS_SHIPPED = s3_parts.MIN_PART_BYTES


def limit_parts(*, small: bool) -> None:
    """Let all storages of this process that are opened from now on take small parts, or none that AWS would refuse."""
    least = SMALL_PART_BYTES if small else _AS_SHIPPED
    s3_parts.MIN_PART_BYTES = least
    s3_parts.COPY_PAYS_NBYTES = 2 * least
    for kind in (S3Storage, AzureStorage):
        kind.claimed_without_probe = replace(kind.claimed_without_probe, copy_pays_nbytes=2 * least)
    AzureClient.block_bytes = 16 * SMALL_PART_BYTES if small else 8 << 20
