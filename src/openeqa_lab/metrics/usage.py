"""What a question costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from openeqa_lab.metrics import Estimate
from openeqa_lab.records import Record, Usage


class UsagePerQuestion:
    """Means a question over the cases that were reached, answer and judgement together.

    - ``per_question/calls``, ``/prompt_tokens``, ``/completion_tokens``, ``/seconds`` (waiting for
      replies).
    - ``per_question/frames``: shown, over the cases that were answered.
    - ``per_question/dollars``, ``total/dollars``: None when the price of any call is unknown.
    - ``total/dollars_known``: the part whose price is known; ``total/unpriced``: how many cases
      have a part whose price is not.
    """

    def compute(self, records: Sequence[Record], /) -> Mapping[str, Estimate]:
        """The figures; means over nothing have the value None."""
        parts = [_parts(record) for record in records]
        reached = [usages for usages in parts if usages]
        totals = [sum(usages[1:], usages[0]) for usages in reached]
        prices = [usage.dollars for usages in reached for usage in usages]
        known = math.fsum(price for price in prices if price is not None)
        unpriced = sum(any(usage.dollars is None for usage in usages) for usages in reached)
        cases = len(reached)
        dollars = None if unpriced or not cases else known
        return {
            "per_question/calls": _mean(usage.calls for usage in totals),
            "per_question/prompt_tokens": _mean(usage.prompt_tokens for usage in totals),
            "per_question/completion_tokens": _mean(usage.completion_tokens for usage in totals),
            "per_question/seconds": _mean(usage.seconds for usage in totals),
            "per_question/frames": _mean(
                len(record.shown) for record in records if record.answer is not None
            ),
            "per_question/dollars": Estimate(
                None if dollars is None else dollars / cases, count=cases
            ),
            "total/dollars": Estimate(dollars, count=cases),
            "total/dollars_known": Estimate(known, count=cases),
            "total/unpriced": Estimate(float(unpriced), count=cases),
        }


def _parts(record: Record) -> list[Usage]:
    """What the answer and the judgement cost, as far as either was tried."""
    return [part.usage for part in (record.result, record.verdict) if part is not None]


def _mean(values: Iterable[float]) -> Estimate:
    found = list(values)
    if not found:
        return Estimate(None)
    return Estimate(math.fsum(found) / len(found), count=len(found))
