"""The bridge to the event loop: every face brings its calls to fsspec's IO loop, on which all engines run.

There the user's own s3fs instance works unchanged, and no lock has to cross loops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import TypeVar

from fsspec.asyn import get_loop

from shardstore.errors import StorageError

T = TypeVar("T")

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
    except StorageError as exc:
        raise shortened(exc)  # noqa: B904 - it is the same one
    except BaseException:
        future.cancel()  # KeyboardInterrupt, say; no effect where the coroutine itself raised
        raise


async def run_async(coroutine: Coroutine[object, object, T], loop: asyncio.AbstractEventLoop | None = None) -> T:
    """Await a coroutine that runs on the IO loop, or on another ``loop``, from any event loop."""
    loop = get_loop() if loop is None else loop
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
        ended.set_exception(shortened(error))
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


def shortened(error: BaseException) -> BaseException:
    """Return an error without the frames below this bridge, if its server or bucket does not exist: they would not explain it."""
    return error.with_traceback(None) if isinstance(error, StorageError) and error.has_no_place else error


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
