"""Meaning by word vectors, after exact rules for yes, no and numbers."""

from __future__ import annotations

import asyncio
import threading

import pytest

from openeqa_lab.data.case import Case, Question
from openeqa_lab.errors import OpenEQAError
from openeqa_lab.judges import semantic
from openeqa_lab.judges.semantic import Semantic, _by_rule
from openeqa_lab.records import Answer
from openeqa_lab.testing import check_judge, tiny_case


@pytest.fixture(scope="module")
def judge() -> Semantic:
    pytest.importorskip("wordllama", reason="needs the extra [semantic]")
    return Semantic()


async def score(judge: Semantic, prediction: str, answer: str, *extra: str) -> float:
    case = Case("q", Question("q", "What?"), answer, "x", "hm3d-v0/1", extra)
    verdict = await judge.judge(case, Answer(prediction))
    assert verdict.mark is None
    return verdict.score


@pytest.mark.parametrize(
    ("prediction", "reference", "right"),
    [
        ("Yes.", "yes", 1.0),
        ("no", "yes", 0.0),
        ("No, it is closed", "no", 1.0),
        ("yes, it is open", "no, it is open", 0.0),
        ("it is open", "yes", 0.0),
        ("it is open", "yes, it is open", None),
        ("The Couch", "couch", 1.0),
        ("2", "two", 1.0),
        ("three", "2", 0.0),
        ("there are three", "3", 1.0),
        ("there are some", "3", 0.0),
        ("three chairs", "2 chairs", 0.0),
        ("three wooden chairs", "3 chairs", None),
        ("chairs", "2 chairs", 0.0),
        ("2 brown chairs", "brown chairs", None),
        ("the left", "the left one", None),
        ("one chair", "a chair", None),
        ("2 chairs", "one chair", 0.0),
        ("1.5 m", "15 m", 0.0),
        ("sofa", "couch", None),
    ],
)
def test_rules_come_first(prediction: str, reference: str, right: float | None) -> None:
    assert _by_rule(prediction, reference) == right


async def test_close_meanings_score_higher_than_distant_ones(judge: Semantic) -> None:
    same = await score(judge, "the brown sofa", "brown couch")
    other = await score(judge, "the blue vase", "brown couch")

    assert 0 <= other < 0.5 < same <= 1


async def test_rules_win_over_vectors(judge: Semantic) -> None:
    assert await score(judge, "no", "yes") == 0
    assert await score(judge, "four", "three") == 0
    assert await score(judge, "four", "three", "4") == 1


async def test_the_closest_of_the_right_answers_counts(judge: Semantic) -> None:
    alone = await score(judge, "on the table", "in the kitchen")
    both = await score(judge, "on the table", "in the kitchen", "upon the dining table")

    assert both > alone


@pytest.mark.parametrize("text", ["", " ", "?!", "🛋️", "\u0000", "x" * 20_000])
async def test_odd_texts_have_a_score_all_the_same(judge: Semantic, text: str) -> None:
    assert 0 <= await score(judge, text, "a couch") <= 1
    assert 0 <= await score(judge, "a couch", text or "?") <= 1


async def test_a_score_does_not_depend_on_company(judge: Semantic) -> None:
    alone = await score(judge, "brown sofa", "couch")
    crowd = await asyncio.gather(*(score(judge, "brown sofa", "couch") for _ in range(20)))

    assert set(crowd) == {alone}


async def test_vectors_are_made_off_the_event_loop(judge: Semantic) -> None:
    seen: list[int] = []

    class Watched(Semantic):
        def _closest(self, prediction: str, references: object) -> float:
            seen.append(threading.get_ident())
            return 0.5

    await score(Watched(), "sofa", "couch")

    assert seen
    assert seen[0] != threading.get_ident()


async def test_the_contract_is_kept(judge: Semantic) -> None:
    await check_judge(judge, tiny_case())
    assert judge.scale == "0-1"
    assert judge.identity["wordllama"]


def test_a_missing_package_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(semantic.util, "find_spec", lambda name: None)

    with pytest.raises(OpenEQAError, match=r"pip install 'openeqa-lab\[semantic\]'"):
        Semantic()
