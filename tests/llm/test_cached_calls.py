"""An API model with the completion cache: what is bought once is not bought again, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openeqa_lab.data.episode import Image
from openeqa_lab.errors import CallError
from openeqa_lab.llm import rehearsing, repeat
from openeqa_lab.llm.api import ApiModel
from openeqa_lab.llm.cache import CompletionCache
from openeqa_lab.llm.patience import Patience

PICTURES = [Image(f"picture {n}".encode(), "image/jpeg", 8, 6) for n in range(2)]
PROMPT = ["Look.", *PICTURES, "What color is the sofa?"]


def model(wire: Any, path: Path, mode: Any = "write", **knobs: Any) -> ApiModel:
    wire.says({
        "id": "1", "object": "chat.completion", "created": 1, "model": "gpt-4o-2024-08-06",
        "choices": [{"index": 0, "finish_reason": "stop",
                     "message": {"role": "assistant", "content": "Red."}}],
        "usage": {"prompt_tokens": 90, "completion_tokens": 4, "total_tokens": 94},
    })  # fmt: skip
    settings = {"model": "openai/gpt-4o", "patience": Patience(attempts=1), **knobs}
    return ApiModel(
        **settings,
        api_base=wire.base("openai"),
        timeout_s=20,
        cache=CompletionCache(mode, path / "completions.sqlite"),
    )


async def test_the_same_call_of_another_run_costs_nothing(wire: Any, tmp_path: Path) -> None:
    bought = await model(wire, tmp_path).complete(PROMPT, "Be brief.")
    assert (bought.usage.calls, bought.usage.cache_misses) == (1, 1)
    taken = await model(wire, tmp_path, "read").complete(PROMPT, "Be brief.")
    assert (taken.text, taken.model) == (bought.text, bought.model)
    assert (taken.usage.calls, taken.usage.dollars, taken.usage.cache_hits) == (0, 0.0, 1)
    assert len(wire.requests) == 1


@pytest.mark.parametrize(
    ("knobs", "prompt", "system"),
    [
        ({"temperature": 0.0}, PROMPT, ""),
        ({"max_tokens": 7}, PROMPT, ""),
        ({"seed": None}, PROMPT, ""),
        ({"model": "openai/gpt-4o-mini"}, PROMPT, ""),
        ({}, ["Look.", *PICTURES[::-1], "What color is the sofa?"], ""),
        ({}, ["Look.", *PICTURES, "What color is the bed?"], ""),
        ({}, PROMPT, "Be brief."),
    ],
)
async def test_what_differs_in_one_thing_is_bought(
    knobs: dict[str, Any], prompt: list[str | Image], system: str, wire: Any, tmp_path: Path
) -> None:
    await model(wire, tmp_path).complete(PROMPT)
    other = await model(wire, tmp_path, **knobs).complete(prompt, system)
    assert other.usage.cache_hits == 0
    assert len(wire.requests) == 2


async def test_another_server_and_a_seed_that_is_not_sent_are_not_the_same_call(
    wire: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await model(wire, tmp_path).complete(PROMPT)
    monkeypatch.setattr(wire, "base", lambda _: f"{wire.url}/v1/")
    assert (await model(wire, tmp_path).complete(PROMPT)).usage.cache_hits == 0
    known = (await model(wire, tmp_path, model="openai/o3", seed=1).complete(PROMPT)).usage
    other = (await model(wire, tmp_path, model="openai/o3", seed=2).complete(PROMPT)).usage
    assert (known.cache_hits, other.cache_hits) == (0, 0)


async def test_a_repeat_is_no_copy_and_a_rehearsal_is_a_real_call(
    wire: Any, tmp_path: Path
) -> None:
    asked = model(wire, tmp_path)
    for _ in range(2):
        for index in range(3):
            token = repeat.set(index)
            await asked.complete(PROMPT)
            repeat.reset(token)
    assert len(wire.requests) == 3
    token_of_rehearsal = rehearsing.set(True)
    reply = await asked.complete(PROMPT)
    rehearsing.reset(token_of_rehearsal)
    assert reply.usage.calls == 1
    assert len(wire.requests) == 4


async def test_a_failed_call_is_not_kept(wire: Any, tmp_path: Path) -> None:
    asked = model(wire, tmp_path)
    wire.first = [(500, "{}")]
    with pytest.raises(CallError):
        await asked.complete(PROMPT)
    assert (await asked.complete(PROMPT)).usage.calls == 1
