"""Chunks read one by one, each with a status: ``shardstore_read`` of the kernel, which selections are read by."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from shardstore.native.kernel import ChunkParams, Kernel

CHUNK_DTYPE = np.dtype([("offset", "<i8"), ("nbytes", "<i8"), ("at", "<i8"), ("file", "<i4"), ("status", "<i4")])
"""One chunk to be read: its range in a file, the place of its first selected element in the caller's memory in bytes, which of the
descriptors it is in, and, after the call, its status: 0, or why it was not read.
"""


def read_chunks(
    kernel: Kernel,
    params: ChunkParams,
    files: npt.NDArray[np.int32],
    chunks: npt.NDArray[Any],
    selections: npt.NDArray[np.int64],
    out: npt.NDArray[Any],
    threads: int,
) -> int:
    """Read selected elements of chunks into ``out``; return the number of chunks whose status is not 0. Of those, the selected elements may
    have any value.

    ``files``: descriptors. ``chunks``: of ``CHUNK_DTYPE``, ``at`` counted from the first element of ``out``. ``selections``: of shape
    ``(len(chunks), 3, ndim)``, for each stored dimension of a chunk the first element, the count, and the step. The strides are those of
    ``params``, and say where elements lie in the memory of ``out``, from its first element to the end of its last.
    """
    assert chunks.dtype == CHUNK_DTYPE
    assert selections.flags.c_contiguous
    extent = sum((length - 1) * stride for length, stride in zip(out.shape, out.strides, strict=True)) + out.itemsize if out.size else 0
    read = kernel._library.shardstore_read
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    read.restype, read.argtypes = number, [pointer, pointer, number, pointer, pointer, number, pointer, number, ctypes.c_int32]
    bad: int = read(
        ctypes.addressof(params._structure),
        files.ctypes.data,
        len(files),
        chunks.ctypes.data,
        selections.ctypes.data,
        len(chunks),
        out.ctypes.data,
        extent,
        threads,
    )
    return bad
