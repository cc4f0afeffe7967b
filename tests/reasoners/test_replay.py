"""Answers from run folders and from everybody's prediction files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openeqa_lab.data.case import Question
from openeqa_lab.data.datasets import Dataset
from openeqa_lab.entries import AnswerLine, FailureLine, VerdictLine
from openeqa_lab.errors import CaseError, OpenEQAError
from openeqa_lab.journal import Journal
from openeqa_lab.reasoners.replay import Replay
from openeqa_lab.records import Answer, EpisodeTrace, Failure, Usage, Verdict
from openeqa_lab.testing import check_reasoner

FIRST, SECOND = Question("q-0", "Is it open?"), Question("q-1", "Is it red?")


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    path = tmp_path / "questions.json"
    rows = [
        {"question_id": q.id, "question": q.text, "answer": "yes", "episode_history": "s/1"}
        for q in (FIRST, SECOND)
    ]
    path.write_text(json.dumps(rows), "utf-8")
    return Dataset(path)


def replay(folder: Path, dataset: Dataset, content: object, **knobs: Any) -> Replay:
    path = folder / "predictions.json"
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, "utf-8")
    return Replay(str(path), dataset, **knobs)


@pytest.mark.parametrize(
    "content",
    [
        [{"question_id": "q-0", "answer": "no"}, {"question_id": "q-1", "answer": None}],
        [{"id": "q-0", "pred": "no"}, {"id": "q-1", "pred": ""}],
        [{"qid": "q-0", "response": "no", "answer": "yes"}, {"qid": "q-1", "response": " \n"}],
        {"predictions": [{"question_id": "q-0", "prediction": "no", "episode_history": "s/1"},
                         {"question_id": "q-1", "prediction": None, "episode_history": "s/1"}]},
        {"q-0": "no", "q-1": None},
        "\ufeff" + json.dumps([{"question_id": "q-0", "answer": "no"},
                               {"question_id": "q-1", "answer": None}]),
    ],
)  # fmt: skip
async def test_lists_and_objects_of_many_names_are_read(
    content: object, tmp_path: Path, dataset: Dataset
) -> None:
    reasoner = replay(tmp_path, dataset, content)
    await check_reasoner(reasoner, FIRST)
    assert await reasoner.answer(FIRST, ()) == Answer("no")
    empty = await reasoner.answer(SECOND, ())
    assert (empty.text, empty.status) == ("", "empty")


async def test_a_text_stays_letter_for_letter_and_a_number_becomes_one(
    tmp_path: Path, dataset: Dataset
) -> None:
    rows = [{"question_id": "q-0", "answer": " {a} 1.5 m "}, {"question_id": "q-1", "answer": 3}]
    reasoner = replay(tmp_path, dataset, rows)
    assert (await reasoner.answer(FIRST, ())).text == " {a} 1.5 m "
    assert (await reasoner.answer(SECOND, ())).text == "3"


async def test_other_field_names_can_be_given(tmp_path: Path, dataset: Dataset) -> None:
    rows = [{"key": "q-0", "said": "no", "answer": "yes"}]
    reasoner = replay(tmp_path, dataset, rows, id_field="key", answer_field="said")
    assert (await reasoner.answer(FIRST, ())).text == "no"


async def test_a_missing_prediction_is_a_failure_that_names_file_and_id(
    tmp_path: Path, dataset: Dataset
) -> None:
    reasoner = replay(tmp_path, dataset, [{"question_id": "q-0", "answer": "no"}])
    with pytest.raises(CaseError, match=r"question q-1 has no answer in .*predictions\.json") as e:
        await reasoner.answer(SECOND, ())
    assert e.value.kind == "no_prediction"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"question_id": "q-0", "answer": "a"}, {"question_id": "q-0", "answer": "a"}],
         r"rows 1 and 2 have the same id 'q-0'"),
        ('{"q-0": "a", "q-1": "b", "q-0": "c"}', "has the id 'q-0' twice"),
        ([{"question_id": "q-7", "answer": "a"}], r"1 of its 1 ids are not in .*'q-7'; did you"),
        ({"zzz": "a", "q-0": "b"}, r"1 of its 2 ids are not in questions, such as 'zzz'"),
        ({"q-0": 5, "q-1": 1}, "has the number 5 for 'q-0': that is a file of marks"),
        ([{"question_id": "q-0"}], r"row 1 has no answer: expected one of .*found question_id"),
        ([{"answer": "x"}], r"row 1 has no id: .*found answer; reasoner.id_field names another"),
        ([{"question_id": None, "answer": "x"}], "row 1 has the id null: expected a text"),
        ([{"question_id": "q-0", "answer": ["x"]}], r'row 1 has the answer \["x"\]: expected'),
        ([{"question_id": "q-0", "answer": True}], "row 1 has the answer true"),
        (["q-0"], 'row 1 is "q-0": expected an object'),
        ({"baseline": [], "ours": []}, r"holds several lists \(baseline, ours\)"),
        ([], "holds no predictions"), ({}, "holds no predictions"), ('"x"', "holds no predictions"),
        ('[{"question_id": "q-0", "an', "is not readable JSON: .*line 1"),
        ({"q-0": {"text": "x"}}, "'q-0' has the answer"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_in_one_line(
    content: object, message: str, tmp_path: Path, dataset: Dataset
) -> None:
    with pytest.raises(OpenEQAError, match=message) as caught:
        replay(tmp_path, dataset, content)
    assert "\n" not in str(caught.value)
    assert "predictions.json" in str(caught.value)


def test_a_question_file_is_not_taken_for_predictions(dataset: Dataset) -> None:
    with pytest.raises(OpenEQAError, match="looks like a question file"):
        Replay(str(dataset.path), dataset)


def test_the_double_predictions_of_a_public_report_are_refused(
    shared: Path, dataset: Dataset
) -> None:
    with pytest.raises(OpenEQAError, match="rows 1 and 2 have the same id 'dup-2'"):
        Replay(str(shared / "cases/predictions_double.json"), dataset)


@pytest.mark.parametrize("path", ["nowhere.json", "nowhere.jsonl", "nowhere/"])
def test_a_path_that_is_not_there_is_named(path: str, tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(OpenEQAError, match="nowhere"):
        Replay(str(tmp_path / path), dataset)


@pytest.mark.parametrize("path", ["", "???"])
def test_a_path_that_is_not_set_is_asked_for(path: str, dataset: Dataset) -> None:
    with pytest.raises(OpenEQAError, match=r"reasoner\.path is not set"):
        Replay(path, dataset)


GIVEN = Answer("no", "answered", "A: no", "gpt-x", "stop", Usage(1, 100, 2, 0.5, 1.5))


async def journal_at(folder: Path) -> Path:
    journal = Journal(folder)
    journal.identify({"reasoner": "x"}, "0")
    trace = EpisodeTrace("s/1", 0)
    journal.append(AnswerLine(FIRST.id, GIVEN, trace))
    journal.append(FailureLine(SECOND.id, Failure("answer", "timeout", "no reply within 90 s")))
    await journal.close()
    return folder


async def test_a_run_folder_gives_whole_answers_back(tmp_path: Path, dataset: Dataset) -> None:
    folder = await journal_at(tmp_path / "run")
    for path in (folder, folder / "journal.jsonl"):
        reasoner = Replay(str(path), dataset)
        await check_reasoner(reasoner, FIRST)
        assert await reasoner.answer(FIRST, ()) == replace(GIVEN, usage=Usage())
        with pytest.raises(CaseError, match="it failed: timeout, no reply within 90 s") as caught:
            await reasoner.answer(SECOND, ())
        assert caught.value.kind == "no_prediction"


async def test_the_folder_is_read_only_and_a_verdict_changes_no_identity(
    tmp_path: Path, dataset: Dataset
) -> None:
    folder = await journal_at(tmp_path / "run")
    before = (folder / "journal.jsonl").read_bytes()
    identity = Replay(str(folder), dataset).identity
    assert (folder / "journal.jsonl").read_bytes() == before
    journal = Journal(folder)
    journal.append(VerdictLine(FIRST.id, "abc", Verdict(1.0, 5)))
    await journal.close()
    assert Replay(str(folder), dataset).identity == identity


def test_identity_is_of_the_answers_not_of_the_layout(tmp_path: Path, dataset: Dataset) -> None:
    rows = replay(tmp_path, dataset, [{"question_id": "q-0", "answer": "no"}]).identity
    assert replay(tmp_path, dataset, {"q-0": "no"}).identity == rows
    assert replay(tmp_path, dataset, {"q-0": "yes"}).identity != rows
    assert str(tmp_path) not in json.dumps(rows)


async def test_ids_beyond_a_filter_are_known(tmp_path: Path, dataset: Dataset) -> None:
    few = Dataset(dataset.path, limit=1)
    reasoner = replay(tmp_path, few, {"q-0": "no", "q-1": "yes"})
    assert (await reasoner.answer(FIRST, ())).text == "no"


async def test_missing_values_of_a_table_program_are_empty_answers(
    tmp_path: Path, dataset: Dataset
) -> None:
    path = tmp_path / "predictions.json"
    path.write_text(f'[{{"question_id": "{FIRST.id}", "answer": NaN}}]')
    answer = await Replay(str(path), dataset).answer(FIRST, ())
    assert (answer.text, answer.status) == ("", "empty")


async def test_lines_of_json_are_read_like_a_list(tmp_path: Path, dataset: Dataset) -> None:
    path = tmp_path / "predictions.jsonl"
    row = {"question_id": FIRST.id, "answer": "a \ud83d lamp"}
    path.write_text(json.dumps(row) + "\n\n")
    answer = await Replay(str(path), dataset).answer(FIRST, ())
    assert answer.text == "a \\ud83d lamp"


def test_a_file_of_scores_is_no_file_of_answers(tmp_path: Path, dataset: Dataset) -> None:
    rows = [{"question_id": case.id, "answer": 0.5} for case in dataset]
    path = tmp_path / "predictions.json"
    path.write_text(json.dumps(rows))
    with pytest.raises(OpenEQAError, match="that is a file of scores"):
        Replay(str(path), dataset)


async def test_a_list_beside_other_fields_is_taken(tmp_path: Path, dataset: Dataset) -> None:
    path = tmp_path / "predictions.json"
    rows = [{"question_id": FIRST.id, "answer": "a lamp"}]
    path.write_text(json.dumps({"model": "x", "results": rows}))
    assert (await Replay(str(path), dataset).answer(FIRST, ())).text == "a lamp"
