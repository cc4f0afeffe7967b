"""The role of judging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, runtime_checkable

from openeqa_lab.data.case import Case
from openeqa_lab.llm import Forecast
from openeqa_lab.records import Answer, Verdict


class Judge(Protocol):
    """Marks an answer against a case's reference answers.

    `judge` may be awaited many times at once. It is handed answers of status ``answered`` only:
    refusals, blocks and empty answers get the lowest mark without it.
    """

    @property
    def scale(self) -> Literal["1-5", "0-1"]:
        """``1-5`` when verdicts carry marks, ``0-1`` when they carry scores alone."""
        ...

    @property
    def identity(self) -> Mapping[str, object]:
        """The settings that can change a mark, as JSON values; ``name`` is one of them."""
        ...

    async def judge(self, case: Case, answer: Answer, /) -> Verdict:
        """The verdict, score from 0 to 1.

        Raises:
            CaseError: No verdict could be had; `UnparsedError` when the reply holds no mark.
        """
        ...


@runtime_checkable
class JudgementForecaster(Protocol):
    """A `Judge` that knows what its judgements may cost."""

    async def forecast(self, case: Case, answer: Answer, /) -> Forecast:
        """Of one judgement, for which no model is asked.

        Raises:
            CaseError: The vendor would refuse the prompt.
        """
        ...
