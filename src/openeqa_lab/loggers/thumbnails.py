"""Small pictures of the frames that a question was shown."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import PIL.Image
from PIL.Image import Image

from openeqa_lab.data.episode import RawFrame
from openeqa_lab.data.layouts import open_source
from openeqa_lab.errors import OpenEQAError
from openeqa_lab.images.decoding import decode
from openeqa_lab.records import Record

log = logging.getLogger(__name__)


class Thumbnails:
    """Makes one strip a question, a few of its frames from first to last side by side.

    Questions that were shown the same frames share a strip, since an episode's questions mostly do.

    Args:
        root: Holds the episodes, as `Recorded` has it.
        frames: At most so many in a strip.
        height: In pixels.
    """

    def __init__(self, root: str | Path, frames: int = 8, height: int = 96) -> None:
        self._root = Path(root)
        self._frames = frames
        self._height = height
        self._warned = False
        self._strips: dict[tuple[str, ...], Image | None] = {}

    def strip(self, record: Record) -> Image | None:
        """The strip, the same object for the same frames; None where there is nothing to show.

        Frames that cannot be read are warned about once and left out.
        """
        if record.trace is None or not record.shown:
            return None
        last = len(record.shown) - 1
        count = min(self._frames, len(record.shown))
        chosen = [record.shown[round(i * last / max(1, count - 1))] for i in range(count)]
        key = tuple(frame.path for frame in chosen)
        if key not in self._strips:
            indices = [frame.index for frame in chosen]
            self._strips[key] = self._make(record.trace.episode, indices)
        return self._strips[key]

    def _make(self, episode: str, indices: Sequence[int]) -> Image | None:
        try:
            frames = open_source(self._root, episode).read(indices)
            pictures = [_picture(frame, self._height) for frame in frames]
        except (OpenEQAError, IndexError) as error:
            if not self._warned:
                log.warning("no thumbnails of %s, and maybe of others: %s", episode, error)
            self._warned = True
            return None
        strip = PIL.Image.new("RGB", (sum(picture.width for picture in pictures), self._height))
        left = 0
        for picture in pictures:
            strip.paste(picture, (left, 0))
            left += picture.width
        return strip


def _picture(frame: RawFrame, height: int) -> Image:
    picture = decode(frame)
    width = max(1, round(picture.width * height / picture.height))
    return picture.resize((width, height))
