"""What a run came to: built from records, written as JSON, Markdown and upstream's files."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import numbers
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.identity import digest
from openeqa_lab.journal import write_whole
from openeqa_lab.metrics import Estimate
from openeqa_lab.records import Record
from openeqa_lab.report import tally
from openeqa_lab.report.page import to_markdown
from openeqa_lab.report.tally import Costs, Counts

SCHEMA_VERSION = 1
FILES = ("report.json", "report.md", "predictions.json", "metrics.json")

State = Literal["complete", "stopped", "out of budget"]


@dataclass(frozen=True, slots=True)
class Timing:
    """When a run began and ended, as ISO 8601 with an offset, and how long this start took."""

    started: str
    finished: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """All that a run folder says about its run, the single questions aside.

    Args:
        name: The run's name.
        state: ``stopped`` or ``out of budget`` when the run ended before every question was
            reached.
        identity: What can change a number, under ``answer``, ``judge`` and ``questions``.
        settings: Recorded beside them, such as limits and concurrency.
        versions: Of this package and of those that can change a number.
        estimates: What the metrics gave.
        coverage_threshold: From 0 to 1; a run below it is no number to publish.
    """

    name: str
    state: State
    identity: Mapping[str, object]
    settings: Mapping[str, object]
    versions: Mapping[str, str]
    estimates: Mapping[str, Estimate]
    counts: Counts
    costs: Costs
    timing: Timing
    coverage_threshold: float

    @property
    def covered(self) -> bool:
        """Whether the judged part of the questions reaches the threshold."""
        coverage = self.counts.coverage
        return coverage is not None and coverage >= self.coverage_threshold

    @property
    def scorer(self) -> str:
        """The name of the judge that gave the verdicts."""
        judge = self.identity.get("judge")
        name = judge.get("name") if isinstance(judge, Mapping) else None
        return str(name) if name else "unnamed"


def build(
    records: Sequence[Record],
    estimates: Mapping[str, Estimate],
    *,
    name: str,
    state: State,
    identity: Mapping[str, object],
    settings: Mapping[str, object],
    versions: Mapping[str, str],
    timing: Timing,
    coverage_threshold: float = 0.0,
) -> Report:
    """The report of all asked cases, those that were not reached included."""
    return Report(
        name=name,
        state=state,
        identity=identity,
        settings=settings,
        versions=versions,
        estimates={key: _clean(estimate) for key, estimate in estimates.items()},
        counts=tally.count(records),
        costs=tally.spend(records),
        timing=timing,
        coverage_threshold=coverage_threshold,
    )


def _clean(estimate: Estimate) -> Estimate:
    """With plain finite floats or None: a user's metric may give NaN or numbers of a library."""
    figures = (estimate.value, estimate.low, estimate.high, estimate.error)
    value, low, high, error = (
        float(figure) if figure is not None and math.isfinite(figure) else None
        for figure in figures
    )
    return Estimate(value, low, high, error, int(estimate.count))


def write(report: Report, records: Sequence[Record], output_dir: str | Path) -> None:
    """Write report.json, report.md and upstream's predictions.json and metrics.json.

    Each file is replaced as a whole; those of another judge or of other questions are moved to a
    folder in `earlier/` first.

    Raises:
        OpenEQAError: A file cannot be written; what the journal holds is not touched.
    """
    folder = Path(output_dir)
    _set_aside(folder, report)
    marked = marks(records)
    put(folder / "predictions.json", _json(predictions(records)))
    put(folder / "metrics.json", _json(marked) if marked else None)
    put(folder / "report.json", _json(to_json(report)))
    put(folder / "report.md", to_markdown(report, records))


def _set_aside(folder: Path, report: Report) -> None:
    """Move the report of another judge, or of other questions, out of the way of this one."""
    try:
        old = json.loads((folder / "report.json").read_text(encoding="utf-8"))["identity"]
        judge, asked = old["judge"]["name"], old["questions"]["asked"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # none that says what it is about
    if old == to_json(report)["identity"]:
        return
    aside = folder / "earlier" / f"{judge}-{asked}-questions-{digest(old)}"
    try:
        aside.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            if (folder / name).exists():
                os.replace(folder / name, aside / name)
    except OSError as error:
        raise OpenEQAError(
            f"cannot move the earlier report to {aside}: {error.strerror}. Nothing is lost: the "
            "journal holds every answer and mark"
        ) from None


def put(path: Path, text: str | None) -> None:
    """Replace a file of a run folder as a whole, or remove it; a full disk is an OpenEQAError."""
    try:
        if text is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # A lone surrogate, which UTF-8 has no bytes for, becomes its JSON escape.
        write_whole(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        with contextlib.suppress(OSError):
            path.with_name(path.name + ".new").unlink()
        raise OpenEQAError(
            f"cannot write {path}: {error.strerror}. Nothing is lost: the journal holds every "
            "answer and mark. Make room and start the same command again: it makes the report "
            "from the journal and asks nothing twice"
        ) from None


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def predictions(records: Sequence[Record]) -> list[dict[str, str | None]]:
    """Upstream's predictions: null for what was refused, blocked or empty; failures are absent."""
    return [
        {
            "question_id": record.case.id,
            "answer": record.answer.text if record.answer.status == "answered" else None,
        }
        for record in records
        if record.answer is not None
    ]


def marks(records: Sequence[Record]) -> dict[str, int]:
    """Upstream's metrics: marks by question id, 0 where upstream would see no prediction."""
    return {
        record.case.id: record.judged.mark if record.answer.status == "answered" else 0
        for record in records
        if record.answer is not None and record.judged is not None
        if record.judged.mark is not None
    }


def to_json(report: Report) -> dict[str, object]:
    """The report as JSON values: fields in a fixed order, the names within them sorted."""
    fields = {
        field.name: to_plain(getattr(report, field.name), field.name)
        for field in dataclasses.fields(report)
    }
    coverage = to_plain(report.counts.coverage, "coverage")
    return {"schema_version": SCHEMA_VERSION, **fields, "coverage": coverage}


def to_plain(value: object, where: str) -> object:
    """JSON values of dataclasses, mappings, sequences and any numbers; null for NaN and infinity.

    Raises:
        OpenEQAError: Something in it is none of these; `where` it is, is said.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: to_plain(getattr(value, name), f"{where}.{name}") for name in names}
    if isinstance(value, Mapping):
        items = sorted((str(key), item) for key, item in value.items())
        return {key: to_plain(item, f"{where}.{key}") for key, item in items}
    if isinstance(value, (list, tuple)):
        return [to_plain(item, f"{where}[{place}]") for place, item in enumerate(value)]
    raise OpenEQAError(
        f"the report's {where} is a {type(value).__name__}, which JSON has no form for: "
        "give text, numbers, lists or mappings"
    )
