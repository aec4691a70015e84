"""The workers of a dask cluster as an executor of ``concurrent.futures``.

``distributed`` has one too, ``Client.get_executor``, with these faults. Where a worker is lost between the end of a task and the
fetching of its result, its future fails with a ``TypeError``, or never ends. Where the scheduler is lost for good, submitted tasks
never end. By default a failed task is not retried but answered with the same failure; tasks of long work do lose workers, and are made
to be safe to repeat. And it waits silently and without end for a cluster that has no workers, or whose workers keep dying.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from shardstore.errors import InvalidInput

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """The limits of a run's wait for the workers of a cluster, in seconds. A cluster that has never had a worker is waited for without
    end.
    """

    first_word: float = 5.0
    """The time without a worker after which that is reported; again after twice as long, and so on."""
    steady: float = 60.0
    """The time after which a worker counts as steady."""
    most: float = 600.0
    """The time after which a run that lost its workers is given up, if no task has ended and no worker been steady in that time."""
    deaths: int = 8
    """The number of tasks in a row that may be given up because of dead workers before the run is given up; for each task the scheduler
    lets some workers die first.
    """


PATIENCE = Patience()


class ExecutorLike(Protocol):
    """The executors that callers may give: one of ``concurrent.futures``, or a ``distributed.Client``."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any: ...


class ClusterExecutor(Executor):
    """An executor that lets the workers of ``client`` do the submitted tasks; ``options`` are those of its ``submit``.

    Raises:
        InvalidInput: the client is one for coroutines.
    """

    def __init__(self, client: Any, *, patience: Patience = PATIENCE, clock: Callable[[], float] = time.monotonic, **options: Any) -> None:
        if client.asynchronous:
            raise InvalidInput(f"{client!r} is asynchronous: work that waits for it needs a client without asynchronous=True")
        self._client = client
        self._options = options | {"pure": False}
        self._open: dict[Future[Any], Any] = {}
        self._given_up: BrokenExecutor | None = None
        self._watch = _Watch(patience, clock)

    def look_after(self) -> None:
        """Report what tasks wait for; called now and then while none of them has ended. Where no workers are to be expected any more, all
        submitted tasks fail with ``BrokenExecutor``.
        """
        try:
            workers = frozenset(self._client.nthreads())
        except (OSError, RuntimeError, ValueError):  # the scheduler does not answer, or is lost: which the client finds out
            return
        said = self._watch.look(workers)
        if said is not None:
            logger.warning("%d tasks wait for the dask cluster at %s, %s", len(self._open), self._where(), said)
        if self._watch.is_over:
            self._give_up("its workers were lost, and since then no other has stayed")

    def _where(self) -> str:
        scheduler = getattr(self._client, "scheduler", None)
        return str(getattr(scheduler, "address", self._client))

    def _give_up(self, why: str) -> None:
        self._given_up = BrokenExecutor(
            f"the dask cluster at {self._where()} is given up: {why}. Their logs have more; too little memory is the usual reason. What "
            "was done stays: the same call goes on from there"
        )
        open_ = dict(self._open)
        for here in open_:
            self._settle(here, None, self._given_up)
        self._client.loop.add_callback(self._client.cancel, list(open_.values()), asynchronous=True)

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Submit a task. Raises ``BrokenExecutor`` if the scheduler is lost, or its workers keep dying; so do
        futures that had not ended.
        """
        if self._is_lost():
            raise self._lost()
        try:
            there = self._client.submit(fn, *args, **self._options, **kwargs)
        except Exception as exc:
            if self._is_lost():  # since a moment ago
                raise self._lost() from exc
            raise

        def cancelled(future: Future[Result]) -> None:
            if future.cancelled() and not there.cancelled() and not self._is_lost():
                there.cancel()

        here: Future[Result] = _Cancellable(lambda: self._is_running(there))
        self._open[here] = there
        here.add_done_callback(cancelled)
        self._client.loop.add_callback(self._fetch, there, here)
        if self._is_lost():  # since a moment ago: then it may never be fetched
            self._settle(here, None, self._lost())
        return here

    async def _fetch(self, there: Any, here: Future[Result]) -> None:
        """Give ``here`` the outcome, on the client's loop; a lost outcome is computed again."""
        fetching = asyncio.ensure_future(self._client.gather(there, asynchronous=True))
        try:
            await asyncio.wait([fetching, *self._reports()], return_when=asyncio.FIRST_COMPLETED)
            if not fetching.done():
                fetching.cancel()
                raise self._lost()
            result = fetching.result()
        except BaseException as exc:  # noqa: BLE001  # the caller that waits gets it
            self._settle(here, None, self._lost() if self._is_lost() else exc)
            if self._watch.ended(is_death=type(exc).__name__ == "KilledWorker") and self._given_up is None:
                self._give_up(f"{self._watch.deaths} tasks in a row were given up because the workers that had them died ({exc})")
        else:
            self._settle(here, result, None)
            self._watch.ended(is_death=False)

    def _settle(self, here: Future[Any], result: object, error: BaseException | None) -> None:
        try:
            del self._open[here]
        except KeyError:  # it has ended
            return
        if not here.set_running_or_notify_cancel():
            return
        if error is None:
            here.set_result(result)
        else:
            here.set_exception(error)

    def _is_lost(self) -> bool:
        """Return whether the client is closed, as it closes itself when it cannot reach the scheduler or gets no messages from it any
        more.
        """
        return self._given_up is not None or self._client.status in ("closing", "closed") or any(task.done() for task in self._reports())

    def _reports(self) -> list[asyncio.Future[None]]:
        """Return the tasks that listen to the scheduler. A failed reconnection may end one, and the client shows that in no other way."""
        task = getattr(self._client, "_handle_report_task", None)
        return [] if task is None else [task]

    def _is_running(self, there: Any) -> bool:
        """Return whether a worker has the task, as far as is known."""
        try:
            return self._client.status == "running" and any(there.key in keys for keys in self._client.processing().values())
        except OSError:  # the scheduler does not answer
            return False

    def _lost(self) -> BrokenExecutor:
        return self._given_up or BrokenExecutor(f"the dask scheduler is lost, or its client was closed: {self._client!r}")


class _Watch:
    """The observed state of a cluster's workers while tasks wait."""

    def __init__(self, patience: Patience, clock: Callable[[], float]) -> None:
        self._patience = patience
        self._clock = clock
        self._came: dict[str, float] = {}
        self._has_had_workers = False
        self._looked: float | None = None
        self._well = 0.0  # when a task ended or a worker was steady, the last time
        self._alone: float | None = None  # since when there is no worker
        self._next_word = patience.first_word
        self.deaths = 0

    def ended(self, *, is_death: bool) -> bool:
        """Record that a task ended; return whether too many in a row did because their workers died."""
        self._well = self._clock()
        self.deaths = self.deaths + 1 if is_death else 0
        return self.deaths >= self._patience.deaths

    def look(self, workers: frozenset[str]) -> str | None:
        """Record the current workers; return a message about them, if there is one."""
        now = self._clock()
        if self._looked is None or now - self._looked >= self._patience.steady:  # tasks ended in between, or the driver was busy
            self._well, self._came = now, {}
        self._looked = now
        self._came = {worker: self._came.get(worker, now) for worker in workers}
        if any(now - came >= self._patience.steady for came in self._came.values()):
            self._well = now
        if workers:
            self._has_had_workers = True
            self._alone, self._next_word = None, self._patience.first_word
            return None
        if self._alone is None:
            self._alone = now
        alone = now - self._alone
        if alone < self._next_word:
            return None
        self._next_word = 2 * alone
        ends = f"the run ends when there was none for {self._patience.most:.0f} s" if self._has_had_workers else "or interrupt the run"
        return f"which has had no worker for {alone:.0f} s: start workers; {ends}"

    @property
    def is_over(self) -> bool:
        """True if no worker is to be expected any more."""
        return self._has_had_workers and self._clock() - self._well >= self._patience.most


class _Cancellable(Future[Result]):
    """A future that can be cancelled unless its task is running, which is checked at the call of ``cancel``."""

    def __init__(self, is_running: Callable[[], bool]) -> None:
        super().__init__()
        self._is_running = is_running

    def cancel(self) -> bool:
        return not self._is_running() and super().cancel()


def executor_of(given: object) -> Executor | None:
    """Return the executor for what callers have given: an executor, a client of a dask cluster, or ``None``.

    Raises:
        InvalidInput: it is something else, or a client for coroutines.
    """
    # Without an import of the module there is no object of it.
    client = getattr(sys.modules.get("distributed"), "Client", None)
    client_executor = getattr(sys.modules.get("distributed.cfexecutor"), "ClientExecutor", None)
    if client is not None and isinstance(given, client):
        return ClusterExecutor(given)
    if client_executor is not None and isinstance(given, client_executor):
        return ClusterExecutor(given._client, **given._kwargs)  # which it shows in no other way
    if given is None or isinstance(given, Executor):
        return given
    raise InvalidInput(f"executor {given!r} is neither a concurrent.futures.Executor nor a client of a dask cluster (distributed.Client)")
