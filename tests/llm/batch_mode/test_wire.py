"""What a batch costs."""

from __future__ import annotations

from typing import Any

import pytest

from openeqa_lab.llm import client
from openeqa_lab.llm.batch_mode.wire import shares

LIST: dict[str, dict[str, Any]] = {
    "both": {"input_cost_per_token": 4.0, "input_cost_per_token_batches": 1.0,
             "output_cost_per_token": 10.0, "output_cost_per_token_batches": 7.0},
    "one": {"input_cost_per_token": 4.0, "output_cost_per_token": 10.0,
            "output_cost_per_token_batches": 2.0},
    "free": {"input_cost_per_token": 4.0, "input_cost_per_token_batches": 0.0,
             "output_cost_per_token": 0.0},
    "vendor/both": {"input_cost_per_token": 4.0, "input_cost_per_token_batches": 3.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("provider", "name", "expected"),
    [("x", "both", (0.25, 0.7)), ("x", "one", (0.5, 0.2)), ("x", "free", (0.0, 0.5)),
     ("vendor", "both", (0.75, 0.5)), ("x", "unknown", (0.5, 0.5))],
)  # fmt: skip
def test_a_batch_costs_what_the_list_says_and_else_half(
    provider: str, name: str, expected: tuple[float, float]
) -> None:
    assert shares(LIST, provider, name) == expected


def test_litellms_list_knows_no_batch_that_is_dearer_than_calls() -> None:
    listed = client.load().model_cost
    ours = ("openai", "anthropic")
    priced = [
        name
        for name, entry in listed.items()
        if entry.get("litellm_provider") in ours and entry.get("input_cost_per_token_batches")
    ]
    assert len(priced) > 20
    odd = {name for name in priced if not 0 < shares(listed, "", name)[0] < 1}
    assert odd <= {"gpt-3.5-turbo-1106"}  # whose call is listed at the price of its batch
