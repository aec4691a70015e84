"""Randomised histories: writers, readers and a compaction that are killed and stopped at random, with faults, by two users.

Nothing that was acknowledged is lost, no read is older than what was acknowledged or seen before it began, and no pair of chunks that was
written by one commit is read half. A history is drawn from a seed; what the kernel makes of it is not, so a seed does not repeat a failure.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.format.shard_index import IndexLocation
from shardstore.opening.open import open_storage
from tests.harness.scale import FULL, sized
from tests.shards import presented
from tests.stored import StorageObjects
from tests.torture.conftest import Record
from tests.torture.history_workers import PATH, WORDS, Board, Client, History, Role, create, live
from tests.torture.places import Place

SECONDS = float(os.environ.get("SHARDSTORE_HISTORIES_SECONDS", sized(3600, 0)))
"""All histories together, of ``make torture``. In other runs each place has one short history."""

ONE_SECONDS = sized(8, 1)
USERS = (61_001, 61_002)  # numbers that nobody has

# Of all the time; the rest of local disks' goes to their own kinds.
SHARES = {"ext4": 0.3, "tmpfs": 0.2, "ext4-128": 0.2, "moto": 0.1, "moto-append": 0.05, "gcs": 0.15}


@dataclass
class Totals:
    """What the histories of one place did."""

    histories: int = 0
    operations: Counter[Role] = field(default_factory=Counter)
    killed: int = 0
    stopped: int = 0
    left: int = 0
    """Versions whose writer was killed or got an error: any of them may have been stored."""

    def __str__(self) -> str:
        return (
            f"{self.histories} histories, {self.operations['write']:,} writes, {self.operations['read']:,} reads and "
            f"{self.operations['compact']:,} compactions, {self.killed:,} kills, {self.stopped:,} stops, "
            f"{self.left:,} writes not acknowledged; 0 lost, 0 older than acknowledged or seen, 0 torn"
        )


# -- drawing one -------------------------------------------------------------------------------------------------------


def drawn(seed: int, url: str, place: Place | None, directory: str) -> History:
    """A history on local files below ``url``, or at a place on a server."""
    rng = random.Random(seed)
    is_local = place is None
    locations: list[IndexLocation] = ["end", "end", "start"]
    location = rng.choice(locations)
    strategies = ["rewrite"] if location == "start" or (place is not None and not place.small_parts) else ["rewrite", "append"]
    locks: list[Any] = rng.choice([["auto"], ["auto", "cluster"], ["network"]]) if is_local else ["auto"]
    users = [None, *USERS] if is_local and os.geteuid() == 0 and rng.random() < 0.7 else [None]
    writers = rng.choice([2, 3])
    roles: list[Role] = ["write" for _ in range(writers)]
    others: list[Role] = ["read", "read", "compact"]
    roles += others[: rng.choice([2, 3])]
    clients = tuple(
        Client(
            number,
            role,
            strategy=rng.choice(strategies),
            locks=rng.choice(locks),
            fsync=rng.random() < 0.2,
            has_faults=rng.random() < 0.4,
            user=rng.choice(users),
        )
        for number, role in enumerate(roles)
    )
    return History(
        seed=seed,
        url=url,
        storage_options={} if place is None else place.storage_options,
        small_parts=place is not None and place.small_parts,
        shards=rng.choice([1, 2, 4]),
        chunks_per_shard=rng.choice([8, 16, 32]),
        compressors=rng.choice([None, None, "zstd"]),
        index_location=location,
        writers=writers,
        clients=clients,
        directory=directory,
    )


# -- carrying it out ---------------------------------------------------------------------------------------------------


class _Run:
    """The processes of one history."""

    def __init__(self, history: History, board: Board, totals: Totals) -> None:
        self.history = history
        self.board = board
        self.totals = totals
        self.context = multiprocessing.get_context("forkserver")
        self.processes: dict[int, ForkServerProcess] = {}
        self.lives: Counter[int] = Counter()
        self.goes_on_at: dict[int, float] = {}
        """Of each client that is stopped, when it is to go on."""
        self.may_be_killed_at: Counter[int] = Counter()
        """How many operations each client has to have done: a new life costs more than most operations."""

    def begin(self, number: int) -> None:
        process = self.context.Process(target=live, args=(self.history, number, self.lives[number]), daemon=True)
        process.start()
        self.lives[number] += 1
        self.processes[number] = process

    def signal(self, number: int, what: int) -> None:
        process = self.processes[number]
        assert process.pid is not None
        os.kill(process.pid, what)

    def let_go_on(self, now: float) -> None:
        """Those that were to be stopped until now."""
        for number in [number for number, then in self.goes_on_at.items() if then <= now]:
            self.signal(number, signal.SIGCONT)
            del self.goes_on_at[number]

    def disturb(self, rng: random.Random) -> None:
        """Kill a client and begin its next life, stop one for a while, or do nothing."""
        now = time.monotonic()
        self.let_go_on(now)
        number = rng.choice(self.history.clients).number
        kind = rng.random()
        if kind < 0.3 and self.board.operations[number] >= self.may_be_killed_at[number]:
            self.signal(number, signal.SIGKILL)
            self.processes[number].join()
            self.goes_on_at.pop(number, None)
            self.may_be_killed_at[number] = int(self.board.operations[number]) + rng.choice([0, 1, 2, 5, 20, 50])
            self.begin(number)
            self.totals.killed += 1
        elif 0.3 <= kind < 0.36 and number not in self.goes_on_at:
            self.signal(number, signal.SIGSTOP)
            self.goes_on_at[number] = now + rng.random() ** 3 * 0.5
            self.totals.stopped += 1

    def check(self) -> None:
        """Fails where a client has ended with an error, with what it said."""
        said = [path.read_text() for path in sorted(Path(self.history.directory).glob("failed-*"))]
        assert not said, f"{self.history}:\n" + "\n".join(said)
        for number, process in self.processes.items():
            assert process.exitcode in (None, 0), f"client {number} of {self.history} ended with {process.exitcode}"

    def end(self) -> None:
        self.let_go_on(math.inf)
        for process in self.processes.values():
            process.join(120)
        try:
            stuck = [number for number, process in self.processes.items() if process.exitcode is None]
            assert not stuck, f"clients {stuck} of {self.history} do not end"
        finally:
            for process in self.processes.values():
                process.kill()
                process.join()
        self.check()


def carry_out(history: History, seconds: float, totals: Totals) -> None:
    """Let a history happen for some seconds, and look at what is left."""
    os.makedirs(history.directory, exist_ok=True)
    os.chmod(history.directory, 0o777)
    np.zeros(history.cells, np.int64).tofile(history.board_path)
    os.chmod(history.board_path, 0o666)
    create(history)
    if "://" not in history.url:
        for directory in (history.url, f"{history.url}/{PATH}", f"{history.url}/{PATH}/c"):
            os.chmod(directory, 0o777)  # any user may write there
    board = Board(history)
    board.begun[0] = board.acknowledged[0] = 1
    rng = random.Random(f"{history.seed} disturbed")
    run = _Run(history, board, totals)
    try:
        for client in history.clients:
            run.begin(client.number)
        until = time.monotonic() + seconds
        while time.monotonic() < until or not board.operations.all():
            time.sleep(rng.random() * 0.05)
            run.check()
            if time.monotonic() < until:
                run.disturb(rng)
            else:  # somebody has not had a turn: all are let go on
                assert time.monotonic() < until + 120, f"clients of {history} do nothing: {board.operations}"
                run.let_go_on(math.inf)
    finally:
        board.stop[0] = 1
        run.end()
    totals.histories += 1
    for client in history.clients:
        totals.operations[client.role] += int(board.operations[client.number])
    totals.left += int((board.begun - board.acknowledged).sum())
    judge(history, board)


def judge(history: History, board: Board) -> None:
    """What is stored, by readers that share nothing with the clients, is nothing older than what was acknowledged or seen."""
    pairs = range(history.pairs)
    least = board.least(pairs)
    shown = np.asarray(as_presented(history)[:])
    for pair, oldest, both in zip(pairs, least, shown.reshape(-1, 2 * WORDS), strict=True):
        board.check(0, pair, history.version_of(pair, both), oldest)
    storage = open_storage(history.url, history.storage_options or None)
    errors = [finding for finding in shardstore.verify(storage).findings if finding.severity == "error"]
    if any(client.strategy == "append" for client in history.clients):
        errors = [finding for finding in errors if finding.kind != "tail"]  # of one killed while it appended: the next writer cuts it
    assert not errors, errors
    if history.compressors is None:
        raw = presented(StorageObjects(storage))
        nothing = bytes(4 * WORDS)
        for chunk, words in enumerate(shown.reshape(-1, WORDS)):
            assert raw.get(f"{PATH}/c/{chunk}", nothing) == words.tobytes(), chunk
    # One more writer, whom nothing that was left by the dead keeps waiting.
    array = as_presented(history, read_only=False)
    array[:] = 7
    assert np.all(np.asarray(array[:]) == 7)
    report = shardstore.verify(storage)
    assert report.is_sound, report


def as_presented(history: History, *, read_only: bool = True) -> zarr.Array[Any]:
    store = shardstore.open(history.url, storage_options=history.storage_options or None, read_only=read_only)
    return zarr.open_array(store, path=PATH, mode="r" if read_only else "r+")


# -- places ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_inodes(directory: Path) -> Iterator[Path]:
    """ext4 whose inodes have room for whole seconds only. Skips the test where it cannot be mounted."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("ext4 with small inodes: only root can mount it, with mkfs.ext4")
    image, mounted = directory / "image", directory / "mounted"
    with image.open("wb") as file:
        file.truncate(256 << 20)
    mounted.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-I", "128", "-F", str(image)], check=True, capture_output=True)
    done = subprocess.run(["mount", "-o", "loop", str(image), str(mounted)], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"ext4 with small inodes: {done.stderr.strip()}")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


@contextlib.contextmanager
def open_directory(parent: str | None = None) -> Iterator[Path]:
    """A fresh directory whose parents any user may enter, as pytest's own are not."""
    directory = Path(tempfile.mkdtemp(prefix="histories-", dir=parent))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@pytest.fixture(params=["ext4", "tmpfs", "ext4-128"])
def disk(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """The name of a kind of local disk, and a directory there that any user may enter. The first is what temporary files lie on."""
    if request.param == "tmpfs" and not os.access("/dev/shm", os.W_OK):
        pytest.skip("tmpfs: there is none at /dev/shm")
    with open_directory("/dev/shm" if request.param == "tmpfs" else None) as directory:
        if request.param != "ext4-128":
            yield request.param, directory
            return
        with small_inodes(directory) as mounted:
            mounted.chmod(0o755)
            yield request.param, mounted


@pytest.fixture
def forkserver() -> None:
    """Clients are forked from a process that has imported what they need."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # a process with threads cannot be forked safely
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.torture.history_workers"])


def histories(share: float) -> Iterator[int]:
    """The seeds of as many histories as this share of the time has room for; one at least."""
    for _ in range(max(1, math.floor(SECONDS * share / ONE_SECONDS))):
        yield random.SystemRandom().randrange(10**9)


@pytest.mark.night
def test_on_disks(disk: tuple[str, Path], forkserver: None, record: Record) -> None:
    kind, directory = disk
    totals = Totals()
    for seed in histories(SHARES[kind]):
        with open_directory() as own:
            root = directory / f"root-{seed}"
            carry_out(drawn(seed, str(root), None, str(own)), ONE_SECONDS, totals)
            shutil.rmtree(root)
    assert totals.operations["write"] > 0
    assert totals.operations["read"] > 0
    record(f"{kind}: {totals}")


@pytest.mark.night
@pytest.mark.parametrize("place", [kind for kind in SHARES if kind.startswith("moto") or kind == "gcs"], indirect=True)
def test_on_servers(place: Place, forkserver: None, record: Record) -> None:
    if not FULL:
        pytest.skip("servers only at full size")
    totals = Totals()
    for seed in histories(SHARES[place.kind]):
        with open_directory() as own:
            carry_out(drawn(seed, f"{place.url}-{seed}", place, str(own)), ONE_SECONDS, totals)
    assert totals.operations["write"] > 0
    record(f"{place.kind}: {totals}")
