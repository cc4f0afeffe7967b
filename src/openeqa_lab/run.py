"""Run an evaluation: `python -m openeqa_lab.run reasoner=gpt4v sampler.k=50`."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # errors reach `command`, which words them

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from openeqa_lab import command, config
from openeqa_lab.data.episode import Unseen
from openeqa_lab.errors import OpenEQAError

if TYPE_CHECKING:
    from openeqa_lab.evaluation import Evaluation
    from openeqa_lab.llm import Forecast
    from openeqa_lab.plan import Plan
    from openeqa_lab.records import Usage
    from openeqa_lab.report import Report

PARTS = ("dataset", "episodes", "sampler", "reasoner", "judge")
ROLES = {  # what each part must have; the rest of its contract is its kit's to check
    "dataset": "whole",
    "episodes": "episode",
    "sampler": "sample",
    "reasoner": "answer",
    "judge": "judge",
}
KEYS = (
    *PARTS,
    "metrics",
    "loggers",
    "data_dir",
    "output_dir",
    "concurrency",
    "cache",
    "cache_dir",
    "run",
)


@hydra.main(version_base="1.3", config_path=config.conf_path(), config_name="run")
def _task(composed: DictConfig) -> None:
    with command.job():
        _run(composed)


def _run(composed: DictConfig) -> None:
    settings = config.plain(composed, KEYS)
    options = config.run_options(settings["run"])
    evaluation = _evaluation(settings, options.coverage)
    folder = evaluation.output_dir
    take_from = [] if settings["output_dir"] else _siblings(folder)
    print(_opening(evaluation, settings))
    if not options.resume and (folder / "journal.jsonl").exists():
        raise OpenEQAError(
            f"{folder} holds answers and run.resume is false: choose another output_dir, "
            "or leave run.resume out to go on"
        )
    if options.dry_run:
        from openeqa_lab.plan import plan

        _tell(asyncio.run(plan(evaluation, options.reask, take_from)))
        return
    question_usd = _preflight(evaluation, options, take_from) if options.preflight else 0.0
    report = asyncio.run(
        evaluation.run(
            name=options.name or folder.name,
            group=options.group or _sweep(),
            config=settings,
            reask=options.reask,
            take_from=take_from,
            budget_usd=options.budget_usd,
            question_usd=question_usd,
        )
    )
    print(f"{_summary(report)}\nreport: {folder / 'report.md'}")
    if report.state == "stopped":
        raise KeyboardInterrupt
    if report.state == "out of budget":
        raise OpenEQAError(
            f"run.budget_usd = {options.budget_usd:g} is spent after {report.counts.judged} of "
            f"{report.counts.asked} questions: what was bought is kept; raise it and start the "
            "same command again to go on"
        )
    if not report.covered:
        raise OpenEQAError(
            f"{report.counts.judged} of {report.counts.asked} questions have a verdict, which is "
            f"below run.coverage = {options.coverage}: {folder / 'report.md'} lists the failures; "
            "start the same command again to try them again"
        )


def _evaluation(settings: dict[str, object], coverage: float) -> Evaluation:
    """The evaluation that a config describes; the heavy imports happen here, not for --help."""
    from openeqa_lab.evaluation import Evaluation, answer_identity
    from openeqa_lab.identity import comparable, digest

    parts = {name: config.build(settings[name], name) for name in PARTS}
    for name, method in ROLES.items():
        if not hasattr(parts[name], method):
            raise OpenEQAError(
                f"{name}._target_ gives a {type(parts[name]).__name__}, which is no {name}: it "
                f"has no {method}"
            )
    limits = config.limits(settings)
    identity = {
        "answer": answer_identity(*(parts[name] for name in PARTS[:-1])),
        "judge": comparable(parts["judge"].identity),
    }
    return Evaluation(
        **parts,
        metrics=config.build_all(settings["metrics"], "metrics"),
        loggers=config.build_all(settings["loggers"], "loggers"),
        output_dir=limits.output_dir or _default_folder(settings["sampler"], digest(identity)),
        concurrency=limits.concurrency,
        coverage=coverage,
    )


def _default_folder(sampler: object, identity: str) -> Path:
    """`outputs/<reasoner>-<sampler>-k<k>-<judge>-<identity>`: the settings decide it."""
    choices = HydraConfig.get().runtime.choices
    k = sampler.get("k") if isinstance(sampler, dict) else None
    words = [choices["reasoner"], choices["sampler"], f"k{k}", choices["judge"], identity]
    return Path("outputs") / "-".join(str(word).replace("/", "-") for word in words)


def _siblings(folder: Path) -> list[Path]:
    """The other runs beside this one; those of the same answer identity are taken from."""
    return sorted(path.parent for path in folder.parent.glob("*/journal.jsonl"))


def _sweep() -> str | None:
    hydra_config = HydraConfig.get()
    multirun = hydra_config.mode == RunMode.MULTIRUN
    return Path(hydra_config.sweep.dir).name if multirun else None


def _opening(evaluation: Evaluation, settings: dict[str, object]) -> str:
    """What is about to be measured: the first line of every run."""
    dataset, choices = evaluation.dataset, HydraConfig.get().runtime.choices
    k = sampler.get("k") if isinstance(sampler := settings["sampler"], dict) else None
    blind = isinstance(evaluation.episodes, Unseen)
    shown = "no frames" if blind else f"sampler {choices['sampler']} k={k}"
    lines = [
        f"{len(dataset)} questions of {dataset.name}, reasoner {choices['reasoner']}, {shown}, "
        f"judge {choices['judge']}, in {evaluation.output_dir}"
    ]
    lines += [f"  {step.filter}: kept {step.kept}, dropped {step.dropped}" for step in dataset.kept]
    return "\n".join(lines)


def _tell(plan: Plan) -> None:
    """What a run would do; episodes without frames are named, and are an error."""
    print(
        f"dry run: would ask the reasoner {plan.answers} questions and hand the judge "
        f"{plan.verdicts} answers, showing {plan.frames} frames"
    )
    for reason in plan.missing.values():
        print(f"  {reason}")
    if plan.missing:
        raise OpenEQAError(
            f"{plan.unanswerable} of {plan.cases} questions have no frames ({len(plan.missing)} "
            "episodes, named above): bring them, or leave these questions out"
        )


def _preflight(evaluation: Evaluation, options: config.RunOptions, take_from: list[Path]) -> float:
    """Call each model once, say what the run may cost and, on a terminal, ask whether to go on.

    Returns:
        Dollars that a question may cost, as far as the prices are known.
    """
    from openeqa_lab.preflight import preflight

    found = asyncio.run(preflight(evaluation, options.reask, take_from))
    if found.spent.calls:
        print(f"preflight: model calls that replied: {found.spent.calls} ({_price(found.spent)})")
    for what, part in (("answers", found.answers), ("judgements", found.judgements)):
        if part is not None:
            print(
                f"  {part.calls:,.0f} {what}: about {part.prompt_tokens:,.0f} prompt tokens, "
                f"{_prices(part)}"
            )
    together = found.together
    if together.calls and options.budget_usd is not None and together.dollars is None:
        print("  run.budget_usd cannot count calls of unknown price")
    ask = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    a_question = sum(
        (part.dollars or 0.0) / part.calls
        for part in (found.answers, found.judgements)
        if part is not None and part.calls
    )
    if together.dollars == 0 or options.yes or not ask:
        return a_question
    sys.stdout.write(f"In all {_prices(together)}. Go on? [y/N] ")
    sys.stdout.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise OpenEQAError("nothing was asked; run.yes=true starts without this question")
    return a_question


def _price(usage: Usage) -> str:
    return "price not known" if usage.dollars is None else f"${usage.dollars:.4f}"


def _prices(forecast: Forecast) -> str:
    """Between the prompts alone and replies of full length."""
    if forecast.dollars is None or forecast.most_dollars is None:
        return "price not known"
    if forecast.most_dollars == 0:
        return "free"
    return f"${forecast.dollars:,.2f} to ${forecast.most_dollars:,.2f} at list price"


def _summary(report: Report) -> str:
    """The headline in a line or two, for a terminal."""
    from openeqa_lab.report.page import headlines

    counts = report.counts
    lines = []
    for key in headlines(report.estimates):
        figure = report.estimates[key]
        value = "no value" if figure.value is None else f"{figure.value:.2f}"
        interval = "" if figure.low is None else f" (95 % {figure.low:.2f} to {figure.high:.2f})"
        lines.append(f"{key} {value}{interval}, {counts.judged} of {counts.asked} judged")
    return "\n".join(lines)


def main() -> None:
    """The command `openeqa-lab`, the same as `python -m openeqa_lab.run`."""
    gc.set_threshold(50_000)  # composing a config makes much and drops little
    if not os.environ.get("OPENEQA_DATA_DIR"):
        os.environ.pop("OPENEQA_DATA_DIR", None)  # set but empty is not the root of the disk
    intro = "Ask a reasoner the questions of a data set, have its answers judged, and report."
    sys.exit(command.run(_task, "python -m openeqa_lab.run", intro))


if __name__ == "__main__":
    main()
