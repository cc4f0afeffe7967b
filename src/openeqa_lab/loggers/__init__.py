"""The role of being told how a run goes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from openeqa_lab.records import Record
from openeqa_lab.report import Report

log = logging.getLogger(__name__)


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
