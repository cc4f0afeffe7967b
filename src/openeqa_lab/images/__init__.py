"""The role of preparing frames for a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from openeqa_lab.data.episode import Frame, Image


class FrameEncoder(Protocol):
    """Prepares frames for a model; `encode` may be awaited many times at once, on any loop."""

    @property
    def identity(self) -> Mapping[str, object]:
        """The settings that can change a pixel, as JSON values."""
        ...

    async def encode(self, frames: Sequence[Frame], /) -> Sequence[Image]:
        """One picture a frame, in the order given.

        Raises:
            FrameError: A frame cannot be read; the message names its path.
        """
        ...
