"""Slots and paces of an endpoint, by the clock and across event loops."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from contextlib import AsyncExitStack

import pytest

from openeqa_lab.llm.limits import Limiter, limiter
from openeqa_lab.llm.patience import Patience


class Client:
    """Something that can be gone."""


CLIENT = Client()  # outlives every test


def limited(patience: Patience) -> Limiter:
    made = Limiter("here")
    made.join(CLIENT, patience)
    return made


async def crowd(shared: Limiter, number: int, wait_s: float | None = None) -> None:
    """So many requests at once, of which each is turned away."""
    async with AsyncExitStack() as stack:
        turns = [await stack.enter_async_context(shared.turn(0)) for _ in range(number)]
        for turn in turns:
            shared.crowded(turn, wait_s)


def test_an_endpoint_and_key_have_one_limiter() -> None:
    assert limiter("openai", "a") is limiter("openai", "a")
    assert limiter("http://x/v1", None) is limiter("http://x/v1/", None)
    assert limiter("openai", "a") is not limiter("openai", "b")
    assert limiter("openai", "a") is not limiter("gemini", "a")


def test_a_password_in_an_address_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    limiter("http://me:hunter2@x/v1?key=hunter2", None).say(1.0, "rate limit")
    assert "x/v1: rate limit" in caplog.text
    assert "hunter2" not in caplog.text


def test_the_lowest_ceiling_of_the_clients_that_exist_holds() -> None:
    shared = limited(Patience(at_once=8))
    modest = Client()
    shared.join(modest, Patience(at_once=2))
    assert shared.slots == 2
    del modest
    gc.collect()
    assert shared.slots == 8


async def test_slots_are_halved_once_for_all_under_way_and_grow_one_by_one() -> None:
    shared = limited(Patience(at_once=8))
    await crowd(shared, 8)
    assert shared.slots == 4
    await crowd(shared, 4)
    await crowd(shared, 2)
    await crowd(shared, 1)
    await crowd(shared, 1)
    assert shared.slots == 1
    grown = []
    for _ in range(40):
        async with shared.turn(0) as turn:
            shared.succeeded(turn, 0)
        grown.append(shared.slots)
    # one success at 1 slot, two at 2, three at 3, ..., and never above the ceiling
    assert [grown.index(slots) + 1 for slots in range(2, 9)] == [1, 3, 6, 10, 15, 21, 28]
    assert grown[-1] == 8


async def test_halving_starts_from_what_was_under_way() -> None:
    shared = limited(Patience(at_once=32))
    await crowd(shared, 6)
    assert shared.slots == 3


async def test_no_more_are_under_way_than_there_are_slots_and_in_order() -> None:
    shared = limited(Patience(at_once=3))
    order, most = [], 0

    async def one(number: int) -> None:
        nonlocal most
        async with shared.turn(0):
            order.append(number)
            most = max(most, shared.under_way)
            await asyncio.sleep(0.005)

    await asyncio.gather(*(one(number) for number in range(20)))
    assert (order, most, shared.under_way) == (list(range(20)), 3, 0)


@pytest.mark.parametrize("after_its_call", [False, True])
async def test_a_cancelled_waiter_leaves_no_slot_taken(after_its_call: bool) -> None:
    shared = limited(Patience(at_once=1))

    async def wait() -> None:
        async with shared.turn(0):
            pass

    async with shared.turn(0):
        waiters = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        if not after_its_call:
            waiters[0].cancel()
    if after_its_call:  # its slot is given, and it has not yet run
        waiters[0].cancel()
    done = await asyncio.wait_for(asyncio.gather(*waiters, return_exceptions=True), 5)
    assert isinstance(done[0], asyncio.CancelledError)
    assert done[1:] == [None, None]
    assert shared.under_way == 0


async def test_one_cancelled_while_it_is_paced_gives_all_back() -> None:
    shared = limited(Patience(requests_a_minute=300, tokens_a_minute=6000))
    async with shared.turn(10):
        pass
    waiting = [asyncio.create_task(shared.turn(10**6).__aenter__()) for _ in range(3)]
    await asyncio.sleep(0.01)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert shared.under_way == 0
    started = time.monotonic()
    async with shared.turn(10):
        pass
    assert time.monotonic() - started < 0.5


async def test_requests_a_minute_are_spread_and_shared() -> None:
    shared = limited(Patience(requests_a_minute=1200))
    other = Client()
    shared.join(other, Patience())
    started = time.monotonic()

    async def one() -> float:
        async with shared.turn(0):
            return time.monotonic() - started

    times = sorted(await asyncio.gather(*(one() for _ in range(9))))
    for number, seconds in enumerate(times):
        assert seconds >= number * 0.05 - 0.002
    assert times[-1] < 1


async def test_tokens_a_minute_are_corrected_by_what_was_counted() -> None:
    shared = limited(Patience(tokens_a_minute=60_000))

    async def seconds_until_the_next(guessed: int, counted: int) -> float:
        async with shared.turn(guessed) as turn:
            shared.succeeded(turn, counted)
        started = time.monotonic()
        async with shared.turn(0):
            return time.monotonic() - started

    assert await seconds_until_the_next(200, 200) == pytest.approx(0.2, abs=0.1)
    assert await seconds_until_the_next(10_000, 100) == pytest.approx(0.1, abs=0.09)
    assert await seconds_until_the_next(10, 300) == pytest.approx(0.3, abs=0.1)
    assert await seconds_until_the_next(200, 0) == pytest.approx(0.2, abs=0.1)


async def test_a_wait_that_the_server_asks_for_holds_everybody_back() -> None:
    shared = limited(Patience(at_once=8))
    await crowd(shared, 2, 0.3)
    started = time.monotonic()
    async with shared.turn(0):
        assert time.monotonic() - started >= 0.29


async def test_a_wait_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    shared = limited(Patience(at_once=4))
    with caplog.at_level(logging.WARNING, "openeqa_lab"):
        for _ in range(3):
            shared.say(7.0, "rate limit")
    [record] = caplog.records
    assert record.getMessage() == (
        "here: rate limit, waiting 7.0 s (0 under way, at most 4 at once now)"
    )


async def test_a_long_wait_for_a_limit_of_ours_is_said(caplog: pytest.LogCaptureFixture) -> None:
    shared = limited(Patience(requests_a_minute=1))
    with caplog.at_level(logging.WARNING, "openeqa_lab"):
        async with shared.turn(0):
            pass
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(shared.turn(0).__aenter__(), 0.05)
    assert "requests or tokens a minute are used up, waiting 60" in caplog.text


def test_a_loop_that_ended_over_its_waiters_leaves_no_slot_taken() -> None:
    shared = limited(Patience(at_once=1))

    async def hold() -> None:
        async with shared.turn(0):
            await asyncio.sleep(60)

    async def begin() -> None:
        for _ in range(3):
            asyncio.get_running_loop().create_task(hold())
        await asyncio.sleep(0.01)

    async def use() -> None:
        async with shared.turn(0):
            pass

    for _ in range(3):
        asyncio.run(begin())  # cancels what is left
        assert shared.under_way == 0
        asyncio.run(asyncio.wait_for(use(), 5))


def test_loops_in_several_threads_share_the_slots() -> None:
    shared = limited(Patience(at_once=2))
    most = 0

    async def several() -> None:
        async def one() -> None:
            nonlocal most
            async with shared.turn(0):
                most = max(most, shared.under_way)
                await asyncio.sleep(0.002)

        await asyncio.wait_for(asyncio.gather(*(one() for _ in range(20))), 10)

    threads = [threading.Thread(target=lambda: asyncio.run(several())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, shared.under_way) == (2, 0)
