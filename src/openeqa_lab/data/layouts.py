"""Where an episode's frames lie on disk: folders of pictures, or one video."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path, PurePosixPath

from openeqa_lab.data.episode import Frame, RawFrame
from openeqa_lab.data.stamps import file_stamp
from openeqa_lab.data.videos import VideoSource
from openeqa_lab.errors import FrameError, OpenEQAError

logger = logging.getLogger(__name__)

FOLDERS = ("frames", "rgb", "color", "images")
"""Sub-folders of an episode that may hold its frames, after the episode's folder itself."""

_PICTURES = frozenset({"png", "jpg", "jpeg", "webp"})
_NOT_RGB = ("-depth", "-seg", "-sem", "-semantic", "-normal", "-instance")
_DIGITS = str.maketrans("123456789", "000000000")
_VIDEOS = tuple(
    f"{ending}.{kind}"
    for ending in ("", "-0")
    for kind in ("mp4", "webm", "mov", "MP4", "WEBM", "MOV")
)


class FolderSource:
    """The picture files of one folder, in natural order; the digest is that of a file's bytes.

    Args:
        folder: Where the files are.
        key: The folder's path relative to the data root.
        names: The files' names, in the order the frames were seen.
    """

    def __init__(self, folder: Path, key: str, names: Sequence[str]) -> None:
        self.key = key
        self.count = len(names)
        self._folder = folder
        self._names = tuple(names)
        self._sha256: dict[int, str] = {}

    def path(self, index: int) -> str:
        """``<key>/<file name>``."""
        return f"{self.key}/{self._names[index]}"

    def sha256(self, index: int) -> str | None:
        """Of the file's bytes; None before they were read."""
        return self._sha256.get(index)

    def stamp(self, index: int) -> str | None:
        """The file's, as `data.stamps` has it."""
        return file_stamp(self._folder / self._names[index])

    def remember(self, index: int, sha256: str) -> None:
        """Takes over the digest that the file's bytes had under this stamp."""
        self._sha256[index] = sha256

    def read(self, indices: Sequence[int]) -> Sequence[RawFrame]:
        """The bytes of these files."""
        return [self._read(index) for index in indices]

    def _read(self, index: int) -> RawFrame:
        path = self._folder / self._names[index]
        try:
            content = path.read_bytes()
        except OSError as error:
            raise FrameError(f"Cannot read frame {path}: {error.strerror}") from None
        digest = sha256(content).hexdigest()
        self._sha256[index] = digest
        return RawFrame(content, digest, str(path))


def frames_of(source: FolderSource | VideoSource, max_frames: int = 0) -> tuple[Frame, ...]:
    """The frames of a source, or `max_frames` of them, none of them opened.

    Of n > max_frames frames those at round(i * n / max_frames), i < max_frames, are left; they
    keep their index in the source. 0 keeps all.
    """
    count = source.count
    if not 0 < max_frames < count:
        return tuple(Frame(source, index) for index in range(count))
    return tuple(
        Frame(source, min(round(i * count / max_frames), count - 1)) for i in range(max_frames)
    )


def natural(name: str) -> tuple[list[str | int], str]:
    """Sorts ``frame2`` before ``frame10``."""
    parts = re.split("([0-9]+)", name)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)], name


def open_source(root: Path, episode: str) -> FolderSource | VideoSource:
    """The frames of the episode with this key, found by listing its folder.

    Looked for in turn under `root`: the whole key, its last two parts (``split/episode``), its
    last part. At each place a folder with RGB frames in it or in one of `FOLDERS` wins; else a
    video of that name (``<episode>.mp4``, ``.webm``, ``.mov``, ``<episode>-0.mp4``). Links are
    followed, since frames often lie on another disk; a key cannot climb out of the root.

    Raises:
        FrameError: Kind ``episode_missing``: nothing is there, no file is an RGB frame, or the
            key is absolute or holds ``..``.
        OpenEQAError: There is no `root`.
    """
    if not root.is_dir():
        raise OpenEQAError(
            f"No frames folder {root}: set data_dir (environment: OPENEQA_DATA_DIR) to the folder "
            "that holds frames/, or episodes.root to the folder that holds the episodes"
        )
    found = _Findings(episode)
    for place in _places(root, episode):
        source = _folder_source(root, place, found) or _video_source(root, place)
        if source is not None:
            return source
    raise FrameError(found.message(), kind="episode_missing")


@dataclass(slots=True)
class _Findings:
    """What was come across in the search of an episode, for the message when it fails."""

    episode: str
    looked: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    folders: int = 0

    def message(self) -> str:
        faults = "".join(f"; {fault}" for fault in self.faults)
        if not self.folders:
            return (
                f"Episode {self.episode!r} is missing: no folder and no video (.mp4, .webm, .mov) "
                f"at {', '.join(self.looked)}{faults}"
            )
        what = "no picture at all"
        if self.dropped:
            what = f"{len(self.dropped)} pictures that are not RGB, such as {self.dropped[0]}"
        return (
            f"Episode {self.episode!r} has no RGB frame: found {what} at "
            f"{', '.join(self.looked)} and their folders {', '.join(FOLDERS)}; expected .png, "
            f".jpg or .webp files{faults}"
        )


def _places(root: Path, episode: str) -> Iterator[Path]:
    key = PurePosixPath(episode)
    if key.is_absolute() or ".." in key.parts or not key.parts or "\0" in episode:
        raise FrameError(
            f"Episode {episode!r} is not a key below the frames folder {root}: expected "
            "split/episode, without '..' and without a leading '/'",
            kind="episode_missing",
        )
    for parts in dict.fromkeys((key.parts, key.parts[-2:], key.parts[-1:])):
        yield root.joinpath(*parts)


def _folder_source(root: Path, place: Path, found: _Findings) -> FolderSource | None:
    found.looked.append(str(place))
    listing = _list(place, found)
    if listing is None:
        return None
    names, below = listing
    folder = place
    for name in FOLDERS:
        if names:
            break
        if name in below:
            folder = place / name
            names = (_list(folder, found) or ([], set()))[0]
    if not names:
        return None
    hidden = [name for name in FOLDERS if folder == place and name in below]
    if hidden:
        logger.warning(
            "%s: its own %d pictures are the frames, and its folder %s is left aside; if it should "
            "be the other way round, move the pictures away", folder, len(names), hidden[0],
        )  # fmt: skip
    return FolderSource(folder, folder.relative_to(root).as_posix(), _ordered(folder, names))


def _list(folder: Path, found: _Findings) -> tuple[list[str], set[str]] | None:
    """The names of the RGB frames and of the folders in a folder; None when it is not one."""
    names: list[str] = []
    below: set[str] = set()
    try:
        with os.scandir(folder) as entries:
            found.folders += 1
            for entry in entries:
                name = entry.name
                stem, _, kind = name.lower().rpartition(".")
                if kind not in _PICTURES or not stem or name[0] == ".":
                    if name in FOLDERS:
                        below.add(name)
                elif stem.endswith(_NOT_RGB):
                    found.dropped.append(name)
                elif entry.is_symlink() or entry.is_file():
                    names.append(name)  # a dead link is a frame that cannot be read
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        found.faults.append(f"{folder} cannot be listed: {error.strerror}")
        return None
    return names, below


def _ordered(folder: Path, names: list[str]) -> list[str]:
    stems: dict[str, str] = {}
    for name in names:
        twin = stems.setdefault(name.rpartition(".")[0], name)
        if twin is not name:
            raise FrameError(
                f"{folder} holds one frame twice, as {twin} and {name}: keep one format, or each "
                "would be shown twice",
                kind="episode_missing",
            )
    lexical = sorted(names)
    if len({name.translate(_DIGITS) for name in names}) == 1:
        return lexical  # numbers of one length in one place: both orders are the same
    ordered = sorted(names, key=natural)
    if ordered != lexical:
        logger.info("%s: frames are in natural order (2 before 10), not in lexical order", folder)
    return ordered


def _video_source(root: Path, place: Path) -> VideoSource | None:
    for ending in _VIDEOS:
        path = place.with_name(place.name + ending)
        if os.path.isfile(path):
            return VideoSource(path, path.relative_to(root).as_posix())
    return None
