"""Trying a call again: when it may help, and what all attempts cost together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from openeqa_lab.errors import CallError, CallKind
from openeqa_lab.llm import Completion, stopping
from openeqa_lab.llm.limits import Limiter, Turn
from openeqa_lab.llm.patience import Patience
from openeqa_lab.records import Attempt, Usage

_WORDS: Mapping[CallKind, str] = {  # what may pass
    "rate_limit": "rate limit",
    "timeout": "no reply in time",
    "connection": "no connection",
    "server": "faults of the server",
}
_OVERLOADED = (503, 529)  # what Google and Anthropic say


async def ask(
    attempt: Callable[[], Awaitable[Completion]], patience: Patience, limiter: Limiter, tokens: int
) -> Completion:
    """What the first attempt that succeeds gives, with the usage of all and those that failed.

    Once `openeqa_lab.llm.stopping` is set, no further attempt is made.

    Args:
        attempt: Sends the request once.
        patience: How often, and with which waits between.
        limiter: Of the endpoint; a slot is held while an attempt is under way, not between them.
        tokens: What the request is taken to cost.

    Raises:
        CallError: The last attempt's, with the usage of all and the attempts before it; its message
            says how many there were.
    """
    usage = Usage()
    failed: tuple[Attempt, ...] = ()
    while True:
        number = 1 + len(failed)
        try:
            async with limiter.turn(tokens) as turn:
                reply = await _attempt(attempt, patience, limiter, turn)
            return replace(reply, usage=usage + reply.usage, attempts=failed)
        except CallError as error:
            spent = error.usage or Usage(1, dollars=None)
            usage += spent
            if why := _last(error, number, patience):
                raise _final(error, why, usage, failed) from None
            wait = patience.wait_s(number, error.retry_after_s)
            if _crowded(error) or number > 1:
                limiter.say(
                    wait, "overloaded" if error.status in _OVERLOADED else _WORDS[error.kind]
                )
            if await _stopped_within(wait):
                why = f"{_times(number)}: the run is being stopped"
                raise _final(error, why, usage, failed) from None
            failed += (Attempt(error.kind, error.found, spent.seconds, wait),)


async def _stopped_within(seconds: float) -> bool:
    """Sleep, and say whether the run was told to stop meanwhile or before."""
    stop = stopping.get()
    if stop is None:
        await asyncio.sleep(seconds)
        return False
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except asyncio.TimeoutError:
        return stop.is_set()
    return True


async def _attempt(
    attempt: Callable[[], Awaitable[Completion]], patience: Patience, limiter: Limiter, turn: Turn
) -> Completion:
    """One attempt; the limiter learns from how it went."""
    try:
        reply = await attempt()
    except CallError as error:
        if _crowded(error):
            # A wait that is too long for this call is none for the others.
            limiter.crowded(turn, None if _too_long(error, patience) else error.retry_after_s)
        raise
    limiter.succeeded(turn, reply.usage.prompt_tokens + reply.usage.completion_tokens)
    return reply


def _crowded(error: CallError) -> bool:
    """Whether fewer requests would have fared better."""
    return error.kind == "rate_limit" or error.status in _OVERLOADED


def _too_long(error: CallError, patience: Patience) -> bool:
    return error.retry_after_s is not None and error.retry_after_s > patience.longest_wait_s


def _last(error: CallError, number: int, patience: Patience) -> str | None:
    """Why this was the last attempt, None when another follows."""
    made = _times(number)
    if error.kind not in _WORDS or number >= patience.attempts:
        return made
    if _too_long(error, patience):
        return (
            f"{made}: the server asks to wait {error.retry_after_s:g} s, longer than "
            f"patience.longest_wait_s = {patience.longest_wait_s:g}"
        )
    return None


def _times(number: int) -> str:
    return "tried once" if number == 1 else f"tried {number} times"


def _final(error: CallError, why: str, usage: Usage, failed: tuple[Attempt, ...]) -> CallError:
    last = CallError(
        f"{error}, {why}",
        kind=error.kind,
        raw=error.raw,
        usage=usage,
        retry_after_s=error.retry_after_s,
        status=error.status,
        found=error.found,
    )
    last.attempts = failed
    return last
