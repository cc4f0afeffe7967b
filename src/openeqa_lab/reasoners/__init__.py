"""The role of answering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from openeqa_lab.data.case import Question
from openeqa_lab.data.episode import Frame
from openeqa_lab.records import Answer


class Reasoner(Protocol):
    """Answers a question in free text from the frames it is shown.

    `answer` may be awaited many times at once and sees neither the reference answer nor the
    category. It opens the frames it needs itself. `frames` is empty for a blind run.
    """

    @property
    def identity(self) -> Mapping[str, object]:
        """The settings that can change an answer, as JSON values, encoder and model included."""
        ...

    async def answer(self, question: Question, frames: Sequence[Frame], /) -> Answer:
        """The answer; a refusal, a block and an empty reply are answers with that status.

        Raises:
            CaseError: No answer could be had: a frame cannot be read, the call failed.
        """
        ...
