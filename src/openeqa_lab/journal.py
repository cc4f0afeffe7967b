"""The run's memory: one line of JSON an event, appended, identity first, whole after any kill.

A journal is the truth of a run folder; reports are made from it. Lines are ``identity`` (once, the
settings that can change an answer), ``judge`` (a judge's settings and the short hash that its
verdicts carry), ``answer``, ``verdict`` and ``failure``. Image bytes never enter it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import filelock
from pydantic import Field, TypeAdapter, ValidationError

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.records import Answer, EpisodeTrace, Failure, Shown, Usage, Verdict

FORMAT = 1
FILE_NAME = "journal.jsonl"

log = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """A judge's verdict on the latest answer above it."""

    case: str
    judge: str
    verdict: Verdict
    type: Literal["verdict"] = "verdict"


@dataclass(frozen=True, slots=True)
class FailureLine:
    """What could not be done; `judge` is empty unless a judgement failed."""

    case: str
    failure: Failure
    judge: str = ""
    type: Literal["failure"] = "failure"


Line = IdentityLine | JudgeLine | AnswerLine | VerdictLine | FailureLine


@cache
def _adapter() -> TypeAdapter[Line]:
    return TypeAdapter(Annotated[Line, Field(discriminator="type")])


@dataclass(slots=True)
class Entry:
    """What a journal knows of one case.

    `verdicts` are the judgements of the latest answer, by judge hash. `earlier` is what attempts
    cost that were replaced, by judge hash, those at an answer under the empty one.
    """

    result: Answer | Failure | None = None
    trace: EpisodeTrace | None = None
    shown: tuple[Shown, ...] = ()
    verdicts: dict[str, Verdict | Failure] = field(default_factory=dict)
    earlier: dict[str, Usage] = field(default_factory=dict)

    def add(self, line: AnswerLine | VerdictLine | FailureLine) -> None:
        """Fold one more line in: the latest success wins, a failure never replaces one."""
        if isinstance(line, AnswerLine):
            self._replaced("", self.result)
            for judge, verdict in self.verdicts.items():
                self._replaced(judge, verdict)
            self.verdicts.clear()
            self.result, self.trace, self.shown = line.answer, line.trace, line.shown
        elif isinstance(line, VerdictLine):
            self._replaced(line.judge, self.verdicts.get(line.judge))
            self.verdicts[line.judge] = line.verdict
        elif line.judge:
            old = self.verdicts.get(line.judge)
            keeps = isinstance(old, Verdict)
            self._replaced(line.judge, line.failure if keeps else old)
            self.verdicts[line.judge] = old if isinstance(old, Verdict) else line.failure
        else:
            old_result = self.result
            keeps = isinstance(old_result, Answer)
            self._replaced("", line.failure if keeps else old_result)
            self.result = old_result if keeps else line.failure

    def _replaced(self, judge: str, old: Answer | Verdict | Failure | None) -> None:
        if old is not None:
            self.earlier[judge] = self.earlier.get(judge, Usage()) + old.usage


@dataclass(frozen=True, slots=True)
class Content:
    """A journal as read: identity, judges by hash, and the fold of each case's lines."""

    identity: Mapping[str, object] | None
    judges: Mapping[str, Mapping[str, object]]
    entries: dict[str, Entry]


def digest(identity: Mapping[str, object]) -> str:
    """The first eight hex digits of an identity's SHA-256, as folders and verdict lines use it."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """The settings that differ, each as ``name: old -> new``, nested names joined by dots."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    names = [*before, *(name for name in after if name not in before)]
    return [
        f"{name}: {before.get(name, 'not set')} -> {after.get(name, 'not set')}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def _leaves(node: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value)


def read(path: Path) -> Content:
    """The fold of a journal file or of a run folder's journal; damaged lines are left out.

    Raises:
        OpenEQAError: There is no such file, or it is no journal that this version reads.
    """
    path = path / FILE_NAME if path.is_dir() else path
    try:
        data = path.read_bytes()
    except OSError as error:
        raise OpenEQAError(f"no journal can be read at {path}: {error.strerror}") from None
    return _fold(_parse(data)[0], path)


def _parse(data: bytes) -> tuple[list[tuple[bytes, Line]], list[bytes]]:
    """The whole lines with what they say, and the damaged ones (torn, zeroed, not of ours)."""
    good: list[tuple[bytes, Line]] = []
    damaged: list[bytes] = []
    for raw in data.split(b"\n"):
        if not raw.strip():
            continue
        try:
            good.append((raw, _adapter().validate_json(raw)))
        except ValidationError:
            damaged.append(raw)
    return good, damaged


def _fold(lines: Iterable[tuple[bytes, Line]], path: Path) -> Content:
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
            identity = identity or line.identity
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


class Journal:
    """A run folder's journal, locked and open for appending.

    `append` writes at once, `sync` returns when everything appended before it is on the disk.

    Args:
        folder: The run folder; made if it is not there. A second run in it is refused.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._synced = 0  # bytes known to be on the disk
        self._syncing: asyncio.Task[None] | None = None
        self._unwritten: list[bytes] = []
        self._broken: OpenEQAError | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = filelock.FileLock(folder / ".lock")
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise OpenEQAError(
                f"another run is writing to {folder}: wait for it, or choose another output_dir"
            ) from None
        except OSError as error:
            raise OpenEQAError(
                f"cannot write to output_dir {folder}: {error.strerror}; choose another output_dir"
            ) from None
        try:
            self.content = self._open()
        except BaseException:
            self._lock.release()
            raise

    def _open(self) -> Content:
        """Read what is there, set damaged lines aside and leave a file of whole lines."""
        data = self.path.read_bytes() if self.path.exists() else b""
        lines, damaged = _parse(data)
        content = _fold(lines, self.path)
        if damaged:
            aside = self.path.with_suffix(".damaged")
            with aside.open("ab") as file:
                file.writelines(raw + b"\n" for raw in damaged)
            log.warning(
                "%s: %d damaged line(s), most likely from a kill in mid-line, set aside in %s; "
                "what they held is asked again",
                self.path, len(damaged), aside.name,
            )  # fmt: skip
        whole = b"".join(raw + b"\n" for raw, _ in lines)
        if whole != data:
            write_whole(self.path, whole)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = self._synced = os.fstat(self._file).st_size
        return content

    def identify(self, identity: Mapping[str, object], version: str) -> None:
        """Write the identity of a new journal, or hold it against the one that is there.

        Raises:
            OpenEQAError: The answers that are there were asked with other settings; they are named.
        """
        if self.content.identity is None:
            self.append(IdentityLine(dict(identity), version))
            self.content = dataclasses.replace(self.content, identity=identity)
            return
        changed = differences(self.content.identity, identity)
        if changed:
            raise OpenEQAError(
                f"{self.path.parent} holds answers that were asked with other settings "
                f"({'; '.join(changed)}): choose another output_dir, or go back to those settings"
            )

    def take_answers(self, folder: Path) -> int:
        """Copy the answers of another run with this one's identity that are not here yet.

        Returns:
            How many there were; 0 for a folder without a journal or of another identity.
        """
        if folder.resolve() == self.path.parent.resolve() or not (folder / FILE_NAME).exists():
            return 0
        other = read(folder)
        if other.identity != self.content.identity:
            return 0
        taken = 0
        for case, theirs in other.entries.items():
            ours = self.content.entries.setdefault(case, Entry())
            if isinstance(theirs.result, Answer) and not isinstance(ours.result, Answer):
                trace = theirs.trace or EpisodeTrace("", 0)
                line = AnswerLine(case, theirs.result, trace, theirs.shown)
                self.append(line)
                ours.add(line)
                taken += 1
        return taken

    def append(self, line: Line) -> None:
        """Hand a line to the system, so that a kill of this process cannot take it any more.

        A power cut still can until `sync` has returned. What cannot be written is kept for
        `close`, and `sync` raises.
        """
        data = _adapter().dump_json(line) + b"\n"
        if self._broken is None:
            try:
                self._write(data)
            except OSError as error:
                os.ftruncate(self._file, self._size)  # no half line stays behind
                self._break(error)
        if self._broken is not None:
            self._unwritten.append(data)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        self._size += len(data)

    def _break(self, error: OSError) -> None:
        self._broken = OpenEQAError(
            f"cannot write {self.path}: {error.strerror}. Make room and start the same command "
            "again: what is in the journal is kept"
        )

    async def sync(self) -> None:
        """Return once all that was appended so far is on the disk; waiting tasks share an fsync.

        Raises:
            OpenEQAError: A line could not be written (a full disk).
        """
        goal = self._size
        while self._broken is None and self._synced < goal:
            if self._syncing is None or self._syncing.done():
                self._syncing = asyncio.get_running_loop().create_task(self._fsync())
            await asyncio.shield(self._syncing)
        if self._broken is not None:
            raise self._broken

    async def _fsync(self) -> None:
        size = self._size
        try:
            await asyncio.to_thread(os.fsync, self._file)
        except OSError as error:
            self._break(error)
        else:
            self._synced = size

    async def close(self) -> None:
        """Sync and unlock; never raises for a full disk, but saves the lines elsewhere."""
        try:
            with contextlib.suppress(OpenEQAError):
                await self.sync()
            if self._unwritten:
                with tempfile.NamedTemporaryFile(
                    prefix="openeqa-journal-", suffix=".jsonl", delete=False
                ) as rescue:
                    rescue.write(b"".join(self._unwritten))
                log.error(
                    "%d journal line(s) could not be written to %s and were saved in %s: append "
                    "that file to the journal before the next start",
                    len(self._unwritten), self.path, rescue.name,
                )  # fmt: skip
        finally:
            os.close(self._file)
            self._lock.release()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a kill leaves either the old or the new one, never a half."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
