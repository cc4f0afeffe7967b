"""The vendor's prompt cache: marks where they are wanted, one first reader, and what it saved."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from openeqa_lab.data.episode import Image
from openeqa_lab.errors import CallError
from openeqa_lab.llm import prefixes
from openeqa_lab.llm.api import ApiModel
from openeqa_lab.llm.patience import Patience
from openeqa_lab.llm.prefixes import Prefixes, shared_part

WALK = [Image(f"frame {n}".encode(), "image/jpeg", 512, 384) for n in range(6)]
OTHER = [Image(f"other {n}".encode(), "image/jpeg", 512, 384) for n in range(6)]
MODELS = {
    "openai": "openai/gpt-4o",
    "anthropic": "anthropic/claude-sonnet-4-5",
    "gemini": "gemini/gemini-2.5-flash",
}


def prompt(walk: list[Image], question: str) -> list[str | Image]:
    return ["These are frames.", *walk, question]


def model(server: Any, vendor: str, **knobs: Any) -> ApiModel:
    settings = {"patience": Patience(attempts=1), "timeout_s": 20, "prompt_cache": True, **knobs}
    return ApiModel(MODELS[vendor], api_base=server.base(vendor), **settings)


def marks(body: object) -> int:
    return json.dumps(body).count('"cache_control"')


@pytest.mark.parametrize(("vendor", "expected"), [("openai", 0), ("anthropic", 1), ("gemini", 0)])
async def test_only_a_vendor_that_wants_marks_gets_one_at_the_last_picture(
    vendor: str, expected: int, mock: Any
) -> None:
    await model(mock, vendor).complete(prompt(WALK, "What color is the sofa?"))
    [request] = mock.requests()
    assert marks(request["body"]) == expected
    if expected:
        parts = request["body"]["messages"][0]["content"]
        assert [part["type"] for part in parts if "cache_control" in part] == ["image"]
        assert "cache_control" in parts[-2]
    mock.reset()
    await model(mock, vendor, prompt_cache=False).complete(prompt(WALK, "What?"))
    assert marks(mock.requests()[0]["body"]) == 0


async def test_a_prompt_too_short_for_any_cache_is_not_marked(mock: Any) -> None:
    small = [Image(b"a small one", "image/jpeg", 64, 48)]
    await model(mock, "anthropic", reasoning_tokens=0).complete(prompt(small, "What?"))
    assert marks(mock.requests()[0]["body"]) == 0


async def test_the_first_prompt_of_a_walk_goes_alone_and_others_do_not_wait_for_it(
    wire: Any,
) -> None:
    wire.says({
        "id": "1", "object": "chat.completion", "created": 1, "model": "gpt-4o",
        "choices": [{"index": 0, "finish_reason": "stop",
                     "message": {"role": "assistant", "content": "Red."}}],
        "usage": {"prompt_tokens": 2000, "completion_tokens": 2, "total_tokens": 2002,
                  "prompt_tokens_details": {"cached_tokens": 1536}},
    })  # fmt: skip
    wire.seconds = 0.3
    asked = model(wire, "openai")
    questions = [asked.complete(prompt(WALK, f"Question {n}?")) for n in range(4)]
    questions += [asked.complete(prompt(OTHER, "Another walk?"))]
    replies = await asyncio.gather(*questions)
    first = [json.dumps(body) for body in wire.requests[:2]]
    assert sum("Another walk?" in body for body in first) == 1
    assert wire.most == 3
    for reply in replies:
        assert reply.usage.cached_tokens == 1536
        assert reply.usage.saved_dollars == pytest.approx(1536 * 1.25e-6)


async def test_after_a_failed_first_reader_those_who_waited_go_and_the_next_goes_alone() -> None:
    gate, log = Prefixes(), []

    async def ask(number: int) -> None:
        async with gate.turn("walk"):
            log.append(("begun", number))
            await asyncio.sleep(0.01)
            if number == 0:
                raise CallError("no", kind="server")
            log.append(("ended", number))

    results = await asyncio.gather(*(ask(number) for number in range(4)), return_exceptions=True)
    assert [isinstance(result, CallError) for result in results] == [True, False, False, False]
    assert log[:4] == [("begun", number) for number in range(4)]
    log.clear()
    await asyncio.gather(ask(4), ask(5))
    assert log[:3] == [("begun", 4), ("ended", 4), ("begun", 5)]


async def test_a_cancelled_first_reader_holds_up_nobody() -> None:
    gate = Prefixes()

    async def ask(seconds: float) -> str:
        async with gate.turn("walk"):
            await asyncio.sleep(seconds)
            return "done"

    first = asyncio.create_task(ask(60))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(ask(0))
    await asyncio.sleep(0.01)
    first.cancel()
    assert await asyncio.wait_for(second, 5) == "done"


async def test_a_prefix_that_the_vendor_has_dropped_is_read_by_one_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, most, under_way = Prefixes(), 0, 0

    async def ask() -> None:
        nonlocal most, under_way
        async with gate.turn("walk"):
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.01)
            under_way -= 1

    await ask()
    await asyncio.gather(ask(), ask())
    assert most == 2
    monkeypatch.setattr(prefixes, "KEPT_S", 0.0)
    most = 0
    await asyncio.sleep(0.01)
    await asyncio.gather(ask(), ask())
    assert most == 1


def test_the_shared_part_is_what_stands_before_the_question() -> None:
    one = shared_part(prompt(WALK, "What?"), "")
    assert one == shared_part(prompt(WALK, "Where?"), "")
    for other in (prompt(WALK[::-1], "What?"), prompt(OTHER, "What?"), prompt(WALK[:-1], "What?")):
        assert shared_part(other, "") != one
    assert shared_part(prompt(WALK, "What?"), "Be brief.") != one
