"""The one runner: cases in, a report out, and nothing that was paid for is lost on the way."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from platform import python_version

import yaml

from openeqa_lab import report
from openeqa_lab.budget import Budget
from openeqa_lab.concurrency import stop_on_signals, work_through
from openeqa_lab.data.case import Case
from openeqa_lab.data.datasets import Dataset
from openeqa_lab.data.episode import EpisodeSource, Unseen
from openeqa_lab.entries import (
    Entry,
    JudgeLine,
)
from openeqa_lab.errors import OpenEQAError
from openeqa_lab.identity import comparable, digest
from openeqa_lab.journal import Journal
from openeqa_lab.judges import Judge
from openeqa_lab.llm import stopping
from openeqa_lab.loggers import Logger, RunInfo, guarded
from openeqa_lab.metrics import Estimate, Metric
from openeqa_lab.progress import Progress
from openeqa_lab.reasoners import Reasoner
from openeqa_lab.records import (
    AnswerStatus,
    Record,
    Usage,
)
from openeqa_lab.report import Report, State, Timing, tally
from openeqa_lab.runner import CaseRunner, to_ask
from openeqa_lab.sampling import Sampler

log = logging.getLogger(__name__)


def answer_identity(
    dataset: Dataset, episodes: EpisodeSource, sampler: Sampler, reasoner: Reasoner
) -> dict[str, object]:
    """The settings that can change an answer, as JSON values.

    A blind run is shown nothing, so its sampler is no part of it.
    """
    parts: dict[str, object] = {"dataset": dataset.identity, "episodes": episodes.identity}
    if not isinstance(episodes, Unseen):
        parts["sampler"] = sampler.identity
    parts["reasoner"] = reasoner.identity
    return comparable(parts)


class _Clock:
    """When a run began, by the calendar and by a clock that nobody sets."""

    def __init__(self) -> None:
        self._began, self._ticks = datetime.now().astimezone(), time.monotonic()

    def timing(self) -> Timing:
        """From then until now."""
        now = datetime.now().astimezone()
        return Timing(self._began.isoformat(), now.isoformat(), time.monotonic() - self._ticks)


class Evaluation:
    """Asks every case of a data set, has the answers judged, and sums them up.

    Args:
        dataset: The cases, in the order they are asked.
        episodes: Where a case's evidence comes from.
        sampler: Which frames of it are shown.
        reasoner: Who answers.
        judge: Who marks the answers.
        metrics: What is computed from the records; the names are for messages only.
        loggers: Who is told; one that fails warns and is left out from there on.
        output_dir: The run folder. A second start in it goes on where the first one ended.
        concurrency: Cases under way at once.
        coverage: Share of the cases, 0 to 1, without which a report says that it is no number to
            publish.
    """

    def __init__(
        self,
        dataset: Dataset,
        episodes: EpisodeSource,
        sampler: Sampler,
        reasoner: Reasoner,
        judge: Judge,
        metrics: Mapping[str, Metric],
        loggers: Mapping[str, Logger],
        output_dir: str | Path,
        concurrency: int = 8,
        coverage: float = 0.0,
    ) -> None:
        if concurrency < 1:
            raise OpenEQAError(f"concurrency is {concurrency}: at least 1 is needed")
        self.dataset = dataset
        self.episodes = episodes
        self.sampler = sampler
        self.reasoner = reasoner
        self.judge = judge
        self.metrics = metrics
        self.loggers = loggers
        self.output_dir = Path(output_dir)
        self.concurrency = concurrency
        self.coverage = coverage
        self.answer_identity = answer_identity(dataset, episodes, sampler, reasoner)
        self.judge_identity = comparable(judge.identity)
        self.judge_hash = digest(self.judge_identity)
        self.selection = {
            "asked": len(dataset),
            "of": len(dataset.whole),
            "filters": [step.filter for step in dataset.kept],
            "ids_sha256": dataset.ids_sha256,
        }

    async def run(
        self,
        *,
        name: str = "",
        group: str | None = None,
        config: Mapping[str, object] | None = None,
        reask: Collection[AnswerStatus] = (),
        take_from: Collection[Path] = (),
        budget_usd: float | None = None,
        question_usd: float = 0.0,
    ) -> Report:
        """Ask and judge what is not done yet, then report on everything.

        The first Ctrl-C or SIGTERM lets the calls in flight end and gives a report whose state is
        ``stopped``; a second one drops them. However the run ends, what was done is kept.

        Args:
            name: Of the run, for report and loggers; the run folder's name by default.
            group: Under which loggers gather the runs of a sweep.
            config: Recorded in `config.yaml` and by loggers, as JSON values.
            reask: Statuses of answers that are asked again, ``refused`` for instance.
            take_from: Run folders whose answers, where they were asked with the same settings, are
                taken over instead of being bought again; another judge's run, for instance.
            budget_usd: Dollars that the run folder may cost in all; near them no further question
                is begun, and the report's state is ``out of budget``. Calls of unknown price count
                as nothing.
            question_usd: Dollars that a question is taken to cost until one has ended.

        Raises:
            OpenEQAError: The run cannot start or go on.
        """
        book = Journal(self.output_dir)
        try:
            book.identify(self.answer_identity, _versions()["openeqa-lab"])
            asked = {case.id for case in self.dataset}
            for folder in take_from:
                if taken := book.take_answers(folder, asked):
                    log.warning("took %d answers over from %s", taken, folder)
            others = len(book.content.entries.keys() - asked)
            if others:
                log.warning(
                    "%s holds %d questions more than are asked now: the report is about the %d "
                    "that are", self.output_dir, others, len(self.dataset),
                )  # fmt: skip
            self.estimates([])  # two metrics in one place are found before anything is paid
            identity = {
                "answer": self.answer_identity,
                "judge": self.judge_identity,
                "questions": self.selection,
            }
            info = RunInfo(
                name or self.output_dir.resolve().name,
                group,
                self.output_dir,
                dict(config or {}),
                identity,
            )
            spent = tally.spend(self.records(book.content.entries)).together.known_dollars
            return await self._run(book, info, reask, Budget(budget_usd, spent, question_usd))
        finally:
            await book.close()

    async def _run(
        self,
        book: Journal,
        info: RunInfo,
        reask: Collection[AnswerStatus],
        budget: Budget,
    ) -> Report:
        started, entries = _Clock(), book.content.entries
        settings = yaml.safe_dump(info.config, sort_keys=False, allow_unicode=True)
        report.put(self.output_dir / "config.yaml", settings)
        if self.judge_hash not in book.content.judges:
            book.append(JudgeLine(self.judge_hash, self.judge_identity))
        todo = [record.case for record in self.records(entries) if waits(record, reask)]
        progress = Progress(len(self.dataset), len(self.dataset) - len(todo))
        told = guarded(self.loggers)
        told.start(info)

        runner = CaseRunner(
            self.episodes, self.sampler, self.reasoner, self.judge, self.judge_hash, book, reask
        )

        async def finish(case: Case) -> None:
            if not budget.begin():  # what is under way goes on, its further attempts too
                return
            paid = await runner.finish(case)
            budget.end(paid)
            progress.add(self._record(case, entries[case.id]), paid)
            told.log(progress.values(), progress.done)

        state: State = "stopped"
        try:
            async with stop_on_signals(_say_stopping) as stop:
                token = stopping.set(stop)
                try:
                    await work_through(todo, finish, at_once=self.concurrency, stop=stop)
                finally:
                    stopping.reset(token)
            left = any(waits(record, ()) and not record.failure for record in self.records(entries))
            state = ("out of budget" if budget.reached else "stopped") if left else "complete"
        finally:
            progress.show(last=True)
            records = self.records(entries)
            result = self._report(records, info, state, started)
            try:
                await book.sync()
                report.write(result, records, self.output_dir)
            finally:
                told.finish(result, records)
        return result

    def _report(
        self, records: Sequence[Record], info: RunInfo, state: State, started: _Clock
    ) -> Report:
        return report.build(
            records,
            self.estimates(records),
            name=info.name,
            state=state,
            identity=info.identity,
            settings=info.config,
            versions=_versions(),
            timing=started.timing(),
            coverage_threshold=self.coverage,
        )

    def records(self, entries: Mapping[str, Entry]) -> list[Record]:
        """The record of each case, in order, as this run's judge sees it."""
        return [self._record(case, entries.get(case.id, Entry())) for case in self.dataset]

    def _record(self, case: Case, entry: Entry) -> Record:
        verdict = entry.verdicts.get(self.judge_hash)
        earlier = [entry.earlier.get(judge, Usage()) for judge in ("", self.judge_hash)]
        return Record(case, entry.trace, entry.shown, entry.result, verdict, sum(earlier, Usage()))

    def estimates(self, records: Sequence[Record]) -> dict[str, Estimate]:
        """All metrics' figures.

        Raises:
            OpenEQAError: Two metrics give the same key.
        """
        merged: dict[str, Estimate] = {}
        for name, metric in self.metrics.items():
            figures = metric.compute(records)
            if double := sorted(merged.keys() & figures.keys()):
                raise OpenEQAError(
                    f"metric {name} gives {', '.join(double)}, and so does another: "
                    "rename the key or leave one of them out"
                )
            merged |= figures
        return merged


def _versions() -> dict[str, str]:
    """Of Python and of the packages that can change a number; a plain checkout has none."""
    from importlib.metadata import PackageNotFoundError, version  # not at the top: takes time

    found = {"python": python_version()}
    packages = ("openeqa-lab", "litellm", "numpy", "pillow", "opencv-python-headless", "av")
    for name in (*packages, "torch", "transformers", "xllamacpp"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def waits(record: Record, reask: Collection[AnswerStatus]) -> bool:
    """Whether a case needs an answer or a verdict, or is to be asked again."""
    return record.judged is None or to_ask(record.result, reask)


def _say_stopping() -> None:
    log.warning("stopping: the calls in flight may end; press Ctrl-C again to drop them")
