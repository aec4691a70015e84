"""Digests of the bytes of objects that have no versions to compare."""

from __future__ import annotations

import hashlib

from shardstore.maintenance.packing.made import Made
from shardstore.model.ranges import ByteRange
from shardstore.storage.base import Failed, Found, Read, Storage

_BYTES_AT_ONCE = 4 << 20


async def digest_of_contents(storage: Storage, made: Made) -> str:
    """Return a digest by which these objects are recognised when they are read again; empty where one is absent, or has another length.

    Raises:
        StorageError: a request failed.
    """
    digest = hashlib.blake2b(digest_size=16)
    for key, nbytes, _ in made:
        digest.update(f"{key}\0{nbytes}\0".encode(errors="surrogatepass"))
        for start in range(0, max(1, nbytes), _BYTES_AT_ONCE):
            wanted = ByteRange(start, min(nbytes, start + _BYTES_AT_ONCE))
            (outcome,) = await storage.read([Read(key, (wanted,))])
            if isinstance(outcome, Failed):
                raise outcome.error
            if not isinstance(outcome, Found) or outcome.nbytes != nbytes:
                return ""
            digest.update(outcome.buffers[0])
    return digest.hexdigest()
