"""A file of events beside the journal."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.loggers import RunInfo
from openeqa_lab.records import Record
from openeqa_lab.report import Report, to_plain


class Jsonl:
    """Appends what it is told to `<output_dir>/log.jsonl`, an event a line with its time."""

    def __init__(self) -> None:
        self._path: Path | None = None

    def start(self, run: RunInfo, /) -> None:
        """Note name, group and settings."""
        run.output_dir.mkdir(parents=True, exist_ok=True)
        self._path = run.output_dir / "log.jsonl"
        about = {"name": run.name, "group": run.group, "config": run.config}
        self._append({"event": "start", **about})

    def log(self, values: Mapping[str, float], step: int, /) -> None:
        """Note how far it has come."""
        self._append({"event": "log", "step": step, "values": to_plain(values, "values")})

    def finish(self, report: Report, records: Sequence[Record], /) -> None:
        """Note the figures."""
        figures = {key: estimate.value for key, estimate in report.estimates.items()}
        about = {"state": report.state, "cases": len(records), "values": figures}
        self._append({"event": "finish", **about})
        self._path = None

    def _append(self, event: Mapping[str, object]) -> None:
        if self._path is None:
            raise OpenEQAError("Jsonl was told of a run that it was not told the start of")
        now = datetime.now().astimezone().isoformat()
        line = json.dumps({"time": now, **event}).encode() + b"\n"
        with self._path.open("ab+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":  # a kill cut the last line: let it spoil no other
                    line = b"\n" + line
            file.write(line)
