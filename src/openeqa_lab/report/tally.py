"""What the records of a run add up to, whatever its metrics are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from openeqa_lab.records import Answer, Failure, Record, Stage, Usage, Verdict


@dataclass(frozen=True, slots=True)
class Failures:
    """Failures of one stage and kind, with the first of them as an example."""

    stage: Stage
    kind: str
    count: int
    case: str
    question: str
    message: str
    raw: str


@dataclass(frozen=True, slots=True)
class Counts:
    """How far the questions of a run came; asked = judged + failed + unjudged + unreached.

    Args:
        asked: Questions of the run.
        answered: Those with an answer, refused, blocked and empty ones included.
        judged: Those with a verdict: all that enters a headline.
        failed: Those that we or the network failed at; no score, tried again at the next start.
        unjudged: Those whose answer waits for its verdict.
        unreached: Those that nothing was done for yet.
        without_call: Verdicts that were given without calling a model.
        statuses: Answers by status.
        failures: Failures by stage and kind, the commonest first.
    """

    asked: int
    answered: int
    judged: int
    failed: int
    unjudged: int
    unreached: int
    without_call: int
    statuses: Mapping[str, int]
    failures: tuple[Failures, ...]

    @property
    def coverage(self) -> float | None:
        """Judged over asked, from 0 to 1; None when nothing was asked."""
        return self.judged / self.asked if self.asked else None


@dataclass(frozen=True, slots=True)
class Spending:
    """What a part of a run cost.

    Args:
        usage: The total; its `dollars` is None when the price of any call is unknown.
        known_dollars: What the calls of known price cost.
        unpriced_calls: Calls whose price is unknown.
        models: Replies by the model that the vendor said they came from.
        adjusted: Replies by what was sent otherwise than asked for.
        tried_again: Attempts that failed and were followed by another, by their kind.
    """

    usage: Usage = field(default_factory=Usage)
    known_dollars: float = 0.0
    unpriced_calls: int = 0
    models: Mapping[str, int] = field(default_factory=dict)
    adjusted: Mapping[str, int] = field(default_factory=dict)
    tried_again: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Spending) -> Spending:
        """Both together."""
        return Spending(
            self.usage + other.usage,
            self.known_dollars + other.known_dollars,
            self.unpriced_calls + other.unpriced_calls,
            _counted([*_each(self.models), *_each(other.models)]),
            _counted([*_each(self.adjusted), *_each(other.adjusted)]),
            _counted([*_each(self.tried_again), *_each(other.tried_again)]),
        )


@dataclass(frozen=True, slots=True)
class Shows:
    """Frames shown a question, over the answered ones; None when there are none."""

    mean: float | None
    fewest: int | None
    most: int | None


@dataclass(frozen=True, slots=True)
class Costs:
    """What a run cost, by what it was spent on.

    Args:
        answers: The answers, and failed attempts at those that are still missing.
        judgements: The verdicts, and failed attempts at those that are still missing.
        earlier: Attempts that were replaced by a later one.
        frames: Pictures shown a question.
    """

    answers: Spending
    judgements: Spending
    earlier: Spending
    frames: Shows

    @property
    def together(self) -> Spending:
        """All that the run cost."""
        return self.answers + self.judgements + self.earlier


def count(records: Sequence[Record]) -> Counts:
    """How far the records came."""
    verdicts = [record.judged for record in records if record.judged is not None]
    answers = [record.answer for record in records if record.answer is not None]
    statuses = Counter(answer.status for answer in answers)
    failed = [(record, record.failure) for record in records if record.failure is not None]
    return Counts(
        asked=len(records),
        answered=len(answers),
        judged=len(verdicts),
        failed=len(failed),
        unjudged=sum(record.answer is not None and record.verdict is None for record in records),
        unreached=sum(record.result is None for record in records),
        without_call=sum(verdict.usage.calls == 0 for verdict in verdicts),
        statuses=dict(sorted(statuses.items())),
        failures=_failures(failed),
    )


def _failures(failed: Sequence[tuple[Record, Failure]]) -> tuple[Failures, ...]:
    times = Counter((failure.stage, failure.kind) for _, failure in failed)
    first: dict[tuple[str, str], tuple[Record, Failure]] = {}
    for record, failure in failed:
        first.setdefault((failure.stage, failure.kind), (record, failure))
    groups = [
        Failures(
            failure.stage,
            failure.kind,
            times[failure.stage, failure.kind],
            record.case.id,
            record.case.question.text,
            failure.message,
            failure.raw,
        )
        for record, failure in first.values()
    ]
    return tuple(sorted(groups, key=lambda group: (-group.count, group.stage, group.kind)))


def spend(records: Sequence[Record]) -> Costs:
    """What the records cost."""
    results = [record.result for record in records if record.result is not None]
    verdicts = [record.verdict for record in records if record.verdict is not None]
    return Costs(
        answers=_spending(results),
        judgements=_spending(verdicts),
        earlier=_priced(record.earlier for record in records),
        frames=_shows(records),
    )


def _spending(parts: Sequence[Answer | Verdict | Failure]) -> Spending:
    done = [part for part in parts if not isinstance(part, Failure)]
    return replace(
        _priced(part.usage for part in parts),
        models=_counted(part.model for part in done if part.model),
        adjusted=_counted(phrase for part in done for phrase in part.adjusted),
        tried_again=_counted(attempt.kind for part in parts for attempt in part.attempts),
    )


def _priced(usages: Iterable[Usage]) -> Spending:
    total, known, unpriced = Usage(), 0.0, 0
    for usage in usages:
        total = total + usage
        known += usage.known_dollars
        unpriced += usage.calls if usage.dollars is None else 0
    return Spending(total, known, unpriced)


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))


def _each(counted: Mapping[str, int]) -> Iterable[str]:
    return Counter(counted).elements()


def _shows(records: Sequence[Record]) -> Shows:
    shown = [len(record.shown) for record in records if record.answer is not None]
    if not shown:
        return Shows(None, None, None)
    return Shows(sum(shown) / len(shown), min(shown), max(shown))
