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
from collections.abc import Collection, Mapping
from pathlib import Path

from openeqa_lab.entries import (
    FILE_NAME,
    Content,
    Entry,
    IdentityLine,
    Line,
    check_identity,
    fold,
    identity_of,
    line_of,
    missing_answers,
    parse,
    read_journal,
)
from openeqa_lab.errors import OpenEQAError

LOCK_NAME = ".lock"

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
            self._lock = filelock.FileLock(folder / LOCK_NAME)
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
        except OSError as error:
            self._lock.release()
            raise OpenEQAError(
                f"cannot open {self.path}: {error.strerror}; mend that, or choose another "
                "output_dir"
            ) from None
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
        check_identity(self.path.parent, self.content.identity, identity)
        if self.content.identity is None:
            self.append(IdentityLine(dict(identity), version))
            self.content = dataclasses.replace(self.content, identity=identity)

    def take_answers(self, folder: Path, asked: Collection[str]) -> int:
        """Copy the answers of another run with this one's identity that are not here yet.

        Args:
            folder: The other run's.
            asked: The ids of this run's questions; others are left where they are.

        Returns:
            How many there were; 0 for a folder without a journal or of another identity.

        Raises:
            OpenEQAError: That run is under way: it is buying the same answers.
        """
        import filelock

        if folder.resolve() == self.path.parent.resolve():
            return 0
        if identity_of(folder) != self.content.identity:
            return 0
        lock = filelock.FileLock(folder / LOCK_NAME)
        try:
            # A folder that cannot be written to has no lock, and no run under way in it.
            with contextlib.suppress(PermissionError):
                lock.acquire(timeout=0)
            theirs = read_journal(folder).entries
        except filelock.Timeout:
            raise OpenEQAError(
                f"the run in {folder} is asking the same questions with the same settings: wait "
                "for its end, its answers are then taken over instead of being bought twice"
            ) from None
        except OpenEQAError as error:
            log.warning("no answers are taken over from %s: %s", folder, error)
            return 0
        finally:
            lock.release()
        lines = missing_answers(self.content.entries, theirs, asked)
        for line in lines:
            self.append(line)
            self.content.entries.setdefault(line.case, Entry()).add(line)
        return len(lines)

    def append(self, line: Line) -> None:
        """Hand a line to the system, so that a kill of this process cannot take it any more.

        A power cut still can until `sync` has returned.

        Raises:
            OpenEQAError: It cannot be written (a full disk); it is kept for `close` to save.
        """
        data = line_of(line)
        if self._broken is None:
            try:
                self._write(data)
            except OSError as error:
                os.ftruncate(self._file, self._size)  # no half line stays behind
                self._break(error)
        if self._broken is not None:
            self._unwritten.append(data)
            raise self._broken

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
        """Sync and unlock; what a full disk refused is saved in a temporary file or on stderr."""
        try:
            with contextlib.suppress(OpenEQAError):
                await self.sync()
            if self._unwritten:
                self._save(b"".join(self._unwritten))
        finally:
            os.close(self._file)
            self._lock.release()

    def _save(self, lines: bytes) -> None:
        try:
            with tempfile.NamedTemporaryFile(
                prefix="openeqa-journal-", suffix=".jsonl", delete=False
            ) as file:
                file.write(lines)
            where = f"are in {file.name}"
        except OSError:
            where = "follow here:\n" + lines.decode()
        log.error(
            "%d journal line(s) that were paid for could not be written to %s; append them to it "
            "before the next start. They %s",
            len(self._unwritten), self.path, where,
        )  # fmt: skip


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a kill leaves either the old or the new one, never a half."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    if hasattr(os, "O_DIRECTORY"):  # the new name is on the disk, too
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
