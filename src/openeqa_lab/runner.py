"""One case from its evidence to its verdict, each line in the journal before the next call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from openeqa_lab.data.case import Case
from openeqa_lab.data.episode import Episode, EpisodeSource, Frame
from openeqa_lab.entries import AnswerLine, Entry, FailureLine, VerdictLine
from openeqa_lab.errors import CallError, CaseError, FrameError, OpenEQAError
from openeqa_lab.journal import Journal
from openeqa_lab.judges import Judge
from openeqa_lab.llm import place, repeat
from openeqa_lab.reasoners import Reasoner
from openeqa_lab.records import (
    Answer,
    AnswerStatus,
    EpisodeTrace,
    Failure,
    Shown,
    Stage,
    Usage,
    Verdict,
)
from openeqa_lab.sampling import Sampler

log = logging.getLogger(__name__)


async def evidence(
    episodes: EpisodeSource, sampler: Sampler, case: Case
) -> tuple[Episode, Sequence[Frame]]:
    """The case's episode, and the frames of it that are shown, none of them opened."""
    episode = await episodes.episode(case)
    if not episode.frames:  # a blind run: there is nothing to choose from
        return episode, ()
    return episode, await asyncio.to_thread(sampler.sample, episode.frames, case.question)


def to_ask(result: Answer | Failure | None, reask: Collection[AnswerStatus]) -> bool:
    """Whether a case with this result needs an answer, or is to be asked again."""
    return not isinstance(result, Answer) or result.status in reask


class CaseRunner:
    """Asks and judges one case at a time, as many at once as are awaited.

    Args:
        episodes: Where a case's evidence comes from.
        sampler: Which frames of it are shown.
        reasoner: Who answers.
        judge: Who marks the answers.
        judge_hash: What the judge's lines carry.
        book: The journal; what it holds already is not asked again.
        reask: Statuses of answers that are asked again all the same.
    """

    def __init__(
        self,
        episodes: EpisodeSource,
        sampler: Sampler,
        reasoner: Reasoner,
        judge: Judge,
        judge_hash: str,
        book: Journal,
        reask: Collection[AnswerStatus],
    ) -> None:
        self._episodes = episodes
        self._sampler = sampler
        self._reasoner = reasoner
        self._judge = judge
        self._judge_hash = judge_hash
        self._book = book
        self._reask = reask
        self._folder = book.path.parent.resolve()
        traces = [entry.trace for entry in book.content.entries.values() if entry.trace]
        self._frames = {trace.episode: trace.frames for trace in traces}

    async def finish(self, case: Case) -> Usage:
        """Bring a case to its end; gives what was paid for it now."""
        entry = self._book.content.entries.setdefault(case.id, Entry())
        paid = Usage()
        if to_ask(entry.result, self._reask):
            place.set(f"{self._folder}#{case.id}#answer")
            repeat.set(entry.replies.get("", 0))
            asked = await self._ask(case)
            self._book.append(asked)
            entry.add(asked)
            paid += asked.usage
            if isinstance(asked, FailureLine) and isinstance(entry.result, Answer):
                log.warning("%s; the earlier answer is kept", asked.failure.message)
        verdict = entry.verdicts.get(self._judge_hash)
        if isinstance(entry.result, Answer) and not isinstance(verdict, Verdict):
            place.set(f"{self._folder}#{case.id}#{self._judge_hash}")
            repeat.set(entry.replies.get(self._judge_hash, 0))
            judged = await self._mark(case, entry.result)
            self._book.append(judged)
            entry.add(judged)
            paid += judged.usage
        await self._book.sync()
        return paid

    async def _ask(self, case: Case) -> AnswerLine | FailureLine:
        """The line of an answer or of what kept it away."""
        stage: Stage = "episode"
        try:
            episode, frames = await evidence(self._episodes, self._sampler, case)
            self._check(episode)
            stage = "answer"
            answer = await self._reasoner.answer(case.question, frames)
        except CaseError as error:
            return FailureLine(case.id, _failure(stage, error))
        if not isinstance(answer, Answer):
            raise OpenEQAError(
                f"reasoner {type(self._reasoner).__name__} gave {type(answer).__name__} for an "
                "answer: its contract asks for openeqa_lab.Answer, Answer('red') for instance"
            )
        opened = [frame for frame in frames if frame.sha256]  # the others were not looked at
        shown = tuple(Shown(frame.path, frame.index, frame.sha256) for frame in opened)
        return AnswerLine(case.id, answer, EpisodeTrace(episode.id, len(episode.frames)), shown)

    def _check(self, episode: Episode) -> None:
        """Refuse an episode that has other frames now than an earlier answer was given from."""
        before = self._frames.setdefault(episode.id, len(episode.frames))
        if before != len(episode.frames):
            raise OpenEQAError(
                f"episode {episode.id} has {len(episode.frames)} frames, but had {before} when "
                "answers of this run were given: bring those frames back, or choose another "
                "output_dir"
            )

    async def _mark(self, case: Case, answer: Answer) -> VerdictLine | FailureLine:
        """The line of a verdict or of what kept it away; no call for what was never said."""
        if answer.status != "answered":
            lowest = 1 if self._judge.scale == "1-5" else None
            return VerdictLine(case.id, self._judge_hash, Verdict(0.0, lowest))
        try:
            verdict = await self._judge.judge(case, answer)
        except CaseError as error:
            return FailureLine(case.id, _failure("judge", error), self._judge_hash)
        if not 0 <= verdict.score <= 1 or verdict.mark not in (None, 1, 2, 3, 4, 5):
            raise OpenEQAError(
                f"judge {self._judge.identity.get('name')} gave question {case.id} the score "
                f"{verdict.score} and the mark {verdict.mark}: its contract asks for a score from "
                "0 to 1 and a mark from 1 to 5 or none"
            )
        verdict = replace(verdict, score=float(verdict.score))  # numpy's numbers are no JSON
        return VerdictLine(case.id, self._judge_hash, verdict)


def _failure(stage: Stage, error: CaseError) -> Failure:
    """What a failed case is recorded as; a fault that all cases share ends the run instead."""
    if isinstance(error, CallError) and error.fatal:
        raise error
    if isinstance(error, FrameError):
        stage = "episode"
    usage = error.usage or Usage()
    return Failure(stage, error.kind, str(error), error.raw, usage, error.attempts)
