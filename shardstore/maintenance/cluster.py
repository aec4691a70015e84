"""The workers of a dask cluster as an executor of ``concurrent.futures``.

``distributed`` has one too, ``Client.get_executor``. Where a worker is lost between the end of a task and the fetching of its result,
a future of that one fails with a ``TypeError``, or never ends; where the scheduler is lost for good, what is submitted never ends; and
unless it is told otherwise, what failed is not tried again but answered with the same failure. Tasks of long work meet lost workers, and
are made to be done twice.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any, Protocol, TypeVar

from shardstore.errors import InvalidInput, ShardStoreError

Result = TypeVar("Result")


class ExecutorLost(ShardStoreError, BrokenExecutor):
    """An executor does nothing any more: a pool has lost a process, or a cluster its scheduler."""


class ExecutorLike(Protocol):
    """What callers may give for an executor: one of ``concurrent.futures``, or a ``distributed.Client``."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any: ...


class ClusterExecutor(Executor):
    """Lets the workers of ``client`` do what is submitted; ``options`` are those of its ``submit``.

    Raises:
        InvalidInput: the client is one for coroutines.
    """

    def __init__(self, client: Any, **options: Any) -> None:
        if client.asynchronous:
            raise InvalidInput(f"{client!r} is asynchronous: work that waits for it needs a client without asynchronous=True")
        self._client = client
        self._options = options | {"pure": False}
        self._open: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Raises ``ExecutorLost`` where the scheduler is lost; so do futures that had not ended."""
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
        self._open.add(here)
        here.add_done_callback(cancelled)
        self._client.loop.add_callback(self._fetch, there, here)
        if self._is_lost():  # since a moment ago: then nobody may fetch it any more
            self._settle(here, None, self._lost())
        return here

    async def _fetch(self, there: Any, here: Future[Result]) -> None:
        """On the client's loop: give ``here`` the outcome, which is computed again where it has been lost meanwhile."""
        fetching = asyncio.ensure_future(self._client.gather(there, asynchronous=True))
        try:
            await asyncio.wait([fetching, *self._reports()], return_when=asyncio.FIRST_COMPLETED)
            if not fetching.done():
                fetching.cancel()
                raise self._lost()
            result = fetching.result()
        except BaseException as exc:  # noqa: BLE001  # whoever waits is told
            self._settle(here, None, self._lost() if self._is_lost() else exc)
        else:
            self._settle(here, result, None)

    def _settle(self, here: Future[Any], result: object, error: BaseException | None) -> None:
        try:
            self._open.remove(here)
        except KeyError:  # it has ended
            return
        if not here.set_running_or_notify_cancel():
            return
        if error is None:
            here.set_result(result)
        else:
            here.set_exception(error)

    def _is_lost(self) -> bool:
        """Whether the client is closed, as it does itself when the scheduler cannot be reached any more, or hears of nothing any more."""
        return self._client.status in ("closing", "closed") or any(task.done() for task in self._reports())

    def _reports(self) -> list[asyncio.Future[None]]:
        """The task that listens to the scheduler. An unlucky reconnection may end it, and the client shows that in no other way."""
        task = getattr(self._client, "_handle_report_task", None)
        return [] if task is None else [task]

    def _is_running(self, there: Any) -> bool:
        """Whether a worker has the task, as far as can be told."""
        try:
            return self._client.status == "running" and any(there.key in keys for keys in self._client.processing().values())
        except OSError:  # the scheduler does not answer
            return False

    def _lost(self) -> ExecutorLost:
        return ExecutorLost(f"the dask scheduler is lost, or its client was closed: {self._client!r}")


class _Cancellable(Future[Result]):
    """A future that can be cancelled unless its task is running, which is found out when that is asked for."""

    def __init__(self, is_running: Callable[[], bool]) -> None:
        super().__init__()
        self._is_running = is_running

    def cancel(self) -> bool:
        return not self._is_running() and super().cancel()


def executor_of(given: object) -> Executor | None:
    """What does the work, of what callers have given: an executor, a client of a dask cluster, or ``None``.

    Raises:
        InvalidInput: it is something else, or such a client for coroutines.
    """
    # What has not been imported nobody can have one of.
    client = getattr(sys.modules.get("distributed"), "Client", None)
    client_executor = getattr(sys.modules.get("distributed.cfexecutor"), "ClientExecutor", None)
    if client is not None and isinstance(given, client):
        return ClusterExecutor(given)
    if client_executor is not None and isinstance(given, client_executor):
        return ClusterExecutor(given._client, **given._kwargs)  # which it shows in no other way
    if given is None or isinstance(given, Executor):
        return given
    raise InvalidInput(f"executor {given!r} is no concurrent.futures.Executor and no client of a dask cluster (distributed.Client)")
