"""The bridge to the event loop: every face brings its calls to fsspec's IO loop, on which all engines run.

There the user's own s3fs instance works unchanged, and no lock has to cross loops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import TypeVar, cast

from fsspec.asyn import get_loop

from shardstore import errors
from shardstore.errors import Conflict, ShardStoreError, StorageError
from shardstore.storage.base import ConditionFailed

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

_PUBLIC = (errors.__name__, "shardstore.snapshots.conflicts")  # the modules of the errors that callers can import

_ITEMS_AT_ONCE = 1000  # items that an iteration hands over for one crossing of threads


def run_sync(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine on the IO loop from a thread that is not it, and wait.

    Raises:
        RuntimeError: called on the IO loop itself, which would wait for ever.
    """
    loop = get_loop()
    if on_io_loop():
        coroutine.close()
        raise RuntimeError("a synchronous call of shardstore on fsspec's IO loop would block it: await the asynchronous one")
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result()
    except ShardStoreError as exc:
        error = as_known(exc)
    except BaseException:
        future.cancel()  # KeyboardInterrupt, say; no effect where the coroutine itself raised
        raise
    raise error  # out of the block, so that it has no context but its own


async def run_async(coroutine: Coroutine[object, object, T]) -> T:
    """Await a coroutine that runs on the IO loop, from any event loop."""
    try:
        return await run_on(get_loop(), coroutine)
    except ShardStoreError as exc:
        error = as_known(exc)
    raise error


async def run_on(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[object, object, T]) -> T:
    """Await a coroutine that runs on a loop, from any event loop; errors stay as they are."""
    here = asyncio.get_running_loop()
    if here is loop:
        return await coroutine
    ended: asyncio.Future[T] = here.create_future()
    tasks: list[asyncio.Task[T]] = []

    def start() -> None:
        task = loop.create_task(coroutine)
        tasks.append(task)
        task.add_done_callback(lambda task: _call(here, _hand_over, task, ended))

    loop.call_soon_threadsafe(start)
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError as exc:
            # Ask the coroutine to end, and wait until it has: it may still use what the caller gave it.
            cancelled = exc
            loop.call_soon_threadsafe(lambda: tasks[0].cancel())
    if cancelled is not None:
        if not ended.cancelled():
            ended.exception()
        raise cancelled
    return ended.result()


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    with suppress(RuntimeError):  # the caller's loop has been closed: no caller waits any more
        loop.call_soon_threadsafe(function, *arguments)


def _hand_over(task: asyncio.Task[T], ended: asyncio.Future[T]) -> None:
    """Give the outcome of a task to a future of another loop; called on that loop."""
    if ended.done():
        return
    if task.cancelled():
        ended.cancel()
    elif (error := task.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(task.result())


async def iterate(items: Callable[[], AsyncIterator[T]], most: int = _ITEMS_AT_ONCE) -> AsyncIterator[T]:
    """Iterate, from any event loop, over what an asynchronous iterator yields on the IO loop; at most ``most`` are handed over at once."""
    iterator = items()

    async def some(at_once: int) -> list[T]:
        taken: list[T] = []
        async for item in iterator:
            taken.append(item)
            if len(taken) == at_once:
                break
        return taken

    at_once = 1  # a caller that only asks whether there is anything should not wait for more
    try:
        while taken := await run_async(some(at_once)):
            for item in taken:
                yield item
            at_once = min(at_once * 4, most)
    finally:
        if isinstance(iterator, AsyncGenerator):
            await run_async(_close(iterator))


def as_known(error: E) -> E:
    """Return an error as it leaves for callers: it and its causes are of classes that they can import.

    It is copied if its class changes: code below that shares it may still ask for that. Where there is no such server or bucket, it
    stands alone: the frames and exceptions of the client below say nothing about that.
    """
    known = _copied(error) if type(error) is not _public_class(error) else error
    links: list[BaseException] = [known]
    while (link := links[-1].__cause__ or links[-1].__context__) is not None and link not in links:  # it may lead back
        if isinstance(link, ShardStoreError):
            link.__class__ = _public_class(link)  # type: ignore[assignment]  # in place: only people read causes
        links.append(link)
    if isinstance(known, StorageError) and known.has_no_place:
        known.__cause__, known.__suppress_context__, known.__traceback__ = None, True, None
    return known


def _public_class(error: BaseException) -> type[BaseException]:
    if isinstance(error, ConditionFailed):
        return Conflict
    if not isinstance(error, ShardStoreError):
        return type(error)
    return next(cls for cls in type(error).__mro__ if cls.__module__ in _PUBLIC or not cls.__module__.startswith("shardstore."))


def _copied(error: E) -> E:
    """Return a copy of the public class, with the same attributes, notes, cause and frames."""
    cls = _public_class(error)
    copied = cls.__new__(cls, *error.args)
    copied.__dict__.update(error.__dict__)
    copied.__context__, copied.__cause__ = error.__context__, error.__cause__
    copied.__suppress_context__ = error.__suppress_context__
    return cast(E, copied.with_traceback(error.__traceback__))


def on_io_loop() -> bool:
    """Return whether the caller runs on the IO loop, where ``run_sync`` must not be called."""
    return _running_loop() is get_loop()


async def _close(iterator: AsyncGenerator[T, None]) -> None:
    await iterator.aclose()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
