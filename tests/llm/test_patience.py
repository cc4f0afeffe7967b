"""Knobs and waits of trying again."""

from __future__ import annotations

from typing import Any

import pytest

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.llm.patience import Patience


@pytest.mark.parametrize(
    ("knobs", "message"),
    [({"attempts": 0}, r"llm.patience.attempts is 0: expected 1"),
     ({"at_once": 0}, "llm.patience.at_once is 0"),
     ({"requests_a_minute": 0}, "llm.patience.requests_a_minute is 0"),
     ({"tokens_a_minute": -1}, "llm.patience.tokens_a_minute is -1"),
     ({"first_wait_s": 0}, "llm.patience.first_wait_s is 0"),
     ({"first_wait_s": float("nan")}, "llm.patience.first_wait_s"),
     ({"first_wait_s": 2.0, "longest_wait_s": 1.0}, "at most longest_wait_s = 1.0")],
)  # fmt: skip
def test_a_knob_out_of_range_is_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(OpenEQAError, match=message):
        Patience(**knobs)


def test_the_back_off_is_drawn_from_0_to_a_doubled_limit() -> None:
    patience = Patience(first_wait_s=1.0, longest_wait_s=5.0)
    for attempt, limit in ((1, 1), (2, 2), (3, 4), (4, 5), (5000, 5)):
        drawn = [patience.wait_s(attempt, None) for _ in range(400)]
        assert 0 <= min(drawn) < 0.1 * limit
        assert 0.9 * limit < max(drawn) <= limit


def test_what_the_server_asks_for_is_waited_and_a_little_more() -> None:
    drawn = [Patience(first_wait_s=0.5).wait_s(1, 3.0) for _ in range(100)]
    assert 3.0 <= min(drawn) < max(drawn) <= 3.5
