"""The new contents of whole shards, which are made while they are stored, by the thread that stores them.

No encoded chunks of an assignment wait until they are written then, and what is written still lies in the processor's cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from shardstore.format.shard_index import IndexFormat, ShardIndex
from shardstore.model.chunk_orders import ChunkOrder, slot_order


class NotMade(Exception):
    """The contents cannot be made this way; nothing was stored."""


class NothingStored(NotMade):
    """No chunk is to be stored: the shard is to be emptied."""


class ShardContents(ABC):
    """The new values of all chunks of one shard."""

    @abstractmethod
    def write(self, file: int, slots: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        """Write the chunks in ``slots``, one behind the other, from where the descriptor ``file`` is. In the calling thread, whichever it
        is. Returns how many bytes each has, -1 for one that is not stored.

        Raises:
            NotMade: a chunk cannot be encoded.
            OSError: it cannot be written.
        """


class ShardBody:
    """The body of the object of a shard. Its size and its index are known when it has been written."""

    def __init__(self, index_format: IndexFormat, order: ChunkOrder, contents: ShardContents) -> None:
        self._format = index_format
        self._order: ChunkOrder = order
        self._contents = contents
        self.nbytes = 0
        self.index: ShardIndex = index_format.empty()

    def write(self, file: int) -> bytes:
        """Write the chunks from where the descriptor ``file`` is; return the encoded index, which comes behind them.

        Raises:
            NotMade: a chunk cannot be encoded, or has a size that no chunk of the array has.
            NothingStored: no chunk is to be stored.
            OSError: they cannot be written.
        """
        slots = slot_order(self._format.chunks_per_shard, self._order, ~self.index.present())
        sizes = self._contents.write(file, slots)
        is_stored = sizes >= 0
        slots, sizes = slots[is_stored], sizes[is_stored]
        if not len(sizes):
            raise NothingStored
        if self._format.chunk_nbytes is not None and (sizes != self._format.chunk_nbytes).any():
            raise NotMade
        self.index = self._format.index_of_new(slots, np.cumsum(sizes) - sizes, sizes)
        encoded = self._format.encode(self.index)
        self.nbytes = int(sizes.sum()) + len(encoded)
        return encoded
