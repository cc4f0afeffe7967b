"""What is tried again at each vendor, how long it waits, and what it cost; llmock is the judge."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Any

import pytest

from openeqa_lab.errors import CallError
from openeqa_lab.llm import client, limits, stopping
from openeqa_lab.llm.api import ApiModel
from openeqa_lab.llm.patience import Patience

MODELS = {
    "openai": "openai/gpt-4o",
    "anthropic": "anthropic/claude-sonnet-4-5",
    "gemini": "gemini/gemini-2.5-flash",
}
REPLIES: dict[str, dict[str, object]] = {
    "openai": {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-4o",
        "choices": [{"index": 0, "finish_reason": "stop",
                     "message": {"role": "assistant", "content": "A red one."}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    },
    "anthropic": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "A red one."}], "stop_reason": "end_turn",
        "stop_sequence": None, "usage": {"input_tokens": 100, "output_tokens": 10},
    },
    "gemini": {
        "candidates": [{"content": {"role": "model", "parts": [{"text": "A red one."}]},
                        "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 10,
                          "totalTokenCount": 110},
        "modelVersion": "gemini-2.5-flash",
    },
}  # fmt: skip
QUICK = {"first_wait_s": 0.1, "longest_wait_s": 5.0}
each_vendor = pytest.mark.parametrize("vendor", list(MODELS))


@pytest.fixture(autouse=True, scope="module")
def _imported() -> None:
    """Else the first test's clock counts litellm's import."""
    client.load()


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_API_KEY", "sk-test-0123456789abcdefgh")
    random.seed(4)  # llmock takes two waits that happen to shrink for no back-off


def model(server: Any, vendor: str, timeout_s: float = 20, **patience: Any) -> ApiModel:
    return ApiModel(
        MODELS[vendor],
        seed=None,
        api_base=server.base(vendor),
        api_key_env="TEST_API_KEY",
        timeout_s=timeout_s,
        patience=Patience(**{**QUICK, **patience}),
    )


def the_limiter() -> limits.Limiter:
    [shared] = limits._limiters.values()
    return shared


@each_vendor
async def test_a_429_is_tried_again_after_the_wait_it_asks_for(vendor: str, mock: Any) -> None:
    mock.queue(type="fail", status=429, retry_after=1)
    started = time.monotonic()
    reply = await model(mock, vendor).complete(["Hello."])
    assert 1.0 <= time.monotonic() - started < 5
    assert reply.usage.calls == len(mock.requests()) == 2
    assert reply.usage.dollars is not None
    assert reply.usage.seconds < 1
    assert mock.verdict()["findings"] == []


@each_vendor
async def test_a_500_is_tried_again_and_its_price_stays_unknown(vendor: str, mock: Any) -> None:
    mock.queue(type="fail", status=500)
    reply = await model(mock, vendor).complete(["Hello."])
    assert reply.text
    assert reply.usage.calls == len(mock.requests()) == 2
    assert reply.usage.dollars is None
    assert reply.usage.prompt_tokens > 0
    assert mock.verdict()["findings"] == []


@each_vendor
@pytest.mark.parametrize("status", [400, 401, 403, 404, 413])
async def test_what_would_fail_again_is_tried_once(vendor: str, status: int, mock: Any) -> None:
    mock.queue(type="fail", status=status, times=9, message="no")
    with pytest.raises(CallError, match=rf"HTTP {status}: no .*, tried once$") as caught:
        await model(mock, vendor).complete(["Hello."])
    assert caught.value.status == status
    assert len(mock.requests()) == 1
    assert mock.verdict()["findings"] == []


@each_vendor
async def test_a_timed_out_attempt_is_tried_again_with_its_whole_time(
    vendor: str, mock: Any
) -> None:
    mock.queue(type="delay", seconds=3)
    reply = await model(mock, vendor, timeout_s=1).complete(["Hello."])
    assert reply.text
    assert reply.usage.calls == 2
    assert reply.usage.seconds >= 1
    assert mock.verdict()["errors"] == 0


@each_vendor
async def test_it_gives_up_after_its_attempts_and_says_so(vendor: str, mock: Any) -> None:
    mock.queue(type="fail", status=500, times=9, message="on fire")
    with pytest.raises(CallError, match=r"HTTP 500: on fire .*, tried 3 times$") as caught:
        await model(mock, vendor, attempts=3).complete(["Hello."])
    assert caught.value.kind == "server"
    assert caught.value.usage is not None
    assert caught.value.usage.calls == len(mock.requests()) == 3
    assert caught.value.usage.dollars is None
    assert mock.verdict()["errors"] == 0


@each_vendor
@pytest.mark.parametrize("bad", [(200, '{"id": "chatcmpl'), (200, "[]"), (None, "")])
async def test_a_malformed_body_or_a_dropped_connection_is_tried_again(
    vendor: str, bad: tuple[int | None, str], wire: Any
) -> None:
    wire.first = [bad]
    wire.says(REPLIES[vendor])
    reply = await model(wire, vendor).complete(["Hello."])
    assert (reply.text, reply.usage.calls, len(wire.requests)) == ("A red one.", 2, 2)
    assert reply.usage.prompt_tokens == 100


async def test_a_reply_without_a_choice_is_tried_again_and_its_tokens_count(wire: Any) -> None:
    wire.first = [(200, json.dumps(REPLIES["openai"] | {"choices": []}))]
    wire.says(REPLIES["openai"])
    usage = (await model(wire, "openai").complete(["Hello."])).usage
    assert (usage.calls, usage.prompt_tokens, usage.completion_tokens) == (2, 200, 20)


@each_vendor
async def test_a_wait_that_is_too_long_fails_at_once_and_is_told(vendor: str, mock: Any) -> None:
    mock.queue(type="fail", status=429, retry_after=3600)
    started = time.monotonic()
    with pytest.raises(CallError, match=r"wait 3600 s, longer than .*longest_wait_s = 5") as caught:
        await model(mock, vendor).complete(["Hello."])
    assert caught.value.retry_after_s == 3600
    assert (caught.value.kind, len(mock.requests())) == ("rate_limit", 1)
    await model(mock, vendor).complete(["Another."])  # is not held back
    assert time.monotonic() - started < 5


@each_vendor
async def test_a_date_to_wait_for_is_understood(vendor: str, wire: Any) -> None:
    soon = datetime.now(timezone.utc) + timedelta(seconds=100)
    wire.says({"error": {"message": "no"}}, 429)
    wire.more_headers = {"Retry-After": format_datetime(soon, usegmt=True)}
    with pytest.raises(CallError) as caught:
        await model(wire, vendor).complete(["Hello."])
    assert caught.value.retry_after_s == pytest.approx(100, abs=5)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({}, None), ({"Retry-After": "soon"}, None), ({"Retry-After": "-3"}, 0.0),
     ({"Retry-After": "nan"}, None), ({"Retry-After": "inf"}, None), ({"Retry-After": ""}, None),
     ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0), ({"Retry-After": "1.5"}, 1.5),
     ({"Retry-After": "2", "retry-after-ms": "1250"}, 1.25),
     ({"Retry-After": "2", "retry-after-ms": "x"}, 2.0)],
)  # fmt: skip
@each_vendor
async def test_odd_waits_are_read_or_left(
    vendor: str, headers: dict[str, str], expected: float | None, wire: Any
) -> None:
    wire.says({"error": {"message": "no"}}, 429)
    wire.more_headers = headers
    with pytest.raises(CallError) as caught:
        await model(wire, vendor, attempts=1).complete(["Hello."])
    assert caught.value.retry_after_s == expected


async def test_googles_wait_in_the_body_is_read(wire: Any) -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"}
    error = {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "no", "details": [info]}
    wire.says({"error": error}, 429)
    with pytest.raises(CallError, match=r"asks to wait 34\.07 s") as caught:
        await model(wire, "gemini").complete(["Hello."])
    assert caught.value.retry_after_s == 34.07


@pytest.mark.parametrize(
    ("vendor", "status", "error"),
    [("openai", 429, {"message": "You exceeded your current quota", "type": "insufficient_quota",
                      "code": "insufficient_quota"}),
     ("anthropic", 400, {"message": "Your credit balance is too low to access the API",
                         "type": "invalid_request_error"})],
)  # fmt: skip
async def test_an_account_without_money_ends_the_run(
    vendor: str, status: int, error: dict[str, str], wire: Any
) -> None:
    wire.says({"type": "error", "error": error}, status)
    with pytest.raises(CallError, match=error["message"]) as caught:
        await model(wire, vendor).complete(["Hello."])
    assert caught.value.fatal
    assert len(wire.requests) == 1


async def test_two_clients_of_one_endpoint_and_key_share_its_slots(wire: Any) -> None:
    wire.says(REPLIES["openai"])
    wire.seconds = 0.05
    models = [model(wire, "openai", at_once=at_once) for at_once in (2, 8)]
    await asyncio.gather(*(models[n % 2].complete([f"Hello {n}."]) for n in range(10)))
    assert (len(wire.requests), wire.most) == (10, 2)


async def test_a_key_is_told_by_its_value_not_by_where_it_stands(
    wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.says(REPLIES["openai"])
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789abcdefgh")
    monkeypatch.setenv("OTHER_KEY", "sk-test-another-abcdefgh")
    monkeypatch.setenv("OPENAI_API_BASE", wire.base("openai"))
    named = {"api_base": wire.base("openai")}
    for knobs in ({}, {"api_key_env": "TEST_API_KEY"}, named | {"api_key_env": "OPENAI_API_KEY"}):
        await ApiModel("openai/gpt-4o", **knobs).complete(["Hello."])
    assert len(limits._limiters) == 1
    await ApiModel("openai/gpt-4o", api_key_env="OTHER_KEY", **named).complete(["Hello."])
    assert len(limits._limiters) == 2
    assert "sk-test" not in repr(limits._limiters)


async def test_an_overload_halves_the_slots_and_success_brings_them_back(wire: Any) -> None:
    overloaded = '{"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}'
    wire.first = [(529, overloaded)] * 8
    wire.says(REPLIES["anthropic"])
    wire.seconds = 0.05
    asked = model(wire, "anthropic", at_once=8)
    await asyncio.gather(*(asked.complete([f"Hello {n}."]) for n in range(8)))
    shared = the_limiter()
    assert 4 <= shared.slots < 8
    for n in range(30):
        await asked.complete([f"Again {n}."])
        if shared.slots == 8:
            break
    assert (shared.slots, shared.under_way) == (8, 0)


async def test_a_rate_limit_is_said_once_for_all(
    mock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    mock.queue(type="fail", status=429, retry_after=0.2, times=4)
    asked = model(mock, "openai")
    with caplog.at_level(logging.WARNING, "openeqa_lab"):
        await asyncio.gather(*(asked.complete([f"Hello {n}."]) for n in range(4)))
    [record] = [each for each in caplog.records if "rate limit, waiting" in each.getMessage()]
    assert mock.base("openai") in record.getMessage()
    assert "sk-test" not in caplog.text


async def test_a_fault_that_stays_is_said(wire: Any, caplog: pytest.LogCaptureFixture) -> None:
    wire.says("", None)
    with caplog.at_level(logging.WARNING, "openeqa_lab"), pytest.raises(CallError, match="4 times"):
        await model(wire, "openai", attempts=4).complete(["Hello."])
    [record] = [each for each in caplog.records if each.name.startswith("openeqa_lab")]
    assert ": no connection, waiting" in record.getMessage()


async def test_a_cancelled_call_leaves_no_slot_taken(wire: Any) -> None:
    wire.says(REPLIES["openai"])
    wire.seconds = 1.0
    asked = model(wire, "openai", at_once=1)
    calls = [asyncio.create_task(asked.complete([f"Hello {n}."])) for n in range(3)]
    while not wire.requests:
        await asyncio.sleep(0.02)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    assert the_limiter().under_way == 0
    wire.seconds = 0.0
    assert (await asked.complete(["Hello."])).text == "A red one."


def test_one_client_works_on_several_loops_in_turn(mock: Any) -> None:
    asked = model(mock, "openai", at_once=1)

    async def several() -> list[str]:
        replies = await asyncio.gather(*(asked.complete([f"Hello {n}."]) for n in range(3)))
        return [reply.text for reply in replies]

    for _ in range(3):
        mock.queue(type="fail", status=429, retry_after=0.1)
        assert all(asyncio.run(several()))
    assert mock.verdict()["errors"] == 0


async def test_a_burst_of_faults_of_every_kind_ends_with_all_answered(mock: Any) -> None:
    for status in (429, 500, 503, 529, 502):
        mock.queue(type="fail", status=status, retry_after=0.2, times=2)
    asked = model(mock, "openai", at_once=4)
    replies = await asyncio.gather(*(asked.complete([f"Hello {n}."]) for n in range(20)))
    assert all(reply.text for reply in replies)
    assert sum(reply.usage.calls for reply in replies) == len(mock.requests()) == 30
    assert mock.verdict()["errors"] == 0


async def test_patience_is_no_part_of_a_models_identity() -> None:
    names = [ApiModel("openai/x", patience=Patience(attempts=n)).identity for n in (1, 6)]
    assert names[0] == names[1]


@each_vendor
async def test_each_attempt_that_failed_is_told_with_the_reply(vendor: str, mock: Any) -> None:
    mock.queue(type="fail", status=429, retry_after=1, message="slow down")
    mock.queue(type="fail", status=500, message="on fire")
    reply = await model(mock, vendor).complete(["Hello."])
    assert [(each.kind, each.message) for each in reply.attempts] == [
        ("rate_limit", "HTTP 429: slow down"), ("server", "HTTP 500: on fire"),
    ]  # fmt: skip
    assert reply.attempts[0].waited_s >= 1
    assert all(each.seconds > 0 for each in reply.attempts)


async def test_a_call_that_failed_for_good_tells_what_came_before(mock: Any) -> None:
    mock.queue(type="fail", status=500, message="on fire")
    mock.queue(type="fail", status=401, message="who are you")
    with pytest.raises(CallError, match="HTTP 401: who are you") as caught:
        await model(mock, "openai").complete(["Hello."])
    assert [each.message for each in caught.value.attempts] == ["HTTP 500: on fire"]


async def test_once_a_run_is_being_stopped_no_further_attempt_is_made(mock: Any) -> None:
    mock.queue(type="fail", status=429, retry_after=4, times=9)
    stop = asyncio.Event()
    token = stopping.set(stop)
    try:
        call = asyncio.create_task(model(mock, "openai").complete(["Hello."]))
        while not mock.requests():
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
        begun = time.monotonic()
        stop.set()
        with pytest.raises(CallError, match=r"HTTP 429.*, tried once: the run is being stopped$"):
            await call
        assert time.monotonic() - begun < 2  # and not the 4 s that the server asks for
    finally:
        stopping.reset(token)
    assert len(mock.requests()) == 1
