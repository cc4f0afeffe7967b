"""Question files: JSON or CSV rows, whatever their fields are called, read as cases."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from openeqa_lab.data.case import Case, Question, Verbatim
from openeqa_lab.errors import OpenEQAError

ALIASES: Mapping[str, tuple[str, ...]] = {
    "question_id": ("question_id", "id", "episode_id", "qid"),
    "question": ("question", "q", "prompt"),
    "answer": ("answer", "gt_answer", "gt", "ground_truth"),
    "category": ("category", "question_type", "type", "tag"),
    "episode_history": (
        "episode_history",
        "history",
        "episode_history_path",
        "episode_id",
        "scene_id",
    ),
    "extra_answers": ("extra_answers", "alt_answers", "additional_answers"),
}
"""Which names each field is accepted under; the first that is present and not empty wins.

Without an id a row is called by its index in the file, from 0; without an episode, by its id.
"""

Row = Mapping[str, object]


def near(name: str, names: Iterable[str]) -> str:
    """What may have been meant, as the end of a sentence: ``; did you mean 'hm3d'?`` or nothing."""
    from difflib import get_close_matches

    found = get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def read_bytes(path: Path, missing: str) -> bytes:
    """The file's bytes; `missing` says what to do when there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise OpenEQAError(f"No file {path}: {missing}") from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or error
        raise OpenEQAError(f"Cannot read {path}: {reason}; {missing}") from None


def decode_text(path: Path, content: bytes) -> str:
    """The text of a UTF-8 file, without the byte order mark that spreadsheets write."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OpenEQAError(
            f"{path} is not UTF-8 text (byte 0x{content[error.start]:02x} at offset "
            f"{error.start}): expected JSON or CSV, saved as UTF-8"
        ) from None


def parse_json(path: Path, text: str) -> object:
    """The JSON value of a file; a fault is told with its line and column."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise OpenEQAError(
            f"{path} is not readable JSON: {error.msg} ({where}); expected one JSON list"
        ) from None
    except (RecursionError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise OpenEQAError(f"{path} is not readable JSON: {error}; expected one list") from None


def complete_aliases(own: Mapping[str, Sequence[str] | str] | None) -> dict[str, tuple[str, ...]]:
    """The alias table, in which each field that `own` names has the names given there."""
    table = dict(ALIASES)
    for field, names in (own or {}).items():
        if field not in table:
            raise OpenEQAError(
                f"aliases names an unknown field {field!r}: expected one of "
                f"{', '.join(ALIASES)}{near(field, ALIASES)}"
            )
        table[field] = (names,) if isinstance(names, str) else tuple(names)
    return table


def read_questions(
    path: Path, aliases: Mapping[str, Sequence[str]]
) -> tuple[tuple[Case, ...], str]:
    """The cases of a question file in its order, and the sha256 of its bytes.

    Texts stay letter for letter as they are in the file, except that outer white space is
    dropped (30 questions and 22 answers of the official file have some).

    Raises:
        OpenEQAError: The file or one of its rows cannot be used; rows are counted from 1.
    """
    content = read_bytes(
        path,
        "`python -m openeqa_lab.fetch questions` (or demo-episode) brings upstream's; data_dir "
        "(environment: OPENEQA_DATA_DIR) or dataset.path says where they are",
    )
    text = decode_text(path, content)
    rows = _csv_rows(path, text) if path.suffix.lower() == ".csv" else _json_rows(path, text)
    if not rows:
        raise OpenEQAError(f"{path} holds no questions")
    cases = []
    seen: dict[str, int] = {}
    for number, row in enumerate(rows, start=1):
        case, id_field = _case(f"{path}, row {number}", number, row, aliases)
        if case.id in seen:
            raise OpenEQAError(_same_id(path, case.id, seen[case.id], number, id_field))
        seen[case.id] = number
        cases.append(case)
    return tuple(cases), sha256(content).hexdigest()


def _same_id(path: Path, name: str, first: int, second: int, field: str) -> str:
    message = f"{path}: rows {first} and {second} have the same id {name!r}"
    if field == "episode_id":
        return (
            f"{message}, read from 'episode_id', which names an episode, not a question: give "
            "each row a 'question_id', or set dataset.aliases.question_id to the field that "
            "tells questions apart ([] counts the rows)"
        )
    source = f"read from {field!r}" if field else "the row's index, as it has no id of its own"
    return f"{message} ({source}): ids must be unique, or two answers would become one"


def _json_rows(path: Path, text: str) -> list[Row]:
    value = parse_json(path, text)
    if isinstance(value, dict):
        lists = {name: inner for name, inner in value.items() if isinstance(inner, list)}
        if len(lists) != 1:
            found = ", ".join(map(repr, lists)) or "none"
            raise OpenEQAError(
                f"{path} holds a JSON object with {len(lists)} lists ({found}): expected a list "
                "of questions, or an object around one such list"
            )
        value = next(iter(lists.values()))
    if not isinstance(value, list):
        raise OpenEQAError(f"{path} holds {_kind(value)}: expected a JSON list of questions")
    for number, row in enumerate(value, start=1):
        if not isinstance(row, dict):
            raise OpenEQAError(
                f"{path}, row {number} is {_kind(row)}: expected an object with a question, an "
                "answer, a category, a question_id and an episode_history"
            )
    return value


def _csv_rows(path: Path, text: str) -> list[Row]:
    header = text.partition("\n")[0]
    separator = max(",;\t", key=header.count)  # spreadsheets of some countries write semicolons
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        cells = [line for line in lines if any(cell.strip() for cell in line)]
    except csv.Error as error:
        raise OpenEQAError(f"{path} is not readable CSV: {error} (line {lines.line_num})") from None
    names = [name.strip() for name in cells[0]] if cells else []
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise OpenEQAError(f"{path} has two columns {twice!r}: expected each name once")
    for number, line in enumerate(cells[1:], start=1):
        if len(line) != len(names):
            raise OpenEQAError(
                f"{path}, row {number} has {len(line)} cells, the header {len(names)}: a text "
                f"with {separator!r} in it needs quotes around it"
            )
    return [dict(zip(names, line, strict=True)) for line in cells[1:]]


def _case(
    where: str, number: int, row: Row, aliases: Mapping[str, Sequence[str]]
) -> tuple[Case, str]:
    """The case of one row, and the name of the field that its id was read from."""
    id_field, value = _first(row, aliases["question_id"])
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    question_id = _text(where, id_field, value) if id_field else str(number - 1)
    where = f"{where} (id {question_id!r})"
    texts = {}
    written = {}
    for field in ("question", "answer", "category", "episode_history"):
        name, value = _first(row, aliases[field])
        texts[field] = _text(where, name, value) if name else ""
        written[field] = str(value)
        if not name and field in ("question", "answer"):
            raise OpenEQAError(_lacking(where, field, row, aliases[field]))
    name, value = _first(row, aliases["extra_answers"])
    extra = _extra_answers(where, name, value, texts["answer"]) if name else ()
    listed = tuple(map(str, value)) if isinstance(value, list) else extra
    verbatim = Verbatim(written["question"], written["answer"], listed)
    clean = Verbatim(texts["question"], texts["answer"], extra)
    case = Case(
        question_id,
        Question(question_id, texts["question"]),
        texts["answer"],
        texts["category"],
        texts["episode_history"].rstrip("/") or question_id,
        extra,
        None if verbatim == clean else verbatim,
    )
    return case, id_field


def _first(row: Row, names: Sequence[str]) -> tuple[str, object]:
    for name in names:
        value = row.get(name)
        if value is None or value == [] or (isinstance(value, str) and not value.strip()):
            continue
        return name, value
    return "", None


def _lacking(where: str, field: str, row: Row, names: Sequence[str]) -> str:
    present = [name for name in names if name in row]
    if present:
        return f"{where}: {present[0]!r} is empty; expected the text of {field!r}"
    hint = next(filter(None, (near(name, row) for name in names)), "")
    return (
        f"{where} has no {field}: expected a field {' or '.join(map(repr, names))}, found "
        f"{', '.join(map(repr, row)) or 'none'}{hint}; dataset.aliases.{field} takes other names"
    )


def _text(where: str, name: str, value: object) -> str:
    if not isinstance(value, str):
        raise OpenEQAError(f"{where}: {name!r} is {_kind(value)}; expected a text in quotes")
    text = value.strip()
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise OpenEQAError(
            f"{where}: {name!r} holds half a character (a lone surrogate \\ud800-\\udfff), which "
            "cannot be written as UTF-8; write the whole character"
        )
    return text


def _extra_answers(where: str, name: str, value: object, answer: str) -> tuple[str, ...]:
    if isinstance(value, str):
        if value.lstrip().startswith("["):  # a list in a cell of a CSV file
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                raise OpenEQAError(
                    f'{where}: {name!r} is not a JSON list; expected ["one", "two"], or one answer'
                ) from None
        else:
            value = [value]
    if not isinstance(value, list):
        raise OpenEQAError(f"{where}: {name!r} is {_kind(value)}; expected a list of texts")
    # Case and a final full stop do not make another answer.
    distinct = {answer.casefold().rstrip("."): answer, "": ""}
    for extra in value:
        text = "" if extra is None else _text(where, name, extra)
        distinct.setdefault(text.casefold().rstrip("."), text)
    return tuple(distinct.values())[2:]


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"the value {json.dumps(value)}"
    if isinstance(value, int | float):
        return f"the number {value}"
    return (
        "a text" if isinstance(value, str) else "a list" if isinstance(value, list) else "an object"
    )
