"""A journal is whole after any kill, and folds to what was paid for."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from pathlib import Path

import pytest

from openeqa_lab.entries import (
    AnswerLine,
    Entry,
    FailureLine,
    JudgeLine,
    Line,
    VerdictLine,
    read_journal,
)
from openeqa_lab.errors import OpenEQAError
from openeqa_lab.identity import comparable, differences, digest
from openeqa_lab.journal import Journal
from openeqa_lab.records import Answer, EpisodeTrace, Failure, Shown, Usage, Verdict

IDENTITY = {"reasoner": {"model": "echo", "temperature": 0.2}, "sampler": {"k": 5}}
TRACE = EpisodeTrace("tiny/000-room", 5)


def answer(case: str, text: str = "a café lamp", dollars: float | None = 0.5) -> AnswerLine:
    shown = (Shown("tiny/000-room/00000-rgb.png", 0, "ab" * 32),)
    return AnswerLine(case, Answer(text, usage=Usage(1, 10, 2, dollars)), TRACE, shown)


def verdict(case: str, mark: int = 4, judge: str = "j1") -> VerdictLine:
    return VerdictLine(case, judge, Verdict((mark - 1) / 4, mark, usage=Usage(1, dollars=0.1)))


def failure(case: str, judge: str = "") -> FailureLine:
    stage = "judge" if judge else "answer"
    return FailureLine(case, Failure(stage, "timeout", "took 90 s", usage=Usage(1)), judge)  # type: ignore[arg-type]


async def write(folder: Path, *lines: Line) -> None:
    book = Journal(folder)
    try:
        book.identify(IDENTITY, "0.1")
        for line in lines:
            book.append(line)
        await book.sync()
    finally:
        await book.close()


LINES = (
    JudgeLine("j1", {"name": "exact"}),
    answer("q1"),
    verdict("q1"),
    failure("q2"),
    answer("q3"),
)


async def test_what_is_written_reads_back(tmp_path: Path) -> None:
    await write(tmp_path, *LINES)
    content = read_journal(tmp_path)
    assert content.identity == IDENTITY
    assert content.judges == {"j1": {"name": "exact"}}
    assert content.entries["q1"].result == LINES[1].answer  # type: ignore[union-attr]
    assert content.entries["q1"].verdicts == {"j1": LINES[2].verdict}  # type: ignore[union-attr]
    assert content.entries["q2"].result == LINES[3].failure  # type: ignore[union-attr]
    assert content.entries["q1"].shown[0].sha256 == "ab" * 32


async def test_a_journal_cut_at_any_byte_keeps_every_whole_line_and_is_whole_again(
    tmp_path: Path,
) -> None:
    await write(tmp_path / "good", *LINES[:3])
    data = (tmp_path / "good" / "journal.jsonl").read_bytes()
    for cut in range(len(data) + 1):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "journal.jsonl").write_bytes(data[:cut])
        whole = [line for line in data[:cut].split(b"\n")[:-1] if line]
        tail = data[:cut].rsplit(b"\n", 1)[-1]
        kept = len(whole) + (tail + b"\n" in data.splitlines(keepends=True) and bool(tail))
        await write(folder, answer("q9"))
        after = (folder / "journal.jsonl").read_bytes()
        assert after.endswith(b"\n")
        lines = [json.loads(line) for line in after.splitlines()]
        assert lines[0]["type"] == "identity"
        assert len(lines) == max(kept, 1) + 1, f"cut at byte {cut}"
        assert "q9" in read_journal(folder).entries


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        pytest.param(lambda data: data.rstrip(b"\n"), set(), id="no final newline"),
        pytest.param(lambda data: data[:-20], {"q3"}, id="torn tail"),
        pytest.param(lambda data: data + b'{"text": "caf\xc3', set(), id="torn inside UTF-8"),
        pytest.param(lambda data: data.replace(b"\n", b"\n\n") + b"\n\n", set(), id="blank lines"),
        pytest.param(lambda data: data + bytes(400), set(), id="zeros after a power cut"),
        pytest.param(lambda data: data.replace(b'"q1","answer"', b'"q1",!', 1), {"q1"}, id="rot"),
        pytest.param(lambda data: data.replace(b"\n", b"\r\n"), set(), id="Windows line ends"),
        pytest.param(
            lambda data: data.split(b"\n")[0] + b"\n", {"q1", "q2", "q3"}, id="identity only"
        ),
        pytest.param(lambda _: b"", {"q1", "q2", "q3"}, id="empty"),
    ],
)
async def test_a_damaged_journal_loses_only_what_the_damage_took(
    tmp_path: Path, damage, lost: set[str]
) -> None:
    await write(tmp_path, *LINES)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(damage(path.read_bytes()))
    for start in range(3):  # the first start after the damage, and two more
        await write(tmp_path, answer(f"new-{start}"))
    assert all(json.loads(line) for line in path.read_bytes().splitlines())
    entries = read_journal(tmp_path).entries
    answered = {case for case, entry in entries.items() if entry.result is not None}
    assert answered == {"q1", "q2", "q3"} - lost | {"new-0", "new-1", "new-2"}


async def test_damaged_lines_are_set_aside_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await write(tmp_path, *LINES)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    await write(tmp_path)
    assert "1 damaged line(s)" in caplog.text
    assert b'"q3"' in (tmp_path / "journal.damaged").read_bytes()


async def test_another_answer_identity_is_refused_with_the_names_of_what_changed(
    tmp_path: Path,
) -> None:
    await write(tmp_path, *LINES)
    book = Journal(tmp_path)
    changed = {"reasoner": {"model": "echo", "temperature": 0.7}, "sampler": {"k": 5, "seed": 1}}
    message = r"reasoner.temperature: 0.2 -> 0.7; sampler.seed: not set -> 1.*another output_dir"
    with pytest.raises(OpenEQAError, match=message):
        book.identify(changed, "0.1")
    await book.close()


async def test_a_second_run_in_a_locked_folder_is_refused(tmp_path: Path) -> None:
    book = Journal(tmp_path)
    with pytest.raises(OpenEQAError, match="another run is writing to"):
        Journal(tmp_path)
    await book.close()
    await Journal(tmp_path).close()


async def test_answers_without_an_identity_are_refused_and_left_alone(tmp_path: Path) -> None:
    await write(tmp_path, *LINES)
    path = tmp_path / "journal.jsonl"
    data = path.read_bytes().split(b"\n", 1)[1]
    path.write_bytes(data)
    with pytest.raises(OpenEQAError, match="does not begin with an identity"):
        Journal(tmp_path)
    assert path.read_bytes() == data


async def test_a_journal_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    await write(tmp_path)
    path = tmp_path / "journal.jsonl"
    path.write_text(path.read_text().replace('"format":1', '"format":99'))
    with pytest.raises(OpenEQAError, match=r"newer version.*format 99.*update"):
        read_journal(path)


def test_reading_a_folder_without_a_journal_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OpenEQAError, match="no journal can be read at"):
        read_journal(tmp_path)


def test_an_output_dir_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OpenEQAError, match="cannot write to output_dir"):
        Journal(tmp_path / "file" / "run")


def fold(*lines: AnswerLine | VerdictLine | FailureLine) -> Entry:
    entry = Entry()
    for line in lines:
        entry.add(line)
    return entry


def test_the_latest_success_wins_and_a_failure_never_replaces_one() -> None:
    assert fold(failure("q"), answer("q", "x")).result == answer("q", "x").answer
    assert fold(answer("q", "x"), failure("q")).result == answer("q", "x").answer
    assert fold(answer("q", "x"), answer("q", "y")).result == answer("q", "y").answer
    assert fold(failure("q"), failure("q")).result == failure("q").failure


def test_a_new_answer_takes_the_verdicts_of_the_old_one_away() -> None:
    assert fold(answer("q"), verdict("q"), answer("q", "y")).verdicts == {}
    judged_again = fold(answer("q"), verdict("q", 2), verdict("q", 5), failure("q", "j1"))
    assert judged_again.verdicts == {"j1": verdict("q", 5).verdict}
    assert isinstance(fold(answer("q"), failure("q", "j1")).verdicts["j1"], Failure)


def test_the_verdicts_of_two_judges_stand_side_by_side() -> None:
    entry = fold(answer("q"), verdict("q", 2, "j1"), verdict("q", 5, "j2"))
    assert [entry.verdicts[judge].mark for judge in ("j1", "j2")] == [2, 5]  # type: ignore[union-attr]


def test_what_replaced_attempts_cost_is_kept_apart() -> None:
    entry = fold(
        failure("q"), failure("q"), answer("q"), failure("q"),
        failure("q", "j1"), verdict("q", 2), verdict("q", 5), answer("q", "y"),
    )  # fmt: skip
    assert entry.earlier[""] == Usage(3) + answer("q").answer.usage
    assert entry.earlier["j1"].calls == 3
    assert entry.earlier["j1"].dollars == pytest.approx(0.2)


async def test_a_full_disk_leaves_no_half_line_and_saves_what_was_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await write(tmp_path, *LINES)
    before = (tmp_path / "journal.jsonl").read_bytes()
    rescue = tmp_path / "rescue"
    rescue.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(rescue))
    real, full = os.write, []

    def write_until_full(file: int, data: bytes) -> int:
        if not full:
            full.append(True)
            return real(file, bytes(data)[:7])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    book = Journal(tmp_path)
    message = r"No space left on device.*what is in the journal"
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", write_until_full)
        with pytest.raises(OpenEQAError, match=message):
            book.append(answer("q7"))
    with pytest.raises(OpenEQAError, match=message):
        await book.sync()
    with pytest.raises(OpenEQAError, match=message):
        book.append(answer("q8"))
    await book.close()
    assert (tmp_path / "journal.jsonl").read_bytes() == before
    saved = next(rescue.iterdir()).read_bytes()
    assert [json.loads(line)["case"] for line in saved.splitlines()] == ["q7", "q8"]
    assert "append them to it" in caplog.text


async def test_a_line_survives_a_kill_before_anybody_waited_for_it(tmp_path: Path) -> None:
    book = Journal(tmp_path)
    book.identify(IDENTITY, "0.1")
    book.append(answer("q1"))
    assert "q1" in read_journal(tmp_path).entries
    await book.close()


async def test_lines_of_many_tasks_are_on_the_disk_when_sync_returns(tmp_path: Path) -> None:
    book = Journal(tmp_path)
    book.identify(IDENTITY, "0.1")

    async def one(number: int) -> None:
        book.append(answer(f"q{number}"))
        await book.sync()
        text = (tmp_path / "journal.jsonl").read_text()
        assert f'"q{number}"' in text

    await asyncio.gather(*(one(number) for number in range(50)))
    await book.close()
    assert len(read_journal(tmp_path).entries) == 50


def test_differences_name_nested_settings() -> None:
    old = {"a": {"b": 1, "c": [1, 2]}, "d": None}
    new = {"a": {"b": 2, "c": [1, 2]}, "e": {}}
    assert differences(old, new) == [
        "a.b: 1 -> 2", "d: null -> not set", "e: not set -> {}",
    ]  # fmt: skip
    assert differences(old, old) == []


async def test_what_neither_disk_nor_temporary_folder_takes_is_said_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    book = Journal(tmp_path)
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        with pytest.raises(OpenEQAError, match="No space left"):
            book.append(answer("q7"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    await book.close()
    assert '"q7"' in caplog.text


async def test_half_a_character_is_written_spelled_out(tmp_path: Path) -> None:
    text = "a lamp \ud83d, and \\ud83d, and \U0001f600"
    await write(tmp_path, answer("q1", text), answer("q2"))
    entries = read_journal(tmp_path).entries
    result = entries["q1"].result
    assert isinstance(result, Answer)
    assert result.text == "a lamp \\ud83d, and \\ud83d, and \U0001f600"
    assert len(entries) == 2
    assert not (tmp_path / "journal.damaged").exists()


@pytest.mark.parametrize(
    "text", ["\u2028\u2029\x85", "\x00\x1b[2J", "\r\n\n", '"}{\\', "x" * 10**6]
)
async def test_whatever_a_model_says_reads_back_letter_for_letter(
    tmp_path: Path, text: str
) -> None:
    await write(tmp_path, answer("q1", text), answer("q2"))
    entries = read_journal(tmp_path).entries
    assert entries["q1"].result == answer("q1", text).answer
    assert entries["q2"].result == answer("q2").answer


async def test_answers_of_a_run_under_way_are_waited_for(tmp_path: Path) -> None:
    other = Journal(tmp_path / "other")
    other.identify(IDENTITY, "0.1")
    other.append(answer("q1"))
    ours = Journal(tmp_path / "ours")
    ours.identify(IDENTITY, "0.1")
    with pytest.raises(OpenEQAError, match=r"the run in .*other is asking the same questions"):
        ours.take_answers(tmp_path / "other", {"q1", "q2", "q3"})
    await other.close()
    assert ours.take_answers(tmp_path / "other", {"q1", "q2", "q3"}) == 1
    assert ours.take_answers(tmp_path / "other", {"q1", "q2", "q3"}) == 0
    await ours.close()


def test_a_journal_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(OpenEQAError, match=r"cannot open .*journal.jsonl: Is a directory"):
        Journal(tmp_path)


async def test_an_editors_byte_order_mark_does_not_lock_the_answers_away(tmp_path: Path) -> None:
    await write(tmp_path, *LINES)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    await write(tmp_path, answer("q9"))
    assert set(read_journal(tmp_path).entries) == {"q1", "q2", "q3", "q9"}
    assert not path.read_bytes().startswith(b"\xef")


async def test_two_runs_in_one_file_are_refused(tmp_path: Path) -> None:
    await write(tmp_path, *LINES)
    path = tmp_path / "journal.jsonl"
    text = path.read_text()
    path.write_text(text + text.replace("0.2", "0.7"))
    with pytest.raises(OpenEQAError, match=r"two runs with other settings .*0.2 -> 0.7"):
        Journal(tmp_path)
    path.write_text(text + text)
    await Journal(tmp_path).close()


async def test_a_broken_journal_beside_this_one_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await write(tmp_path / "other", *LINES)
    path = tmp_path / "other" / "journal.jsonl"
    path.write_text(path.read_text() + '{"type":"identity","identity":{},"format":99}\n')
    ours = Journal(tmp_path / "ours")
    ours.identify(IDENTITY, "0.1")
    assert ours.take_answers(tmp_path / "other", {"q1", "q2", "q3"}) == 0
    assert "no answers are taken over from" in caplog.text
    await ours.close()


async def test_a_value_of_a_wrong_type_is_refused_before_it_is_written(tmp_path: Path) -> None:
    book = Journal(tmp_path)
    book.identify(IDENTITY, "0.1")
    wrong = AnswerLine("q1", Answer("x", model=7), TRACE)  # type: ignore[arg-type]
    with pytest.raises(OpenEQAError, match=r"answer line of q1 cannot be written"):
        book.append(wrong)
    book.append(answer("q2"))
    await book.close()
    assert set(read_journal(tmp_path).entries) == {"q2"}


def test_a_whole_number_is_one_setting_however_it_is_typed() -> None:
    assert comparable({"temperature": 0.0}) == comparable({"temperature": 0})
    assert digest(comparable({"t": 1.0})) == digest(comparable({"t": 1}))
    assert comparable({"t": (1, 2.5)}) == {"t": [1, 2.5]}
