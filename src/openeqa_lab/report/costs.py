"""The part of a report about what a run cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from openeqa_lab.report.markdown import escape, table
from openeqa_lab.report.tally import Spending

if TYPE_CHECKING:
    from openeqa_lab.report import Report


def costs(report: Report) -> str:
    """The section about cost."""
    spent, frames = report.costs, report.costs.frames
    parts = {"answers": spent.answers, "judgements": spent.judgements}
    if spent.earlier != Spending():
        parts["replaced attempts"] = spent.earlier
    rows = [
        (name, *_numbers(part)) for name, part in (parts | {"together": spent.together}).items()
    ]
    head = ("spent on", "calls", "prompt tokens", "completion tokens", "dollars", "seconds waited")
    lines = ["## Cost\n", table(head, rows, [1, 2, 3, 4, 5])]
    if spent.answers.models:
        lines.append(f"Answers came from {models(spent.answers)}.\n")
    lines += _notes(parts)
    if frames.mean is not None:
        lines.append(
            f"Frames shown a question: {frames.mean:.1f} on average, "
            f"{frames.fewest} to {frames.most}.\n"
        )
    timing = report.timing
    lines.append(
        f"This start took {timing.seconds:,.1f} s, from {escape(timing.started)} "
        f"to {escape(timing.finished)}.\n"
    )
    return "\n".join(lines)


def _notes(parts: Mapping[str, Spending]) -> Iterator[str]:
    """What caches saved, what was tried again, and what was sent otherwise than asked for."""
    for name, part in parts.items():
        usage = part.usage
        if usage.cached_tokens or usage.saved_dollars:
            yield (
                f"Of the {name}, {usage.cached_tokens:,} prompt tokens were read from the vendor's "
                f"cache; caching and batches saved ${usage.saved_dollars:,.4f} of the list price.\n"
            )
        if usage.cache_hits or usage.cache_misses:
            yield (
                f"Of the {name}, {usage.cache_hits:,} replies came from our completion cache, "
                f"{usage.cache_misses:,} were not in it.\n"
            )
        if part.tried_again:
            kinds = ", ".join(f"{escape(kind)}: {n:,}" for kind, n in part.tried_again.items())
            yield f"Of the {name}, calls that failed in passing and were made again: {kinds}.\n"
        for phrase, count in part.adjusted.items():
            yield f"Of the {name}, {count:,} were asked otherwise than set: {escape(phrase)}.\n"


def _numbers(spending: Spending) -> tuple[str, str, str, str, str]:
    usage = spending.usage
    return (
        f"{usage.calls:,}",
        f"{usage.prompt_tokens:,}",
        f"{usage.completion_tokens:,}",
        _dollars(spending),
        f"{usage.seconds:,.1f}",
    )


def _dollars(spending: Spending) -> str:
    known = spending.known_dollars
    text = f"{known:,.2f}" if known == 0 or known >= 1 else f"{known:.4f}"
    if spending.usage.dollars is not None:
        return text
    return f"unknown ({text} known, {spending.unpriced_calls:,} calls unpriced)"


def models(spending: Spending) -> str:
    """Replies by model, in one phrase."""
    return ", ".join(f"{escape(name)}: {times:,}" for name, times in spending.models.items())
