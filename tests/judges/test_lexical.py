"""Word-for-word judging: one normaliser on both sides, and the rule for yes and no."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openeqa_lab.data.case import Case, Question
from openeqa_lab.judges import Judge
from openeqa_lab.judges.lexical import Exact, TokenF1, agree_on_polarity, normalise
from openeqa_lab.records import Answer
from openeqa_lab.testing import check_judge, tiny_case


def case(answer: str, *extra: str) -> Case:
    return Case("q", Question("q", "What?"), answer, "x", "hm3d-v0/1", extra)


async def score(judge: Judge, prediction: str, answer: str, *extra: str) -> float:
    verdict = await judge.judge(case(answer, *extra), Answer(prediction))
    assert verdict.mark is None
    return verdict.score


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("the cat", "cat"),
        ("The  Cat.", "cat"),
        ("A", "a"),
        ("the", "the"),
        ("The A", "the a"),
        ("an", "an"),
        ("Black.", "black"),
        ("T.V.", "tv"),
        ("T.V", "tv"),
        ("TV", "tv"),
        ("a T.V. stand", "tv stand"),
        ("two", "2"),
        ("Two chairs", "2 chairs"),
        ("twenty-one", "21"),
        ("twenty one", "21"),
        ("twenty", "20"),
        ("twenty ten", "20 10"),
        ("20 1", "20 1"),
        ("ninety nine nine", "99 9"),
        ("zero", "0"),
        ("twenty zero", "20 0"),
        ("1.5 meters", "1.5 meters"),
        ("1.5.", "1.5"),
        (".5", "5"),
        ("1,500", "1500"),
        ("1,50", "1 50"),
        ("1, 2", "1 2"),
        ("black/white", "black white"),
        ("T-shirt", "t shirt"),
        ("it's", "its"),
        ("it’s", "its"),
        ("$5", "5"),
        ("100%", "100"),
        ("+", "+"),
        ("?!", "?!"),
        ("", ""),
        (" \n ", ""),
        ("Ｔｗｏ", "2"),
        ("²", "2"),
        ("ﬁre", "fire"),
        ("CAFÉ", "café"),
        ("İstanbul", "i̇stanbul"),
        ("छोटी मेज", "छोटी मेज"),
        ("the\u00a0cat", "cat"),
        ("sun\u200bset", "sunset"),
        ("snake_case", "snake case"),
        ("No. 5", "no 5"),
    ],
)
def test_what_counts_of_a_text(text: str, normal: str) -> None:
    assert normalise(text) == normal
    assert normalise(normal) == normal


def test_normalising_official_answers_twice_changes_nothing(shared: Path) -> None:
    rows = json.loads((shared / "data/openeqa/open-eqa-v0.json").read_text())
    texts = [text for row in rows for text in (row["answer"], *row.get("extra_answers", []))]

    assert len(texts) == 1636 + 4 * 263
    for text in texts:
        assert normalise(normalise(text)) == normalise(text)
        assert bool(normalise(text)) == bool(text.strip())


@settings(deadline=None)
@given(st.text())
def test_normalising_any_text_twice_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


async def test_public_bug_reports(shared: Path) -> None:
    with (shared / "cases/lexical.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))

    assert len(rows) == 10
    for row in rows:
        extra = json.loads(row["extra_answers"])
        found = await score(Exact(), row["prediction"], row["answer"], *extra)
        # Where the right value is free: yes and no go by the first word, T.V. is TV.
        assert found == (0.0 if row["right"] == "no match" else 1.0), row
        turned = await score(Exact(), row["answer"], row["prediction"])
        assert turned == found, row


@pytest.mark.parametrize(
    ("prediction", "answer", "exact", "f1"),
    [
        ("the cat", "the cat", 1, 1),
        ("the cat", "cat", 1, 1),
        ("Black.", "black", 1, 1),
        ("Two", "2", 1, 1),
        ("two", "three", 0, 0),
        ("left", "right", 0, 0),
        ("a brown couch", "couch", 0, 2 / 3),
        ("brown brown couch", "brown couch couch", 0, 2 / 3),
        ("couch brown", "brown couch", 0, 1),
        ("", "couch", 0, 0),
        ("+", "+", 1, 1),
        ("+", "-", 0, 0),
        # yes and no
        ("no", "No, it is closed", 1, 1),
        ("No, it is closed", "no", 1, 1),
        ("yes, it is open", "no, it is open", 0, 0),
        ("Yes there is a lamp", "yes", 1, 1),
        ("yes", "Yes there is a lamp", 1, 1),
        ("No. There is a lamp next to it", "no", 1, 1),
        ("Yeah!", "yes", 1, 1),
        ("nope", "yes", 0, 0),
        ("**Yes**", "yes", 1, 1),
        ("no - closed", "no", 1, 1),
        ("no smoking", "no parking", 0, 0.5),
        ("no-smoking sign", "no parking", 0, 2 / 5),
        ("nothing", "no", 0, 0),
        ("it is closed", "no", 0, 0),
        ("it is closed", "no, it is closed", 0, 6 / 7),
        ("yes/no", "yes/no", 1, 1),
        ("none", "no", 0, 0),
        ("not sure", "no", 0, 0),
    ],
)
async def test_both_judges(prediction: str, answer: str, exact: float, f1: float) -> None:
    assert await score(Exact(), prediction, answer) == exact
    assert await score(TokenF1(), prediction, answer) == pytest.approx(f1)


@pytest.mark.parametrize("judge", [Exact(), TokenF1()])
async def test_the_closest_of_the_right_answers_counts(judge: Judge) -> None:
    assert await score(judge, "the table", "desk", "Table", "bench") == 1.0
    assert await score(judge, "bench", "desk", "table", "A bench") == 1.0
    assert await score(judge, "sofa", "desk", "table", "bench") == 0.0


@pytest.mark.parametrize("judge", [Exact(), TokenF1()])
async def test_the_contract_is_kept(judge: Judge) -> None:
    await check_judge(judge, tiny_case())
    assert judge.scale == "0-1"
    assert judge.identity["name"] in ("exact", "token_f1")


@settings(deadline=None)
@given(st.text(), st.text())
def test_yes_and_no_are_decided_the_same_both_ways(one: str, two: str) -> None:
    assert agree_on_polarity(one, two) == agree_on_polarity(two, one)


@settings(deadline=None)
@given(st.text(min_size=1), st.text(min_size=1))
async def test_scores_stay_within_bounds_and_agree(one: str, two: str) -> None:
    exact, f1 = await score(Exact(), one, two), await score(TokenF1(), one, two)

    assert 0 <= f1 <= 1
    assert exact in (0.0, 1.0)
    assert exact == 0 or f1 == 1 or not normalise(one).split()


async def test_the_official_answers_match_themselves(shared: Path) -> None:
    for row in json.loads((shared / "data/openeqa/open-eqa-v0.json").read_text()):
        answer = row["answer"]
        assert await score(Exact(), answer, answer) == 1.0
        assert await score(TokenF1(), answer.upper() + ".", answer) == 1.0
