"""The question-only baseline: no frames, no model, no key."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from openeqa_lab.data.case import Case, Question
from openeqa_lab.data.datasets import Dataset
from openeqa_lab.data.episode import Frame
from openeqa_lab.errors import CaseError, OpenEQAError
from openeqa_lab.records import Answer


class Prior:
    """Gives the commonest answer to the most similar questions of other episodes.

    Similarity is the cosine of TF-IDF vectors over words and pairs of words; the neighbours vote
    with it. Ties go to the answer of the nearest neighbour, equally near ones stand in the file's
    order. A baseline that reads answers: it is built from the question file, but leaves out all
    questions of the asked question's episode, so that none is answered by itself or a neighbour in
    the same rooms.

    Args:
        questions: The question file; its filters are not applied, so that the answer to a question
            does not change with how many are asked.
        neighbours: How many similar questions vote.
    """

    def __init__(self, questions: Dataset, neighbours: int = 10) -> None:
        if neighbours < 1:
            raise OpenEQAError(f"reasoner.neighbours is {neighbours}: expected 1 or more")
        self._sha256 = questions.sha256
        self._cases: tuple[Case, ...] = questions.whole
        self._rows = {case.id: row for row, case in enumerate(self._cases)}
        self._neighbours = neighbours
        self._index: _Index | None = None

    @property
    def identity(self) -> Mapping[str, object]:
        """How many vote, and the file they come from."""
        return {"name": "prior", "neighbours": self._neighbours, "questions": self._sha256}

    async def answer(self, question: Question, _frames: Sequence[Frame], /) -> Answer:
        """The answer that wins the vote; frames are not looked at.

        Raises:
            CaseError: The question is not in the file, so its episode cannot be left out (kind
                ``unknown_question``); or there is no other episode to learn from (``no_prior``).
        """
        if question.id not in self._rows:
            raise CaseError(
                f"question {question.id} is not in the file that reasoner.questions names, so its "
                "episode cannot be left out: give the file that the question is from",
                kind="unknown_question",
            )
        if self._index is None:
            self._index = _Index([case.question.text for case in self._cases])
        episode = self._cases[self._rows[question.id]].episode
        others = self._index.nearest(
            self._rows[question.id],
            [case.episode != episode and bool(case.answer.strip()) for case in self._cases],
        )
        if not others:
            raise CaseError(
                f"question {question.id}: the file has no answers of other episodes than its own "
                f"({episode}); choose a larger question file",
                kind="no_prior",
            )
        nearest = [other for other in others[: self._neighbours] if other[1] > 0]
        # Nothing in common with any: the commonest answer of all.
        return Answer(self._vote(nearest or [(row, 1.0) for row, _ in others]))

    def _vote(self, neighbours: Sequence[tuple[int, float]]) -> str:
        """The answer with most weight, in the wording that stands nearest."""
        votes: dict[str, float] = {}
        wording: dict[str, str] = {}
        for row, weight in neighbours:
            said = self._cases[row].answer.strip()
            key = " ".join(_words(said)) or said
            wording.setdefault(key, said)
            votes[key] = votes.get(key, 0.0) + weight
        # max takes the first of equals, and the nearest neighbour's answer was entered first.
        return wording[max(votes, key=lambda key: round(votes[key], 9))]


class _Index:
    """TF-IDF vectors of words and pairs of words, kept by term: questions share few terms."""

    def __init__(self, texts: Sequence[str]) -> None:
        import numpy as np

        counts = [_terms(text) for text in texts]
        frequency = Counter(term for count in counts for term in count)
        rarity = {term: math.log((1 + len(texts)) / (1 + n)) + 1 for term, n in frequency.items()}
        rows: dict[str, list[int]] = {term: [] for term in frequency}
        weights: dict[str, list[float]] = {term: [] for term in frequency}
        self._vectors: list[dict[str, float]] = []
        for row, count in enumerate(counts):
            vector = {term: (1 + math.log(n)) * rarity[term] for term, n in count.items()}
            length = math.sqrt(math.fsum(weight * weight for weight in vector.values()))
            self._vectors.append({term: weight / length for term, weight in vector.items()})
            for term, weight in self._vectors[row].items():
                rows[term].append(row)
                weights[term].append(weight)
        self._postings = {term: (np.array(rows[term]), np.array(weights[term])) for term in rows}

    def nearest(self, row: int, allowed: Sequence[bool]) -> list[tuple[int, float]]:
        """The allowed texts and their cosines to this one, nearest first, equals in order."""
        import numpy as np

        cosines = np.zeros(len(self._vectors))
        for term, weight in self._vectors[row].items():
            rows, weights = self._postings[term]
            cosines[rows] += weight * weights
        chosen = np.flatnonzero(allowed)
        chosen = chosen[np.argsort(-cosines[chosen], kind="stable")]
        return list(zip(chosen.tolist(), cosines[chosen].tolist(), strict=True))


def _terms(text: str) -> Counter[str]:
    words = _words(text)
    return Counter([*words, *(f"{first} {second}" for first, second in pairwise(words))])


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
