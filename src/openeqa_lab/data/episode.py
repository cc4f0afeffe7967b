"""Frames that nobody has opened yet, and the episodes they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from openeqa_lab.data.case import Case


@dataclass(frozen=True, slots=True)
class Image:
    """An encoded picture as it is sent to a model.

    Args:
        data: The encoded bytes.
        media_type: Read off the bytes that were written, such as ``image/jpeg``.
        width: In pixels, after orientation and shrinking.
        height: In pixels, after orientation and shrinking.
    """

    data: bytes
    media_type: str
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class RawFrame:
    """What a source holds of one frame, before any decoding policy is applied.

    Args:
        content: The bytes of an image file, or the RGB pixels ``(height, width, 3)``, uint8,
            where the source has no file of its own for a frame (video, rendered).
        sha256: Of the file's bytes, or of the pixels in C order.
        name: Where it came from, for messages: a path, or ``video.mp4#12``.
    """

    content: bytes | NDArray[np.uint8]
    sha256: str
    name: str


class FrameSource(Protocol):
    """Where an episode's pixels come from: a folder, a video, a renderer.

    Opening a source reads no pixels. `read` may be called from several threads at once, returns
    the frames in the order asked for, and decodes a video in one pass. Sources are hashable, by
    identity: frames are prepared once a source.
    """

    @property
    def key(self) -> str:
        """Names the source within a run: the episode's path relative to the data root."""
        ...

    def path(self, index: int) -> str:
        """The frame's path relative to the data root (``<episode>.mp4#12`` within a video)."""
        ...

    def read(self, indices: Sequence[int]) -> Sequence[RawFrame]:
        """The frames at these indices, in this order.

        Raises:
            FrameError: A frame cannot be read; the message names its path.
        """
        ...

    def sha256(self, index: int) -> str | None:
        """The digest of a frame that has been read, None before."""
        ...


@runtime_checkable
class Stamped(Protocol):
    """A source that can tell that a frame is what it was without reading it.

    A store of prepared frames makes use of it; a source that cannot tell does without.
    """

    def stamp(self, index: int) -> str | None:
        """Another one whenever the frame's bytes or pixels may be others; None: cannot be told."""
        ...

    def remember(self, index: int, sha256: str) -> None:
        """Takes over the digest that the frame had when it was read under the stamp it has now."""
        ...


@dataclass(frozen=True, slots=True)
class Frame:
    """A picture nobody has opened yet; `index` is its number in the source, from 0."""

    source: FrameSource
    index: int

    @property
    def path(self) -> str:
        """Relative to the data root."""
        return self.source.path(self.index)

    @property
    def sha256(self) -> str | None:
        """Of the bytes, once they have been read; None before."""
        return self.source.sha256(self.index)

    def read(self) -> RawFrame:
        """The frame's bytes or pixels; raises `FrameError` when they cannot be read."""
        return self.source.read([self.index])[0]


@dataclass(frozen=True, slots=True)
class Episode:
    """The evidence for a question: an episode's frames in the order they were seen."""

    id: str
    frames: tuple[Frame, ...]


class EpisodeSource(Protocol):
    """Gives the episode that a case is asked about.

    The same case always gives the same episode within a run. `episode` may be awaited for many
    cases at once; cases that share an episode share its `Frame` objects or at least their source.
    """

    @property
    def identity(self) -> Mapping[str, object]:
        """The settings that can change an answer, as JSON values; no absolute paths."""
        ...

    async def episode(self, case: Case) -> Episode:
        """The case's episode, its frames not yet opened.

        Raises:
            FrameError: The episode is not there or holds no frames (kind ``episode_missing``).
        """
        ...


class Unseen:
    """No evidence at all: what a blind reasoner is asked with."""

    @property
    def identity(self) -> Mapping[str, object]:
        """The name alone."""
        return {"name": "unseen"}

    async def episode(self, case: Case) -> Episode:
        """An episode without frames."""
        return Episode(case.episode, ())
