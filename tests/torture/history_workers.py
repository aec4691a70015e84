"""What the clients of one randomised history do: importable by a forked child.

A history is drawn from a seed: how the array is stored, who works on it, by which face, strategy, kind of lock and user, and what goes
wrong. Chunks are written in *pairs*, both of one shard and in one batch, so a reader that gets both by one call gets both of one version.
Which versions of a pair are erasures is drawn too. Each pair has one writer, which alone counts its versions. A file in shared memory, the
*board*, holds what all can know of each pair, and survives the clients that are killed::

    | stop | begun: a version for each pair | acknowledged: likewise | seen, by each client: likewise | operations, by each client |
"""

from __future__ import annotations

import os
import random
import tempfile
import traceback
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import zarr

import shardstore
from shardstore.errors import Conflict, ShardStoreError
from shardstore.format.shard_index import IndexLocation
from shardstore.opening.open import open_storage
from shardstore.storage.base import Storage
from shardstore.storage.local import storage as local
from shardstore.storage.local.mounts import Mount
from shardstore.storage.local.rules import Locks
from shardstore.testing.faults import Change, DropReply, Fail, Fault, FaultStorage, Refuse, TimeOut, Truncate
from tests.torture.payloads import Payload, WrongValue, parse
from tests.torture.small_parts import limit_parts

WORDS = 16
PATH = "a"

Role = Literal["write", "read", "compact"]
LockMode = Literal["auto", "cluster", "network"]
Version = int | None
"""Of a pair; ``None``: it is missing, so never written, or erased by one of several versions."""


@dataclass(frozen=True, slots=True)
class Client:
    """One process of a history; a life of it ends when it is killed, and the next begins."""

    number: int
    role: Role
    strategy: str
    locks: LockMode
    fsync: bool
    has_faults: bool
    user: int | None
    """The number of a user and a group to become; ``None``: to stay who this is."""


@dataclass(frozen=True, slots=True)
class History:
    """What all clients of a history know."""

    seed: int
    url: str
    storage_options: dict[str, Any]
    small_parts: bool
    shards: int
    chunks_per_shard: int
    """An even number."""
    compressors: str | None
    index_location: IndexLocation
    writers: int
    clients: tuple[Client, ...]
    directory: str
    """Of the board, and of what clients that fail have to say."""

    @property
    def pairs(self) -> int:
        return self.shards * self.chunks_per_shard // 2

    @property
    def cells(self) -> int:
        return 1 + self.pairs * (2 + len(self.clients)) + len(self.clients)

    @property
    def board_path(self) -> str:
        return os.path.join(self.directory, "board")

    def is_erased(self, pair: int, version: int) -> bool:
        """Whether the pair is missing in this version: it is before the first. Pair 0 is never erased: so its directory stays."""
        return version == 0 or (pair > 0 and zlib.crc32(b"%d %d %d" % (self.seed, pair, version)) % 4 == 0)

    def words(self, pair: int, version: int) -> npt.NDArray[np.uint32]:
        """Both chunks of a pair, behind each other; zeros where it is erased."""
        if self.is_erased(pair, version):
            return np.zeros(2 * WORDS, np.uint32)
        writer = pair % self.writers
        return np.concatenate([Payload(0, 0, chunk, writer, version).words(WORDS) for chunk in (2 * pair, 2 * pair + 1)])

    def version_of(self, pair: int, words: npt.NDArray[np.uint32]) -> Version:
        """The version that both chunks of a pair show.

        Raises:
            WrongValue: they are not those of one version of this pair.
        """
        first = parse(words[:WORDS])
        version = None if first is None else first.version
        expected = np.zeros_like(words) if version is None else self.words(pair, version)
        if not np.array_equal(words, expected):
            raise WrongValue(f"pair {pair} is {first} and {parse(words[WORDS:])}")
        return version


class Board:
    """The versions of all pairs, as all clients of a history see them."""

    def __init__(self, history: History) -> None:
        self._history = history
        cells: npt.NDArray[np.int64] = np.memmap(history.board_path, np.int64, "r+", shape=(history.cells,))
        pairs, clients = history.pairs, len(history.clients)
        self.stop = cells[:1]
        self.begun = cells[1 : 1 + pairs]
        self.acknowledged = cells[1 + pairs : 1 + 2 * pairs]
        self.seen = cells[1 + 2 * pairs : 1 + (2 + clients) * pairs].reshape(clients, pairs)
        self.operations = cells[1 + (2 + clients) * pairs :]

    def least(self, pairs: Sequence[int]) -> list[int]:
        """The oldest version that a read which begins now may return of each: nothing older than was acknowledged, or seen by anybody."""
        return [max(int(self.acknowledged[pair]), int(self.seen[:, pair].max())) for pair in pairs]

    def check(self, client: int, pair: int, version: Version, least: int) -> None:
        """Note what a read that has just ended found.

        Raises:
            WrongValue: it is older than what was acknowledged or seen before the read began, or was not written yet.
        """
        most = int(self.begun[pair])
        if version is None:
            if not any(self._history.is_erased(pair, possible) for possible in range(least, most + 1)):
                raise WrongValue(f"pair {pair} is missing; versions {least} to {most} are possible, and none of them is an erasure")
        elif not least <= version <= most:
            raise WrongValue(f"pair {pair} is of version {version}; versions {least} to {most} are possible")
        else:
            self.seen[client, pair] = max(int(self.seen[client, pair]), version)


# -- one client --------------------------------------------------------------------------------------------------------


def live(history: History, number: int, life: int) -> None:
    """One life of a client: it works until the board says that the history ends, or it is killed.

    What it fails with is left in a file of the history's directory, and as the exit code 1.
    """
    try:
        os.umask(0o022)
        _Life(history, history.clients[number], life).run()
    except BaseException:
        Path(history.directory, f"failed-{number}-{life}").write_text(traceback.format_exc())
        raise


class _Life:
    def __init__(self, history: History, client: Client, life: int) -> None:
        self.history = history
        self.client = client
        self.rng = random.Random(f"{history.seed} {client.number} {life}")
        self.board = Board(history)
        limit_parts(small=history.small_parts)
        if client.locks == "network":
            _be_on_a_network()
        if client.user is not None:
            self._become(client.user)
        self._open(history)

    def _become(self, user: int) -> None:
        """Be another user, who may be allowed to read none of Python's files: so what is imported late is imported before."""
        with tempfile.TemporaryDirectory() as scratch:
            nowhere = replace(self.history, url=f"{scratch}/root", clients=())
            create(nowhere)
            self._open(nowhere)
            self.mapper.setitems(self._values([0], [1]))
            self.mapper.delitems(self._values([0], [1]))
            self.array[: 2 * WORDS] = np.ones(2 * WORDS, "<u4")
            assert self.array[0] == 1
            with self.mapper.transaction():
                self.array[: 2 * WORDS] = 2
            assert list(self.mapper)
            shardstore.compact(self.storage, dead_ratio=0.0, workers=1)
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)

    def _open(self, history: History) -> None:
        locks: Locks = "auto" if self.client.locks == "auto" else "cluster"
        storage = open_storage(history.url, history.storage_options or None, fsync=self.client.fsync, locks=locks)
        self.faults = FaultStorage(storage) if self.client.has_faults else None
        self.storage: Storage = self.faults or storage
        options: dict[str, Any] = {"require_atomic": True, "strategy": self.client.strategy, "index_location": history.index_location}
        self.mapper = shardstore.get_mapper(self.storage, **options)
        self.array = zarr.open_array(shardstore.open(self.storage, **options), path=PATH, mode="r+")

    def run(self) -> None:
        work = {"write": self._write, "read": self._read, "compact": self._compact}[self.client.role]
        while not self.board.stop[0]:
            if self.faults is not None:
                self.faults.plan(*(self._fault() for _ in range(self.rng.randrange(3))))
            work()
            self.board.operations[self.client.number] += 1

    def _fault(self) -> Fault:
        effects = (Fail(), TimeOut(0.001), DropReply(), Truncate(self.rng.randrange(300)), Change(), Refuse())
        return Fault(self.rng.randrange(1, 12), self.rng.choice(effects))

    def _tolerate(self, error: Exception) -> None:
        """Go on after what was planned to go wrong. Raises what was not."""
        is_planned = self.faults is not None and isinstance(error, ShardStoreError) and bool(self.faults.struck)
        if not is_planned and not isinstance(error, Conflict):
            raise error

    # -- writing -------------------------------------------------------------------------------------------------------

    def _values(self, pairs: Sequence[int], versions: Sequence[int]) -> dict[str, bytes]:
        values: dict[str, bytes] = {}
        for pair, version in zip(pairs, versions, strict=True):
            both = self.history.words(pair, version)
            values[f"{PATH}/c/{2 * pair}"], values[f"{PATH}/c/{2 * pair + 1}"] = both[:WORDS].tobytes(), both[WORDS:].tobytes()
        return values

    def _write(self) -> None:
        history, rng = self.history, self.rng
        mine = range(self.client.number % history.writers, history.pairs, history.writers)
        in_shard = history.chunks_per_shard // 2
        shard = rng.randrange(history.shards)
        of_shard = [pair for pair in mine if pair // in_shard == shard]
        pairs = rng.choice([[rng.choice(mine)], of_shard, rng.sample(mine, min(len(mine), 3)), list(mine)])
        if not pairs:
            return
        for pair in pairs:
            self.board.begun[pair] += 1
        versions = [int(self.board.begun[pair]) for pair in pairs]
        try:
            if rng.random() < 0.3:
                with self.mapper.transaction():
                    self._store(pairs, versions)
            else:
                self._store(pairs, versions)
        except ShardStoreError as exc:
            self._tolerate(exc)
            return
        for pair, version in zip(pairs, versions, strict=True):
            self.board.acknowledged[pair] = version

    def _store(self, pairs: Sequence[int], versions: Sequence[int]) -> None:
        if self.history.compressors is not None or self.rng.random() < 0.3:
            for pair, version in zip(pairs, versions, strict=True):
                self.array[2 * pair * WORDS : 2 * (pair + 1) * WORDS] = self.history.words(pair, version)
            return
        kept = [(p, v) for p, v in zip(pairs, versions, strict=True) if not self.history.is_erased(p, v)]
        if kept:
            self.mapper.setitems(self._values([p for p, _ in kept], [v for _, v in kept]))
        if erased := [(p, v) for p, v in zip(pairs, versions, strict=True) if self.history.is_erased(p, v)]:
            self.mapper.delitems(self._values([p for p, _ in erased], [v for _, v in erased]))

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        pairs = self.history.pairs
        kind = self.rng.random()
        try:
            if kind < 0.1:
                self._look_at_list()
            elif kind < 0.5 or self.history.compressors is not None:
                first = self.rng.randrange(pairs)
                self._read_array(range(first, min(pairs, first + self.rng.choice([1, 2, pairs]))))
            else:
                self._read_keys(self.rng.sample(range(pairs), self.rng.choice([1, 1, min(3, pairs), pairs])))
        except ShardStoreError as exc:
            self._tolerate(exc)

    def _found(self, pairs: Sequence[int], least: Sequence[int], words: npt.NDArray[np.uint32]) -> None:
        for pair, oldest, both in zip(pairs, least, words.reshape(-1, 2 * WORDS), strict=True):
            self.board.check(self.client.number, pair, self.history.version_of(pair, both), oldest)

    def _read_array(self, pairs: range) -> None:
        least = self.board.least(pairs)
        words = np.asarray(self.array[2 * pairs.start * WORDS : 2 * pairs.stop * WORDS])
        self._found(pairs, least, words)

    def _read_keys(self, pairs: Sequence[int]) -> None:
        least = self.board.least(pairs)
        keys = [f"{PATH}/c/{chunk}" for pair in pairs for chunk in (2 * pair, 2 * pair + 1)]
        found = self.mapper.getitems(keys, on_error="omit")
        nothing = bytes(4 * WORDS)
        values = [found.get(key, nothing) for key in keys]
        if any(value == nothing for value in found.values()):
            raise WrongValue("a chunk of zeros is stored; nobody wrote one")
        self._found(pairs, least, np.frombuffer(b"".join(value for value in values if isinstance(value, bytes)), "<u4"))

    def _look_at_list(self) -> None:
        """A listing names exactly the pairs that are there: each of its own moment."""
        pairs = range(self.history.pairs)
        least = self.board.least(pairs)
        listed = {key for key in self.mapper if not key.endswith("zarr.json")}
        for pair, oldest in zip(pairs, least, strict=True):
            both = [f"{PATH}/c/{chunk}" in listed for chunk in (2 * pair, 2 * pair + 1)]
            if both[0] != both[1]:
                raise WrongValue(f"half of pair {pair} is listed")
            most = int(self.board.begun[pair])
            if not any(self.history.is_erased(pair, version) != both[0] for version in range(oldest, most + 1)):
                is_listed = "listed" if both[0] else "not listed"
                raise WrongValue(f"pair {pair} is {is_listed}; versions {oldest} to {most} are possible, and none of them explains that")

    # -- upkeep --------------------------------------------------------------------------------------------------------

    def _compact(self) -> None:
        try:
            report = shardstore.compact(self.storage, dead_ratio=self.rng.choice([0.0, 0.3]), workers=1)
        except ShardStoreError as exc:
            self._tolerate(exc)
            return
        for failure in report.failed.first:
            self._tolerate(failure.error)
        if self.faults is None:
            assert not report.damaged.count, report.damaged


def _be_on_a_network() -> None:
    """In this process, every root lies on a network mount."""
    local.__dict__["mount_of"] = lambda path: Mount("/", "nfs4")


def create(history: History) -> None:
    """The array of a history, with the pair 0 in its first version."""
    store = shardstore.open(
        history.url,
        storage_options=history.storage_options or None,
        chunks_per_shard=(history.chunks_per_shard,),
        index_location=history.index_location,
    )
    compressors: Any = None if history.compressors is None else [zarr.codecs.ZstdCodec()]
    elements = 2 * history.pairs * WORDS
    array = zarr.create_array(store, name=PATH, shape=(elements,), chunks=(WORDS,), dtype="<u4", compressors=compressors, fill_value=0)
    array[: 2 * WORDS] = history.words(0, 1)
