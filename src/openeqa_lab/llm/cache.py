"""Replies that were bought before, shared between runs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar, get_args
from weakref import WeakValueDictionary

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.llm import Completion
from openeqa_lab.llm.cache_file import KEPT, CacheFile
from openeqa_lab.records import Usage

Mode = Literal["off", "read", "write"]
Given = TypeVar("Given")


class CompletionCache:
    """Replies that were bought before, for the same model, parameters and prompt.

    Its file holds replies and digests of what was asked, no prompts and no pictures, and is its
    owner's only. Where it cannot be used, that is said once, and the run goes on without it. All
    caches of one path in a process share their connection and what is under way.

    Args:
        mode: ``read`` takes what is there, ``write`` also keeps what is bought. False is ``off``,
            as YAML reads that word where it has no quotes.
        path: The SQLite file, on a local disk; made at the first use in mode ``write``.
    """

    def __init__(
        self,
        mode: Literal[Mode, False] = "off",
        path: str | Path = "data/cache/completions.sqlite",
    ) -> None:
        if mode is not False and mode not in get_args(Mode):
            raise OpenEQAError(f"llm.cache.mode is {mode!r}: expected off, read or write")
        self.mode: Mode = mode or "off"
        self._path = path
        self._shared: _Shared | None = None

    async def through(
        self, key: Mapping[str, object], ask: Callable[[], Awaitable[Completion]], /
    ) -> Completion:
        """The reply kept for this key, at no cost and as one hit, or the one that asking gives.

        Who comes with a key that is being asked waits for that reply, whatever it says; after a
        failure the next one asks. Kept are replies that say something and were not refused or
        blocked.

        Args:
            key: All that can change the reply, as JSON values; its order and 0 or 0.0 are the same.
            ask: Buys the reply; its errors are raised as they are, and nothing is kept.
        """
        if self.mode == "off":
            return await ask()
        digest = _digest(key)
        shared = self._share()
        while True:
            flight, begun = shared.join(digest)
            if begun:
                return await self._first(shared, digest, flight, ask)
            reply = await asyncio.wrap_future(flight)
            if reply is not None:
                return _again(reply)

    async def _first(
        self,
        shared: _Shared,
        digest: str,
        flight: Future[Completion | None],
        ask: Callable[[], Awaitable[Completion]],
    ) -> Completion:
        """The reply to the first of those who ask the same at once; the others have it too."""
        writing = self.mode == "write"
        reply: Completion | None = None
        try:
            reply = await shared.run(partial(shared.file.read, digest, writing=writing))
            if reply is not None:
                return _again(reply)
            reply = await ask()
            if writing and reply.finish_reason in KEPT and reply.text.strip():
                await shared.run(partial(shared.file.keep, digest, reply))
            misses = reply.usage.cache_misses + 1
            return replace(reply, usage=replace(reply.usage, cache_misses=misses))
        finally:
            shared.end(digest, flight, reply)

    def _share(self) -> _Shared:
        if self._shared is None or self._shared.process != os.getpid():
            self._shared = _share(os.path.realpath(self._path))
        return self._shared


OFF = CompletionCache()


class _Shared:
    """A file, its thread, and what is being asked: one a path and process."""

    def __init__(self, path: str) -> None:
        self.process = os.getpid()
        self.file = CacheFile(Path(path))
        # Ends with this object. Its futures are not handed out: who is cancelled cancels nothing.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="completions")
        self._flights: dict[str, Future[Completion | None]] = {}
        # A coroutine that is collected ends its flight wherever that happens.
        self._lock = threading.RLock()

    def join(self, digest: str) -> tuple[Future[Completion | None], bool]:
        """The flight that brings this reply, None when it failed, and whether it began now."""
        with self._lock:
            flight = self._flights.get(digest)
            if flight is not None:
                return flight, False
            flight = self._flights[digest] = _begun()
            return flight, True

    def end(self, digest: str, flight: Future[Completion | None], reply: Completion | None) -> None:
        """Give those who wait the reply."""
        with self._lock:
            del self._flights[digest]
        flight.set_result(reply)

    async def run(self, work: Callable[[], Given]) -> Given:
        """What the work gives on the thread; it is done even when nobody waits any more."""
        done: Future[Given] = _begun()
        self._pool.submit(work).add_done_callback(partial(_pass_on, done))
        return await asyncio.wrap_future(done)


def _begun() -> Future[Given]:
    """A future that its waiters cannot cancel, on whatever loops they are."""
    future: Future[Given] = Future()
    future.set_running_or_notify_cancel()
    return future


def _pass_on(done: Future[Given], ended: Future[Given]) -> None:
    error = ended.exception()
    if error is None:
        done.set_result(ended.result())
    else:
        done.set_exception(error)


_shares: WeakValueDictionary[tuple[int, str], _Shared] = WeakValueDictionary()
_shares_lock = threading.Lock()


def _share(path: str) -> _Shared:
    with _shares_lock:
        key = (os.getpid(), path)
        shared = _shares.get(key)
        if shared is None:
            shared = _shares[key] = _Shared(path)
        return shared


def _again(reply: Completion) -> Completion:
    """A reply that costs nothing now."""
    usage = Usage(cache_hits=1)
    return Completion(reply.text, reply.finish_reason, reply.model, usage, reply.adjusted)


def _digest(key: Mapping[str, object]) -> str:
    text = json.dumps(_canonical(key), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _canonical(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(inner) for inner in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
