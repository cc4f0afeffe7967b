"""Prompt texts are found, filled in one pass and split around the frames."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.prompts import UPSTREAM, Template, load, own_names

ODD_TEXTS = [
    "What does the sign {A; B} on the door say?",
    "Is the {red} box open?",
    "What is 100% full: the {} or the bin?",
    "How much is on the price tag, $5 or ${total}?",
    "{answer} {question} {{question}}",
    "back\\slash \\1 \\g<0>",
    "User Query: {frames}",
    "",
]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_a_value_reaches_the_prompt_letter_for_letter(text: str) -> None:
    template = Template("Q: {question}\nA: {answer}", "mine")

    assert template.fill({"question": text, "answer": text}) == f"Q: {text}\nA: {text}"


@pytest.mark.parametrize(
    "rest",
    [
        '{"mark": 4}',
        "{}",
        "{0}",
        "{{question}",
        "100 %",
        "%(question)s",
        "${total}",
        "{ question }",
    ],
)
def test_braces_of_the_prompt_itself_stay(rest: str) -> None:
    filled = Template("{question} " + rest, "mine").fill({"question": "Where?"})

    assert filled == "Where? " + rest.replace("{question}", "Where?")


def test_the_official_odd_questions_survive(shared: Path) -> None:
    for row in json.loads((shared / "cases/questions_braces.json").read_text()):
        for name in ("mmbench", "gpt4v", "blind-llm"):
            template = load(name, shared / "data/openeqa/prompts")
            values = {"question": row["question"]}
            if name == "mmbench":
                values |= {"answer": row["answer"], "prediction": "{question}"}
            filled = template.fill(values)
            assert row["question"] in filled
            assert name != "mmbench" or filled.endswith("Response: {question}")


def test_a_slot_may_stand_twice() -> None:
    assert Template("{a} {a} {b}", "mine").fill({"a": "{b}", "b": "2"}) == "{b} {b} 2"


def test_a_value_without_its_slot_is_refused() -> None:
    with pytest.raises(OpenEQAError, match=r"'mine' has no slot \{question\}: write it"):
        Template("What?", "mine").fill({"question": "Where?"})


def test_the_frames_go_to_their_slot_without_the_white_space_around_it() -> None:
    template = Template("Look.\n\n{frames}\n\nQuestion: {question}", "mine")

    parts = template.around_frames({"question": "{frames}"}, "{frames}")

    assert parts == ("Look.", "Question: {frames}")


def test_a_marker_of_words_begins_the_second_part() -> None:
    template = Template("Look.\nUser Query: {question}", "mine")

    parts = template.around_frames({"question": "User Query: what?"}, "User Query:")

    assert parts == ("Look.\n", "User Query: User Query: what?")


def test_a_slot_is_filled_on_either_side_of_the_frames() -> None:
    template = Template("{question}\n{frames}\n{question}", "mine")

    assert template.around_frames({"question": "Who?"}, "{frames}") == ("Who?", "Who?")


@pytest.mark.parametrize(
    ("text", "count"),
    [("{question}", 0), ("{frames} {question} {frames}", 2)],
)
def test_a_marker_that_is_not_there_once_is_refused(text: str, count: int) -> None:
    with pytest.raises(
        OpenEQAError, match=rf"'mine' holds the marker '\{{frames\}}' {count} times"
    ):
        Template(text, "mine").around_frames({"question": "Where?"}, "{frames}")


def test_an_empty_marker_is_refused() -> None:
    with pytest.raises(OpenEQAError, match="exactly once"):
        Template("{question}", "mine").around_frames({"question": "Where?"}, "")


def test_the_hash_is_of_the_text_in_use() -> None:
    assert Template("é", "mine").sha256 == hashlib.sha256("é".encode()).hexdigest()


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("blind", ["question"]),
        ("single_frame", ["frames", "question"]),
        ("multi_frame", ["frames", "question"]),
        ("judge", ["question", "answer", "prediction"]),
        ("judge_extra", ["question", "answer", "prediction", "extra_answers"]),
        ("reask", ["tag", "lowest", "highest"]),
    ],
)
def test_our_own_texts_ship_and_hold_their_slots(name: str, slots: list[str]) -> None:
    template = load(name)

    template.require(*slots)
    assert name in own_names()
    assert template.text == template.text.strip()
    assert template.fill(dict.fromkeys(slots, "x")).count("{") == 0


def test_the_list_of_our_own_texts_is_complete() -> None:
    assert own_names() == (
        "blind",
        "judge",
        "judge_extra",
        "multi_frame",
        "reask",
        "single_frame",
    )


def test_no_text_of_ours_repeats_a_line_of_upstreams(shared: Path) -> None:
    theirs = {
        line.strip()
        for name in UPSTREAM
        for line in load(name, shared / "data/openeqa/prompts").text.splitlines()
        if len(line.split()) > 3
    }
    ours = {line.strip() for name in own_names() for line in load(name).text.splitlines()}

    assert not ours & theirs


@pytest.mark.parametrize("name", UPSTREAM)
def test_upstreams_texts_are_read_from_the_folder_and_stripped(name: str, shared: Path) -> None:
    folder = shared / "data/openeqa/prompts"

    template = load(name, str(folder))

    assert template.text == (folder / f"{name}.txt").read_text().strip()
    assert template.name == name


@pytest.mark.parametrize("name", ["gpt4v", "claude3-vision", "gemini-pro-vision"])
def test_upstreams_vision_texts_split_where_upstream_splits_them(name: str, shared: Path) -> None:
    template = load(name, shared / "data/openeqa/prompts")

    before, after = template.around_frames({"question": "Where is it?"}, "User Query:")

    assert before == template.text.split("User Query:")[0]
    assert after == "User Query: Where is it?"


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("mmbench", "judge=llm_match_own"),
        ("mmbench-extra", "judge=llm_match_own"),
        ("blind-llm", "reasoner=blind"),
        ("gpt4v", "reasoner=multi_frame"),
    ],
)
def test_a_text_of_upstreams_that_is_not_installed_names_both_ways_out(
    name: str, instead: str, tmp_path: Path
) -> None:
    with pytest.raises(OpenEQAError) as caught:
        load(name, tmp_path / "prompts")

    message = str(caught.value)
    assert "python -m openeqa_lab.fetch prompts" in message
    assert instead in message
    assert str(tmp_path / "prompts" / f"{name}.txt") in message
    assert "\n" not in message


def test_upstreams_texts_need_a_folder() -> None:
    with pytest.raises(OpenEQAError, match="no folder of prompts is set"):
        load("mmbench")


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(OpenEQAError, match=r"no prompt 'mmbnech'.*judge_extra.*mmbench-extra"):
        load("mmbnech", tmp_path)


@pytest.mark.parametrize("name", ["../judge", "sub/judge", "/judge", ".", ""])
def test_a_name_is_not_a_way_to_other_files(name: str, tmp_path: Path) -> None:
    with pytest.raises(OpenEQAError, match="there is no prompt"):
        load(name, tmp_path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\n  {question} \n\n", "{question}"),
        (b"\xef\xbb\xbfA {question}", "A {question}"),
        (b"A\r\nB {question}\rC", "A\nB {question}\nC"),
        ("é {question} 你".encode(), "é {question} 你"),
    ],
)
def test_a_file_of_ones_own_is_read_as_text(content: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes(content)

    assert load(str(path)).text == text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\t ", "is empty"),
        (b"\xff\xfe{\x00", "not UTF-8 text .at byte 0.: save it"),
    ],
)
def test_a_file_that_holds_no_text_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes(content)

    with pytest.raises(OpenEQAError, match=message) as caught:
        load(str(path))
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OpenEQAError, match=r"prompt file .*gone\.txt is not there"):
        load(str(tmp_path / "gone.txt"))


def test_a_folder_is_not_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "folder.txt").mkdir()

    with pytest.raises(OpenEQAError, match=r"folder\.txt cannot be read: Is a directory"):
        load(str(tmp_path / "folder.txt"))
