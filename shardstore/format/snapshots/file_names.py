"""Names of the files of a versioned store (D4, D13, D28).

::

    12 random bytes ─► 20 digits of Crockford's base32, as released Icechunk names its files      c/1CZ33ZREE1WVR4D62DV0
    generation and 16 random digits                                                               t/00000000000000000007-3G6…9K.json
likewise, of lists of garbage                                                                 t/garbage-00000000000000000008-7QX….parquet
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

STATES, STRUCTURES, ATTRIBUTES, MANIFESTS, CHUNKS = "t/", "s/", "a/", "m/", "c/"

ID_NBYTES = 12
"""The length of an id in bytes."""

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ID_LENGTH = -(-8 * ID_NBYTES // 5)
_PADDING_BITS = 5 * _ID_LENGTH - 8 * ID_NBYTES
_ID = re.compile(rf"[{_DIGITS}]{{{_ID_LENGTH - 1}}}[0G]")
_ASCII_DIGITS = np.frombuffer(_DIGITS.encode(), dtype=np.uint8)
ID_NAMES = np.dtype(f"S{_ID_LENGTH}")
"""The dtype of many names."""
GARBAGE_LISTS = f"{STATES}garbage-"
_GARBAGE_LIST = re.compile(rf"{GARBAGE_LISTS}(\d{{20}})-[{_DIGITS}]{{{_ID_LENGTH}}}\.parquet")

_STATE = re.compile(rf"(\d{{20}})-[{_DIGITS}]{{16}}\.json")

RandomBytes = Callable[[int], bytes]


def encode_id(data: bytes) -> str:
    """Return the name of an id of ``ID_NBYTES`` bytes."""
    number = int.from_bytes(data) << _PADDING_BITS
    return "".join(_DIGITS[number >> 5 * place & 31] for place in reversed(range(_ID_LENGTH)))


def encode_ids(ids: Sequence[bytes]) -> npt.NDArray[np.bytes_]:
    """Return the names of ``n`` ids, ``(n,)``, as ASCII."""
    bits = np.unpackbits(np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(len(ids), ID_NBYTES), axis=1)
    padded = np.pad(bits, ((0, 0), (0, _PADDING_BITS))).reshape(len(ids), _ID_LENGTH, 5)
    numbers = np.packbits(padded, axis=2)[:, :, 0] >> 3
    names: npt.NDArray[np.bytes_] = _ASCII_DIGITS[numbers].view(ID_NAMES)[:, 0]
    return names


def is_id(name: str) -> bool:
    """Return whether a text is the name of an id."""
    return _ID.fullmatch(name) is not None


def garbage_list_name(generation: int, random: RandomBytes) -> str:
    """Return the key of a new list of garbage."""
    return f"{GARBAGE_LISTS}{generation:020d}-{encode_id(random(ID_NBYTES))}.parquet"


def generation_of_garbage_list(key: str) -> int | None:
    """Return the generation that the key of a list of garbage names; ``None`` if it is no such key."""
    matched = _GARBAGE_LIST.fullmatch(key)
    return None if matched is None else int(matched[1])


def is_own_name(folder: str, name: str) -> bool:
    """Return whether a versioned store gives such names to files in one of its folders."""
    if folder == STATES:
        return generation_of_state(STATES + name) is not None or generation_of_garbage_list(STATES + name) is not None
    return is_id(name)


def new_state_name(generation: int, random: RandomBytes) -> str:
    """Return the key of a new state file, relative to the root of the store."""
    number = int.from_bytes(random(10))
    return f"{STATES}{generation:020d}-{''.join(_DIGITS[number >> 5 * place & 31] for place in range(16))}.json"


def generation_of_state(key: str) -> int | None:
    """Return the generation that the key of a state file names; ``None`` if it is no such key."""
    matched = _STATE.fullmatch(key.removeprefix(STATES)) if key.startswith(STATES) else None
    return None if matched is None else int(matched[1])
