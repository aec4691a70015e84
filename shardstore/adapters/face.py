"""The interface that zarr's pipelines need of a store or filesystem behind which there is an engine, without knowing its class."""

from __future__ import annotations

from shardstore.presented.flavours import Presented


class Face:
    """Base of the faces to which zarr can hand whole selections and assignments."""

    @property
    def engine(self) -> Presented:
        """Return the engine of this process; its coroutines run on fsspec's IO loop only."""
        raise NotImplementedError

    @property
    def uses_pipeline(self) -> bool:
        """True where whole selections and assignments go to the engine."""
        raise NotImplementedError


class FilesystemFace(Face):
    """Base of a filesystem over an engine, whose paths are not keys."""

    def key_of(self, path: str) -> str:
        """Return the presented key that a path names; ``""`` for the root."""
        raise NotImplementedError

    def settle(self) -> None:
        """Find out where the hierarchy begins."""
        raise NotImplementedError

    def check_writable(self) -> None:
        """Raise ``ReadOnly`` where this instance may not write."""
        raise NotImplementedError
