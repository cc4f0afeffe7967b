"""What a journal's lines say, and what they fold to.

Lines are ``identity`` (once and first, the settings that can change an answer), ``judge`` (a
judge's settings and the short hash that its lines carry), ``answer``, ``verdict`` and ``failure``.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.identity import differences
from openeqa_lab.records import (
    HALF_CHARACTER,
    Answer,
    EpisodeTrace,
    Failure,
    Shown,
    Usage,
    Verdict,
)

FORMAT = 1
FILE_NAME = "journal.jsonl"


@dataclass(frozen=True, slots=True)
class IdentityLine:
    """What can change an answer; the first line of every journal."""

    identity: dict[str, object]
    version: str = ""
    format: int = FORMAT
    type: Literal["identity"] = "identity"


@dataclass(frozen=True, slots=True)
class JudgeLine:
    """What can change a mark, and the hash that this judge's lines carry."""

    judge: str
    identity: dict[str, object]
    type: Literal["judge"] = "judge"


@dataclass(frozen=True, slots=True)
class AnswerLine:
    """A paid answer with the frames it was given for."""

    case: str
    answer: Answer
    trace: EpisodeTrace
    shown: tuple[Shown, ...] = ()
    type: Literal["answer"] = "answer"

    @property
    def usage(self) -> Usage:
        """What the answer cost."""
        return self.answer.usage


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """A judge's verdict on the latest answer above it."""

    case: str
    judge: str
    verdict: Verdict
    type: Literal["verdict"] = "verdict"

    @property
    def usage(self) -> Usage:
        """What the verdict cost."""
        return self.verdict.usage


@dataclass(frozen=True, slots=True)
class FailureLine:
    """What could not be done; `judge` is empty unless a judgement failed."""

    case: str
    failure: Failure
    judge: str = ""
    type: Literal["failure"] = "failure"

    @property
    def usage(self) -> Usage:
        """What was paid all the same."""
        return self.failure.usage


Line = IdentityLine | JudgeLine | AnswerLine | VerdictLine | FailureLine


@cache
def adapter() -> TypeAdapter[Line]:
    """Between lines and their JSON, built when it is first used."""
    return TypeAdapter(Annotated[Line, Field(discriminator="type")])


@dataclass(slots=True)
class Entry:
    """What a journal knows of one case.

    `verdicts` are the judgements of the latest answer, by judge hash. `earlier` is what attempts
    cost that were replaced, by judge hash, those at an answer under the empty one; `replies` counts
    what was said so far, in the same way, so that a cache does not say it again.
    """

    result: Answer | Failure | None = None
    trace: EpisodeTrace | None = None
    shown: tuple[Shown, ...] = ()
    verdicts: dict[str, Verdict | Failure] = field(default_factory=dict)
    earlier: dict[str, Usage] = field(default_factory=dict)
    replies: dict[str, int] = field(default_factory=dict)

    def add(self, line: AnswerLine | VerdictLine | FailureLine) -> None:
        """Fold one more line in: the latest success wins, a failure never replaces one."""
        if not isinstance(line, FailureLine) or line.failure.raw:
            by = "" if isinstance(line, AnswerLine) else line.judge
            self.replies[by] = self.replies.get(by, 0) + 1
        if isinstance(line, AnswerLine):
            self._replaced("", self.result)
            for judge, verdict in self.verdicts.items():
                self._replaced(judge, verdict)
            self.verdicts.clear()
            self.result, self.trace, self.shown = line.answer, line.trace, line.shown
        elif isinstance(line, VerdictLine):
            self._replaced(line.judge, self.verdicts.get(line.judge))
            self.verdicts[line.judge] = line.verdict
        else:
            old = self.verdicts.get(line.judge) if line.judge else self.result
            success = isinstance(old, Answer | Verdict)
            self._replaced(line.judge, line.failure if success else old)
            if line.judge and not success:
                self.verdicts[line.judge] = line.failure
            elif not success:
                self.result = line.failure

    def _replaced(self, judge: str, old: Answer | Verdict | Failure | None) -> None:
        if old is not None:
            self.earlier[judge] = self.earlier.get(judge, Usage()) + old.usage


@dataclass(frozen=True, slots=True)
class Content:
    """A journal as read: identity, judges by hash, and the fold of each case's lines."""

    identity: Mapping[str, object] | None
    judges: Mapping[str, Mapping[str, object]]
    entries: dict[str, Entry]


def read_journal(path: Path) -> Content:
    """The fold of a journal file or of a run folder's journal; damaged lines are left out.

    Raises:
        OpenEQAError: There is no such file, or it is no journal that this version reads.
    """
    path = path / FILE_NAME if path.is_dir() else path
    try:
        data = path.read_bytes()
    except OSError as error:
        raise OpenEQAError(f"no journal can be read at {path}: {error.strerror}") from None
    return fold(parse(data)[0], path)


def line_of(line: Line) -> bytes:
    """A line as it is written, half characters in it spelled out.

    Raises:
        OpenEQAError: It would not read back: a reasoner or a judge gave a value of a wrong type.
    """
    try:
        try:
            data = adapter().dump_json(line, warnings=False)
        except PydanticSerializationError:
            text = json.dumps(adapter().dump_python(line, warnings=False), ensure_ascii=False)
            data = HALF_CHARACTER.sub(lambda half: f"\\\\u{ord(half.group()):04x}", text).encode()
        adapter().validate_json(data)
    except (PydanticSerializationError, ValidationError, TypeError, ValueError) as error:
        fault = " ".join(str(error).split())
        raise OpenEQAError(
            f"the {line.type} line of {getattr(line, 'case', 'this run')} cannot be written, as a "
            f"reasoner or a judge gave a value of another type than its contract says: {fault}"
        ) from None
    return data + b"\n"


def identity_of(path: Path) -> Mapping[str, object] | None:
    """The identity of a run folder or journal, read off its first line; None without one."""
    try:
        with (path if path.is_file() else path / FILE_NAME).open("rb") as file:
            line = adapter().validate_json(file.readline().removeprefix(BOM_UTF8))
    except (OSError, ValidationError):
        return None
    return line.identity if isinstance(line, IdentityLine) else None


def check_identity(
    folder: Path, old: Mapping[str, object] | None, new: Mapping[str, object]
) -> None:
    """Hold a run's settings against those that a folder's answers were asked with.

    Raises:
        OpenEQAError: They differ; the settings are named.
    """
    if old is not None and (changed := differences(old, new)):
        raise OpenEQAError(
            f"{folder} holds answers that were asked with other settings ({'; '.join(changed)}): "
            "choose another output_dir, or go back to those settings"
        )


def missing_answers(
    ours: Mapping[str, Entry], theirs: Mapping[str, Entry], asked: Collection[str]
) -> list[AnswerLine]:
    """The answers of another journal to questions asked here that this one does not have."""
    return [
        AnswerLine(case, entry.result, entry.trace or EpisodeTrace("", 0), entry.shown)
        for case, entry in theirs.items()
        if case in asked
        and isinstance(entry.result, Answer)
        and not (case in ours and isinstance(ours[case].result, Answer))
    ]


def parse(data: bytes) -> tuple[list[tuple[bytes, Line]], list[bytes]]:
    """The whole lines with what they say, and the damaged ones (torn, zeroed, not of ours)."""
    good: list[tuple[bytes, Line]] = []
    damaged: list[bytes] = []
    for raw in data.removeprefix(BOM_UTF8).split(b"\n"):
        if not raw.strip():
            continue
        try:
            good.append((raw, adapter().validate_json(raw)))
        except ValidationError:
            damaged.append(raw)
    return good, damaged


def fold(lines: Iterable[tuple[bytes, Line]], path: Path) -> Content:
    """What the lines of a journal come to; `path` is for messages."""
    identity: Mapping[str, object] | None = None
    judges: dict[str, Mapping[str, object]] = {}
    entries: dict[str, Entry] = {}
    for _, line in lines:
        if isinstance(line, IdentityLine):
            if line.format > FORMAT:
                raise OpenEQAError(
                    f"{path} was written by a newer version ({line.version}, format "
                    f"{line.format}; this one reads up to {FORMAT}): update openeqa-lab"
                )
            if identity is not None and identity != line.identity:
                raise OpenEQAError(
                    f"{path} holds answers of two runs with other settings "
                    f"({'; '.join(differences(identity, line.identity))}): take one run's lines out"
                )
            identity = line.identity
        elif isinstance(line, JudgeLine):
            judges[line.judge] = line.identity
        elif identity is None:
            raise OpenEQAError(
                f"{path} does not begin with an identity line: what its answers were asked with "
                "is not known. Choose another output_dir; the file stays as it is"
            )
        else:
            entries.setdefault(line.case, Entry()).add(line)
    return Content(identity, judges, entries)
