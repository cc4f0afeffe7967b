"""Question files are read letter for letter, and refused with one line when they cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openeqa_lab.data.case import Case
from openeqa_lab.data.questions import ALIASES, complete_aliases, read_questions
from openeqa_lab.errors import OpenEQAError

ROW = {
    "question_id": "q-1",
    "question": "What is on the desk?",
    "answer": "A lamp",
    "category": "object recognition",
    "episode_history": "hm3d-v0/900-hm3d-a",
}


def write(folder: Path, content: object, name: str = "questions.json") -> Path:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text, encoding="utf-8")
    return path


def read(path: Path, **own: list[str]) -> tuple[Case, ...]:
    return read_questions(path, complete_aliases(own))[0]


def refusal(path: Path) -> str:
    with pytest.raises(OpenEQAError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_a_row_becomes_a_case(tmp_path: Path) -> None:
    (case,) = read(write(tmp_path, [ROW | {"extra_answers": ["lamp", "the lamp"]}]))
    assert (case.id, case.question.id, case.question.text) == ("q-1", "q-1", ROW["question"])
    assert (case.answer, case.category, case.episode) == (
        "A lamp",
        "object recognition",
        "hm3d-v0/900-hm3d-a",
    )
    assert case.split == "hm3d"
    assert case.extra_answers == ("lamp", "the lamp")


@pytest.mark.parametrize(
    ("field", "name"), [(field, name) for field, names in ALIASES.items() for name in names]
)
def test_each_alias_is_read(tmp_path: Path, field: str, name: str) -> None:
    row = {own: value for own, value in ROW.items() if own != field}
    value = ["light"] if field == "extra_answers" else "something"
    (case,) = read(write(tmp_path, [row | {name: value}]))
    found = {
        "question_id": case.id,
        "question": case.question.text,
        "answer": case.answer,
        "category": case.category,
        "episode_history": case.episode,
        "extra_answers": list(case.extra_answers),
    }
    assert found[field] == value


@pytest.mark.parametrize("empty", [None, "", "  "])
def test_the_first_name_that_is_not_empty_wins(tmp_path: Path, empty: str | None) -> None:
    row = ROW | {"question": empty, "q": "Which?", "prompt": "never"}
    assert read(write(tmp_path, [row]))[0].question.text == "Which?"


def test_rows_without_id_are_counted_and_without_episode_called_by_id(tmp_path: Path) -> None:
    rows = [{"question": "a?", "answer": "b"}, {"q": "c?", "gt": "d", "qid": 7}]
    cases = read(write(tmp_path, rows))
    assert [(case.id, case.episode, case.category) for case in cases] == [
        ("0", "0", ""),
        ("7", "7", ""),
    ]


def test_own_names_replace_those_of_the_field(tmp_path: Path) -> None:
    path = write(tmp_path, [ROW | {"uid": "own", "text": "Which one?"}])
    (case,) = read(path, question_id=["uid"], question=["text"])
    assert (case.id, case.question.text, case.answer) == ("own", "Which one?", "A lamp")
    assert read(path, question_id=[])[0].id == "0"


def test_an_unknown_field_of_own_aliases_is_refused() -> None:
    with pytest.raises(OpenEQAError, match=r"unknown field 'questoin'.*did you mean 'question'"):
        complete_aliases({"questoin": ["q"]})


@pytest.mark.parametrize(
    "text", ["{A; B}?", "{}", "${total}", "100%", "a | b", "</script>é\u2028ü"]
)
def test_texts_stay_letter_for_letter(tmp_path: Path, text: str) -> None:
    (case,) = read(write(tmp_path, [ROW | {"question": f" {text}\n", "answer": f"{text} "}]))
    assert (case.question.text, case.answer) == (text, text)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (["", "  ", None], ()),
        (["A lamp", " A lamp ", "a lamp."], ()),
        (["lamp", "Lamp", "lamp.", "torch"], ("lamp", "torch")),
        ("torch", ("torch",)),
        ('["torch", "a lamp"]', ("torch",)),
        ([], ()),
        (None, ()),
    ],
)
def test_extra_answers_have_no_blanks_and_no_repeats(
    tmp_path: Path, extra: object, expected: tuple[str, ...]
) -> None:
    assert read(write(tmp_path, [ROW | {"extra_answers": extra}]))[0].extra_answers == expected


def test_an_object_around_one_list_is_read(tmp_path: Path) -> None:
    assert len(read(write(tmp_path, {"version": 1, "questions": [ROW]}))) == 1


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_is_read_as_spreadsheets_write_it(tmp_path: Path, mark: bytes, separator: str) -> None:
    lines = [
        ["question_id", "question", "answer", "category", "episode_history", "extra_answers"],
        ["q-1", '"What is, or was; on\tit?"', "A lamp", "object recognition", "s/w", ""],
        [],
        ["q-2", '"Say ""hi"""', "no", "", "s/w", '"[""never""]"'],
    ]
    text = "\r\n".join(separator.join(line) for line in lines) + "\r\n"
    first, second = read(write(tmp_path, mark + text.encode(), "questions.CSV"))
    assert (first.id, first.question.text) == ("q-1", "What is, or was; on\tit?")
    assert (second.id, second.question.text, second.extra_answers) == (
        "q-2",
        'Say "hi"',
        ("never",),
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"not readable JSON.*line 1, column 1"),
        ('[\n{"question": "a",}]', r"line 2, column 1"),
        ("[" * 100_000, r"not readable JSON"),
        (b"\xff\xfe[\x00]\x00", r"not UTF-8.*0xff at offset 0"),
        ("[]", r"holds no questions"),
        ("3", r"the number 3: expected a JSON list"),
        ("{}", r"0 lists \(none\)"),
        ({"a": [], "b": []}, r"2 lists \('a', 'b'\)"),
        ([ROW, "text"], r"row 2 is a text"),
        ([ROW, None], r"row 2 is null"),
        ([ROW | {"question": 5}], r"row 1 \(id 'q-1'\): 'question' is the number 5"),
        ([ROW | {"answer": True}], r"'answer' is the value true"),
        ([ROW | {"answer": ["a"]}], r"'answer' is a list"),
        ([ROW | {"question_id": 1.5}], r"'question_id' is the number 1.5"),
        ([ROW | {"question_id": True}], r"'question_id' is the value true"),
        ([ROW | {"category": {"a": 1}}], r"'category' is an object"),
        ([ROW | {"extra_answers": {"a": 1}}], r"'extra_answers' is an object"),
        ([ROW | {"extra_answers": ["a", 3]}], r"'extra_answers' is the number 3"),
        ([ROW | {"extra_answers": "['a']"}], r"'extra_answers' is not a JSON list"),
        ([ROW | {"question": " "}], r"row 1 \(id 'q-1'\): 'question' is empty"),
        (
            [{"question_id": "q-1", "questoin": "a?", "answer": "b"}],
            r"row 1 \(id 'q-1'\) has no question.*'questoin'.*did you mean 'questoin'",
        ),
        ([{"question": "a?"}], r"row 1 \(id '0'\) has no answer: expected a field 'answer' or"),
        ('[{"question": "\\ud800?", "answer": "b"}]', r"'question' holds half a character"),
        ([ROW, ROW | {"question_id": "q-2"}, ROW], r"rows 1 and 3 have the same id 'q-1'"),
        ([ROW, ROW | {"question_id": " q-1 "}], r"rows 1 and 2 have the same id 'q-1'"),
        ([ROW | {"question_id": "1"}, {"q": "a?", "gt": "b"}], r"rows 1 and 2.*no id of its own"),
        (
            [{"episode_id": "e", "q": "a?", "gt": "b"}, {"episode_id": "e", "q": "c?", "gt": "d"}],
            r"rows 1 and 2 have the same id 'e', read from 'episode_id', which names an episode",
        ),
    ],
)
def test_a_bad_json_file_is_refused_in_one_line(
    tmp_path: Path, content: object, message: str
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(OpenEQAError, match=message):
        read(path)
    refusal(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"holds no questions"),
        ("question,answer\n", r"holds no questions"),
        ("question,answer\na?,b,c\n", r"row 1 has 3 cells, the header 2"),
        ("question,answer\na?,b\nc?\n", r"row 2 has 1 cells, the header 2"),
        ("question,answer,answer\na?,b,c\n", r"two columns 'answer'"),
        ('question,answer\na?,"b\n', r"not readable CSV"),
        ("Question,Answer\na?,b\n", r"has no question: .*'Question', 'Answer'; did you mean"),
        (b"PK\x03\x04\xff\xfe", r"not UTF-8"),
    ],
)
def test_a_bad_csv_file_is_refused_in_one_line(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    path = write(tmp_path, content, "questions.csv")
    with pytest.raises(OpenEQAError, match=message):
        read(path)
    refusal(path)


def test_a_missing_file_names_the_fetch_command_and_the_data_folder(tmp_path: Path) -> None:
    message = refusal(tmp_path / "nothing.json")
    assert "python -m openeqa_lab.fetch questions" in message
    assert "OPENEQA_DATA_DIR" in message


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    assert "Cannot read" in refusal(tmp_path)


def test_a_double_id_of_a_public_report_is_refused_with_both_rows(shared: Path) -> None:
    message = refusal(shared / "cases/questions_duplicate_id.json")
    assert "rows 1 and 3" in message
    assert "'dup-1'" in message


def test_a_byte_order_mark_of_a_public_report_hides_no_id(shared: Path) -> None:
    assert [case.id for case in read(shared / "cases/questions_bom.csv")] == ["q-1", "q-2"]


def test_braces_of_a_public_report_stay(shared: Path) -> None:
    path = shared / "cases/questions_braces.json"
    rows = json.loads(path.read_text())
    assert [case.question.text for case in read(path)] == [row["question"] for row in rows]


def test_the_official_file_is_read_in_full(shared: Path) -> None:
    path = shared / "data/openeqa/open-eqa-v0.json"
    cases, digest = read_questions(path, ALIASES)
    rows = json.loads(path.read_text(encoding="utf-8"))
    assert digest == "a64dd101133213fa3b5ca31e5af8216662471aa34894b443d803f497757557ee"
    assert len(cases) == 1636
    assert [case.question.text for case in cases] == [row["question"].strip() for row in rows]
    assert [case.answer for case in cases] == [row["answer"].strip() for row in rows]
    assert [case.episode for case in cases] == [row["episode_history"] for row in rows]
    assert len({case.episode for case in cases}) == 152
    assert sum(bool(case.extra_answers) for case in cases) == 263
    repeating = sum(len(case.extra_answers) < 4 for case in cases if case.extra_answers)
    assert repeating > 46  # 46 lists repeat the main answer, one holds an empty text
