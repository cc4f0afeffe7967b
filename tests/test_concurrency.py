"""Working through a list in order, so many at once, with a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import pytest

from openeqa_lab.concurrency import stop_on_signals, work_through


async def test_at_most_so_many_are_under_way_and_they_start_in_order() -> None:
    started: list[int] = []
    under_way = most = 0

    async def work(item: int) -> None:
        nonlocal under_way, most
        started.append(item)
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.001 * (item % 3))
        under_way -= 1

    await work_through(range(20), work, at_once=4, stop=asyncio.Event())
    assert started == list(range(20))
    assert most == 4


async def test_after_an_error_what_is_under_way_ends_and_nothing_new_starts() -> None:
    ended: list[int] = []

    async def work(item: int) -> None:
        if item == 1:
            raise ValueError("boom")
        await asyncio.sleep(0.02)
        ended.append(item)

    with pytest.raises(ValueError, match="boom"):
        await work_through(range(10), work, at_once=3, stop=asyncio.Event())
    assert sorted(ended) == [0, 2]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_cancellation_leaves_no_task_behind() -> None:
    async def work(_: int) -> None:
        await asyncio.sleep(60)

    task = asyncio.create_task(work_through(range(3), work, at_once=2, stop=asyncio.Event()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_no_items_are_no_work() -> None:
    async def work(_: int) -> None:
        raise AssertionError

    await work_through([], work, at_once=3, stop=asyncio.Event())


async def test_the_first_signal_asks_to_stop_and_the_second_cancels() -> None:
    notices: list[str] = []

    async def run() -> None:
        async with stop_on_signals(lambda: notices.append("stopping")) as stop:
            os.kill(os.getpid(), signal.SIGINT)
            await stop.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(run())
    assert notices == ["stopping"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


async def test_after_an_error_the_first_signal_still_only_asks_to_stop() -> None:
    ended: list[int] = []
    notices: list[str] = []

    async def work(item: int) -> None:
        if item == 0:
            raise ValueError("boom")
        await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.05)
        ended.append(item)

    async with stop_on_signals(lambda: notices.append("stopping")) as stop:
        with pytest.raises(ValueError, match="boom"):
            await work_through(range(2), work, at_once=2, stop=stop)
    assert ended == [1]
    assert notices == ["stopping"]


async def test_a_worker_that_cancels_itself_is_not_taken_for_success() -> None:
    async def work(_: int) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await work_through([1], work, at_once=1, stop=asyncio.Event())


async def test_a_worker_that_does_not_hear_of_a_cancellation_takes_no_further_item() -> None:
    done: list[int] = []
    stop = asyncio.Event()

    async def deaf(item: int) -> None:
        # As `asyncio.wait_for` does when its call ends in the same moment.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)
        done.append(item)

    task = asyncio.create_task(work_through(range(20), deaf, at_once=1, stop=stop))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [0]


async def test_further_cancellations_leave_no_worker_behind() -> None:
    ended: list[int] = []

    async def slow(item: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            ended.append(item)

    stop = asyncio.Event()
    task = asyncio.create_task(work_through(range(4), slow, at_once=4, stop=stop))
    for _ in range(3):
        await asyncio.sleep(0.02)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [0, 1, 2, 3]
