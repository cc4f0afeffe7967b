"""How well the questions were answered, in percent."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import get_args

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.metrics import Estimate
from openeqa_lab.metrics.intervals import cluster_bootstrap
from openeqa_lab.records import AnswerStatus, Failure, Record


class Score:
    """The mean score in percent, over questions: 100 * mean((mark - 1) / 4) where there are marks.

    That is LLM-Match (OpenEQA paper, equation 1). The keys, `<key>` being ``llm_match`` when the
    verdicts carry marks and ``score`` when they do not:

    - ``<key>``, ``<key>/split/<split>``, ``<key>/category/<category>``: over what was judged, each
      question counting once, with a 95 % interval by bootstrap over episodes (none for
      one episode).
    - ``<key>/bounds/low``, ``<key>/bounds/high``: over all that was asked, as if everything not
      judged had been wrong, or right.
    - ``coverage``: judged / asked, from 0 to 1. Asked is every record, reached or not.
    - ``answers/<status>``: how many were answered, refused, blocked or empty; ``answers/failed``:
      how many could not be had; ``answers/missing``: how many were not reached.

    Below some ten episodes such an interval is too narrow: 2, 3 and 5 of them cover the truth 64,
    87 and 87 times in a hundred instead of 95.

    Args:
        resamples: Bootstrap draws, at least 2.
        seed: Of the draws.
    """

    def __init__(self, resamples: int, seed: int) -> None:
        if resamples < 2:
            raise OpenEQAError(f"score.resamples is {resamples}: it must be 2 or more")
        if seed < 0:
            raise OpenEQAError(f"score.seed is {seed}: it must be 0 or more")
        self._resamples = resamples
        self._seed = seed

    def compute(self, records: Sequence[Record], /) -> Mapping[str, Estimate]:
        """The figures; those that nothing entered have the value None and the count 0."""
        verdicts = [record.judged for record in records if record.judged is not None]
        marked = bool(verdicts) and all(verdict.mark is not None for verdict in verdicts)
        key = "llm_match" if marked else "score"
        figures = {key: self._mean(records)}
        for part, members in _grouped(records, lambda record: record.case.split):
            figures[f"{key}/split/{part}"] = self._mean(members)
        for part, members in _grouped(records, lambda record: record.case.category):
            figures[f"{key}/category/{part}"] = self._mean(members)
        return {**figures, **_bounds(key, records), **_counts(records)}

    def _mean(self, records: Sequence[Record]) -> Estimate:
        by_episode: dict[str, list[float]] = defaultdict(list)
        for record in records:
            if record.judged is not None:
                by_episode[record.case.episode].append(record.judged.score)
        scores = [score for episode in by_episode.values() for score in episode]
        if not scores:
            return Estimate(None)
        value = 100 * math.fsum(scores) / len(scores)
        interval = cluster_bootstrap(by_episode, resamples=self._resamples, seed=self._seed)
        if interval is None:
            return Estimate(value, count=len(scores))
        return Estimate(
            value,
            low=100 * interval.low,
            high=100 * interval.high,
            error=100 * interval.error,
            count=len(scores),
        )


class Nodeset:
    """The node set's two means, each with its sentinel for a judgement that failed.

    ``openeqa_score`` is the mean of the marks with -1.0 for a failed judgement, and
    ``openeqa_llm_match`` the mean of (mark - 1) / 4, from 0 to 1, with 0.0 for it. They let
    failures into a mean, which no figure of our own does: they are here to be compared with that
    tool's.
    """

    def compute(self, records: Sequence[Record], /) -> Mapping[str, Estimate]:
        """Both means over the cases that came to be judged."""
        pairs = [pair for pair in map(sentinel, records) if pair is not None]
        return {
            "openeqa_score": _plain_mean([mark for mark, _ in pairs]),
            "openeqa_llm_match": _plain_mean([match for _, match in pairs]),
        }


def sentinel(record: Record) -> tuple[float, float] | None:
    """One case's ``openeqa_score`` and ``openeqa_llm_match``.

    (-1.0, 0.0) when the judge's reply was unparsed, empty or refused, or its call failed. None when
    the case did not come to be judged, or its judge gives no marks.
    """
    if isinstance(record.verdict, Failure):
        return -1.0, 0.0
    if record.verdict is None or record.verdict.mark is None:
        return None
    return float(record.verdict.mark), (record.verdict.mark - 1) / 4


def _bounds(key: str, records: Sequence[Record]) -> Mapping[str, Estimate]:
    scores = [record.judged.score for record in records if record.judged is not None]
    asked, total = len(records), math.fsum(scores)
    if not asked:
        nothing = Estimate(None)
        return {f"{key}/bounds/low": nothing, f"{key}/bounds/high": nothing, "coverage": nothing}
    missing = asked - len(scores)
    return {
        f"{key}/bounds/low": Estimate(100 * total / asked, count=asked),
        f"{key}/bounds/high": Estimate(100 * (total + missing) / asked, count=asked),
        "coverage": Estimate(len(scores) / asked, count=asked),
    }


def _counts(records: Sequence[Record]) -> Mapping[str, Estimate]:
    found: dict[str, int] = dict.fromkeys((*get_args(AnswerStatus), "failed", "missing"), 0)
    for record in records:
        if record.result is None:
            found["missing"] += 1
        elif isinstance(record.result, Failure):
            found["failed"] += 1
        else:
            found[record.result.status] += 1
    return {f"answers/{kind}": Estimate(float(n), count=n) for kind, n in found.items()}


def _grouped(
    records: Sequence[Record], part: Callable[[Record], str]
) -> Iterable[tuple[str, Sequence[Record]]]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[part(record) or "unnamed"].append(record)
    return sorted(groups.items())


def _plain_mean(values: Sequence[float]) -> Estimate:
    if not values:
        return Estimate(None)
    return Estimate(math.fsum(values) / len(values), count=len(values))
