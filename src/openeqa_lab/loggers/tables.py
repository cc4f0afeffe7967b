"""Reports and records as rows of plain values, for those who want tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from openeqa_lab.metrics import Estimate
from openeqa_lab.records import Record
from openeqa_lab.report.page import headlines

if TYPE_CHECKING:
    from openeqa_lab.report import Report

Table = tuple[str, list[str], list[list[object]]]


def summary(report: Report) -> dict[str, object]:
    """All figures flat, those that are None left out, and how far the questions came."""
    counts = report.counts
    figures: dict[str, object] = {
        "state": report.state,
        "cases/asked": counts.asked,
        "cases/judged": counts.judged,
        "cases/failed": counts.failed,
    }
    for key, estimate in report.estimates.items():
        ends = {"": estimate.value, "/low": estimate.low, "/high": estimate.high}
        ends["/error"] = estimate.error
        figures |= {f"{text(key)}{end}": value for end, value in ends.items() if value is not None}
    return figures


def breakdowns(estimates: Mapping[str, Estimate]) -> Iterator[Table]:
    """Name, columns and rows of a table by category and one by split of each headline."""
    for key in headlines(estimates):
        for word in ("category", "split"):
            prefix = f"{key}/{word}/"
            rows: list[list[object]] = [
                [text(name.removeprefix(prefix)), it.value, it.low, it.high, it.error, it.count]
                for name, it in estimates.items()
                if name.startswith(prefix)
            ]
            if rows:
                columns = [word, "value", "low", "high", "error", "count"]
                yield f"{text(key)}/by_{word}", columns, rows


COLUMNS = (
    "id", "split", "category", "episode", "question", "reference", "answer", "status",
    "mark", "score", "reason", "judge_reply", "frames_shown",
)  # fmt: skip


def row(record: Record) -> list[object]:
    """One question in the order of `COLUMNS`: mark and score are numbers or None, never words."""
    case, answer, verdict = record.case, record.answer, record.judged
    texts = (case.id, case.split, case.category, case.episode, case.question.text, case.answer)
    return [
        *map(text, texts),
        text(answer.text) if answer else None,
        answer.status if answer else None,
        verdict.mark if verdict else None,
        verdict.score if verdict else None,
        _reason(record),
        text(verdict.raw) if verdict else None,
        len(record.shown),
    ]


def _reason(record: Record) -> str | None:
    """Why there is no score, None where there is one."""
    if record.failure is not None:
        return text(f"{record.failure.stage}: {record.failure.kind}: {record.failure.message}")
    if record.result is None:
        return "not reached"
    return None if record.judged else "not judged yet"


def text(foreign: str) -> str:
    """With half characters, which UTF-8 has no bytes for, as escapes."""
    return foreign.encode("utf-8", "backslashreplace").decode()
