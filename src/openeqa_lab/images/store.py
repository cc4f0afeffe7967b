"""Prepared frames on disk, so that a second run decodes nothing and reads no frame again."""

from __future__ import annotations

import json
import logging
import os
import re
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from openeqa_lab.data.episode import Image, RawFrame
from openeqa_lab.images.preparation import media_type

logger = logging.getLogger(__name__)

_FORMAT = 1  # of the files here; a new one leaves the old files to be the longest unused
_DIGEST_BYTES = sha256().digest_size
_SIZES = struct.Struct(">II")  # width and height, before a picture's own bytes
_FOLDER = re.compile("[0-9a-f]{2}")
_FILE = re.compile(r"[0-9a-f]{62}(\.[0-9a-f]{16}\.tmp)?")  # nothing else is ever removed
_NOTE = re.compile(rb"^([0-9a-f]{32}) ([0-9a-f]{64}(?: \d+x\d+)?) ([0-9a-f]{8})$", re.MULTILINE)
_MOST_NOTES_BYTES = 20_000_000  # some 180,000 notes
_BLOCK = 4096  # bytes that files take a multiple of, on most disks
_LEFT_OVER_S = 3600.0  # after which an unfinished file is of a process that was killed
_FRESH_S = 600.0  # within which a file's last use is not noted again


class FrameStore:
    """Pictures by the content of their frame and the recipe they were prepared by.

    A picture is a file of its own, named after the frame's content and the recipe. Beside them
    stands one file of notes, each of which says what content the frame had that a source gave a
    certain stamp. With both, a frame is neither decoded nor read. A file begins with the digest of
    the rest: one that is cut or damaged is made anew. Files appear whole, by renaming, and several
    processes may share a folder. When they take more than the bound, those go that were not used
    for longest. A folder that is full or cannot be written is warned of once; the run goes on
    without.

    Args:
        folder: Made when the first file is written.
        most_mb: Megabytes of pictures to keep; passed by a tenth at most by each process.
        recipe: All that can change the bytes of a picture, as JSON values.
    """

    def __init__(self, folder: Path, most_mb: int, recipe: Mapping[str, object]) -> None:
        self._folder = os.fspath(folder)
        self._most_bytes = most_mb * 1_000_000
        self._recipe = json.dumps([_FORMAT, recipe], sort_keys=True).encode()
        self._lock = threading.Lock()  # over all below
        self._notes: dict[bytes, bytes] | None = None  # those of the file, once it has been read
        self._unseen: int | None = None  # bytes written since the folder was looked through
        self._room = 0  # bytes that could be written then
        self._failed = False

    def by_stamp(self, stamp: str) -> tuple[Image, str] | None:
        """The picture of the frame that had this stamp, and the digest of its content."""
        content = self._noted().get(_stamp_name(stamp))
        picture = self._picture(content) if content is not None else None
        if content is None or picture is None:
            return None
        return picture, content[:64].decode()

    def by_content(self, raw: RawFrame) -> Image | None:
        """The picture of a frame that has been read."""
        content = _content(raw)
        return self._picture(content) if content is not None else None

    def keep(self, raw: RawFrame, picture: Image) -> None:
        """Writes the picture of a frame."""
        content = _content(raw)
        if content is not None:
            sizes = _SIZES.pack(picture.width, picture.height)
            self._write(self._picture_name(content), sizes + picture.data)

    def note(self, stamp: str, raw: RawFrame) -> None:
        """Writes down the content of a frame that had this stamp before and after it was read."""
        content = _content(raw)
        if content is None or self._failed:
            return
        name, notes = _stamp_name(stamp), self._noted()
        if notes.get(name) == content:
            return
        notes[name] = content
        line = b"%s %s %08x\n" % (name, content, zlib.crc32(name + content))
        try:
            os.makedirs(self._folder, exist_ok=True)
            with open(self._notes_path, "ab", buffering=0) as file:  # one write, which is one line
                file.write(line)
        except OSError as error:
            self._give_up(error)

    @property
    def _notes_path(self) -> str:
        return os.path.join(self._folder, "notes")

    def _noted(self) -> dict[bytes, bytes]:
        """The notes, read when they are first asked for; what is damaged of them is left out."""
        with self._lock:
            if self._notes is not None:
                return self._notes
            self._notes = {}
            try:
                with open(self._notes_path, "rb") as file:
                    data = file.read()
                if len(data) > min(_MOST_NOTES_BYTES, self._most_bytes // 20):
                    os.unlink(self._notes_path)  # frames are read once more, and noted
                    data = b""
            except OSError:  # most likely there is none
                return self._notes
            for name, content, checksum in _NOTE.findall(data):
                if zlib.crc32(name + content) == int(checksum, 16):
                    self._notes[name] = content
            return self._notes

    def _picture_name(self, content: bytes) -> str:
        return sha256(content + b"\n" + self._recipe).hexdigest()

    def _picture(self, content: bytes) -> Image | None:
        body = self._read(self._picture_name(content))
        if body is None:
            return None
        data = body[_SIZES.size :]
        return Image(data, media_type(data), *_SIZES.unpack_from(body))

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name[:2], name[2:])

    def _read(self, name: str) -> bytes | None:
        path = self._path(name)
        try:
            with open(path, "rb") as file:
                data = file.read()
                age_s = time.time() - os.fstat(file.fileno()).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._give_up(error)
            return None
        body = data[_DIGEST_BYTES:]
        if sha256(body).digest() != data[:_DIGEST_BYTES]:
            logger.warning("%s is cut or damaged and is made anew", path)
            return None
        if age_s > _FRESH_S:
            with suppress(OSError):  # a folder that may only be read does without
                os.utime(path)
        return body

    def _write(self, name: str, body: bytes) -> None:
        if self._failed or len(body) > self._most_bytes:
            return
        path = self._path(name)
        unfinished = f"{path}.{os.urandom(8).hex()}.tmp"
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(unfinished, "xb") as file:
                file.write(sha256(body).digest() + body)
            os.replace(unfinished, path)
        except OSError as error:
            with suppress(OSError):
                os.unlink(unfinished)
            if not os.path.exists(path):  # else another process was first
                self._give_up(error)
            return
        self._make_room(len(body))

    def _give_up(self, error: OSError) -> None:
        with self._lock:
            warned, self._failed = self._failed, True
        if not warned:
            logger.warning(
                "Prepared frames cannot be stored in %s (%s): the run goes on, and the next one "
                "prepares them again; make room, or set cache_dir to a folder that can be written, "
                "or encoder.store_dir=null",
                self._folder,
                error.strerror,
            )

    def _make_room(self, written: int) -> None:
        """Removes files when there may be too many: when so many were written, by us or others."""
        with self._lock:
            if self._unseen is not None:
                self._unseen += _taken(written)
                if self._unseen <= min(self._room, self._most_bytes // 10):
                    return
            self._unseen = 0
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        if total > self._most_bytes:
            for _, size, path in files:
                if total <= 0.9 * self._most_bytes:
                    break
                with suppress(OSError):  # another process has it open, or was first
                    os.unlink(path)
                total -= size
        with self._lock:
            self._room = self._most_bytes - total

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """Last use, bytes taken and path of each file; what killed processes left is removed."""
        for folder in _listed(self._folder):
            if not _FOLDER.fullmatch(folder.name):
                continue
            for entry in _listed(folder.path):
                if not (named := _FILE.fullmatch(entry.name)):
                    continue
                with suppress(OSError):  # another process removed it
                    status = entry.stat()
                    if named[1] and time.time() - status.st_mtime > _LEFT_OVER_S:
                        os.unlink(entry.path)
                    elif not named[1]:
                        yield status.st_mtime, _taken(status.st_size), entry.path


def _content(raw: RawFrame) -> bytes | None:
    """What names a frame's content; None where the source gave no digest to name it by.

    A digest of pixels says nothing of their shape.
    """
    if not re.fullmatch("[0-9a-f]{64}", raw.sha256):
        return None
    if isinstance(raw.content, bytes):
        return raw.sha256.encode()
    height, width = raw.content.shape[:2]
    return f"{raw.sha256} {height}x{width}".encode()


def _stamp_name(stamp: str) -> bytes:
    return sha256(stamp.encode("utf-8", "surrogateescape")).hexdigest()[:32].encode()


def _taken(size: int) -> int:
    return -(-(size + _DIGEST_BYTES) // _BLOCK) * _BLOCK


def _listed(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:  # another process removed it, or it is a file
        return []
