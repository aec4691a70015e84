"""Scatter fetched chunks into the output of a selection, and gather encoded chunks from an assignment: one pass over many chunks, in one
thread.

The tuples are zarr's: ``(getter, spec, chunk_selection, out_selection, is_complete)``. Tens of thousands of them come at once, so what is
the same for all is found out once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shardstore.adapters.zarr.chunks import ChunkCodec, Entry, fill_value, undecodable

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import NDBuffer

    from shardstore.adapters.zarr.direct import AnyArray, DirectChain

Info = tuple[Any, ...]

_FIRST_COMPARED = 2**14  # elements: enough to be worth a call of numpy, few enough to cost next to nothing where they differ


class _Chains:
    """The chain of one chunk after the other, looked up where it is another one's."""

    def __init__(self, codec: ChunkCodec) -> None:
        self._codec = codec
        self._spec: ArraySpec | None = None
        self.chain: DirectChain | None = None
        self.destination: AnyArray | None = None
        """Memory to decode into, which the next chunk overwrites."""

    def turn_to(self, spec: ArraySpec) -> DirectChain | None:
        last, self._spec = self._spec, spec
        if last is not None and spec.shape == last.shape and spec.dtype is last.dtype and spec.prototype is last.prototype:
            return self.chain
        self.chain = chain = self._codec.chain(spec)
        if chain is not None and chain.takes_destination and chain.nbytes >= self._codec.destination_bytes:
            self.destination = np.empty(chain.nbytes, "B")
        else:
            self.destination = None
        return chain


def scatter_chunks(
    codec: ChunkCodec, infos: Sequence[Info], values: Sequence[memoryview | None], out: NDBuffer, drop_axes: tuple[int, ...]
) -> None:
    """Put the selected elements of each chunk, or the fill value, where they belong in ``out``.

    Raises:
        Corruption: a chunk cannot be decoded; what ``out`` holds then is undefined.
    """
    array: Any = out.as_ndarray_like()
    is_plain = type(array) is np.ndarray
    chains = _Chains(codec)
    for info, data in zip(infos, values, strict=True):
        getter, spec, chunk_selection, out_selection = info[:4]
        if data is None:
            out[out_selection] = fill_value(spec)
            continue
        chain = chains.turn_to(spec) if is_plain else None
        if chain is None:
            codec.scatter(Entry(*info), data, out, drop_axes)
            continue
        destination = chains.destination
        region = None
        if destination is not None and _is_whole(chunk_selection, spec.shape) and _is_basic(out_selection):
            # Of an array without dimensions, ``array[()]`` may be a copy.
            region = chain.place_for(array[out_selection] if out_selection else array)
        try:
            chunk = chain.decode(data, destination if region is None else region)
        except MemoryError:
            raise
        except Exception as exc:
            raise undecodable(getter.path, len(data), exc) from exc
        if region is not None:
            continue
        part = chunk[chunk_selection]
        if drop_axes:
            part = part.reshape([n for axis, n in enumerate(part.shape) if axis not in drop_axes])
        array[out_selection] = part


def gather_chunks(
    codec: ChunkCodec, infos: Sequence[Info], old: Sequence[memoryview | None], value: NDBuffer, drop_axes: tuple[int, ...]
) -> list[memoryview | None]:
    """The new bytes of each chunk after its part of ``value`` was assigned; ``None`` where it equals the fill value.

    They may lie in the memory of ``value``.

    Raises:
        Corruption: a chunk that is only partly assigned cannot be decoded.
    """
    source: Any = value.as_ndarray_like()
    is_plain = type(source) is np.ndarray
    is_scalar = value.shape == ()
    chains = _Chains(codec)
    scratch: AnyArray | None = None
    new: list[memoryview | None] = []
    for info, was in zip(infos, old, strict=True):
        getter, spec, chunk_selection, out_selection, is_complete = info
        chain = chains.turn_to(spec) if is_plain else None
        if chain is None or not chain.holds(source.dtype):
            new.append(codec.merge_and_encode(Entry(*info), was, value, drop_axes))
            continue
        part = source if is_scalar else source[out_selection]
        if is_complete and not is_scalar and part.shape == spec.shape:
            chunk = part
        else:
            if was is None:
                chunk = spec.prototype.nd_buffer.create(
                    shape=spec.shape, dtype=spec.dtype.to_native_dtype(), order="C", fill_value=fill_value(spec)
                ).as_numpy_array()
            else:
                try:
                    chunk = chain.decode(was).copy()
                except MemoryError:
                    raise
                except Exception as exc:
                    raise undecodable(getter.path, len(was), exc) from exc
            if drop_axes and not is_scalar:
                # Axes that an integer selected are gone from the value; put them back with length one.
                part = part[tuple(None if axis in drop_axes else slice(None) for axis in range(len(spec.shape)))]
            chunk[chunk_selection] = part
        if not spec.config.write_empty_chunks and _equals(spec, chunk, fill_value(spec)):
            new.append(None)
            continue
        if chain.takes_scratch and (scratch is None or len(scratch) != chain.nbytes):
            scratch = np.empty(chain.nbytes, "B")
        new.append(chain.encode(chunk, scratch if chain.takes_scratch else None))
    return new


def _equals(spec: ArraySpec, chunk: AnyArray, fill: Any) -> bool:
    """Return whether zarr calls all elements equal to the fill value: NaN equals NaN, and where that is a float 0.0, -0.0 differs.

    Most chunks that have data are told apart by their first element.
    """
    kind, itemsize = chunk.dtype.kind, chunk.dtype.itemsize
    if chunk.size and kind in "biufc":
        first = chunk[(0,) * chunk.ndim]
        if first != fill and (first == first or fill == fill):
            return False
    if kind == "f" and itemsize in (2, 4, 8) and np.asarray(fill).dtype.kind == "f" and fill == 0.0:
        # zarr compares bits too, as elements of a void type, for which numpy has no loop of its own.
        bits = chunk.view(f"u{itemsize}")
        return _all_equal(bits, np.asarray(fill, chunk.dtype).view(bits.dtype))
    if kind in "biu":
        return _all_equal(chunk, fill)
    return spec.prototype.nd_buffer.from_numpy_array(chunk).all_equal(fill)


def _all_equal(chunk: AnyArray, fill: Any) -> bool:
    """By growing pieces, so that little is compared where something differs."""
    if not chunk.ndim:
        return bool(chunk == fill)
    step = max(1, _FIRST_COMPARED * len(chunk) // max(1, chunk.size))
    start = 0
    while start < len(chunk):
        if not (chunk[start : start + step] == fill).all():
            return False
        start, step = start + step, step * 2
    return True


def _is_whole(selection: Any, shape: tuple[int, ...]) -> bool:
    """Return whether it selects a whole chunk, element after element."""
    if type(selection) is not tuple or len(selection) != len(shape):
        return False
    for along, n in zip(selection, shape, strict=True):
        if type(along) is slice:
            if along.start not in (0, None) or along.stop not in (n, None) or along.step not in (1, None):
                return False
        elif n != 1 or not isinstance(along, (int, np.integer)):
            return False
    return True


def _is_basic(selection: Any) -> bool:
    """Return whether indexing with it gives a view of what is indexed, and not a copy."""
    return type(selection) is tuple and all(type(along) is slice for along in selection)
