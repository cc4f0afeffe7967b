"""The run's memory: one line of JSON an event, appended, identity first, whole after any kill.

A journal is the truth of a run folder; reports are made from it. Image bytes never enter it.
`entries` says what the lines are.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from openeqa_lab.entries import (
    FILE_NAME,
    AnswerLine,
    Content,
    Entry,
    IdentityLine,
    Line,
    adapter,
    differences,
    fold,
    parse,
    read_journal,
)
from openeqa_lab.errors import OpenEQAError
from openeqa_lab.records import Answer, EpisodeTrace

log = logging.getLogger(__name__)


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
        import filelock  # not at the top: a dry run locks nothing

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
        lines, damaged = parse(data)
        content = fold(lines, self.path)
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
        other = read_journal(folder)
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
        data = adapter().dump_json(line) + b"\n"
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
