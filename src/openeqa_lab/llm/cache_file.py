"""The SQLite file of a completion cache; whatever its state, a run goes on.

A file is made whole beside its place and then moved there, so that nobody sees a half one whoever
is killed. It is in SQLite's write-ahead mode, in which readers wait for nobody.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import os
import sqlite3
import stat
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, TypeVar

from openeqa_lab.llm import Completion, FinishReason

log = logging.getLogger(__name__)

Given = TypeVar("Given")

# What is kept: never an empty text, nor what was refused or blocked.
KEPT: Mapping[str, FinishReason] = {"stop": "stop", "other": "other", "length": "length"}
VERSION = 1  # of the table, and of how keys are hashed

_PATIENCE_S = 60.0  # with another process's lock
_TRIES = 20  # at a damaged file that other processes have open, which may see that, too
_PAUSE_S = 0.05  # between them
_BESIDE = ("-journal", "-wal", "-shm")  # SQLite's own names

# With the reply in the record of its digest, no index can lead to another one's.
_SCHEMA = """
    CREATE TABLE completions (
        digest TEXT PRIMARY KEY,
        reply TEXT NOT NULL,
        created_at TEXT NOT NULL DEFAULT (datetime('now'))
    ) WITHOUT ROWID
"""


class _UnfitError(Exception):
    """A file that is not ours to use; says what it is."""


# The last is filelock's, where a file system has no locks.
_FAULTS = (sqlite3.Error, OSError, _UnfitError, NotImplementedError)


class CacheFile:
    """Replies by the digest of what was asked; for one thread at a time.

    What is wrong with the file is warned of once, and then it is done without.

    Args:
        path: Made when it is first opened for writing, readable by its owner only.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._close: Callable[[], object] = lambda: None
        self._inode = 0  # of the file that is open
        self._set_aside_once = False
        self._usable = True
        self._writable = True
        self._bad_row_said = False

    def read(self, digest: str, *, writing: bool) -> Completion | None:
        """The reply that is kept, None without one.

        Args:
            digest: Of what is asked.
            writing: Whether the file may be made, and set aside when it is damaged.
        """
        query = "SELECT reply FROM completions WHERE digest = ?"
        if not self._usable:
            return None
        try:
            row = self._use(lambda file: file.execute(query, (digest,)).fetchone(), writing)
        except _FAULTS as error:
            self._usable = False
            self._say_unusable(error)
            return None
        reply = None if row is None else _completion(row[0])
        if row is not None and reply is None and not self._bad_row_said:
            self._bad_row_said = True
            log.warning(
                "the completion cache %s holds rows that cannot be read (the first is %s): what "
                "they held is asked again%s",
                self._path, digest, " and replaced" if writing else "; cache=write replaces them",
            )  # fmt: skip
        return reply

    def keep(self, digest: str, reply: Completion) -> None:
        """Have a reply in the file."""
        statement = "INSERT OR REPLACE INTO completions (digest, reply) VALUES (?, ?)"
        if not (self._usable and self._writable):
            return
        try:
            self._use(lambda file: file.execute(statement, (digest, _row(reply))), writing=True)
        except _FAULTS as error:
            self._writable = False
            log.warning(
                "the completion cache %s cannot be written (%s): the run goes on, and what it buys "
                "from now on is not kept there. Make room or mend that for the next run, or name "
                "another folder with cache_dir",
                self._path, _words(error),
            )  # fmt: skip

    def _use(self, work: Callable[[sqlite3.Connection], Given], writing: bool) -> Given | None:
        """What the work gives with the open file, None where there is none to read."""
        while True:  # once more for each time that a damaged file was set aside
            try:
                if self._connection is None:
                    self._connection = self._open(writing)
                return None if self._connection is None else work(self._connection)
            except sqlite3.Error as error:
                if not (_damaged(error) and writing) or self._set_aside_once:
                    raise
                found = str(error)
            self._close()
            self._connection = None
            self._set_aside(found)

    def _open(self, writing: bool) -> sqlite3.Connection | None:
        folder = self._path.parent
        try:
            self._path.stat()
        except FileNotFoundError:
            if not writing:
                return None
            folder.mkdir(parents=True, exist_ok=True)
        else:
            if not os.access(folder, os.W_OK):
                # SQLite cannot have its locks and its log there, nor can anybody write.
                return self._connect("mode=ro&immutable=1")
        with self._turn():
            if not self._path.exists():
                if not writing:  # it was there a moment ago
                    return None
                self._make()
            return self._connect("mode=rw")

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Have no other process open the file, make it or set it aside."""
        import filelock

        with filelock.FileLock(f"{self._path}.lock", timeout=_PATIENCE_S, mode=0o600):
            yield

    def _connect(self, mode: str) -> sqlite3.Connection:
        found = self._path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise _UnfitError("it is no file")
        if not os.access(self._path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        self._inode = found.st_ino
        connection = sqlite3.connect(
            f"{self._path.as_uri()}?{mode}", uri=True, timeout=_PATIENCE_S, isolation_level=None,
            check_same_thread=False,
        )  # fmt: skip
        connection.text_factory = bytes  # what is no UTF-8 is a bad row, not an error
        try:
            _check(connection)
            # A kill loses nothing, a cut of the power may lose the last replies.
            connection.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            connection.close()
            raise
        self._close = weakref.finalize(self, _close, connection, os.getpid())
        return connection

    def _make(self) -> None:
        # The file, and what SQLite puts beside it, is its owner's only, whatever the umask.
        handle, new = tempfile.mkstemp(prefix=f"{self._path.name}.new-", dir=self._path.parent)
        os.close(handle)
        try:
            with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as connection:
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
                if mode != "wal":
                    raise _UnfitError("its file system cannot hold SQLite's write-ahead log")
                connection.execute(_SCHEMA)
                connection.execute(f"PRAGMA user_version = {VERSION}")
            os.rename(new, self._path)
        finally:
            for suffix in ("", *_BESIDE):
                Path(new + suffix).unlink(missing_ok=True)

    def _set_aside(self, found: str) -> None:
        """Rename the damaged file, unless another process did so."""
        with self._turn(), contextlib.suppress(FileNotFoundError), self._path.open("rb+") as file:
            if os.fstat(file.fileno()).st_ino != self._inode:
                return
            _wait_until_closed(file, found)
            aside = next(
                path
                for number in itertools.count(1)
                if not os.path.lexists(path := f"{self._path}.damaged-{number}")
            )
            for suffix in _BESIDE:  # first: a new file must not find the old one's log
                with contextlib.suppress(FileNotFoundError):
                    os.rename(f"{self._path}{suffix}", f"{aside}{suffix}")
            os.rename(self._path, aside)
            self._set_aside_once = True
            log.warning(
                "the completion cache %s is damaged (%s): it is set aside as %s and a new one is "
                "begun; delete it, or see what the sqlite3 program's .recover finds in it",
                self._path, found, Path(aside).name,
            )  # fmt: skip

    def _say_unusable(self, error: Exception) -> None:
        remedy = "mend that for the next run, or name another folder with cache_dir"
        if _damaged(error) and not self._set_aside_once:
            remedy = "a run with cache=write sets it aside and begins a new one"
        log.warning(
            "the completion cache %s cannot be used (%s): the run goes on without it; %s",
            self._path, _words(error), remedy,
        )  # fmt: skip


def _check(connection: sqlite3.Connection) -> None:
    """Refuse a file of another version, or of something else."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not version and not tables:
        raise sqlite3.DatabaseError("there is nothing in it")
    if version != VERSION or b"completions" not in tables:
        age = "a newer" if version > VERSION else "an older"
        whose = f"{age} version of openeqa-lab" if b"completions" in tables else "something else"
        raise _UnfitError(
            f"it was made by {whose}: its format is {version}, and {VERSION} is what this one reads"
        )


def _damaged(error: Exception) -> bool:
    """Whether SQLite found bytes that it cannot have written; its other errors are subclasses."""
    return type(error) is sqlite3.DatabaseError


def _wait_until_closed(file: BinaryIO, found: str) -> None:
    """Lock the bytes that SQLite locks in a file that it has open, and renaming which would harm.

    The place and number of these bytes are a part of SQLite's file format.
    """
    if sys.platform == "win32":
        return  # there a file that is open cannot be renamed
    import fcntl

    for _ in range(_TRIES):
        # Which of the two errors it is, the system chooses.
        with contextlib.suppress(BlockingIOError, PermissionError):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)
            return
        time.sleep(_PAUSE_S)
    raise _UnfitError(f"{found}, and another process has it open")


def _close(connection: sqlite3.Connection, process: int) -> None:
    if os.getpid() == process:  # a fork's copy belongs to its parent
        connection.close()


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _row(reply: Completion) -> str:
    """A reply as JSON of plain ASCII, which half characters have a spelling in."""
    names = ("text", "finish_reason", "model", "adjusted")
    return json.dumps({name: getattr(reply, name) for name in names})


def _completion(row: object) -> Completion | None:
    """What a row says, None where it is none of ours."""
    if not isinstance(row, bytes):
        return None
    try:
        match json.loads(row):
            case {
                "text": str(text),
                "finish_reason": str(reason),
                "model": str(model),
                "adjusted": list(adjusted),
            } if reason in KEPT and all(isinstance(phrase, str) for phrase in adjusted):
                return Completion(text, KEPT[reason], model, adjusted=tuple(adjusted))
    except (ValueError, RecursionError):
        return None
    return None
