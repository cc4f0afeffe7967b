"""What is known of batches under way, kept on disk, so that a start after a kill finds them again.

Each batch has a small JSON file, written before and after each step with its vendor, beside its
requests until the vendor has them, and its results once they are fetched. All are their owner's
only: requests hold prompts and pictures.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.llm.batch_mode.state import Batch, Server, batch_in, text_of

KEPT_S = 30 * 86400.0  # vendors drop results after 29 (Anthropic) and 30 days (OpenAI)
log = logging.getLogger(__name__)


class Folder:
    """The folder of a server's batches; several processes may share it.

    Args:
        path: Made when the first batch is.
        server: Batches of others are left alone.
    """

    def __init__(self, path: Path, server: Server) -> None:
        self.path = path
        self._server = server

    def requests(self, batch: Batch) -> Path:
        """Where its requests are until the vendor has them, one line each."""
        return self.path / f"{batch.name}.requests.jsonl"

    def results(self, batch: Batch) -> Path:
        """Where its results are once it is collected, one line each, in any order."""
        return self.path / f"{batch.name}.results.jsonl"

    def batches(self) -> list[Batch]:
        """This server's batches, the oldest first; those that no vendor keeps any more are removed.

        Raises:
            OpenEQAError: A file is damaged, or cannot be read: its batch might be bought twice.
        """
        with _told(self.path):
            found = [self._read(path) for path in sorted(self.path.glob("*.json"))]
        ours = [batch for batch in found if batch is not None and batch.server == self._server]
        old = [batch for batch in ours if time.time() - batch.changed > KEPT_S]
        for batch in old:
            if batch.state in ("sent", "collected"):
                self.remove(batch)
                ours.remove(batch)
        return sorted(ours, key=lambda batch: batch.changed)

    def batch_ids(self) -> set[str]:
        """The vendors' names of all batches that are remembered here, whoever's they are."""
        with _told(self.path):
            found = [self._read(path) for path in self.path.glob("*.json")]
        return {batch.batch_id for batch in found if batch is not None} - {""}

    def again(self, batch: Batch) -> Batch | None:
        """What its file says now; None when it is gone."""
        with _told(self.path):
            return self._read(self._file(batch))

    def new(self) -> Spool:
        """A batch that requests can be added to."""
        batch = Batch(uuid.uuid4().hex, self._server)
        with _told(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = self.lock(batch)
            lock.take()  # nobody else can have its name
            batch = self.write(batch)
            file = _create(self.requests(batch), buffering=0)
        return Spool(self, batch, lock, file)

    def write(self, batch: Batch) -> Batch:
        """Put down how far a batch has come; a kill leaves the old or the new file, never a half.

        Returns:
            What stands there now, with the time.
        """
        batch = replace(batch, changed=time.time())
        path = self._file(batch)
        temporary = path.with_suffix(".new")
        with _told(path):
            with _create(temporary) as file:
                file.write(text_of(batch))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            if hasattr(os, "O_DIRECTORY"):  # the new name is on the disk, too
                folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
        return batch

    def remove(self, batch: Batch) -> None:
        """Forget a batch."""
        with _told(self.path):
            results = self.results(batch)
            parts = self._file(batch), self.requests(batch), results, results.with_suffix(".part")
            for path in parts:
                path.unlink(missing_ok=True)

    def drop_requests(self, batch: Batch) -> None:
        """Make room: the vendor has them."""
        with _told(self.path):
            self.requests(batch).unlink(missing_ok=True)

    @contextlib.contextmanager
    def collecting(self, batch: Batch) -> Iterator[BinaryIO]:
        """A file that becomes the batch's results when nothing goes wrong."""
        path = self.results(batch)
        temporary = path.with_suffix(".part")
        with _told(path), _create(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with _told(path):
            os.replace(temporary, path)

    def lock(self, batch: Batch) -> Lock:
        """What whoever gathers and sends a batch holds meanwhile."""
        import filelock  # not at the top: takes time

        path = self.path / f"{batch.name}.lock"
        return Lock(filelock.FileLock(path, mode=0o600, thread_local=False), path)

    def _file(self, batch: Batch) -> Path:
        return self.path / f"{batch.name}.json"

    def _read(self, path: Path) -> Batch | None:
        try:
            batch = batch_in(path.read_bytes())
        except FileNotFoundError:  # another process has removed it
            return None
        except ValueError as error:
            raise OpenEQAError(
                f"{path} should say what is known of a batch under way, and cannot be used "
                f"({error}): delete it to have the batch forgotten, which buys what is in it again"
            ) from None
        if batch.state == "collected" and not self.results(batch).exists():
            return replace(batch, state="sent")  # the vendor still has them
        return batch


@dataclass(frozen=True, slots=True)
class Lock:
    """A batch that can be held by one process at a time, and by one holder in it."""

    held: Any
    path: Path

    def take(self) -> bool:
        """Hold it, unless somebody else does."""
        import filelock

        try:
            self.held.acquire(timeout=0)
        except filelock.Timeout:
            return False
        return True

    def release(self) -> None:
        """Let others have it."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.held.release()


@dataclass(slots=True)
class Spool:
    """A batch whose requests are gathered.

    Args:
        folder: Where it is.
        batch: What is remembered of it.
        lock: Held until the vendor has it.
        file: Its requests.
        size: Bytes of its requests.
        ids: Of its requests.
    """

    folder: Folder
    batch: Batch
    lock: Lock
    file: BinaryIO
    size: int = 0
    ids: list[str] = field(default_factory=list)

    def add(self, custom_id: str, line: bytes) -> None:
        """Write one request down, or leave the file as it was."""
        with _told(self.folder.requests(self.batch)):
            rest = memoryview(line)
            try:
                while rest:  # a disk that fills up takes a part first
                    rest = rest[self.file.write(rest) :]
            except OSError:
                self.file.truncate(self.size)
                self.file.seek(self.size)
                raise
        self.size += len(line)
        self.ids.append(custom_id)

    def close(self) -> Batch:
        """Let no further request in; from here on the vendor may have it."""
        with _told(self.folder.requests(self.batch)):
            self.file.close()
        closed = replace(self.batch, state="sending", ids=tuple(self.ids), sent=time.time())
        self.batch = self.folder.write(closed)
        return self.batch

    def drop(self) -> None:
        """Forget it: nothing was sent."""
        with contextlib.suppress(OSError):
            self.file.close()
        self.folder.remove(self.batch)
        self.lock.release()


def results_in(path: Path) -> dict[str, Mapping[str, Any]]:
    """The results of a file, by `custom_id`; those that do not say whose they are, are counted."""
    found: dict[str, Mapping[str, Any]] = {}
    damaged = 0
    with _told(path), path.open("rb") as file:
        for raw in file:
            if not raw.strip():
                continue
            try:
                line = json.loads(raw)
            except ValueError:
                line = None
            if isinstance(line, dict) and isinstance(line.get("custom_id"), str):
                found[line["custom_id"]] = line
            else:
                damaged += 1
    if damaged:
        log.warning("%s: %d results cannot be read; they are asked again", path, damaged)
    return found


def _create(path: Path, buffering: int = -1) -> BinaryIO:
    """A new, empty file that its owner alone can read."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
    file: BinaryIO = os.fdopen(os.open(path, flags, 0o600), "wb", buffering)
    return file


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """A disk that does not do its part is told of in one line."""
    try:
        yield
    except OSError as error:
        raise OpenEQAError(
            f"cannot keep what is known of batches in {error.filename or path}: "
            f"{error.strerror or error}. Mend that, or choose another batch_dir; batches under way "
            "are found again when the same command is started with the same folder"
        ) from None
