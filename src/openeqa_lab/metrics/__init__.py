"""The role of summing up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from openeqa_lab.records import Record


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its uncertainty.

    Args:
        value: None when nothing entered it; never NaN.
        low: Lower end of the 95 % interval, None where there is none.
        high: Upper end of the 95 % interval, None where there is none.
        error: Standard error, None where there is none.
        count: Records that entered it.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    error: float | None = None
    count: int = 0


class Metric(Protocol):
    """Computes figures from records alone, so that a report can be made again from a journal.

    Keys are words joined by ``/``, such as ``llm_match/category/object localization``; two
    metrics of one run must not give the same key. Failures enter no mean of scores.
    """

    def compute(self, records: Sequence[Record], /) -> Mapping[str, Estimate]:
        """The figures; an empty sequence gives estimates of value None and count 0, or none."""
        ...
