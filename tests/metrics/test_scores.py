"""The headline figures: what enters them, what stays out, and the node set's own."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from openeqa_lab.data.case import Case, Question
from openeqa_lab.errors import OpenEQAError
from openeqa_lab.metrics import Estimate
from openeqa_lab.metrics.scores import Nodeset, Score, sentinel
from openeqa_lab.records import Answer, AnswerStatus, Failure, Record, Verdict
from openeqa_lab.testing import check_metric

SCORE = Score(resamples=2000, seed=1234)
UNPARSED = Failure("judge", "unparsed", "no mark")
TIMEOUT = Failure("answer", "timeout", "too slow")


def record(
    mark: int | None,
    episode: str = "hm3d-v0/900-a",
    category: str = "object recognition",
    number: int = 0,
    status: AnswerStatus = "answered",
) -> Record:
    case = Case(f"q-{number}", Question(f"q-{number}", "What?"), "cup", category, episode)
    verdict = UNPARSED if mark is None else Verdict((mark - 1) / 4, mark)
    return Record(case, result=Answer("cup", status), verdict=verdict)


def scored(score: float, episode: str = "hm3d-v0/900-a") -> Record:
    case = Case("q", Question("q", "What?"), "cup", "object recognition", episode)
    return Record(case, result=Answer("cup"), verdict=Verdict(score))


def missing(result: Failure | None = None, number: int = 0) -> Record:
    return Record(record(1, number=number).case, result=result)


def public_records(shared: Path) -> tuple[list[Record], dict[str, object]]:
    case = json.loads((shared / "cases/marks.json").read_text())
    rows = case["marks"]
    records = [
        record(row["mark"], row["episode_history"], row["category"], number)
        for number, row in enumerate(rows)
    ]
    return records, case["right"]


def test_the_public_case(shared: Path) -> None:
    records, right = public_records(shared)

    found = Score(10_000, 0).compute(records)

    overall = found["llm_match"]
    assert overall.value == pytest.approx(right["llm_match"])
    assert overall.count == right["N"]
    exact = right["bootstrap_exact"]
    assert isinstance(exact, dict)
    assert overall.error is not None
    assert abs(overall.error - exact["se"]) < 4 * exact["se"] / math.sqrt(2 * 10_000)
    assert (overall.low, overall.high) == (exact["p2_5_linear"], exact["p97_5_linear"])
    for part, name in (("category", "per_category"), ("split", "per_split")):
        values = right[name]
        assert isinstance(values, dict)
        for word, value in values.items():
            assert found[f"llm_match/{part}/{word}"].value == pytest.approx(value)
    counts = right["per_category_n"]
    assert isinstance(counts, dict)
    assert {word: found[f"llm_match/category/{word}"].count for word in counts} == counts
    assert found["coverage"] == Estimate(1.0, count=12)
    assert found["llm_match/bounds/low"].value == found["llm_match/bounds/high"].value


def test_failures_stay_out_of_the_mean_and_widen_the_bounds(shared: Path) -> None:
    records, right = public_records(shared)
    more = right["with_two_more_asked_but_unparsed"]
    assert isinstance(more, dict)
    records += [record(None, number=20), missing(TIMEOUT, 21)]

    found = SCORE.compute(records)

    assert found["llm_match"].value == pytest.approx(more["mean_over_judged"])
    assert found["llm_match"].count == more["judged"]
    assert found["coverage"] == Estimate(more["coverage"], count=more["asked"])
    assert found["llm_match/bounds/low"].value == pytest.approx(more["bound_all_1"])
    assert found["llm_match/bounds/high"].value == pytest.approx(more["bound_all_5"])


def test_the_overall_is_a_mean_over_questions_not_over_parts() -> None:
    records = [record(5, "hm3d-v0/a"), record(5, "hm3d-v0/b"), record(1, "scannet-v0/c")]

    found = SCORE.compute(records)

    assert found["llm_match"].value == pytest.approx(200 / 3)
    assert found["llm_match/split/hm3d"].value == 100
    assert found["llm_match/split/scannet"].value == 0


def test_the_order_of_records_does_not_matter() -> None:
    generator = random.Random(0)
    records = [scored(generator.random(), f"hm3d-v0/{number % 13}") for number in range(200)]
    shuffled = generator.sample(records, len(records))

    assert SCORE.compute(records) == SCORE.compute(shuffled)


def test_one_episode_has_a_value_and_no_interval() -> None:
    assert SCORE.compute([record(5), record(1)])["llm_match"] == Estimate(50.0, count=2)


def test_scores_without_marks_have_their_own_key() -> None:
    found = SCORE.compute([scored(0.5), scored(1.0, "hm3d-v0/b"), missing(TIMEOUT)])

    assert found["score"].value == 75
    assert found["score/bounds/low"].value == 50
    assert found["score/bounds/high"].value == pytest.approx(250 / 3)
    assert not any(key.startswith("llm_match") for key in found)


def test_nothing_gives_nothing() -> None:
    found = SCORE.compute([])

    assert found["score"] == Estimate(None)
    assert found["coverage"] == Estimate(None)
    assert found["score/bounds/low"] == Estimate(None)
    assert found["answers/answered"].value == 0


def test_all_failed_is_no_zero() -> None:
    found = SCORE.compute([record(None), missing(TIMEOUT), missing(None)])

    assert found["score"] == Estimate(None)
    assert found["score/category/object recognition"] == Estimate(None)
    assert found["coverage"] == Estimate(0.0, count=3)
    assert found["score/bounds/low"].value == 0
    assert found["score/bounds/high"].value == 100


def test_bad_answers_count_and_are_counted_by_kind() -> None:
    records = [
        record(5),
        record(1, status="refused"),
        record(1, status="blocked"),
        record(1, status="empty"),
        record(1, status="empty"),
        record(None),
        missing(TIMEOUT),
        missing(None),
    ]

    found = SCORE.compute(records)

    assert found["llm_match"].value == 20
    assert {key: found[key].value for key in found if key.startswith("answers/")} == {
        "answers/answered": 2,
        "answers/refused": 1,
        "answers/blocked": 1,
        "answers/empty": 2,
        "answers/failed": 1,
        "answers/missing": 1,
    }


def test_an_episode_or_category_without_a_name_is_called_so() -> None:
    found = SCORE.compute([record(5, "lounge", "")])

    assert found["llm_match/split/unnamed"].value == 100
    assert found["llm_match/category/unnamed"].value == 100


@pytest.mark.parametrize(
    ("resamples", "seed", "message"),
    [
        (1, 0, "score.resamples is 1"),
        (0, 0, "score.resamples is 0"),
        (10, -1, "score.seed is -1"),
    ],
)
def test_knobs_out_of_range_are_refused(resamples: int, seed: int, message: str) -> None:
    with pytest.raises(OpenEQAError, match=message):
        Score(resamples, seed)


@pytest.mark.parametrize("metric", [SCORE, Nodeset()])
def test_the_contract_is_kept(metric: Score | Nodeset) -> None:
    check_metric(metric)


@pytest.mark.parametrize(
    ("given", "pair"),
    [
        (record(1), (1.0, 0.0)),
        (record(4), (4.0, 0.75)),
        (record(5), (5.0, 1.0)),
        (record(None), (-1.0, 0.0)),
        (Record(record(1).case, None, (), Answer("x"), Failure("judge", "empty", "")), (-1.0, 0.0)),
        (Record(record(1).case, None, (), Answer("x"), Failure("judge", "auth", "")), (-1.0, 0.0)),
        (missing(TIMEOUT), None),
        (missing(None), None),
        (scored(0.5), None),
    ],
)
def test_the_node_sets_sentinels(given: Record, pair: tuple[float, float] | None) -> None:
    assert sentinel(given) == pair


def test_the_node_sets_means_let_failures_in() -> None:
    records = [record(5), record(4), record(None), missing(TIMEOUT)]

    assert Nodeset().compute(records) == {
        "openeqa_score": Estimate((5 + 4 - 1) / 3, count=3),
        "openeqa_llm_match": Estimate((1 + 0.75 + 0) / 3, count=3),
    }


def test_the_node_sets_means_over_nothing_are_none() -> None:
    assert Nodeset().compute([missing(None)]) == {
        "openeqa_score": Estimate(None),
        "openeqa_llm_match": Estimate(None),
    }
