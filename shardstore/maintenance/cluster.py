"""The workers of a dask cluster as an executor of ``concurrent.futures``.

``distributed`` has one too, ``Client.get_executor``. Where a worker is lost between the end of a task and the fetching of its result,
a future of that one fails with a ``TypeError``, or never ends; and unless it is told otherwise, what failed is not tried again but
answered with the same failure. Tasks of long work meet lost workers, and are made to be done twice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from typing import Any, Protocol, TypeVar

from shardstore.errors import InvalidInput

Result = TypeVar("Result")


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

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        there = self._client.submit(fn, *args, **self._options, **kwargs)
        here: Future[Result] = Future()

        def cancelled(future: Future[Result]) -> None:
            if future.cancelled() and not there.cancelled():
                there.cancel()

        here.add_done_callback(cancelled)
        there.add_done_callback(lambda ended: _pass_on(ended, here))
        return here


def _pass_on(ended: Any, here: Future[Result]) -> None:
    """Give ``here`` the outcome, which is fetched now, and computed again where it has been lost."""
    try:
        result = ended.result()
    except CancelledError:
        here.cancel()
        here.set_running_or_notify_cancel()
    except BaseException as exc:  # noqa: BLE001  # whoever waits is told
        if here.set_running_or_notify_cancel():
            here.set_exception(exc)
    else:
        if here.set_running_or_notify_cancel():
            here.set_result(result)


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
