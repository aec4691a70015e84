"""A wrapper of a storage that forwards everything unchanged."""

from __future__ import annotations

from shardstore.model.capabilities import Capabilities
from shardstore.storage.base import Storage

KEYS_A_REQUEST = 1000  # that a listing returns, or a multiple delete takes, for one request; as on S3


def innermost(storage: Storage) -> Storage:
    """Return the storage inside all wrappers."""
    while (inner := getattr(storage, "inner", None)) is not None:
        storage = inner
    return storage


class StorageWrapper:
    """The same place as ``inner``, with the same abilities; subclasses act on the operations."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def kind(self) -> str:
        return self.inner.kind

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def probe(self) -> Capabilities:
        return await self.inner.probe()

    async def cut_links(self, prefix: str) -> None:
        """Remove links, as ``LocalStorage`` does before it erases; do nothing elsewhere."""
        if (cut := getattr(self.inner, "cut_links", None)) is not None:
            await cut(prefix)

    async def close(self) -> None:
        await self.inner.close()
