"""One row of a benchmark, and the part of it that an agent may see."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """All that an agent is told: reasoners, samplers and policies are typed on this side only."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A case's texts letter for letter as in its file, as upstream's evaluator shows them."""

    question: str
    answer: str
    extra_answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a benchmark, with its answers: for referees (judges, metrics, reports) only.

    Args:
        id: The question's id, unique within a data set.
        question: What the agent is told.
        answer: The reference answer.
        category: The benchmark's own word, such as ``object localization``.
        episode: The full ``split/episode`` key; the numeric prefix alone is not unique.
        extra_answers: Further right answers, without blanks and repeats of `answer`.
        verbatim: The texts before white space, blanks and repeats were taken out, where that
            changed them.
    """

    id: str
    question: Question
    answer: str
    category: str
    episode: str
    extra_answers: tuple[str, ...] = ()
    verbatim: Verbatim | None = None

    @property
    def split(self) -> str:
        """The source of the episode, ``scannet`` for ``scannet-v0/002-...``; empty if unnamed."""
        head, slash, _ = self.episode.rpartition("/")
        return head.rpartition("/")[2].removesuffix("-v0") if slash else ""
