"""Read the voxels of a NIfTI-1 file: what the demo needs, and no more.

A ``.nii.gz`` file is gzip around a header of 348 bytes, optional extensions, and the voxels in Fortran order::

    byte    0  sizeof_hdr   int32       348, which also tells the byte order
           40  dim          int16[8]    dim[0] dimensions, their lengths in dim[1:]
           70  datatype     int16
          108  vox_offset   float32     where the voxels start
          112  scl_slope    float32     value = slope × stored + inter, unless slope is 0
          116  scl_inter    float32
          344  magic        char[4]     "n+1" and a zero byte
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import numpy.typing as npt

HEADER_NBYTES = 348
DATA_TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4"}


def read_nifti(path: Path) -> npt.NDArray[np.generic]:
    """The stored voxels, ``(x, y, z, …)``, C-contiguous. Files that scale their values are refused."""
    content = gzip.decompress(path.read_bytes())
    if len(content) < HEADER_NBYTES or content[344:348] != b"n+1\0":
        raise ValueError(f"{path} is not a NIfTI-1 file in one part")
    byte_order = "<" if int.from_bytes(content[:4], "little") == HEADER_NBYTES else ">"

    def field(dtype: str, offset: int, count: int = 1) -> list[int | float]:
        values: list[int | float] = np.frombuffer(content, byte_order + dtype, count, offset).tolist()
        return values

    ndim, *lengths = (int(n) for n in field("i2", 40, 8))
    shape = tuple(lengths[:ndim])
    datatype = int(field("i2", 70)[0])
    voxel_offset = int(field("f4", 108)[0])
    slope, intercept = field("f4", 112, 2)
    if datatype not in DATA_TYPES:
        raise ValueError(f"{path} has NIfTI data type {datatype}, which this reader does not know")
    if slope not in (0.0, 1.0) or intercept != 0.0:
        raise ValueError(f"{path} scales its values by {slope} and {intercept}, which this reader does not do")
    dtype = np.dtype(byte_order + DATA_TYPES[datatype])
    voxels = np.frombuffer(content, dtype, count=int(np.prod(shape)), offset=voxel_offset)
    return np.ascontiguousarray(voxels.reshape(shape, order="F"))
