"""How fast an endpoint is asked: one limiter an endpoint and key, shared by all its clients."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from openeqa_lab.llm.patience import Patience

log = logging.getLogger(__name__)

_WORTH_A_WORD_S = 5.0
_BETWEEN_WORDS_S = 60.0


@dataclass(eq=False, slots=True)
class Turn:
    """Leave to send one request.

    Args:
        tokens: What the request is taken to cost.
        number: Turns that began before this one.
    """

    tokens: int
    number: int


@dataclass(eq=False, slots=True)
class _Waiter:
    future: asyncio.Future[None]
    called: bool = False  # a slot has been taken for it


class _Bucket:
    """A token bucket that holds nothing in store: what was taken is paid off before the next."""

    def __init__(self) -> None:
        self._free_at = -math.inf

    def take(self, amount: float, a_minute: int | None, now: float) -> float:
        """Take an amount; the time from which it may be used."""
        if a_minute is None:
            return now
        start = max(self._free_at, now)
        self._free_at = start + amount * 60 / a_minute
        return start

    def correct(self, amount: float, a_minute: int | None) -> None:
        """Take more afterwards, or give back with a negative amount."""
        if a_minute is not None:
            self._free_at += amount * 60 / a_minute


class Limiter:
    """Slots, and requests and tokens a minute, of one endpoint and key.

    The lowest ceilings of the clients that still exist hold. Below them the number of slots
    adapts: halved when the server says that it is too much, one more after as many successes as
    there are slots. It may be used from several event loops, in turn or at once.

    Args:
        name: Of the endpoint, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # Held for moments, never over an await. A collected coroutine may give back its slot then.
        self._lock = threading.RLock()
        self._clients: WeakKeyDictionary[object, Patience] = WeakKeyDictionary()
        self._learned = math.inf
        self._under_way = 0
        self._most = 0  # under way at once since the last halving
        self._successes = 0
        self._begun = 0
        self._begun_at_halving = 0
        self._paused_until = -math.inf
        self._said_at = -math.inf
        self._waiting: deque[_Waiter] = deque()
        self._requests = _Bucket()
        self._tokens = _Bucket()

    @property
    def slots(self) -> int:
        """Requests that may be under way at once now."""
        return int(min(self._learned, self._ceiling()))

    @property
    def under_way(self) -> int:
        """Slots that are taken."""
        return self._under_way

    def join(self, client: object, patience: Patience) -> None:
        """Have a client's ceilings hold for as long as it exists."""
        with self._lock:
            self._clients[client] = patience

    @contextlib.asynccontextmanager
    async def turn(self, tokens: int) -> AsyncIterator[Turn]:
        """A slot, given at the time from which a request of so many tokens may be sent."""
        await self._slot()
        try:
            yield await self._paced(tokens)
        finally:
            with self._lock:
                self._under_way -= 1
                self._call_waiters()

    def succeeded(self, turn: Turn, tokens: int) -> None:
        """Count a reply.

        Args:
            turn: That it was asked in.
            tokens: That it cost in truth, 0 where nobody says.
        """
        with self._lock:
            if tokens:
                self._tokens.correct(tokens - turn.tokens, self._tokens_a_minute())
            self._successes += 1
            if self._learned < self._ceiling() and self._successes >= self._learned:
                self._learned += 1
                self._successes = 0

    def crowded(self, turn: Turn, wait_s: float | None) -> None:
        """Halve the slots, once for all requests under way, and hold everybody back.

        Args:
            turn: That was turned away.
            wait_s: How long the server wants to see nobody, in seconds; None where it says nothing.
        """
        with self._lock:
            if wait_s is not None:
                self._paused_until = max(self._paused_until, time.monotonic() + wait_s)
            if turn.number < self._begun_at_halving:
                return
            self._learned = max(1, min(self.slots, self._most) // 2)
            self._begun_at_halving = self._begun
            self._most = self._under_way
            self._successes = 0

    def say(self, wait_s: float, why: str) -> None:
        """Warn that somebody waits, once a minute."""
        with self._lock:
            now = time.monotonic()
            if now < self._said_at + _BETWEEN_WORDS_S:
                return
            self._said_at = now
        log.warning(
            "%s: %s, waiting %.1f s (%d under way, at most %d at once now)",
            self._name, why, wait_s, self._under_way, self.slots,
        )  # fmt: skip

    async def _slot(self) -> None:
        with self._lock:
            if not self._waiting and self._under_way < self.slots:
                self._taken()
                return
            waiter = _Waiter(asyncio.get_running_loop().create_future())
            self._waiting.append(waiter)
        try:
            await waiter.future
        except BaseException:
            with self._lock:
                if waiter.called:
                    self._under_way -= 1
                elif waiter in self._waiting:
                    self._waiting.remove(waiter)
                self._call_waiters()
            raise

    def _taken(self) -> None:
        self._under_way += 1
        self._most = max(self._most, self._under_way)

    def _call_waiters(self) -> None:
        while self._waiting and self._under_way < self.slots:
            waiter = self._waiting.popleft()
            # A loop that was closed over its waiters has nobody to call.
            with contextlib.suppress(RuntimeError):
                waiter.future.get_loop().call_soon_threadsafe(_wake, waiter.future)
                waiter.called = True
                self._taken()

    async def _paced(self, tokens: int) -> Turn:
        with self._lock:
            now = time.monotonic()
            start = max(
                self._requests.take(1, self._requests_a_minute(), now),
                self._tokens.take(tokens, self._tokens_a_minute(), now),
            )
        try:
            while (wait := max(start, self._paused_until) - time.monotonic()) > 0:
                if wait >= _WORTH_A_WORD_S:
                    ours = start > self._paused_until
                    self.say(wait, "requests or tokens a minute are used up" if ours else "paused")
                await asyncio.sleep(wait)
        except BaseException:
            with self._lock:
                self._requests.correct(-1, self._requests_a_minute())
                self._tokens.correct(-tokens, self._tokens_a_minute())
            raise
        with self._lock:
            self._begun += 1
            return Turn(tokens, self._begun - 1)

    def _ceiling(self) -> int:
        return min((each.at_once for each in self._clients.values()), default=1)

    def _requests_a_minute(self) -> int | None:
        every = [each.requests_a_minute for each in self._clients.values()]
        return min((each for each in every if each is not None), default=None)

    def _tokens_a_minute(self) -> int | None:
        every = [each.tokens_a_minute for each in self._clients.values()]
        return min((each for each in every if each is not None), default=None)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_limiters: dict[tuple[str, str], Limiter] = {}
_limiters_lock = threading.Lock()


def limiter(endpoint: str, key: str | None) -> Limiter:
    """The limiter of an endpoint and key, the same one in the whole process.

    Args:
        endpoint: An address, or a vendor's name.
        key: Only its hash is kept; None where no key is sent.
    """
    endpoint = endpoint.rstrip("/")
    print_of_key = hashlib.sha256((key or "").encode()).hexdigest()[:16]
    with _limiters_lock:
        # An address from the environment may hold a password, which no message repeats.
        name = endpoint.rpartition("@")[2].partition("?")[0]
        return _limiters.setdefault((endpoint, print_of_key), Limiter(name))
