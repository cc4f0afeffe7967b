"""The question-only baseline: what it may learn from, and how it votes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from openeqa_lab.data.case import Question
from openeqa_lab.data.datasets import Dataset
from openeqa_lab.errors import CaseError, OpenEQAError
from openeqa_lab.reasoners.prior import Prior
from openeqa_lab.testing import check_reasoner


def questions(folder: Path, *rows: tuple[str, str, str], **knobs: int) -> Dataset:
    """A question file of (episode, question, answer), ids q-0 and on."""
    path = folder / "questions.json"
    content = [
        {"question_id": f"q-{n}", "episode_history": e, "question": q, "answer": a, "category": "c"}
        for n, (e, q, a) in enumerate(rows)
    ]
    path.write_text(json.dumps(content), "utf-8")
    return Dataset(path, **knobs)  # type: ignore[arg-type]


async def said(prior: Prior, dataset: Dataset, number: int = 0) -> str:
    answer = await prior.answer(dataset.whole[number].question, ())
    assert answer.status == "answered"
    assert answer.usage.calls == 0
    return answer.text


async def test_the_most_similar_question_of_another_episode_answers(tmp_path: Path) -> None:
    dataset = questions(
        tmp_path,
        ("s/1", "What color is the sofa?", "red"),
        ("s/2", "Where is the lamp?", "on the desk"),
        ("s/2", "What color is the big sofa?", "blue"),
    )
    assert await said(Prior(dataset, 1), dataset) == "blue"


async def test_the_asked_questions_episode_is_left_out(tmp_path: Path) -> None:
    dataset = questions(
        tmp_path,
        ("s/1", "What color is the sofa?", "red"),
        ("s/1", "What color is the sofa?", "red"),
        ("s/2", "Where is the lamp?", "on the desk"),
    )
    assert await said(Prior(dataset), dataset) == "on the desk"


async def test_votes_are_weighted_and_wordings_of_one_answer_count_together(
    tmp_path: Path,
) -> None:
    dataset = questions(
        tmp_path,
        ("s/1", "Is the door open?", "?"),
        ("s/2", "Is the door open?", "Yes"),
        ("s/3", "Is the door open?", "No."),
        ("s/4", "Is the door open?", "no"),
        ("s/5", "Where is a vase?", "yes"),
        ("s/6", "Where is a cup?", "yes"),
    )
    assert await said(Prior(dataset, 5), dataset) == "No."


async def test_ties_go_to_the_first_in_the_file_and_never_change(tmp_path: Path) -> None:
    rows = [(f"s/{n}", "Is the door open?", word) for n, word in enumerate(("?", "b", "a", "c"))]
    dataset = questions(tmp_path, *rows)
    assert [await said(Prior(dataset), dataset) for _ in range(3)] == ["b"] * 3


@pytest.mark.parametrize("text", ["Xylophone quux?", "???", "Ünïcödé"])
async def test_a_question_like_no_other_gets_the_commonest_answer(
    text: str, tmp_path: Path
) -> None:
    dataset = questions(
        tmp_path,
        ("s/1", text, "?"),
        ("s/2", "Is it open?", "yes"),
        ("s/3", "Where is it?", "in the hall"),
        ("s/4", "Is it shut?", "in the hall"),
    )
    assert await said(Prior(dataset, 1), dataset) == "in the hall"


async def test_how_many_are_asked_does_not_change_an_answer(tmp_path: Path) -> None:
    rows = [("s/1", "What color is the sofa?", "red"), ("s/2", "What color is a sofa?", "blue")]
    few, all_ = questions(tmp_path, *rows, limit=1), questions(tmp_path, *rows)
    assert len(few) == 1
    assert await said(Prior(few), few) == await said(Prior(all_), all_) == "blue"
    assert Prior(few).identity == Prior(all_).identity


async def test_a_question_that_is_not_in_the_file_is_not_guessed(tmp_path: Path) -> None:
    dataset = questions(tmp_path, ("s/1", "Is it open?", "yes"), ("s/2", "Is it red?", "no"))
    with pytest.raises(CaseError, match="question q-99 is not in the file") as caught:
        await Prior(dataset).answer(Question("q-99", "Is it open?"), ())
    assert caught.value.kind == "unknown_question"


async def test_a_file_of_one_episode_has_no_prior(tmp_path: Path) -> None:
    dataset = questions(tmp_path, ("s/1", "Is it open?", "yes"), ("s/1", "Is it red?", "no"))
    with pytest.raises(CaseError, match="no answers of other episodes") as caught:
        await Prior(dataset).answer(dataset[0].question, ())
    assert caught.value.kind == "no_prior"


def test_no_neighbours_is_refused(tmp_path: Path) -> None:
    dataset = questions(tmp_path, ("s/1", "Is it open?", "yes"))
    with pytest.raises(OpenEQAError, match=r"reasoner\.neighbours is 0: expected 1 or more"):
        Prior(dataset, 0)


async def test_the_official_questions_are_answered_from_other_episodes(shared: Path) -> None:
    dataset = Dataset(shared / "data/openeqa/open-eqa-v0.json")
    prior = Prior(dataset)
    await check_reasoner(prior, dataset[0].question)
    started = time.process_time()
    answers = {case.id: (await prior.answer(case.question, ())).text for case in dataset}
    assert time.process_time() - started < 10  # measured: under 2 s
    assert len(answers) == 1636
    assert all(text.strip() for text in answers.values())
    assert len(set(answers.values())) > 100
