"""Counts references while they are written, and tells of the progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from shardstore.errors import InvalidInput
from shardstore.references.batches import ReferenceBatch, ReferencedArray, size_of
from shardstore.references.report import ReferenceProgress

_SAME = {"s3a": "s3", "gcs": "gs", "https": "http", "": "file", "local": "file"}


@dataclass(slots=True)
class Tally:
    """Counts over all arrays of a set."""

    arrays: Sequence[ReferencedArray]
    progress: Callable[[ReferenceProgress], None] | None = None
    mixed_protocols: bool = False
    references: int = 0
    inlined: int = 0
    urls: set[int] = field(default_factory=set)
    """Hashes of all URLs: there may be millions."""
    protocols: dict[str, str] = field(default_factory=dict)
    """By protocol, one of its URLs."""

    @property
    def missing(self) -> int:
        return sum(map(size_of, self.arrays)) - self.references

    def counted(self, number: int, batches: Iterator[ReferenceBatch]) -> Iterator[ReferenceBatch]:
        """Yield the batches of one array, each part of which is counted by ``count``."""
        for batch in batches:
            for url in batch.rows.targets:
                self._note(url)
            yield batch
            if self.progress is not None:
                self.progress(ReferenceProgress(self.references, number + 1, len(self.arrays), self.arrays[number].path))

    def count(self, references: int, inlined: int) -> None:
        self.references += references
        self.inlined += inlined

    def _note(self, url: str) -> None:
        """Note the protocol of a URL. Raises ``InvalidInput`` if there is another one already: fsspec finds only one for a whole set."""
        self.urls.add(hash(url))
        protocol = url.partition("://")[0] if "://" in url else ""
        protocol = _SAME.get(protocol, protocol)
        if protocol in self.protocols:
            return
        self.protocols[protocol] = url
        if len(self.protocols) > 1 and not self.mixed_protocols:
            one, other = list(self.protocols.values())[:2]
            raise InvalidInput(
                f"references lead to {one!r} and to {other!r}: fsspec opens one protocol for a whole set, and fails for the other. "
                "mixed_protocols=True (--mixed-protocols) writes it all the same; shardstore reads it"
            )
