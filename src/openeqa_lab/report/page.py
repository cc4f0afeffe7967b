"""A report as one page of GitHub's Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from openeqa_lab.metrics import Estimate
from openeqa_lab.records import Record
from openeqa_lab.report.costs import costs, models
from openeqa_lab.report.markdown import clip, escape, number, settings_table, table

if TYPE_CHECKING:
    from openeqa_lab.report import Report

EXAMPLES = 10
FEW_EPISODES = 10  # below it a bootstrap over them is known to be too narrow

_TITLES = {"llm_match": "LLM-Match", "score": "Score"}
_FORMULAS = {
    "llm_match": "LLM-Match is 100 × the mean of (mark − 1) / 4 over the judged questions. "
    "Marks go from 1 to 5, so it goes from 0 to 100.",
    "score": "Score is 100 × the mean of the judge's scores over the judged questions. "
    "Scores go from 0 to 1, so it goes from 0 to 100.",
}
_LOWEST_AND_HIGHEST = {"llm_match": ("mark 1", "mark 5")}


def to_markdown(report: Report, records: Sequence[Record]) -> str:
    """The page; what others wrote (questions, answers, names, messages) shows letter for letter."""
    heads = headlines(report.estimates)
    episodes = len({record.case.episode for record in records if record.judged})
    sections = [
        f"# {escape(report.name)}\n",
        *_warnings(report),
        *_selection(report),
        *(_headline(key, report, episodes) for key in heads),
        _scorer(report),
        _progress(report),
        *(section for key in heads for section in _groups(key, report.estimates)),
        *_others(report.estimates, heads),
        *_failures(report),
        costs(report),
        *_examples(records),
        "## Identity\n\nThe settings that can change a number.\n\n"
        + settings_table(report.identity),
        "## Also recorded\n\n" + settings_table({**report.settings, "versions": report.versions}),
    ]
    return "\n".join(sections)


def headlines(estimates: Mapping[str, Estimate]) -> list[str]:
    """The keys that are broken down by category or split, the benchmark's own first."""
    found = [
        key
        for key in estimates
        if key in _TITLES
        or any(other.startswith((f"{key}/category/", f"{key}/split/")) for other in estimates)
    ]
    known = [key for key in _TITLES if key in found]
    return known + [key for key in found if key not in known]


def _warnings(report: Report) -> Iterator[str]:
    counts = report.counts
    if report.state != "complete":
        spent, go_on = report.state == "out of budget", "Start the same command again to go on.\n"
        yield (
            f"> **{'Stopped by its budget' if spent else 'Stopped before the end'}.** "
            f"{counts.unreached:,} of {counts.asked:,} questions "
            f"were not reached and {counts.unjudged:,} answers not judged. "
            + ("Raise run.budget_usd to go on.\n" if spent else go_on)
        )
    if counts.coverage is None:
        yield "> **No questions.** Nothing was asked.\n"
    elif not report.covered:
        yield (
            f"> **Coverage {_percent(counts.coverage)} is below the threshold of "
            f"{_percent(report.coverage_threshold)}.** {counts.judged:,} of {counts.asked:,} "
            "questions have a verdict: this is no number to publish. "
            "Start the same command again to try the failed ones once more.\n"
        )


def _selection(report: Report) -> Iterator[str]:
    """Whether the number is about a part of the question file."""
    questions = report.identity.get("questions")
    if isinstance(questions, Mapping) and questions.get("filters"):
        filters = ", ".join(escape(str(each)) for each in questions["filters"])
        yield (
            f"A selection: {questions['asked']:,} of the {questions['of']:,} questions of the "
            f"file ({filters}).\n"
        )


def _percent(share: float) -> str:
    """Rounded towards what is missing: 1,635 of 1,636 is not 100 %."""
    return f"{int(share * 1000 + 1e-9) / 10:.1f} %"


def _headline(key: str, report: Report, episodes: int) -> str:
    figure = report.estimates.get(key, Estimate(None))
    title = escape(_TITLES.get(key, key))
    counts = report.counts
    covered = "" if counts.coverage is None else f", coverage {_percent(counts.coverage)}"
    lines = [
        f"**{title} {_value(figure)}** ({_uncertainty(figure)}; "
        f"{figure.count:,} of {counts.asked:,} questions{covered})\n"
    ]
    low, high = (report.estimates.get(f"{key}/bounds/{end}") for end in ("low", "high"))
    missing = counts.asked - counts.judged
    if low is not None and high is not None and missing:
        lowest, highest = _LOWEST_AND_HIGHEST.get(key, ("the lowest score", "the highest"))
        lines.append(
            f"With {lowest} for all {missing:,} questions without a verdict it would be "
            f"{_value(low)}, with {highest} {_value(high)}.\n"
        )
    if 0 < episodes < FEW_EPISODES and figure.low is not None:
        lines.append(
            f"The interval rests on {episodes} episodes only, and is too narrow for that reason.\n"
        )
    if key in _FORMULAS:
        lines.append(f"{_FORMULAS[key]} Questions that failed do not enter it.\n")
    return "\n".join(lines)


def _value(figure: Estimate) -> str:
    return "–" if figure.value is None else f"{figure.value:.1f}"


def _interval(figure: Estimate) -> str:
    if figure.low is None or figure.high is None:
        return "–"
    return f"{figure.low:.1f} to {figure.high:.1f}"


def _uncertainty(figure: Estimate) -> str:
    error = "–" if figure.error is None else f"{figure.error:.1f}"
    return f"95 % interval {_interval(figure)}, standard error {error}"


def _scorer(report: Report) -> str:
    counts, judgements = report.counts, report.costs.judgements
    by = f"Judge: **{escape(report.scorer)}**, {judgements.usage.calls:,} calls to a model"
    if judgements.models:
        by += f" ({models(judgements)})"
    return f"{by}; {counts.without_call:,} of {counts.judged:,} verdicts needed no call.\n"


def _progress(report: Report) -> str:
    counts = report.counts
    rows = [
        ("asked", counts.asked),
        ("answered", counts.answered),
        *(
            (f"of these {'with a text' if name == 'answered' else escape(name)}", times)
            for name, times in counts.statuses.items()
        ),
        ("judged", counts.judged),
        ("failed", counts.failed),
        ("answered but not judged yet", counts.unjudged),
        ("not reached", counts.unreached),
    ]
    counted = table(("questions", "count"), ((word, f"{times:,}") for word, times in rows), [1])
    return (
        "## Questions\n\n" + counted + "\nAn answer that was refused, blocked or empty counts as "
        "the worst answer and is not judged. What failed counts as nothing.\n"
    )


def _groups(key: str, estimates: Mapping[str, Estimate]) -> Iterator[str]:
    for word in ("category", "split"):
        prefix = f"{key}/{word}/"
        rows = [
            (
                escape(name.removeprefix(prefix)),
                f"{figure.count:,}",
                _value(figure),
                _interval(figure),
                "–" if figure.error is None else f"{figure.error:.1f}",
            )
            for name, figure in estimates.items()
            if name.startswith(prefix)
        ]
        if rows:
            head = (word, "questions", escape(_TITLES.get(key, key)), "95 % interval", "error")
            title = f"## {escape(_TITLES.get(key, key))} by {word}\n\n"
            yield title + table(head, rows, [1, 2, 3, 4])


def _others(estimates: Mapping[str, Estimate], heads: Sequence[str]) -> Iterator[str]:
    shown = tuple(f"{key}/{word}/" for key in heads for word in ("category", "split", "bounds"))
    rows = [
        (
            escape(key),
            number(figure.value),
            number(figure.low),
            number(figure.high),
            number(figure.error),
            f"{figure.count:,}",
        )
        for key, figure in estimates.items()
        if key not in heads and not key.startswith(shown)
    ]
    if rows:
        head = ("figure", "value", "95 % low", "95 % high", "standard error", "count")
        yield "## Other figures\n\n" + table(head, rows, [1, 2, 3, 4, 5])


def _failures(report: Report) -> Iterator[str]:
    rows = [
        (
            f"{group.stage}: {escape(group.kind)}",
            f"{group.count:,}",
            f"{escape(group.case)}: {escape(clip(group.question))}",
            escape(clip(group.message)),
            escape(clip(group.raw)),
        )
        for group in report.counts.failures
    ]
    if rows:
        head = ("stage: kind", "count", "for example", "message", "reply")
        again = "\nEach is tried again when the same command is started again.\n"
        yield "## Failures\n\n" + table(head, rows, [1]) + again


def _examples(records: Sequence[Record]) -> Iterator[str]:
    """A few judged answers from all over the run, to see at a glance that they make sense."""
    judged = [record for record in records if record.judged and record.answer]
    chosen = judged[:: max(1, len(judged) // EXAMPLES)][:EXAMPLES]
    rows = [
        (
            escape(record.case.id),
            escape(clip(record.case.question.text)),
            escape(clip(record.case.answer)),
            escape(clip(record.answer.text or f"({record.answer.status})")),
            number(record.judged.score if record.judged.mark is None else record.judged.mark),
            escape(clip(record.judged.raw)),
        )
        for record in chosen
        if record.answer is not None and record.judged is not None
    ]
    if rows:
        head = ("id", "question", "reference", "answer", "mark or score", "judge's reply")
        title = f"## Some answers\n\n{len(rows)} of {len(judged):,}, evenly spaced.\n\n"
        yield title + table(head, rows, [4])
