"""The one way to a language model; no vendor's type is known outside this package."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, Protocol

from openeqa_lab.data.episode import Image
from openeqa_lab.records import Attempt, Usage

# Set by a runner around what it asks. How often a question was asked before in the same place, so
# that a cache never gives the same reply to all of them; and the event that ends trying again.
repeat: ContextVar[int] = ContextVar("repeat", default=0)
stopping: ContextVar[asyncio.Event | None] = ContextVar("stopping", default=None)

FinishReason = Literal["stop", "length", "refusal", "content_filter", "other"]


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's reply.

    Args:
        text: Without hidden reasoning; may be empty.
        finish_reason: ``refusal`` when the model declined, ``content_filter`` when the vendor
            blocked prompt or reply (as an error or as a finish reason), ``length`` when our token
            limit cut the text.
        model: As returned by the vendor.
        usage: Of this call.
        adjusted: What was sent otherwise than asked for, a phrase each.
        attempts: Those that failed before this one, whose usage is counted in.
    """

    text: str
    finish_reason: FinishReason = "stop"
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    adjusted: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()


class LLM(Protocol):
    """A language model, with or without eyes.

    `complete` may be awaited many times at once. A refusal or a block is a `Completion`, not an
    error. An empty text with ``length`` is a `CallError` of kind ``truncated``.
    """

    @property
    def identity(self) -> Mapping[str, object]:
        """Model and sampling parameters as JSON values: what can change a reply."""
        ...

    async def complete(self, prompt: Sequence[str | Image], /, system: str = "") -> Completion:
        """The reply to texts and pictures in the order given.

        Raises:
            CallError: The call failed; its `kind` says how.
        """
        ...
