"""Which frames of an episode a reasoner is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from openeqa_lab.data.case import Question
from openeqa_lab.data.episode import Frame


class Sampler(Protocol):
    """Chooses frames; a named strategy is exactly its named formula.

    The result is sorted by index, without repeats, of length min(k, n) for n frames (a formula
    that rounds two indices together would give fewer: none here does). n = 0 is a `FrameError`
    for every strategy.
    """

    @property
    def identity(self) -> Mapping[str, object]:
        """Strategy, k and whatever else the formula takes, as JSON values."""
        ...

    def sample(self, frames: Sequence[Frame], question: Question, /) -> Sequence[Frame]:
        """The frames to show, in the order they were seen."""
        ...
