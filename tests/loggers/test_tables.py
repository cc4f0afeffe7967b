from __future__ import annotations

from openeqa_lab.data.case import Case, Question
from openeqa_lab.loggers.tables import COLUMNS, breakdowns, row, text
from openeqa_lab.metrics import Estimate
from openeqa_lab.records import Answer, Failure, Record, Verdict

CASE = Case("q-1", Question("q-1", "What?"), "a chair", "spatial", "hm3d-v0/000")
ANSWER = Answer("a \ud83d chair")


def cells(record: Record) -> dict[str, object]:
    return dict(zip(COLUMNS, row(record), strict=True))


def test_a_judged_answer_has_mark_and_score_and_no_reason():
    found = cells(Record(CASE, None, (), ANSWER, Verdict(0.75, 4, "4")))
    assert (found["mark"], found["score"], found["reason"]) == (4, 0.75, None)
    assert (found["split"], found["status"], found["judge_reply"]) == ("hm3d", "answered", "4")
    assert found["answer"] == r"a \ud83d chair"


def test_what_has_no_score_says_why_in_a_column_of_its_own():
    failed = Failure("judge", "unparsed", "no mark in the reply")
    no_frames = Failure("episode", "episode_missing", "no such folder")
    reasons = {
        "judge: unparsed: no mark in the reply": Record(CASE, None, (), ANSWER, failed),
        "episode: episode_missing: no such folder": Record(CASE, result=no_frames),
        "not judged yet": Record(CASE, None, (), ANSWER),
        "not reached": Record(CASE),
    }
    for reason, record in reasons.items():
        found = cells(record)
        assert (found["mark"], found["score"], found["reason"]) == (None, None, reason)


def test_headlines_are_broken_down_by_category_and_split():
    estimates = {
        "score": Estimate(50.0, count=2),
        "score/category/a": Estimate(25.0, 20.0, 30.0, 2.5, 1),
        "score/split/hm3d": Estimate(None),
        "score/bounds/low": Estimate(10.0),
        "other": Estimate(1.0),
    }
    assert list(breakdowns(estimates)) == [
        (
            "score/by_category",
            ["category", "value", "low", "high", "error", "count"],
            [["a", 25.0, 20.0, 30.0, 2.5, 1]],
        ),
        (
            "score/by_split",
            ["split", "value", "low", "high", "error", "count"],
            [["hm3d", None, None, None, None, 0]],
        ),
    ]


def test_text_is_left_as_it_is_but_for_half_characters():
    assert text("é 日本 | \n") == "é 日本 | \n"
    assert text("\ud83d") == r"\ud83d"
