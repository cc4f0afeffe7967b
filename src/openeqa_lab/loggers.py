"""Who is told how a run goes: a file of events, Weights & Biases, or a logger of one's own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from openeqa_lab import tables
from openeqa_lab.errors import OpenEQAError

if TYPE_CHECKING:
    from openeqa_lab.records import Record
    from openeqa_lab.report import Report

log = logging.getLogger(__name__)

Mode = Literal["online", "offline", "disabled"]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a logger is told when a run starts.

    Args:
        name: The run's name.
        group: What gathers the runs of a sweep, None outside one.
        output_dir: The run folder; a logger's files go there.
        config: Settings, as JSON values; never a key.
        identity: Those that can change a number, under ``answer`` and ``judge``.
    """

    name: str
    group: str | None
    output_dir: Path
    config: Mapping[str, object]
    identity: Mapping[str, object] = field(default_factory=dict)


class Logger(Protocol):
    """Is told how a run goes.

    `start` comes first and once, `log` after each case, `finish` last and once, also for a run
    that was stopped. All are called from one thread, and hold the run up as long as they take. One
    object may be used for several runs, one after the other. A logger that raises is warned about
    and not called again in this run; it never ends one, so it needs no error handling of its own.
    """

    def start(self, run: RunInfo, /) -> None:
        """A run starts, or goes on in a folder where it was started before."""
        ...

    def log(self, values: Mapping[str, float], step: int, /) -> None:
        """How far it has come; `step` counts finished cases and does not go back."""
        ...

    def finish(self, report: Report, records: Sequence[Record], /) -> None:
        """The run has ended; its report is on the disk. Let go of everything."""
        ...


def guarded(loggers: Mapping[str, Logger]) -> Logger:
    """One logger that tells all of these; one that raises is warned about and left out."""
    return _Guarded(loggers)


class _Guarded:
    def __init__(self, loggers: Mapping[str, Logger]) -> None:
        self._loggers = dict(loggers)

    def start(self, run: RunInfo, /) -> None:
        self._tell(lambda logger: logger.start(run))

    def log(self, values: Mapping[str, float], step: int, /) -> None:
        self._tell(lambda logger: logger.log(values, step))

    def finish(self, report: Report, records: Sequence[Record], /) -> None:
        self._tell(lambda logger: logger.finish(report, records))

    def _tell(self, message: Callable[[Logger], None]) -> None:
        for name, logger in list(self._loggers.items()):
            try:
                message(logger)
            # A logger is others' code on others' servers and may raise anything. By then calls
            # have been paid for, and no entry in a log is worth ending a run for: the one place
            # where every exception is caught. Ctrl-C is none of them.
            except Exception as error:  # noqa: BLE001
                del self._loggers[name]
                said = (str(error).strip() or "no message").splitlines()[0]
                log.warning(
                    "logger %s failed and is switched off, the run goes on: %s: %s",
                    name, type(error).__name__, said,
                )  # fmt: skip


class Jsonl:
    """Appends events to `<output_dir>/log.jsonl`: ``start``, ``log``, ``finish``, each with a time.

    A run that goes on appends to the file that is there.
    """

    def __init__(self) -> None:
        self._path: Path | None = None

    def start(self, run: RunInfo, /) -> None:
        """Note name, group and settings."""
        run.output_dir.mkdir(parents=True, exist_ok=True)
        self._path = run.output_dir / "log.jsonl"
        self._append(event="start", name=run.name, group=run.group, config=run.config)

    def log(self, values: Mapping[str, float], step: int, /) -> None:
        """Note how far the run has come."""
        self._append(event="log", step=step, values=values)

    def finish(self, report: Report, records: Sequence[Record], /) -> None:
        """Note the figures."""
        figures = {key: estimate.value for key, estimate in report.estimates.items()}
        self._append(event="finish", state=report.state, cases=len(records), values=figures)
        self._path = None

    def _append(self, **event: object) -> None:
        if self._path is None:
            raise OpenEQAError("Jsonl was told of a run that it was not told the start of")
        line = json.dumps({"time": datetime.now().astimezone().isoformat(), **_finite(event)})
        with self._path.open("ab+") as file:
            # A line that a kill cut is ended first, so that it does not spoil the next one.
            if file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) and file.read() != b"\n":
                line = "\n" + line
            file.write(line.encode() + b"\n")


def _finite(values: Mapping[str, object]) -> dict[str, object]:
    """Without NaN and infinity, which JSON has no form for."""
    plain: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            plain[key] = _finite(value)
        else:
            plain[key] = value if not isinstance(value, float) or math.isfinite(value) else None
    return plain


class Wandb:
    """A run at Weights & Biases, its files under `<output_dir>/wandb`.

    A run that goes on in its folder is the same W&B run; another judge's is another one. Offline
    runs are uploaded by ``wandb sync <output_dir>/wandb/offline-run-*``.

    Args:
        project: The W&B project.
        entity: The W&B user or team; None for one's own.
        mode: None leaves it to the environment variable WANDB_MODE, and is ``offline`` where that
            is not set: a key alone uploads nothing.
        group: None for the sweep that the run belongs to.
        tags: Of the run.
        thumbnails: Whether the table of questions shows the frames; scans are licensed.
        frames_root: Holds the episodes; needed for thumbnails only.
        init_timeout_s: Seconds that a server may take to answer at the start.
        finish_timeout_s: Seconds that the upload may take at the end; the rest stays on the disk.
    """

    def __init__(
        self,
        project: str = "openeqa",
        entity: str | None = None,
        mode: Mode | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        thumbnails: bool = False,
        frames_root: str | None = None,
        init_timeout_s: float = 20.0,
        finish_timeout_s: float = 120.0,
    ) -> None:
        times = {"init_timeout_s": init_timeout_s, "finish_timeout_s": finish_timeout_s}
        for name, seconds in times.items():
            if not 0 < seconds < math.inf:
                raise OpenEQAError(f"wandb.{name} is {seconds}: give seconds above 0")
        if thumbnails and frames_root is None:
            raise OpenEQAError("wandb.thumbnails needs wandb.frames_root, the episodes' folder")
        self._project, self._entity, self._mode = project, entity, mode
        self._group, self._tags = group, tuple(tags)
        self._frames_root = frames_root if thumbnails else None
        self._init_timeout_s, self._finish_timeout_s = init_timeout_s, finish_timeout_s
        self._folder = Path()
        self._run: _Run | None = None

    def start(self, run: RunInfo, /) -> None:
        """Open the run, or the one that this folder had before."""
        self._folder = run.output_dir / "wandb"
        self._folder.mkdir(parents=True, exist_ok=True)
        with _surroundings(self._folder):
            import wandb

            settings = wandb.Settings(
                silent=True,
                console="off",  # the progress line is not W&B's to rewrite
                disable_git=True,  # a diff of wherever the user stands is nobody's business
                disable_code=True,
                x_disable_stats=True,  # waiting for a network loads no machine
                init_timeout=self._init_timeout_s,
                login_timeout=self._init_timeout_s,  # a prompt for a key waits no longer
                finish_timeout=self._finish_timeout_s,
                mode=self._mode or os.environ.get("WANDB_MODE") or "offline",
            )
            self._run = wandb.init(
                project=self._project,
                entity=self._entity,
                group=self._group or run.group,
                tags=self._tags,
                name=run.name,
                dir=run.output_dir,
                config={**run.config, "identity": run.identity},
                id=_run_id(self._folder, run.identity),
                resume="allow",
                reinit="create_new",  # a run of the caller's own, or of another job, stays open
                settings=settings,
            )

    def log(self, values: Mapping[str, float], step: int, /) -> None:
        """Note how far the run has come."""
        self._started().log(dict(values), step=step)

    def finish(self, report: Report, records: Sequence[Record], /) -> None:
        """Add summary and tables, and close the run whatever becomes of them."""
        run = self._started()
        self._run = None
        try:
            with _surroundings(self._folder):
                import wandb

                run.summary.update(tables.summary(report))
                rows = tables.breakdowns(report.estimates)
                run.log(
                    {name: wandb.Table(columns=cols, data=data) for name, cols, data in rows}
                    | {"questions": self._questions(records)}
                )
        finally:
            run.finish(exit_code=0 if report.state == "complete" else 1)

    def _started(self) -> _Run:
        if self._run is None:
            raise OpenEQAError("Wandb was told of a run that it was not told the start of")
        return self._run

    def _questions(self, records: Sequence[Record]) -> object:
        """What became of each question; marks are numbers or empty, reasons have their column."""
        import wandb

        if self._frames_root is None:
            data = [tables.row(record) for record in records]
            return wandb.Table(columns=list(tables.COLUMNS), data=data)
        from openeqa_lab.thumbnails import Thumbnails

        thumbnails = Thumbnails(self._frames_root)
        pictures: dict[int, object] = {}  # by strip: questions that share one share the file
        rows = []
        for record in records:
            strip = thumbnails.strip(record)
            if strip is not None and id(strip) not in pictures:
                pictures[id(strip)] = wandb.Image(strip, file_type="jpg")
            rows.append([*tables.row(record), pictures.get(id(strip))])
        return wandb.Table(columns=[*tables.COLUMNS, "frames"], data=rows)


class _Run(Protocol):
    """What is used of a W&B run."""

    summary: dict[str, object]

    def log(self, data: dict[str, object], step: int | None = None) -> None: ...
    def finish(self, exit_code: int) -> None: ...


@contextlib.contextmanager
def _surroundings(folder: Path) -> Iterator[None]:
    """W&B silent and, unless the environment says otherwise, with its staged files in `folder`.

    It reads both from the environment alone. Staged outside, an offline run could not be uploaded
    from a copy of its folder.
    """
    wanted = {"WANDB_SILENT": "true", "WANDB_DATA_DIR": str(folder.absolute())}
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _run_id(folder: Path, identity: Mapping[str, object]) -> str:
    """The same for the same run folder and identity; two folders never share one."""
    path = folder / "folder-id"
    if not path.exists():
        path.write_text(uuid.uuid4().hex)
    text = path.read_text() + json.dumps(identity, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
