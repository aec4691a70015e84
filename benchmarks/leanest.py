"""The physical limits: the same bytes, codec calls and requests in the leanest plain Python, without checks, locks or metadata.

``bytes alone`` moves the bytes of the chunks; ``bytes and codecs`` decodes and encodes them too; both on local files, with two threads.
``requests alone`` makes as few requests as two dependent rounds allow, indices and then merged ranges, all at once; ``requests and
codecs`` decodes what they bring, with two threads. An index is read once and believed for ever.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
from contenders import REMOTE_GAP_NBYTES, Address, Contender, OpenArray, Selection, StorageName, Values, native_store
from counting_s3 import Counts
from runs import Run, runs_of
from shard_files import Coords, Index, Layout, Piece, layout_of, shard_path

THREADS = 2
CONCURRENCY = 64  # requests at once; as the models of latency
_LOCAL_GAP_NBYTES = 4096  # read faster than another call takes
_LOCAL_RUN_NBYTES = 2**20  # short enough that both threads have something to do
_REMOTE_RUN_NBYTES = 16 * 2**20
_FLAGS = os.O_RDONLY | os.O_CLOEXEC


def _decode_run(layout: Layout, run: Run, data: bytes, out: Values) -> None:
    view, scratch = memoryview(data), layout.scratch()
    for piece, offset, nbytes in run.pieces:
        layout.place(piece, view[offset : offset + nbytes], scratch, out)


def _by_shard(layout: Layout, selections: Sequence[Selection]) -> tuple[dict[Coords, list[tuple[int, Piece]]], list[Values]]:
    """The pieces of many selections with the numbers of these, and an array to fill for each."""
    found: dict[Coords, list[tuple[int, Piece]]] = {}
    outs: list[Values] = []
    for number, selection in enumerate(selections):
        box = layout.box(selection)
        outs.append(np.empty([part.stop - part.start for part in box], layout.dtype))
        for shard, pieces in layout.pieces(box):
            found.setdefault(shard, []).extend((number, piece) for piece in pieces)
    return found, outs


def _place_chunks(layout: Layout, run: Run, data: bytes, numbers: dict[int, int], outs: list[Values]) -> None:
    view, scratch = memoryview(data), layout.scratch()
    for piece, offset, nbytes in run.pieces:
        layout.place(piece, view[offset : offset + nbytes], scratch, outs[numbers[id(piece)]])


# -- local files -------------------------------------------------------------------------------------------------------


class _LeanFiles(OpenArray):
    """Reads with ``pread``. Writes whole shards as a new file that takes the old one's name, and chunks of a shard behind its index."""

    def __init__(self, root: Path, codecs: bool) -> None:
        self._root = root
        self._codecs = codecs
        self._layout = layout_of(root)
        self._indices: dict[Coords, Index] = {}
        self._ends: dict[Coords, int] = {}
        self._encoded: dict[bytes, bytes] = {}
        self._pool = ThreadPoolExecutor(THREADS)
        list(self._pool.map(lambda _: None, range(THREADS)))  # threads start before the clock does

    # -- reading -------------------------------------------------------------------------------------------------------

    def _index(self, shard: Coords, fd: int) -> Index:
        index = self._indices.get(shard)
        if index is None:
            end = os.fstat(fd).st_size
            nbytes = self._layout.index_nbytes
            index = self._indices[shard] = self._layout.decode_index(os.pread(fd, nbytes, end - nbytes))
        return index

    def read(self, selection: Selection) -> Values:
        box = self._layout.box(selection)
        out = np.empty([part.stop - part.start for part in box], self._layout.dtype)
        work: list[tuple[int, Run]] = []
        fds: list[int] = []
        for shard, pieces in self._layout.pieces(box):
            fd = os.open(shard_path(self._root, shard), _FLAGS)
            fds.append(fd)
            work += [(fd, run) for run in runs_of(self._index(shard, fd), pieces, _LOCAL_GAP_NBYTES, _LOCAL_RUN_NBYTES)]
        try:
            if len(work) == 1:
                self._read_run(work[0], out)
            else:
                list(self._pool.map(lambda one: self._read_run(one, out), work))
        finally:
            for fd in fds:
                os.close(fd)
        return out

    def _read_run(self, one: tuple[int, Run], out: Values) -> None:
        fd, run = one
        data = os.pread(fd, run.end - run.start, run.start)
        if self._codecs:
            _decode_run(self._layout, run, data, out)

    async def read_async(self, selection: Selection) -> Values:
        return self.read(selection)

    async def read_chunks(self, wanted: Sequence[tuple[str, Selection]]) -> list[Values]:
        """Merged, in this thread: they are short."""
        pieces_of, outs = _by_shard(self._layout, [selection for _, selection in wanted])
        for shard, numbered in pieces_of.items():
            fd = os.open(shard_path(self._root, shard), _FLAGS)
            numbers = {id(piece): i for i, piece in numbered}
            for run in runs_of(self._index(shard, fd), [piece for _, piece in numbered], _LOCAL_GAP_NBYTES, _LOCAL_RUN_NBYTES):
                data = os.pread(fd, run.end - run.start, run.start)
                if self._codecs:
                    _place_chunks(self._layout, run, data, numbers, outs)
            os.close(fd)
        return outs

    # -- writing -------------------------------------------------------------------------------------------------------

    def prepare_write(self, selection: Selection, values: Values) -> None:
        """Encode beforehand what is going to be written, where only bytes are measured."""
        if not self._codecs:
            for _, pieces in self._layout.pieces(self._layout.box(selection)):
                for piece in pieces:
                    self._encoded[repr((selection, piece.out)).encode()] = self._layout.encode(values[piece.out])

    def write(self, selection: Selection, values: Values) -> None:
        """Whole chunks."""
        work = list(self._layout.pieces(self._layout.box(selection)))
        if len(work) == 1:  # both threads encode for the one shard
            self._write_one(selection, work[0][0], work[0][1], values)
        else:
            list(self._pool.map(lambda one: self._write_shard(selection, one[0], one[1], values), work))

    def _write_one(self, selection: Selection, shard: Coords, pieces: list[Piece], values: Values) -> None:
        if len(pieces) == 1:
            encoded = [self._data(selection, pieces[0], values)]
        else:
            encoded = list(self._pool.map(lambda piece: self._data(selection, piece, values), pieces))
        self._write_shard(selection, shard, pieces, values, encoded)

    def _data(self, selection: Selection, piece: Piece, values: Values) -> bytes:
        if not self._codecs:
            return self._encoded[repr((selection, piece.out)).encode()]
        return self._layout.encode(values[piece.out])

    def _write_shard(
        self, selection: Selection, shard: Coords, pieces: list[Piece], values: Values, encoded: list[bytes] | None = None
    ) -> None:
        data = [self._data(selection, piece, values) for piece in pieces] if encoded is None else encoded
        index = self._indices.get(shard)
        path = shard_path(self._root, shard)
        is_new = len(data) * self._layout.chunk_nbytes == self._layout.dtype.itemsize * int(np.prod(self._layout.shard_shape))
        if index is None:
            index = self._layout.empty_index()
            if not is_new and path.exists():
                fd = os.open(path, _FLAGS)
                self._ends[shard] = os.fstat(fd).st_size
                index = self._index(shard, fd).copy()
                os.close(fd)
        self._indices[shard] = index
        end = 0 if is_new else self._ends.get(shard, 0)
        offsets = end + np.cumsum([0, *map(len, data)])
        index[[piece.slot for piece in pieces]] = np.column_stack([offsets[:-1], np.diff(offsets)]).astype("u8")
        data.append(self._layout.encode_index(index))
        if is_new:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            _write_all(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, data)
            os.replace(part, path)
        else:
            if not end:
                path.parent.mkdir(parents=True, exist_ok=True)
            _write_all(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, data)
        self._ends[shard] = end + sum(map(len, data))


def _write_all(path: Path, flags: int, data: list[bytes]) -> None:
    fd = os.open(path, flags, 0o644)
    try:
        for at in range(0, len(data), 512):  # the system takes 1,024 pieces a call
            os.writev(fd, data[at : at + 512])
    finally:
        os.close(fd)


# -- requests ----------------------------------------------------------------------------------------------------------


class _LeanRequests(OpenArray):
    """Two rounds, or one where indices are known. A shard that is wanted whole is one request."""

    def __init__(self, layout: Layout, codecs: bool) -> None:
        self._layout = layout
        self._codecs = codecs
        self._indices: dict[Coords, Index] = {}
        self._counts = Counts({"requests": 0})
        self._loop = asyncio.Runner()
        self._pool = ThreadPoolExecutor(THREADS)
        self._slots = asyncio.Semaphore(CONCURRENCY)
        list(self._pool.map(lambda _: None, range(THREADS)))

    @abstractmethod
    async def fetch(self, shard: Coords, start: int, end: int | None) -> bytes:
        """Bytes of a shard; a negative ``start`` counts from its end."""

    async def _request(self, shard: Coords, start: int, end: int | None) -> bytes:
        async with self._slots:
            data = await self.fetch(shard, start, end)
        self._counts.requests["requests"] += 1
        self._counts.bytes_read += len(data)
        return data

    def counts(self) -> Counts | None:
        return Counts(dict(self._counts.requests), self._counts.bytes_read, self._counts.bytes_written)

    def read(self, selection: Selection) -> Values:
        return self._loop.run(self.read_async(selection))

    async def read_async(self, selection: Selection) -> Values:
        box = self._layout.box(selection)
        out = np.empty([part.stop - part.start for part in box], self._layout.dtype)
        await asyncio.gather(*(self._read_shard(shard, pieces, out) for shard, pieces in self._layout.pieces(box)))
        return out

    async def _read_shard(self, shard: Coords, pieces: list[Piece], out: Values) -> None:
        index = self._indices.get(shard)
        if index is None and len(pieces) == len(self._layout.empty_index()):
            data = await self._request(shard, 0, None)
            index = self._indices[shard] = self._layout.decode_index(data)
            await self._decode(runs_of(index, pieces, len(data), len(data)), [data], out)
            return
        if index is None:
            index = self._indices[shard] = self._layout.decode_index(await self._request(shard, -self._layout.index_nbytes, None))
        runs = runs_of(index, pieces, REMOTE_GAP_NBYTES, _REMOTE_RUN_NBYTES)
        await asyncio.gather(*(self._read_run(shard, run, out) for run in runs))

    async def read_chunks(self, wanted: Sequence[tuple[str, Selection]]) -> list[Values]:
        """Merged, in one round where indices are known; ``place`` is all that the codecs of raw chunks do."""
        pieces_of, outs = _by_shard(self._layout, [selection for _, selection in wanted])

        async def one_shard(shard: Coords, numbered: list[tuple[int, Piece]]) -> None:
            if shard not in self._indices:
                self._indices[shard] = self._layout.decode_index(await self._request(shard, -self._layout.index_nbytes, None))
            numbers = {id(piece): i for i, piece in numbered}
            runs = runs_of(self._indices[shard], [piece for _, piece in numbered], REMOTE_GAP_NBYTES, _REMOTE_RUN_NBYTES)
            for run, data in zip(runs, await asyncio.gather(*(self._request(shard, run.start, run.end) for run in runs)), strict=True):
                _place_chunks(self._layout, run, data, numbers, outs)

        await asyncio.gather(*(one_shard(shard, numbered) for shard, numbered in pieces_of.items()))
        return outs

    async def _read_run(self, shard: Coords, run: Run, out: Values) -> None:
        await self._decode([run], [await self._request(shard, run.start, run.end)], out)

    async def _decode(self, runs: Sequence[Run], data: Sequence[bytes], out: Values) -> None:
        if self._codecs:
            halves = [half for run in runs for half in _halves(run)]
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(loop.run_in_executor(self._pool, _decode_run, self._layout, half, data[0], out) for half in halves))

    def write(self, selection: Selection, values: Values) -> None:
        raise NotImplementedError("requests alone are read")


def _halves(run: Run) -> list[Run]:
    middle = len(run.pieces) // 2
    return [Run(run.start, run.end, part) for part in (run.pieces[:middle], run.pieces[middle:]) if part]


class _OverLatency(_LeanRequests):
    def __init__(self, root: Path, seconds: float, codecs: bool) -> None:
        super().__init__(layout_of(root), codecs)
        self._root = root
        self._seconds = seconds

    async def fetch(self, shard: Coords, start: int, end: int | None) -> bytes:
        await asyncio.sleep(self._seconds)
        fd = os.open(shard_path(self._root, shard), _FLAGS)
        try:
            size = os.fstat(fd).st_size
            first = start if start >= 0 else size + start
            return os.pread(fd, (size if end is None else end) - first, first)
        finally:
            os.close(fd)


_SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20250101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"}
"""The server on this machine asks for a signature, and does not look at it."""


class _OverHttp(_LeanRequests):
    """Plain GETs."""

    def __init__(self, url: str, codecs: bool) -> None:
        with urlopen(Request(f"{url}/zarr.json", headers=_SIGNED), timeout=60) as answer:
            super().__init__(Layout.of(json.load(answer)), codecs)
        self._url = url
        self._session: Any = None

    async def fetch(self, shard: Coords, start: int, end: int | None) -> bytes:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession()
        wanted = f"bytes={start}" if start < 0 else f"bytes={start}-{'' if end is None else end - 1}"
        async with self._session.get("/".join([self._url, "c", *map(str, shard)]), headers={**_SIGNED, "Range": wanted}) as answer:
            answer.raise_for_status()
            body: bytes = await answer.read()
            return body


# -- calls alone -------------------------------------------------------------------------------------------------------


class _CodecsAlone(OpenArray):
    """Decodes and encodes in memory, chunk by chunk into one buffer, in the thread that asks; of raw chunks, copies."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._layout = layout_of(root)
        self._shards: dict[Coords, tuple[memoryview, list[list[int]]]] = {}
        self._ready: deque[tuple[list[tuple[memoryview, Piece]], list[int]]] = deque()
        self._chunks: list[Values] = []
        self._own = threading.local()

    def prepare_read(self, selections: Sequence[Selection]) -> None:
        """Have the encoded chunks of the selections that are read next at hand."""
        self._ready.clear()
        for selection in selections:
            box = self._layout.box(selection)
            calls: list[tuple[memoryview, Piece]] = []
            for coords, pieces in self._layout.pieces(box):
                data, index = self._shard(coords)
                calls += [(data[index[piece.slot][0] : sum(index[piece.slot])], piece) for piece in pieces]
            self._ready.append((calls, [part.stop - part.start for part in box]))

    def _shard(self, coords: Coords) -> tuple[memoryview, list[list[int]]]:
        if coords not in self._shards:
            data = shard_path(self._root, coords).read_bytes()
            self._shards[coords] = memoryview(data), self._layout.decode_index(data).tolist()
        return self._shards[coords]

    def read(self, selection: Selection) -> Values:
        calls, shape = self._ready.popleft()
        codec = self._layout.codec
        if codec is None:
            out = np.empty(shape, self._layout.dtype)
            for data, piece in calls:
                out[piece.out] = np.frombuffer(data, self._layout.dtype).reshape(self._layout.chunk_shape)[piece.within]
            return out
        if not hasattr(self._own, "scratch"):
            self._own.scratch = self._layout.scratch()
        scratch: Values = self._own.scratch
        for data, _ in calls:
            codec.decode(data, scratch)
        return scratch

    def prepare_write(self, selection: Selection, values: Values) -> None:
        """Have the chunks at hand, each by itself."""
        pieces = [piece for _, found in self._layout.pieces(self._layout.box(selection)) for piece in found]
        self._chunks = [np.ascontiguousarray(values[piece.out]) for piece in pieces]

    def write(self, selection: Selection, values: Values) -> None:
        for chunk in self._chunks:
            self._layout.encode(chunk)


class _GetsAlone(OpenArray):
    """A GET for each selection, which is a chunk, by obstore in the thread that asks; nothing is decoded."""

    def __init__(self, address: Address) -> None:
        import obstore

        store: Any = native_store(address.place, obstore=True)
        self._get, self._client, self._prefix = obstore.get_range, store.store, f"{address.name}/"
        self._layout = Layout.of(json.loads(bytes(obstore.get(self._client, f"{self._prefix}zarr.json").bytes())))
        self._indices: dict[Coords, list[list[int]]] = {}

    def read(self, selection: Selection) -> Values:
        [(coords, [piece])] = self._layout.pieces(self._layout.box(selection))
        path = "/".join([f"{self._prefix}c", *map(str, coords)])
        if coords not in self._indices:
            import obstore

            self._indices[coords] = self._layout.decode_index(bytes(obstore.get(self._client, path).bytes())).tolist()
        offset, nbytes = self._indices[coords][piece.slot]
        body = self._get(self._client, path, start=offset, length=nbytes)
        return np.frombuffer(bytes(body), "u1")

    def write(self, selection: Selection, values: Values) -> None:
        raise NotImplementedError("requests alone are read")


# -- as contenders -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leanest(Contender):
    """A physical limit."""

    name: str
    codecs: bool
    over: tuple[StorageName, ...]

    def open(self, address: Address) -> OpenArray:
        place = address.place
        if place.endpoint is not None:
            return _OverHttp(f"{place.endpoint}/{place.path}/{address.name}", self.codecs)
        root = Path(place.path, address.name)
        if place.latency_seconds:
            return _OverLatency(root, place.latency_seconds, self.codecs)
        return _LeanFiles(root, self.codecs)

    def unavailable(self, storage: StorageName) -> str | None:
        return None if storage in self.over else "it is a limit of other storages"


@dataclass(frozen=True, slots=True)
class CodecsAlone(Contender):
    """Whose reads are not values."""

    name: str = "codecs alone"
    codecs: bool = False

    def open(self, address: Address) -> OpenArray:
        return _CodecsAlone(Path(address.place.path, address.name))


@dataclass(frozen=True, slots=True)
class GetsAlone(Contender):
    """Whose reads are not values."""

    name: str = "a GET each"
    codecs: bool = False

    def open(self, address: Address) -> OpenArray:
        return _GetsAlone(address)

    def unavailable(self, storage: StorageName) -> str | None:
        return None if importlib.util.find_spec("obstore") else "obstore is not installed"


CODECS_ALONE = CodecsAlone()
GETS_ALONE = GetsAlone()
LIMITS: tuple[Contender, ...] = (
    Leanest("bytes alone", codecs=False, over=("local",)),
    Leanest("bytes and codecs", codecs=True, over=("local",)),
    Leanest("requests alone", codecs=False, over=("latency", "s3")),
    Leanest("requests and codecs", codecs=True, over=("latency", "s3")),
)
