"""What a question costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from openeqa_lab.metrics import Estimate
from openeqa_lab.records import Record, Usage


class UsagePerQuestion:
    """Means a question over the cases that were reached, answer and judgement together.

    A mean counts the attempts that stand; a total also those that a later one replaced.

    - ``per_question/calls``, ``/prompt_tokens``, ``/completion_tokens``, ``/seconds`` (waiting for
      replies).
    - ``per_question/frames``: shown, over the cases that were answered.
    - ``per_question/dollars``, ``total/dollars``: None when the price of any call is unknown.
    - ``total/dollars_known``: the part whose price is known; ``total/unpriced``: how many cases
      have a call whose price is not.
    """

    def compute(self, records: Sequence[Record], /) -> Mapping[str, Estimate]:
        """The figures; means over nothing have the value None."""
        reached = [record for record in records if _parts(record)]
        totals = [sum(_parts(record), Usage()) for record in reached]
        prices = [[part.dollars for part in (*_parts(each), each.earlier)] for each in reached]
        known = math.fsum(price for case in prices for price in case if price is not None)
        unpriced = sum(None in case for case in prices)
        cases = len(reached)
        return {
            "per_question/calls": _mean(usage.calls for usage in totals),
            "per_question/prompt_tokens": _mean(usage.prompt_tokens for usage in totals),
            "per_question/completion_tokens": _mean(usage.completion_tokens for usage in totals),
            "per_question/seconds": _mean(usage.seconds for usage in totals),
            "per_question/frames": _mean(
                len(record.shown) for record in records if record.answer is not None
            ),
            "per_question/dollars": _mean(usage.dollars for usage in totals),
            "total/dollars": Estimate(known if cases and not unpriced else None, count=cases),
            "total/dollars_known": Estimate(known, count=cases),
            "total/unpriced": Estimate(float(unpriced), count=cases),
        }


def _parts(record: Record) -> list[Usage]:
    """What the answer and the judgement cost, as far as either was tried."""
    return [part.usage for part in (record.result, record.verdict) if part is not None]


def _mean(values: Iterable[float | None]) -> Estimate:
    """None when one of the values is unknown, or there are none."""
    found = list(values)
    known = [value for value in found if value is not None]
    if not found or len(known) < len(found):
        return Estimate(None, count=len(found))
    return Estimate(math.fsum(known) / len(known), count=len(known))
