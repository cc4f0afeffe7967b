"""Answers that were given before: from a run folder of ours, or from anybody's prediction file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from openeqa_lab.data.case import Question
from openeqa_lab.data.datasets import Dataset
from openeqa_lab.data.episode import Frame
from openeqa_lab.data.questions import decode_text, near, parse_json, read_bytes
from openeqa_lab.entries import identity_of, read_journal
from openeqa_lab.errors import CaseError, OpenEQAError
from openeqa_lab.records import Answer, Failure, Usage, whole_characters

# The first that is there wins. A row's `answer` beside a prediction is the reference answer.
ID_FIELDS = ("question_id", "id", "qid", "unique_id")
ANSWER_FIELDS = ("prediction", "pred", "predicted_answer", "model_answer", "response", "answer")


class Replay:
    """Says again what a run folder or a prediction file holds; nothing is asked or paid.

    Of a run folder the whole answer comes back, status and raw reply included; what it cost then
    is not paid again, so it costs nothing here.
    A prediction file is a JSON list of rows, an object around one such list, or an object of
    ``id: answer``; an answer that is null is an empty one, as upstream marks it; so is a
    blank one, which upstream would hand to its judge.

    Args:
        path: A run folder, its ``journal.jsonl``, or a JSON prediction file.
        questions: The question file; its filters are of no account.
        id_field: What a prediction file calls the question's id; None tries the usual names.
        answer_field: What it calls the answer; None tries the usual names.

    Raises:
        OpenEQAError: The file cannot be read, or an id is unknown or comes twice.
    """

    def __init__(
        self,
        path: str,
        questions: Dataset,
        id_field: str | None = None,
        answer_field: str | None = None,
    ) -> None:
        if path in ("", "???"):
            raise OpenEQAError("reasoner.path is not set: name a run folder or a prediction file")
        self._path = Path(path)
        if self._path.is_dir() or _is_journal(self._path):
            entries = read_journal(self._path).entries
            self._results = {id_: each.result for id_, each in entries.items() if each.result}
        else:
            self._results = dict(_predictions(self._path, id_field, answer_field))
        known = [case.id for case in questions.whole]
        unknown = sorted(self._results.keys() - set(known))
        if unknown:
            raise OpenEQAError(
                f"{self._path}: {len(unknown)} of its {len(self._results)} ids are not in "
                f"{questions.name}, such as {unknown[0]!r}{near(unknown[0], known)}; give the "
                "question file that the answers belong to, or take those rows out"
            )

    @property
    def identity(self) -> Mapping[str, object]:
        """The answers by their hash, however the file is laid out and whatever else it holds."""
        answers = sorted(
            (id_, result.status, result.text)
            for id_, result in self._results.items()
            if isinstance(result, Answer)
        )
        return {
            "name": "replay",
            "answers": hashlib.sha256(json.dumps(answers).encode()).hexdigest(),
        }

    async def answer(self, question: Question, _frames: Sequence[Frame], /) -> Answer:
        """The answer as it was given.

        Raises:
            CaseError: There is none (kind ``no_prediction``).
        """
        result = self._results.get(question.id)
        if isinstance(result, Answer):
            return replace(result, usage=Usage())
        why = "" if result is None else f": it failed: {result.kind}, {result.message}"
        raise CaseError(
            f"question {question.id} has no answer in {self._path}{why}; complete it there, or "
            "leave the question out",
            kind="no_prediction",
        )


def _is_journal(path: Path) -> bool:
    """Whether a file is a run's journal rather than anybody's lines of JSON."""
    return path.suffix == ".jsonl" and identity_of(path) is not None


def _predictions(
    path: Path, id_field: str | None, answer_field: str | None
) -> Mapping[str, Answer | Failure]:
    missing = "expected a run folder, or a JSON file of predictions (reasoner.path)"
    text = decode_text(path, read_bytes(path, missing))
    if path.suffix == ".jsonl":
        lines = [line for line in text.split("\n") if line.strip()]
        value: object = [parse_json(path, line) for line in lines]
    else:
        value = parse_json(path, text)
    if isinstance(value, Mapping):
        lists = {name: inner for name, inner in value.items() if isinstance(inner, list)}
        if len(lists) == 1:
            value = next(iter(lists.values()))
        elif lists:
            raise OpenEQAError(
                f"{path} holds several lists ({', '.join(lists)}): expected one list of "
                "predictions; write the one that is meant into a file of its own"
            )
        else:
            return _by_id(path, text)
    if not isinstance(value, list) or not value:
        raise OpenEQAError(f"{path} holds no predictions: expected a list of rows, or id: answer")
    found: dict[str, Answer | Failure] = {}
    rows: dict[str, int] = {}
    numbers = 0
    for number, row in enumerate(value, start=1):
        where = f"{path}, row {number}"
        if not isinstance(row, Mapping):
            raise OpenEQAError(f"{where} is {_short(row)}: expected an object with id and answer")
        id_ = _field(where, row, "id", (id_field,) if id_field else ID_FIELDS)
        if not isinstance(id_, (str, int)) or isinstance(id_, bool):
            raise OpenEQAError(f"{where} has the id {_short(id_)}: expected a text")
        id_ = str(id_)
        if id_ in rows:
            raise OpenEQAError(
                f"{path}: rows {rows[id_]} and {number} have the same id {id_!r}: leave one of "
                "them, or the one answer would hide the other"
            )
        rows[id_] = number
        names = (answer_field,) if answer_field else ANSWER_FIELDS
        if not answer_field and "episode_history" in row and not row.keys() & set(names[:-1]):
            raise OpenEQAError(
                f"{path} looks like a question file, whose answers are the right ones: give a file "
                "of predictions, or say with reasoner.answer_field which field holds them"
            )
        found[id_] = _answer(where, _field(where, row, "answer", names))
        numbers += isinstance(_field(where, row, "answer", names), float)
    if numbers > 1 and numbers > len(value) / 2:
        raise OpenEQAError(
            f"{path} has fractions for most answers: that is a file of scores, expected answers"
        )
    return found


def _by_id(path: Path, text: str) -> Mapping[str, Answer | Failure]:
    pairs: list[tuple[str, object]] = json.loads(text, object_pairs_hook=list)
    found: dict[str, Answer | Failure] = {}
    for id_, said in pairs:
        if id_ in found:
            raise OpenEQAError(
                f"{path} has the id {id_!r} twice: leave one of them, or the one answer would "
                "hide the other"
            )
        if isinstance(said, (int, float)):
            raise OpenEQAError(
                f"{path} has the number {said} for {id_!r}: that is a file of marks, expected "
                "answers"
            )
        found[id_] = _answer(f"{path}, {id_!r}", said)
    if not found:
        raise OpenEQAError(f"{path} holds no predictions: expected a list of rows, or id: answer")
    return found


def _field(where: str, row: Mapping[str, object], what: str, names: Sequence[str]) -> object:
    for name in names:
        if name in row:
            return row[name]
    raise OpenEQAError(
        f"{where} has no {what}: expected one of the fields {', '.join(names)}, found "
        f"{', '.join(row) or 'none'}; reasoner.{what}_field names another"
    )


def _answer(where: str, said: object) -> Answer:
    if said is None or (isinstance(said, float) and math.isnan(said)):  # how pandas writes none
        return Answer("", "empty")
    if isinstance(said, bool) or not isinstance(said, (str, int, float)):
        raise OpenEQAError(f"{where} has the answer {_short(said)}: expected a text or null")
    text = whole_characters(str(said))
    return Answer(text) if text.strip() else Answer("", "empty", text)


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"
