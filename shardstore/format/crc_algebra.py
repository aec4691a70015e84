"""CRC-32C as a linear map: checksums of all windows of some bytes at once, and the byte that a wrong checksum points to.

The register after ``n`` zero bytes is ``A^n`` times the register before, over GF(2), and the map is linear. So the checksum of any window
follows from the registers at its two ends. The effect of one wrong byte depends only on its value and its distance from the end.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected (RFC 3720, appendix B.4)
_ONES = np.uint32(0xFFFFFFFF)  # what the register begins with, and what is added to it at the end
_ROW_BYTES = 256  # columns are gone through one by one, rows all at once


def _table() -> Words:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


_TABLE = _table()


def _step(register: Words, byte: npt.NDArray[np.uint8] | int = 0) -> Words:
    return np.asarray(_TABLE[(register ^ byte) & 0xFF] ^ (register >> np.uint32(8)), dtype=np.uint32)


# -- A^n ---------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _shift(nbytes: int) -> Words:
    """Return ``A^nbytes`` as four tables, ``(4, 256)``: one for each byte of a register."""
    power = np.uint32(1) << np.arange(32, dtype=np.uint32)  # the images of each bit: of none, themselves
    square = _step(power)
    while nbytes:
        if nbytes & 1:
            power = _times(_tables(square), power)
        square = _times(_tables(square), square)
        nbytes >>= 1
    return _tables(power)


def _tables(images: Words) -> Words:
    """Return the tables of a map that is given by the images of the 32 bits."""
    tables = np.zeros((4, 256), dtype=np.uint32)
    values = np.arange(256, dtype=np.uint32)
    for bit in range(32):
        tables[bit // 8] ^= np.where(values >> np.uint32(bit % 8) & 1, images[bit], np.uint32(0)).astype(np.uint32)
    return tables


def _times(tables: Words, registers: Words) -> Words:
    """Return the map applied to each register."""
    result = tables[0][registers & 0xFF]
    for byte in (1, 2, 3):
        result = result ^ tables[byte][registers >> np.uint32(8 * byte) & 0xFF]
    return np.asarray(result, dtype=np.uint32)


# -- windows -----------------------------------------------------------------------------------------------------------


def window_checksums(data: npt.NDArray[np.uint8], nbytes: int) -> Words:
    """Return the checksum of ``data[s : s + nbytes]`` for every ``s``: ``len(data) - nbytes + 1`` of them."""
    registers = _registers(data)
    begins, ends = registers[: len(registers) - nbytes], registers[nbytes:]
    return np.asarray(ends ^ _times(_shift(nbytes), begins ^ _ONES) ^ _ONES, dtype=np.uint32)


def _registers(data: npt.NDArray[np.uint8]) -> Words:
    """Return the register before each byte of ``data``, and after the last one; it begins with zero."""
    rows = -(-len(data) // _ROW_BYTES) or 1
    padded = np.zeros(rows * _ROW_BYTES, dtype=np.uint8)
    padded[: len(data)] = data
    columns = np.ascontiguousarray(padded.reshape(rows, _ROW_BYTES).T)
    ends = np.zeros(rows, dtype=np.uint32)
    for column in columns:
        ends = _step(ends, column)
    shift = [table.tolist() for table in _shift(_ROW_BYTES)]
    starts, register = [], 0
    for end in ends.tolist():
        starts.append(register)
        moved = shift[0][register & 0xFF] ^ shift[1][register >> 8 & 0xFF] ^ shift[2][register >> 16 & 0xFF] ^ shift[3][register >> 24]
        register = moved ^ end
    found = np.empty((_ROW_BYTES + 1, rows), dtype=np.uint32)
    found[0] = np.array(starts, dtype=np.uint32)
    for number, column in enumerate(columns):
        found[number + 1] = _step(found[number], column)
    return np.append(found[:-1].T.reshape(-1), found[-1, -1])[: len(data) + 1]


# -- bytes that end with their own checksum ----------------------------------------------------------------------------

_RESIDUE = _step(_step(_step(_step(np.array([_ONES], dtype=np.uint32)))))[0]
"""The register after bytes and their checksum, whatever the bytes are."""


BEGUN = int(_ONES)
"""The register before the first byte."""


def first_checked_end(data: npt.NDArray[np.uint8], register: int = BEGUN) -> tuple[int | None, int]:
    """Return the least ``n`` for which the bytes so far, with ``data[:n]``, end with the checksum of the bytes before it, and the register
    after all of ``data``. ``None``: there is no such ``n``.

    ``register`` is the one after the bytes before ``data``, of the same chunk.
    """
    begun = data.copy()
    begun[:4] ^= np.frombuffer(register.to_bytes(4, "little"), dtype=np.uint8)[: len(data)]
    registers = _registers(begun)
    one = np.array([register], dtype=np.uint32)
    for at, byte in enumerate(data[:4].tolist()):  # before all four bytes of the register are in
        registers[at] = one[0]
        one = _step(one, byte)
    if len(data) < 4:
        registers[len(data)] = one[0]
    first = 5 if register == BEGUN else 1
    ends = np.flatnonzero(registers[first:] == _RESIDUE)
    return (int(ends[0]) + first if len(ends) else None), int(registers[-1])


# -- one wrong byte ----------------------------------------------------------------------------------------------------


def single_corrections(nbytes: int, difference: int) -> list[tuple[int, int]]:
    """Return which single byte of ``nbytes`` can be wrong where the checksum differs by ``difference``: ``(position, bits to flip in it)``.

    Instead of such a byte, the checksum itself may be wrong.
    """
    table = _TABLE.tolist()
    flips = {value: byte for byte, value in enumerate(table)}
    by_top_byte = {value >> 24: byte for byte, value in enumerate(table)}
    found: list[tuple[int, int]] = []
    register = difference
    for position in reversed(range(nbytes)):
        if flips.get(register):
            found.append((position, flips[register]))
        # One byte back: the highest byte shows which entry of the table was added.
        byte = by_top_byte[register >> 24]
        register = ((register ^ table[byte]) << 8 & 0xFFFFFFFF) | byte
    return found
