"""Which frames of an episode a reasoner is shown."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from openeqa_lab.data.case import Question
from openeqa_lab.data.episode import Frame
from openeqa_lab.errors import FrameError, OpenEQAError

logger = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True)
class Stride:
    """``round(i * n / k)`` for i < k, at most n - 1: evenly spaced from the first frame on.

    The last frames of a walk are left out (of 600 frames at k = 50, those after 588). Halves
    round to the even index.
    """

    k: int

    def __post_init__(self) -> None:
        _check_integer("k", self.k, at_least=1)

    @property
    def identity(self) -> Mapping[str, object]:
        """Strategy and k."""
        return {"name": "stride", "k": self.k}

    def sample(self, frames: Sequence[Frame], question: Question, /) -> Sequence[Frame]:
        """The frames at the formula's indices."""
        n = len(frames)
        if _all_are_shown(frames, question, self.k):
            return tuple(frames)
        return tuple(frames[min(round(i * n / self.k), n - 1)] for i in range(self.k))


@dataclass(frozen=True, slots=True)
class FirstLastMiddle:
    """The first frame, the last one, and ``round(i * (n - 1) / (k - 1))`` between them.

    k = 1 is the middle frame, ``n // 2``; k = 2 the first and the last. Halves round to the even
    index, and the product is taken before the quotient, so that a half is met exactly; `Linspace`
    multiplies a rounded step instead and differs by one index at some such halves.
    """

    k: int

    def __post_init__(self) -> None:
        _check_integer("k", self.k, at_least=1)

    @property
    def identity(self) -> Mapping[str, object]:
        """Strategy and k."""
        return {"name": "first_last_middle", "k": self.k}

    def sample(self, frames: Sequence[Frame], question: Question, /) -> Sequence[Frame]:
        """The frames at the formula's indices."""
        last = len(frames) - 1
        if _all_are_shown(frames, question, self.k):
            return tuple(frames)
        if self.k == 1:
            return (frames[len(frames) // 2],)
        return tuple(frames[round(i * last / (self.k - 1))] for i in range(self.k))


@dataclass(frozen=True, slots=True)
class Linspace:
    """``numpy.round(numpy.linspace(0, n - 1, k))``: upstream's formula, both ends included.

    k = 1 is the first frame, not the middle one.
    """

    k: int

    def __post_init__(self) -> None:
        _check_integer("k", self.k, at_least=1)

    @property
    def identity(self) -> Mapping[str, object]:
        """Strategy and k."""
        return {"name": "linspace", "k": self.k}

    def sample(self, frames: Sequence[Frame], question: Question, /) -> Sequence[Frame]:
        """The frames at the formula's indices."""
        import numpy as np  # not at the top: a blind run needs none of it

        if _all_are_shown(frames, question, self.k):
            return tuple(frames)
        indices = np.round(np.linspace(0, len(frames) - 1, self.k))
        return tuple(frames[int(index)] for index in indices)


@dataclass(frozen=True, slots=True)
class Last:
    """The k last frames, one after the other: what an agent sees as it stops."""

    k: int

    def __post_init__(self) -> None:
        _check_integer("k", self.k, at_least=1)

    @property
    def identity(self) -> Mapping[str, object]:
        """Strategy and k."""
        return {"name": "last", "k": self.k}

    def sample(self, frames: Sequence[Frame], question: Question, /) -> Sequence[Frame]:
        """The last frames."""
        if _all_are_shown(frames, question, self.k):
            return tuple(frames)
        return tuple(frames[-self.k :])


@dataclass(frozen=True, slots=True)
class Random:
    """k frames drawn without replacement: those with the least sha256 of seed, index and id.

    The draw depends on nothing else, so it is the same on every machine and Python, and a smaller
    k draws a subset of a larger one's frames.

    Args:
        k: Frames to show.
        seed: Any integer; another one is another draw.
    """

    k: int
    seed: int = 0

    def __post_init__(self) -> None:
        _check_integer("k", self.k, at_least=1)
        _check_integer("seed", self.seed)

    @property
    def identity(self) -> Mapping[str, object]:
        """Strategy, k and seed."""
        return {"name": "random", "k": self.k, "seed": self.seed}

    def sample(self, frames: Sequence[Frame], question: Question, /) -> Sequence[Frame]:
        """The drawn frames, in the order they were seen."""
        if _all_are_shown(frames, question, self.k):
            return tuple(frames)

        def lot(index: int) -> bytes:
            return hashlib.sha256(f"{self.seed} {index} {question.id}".encode()).digest()

        drawn = sorted(range(len(frames)), key=lot)[: self.k]
        return tuple(frames[index] for index in sorted(drawn))


@dataclass(frozen=True, slots=True)
class All:
    """Every frame.

    Args:
        k: Only None. The parameter is there so that a k meant for another strategy is refused
            rather than dropped: six hundred frames sent where fifty were asked for are dear.
    """

    k: int | None = None

    def __post_init__(self) -> None:
        if self.k is not None:
            raise OpenEQAError(
                f"sampler 'all' shows every frame, but k is {self.k!r}: say sampler.k=null to "
                "show them all, or choose another sampler"
            )

    @property
    def identity(self) -> Mapping[str, object]:
        """The strategy."""
        return {"name": "all"}

    def sample(self, frames: Sequence[Frame], question: Question, /) -> Sequence[Frame]:
        """The frames as they are."""
        _all_are_shown(frames, question, len(frames))
        return tuple(frames)


def _check_integer(name: str, value: object, at_least: int | None = None) -> None:
    wanted = "a whole number" if at_least is None else f"a whole number of at least {at_least}"
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or (at_least is not None and value < at_least)
    ):
        raise OpenEQAError(f"sampler.{name} must be {wanted}, not {value!r}")


def _all_are_shown(frames: Sequence[Frame], question: Question, k: int) -> bool:
    """Whether n <= k, which every strategy answers alike; no frames are an error."""
    n = len(frames)
    if n == 0:
        raise FrameError(
            f"question {question.id!r}: its episode has no frames to choose from; look at the "
            "episode's folder, or ask a blind reasoner with episodes=unseen",
            kind="episode_missing",
        )
    if n < k:
        logger.debug("question %r: all %d frames are shown, fewer than k=%d", question.id, n, k)
    return n <= k
