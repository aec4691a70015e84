"""Processes that append rows to one dataset, each by what its library has for that, while plain zarr-python reads it.

The dataset has two arrays along ``time``: the coordinate, which holds the number of each row, and ``a``, which repeats it. So each row says
whether it is there, once and whole.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr
import zarr
from contenders import Address, Icechunk, Place, ShardStore, StorageName, TensorStore, Values, native_store
from crew import Job
from experiments import Arena, Experiment, Failures, Figures
from zarr.abc.store import Store

_WIDTH = 6
_ROWS_AT_START = 3
_ENCODING = {"time": {"chunks": (8,), "shards": (64,)}, "a": {"chunks": (4, 3), "shards": (8, 6)}}


def rows(first: int, count: int) -> xr.Dataset:
    """Rows that are numbered from ``first`` on."""
    numbers = np.arange(first, first + count)
    return xr.Dataset({"a": (("time", "x"), np.repeat(numbers[:, None], _WIDTH, 1))}, coords={"time": numbers})


def _place(address: Address) -> Place:
    """Return the place of the dataset alone: xarray keeps consolidated metadata at the root of a store."""
    return replace(address.place, path=f"{address.place.path}/{address.name}")


def _store(address: Address) -> Store:
    return native_store(_place(address))


class Appender(ABC):
    """A library, and what a program would do that appends to a dataset by it. Pickled into its processes."""

    name: str

    def create(self, address: Address) -> None:
        """Create the dataset, with its first rows."""
        rows(1, _ROWS_AT_START).to_zarr(_store(address), encoding=_ENCODING, consolidated=True)

    @abstractmethod
    def append(self, address: Address, data: xr.Dataset) -> None:
        """Append rows; on return they are acknowledged."""

    def open(self, address: Address, *, consolidated: bool = True) -> zarr.Group:
        """Return the dataset as a program opens it that reads it by zarr-python: by consolidated metadata, if there is some."""
        return zarr.open_group(_store(address), mode="r", use_consolidated=None if consolidated else False)

    def unavailable(self, storage: StorageName) -> str | None:
        """Why it cannot take part on this storage here; ``None`` where it can."""
        return None


@dataclass(frozen=True, slots=True)
class ByXarray(Appender):
    """``to_zarr(append_dim=)``, plain."""

    name: str = "xarray"

    def append(self, address: Address, data: xr.Dataset) -> None:
        data.to_zarr(_store(address), append_dim="time", consolidated=True)


@dataclass(frozen=True, slots=True)
class ByZarr(Appender):
    """``array.append`` for each array, and consolidated metadata behind it."""

    name: str = "zarr-python"

    def append(self, address: Address, data: xr.Dataset) -> None:
        store = _store(address)
        for name, variable in data.variables.items():
            zarr.open_array(store, path=str(name), mode="r+").append(variable.values)
        zarr.consolidate_metadata(store)


@dataclass(frozen=True, slots=True)
class ByTensorStore(Appender):
    """Each array is made longer and written; consolidated metadata, which it does not know, is then made by zarr-python."""

    name: str = "tensorstore"

    def append(self, address: Address, data: xr.Dataset) -> None:
        import tensorstore

        for name, variable in data.variables.items():
            below = TensorStore().below(address.place, f"{address.name}/{name}")
            array = tensorstore.open({"driver": "zarr3", **below}).result()
            start, stop = array.shape[0], array.shape[0] + variable.shape[0]
            array = array.resize(exclusive_max=[stop, *[None] * (array.rank - 1)], expand_only=True).result()
            array[start:stop].write(variable.values).result()
        zarr.consolidate_metadata(_store(address))

    def unavailable(self, storage: StorageName) -> str | None:
        return TensorStore().unavailable(storage)


@dataclass(frozen=True, slots=True)
class ByIcechunk(Appender):
    """An append and a commit, which is rebased where that is possible, and repeated from the beginning where it is not."""

    name: str = "icechunk"

    def create(self, address: Address) -> None:
        import icechunk

        repository = icechunk.Repository.create(Icechunk().storage(address.place, address.name))
        session = repository.writable_session("main")
        rows(1, _ROWS_AT_START).to_zarr(session.store, encoding=_ENCODING, consolidated=False)
        session.commit("the first rows")

    def append(self, address: Address, data: xr.Dataset) -> None:
        import icechunk

        repository = _repository(address)
        while True:
            session = repository.writable_session("main")
            data.to_zarr(session.store, append_dim="time", consolidated=False)
            try:
                session.commit("more rows", rebase_with=icechunk.ConflictDetector(), rebase_tries=10)
            except (icechunk.ConflictError, icechunk.RebaseFailedError):
                continue
            return

    def open(self, address: Address, *, consolidated: bool = True) -> zarr.Group:
        """Return the last snapshot, which has no consolidated metadata: only Icechunk reads it."""
        repository = _repository(address)
        return zarr.open_group(repository.readonly_session("main").store, mode="r")

    def unavailable(self, storage: StorageName) -> str | None:
        return Icechunk().unavailable(storage)


def _repository(address: Address) -> Any:
    import icechunk

    icechunk.set_logs_filter("error")  # on a local disk it warns of concurrent commits at each
    return icechunk.Repository.open(Icechunk().storage(address.place, address.name))


@dataclass(frozen=True, slots=True)
class ByShardStore(Appender):
    """``shardstore.append``."""

    name: str = "shardstore"

    def append(self, address: Address, data: xr.Dataset) -> None:
        import shardstore

        shardstore.append(ShardStore().store(_place(address)), data, "time")


APPENDERS: tuple[Appender, ...] = (ByXarray(), ByZarr(), ByTensorStore(), ByIcechunk(), ByShardStore())


# -- the experiment ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Share:
    """What became of the appends of one process: ``(first, count)`` of each that was acknowledged."""

    acknowledged: list[tuple[int, int]]
    failures: Failures


@dataclass(frozen=True, slots=True)
class _AppendShare(Job[_Share]):
    appender: Appender
    address: Address
    writer: int
    appends: int

    def prepare(self) -> Callable[[], _Share]:
        warnings.simplefilter("ignore")  # consolidated metadata is no part of Zarr v3
        rng = np.random.default_rng(self.writer)

        def run() -> _Share:
            share = _Share([], Failures())
            for number in range(self.appends):
                first, count = self.writer * 1_000_000 + number * 10, int(rng.integers(1, 8))
                try:
                    self.appender.append(self.address, rows(first, count))
                    share.acknowledged.append((first, count))
                except Exception as exc:  # noqa: BLE001 - whatever a library raises is counted
                    share.failures.note(exc)
            return share

        return run


def _values(group: zarr.Group) -> tuple[Values, Values]:
    return np.asarray(group["time"][...]), np.asarray(group["a"][...])  # type: ignore[index]


@dataclass(slots=True)
class Views:
    """What a reader saw who opened the dataset again and again."""

    count: int = 0
    fill: int = 0
    """With the fill value, 0, in place of a number."""
    lengths: int = 0
    """Whose arrays had different lengths."""
    different: int = 0
    """With rows in which the arrays do not say the same, none of them the fill value."""
    failures: Failures = field(default_factory=Failures)

    def look(self, appender: Appender, address: Address) -> None:
        self.count += 1
        try:
            time, a = _values(appender.open(address))
        except Exception as exc:  # noqa: BLE001 - whatever zarr-python raises is counted
            self.failures.note(exc)
            return
        self.judge(time, a)

    def judge(self, time: Values, a: Values) -> None:
        """Count one view."""
        both = min(len(time), len(a))
        self.lengths += len(time) != len(a)
        self.fill += bool((time == 0).any() or (a == 0).any())
        differ = (a[:both] != time[:both, None]) & (a[:both] != 0) & (time[:both, None] != 0)
        self.different += bool(differ.any())


def fate(time: Values, a: Values, numbers: Values) -> tuple[int, int]:
    """Return how many of the rows with these numbers an array misses, and how many of the rest are not once, at one place, in both."""
    whole = np.where((a == a[:, :1]).all(axis=1), a[:, 0], 0)
    there = np.intersect1d(numbers, np.intersect1d(time, whole))
    both = min(len(time), len(a))
    found, times = np.unique(time[:both][whole[:both] == time[:both]], return_counts=True)
    return len(numbers) - len(there), len(np.setdiff1d(there, found[times == 1]))


@dataclass(frozen=True, slots=True)
class Appends(Experiment):
    """Processes append 1 to 7 rows at a time to one dataset, while one reader opens and reads it.

    Lost is a row whose append was acknowledged and that is not in both arrays; displaced, one that is not in one place of both, once. The
    contender of the arena is an ``Appender``.
    """

    writers: int
    appends: int

    def measure(self, arena: Arena) -> Figures:
        appender: Appender = arena.contender
        address = Address(arena.place, arena.name)
        jobs = [_AppendShare(appender, address, 1 + i, self.appends) for i in range(self.writers)]
        views = Views()
        with warnings.catch_warnings(), ThreadPoolExecutor(1) as pool:
            warnings.simplefilter("ignore")
            appender.create(address)
            shares = pool.submit(arena.crew.run, jobs)
            while not shares.done():
                views.look(appender, address)
            return self._figures(appender, address, shares.result(), views)

    def _figures(self, appender: Appender, address: Address, shares: list[_Share], views: Views) -> Figures:
        failures = Failures()
        for share in shares:
            failures.add(share.failures)
        appends = [one for share in shares for one in share.acknowledged]
        numbers = np.array([first + i for first, count in appends for i in range(count)], "i8")
        try:
            lost, displaced = fate(*_values(appender.open(address, consolidated=False)), numbers)
        except Exception as exc:  # noqa: BLE001 - whatever zarr-python raises for what is left
            failures.note(exc)
            lost, displaced = len(numbers), 0
        return {
            "appends": len(appends),
            "rows": len(numbers),
            "lost": lost,
            "displaced": displaced,
            "append_errors": sum(share.failures.count for share in shares),
            "views": views.count,
            "fill": views.fill,
            "lengths": views.lengths,
            "different": views.different,
            "read_errors": views.failures.count,
            "errors": {**views.failures.examples, **failures.examples},
        }
