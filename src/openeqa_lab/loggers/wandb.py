"""A run at Weights & Biases."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.loggers import RunInfo, tables
from openeqa_lab.records import Record
from openeqa_lab.report import Report


class Wandb:
    """A run at Weights & Biases, its files under `<output_dir>/wandb`.

    A run that goes on in its folder is the same W&B run; another judge's is another one.

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
        mode: Literal["online", "offline", "disabled"] | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        thumbnails: bool = False,
        frames_root: str | None = None,
        init_timeout_s: float = 20.0,
        finish_timeout_s: float = 120.0,
    ) -> None:
        for name, seconds in (("init", init_timeout_s), ("finish", finish_timeout_s)):
            if not 0 < seconds < math.inf:
                raise OpenEQAError(f"wandb.{name}_timeout_s is {seconds}: give seconds above 0")
        if thumbnails and frames_root is None:
            raise OpenEQAError("wandb.thumbnails needs wandb.frames_root, the episodes' folder")
        self._project, self._entity, self._group = project, entity, group
        self._mode, self._tags = mode, tuple(tags)
        self._frames_root = frames_root if thumbnails else None
        self._init_timeout_s, self._finish_timeout_s = init_timeout_s, finish_timeout_s
        self._folder = Path()
        self._run: _Run | None = None
        self._waiting: tuple[dict[str, object], int] | None = None
        self._logged = -math.inf

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
        """Note how far the run has come, once a second: a call costs W&B some milliseconds."""
        run, self._waiting = self._started(), (dict(values), step)
        if time.monotonic() - self._logged >= 1.0:
            self._write(run)

    def _write(self, run: _Run) -> None:
        if self._waiting is not None:
            values, step = self._waiting
            run.log(values, step=step)
        self._waiting, self._logged = None, time.monotonic()

    def finish(self, report: Report, records: Sequence[Record], /) -> None:
        """Add summary and tables, and close the run whatever becomes of them."""
        run, self._run = self._started(), None
        try:
            with _surroundings(self._folder):
                self._write(run)
                run.summary.update(tables.summary(report))
                run.log(self._tables(report, records))
        finally:
            run.finish(exit_code=0 if report.state == "complete" else 1)

    def _started(self) -> _Run:
        if self._run is None:
            raise OpenEQAError("Wandb was told of a run that it was not told the start of")
        return self._run

    def _tables(self, report: Report, records: Sequence[Record]) -> dict[str, object]:
        """By category, by split, and what became of each question."""
        import wandb

        found = [*tables.breakdowns(report.estimates), ("questions", *self._questions(records))]
        return {name: wandb.Table(columns=columns, data=rows) for name, columns, rows in found}

    def _questions(self, records: Sequence[Record]) -> tuple[list[str], list[list[object]]]:
        rows = [tables.row(record) for record in records]
        if self._frames_root is None:
            return list(tables.COLUMNS), rows
        import wandb

        from openeqa_lab.loggers.thumbnails import Thumbnails

        thumbnails = Thumbnails(self._frames_root)
        strips = [thumbnails.strip(record) for record in records]
        # By object: questions that were shown the same frames share a strip, and so its file.
        distinct = {id(strip): strip for strip in strips if strip is not None}
        files = {key: wandb.Image(strip, file_type="jpg") for key, strip in distinct.items()}
        rows = [[*row, files.get(id(strip))] for row, strip in zip(rows, strips, strict=True)]
        return [*tables.COLUMNS, "frames"], rows


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
    added = wanted.keys() - os.environ.keys()
    os.environ.update({name: wanted[name] for name in added})
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
