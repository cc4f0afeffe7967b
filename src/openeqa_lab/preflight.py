"""What is found out before the first paid answer: that models reply, what a run may cost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from openeqa_lab.data.case import Case
from openeqa_lab.errors import CallError, CaseError, FrameError, OpenEQAError
from openeqa_lab.evaluation import Evaluation
from openeqa_lab.judges import JudgementForecaster
from openeqa_lab.llm import Forecast, Rehearsing, rehearsing
from openeqa_lab.plan import waiting
from openeqa_lab.reasoners import AnswerForecaster
from openeqa_lab.records import Answer, AnswerStatus, Usage
from openeqa_lab.runner import evidence, to_ask

SAMPLE = 3  # questions whose real prompts an estimate rests on

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Preflight:
    """The outcome.

    Args:
        spent: On the calls that showed that the models reply.
        answers: What the answers to come may cost; None where the reasoner cannot say.
        judgements: The same of the judgements.
    """

    spent: Usage = field(default_factory=Usage)
    answers: Forecast | None = None
    judgements: Forecast | None = None

    @property
    def together(self) -> Forecast:
        """What the run may cost."""
        return (self.answers or Forecast()) + (self.judgements or Forecast())


async def preflight(
    evaluation: Evaluation,
    reask: Collection[AnswerStatus] = (),
    take_from: Collection[Path] = (),
) -> Preflight:
    """Call each model that `Evaluation.run` with these arguments would call, and estimate the rest.

    Raises:
        OpenEQAError: A model does not reply, its judgement holds no mark, or prompts are refused
            before they are sent; nothing was asked yet.
    """
    records = waiting(evaluation, reask, take_from)
    asked = [record.case for record in records if to_ask(record.result, reask)]
    reasoner, judge = evaluation.reasoner, evaluation.judge
    spent = Usage()
    if asked and isinstance(reasoner, Rehearsing):
        spent += await _rehearse("reasoner", reasoner)
    if records and isinstance(judge, Rehearsing):
        spent += await _rehearse("judge", judge)
    answers = judgements = None
    if isinstance(reasoner, AnswerForecaster):

        async def answer(case: Case) -> Forecast:
            _, frames = await evidence(evaluation.episodes, evaluation.sampler, case)
            return await reasoner.forecast(case.question, frames)

        answers = await _forecast(asked, answer)
    if isinstance(judge, JudgementForecaster):

        async def judgement(case: Case) -> Forecast:
            return await judge.forecast(case, Answer(case.answer))

        judgements = await _forecast([record.case for record in records], judgement)
    return Preflight(spent, answers, judgements)


async def _rehearse(role: str, part: Rehearsing) -> Usage:
    token = rehearsing.set(True)
    try:
        return await part.rehearse()
    except CallError as error:
        raise _stop(f"the {role} does not reply", error) from None
    except CaseError as error:
        raise _stop(f"the {role} failed at a made-up question", error) from None
    finally:
        rehearsing.reset(token)


async def _forecast(
    cases: Sequence[Case], forecast: Callable[[Case], Awaitable[Forecast]]
) -> Forecast | None:
    """An estimate for all cases from a few of them, evenly spaced; None where none can be had."""
    sample = cases[:: max(1, len(cases) // SAMPLE)][:SAMPLE]
    found = []
    for case in sample:
        try:
            found.append(await forecast(case))
        except FrameError:  # the run itself names it, among the failures
            continue
        except CaseError as error:
            raise _stop(f"question {case.id} cannot be sent", error) from None
    if not found:
        return Forecast(len(cases), dollars=None, most_dollars=None) if cases else None
    return sum(found, Forecast()).times(len(cases) / len(found))


def _stop(what: str, error: CaseError) -> OpenEQAError:
    return OpenEQAError(
        f"preflight: {what}: {error}. No question was asked yet; run.preflight=false starts "
        "without this check"
    )
