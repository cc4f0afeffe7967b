"""What a run would do, found without asking anybody anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from openeqa_lab.entries import (
    FILE_NAME,
    Entry,
    check_identity,
    identity_of,
    missing_answers,
    read_journal,
)
from openeqa_lab.errors import FrameError
from openeqa_lab.evaluation import Evaluation, waits
from openeqa_lab.records import AnswerStatus, Record
from openeqa_lab.runner import evidence, to_ask


@dataclass(frozen=True, slots=True)
class Plan:
    """The calls and frames of a run that has not begun.

    Args:
        cases: Questions of the run.
        answers: Questions that a reasoner would be asked.
        verdicts: Answers that a judge would be handed, the new ones included.
        frames: Pictures that would be shown in all.
        missing: Why an episode cannot be shown, by episode.
        unanswerable: Questions about those episodes.
    """

    cases: int
    answers: int
    verdicts: int
    frames: int
    missing: Mapping[str, str]
    unanswerable: int


async def plan(
    evaluation: Evaluation,
    reask: Collection[AnswerStatus] = (),
    take_from: Collection[Path] = (),
) -> Plan:
    """What `Evaluation.run` with these arguments would do; opens episodes, decodes nothing.

    Raises:
        OpenEQAError: It would be refused.
    """
    records = waiting(evaluation, reask, take_from)
    asked = [record.case for record in records if to_ask(record.result, reask)]
    missing: dict[str, str] = {}
    frames = 0
    for case in asked:
        try:
            _, shown = await evidence(evaluation.episodes, evaluation.sampler, case)
        except FrameError as error:
            missing.setdefault(case.episode, str(error))
        else:
            frames += len(shown)
    lost = sum(case.episode in missing for case in asked)
    return Plan(
        cases=len(evaluation.dataset),
        answers=len(asked) - lost,
        verdicts=len(records) - lost,
        frames=frames,
        missing=missing,
        unanswerable=lost,
    )


def waiting(
    evaluation: Evaluation, reask: Collection[AnswerStatus], take_from: Collection[Path]
) -> list[Record]:
    """The records of the cases that `Evaluation.run` with these arguments would bring to an end.

    Raises:
        OpenEQAError: It would be refused.
    """
    entries = _entries(evaluation, take_from)
    return [record for record in evaluation.records(entries) if waits(record, reask)]


def _entries(evaluation: Evaluation, take_from: Collection[Path]) -> dict[str, Entry]:
    """What the run's own journal and those it takes answers from hold."""
    identity, folder = evaluation.answer_identity, evaluation.output_dir
    entries: dict[str, Entry] = {}
    if (folder / FILE_NAME).exists():
        content = read_journal(folder)
        check_identity(folder, content.identity, identity)
        entries = content.entries
    asked = {case.id for case in evaluation.dataset}
    for other in take_from:
        if identity_of(other) == identity:
            for line in missing_answers(entries, read_journal(other).entries, asked):
                entries.setdefault(line.case, Entry()).add(line)
    return entries
