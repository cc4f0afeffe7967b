"""Cost a question: an unknown price is never zero."""

from __future__ import annotations

import pytest

from openeqa_lab.metrics import Estimate
from openeqa_lab.metrics.usage import UsagePerQuestion
from openeqa_lab.records import Answer, Failure, Record, Shown, Usage, Verdict
from openeqa_lab.testing import check_metric, tiny_case

ANSWER = Usage(1, 1000, 20, 0.03, 2.0)
JUDGED = Usage(2, 300, 4, 0.01, 1.0)


def record(
    answer: Usage = ANSWER,
    judged: Usage | None = JUDGED,
    shown: int = 5,
    earlier: Usage | None = None,
) -> Record:
    frames = tuple(Shown(f"e/{index}.png", index) for index in range(shown))
    verdict = None if judged is None else Verdict(1.0, 5, usage=judged)
    result = Answer("red", usage=answer)
    return Record(tiny_case(), None, frames, result, verdict, earlier or Usage())


def values(*records: Record) -> dict[str, float | None]:
    return {key: each.value for key, each in UsagePerQuestion().compute(records).items()}


def test_answer_and_judgement_are_counted_together() -> None:
    found = values(record(), record(judged=None, shown=3))

    assert found == {
        "per_question/calls": 2,
        "per_question/prompt_tokens": 1150,
        "per_question/completion_tokens": 22,
        "per_question/seconds": 2.5,
        "per_question/frames": 4,
        "per_question/dollars": pytest.approx(0.035),
        "total/dollars": pytest.approx(0.07),
        "total/dollars_known": pytest.approx(0.07),
        "total/unpriced": 0,
    }


@pytest.mark.parametrize(
    "records",
    [
        [record(), record(answer=Usage(1, 5, 5, None))],
        [record(), record(judged=Usage(1, 5, 5, None))],
    ],
)
def test_one_unknown_price_makes_the_sum_unknown_and_keeps_the_known_part(
    records: list[Record],
) -> None:
    found = values(*records)

    assert found["per_question/dollars"] is None
    assert found["total/dollars"] is None
    assert found["total/unpriced"] == 1
    known = found["total/dollars_known"]
    assert known is not None
    assert 0.04 < known < 0.08


def test_replaced_attempts_enter_the_total_and_not_the_means() -> None:
    found = values(record(earlier=Usage(3, 5000, 60, 0.5, 90.0)))

    assert found["per_question/calls"] == 3
    assert found["per_question/seconds"] == 3
    assert found["per_question/dollars"] == pytest.approx(0.04)
    assert found["total/dollars"] == pytest.approx(0.54)


def test_a_replaced_attempt_of_unknown_price_makes_the_total_unknown_alone() -> None:
    found = values(record(earlier=Usage(1, 5, 5, None)))

    assert found["per_question/dollars"] == pytest.approx(0.04)
    assert found["total/dollars"] is None
    assert found["total/unpriced"] == 1


def test_free_is_zero_and_not_unknown() -> None:
    found = values(record(answer=Usage(1, 5, 5, 0.0), judged=Usage()))

    assert found["per_question/dollars"] == 0
    assert found["total/dollars"] == 0


def test_failures_cost_what_they_cost() -> None:
    failed = Failure("answer", "timeout", "slow", usage=Usage(3, 30, 0, 0.3, 270.0))
    unparsed = Failure("judge", "unparsed", "no mark", usage=JUDGED)
    records = [
        Record(tiny_case(), result=failed),
        Record(tiny_case(), result=Answer("red", usage=ANSWER), verdict=unparsed),
    ]

    found = values(*records)

    assert found["total/dollars"] == pytest.approx(0.34)
    assert found["per_question/calls"] == 3
    assert found["per_question/frames"] == 0


def test_cases_that_were_not_reached_enter_nothing() -> None:
    assert values(record(), Record(tiny_case())) == values(record())


def test_nothing_gives_nothing() -> None:
    found = UsagePerQuestion().compute([])

    assert found["per_question/dollars"] == Estimate(None)
    assert found["per_question/frames"] == Estimate(None)
    assert found["total/dollars"] == Estimate(None)
    assert found["total/unpriced"].value == 0


def test_the_contract_is_kept() -> None:
    check_metric(UsagePerQuestion())
