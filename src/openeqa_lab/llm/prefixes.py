"""Has a vendor read what several prompts share once, before the others are sent.

A vendor's prompt cache holds a prefix only after a reply to it has begun. An episode's questions
share all their frames, and asked at once they would all be read, and paid, in full.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from openeqa_lab.data.episode import Image

KEPT_S = 300.0  # the shortest time that a vendor keeps a prefix (Anthropic: five minutes)
SMALLEST_TOKENS = 1024  # below this no vendor caches anything


@dataclass(eq=False, slots=True)
class _Prefix:
    done: asyncio.Event = field(default_factory=asyncio.Event)
    under_way: bool = False
    read_at: float | None = None


class Prefixes:
    """Lets the first prompt with a prefix go alone; those that wait follow when it has ended."""

    def __init__(self) -> None:
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Prefix]] = (
            WeakKeyDictionary()
        )

    @contextlib.asynccontextmanager
    async def turn(self, key: str | None) -> AsyncIterator[None]:
        """Wait while the first prompt with this prefix is under way; None waits for nothing."""
        if key is None:
            yield
            return
        prefix = await self._claim(key)
        if prefix is None:
            yield
            return
        try:
            yield
            prefix.read_at = time.monotonic()
        finally:  # after a failure the next one to come goes alone
            prefix.under_way = False
            prefix.done.set()

    async def _claim(self, key: str) -> _Prefix | None:
        """The prefix when this prompt is to read it for the others, None when it was read."""
        known = self._loops.setdefault(asyncio.get_running_loop(), {})
        while True:
            now = time.monotonic()
            for name, each in list(known.items()):
                if each.read_at is not None and now - each.read_at > KEPT_S:
                    del known[name]
            prefix = known.setdefault(key, _Prefix())
            if prefix.read_at is not None:
                prefix.read_at = now
                return None
            if not prefix.under_way:
                prefix.under_way = True
                prefix.done.clear()
                return prefix
            await prefix.done.wait()
            if prefix.read_at is None:  # it failed: those who waited do not fail one by one
                return None


def shared_part(prompt: Sequence[str | Image], system: str) -> str | None:
    """Names what stands before the text after the last picture; None when there is no picture."""
    last = max((place for place, part in enumerate(prompt) if isinstance(part, Image)), default=-1)
    if last < 0:
        return None
    # Python keeps the hash of bytes with them, and questions share the frames' bytes.
    parts = [
        hash(part.data) if isinstance(part, Image) else hash(part) for part in prompt[: last + 1]
    ]
    return hashlib.sha256(repr([system, parts]).encode("utf-8", "backslashreplace")).hexdigest()
