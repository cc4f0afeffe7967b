"""Ends a run between two questions before it costs more than its budget."""

from __future__ import annotations

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.records import Usage

_ROUNDING = 1e-9  # dollars; sums of many prices are a little off


class Budget:
    """Dollars that a run folder may cost in all, earlier starts included.

    What is under way is reckoned at this start's mean price of a question, and at an estimate
    until one has ended. Once no further question may begin, none does. Calls of unknown price
    count as nothing.

    Args:
        dollars: None is no limit.
        spent: By earlier starts.
        estimate: Dollars that a question is taken to cost until one has ended.
    """

    def __init__(self, dollars: float | None, spent: float, estimate: float = 0.0) -> None:
        if dollars is not None and not dollars > 0:
            raise OpenEQAError(
                f"run.budget_usd is {dollars}: expected more than 0 dollars, or null"
            )
        self.dollars = dollars
        self.spent = spent
        self.reached = False
        self._before = spent
        self._estimate = estimate
        self._under_way = 0
        self._ended = 0

    def begin(self) -> bool:
        """Count one more question under way, or say that there is no money for it."""
        mean = (self.spent - self._before) / self._ended if self._ended else self._estimate
        after = self.spent + (self._under_way + 1) * mean
        if self.dollars is not None and (
            self.reached
            or self.spent >= self.dollars - _ROUNDING
            or after > self.dollars + _ROUNDING
        ):
            self.reached = True
            return False
        self._under_way += 1
        return True

    def end(self, paid: Usage) -> None:
        """Count what a question that was under way cost."""
        self._under_way -= 1
        self._ended += 1
        self.spent += paid.known_dollars
