"""Small real parts for tests, and the kits that hold an implementation against its protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from openeqa_lab.data.episode import Image
from openeqa_lab.llm import Completion, FinishReason
from openeqa_lab.records import Usage


@dataclass
class EchoLLM:
    """A language model that repeats its prompt, or says what it is told to: no network, no cost.

    Args:
        reply: What to say to a prompt's texts joined by line ends; the texts themselves by default.
        finish_reason: Of every reply.
        seconds: How long each reply takes.
    """

    reply: Callable[[str], str] = field(default=lambda prompt: prompt)
    finish_reason: FinishReason = "stop"
    seconds: float = 0.0
    calls: list[tuple[str, Sequence[str | Image]]] = field(default_factory=list)

    @property
    def identity(self) -> Mapping[str, object]:
        """The name alone."""
        return {"model": "echo"}

    async def complete(self, prompt: Sequence[str | Image], /, system: str = "") -> Completion:
        """The reply; every call is kept in `calls`."""
        self.calls.append((system, prompt))
        await asyncio.sleep(self.seconds)
        text = self.reply("\n".join(part for part in prompt if isinstance(part, str)))
        words = sum(len(part.split()) for part in prompt if isinstance(part, str))
        usage = Usage(1, words, len(text.split()), 0.0, self.seconds)
        return Completion(text, self.finish_reason, "echo", usage)
