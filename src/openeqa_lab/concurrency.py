"""Working through a list, so many at once, in order, with a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


async def work_through(
    items: Iterable[Item],
    work: Callable[[Item], Awaitable[None]],
    *,
    at_once: int,
    stop: asyncio.Event,
) -> None:
    """Run `work` on each item, started in order, at most `at_once` under way.

    After `stop` is set, or after the first exception, nothing new is started and what is under
    way ends by itself; then that exception is raised. A cancellation ends what is under way too.
    No task is left pending in any case.
    """
    waiting = list(items)
    queue = iter(waiting)

    async def worker() -> None:
        for item in queue:
            try:
                await work(item)
            except BaseException:
                stop.set()
                raise
            if stop.is_set():
                return

    workers = [asyncio.create_task(worker()) for _ in range(min(at_once, len(waiting)))]
    if not workers:
        return
    try:
        await asyncio.wait(workers)
    except asyncio.CancelledError:
        stop.set()  # a worker whose call ended in the same moment may not hear of it
        for task in workers:
            task.cancel()
        while pending := [task for task in workers if not task.done()]:
            with contextlib.suppress(asyncio.CancelledError):  # further Ctrl-Cs
                await asyncio.wait(pending)
        raise
    errors = [task.exception() for task in workers if not task.cancelled()]
    for error in errors:
        if error is not None:
            raise error
    for task in workers:
        task.result()  # of a worker that was cancelled from within


@contextlib.asynccontextmanager
async def stop_on_signals(notice: Callable[[], None]) -> AsyncIterator[asyncio.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; the second one cancels the current task.

    Where the loop cannot watch signals (not the main thread, Windows) they act as they always do.

    Args:
        notice: Called at the first signal, to say what happens now.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    watched = []
    heard = False  # not `stop`, which an error sets as well

    def on_signal() -> None:
        nonlocal heard
        if heard and task is not None:
            task.cancel()
        else:
            heard = True
            stop.set()
            notice()

    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, on_signal)
            watched.append(number)
    try:
        yield stop
    finally:
        for number in watched:
            loop.remove_signal_handler(number)
