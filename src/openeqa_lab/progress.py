"""One line that says how far a run has come."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from openeqa_lab.records import Record, Usage


class Progress:
    """Writes one line: rewritten in place on a terminal, now and then anew in a log file.

    Args:
        total: Cases of the run.
        done: Cases that an earlier start finished.
        stream: Standard error by default.
        every_s: Seconds between lines where the stream is no terminal.
    """

    def __init__(
        self, total: int, done: int = 0, stream: TextIO | None = None, every_s: float = 30.0
    ) -> None:
        self._stream = stream or sys.stderr or io.StringIO()  # a closed stream is None
        self._terminal = self._stream.isatty()
        self._every_s = 0.1 if self._terminal else every_s
        self._total, self._before, self._now = total, done, 0
        self._failed = 0
        self._dollars = 0.0
        self._unpriced = False
        self._started = self._shown = time.monotonic()
        self._width = 0

    @property
    def done(self) -> int:
        """Cases that are finished, by this start or an earlier one."""
        return self._before + self._now

    def add(self, record: Record, paid: Usage) -> None:
        """Count one more case that this start finished, and what it paid for it."""
        self._now += 1
        self._failed += record.failure is not None
        self._unpriced |= paid.dollars is None
        self._dollars += paid.known_dollars
        if time.monotonic() - self._shown >= self._every_s:
            self.show()

    def values(self) -> Mapping[str, float]:
        """The same for loggers; dollars are this start's, of calls whose price is known."""
        return {"done": self.done, "failed": self._failed, "dollars": self._dollars}

    def show(self, last: bool = False) -> None:
        """Write the line now."""
        self._shown = time.monotonic()
        line = self.line()
        if self._terminal:
            self._stream.write("\r" + line.ljust(self._width) + ("\n" if last else ""))
            self._width = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def line(self) -> str:
        """Done, failed, dollars, rate and the time that is left."""
        elapsed = time.monotonic() - self._started
        rate = self._now / elapsed if elapsed > 0 else 0.0
        left = self._total - self.done
        dollars = f"${self._dollars:.2f}" + (" + unpriced calls" if self._unpriced else "")
        eta = _clock(left / rate) if rate else "unknown time"
        return f"{self.done}/{self._total} done, {self._failed} failed, {dollars}, " + (
            f"{rate:.1f} questions/s, {eta} left" if left else "nothing left to do"
        )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
