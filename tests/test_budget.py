"""A run ends between two questions before it costs more than it may."""

from __future__ import annotations

import pytest

from openeqa_lab.budget import Budget
from openeqa_lab.errors import OpenEQAError
from openeqa_lab.records import Usage

CENT = Usage(1, dollars=0.01)


def test_no_budget_never_ends() -> None:
    budget = Budget(None, 1000.0)
    assert all(budget.begin() for _ in range(100))
    assert not budget.reached


def test_one_at_a_time_ends_at_the_budget() -> None:
    budget, begun = Budget(0.10, 0.0), 0
    while budget.begin():
        budget.end(CENT)
        begun += 1
    assert begun == 10
    assert budget.reached
    assert budget.spent == pytest.approx(0.10)


def test_what_is_under_way_is_reckoned_with() -> None:
    budget = Budget(0.10, 0.0)
    assert budget.begin()
    budget.end(CENT)
    begun = 1
    while budget.begin():
        begun += 1
    for _ in range(begun - 1):
        budget.end(CENT)
    assert budget.spent == pytest.approx(0.10)


def test_earlier_starts_count() -> None:
    assert not Budget(1.0, 1.0).begin()


def test_the_known_part_of_a_question_counts() -> None:
    budget = Budget(0.10, 0.0)
    assert budget.begin()
    budget.end(CENT + Usage(1, dollars=None))
    assert budget.spent == pytest.approx(0.01)


def test_calls_of_unknown_price_count_as_nothing() -> None:
    budget = Budget(0.10, 0.0)
    assert budget.begin()
    budget.end(Usage(1, dollars=None))
    assert budget.spent == 0.0


@pytest.mark.parametrize("dollars", [0.0, -1.0, float("nan")])
def test_a_budget_of_nothing_is_refused(dollars: float) -> None:
    with pytest.raises(OpenEQAError, match=r"run\.budget_usd is .*: expected more than 0"):
        Budget(dollars, 0.0)


def test_until_a_question_has_ended_an_estimate_stands_for_its_price() -> None:
    budget, begun = Budget(0.10, 0.0, estimate=0.04), 0
    while budget.begin():
        begun += 1
    assert begun == 2
    for _ in range(begun):
        budget.end(CENT)
    assert not budget.begin()  # once reached, no question is begun out of its turn
