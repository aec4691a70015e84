"""The header of a Blosc 1 buffer, checked before the library sees it.

::

    | version | versionlz | flags | typesize | nbytes: int32 | blocksize: int32 | cbytes: int32 | blocks ... |

``cbytes`` is the length of the whole buffer, ``nbytes`` that of the decoded bytes; both are little-endian. The library trusts both: a
buffer that was cut, or whose numbers were changed, makes it read behind the end (and the process crash), or allocate up to 2 GiB.
Specification: c-blosc, README_CHUNK_FORMAT.
"""

from __future__ import annotations

import struct

from shardstore.errors import Corruption
from shardstore.model.ranges import BytesLike

_HEADER = struct.Struct("<BBBBiii")
HEADER_NBYTES = _HEADER.size


def check_blosc_header(data: BytesLike, decoded_nbytes: int | None, encoded_nbytes: int | None = None) -> None:
    """Refuse a buffer whose header contradicts its length, or the expected ``decoded_nbytes``, if they are known.

    ``encoded_nbytes`` is the length of the buffer, where ``data`` is only the start of it.

    Raises:
        Corruption: the buffer is cut, extended, or of another size.
    """
    if encoded_nbytes is None:
        encoded_nbytes = len(data)
    if len(data) < HEADER_NBYTES:
        raise Corruption(f"a Blosc buffer has a header of {HEADER_NBYTES} bytes, this one has {len(data)} in all")
    _, _, _, _, nbytes, _, cbytes = _HEADER.unpack_from(data)
    if cbytes != encoded_nbytes:
        raise Corruption(f"the Blosc header says {cbytes} bytes, there are {encoded_nbytes}")
    if nbytes < 0 or (decoded_nbytes is not None and nbytes != decoded_nbytes):
        raise Corruption(f"the Blosc header says {nbytes} decoded bytes, {decoded_nbytes} were expected")
