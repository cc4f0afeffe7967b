"""What is sent of the parameters asked for, at each vendor, and that a record says the rest."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.llm import client
from openeqa_lab.llm.api import ApiModel
from openeqa_lab.llm.parameters import effective
from openeqa_lab.llm.patience import Patience
from openeqa_lab.llm.prefixes import shared_part
from openeqa_lab.llm.replies import Prices, prices

ASKED = {"max_tokens": 128, "temperature": 0.2, "seed": 1234, "reasoning_effort": None}


@pytest.mark.parametrize(
    ("provider", "name", "values", "adjusted"),
    [
        ("openai", "gpt-4o", {"max_tokens": 128, "temperature": 0.2, "seed": 1234}, []),
        (
            "openai", "gpt-5", {"max_tokens": 4224, "seed": 1234},
            ["max_tokens=128 is raised to 4224 for hidden reasoning",
             "max_tokens is sent as max_completion_tokens",
             "temperature=0.2 is not sent: the model does not take it"],
        ),
        (
            "anthropic", "claude-3-opus-20240229", {"max_tokens": 128, "temperature": 0.2},
            ["seed=1234 is not sent: the model does not take it"],
        ),
        (
            "gemini", "gemini-2.5-flash", {"max_tokens": 4224, "temperature": 0.2, "seed": 1234},
            ["max_tokens=128 is raised to 4224 for hidden reasoning",
             "max_tokens is sent as max_output_tokens"],
        ),
        ("hosted_vllm", "my/own", {"max_tokens": 128, "temperature": 0.2, "seed": 1234}, []),
    ],
)  # fmt: skip
def test_a_model_is_sent_what_it_takes_and_the_rest_is_named(
    provider: str, name: str, values: dict[str, object], adjusted: list[str]
) -> None:
    sent = effective(client.load(), provider, name, ASKED, 4096)
    assert sent.values == values
    assert list(sent.adjusted) == adjusted


def test_without_a_floor_nothing_is_raised() -> None:
    sent = effective(client.load(), "openai", "gpt-5", ASKED, 0)
    assert sent.values["max_tokens"] == 128


def test_effort_is_sent_where_a_model_reasons_and_dropped_where_not() -> None:
    asked = {**ASKED, "reasoning_effort": "low"}
    assert effective(client.load(), "openai", "gpt-5", asked, 0).values["reasoning_effort"] == "low"
    other = effective(client.load(), "openai", "gpt-4o", asked, 0)
    assert "reasoning_effort" not in other.values
    assert "reasoning_effort=low is not sent: the model does not take it" in other.adjusted


async def test_each_reply_carries_what_was_sent_otherwise_and_it_is_said_once(
    wire: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.says({
        "id": "1", "object": "chat.completion", "created": 1, "model": "gpt-5",
        "choices": [{"index": 0, "finish_reason": "stop",
                     "message": {"role": "assistant", "content": "Red."}}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
    })  # fmt: skip
    model = ApiModel(
        "openai/gpt-5", api_base=wire.base("openai"), patience=Patience(attempts=1), timeout_s=20
    )
    with caplog.at_level(logging.WARNING):
        replies = [await model.complete(["Hello."]) for _ in range(2)]
    for reply in replies:
        assert "temperature=0.2 is not sent: the model does not take it" in reply.adjusted
    assert caplog.text.count("temperature=0.2 is not sent") == 1
    body = wire.requests[0]
    assert body["max_completion_tokens"] == 4224
    assert "temperature" not in body
    assert "max_tokens" not in body


def test_a_floor_below_zero_is_refused() -> None:
    with pytest.raises(OpenEQAError, match=r"llm\.reasoning_tokens is -1: expected 0 or more"):
        ApiModel("openai/gpt-5", reasoning_tokens=-1)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {},
        {"litellm_provider": "openai"},
        {"litellm_provider": "openai", "input_cost_per_token": 0.0},
        {"litellm_provider": "azure", "input_cost_per_token": 1.0},
    ],
)
def test_a_price_that_is_missing_zero_or_anothers_is_unknown(entry: dict[str, object]) -> None:
    assert prices({"m": entry}, "openai", "m") is None


def test_what_a_vendors_cache_saved_is_told_from_its_prices() -> None:
    listed = {
        "m": {
            "litellm_provider": "anthropic", "input_cost_per_token": 3.0,
            "output_cost_per_token": 15.0, "cache_read_input_token_cost": 0.3,
            "cache_creation_input_token_cost": 3.75,
        }
    }  # fmt: skip
    known = prices(listed, "anthropic", "m")
    assert known == Prices(3.0, 15.0, 0.3, 3.75)
    assert known.saved(100, 0) == pytest.approx(270.0)
    assert known.saved(0, 100) == pytest.approx(-75.0)


def test_prompts_without_pictures_share_nothing() -> None:
    assert shared_part(["Hello."], "Be brief.") is None
