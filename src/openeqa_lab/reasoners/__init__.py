"""The role of answering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from openeqa_lab.data.case import Question
from openeqa_lab.data.episode import Frame
from openeqa_lab.llm import Forecast
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


@runtime_checkable
class AnswerForecaster(Protocol):
    """A `Reasoner` that knows what its answers may cost."""

    async def forecast(self, question: Question, frames: Sequence[Frame], /) -> Forecast:
        """Of one answer, for which no model is asked.

        Raises:
            CaseError: A frame cannot be read, or the vendor would refuse the prompt.
        """
        ...
