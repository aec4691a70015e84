"""Values that say what they are: a chunk that is old, misplaced, cut or mixed cannot pass for another.

A chunk of ``count`` uint32 words, little-endian::

    | magic | array | incarnation | chunk | writer | version | fill: n words | zeros |

How long the fill is, and what is in it, follows from the six words before it. So chunks of one array are as long as each other, as
Zarr wants them, and differ in length once they are compressed: what an old index says of a new shard is wrong everywhere.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

_MAGIC = 0x53485244
_HEADER = struct.Struct("<6I")
HEADER_WORDS = _HEADER.size // 4


class WrongValue(AssertionError):
    """A chunk that nobody wrote."""


@dataclass(frozen=True, slots=True, order=True)
class Payload:
    """Who wrote which chunk of which array, and which time."""

    array: int
    incarnation: int
    chunk: int
    writer: int
    version: int

    def words(self, count: int) -> Words:
        """The chunk of ``count`` words, at least ``HEADER_WORDS``."""
        header = _HEADER.pack(_MAGIC, *astuple(self))
        seed = zlib.crc32(header)
        fill = np.arange(seed % (count - HEADER_WORDS + 1), dtype=np.uint32)
        # Integer noise: cheap to make, and a compressor finds little in it.
        fill = (fill + np.uint32(seed)) * np.uint32(2654435761)
        fill ^= fill >> np.uint32(15)
        words = np.zeros(count, np.uint32)
        words[:HEADER_WORDS] = np.frombuffer(header, "<u4")
        words[HEADER_WORDS : HEADER_WORDS + len(fill)] = fill
        return words


def parse(words: Words) -> Payload | None:
    """What a chunk says it is; ``None`` for nothing but zeros, the fill value.

    Raises:
        WrongValue: it is neither that nor a chunk that ``Payload.words`` gives.
    """
    if not words.any():
        return None
    magic, *members = (int(word) for word in words[:HEADER_WORDS])
    payload = Payload(*members)
    if magic != _MAGIC or not np.array_equal(payload.words(len(words)), words):
        raise WrongValue(f"a chunk of {len(words)} words begins with {words[:HEADER_WORDS].tolist()} and is none that was written")
    return payload


def split(words: Words, count: int) -> list[Payload | None]:
    """What each chunk of ``count`` words of a selection says it is."""
    return [parse(chunk) for chunk in words.reshape(-1, count)]


def joined(payloads: list[Payload], count: int) -> Words:
    """The chunks behind each other, as one assignment takes them."""
    return np.concatenate([payload.words(count) for payload in payloads])
