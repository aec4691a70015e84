"""Find chunks of a shard that share bytes, so that a copy copies these bytes once.

::

    chunks      | a          |     | c   |        a, b and c: two pieces, {a, b} and {c}
                       | b       |
    pieces      | 0              | | 1   |

Entries of an index may overlap, and may name the same bytes: that is valid. A *piece* is all the bytes of chunks that overlap one another;
elsewhere it is one chunk. Pieces do not overlap, so all of them together are never longer than the object.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The pieces that some chunks lie in, in the order of the first chunk of each. All fields but ``of_chunk`` are ``(npieces,)``."""

    starts: Ints
    """Bytes of the object, as ``ends`` (exclusive)."""
    ends: Ints
    firsts: npt.NDArray[np.intp]
    """The number of the first chunk of each piece, ascending."""
    of_chunk: npt.NDArray[np.intp]
    """``(nchunks,)``: the piece that each chunk lies in."""

    @property
    def nbytes(self) -> int:
        return int((self.ends - self.starts).sum())


def shared_pieces(offsets: Ints, lengths: Ints) -> Pieces | None:
    """Return the pieces of chunks, which are given by their places, in any order; ``None`` if each is a piece of its own."""
    ends = offsets + lengths
    if bool((offsets[1:] >= ends[:-1]).all()):
        return None  # as a rewritten shard has them: one behind the other
    by_offset = np.argsort(offsets, kind="stable")
    starts, reached = offsets[by_offset], np.maximum.accumulate(ends[by_offset])
    begins = np.ones(len(offsets), dtype=np.bool_)
    begins[1:] = starts[1:] >= reached[:-1]
    if begins.all():
        return None
    lowest = np.flatnonzero(begins)
    highest = np.append(lowest[1:], len(offsets)) - 1
    of_chunk = np.empty(len(offsets), dtype=np.intp)
    of_chunk[by_offset] = np.cumsum(begins) - 1
    # From the order of their bytes to that of their first chunks.
    _, first = np.unique(of_chunk, return_index=True)
    order = np.argsort(first)
    rank = np.empty(len(order), dtype=np.intp)
    rank[order] = np.arange(len(order))
    return Pieces(starts[lowest][order], reached[highest][order], first[order], rank[of_chunk])


def covered_nbytes(offsets: Ints, lengths: Ints) -> int:
    """Return the bytes that are at least one chunk's."""
    pieces = shared_pieces(offsets, lengths)
    return int(lengths.sum()) if pieces is None else pieces.nbytes
