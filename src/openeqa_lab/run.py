"""Run an evaluation: `python -m openeqa_lab.run reasoner=gpt4v sampler.k=50`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # errors reach `command`, which words them

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from openeqa_lab import config
from openeqa_lab.errors import OpenEQAError

if TYPE_CHECKING:
    from openeqa_lab.evaluation import Evaluation, Plan

PARTS = ("dataset", "episodes", "sampler", "reasoner", "judge")
KEYS = (*PARTS, "metrics", "loggers", "data_dir", "output_dir", "concurrency", "run")


@hydra.main(version_base="1.3", config_path=config.conf_path(), config_name="run")
def _task(composed: DictConfig) -> None:
    with config.job():
        _run(composed)


def _run(composed: DictConfig) -> None:
    settings = config.plain(composed, KEYS)
    options = config.run_options(settings["run"])
    evaluation = _evaluation(settings)
    folder = evaluation.output_dir
    if options.dry_run:
        print(_wording(asyncio.run(evaluation.plan()), folder))
        return
    if not options.resume and (folder / "journal.jsonl").exists():
        raise OpenEQAError(
            f"{folder} holds answers and run.resume is false: choose another output_dir, "
            "or leave run.resume out to go on"
        )
    report = asyncio.run(
        evaluation.run(
            name=options.name or folder.name,
            group=options.group or _sweep(),
            config=settings,
            reask=options.reask,
        )
    )
    print(report.headline())
    print(f"report: {folder / 'report.md'}")
    if report.state == "stopped":
        raise KeyboardInterrupt
    if report.coverage < options.coverage:
        raise OpenEQAError(
            f"coverage is {report.coverage:.4f}, below run.coverage = {options.coverage}: the "
            f"failures are listed in {folder / 'report.md'}; start the same command again to try "
            "them again"
        )


def _evaluation(settings: dict[str, object]) -> Evaluation:
    """The evaluation that a config describes; the heavy imports happen here, not for --help."""
    from openeqa_lab.evaluation import Evaluation, answer_identity
    from openeqa_lab.journal import digest

    parts = {name: config.build(cast("config.Node", settings[name]), name) for name in PARTS}
    several = {
        group: {
            name: config.build(node, f"{group}.{name}")
            for name, node in cast("dict[str, config.Node]", settings[group]).items()
        }
        for group in ("metrics", "loggers")
    }
    output_dir = settings["output_dir"]
    if output_dir is None:
        identity = answer_identity(*(parts[name] for name in PARTS[:-1]))  # type: ignore[arg-type]
        output_dir = _default_folder(settings["sampler"], digest(identity))
    return Evaluation(  # the protocols are checked by what each option's class promises
        **parts, **several, output_dir=output_dir, concurrency=settings["concurrency"]
    )  # type: ignore[arg-type]


def _default_folder(sampler: object, identity: str) -> Path:
    """`outputs/<reasoner>-<sampler>-k<k>-<judge>-<identity>`: the same for the same settings."""
    choices = HydraConfig.get().runtime.choices
    k = sampler.get("k") if isinstance(sampler, dict) else None
    words = [choices["reasoner"], choices["sampler"], f"k{k}", choices["judge"], identity]
    return Path("outputs") / "-".join(str(word).replace("/", "-") for word in words)


def _sweep() -> str | None:
    hydra_config = HydraConfig.get()
    multirun = hydra_config.mode == RunMode.MULTIRUN
    return Path(hydra_config.sweep.dir).name if multirun else None


def _wording(plan: Plan, folder: Path) -> str:
    lines = [
        f"dry run: {plan.cases} questions; would ask the reasoner {plan.answers} and hand the "
        f"judge {plan.verdicts}, showing {plan.frames} frames; run folder {folder}"
    ]
    if plan.missing:
        lines.append(f"{plan.unanswerable} questions have no frames:")
        lines += [f"  {reason}" for reason in plan.missing.values()]
    return "\n".join(lines)


def main() -> None:
    """The command `openeqa-lab`, the same as `python -m openeqa_lab.run`."""
    sys.exit(config.command(_task))


if __name__ == "__main__":
    main()
