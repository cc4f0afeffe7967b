"""The one way to a language model; no vendor's type is known outside this package."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from openeqa_lab.data.episode import Image
from openeqa_lab.records import Attempt, Usage

# Set by a runner around what it asks. Where that is (run folder, question and part), by which what
# is under way is found again; how often a question was asked before in the same place, so that a
# cache never gives the same reply to all of them; the event that ends trying again; and whether a
# call shows that calls can be made, and so is made at once and by no cache or batch.
place: ContextVar[str] = ContextVar("place", default="")
repeat: ContextVar[int] = ContextVar("repeat", default=0)
stopping: ContextVar[asyncio.Event | None] = ContextVar("stopping", default=None)
rehearsing: ContextVar[bool] = ContextVar("rehearsing", default=False)

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


@dataclass(frozen=True, slots=True)
class Forecast:
    """What calls that are not made yet may cost; forecasts can be added.

    Args:
        calls: Without those that fail and are made again.
        prompt_tokens: An estimate.
        reply_tokens: At most.
        dollars: Of the prompts, at list price; None when the price of any is unknown.
        most_dollars: With all replies of full length.
    """

    calls: float = 0
    prompt_tokens: float = 0
    reply_tokens: float = 0
    dollars: float | None = 0.0
    most_dollars: float | None = 0.0

    def __add__(self, other: Forecast) -> Forecast:
        """The sum; its price is unknown when either price is."""
        return Forecast(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.reply_tokens + other.reply_tokens,
            _sum(self.dollars, other.dollars),
            _sum(self.most_dollars, other.most_dollars),
        )

    def times(self, count: float) -> Forecast:
        """As much for so many."""
        return Forecast(
            self.calls * count,
            self.prompt_tokens * count,
            self.reply_tokens * count,
            None if self.dollars is None else self.dollars * count,
            None if self.most_dollars is None else self.most_dollars * count,
        )


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


@runtime_checkable
class Forecaster(Protocol):
    """An `LLM` that knows what its calls may cost."""

    async def forecast(self, prompt: Sequence[str | Image], /, system: str = "") -> Forecast:
        """Of one call, which is not made.

        Raises:
            CallError: It would be refused: more pictures than the vendor takes, for instance.
        """
        ...


@runtime_checkable
class Rehearsing(Protocol):
    """A reasoner or judge that can show, before a run, that its models reply."""

    async def rehearse(self) -> Usage:
        """Make the smallest call that shows it, and give what it cost.

        Raises:
            CaseError: The call failed, or its reply is of no use.
        """
        ...
