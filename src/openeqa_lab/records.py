"""What a run writes down: answers, verdicts, failures, and the record that folds them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from openeqa_lab.data.case import Case

HALF_CHARACTER = re.compile("[\ud800-\udfff]")

AnswerStatus = Literal["answered", "refused", "blocked", "empty"]
Stage = Literal["episode", "answer", "judge"]


def whole_characters(text: str) -> str:
    """The text with half characters (lone surrogates) spelled out: UTF-8 has no bytes for them.

    A model's reply may hold one, cut between the two halves of an emoji.
    """
    return HALF_CHARACTER.sub(lambda half: f"\\u{ord(half.group()):04x}", text)


@dataclass(frozen=True, slots=True)
class Usage:
    """What calls cost; usages can be added.

    Args:
        calls: Requests that a model was sent.
        prompt_tokens: As the vendor counts them, cached ones included.
        completion_tokens: As the vendor counts them, hidden reasoning included.
        dollars: None when the price of any of the calls is unknown; 0 only when it is free.
        seconds: Waiting for replies; queueing and back-off are not counted.
        cached_tokens: The part of the prompt tokens that the vendor read from its own cache.
        saved_dollars: By the vendor's cache, and by its batch price; negative where filling the
            cache cost more than reading it saved.
        cache_hits: Replies taken from our completion cache, which are no calls and cost nothing.
        cache_misses: Calls that were made because our cache was asked in vain.
        known_dollars: The part whose price is known; not given where `dollars` is.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float | None = 0.0
    seconds: float = 0.0
    cached_tokens: int = 0
    saved_dollars: float = 0.0
    cache_hits: int = 0
    cache_misses: int = 0
    known_dollars: float = 0.0

    def __post_init__(self) -> None:
        if self.dollars is not None:
            object.__setattr__(self, "known_dollars", self.dollars)

    def __add__(self, other: Usage) -> Usage:
        """The sum; its price is unknown when either price is."""
        known = self.dollars is not None and other.dollars is not None
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            (self.dollars or 0.0) + (other.dollars or 0.0) if known else None,
            self.seconds + other.seconds,
            self.cached_tokens + other.cached_tokens,
            self.saved_dollars + other.saved_dollars,
            self.cache_hits + other.cache_hits,
            self.cache_misses + other.cache_misses,
            self.known_dollars + other.known_dollars,
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call that failed in passing, and was made again.

    Args:
        kind: What failed, as `CallError.kind`.
        message: What was found, in the vendor's words where it said any.
        seconds: From sending to the fault.
        waited_s: Until it was made again.
    """

    kind: str
    message: str
    seconds: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reasoner said.

    Args:
        text: The answer as it is judged; empty unless `status` is ``answered``.
        status: ``refused`` by the model, ``blocked`` by a filter, ``empty`` when it ended by
            itself with nothing said: bad answers, with the lowest mark and no judge call.
        raw: The model's whole reply, where `text` is a part of it.
        model: As returned by the vendor, which may be a dated version of what was asked for.
        finish_reason: As returned by the vendor; ``length`` when our token limit cut the text.
        usage: What the answer cost.
        adjusted: What was sent otherwise than asked for, a phrase each: ``seed=1234 is not sent:
            the model does not take it``.
        attempts: Those that failed before the one that gave the answer.
    """

    text: str
    status: AnswerStatus = "answered"
    raw: str = ""
    model: str = ""
    finish_reason: str = ""
    usage: Usage = field(default_factory=Usage)
    adjusted: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge made of an answer.

    Args:
        score: From 0 (wrong) to 1 (right); LLM-Match's (mark - 1) / 4.
        mark: From 1 to 5 where the judge's scale has marks, else None.
        raw: The judge's whole reply, empty when no call was needed.
        model: As returned by the vendor.
        usage: What the judgement cost.
        adjusted: As of an `Answer`.
        attempts: As of an `Answer`.
    """

    score: float
    mark: int | None = None
    raw: str = ""
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    adjusted: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """What we or the network failed to do: never a score, tried again at the next start.

    Args:
        stage: Where it happened.
        kind: The word that reports count it by: `CaseError.kind`.
        message: One line: what, where, what to do.
        raw: What was said, where something was said that could not be used.
        usage: What was paid all the same.
        attempts: Those that failed before the one that is told of.
    """

    stage: Stage
    kind: str
    message: str
    raw: str = ""
    usage: Usage = field(default_factory=Usage)
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True, slots=True)
class EpisodeTrace:
    """Which episode a question was asked about, and how many frames it holds."""

    episode: str
    frames: int


@dataclass(frozen=True, slots=True)
class Shown:
    """A frame that the reasoner looked at, in the order it was shown.

    Args:
        path: Relative to the data root.
        index: Its number in the source, from 0.
        sha256: Of the frame's bytes or pixels, as `RawFrame` has it.
    """

    path: str
    index: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """All that is known of one case: the fold of its journal lines, the latest success winning.

    `result` is None for a case that was not reached, `verdict` None for one not judged. `earlier`
    is what attempts cost that a later success replaced.
    """

    case: Case
    trace: EpisodeTrace | None = None
    shown: tuple[Shown, ...] = ()
    result: Answer | Failure | None = None
    verdict: Verdict | Failure | None = None
    earlier: Usage = field(default_factory=Usage)

    @property
    def answer(self) -> Answer | None:
        """The answer, if there is one."""
        return self.result if isinstance(self.result, Answer) else None

    @property
    def judged(self) -> Verdict | None:
        """The verdict, if there is one: only such records enter a headline."""
        return self.verdict if isinstance(self.verdict, Verdict) else None

    @property
    def failure(self) -> Failure | None:
        """What stands between this case and a score, if anything failed."""
        if isinstance(self.result, Failure):
            return self.result
        return self.verdict if isinstance(self.verdict, Failure) else None

    @property
    def usage(self) -> Usage:
        """Of the answer, the judgement and the attempts before them together."""
        parts = [part.usage for part in (self.result, self.verdict) if part is not None]
        return sum(parts, self.earlier)
