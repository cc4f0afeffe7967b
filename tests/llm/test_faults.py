"""The fault table: what each vendor can do to a call with 50 pictures, and what becomes of it.

llmock tells errors, waits and finish reasons and judges our client; aimock spoils bodies and drops
connections; the bytes that neither can send are told by the server of these tests.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import io
import json
import random
import time
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Picture

from openeqa_lab.data.episode import Image
from openeqa_lab.errors import CallError, OpenEQAError
from openeqa_lab.llm.api import ApiModel
from openeqa_lab.llm.patience import Patience

MODELS = {
    "openai": "openai/gpt-4o",
    "anthropic": "anthropic/claude-sonnet-4-5",
    "gemini": "gemini/gemini-2.5-flash",
}
KEY = "sk-test-0123456789abcdefgh"
each_vendor = pytest.mark.parametrize("vendor", list(MODELS))


def picture(number: int) -> Image:
    """A real picture of one colour of its own, PNG and JPEG in turn."""
    form = "PNG" if number % 2 else "JPEG"
    buffer = io.BytesIO()
    Picture.new("RGB", (8, 6), (5 * number, 90, 200)).save(buffer, form)
    return Image(buffer.getvalue(), f"image/{form.lower()}", 8, 6)


PICTURES = [picture(number) for number in range(50)]
SENT = [(each.data, each.media_type) for each in PICTURES]


def prompt(words: str = "") -> list[str | Image]:
    return ["Look at these.", *PICTURES, f"What color is the sofa? {words}"]


@pytest.fixture(autouse=True, scope="module")
def _imported(_llmock_process: Any) -> None:
    """litellm imports parts of itself in a first call, which shall run into no time limit here."""
    for vendor, name in MODELS.items():
        warm = ApiModel(name, seed=None, api_base=_llmock_process.base(vendor))
        asyncio.run(warm.complete(["Hello."]))


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_API_KEY", KEY)
    random.seed(4)  # llmock takes two waits that happen to shrink for no back-off


def model(server: Any, vendor: str, timeout_s: float = 20, **patience: Any) -> ApiModel:
    return ApiModel(
        MODELS[vendor],
        seed=None,
        api_base=server.base(vendor),
        api_key_env="TEST_API_KEY",
        timeout_s=timeout_s,
        patience=Patience(**{"first_wait_s": 0.1, "longest_wait_s": 5.0, **patience}),
    )


def said(vendor: str, text: str | None, reason: str = "") -> dict[str, Any]:
    """A reply in the vendor's shape."""
    if vendor == "openai":
        message = {"role": "assistant", "content": text}
        return {
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-4o",
            "choices": [{"index": 0, "finish_reason": reason or "stop", "message": message}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        }  # fmt: skip
    if vendor == "anthropic":
        return {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
            "content": [] if text is None else [{"type": "text", "text": text}],
            "stop_reason": reason or "end_turn", "stop_sequence": None,
            "usage": {"input_tokens": 100, "output_tokens": 10},
        }  # fmt: skip
    parts = [] if text is None else [{"text": text}]
    return {
        "candidates": [{"content": {"role": "model", "parts": parts}, "index": 0,
                        "finishReason": reason or "STOP"}],
        "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 10,
                          "totalTokenCount": 110},
        "modelVersion": "gemini-2.5-flash",
    }  # fmt: skip


# What passes: told once, and then there is an answer.

PASSING: dict[str, tuple[dict[str, Any], str]] = {
    "429 with Retry-After": ({"type": "fail", "status": 429, "retry_after": 1}, "rate_limit"),
    "429": ({"type": "fail", "status": 429}, "rate_limit"),
    "500": ({"type": "fail", "status": 500}, "server"),
    "503": ({"type": "fail", "status": 503}, "server"),
    "529": ({"type": "fail", "status": 529}, "server"),
    "409": ({"type": "fail", "status": 409}, "server"),
    "time-out": ({"type": "delay", "seconds": 2.5}, "timeout"),
}


@each_vendor
@pytest.mark.parametrize("fault", [None, *PASSING])
async def test_what_passes_is_tried_again_and_50_pictures_arrive_each_time(
    vendor: str, fault: str | None, mock: Any
) -> None:
    behavior, kind = PASSING[fault] if fault else ({}, None)
    if behavior:
        mock.queue(**behavior)
    mock.queue(type="reply", text="A red one.", times=2)
    timeout_s = 1.0 if fault == "time-out" else 20
    reply = await model(mock, vendor, timeout_s).complete(prompt())
    calls = 2 if fault else 1
    assert (reply.text, reply.finish_reason, reply.usage.calls) == ("A red one.", "stop", calls)
    assert [attempt.kind for attempt in reply.attempts] == ([kind] if fault else [])
    while len(mock.requests()) < calls:  # llmock writes down a request that it held back at its end
        await asyncio.sleep(0.1)
    assert mock.pictures() == [SENT] * calls
    assert mock.verdict()["findings"] == []


SPOILT: dict[str, tuple[dict[str, Any], str]] = {
    "malformed JSON": ({"malformedRate": 1}, "server"),
    "dropped connection": ({"disconnectRate": 1}, "connection"),
    "429 with Retry-After": ({"rateLimitRate": 1}, "rate_limit"),
    "500": ({"dropRate": 1}, "server"),
    "latency over the limit": ({"latencyMs": 4000}, "timeout"),
}


@each_vendor
@pytest.mark.parametrize("fault", [None, *SPOILT])
async def test_what_aimock_spoils_is_tried_again(
    vendor: str, fault: str | None, aimock: Any
) -> None:
    chaos, kind = SPOILT[fault] if fault else ({}, None)
    words = aimock.script(*([{"chaos": chaos}] if fault else []))
    timeout_s = 1.5 if fault == "latency over the limit" else 20
    reply = await model(aimock, vendor, timeout_s).complete(prompt(words))
    assert (reply.text, reply.finish_reason) == ("A red one.", "stop")
    assert reply.usage.calls == (2 if fault else 1)
    assert [attempt.kind for attempt in reply.attempts] == ([kind] if fault else [])
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (100, 10)
    priced = fault in (None, "429 with Retry-After")
    assert (reply.usage.dollars is not None) == priced, "what may have been charged has no price"
    given_up = fault == "latency over the limit"  # aimock keeps no request that was given up
    assert len(aimock.requests(words)) == reply.usage.calls - given_up
    assert aimock.findings(words) == []


async def test_a_latency_within_the_limit_is_waited_for(aimock: Any) -> None:
    words = aimock.script({"chaos": {"latencyMs": 600}})
    reply = await model(aimock, "openai", 20).complete(prompt(words))
    assert (reply.usage.calls, len(aimock.requests(words))) == (1, 1)
    assert reply.usage.seconds >= 0.6


def cut(body: bytes) -> bytes:
    return body[: len(body) // 2]


def latin(body: bytes) -> bytes:
    return body.replace(b"red", "caf\xe9".encode("latin-1"))


@each_vendor
@pytest.mark.parametrize(
    ("first", "withheld"),
    [
        pytest.param((200, cut), 0, id="half a JSON"),
        pytest.param((200, lambda _: b""), 0, id="no body"),
        pytest.param((200, lambda _: b"<html>Sign in</html>"), 0, id="a page"),
        pytest.param((200, lambda _: bytes(500)), 0, id="zeros"),
        pytest.param((200, lambda _: b"[" * 100_000), 0, id="brackets without end"),
        pytest.param((200, lambda body: body), 60, id="cut in the body"),
        pytest.param((None, lambda body: body), 0, id="dropped before the reply"),
        pytest.param((200, latin), 0, id="not UTF-8"),
        pytest.param((200, lambda body: b"\x80\x81" + body), 0, id="not UTF-8 before it"),
        pytest.param((502, lambda _: b"\xff\xfe<\x00"), 0, id="a 502 that is not UTF-8"),
    ],
)
async def test_bytes_that_are_no_reply_are_tried_again(
    vendor: str, first: tuple[int | None, Any], withheld: int, wire: Any
) -> None:
    body = json.dumps(said(vendor, "A red one.")).encode()
    wire.first = [(first[0], first[1](body))]
    wire.withheld = [withheld]
    wire.says(body)
    reply = await model(wire, vendor).complete(prompt())
    assert (reply.text, reply.usage.calls, len(wire.requests)) == ("A red one.", 2, 2)
    assert reply.usage.dollars is None


def broken_off(text: str, reason: str, **more: object) -> dict[str, Any]:
    body = said("openai", text, reason)
    body["choices"][0].update(more)
    return body


PROVIDER_DOWN = {"code": 502, "message": "the provider\nwent away"}


@pytest.mark.parametrize(
    ("name", "wire_of", "body", "found"),
    [("openrouter/openai/gpt-4o", "openai", broken_off("", "error", error=PROVIDER_DOWN),
      "the provider went away"),
     ("openrouter/openai/gpt-4o", "openai", broken_off("A re", "error", error=PROVIDER_DOWN),
      "the provider went away"),
     ("openrouter/openai/gpt-4o", "openai", broken_off("A re", "stop", error="gone"), "gone"),
     ("hosted_vllm/x", "openai", broken_off("A re", "abort"), "abort"),
     ("gemini/gemini-2.5-flash", "gemini", said("gemini", None, "MALFORMED_RESPONSE"),
      "MALFORMED_RESPONSE")],
)  # fmt: skip
async def test_a_reply_that_the_server_broke_off_is_no_answer_and_is_tried_again(
    name: str, wire_of: str, body: object, found: str, wire: Any
) -> None:
    wire.first = [(200, json.dumps(body))]
    wire.says(said(wire_of, "A red one."))
    asked = ApiModel(
        name, seed=None, api_base=wire.base(wire_of), patience=Patience(first_wait_s=0.1)
    )
    reply = await asked.complete(prompt())
    assert (reply.text, reply.usage.calls) == ("A red one.", 2)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (200, 20)
    (attempt,) = reply.attempts
    assert attempt.kind == "server"
    assert f"the server broke the reply off ({found})" in attempt.message


def but(vendor: str, **changes: object) -> dict[str, Any]:
    return said(vendor, "A red one.") | changes


def message_but(**changes: object) -> dict[str, Any]:
    return but("openai", choices=[{"index": 0, "finish_reason": "stop", **changes}])


def parts_but(parts: object) -> dict[str, Any]:
    content = {"role": "model", "parts": parts}
    return but("gemini", candidates=[{"content": content, "finishReason": "STOP", "index": 0}])


NO_REPLIES: list[tuple[str, object]] = [
    ("openai", {"error": {"message": "the provider went away", "code": 502}}),
    ("openai", but("openai", choices=None)),
    ("openai", but("openai", choices="A red one.")),
    ("openai", but("openai", choices=[{}])),
    ("openai", message_but(message=None)),
    ("openai", message_but(message={"role": "assistant", "content": 7})),
    ("openai", message_but(message={"role": "assistant", "content": {"text": "A red one."}})),
    ("openai", 7),
    ("anthropic", {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}),
    ("anthropic", but("anthropic", content=None)),
    ("anthropic", but("anthropic", content="A red one.")),
    ("anthropic", but("anthropic", content=[{"type": "text"}])),
    ("anthropic", but("anthropic", usage=None)),
    ("anthropic", 7),
    ("gemini", {"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}),
    ("gemini", [said("gemini", "A red one.")]),
    ("gemini", but("gemini", candidates=None)),
    ("gemini", but("gemini", usageMetadata=None)),
    ("gemini", parts_but(None)),
    ("gemini", parts_but([{"text": None}])),
    ("gemini", 7),
]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
@pytest.mark.parametrize(("vendor", "body"), NO_REPLIES)
async def test_json_that_is_no_reply_is_tried_again(vendor: str, body: object, wire: Any) -> None:
    wire.first = [(200, json.dumps(body))]
    wire.says(said(vendor, "A red one."))
    reply = await model(wire, vendor).complete(prompt())
    assert (reply.text, reply.usage.calls, len(wire.requests)) == ("A red one.", 2, 2)
    assert [attempt.kind for attempt in reply.attempts] == ["server"]


@each_vendor
async def test_a_connection_dropped_before_the_request_was_read_is_tried_again(
    vendor: str, wire: Any
) -> None:
    big = [Image(random.randbytes(40_000), "image/jpeg", 512, 382) for _ in range(50)]
    wire.unread = 1
    wire.says(said(vendor, "A red one."))
    reply = await model(wire, vendor).complete(["Look.", *big, "What color is the sofa?"])
    assert (reply.text, reply.usage.calls, len(wire.requests)) == ("A red one.", 2, 1)


@each_vendor
async def test_a_fault_that_stays_is_named_with_what_to_do(vendor: str, wire: Any) -> None:
    wire.says(b"\xff\xfe", 200)
    message = rf"^{MODELS[vendor]}: .*\(the fault is at the other end: .*\), tried 3 times$"
    with pytest.raises(CallError, match=message) as caught:
        await model(wire, vendor, attempts=3).complete(prompt())
    assert (caught.value.kind, caught.value.fatal) == ("server", False)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


# What stays: asked once, and named with what to do.


@each_vendor
@pytest.mark.parametrize(
    ("status", "kind", "remedy"),
    [(400, "bad_request", "change it, or the model"), (401, "auth", "check the key"),
     (403, "auth", "check the key"), (404, "not_found", "check model and api_base"),
     (413, "bad_request", "change it, or the model"),
     (422, "bad_request", "change it, or the model")],
)  # fmt: skip
async def test_what_stays_is_asked_once_with_50_pictures_and_named(
    vendor: str, status: int, kind: str, remedy: str, mock: Any
) -> None:
    mock.queue(type="fail", status=status, times=9, message="it is not to be")
    message = rf"^{MODELS[vendor]}: HTTP {status}: it is not to be \(.*{remedy}.*\), tried once$"
    with pytest.raises(CallError, match=message) as caught:
        await model(mock, vendor).complete(prompt())
    assert (caught.value.kind, caught.value.status) == (kind, status)
    assert mock.pictures() == [SENT]
    assert mock.verdict()["findings"] == []


@each_vendor
async def test_a_limit_spent_before_any_text_is_asked_once_and_says_what_to_raise(
    vendor: str, mock: Any
) -> None:
    mock.queue(type="reply", text="", finish_reason="length", times=9)
    with pytest.raises(
        CallError, match=r"token limit \(max_tokens=\d+\).*raise max_tokens"
    ) as caught:
        await model(mock, vendor).complete(prompt())
    assert caught.value.kind == "truncated"
    assert caught.value.usage is not None
    assert caught.value.usage.prompt_tokens > 0
    assert len(mock.requests()) == 1
    assert mock.verdict()["findings"] == []


@each_vendor
async def test_aimocks_limit_without_text_is_a_failure_that_was_paid(
    vendor: str, aimock: Any
) -> None:
    before = len(aimock.requests("[spends its limit]"))
    with pytest.raises(CallError, match="raise max_tokens") as caught:
        await model(aimock, vendor).complete(prompt("[spends its limit]"))
    assert caught.value.kind == "truncated"
    assert caught.value.usage is not None
    assert (caught.value.usage.calls, caught.value.usage.prompt_tokens) == (1, 100)
    assert caught.value.usage.dollars is not None
    assert len(aimock.requests("[spends its limit]")) == before + 1


# What is an answer, though a bad one: asked once, and not an error.


@each_vendor
@pytest.mark.parametrize(
    ("behavior", "expected"),
    [({"type": "reply", "text": ""}, "stop"),
     ({"type": "reply", "text": "", "finish_reason": "content_filter"}, "content_filter"),
     ({"type": "fail", "status": 400, "code": "content_filter", "times": 9,
       "message": "stopped by the content filter"}, "content_filter")],
    ids=["empty text", "filter as finish reason", "filter as HTTP 400"],
)  # fmt: skip
async def test_silence_and_blocks_are_replies_and_asked_once(
    vendor: str, behavior: dict[str, Any], expected: str, mock: Any
) -> None:
    if vendor == "anthropic" and behavior.get("finish_reason"):
        expected = "refusal"  # Anthropic's word for what its filter stops
    mock.queue(**behavior)
    reply = await model(mock, vendor).complete(prompt())
    assert (reply.text, reply.finish_reason) == ("", expected)
    assert mock.pictures() == [SENT]
    assert mock.verdict()["findings"] == []


@pytest.mark.parametrize(
    ("vendor", "words", "expected"),
    [("openai", "says nothing", "stop"), ("openai", "is filtered", "content_filter"),
     ("anthropic", "says nothing", "stop"), ("anthropic", "declines", "refusal"),
     ("gemini", "says nothing", "stop"), ("gemini", "is filtered", "content_filter")],
)  # fmt: skip
async def test_aimocks_silence_and_blocks_are_replies(
    vendor: str, words: str, expected: str, aimock: Any
) -> None:
    before = len(aimock.requests(f"[{words}]"))
    reply = await model(aimock, vendor).complete(prompt(f"[{words}]"))
    assert (reply.text, reply.finish_reason) == ("", expected)
    assert len(aimock.requests(f"[{words}]")) == before + 1


def openai_400(code: str | None, message: str, **more: object) -> dict[str, object]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": code, **more}}


# Bodies of blocks as the vendors document them, in our own words.
BLOCKS = [
    ("openai", 400, openai_400("content_policy_violation", "Rejected by our safety system.")),
    ("openai", 400, openai_400(
        "content_filter", "The prompt triggered the content management policy.",
        innererror={"code": "ResponsibleAIPolicyViolation"})),
    ("openai", 400, openai_400(
        "invalid_prompt", "Invalid prompt: it was flagged as potentially violating our policy.")),
    ("openai", 200, said("openai", None, "content_filter")),
    ("openai", 200, said("openai", "", "content_filter")),
    ("anthropic", 400, {"type": "error", "error": {
        "type": "invalid_request_error", "message": "Output blocked by content filtering policy"}}),
    *(("gemini", 200, said("gemini", None, reason)) for reason in
      ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY")),
    *(("gemini", 200, {
        "promptFeedback": {"blockReason": reason},
        "usageMetadata": {"promptTokenCount": 100, "totalTokenCount": 100},
    }) for reason in ("SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "IMAGE_SAFETY")),
]  # fmt: skip


@pytest.mark.parametrize(("vendor", "status", "body"), BLOCKS)
async def test_every_block_that_a_vendor_documents_is_a_reply_and_asked_once(
    vendor: str, status: int, body: object, wire: Any
) -> None:
    wire.says(body, status)
    reply = await model(wire, vendor).complete(prompt())
    assert (reply.text, reply.finish_reason) == ("", "content_filter")
    assert [len(pictures) for pictures in wire.pictures()] == [50]


REFUSAL = said("openai", None)
REFUSAL["choices"][0]["message"]["refusal"] = "I will not."


@pytest.mark.parametrize(
    ("vendor", "body", "text"),
    [("openai", REFUSAL, "I will not."), ("anthropic", said("anthropic", None, "refusal"), ""),
     ("anthropic", said("anthropic", "I will not.", "refusal"), "I will not.")],
)  # fmt: skip
async def test_a_refusal_is_a_reply_and_asked_once(
    vendor: str, body: object, text: str, wire: Any
) -> None:
    wire.says(body)
    reply = await model(wire, vendor).complete(prompt())
    assert (reply.text, reply.finish_reason) == (text, "refusal")
    assert len(wire.requests) == 1


# Replies that are odd, and good.


@each_vendor
async def test_a_reply_of_a_megabyte_is_taken_letter_for_letter(vendor: str, wire: Any) -> None:
    text = "".join(random.choices('red \u00e9\u4e2d\U0001f6cb\n"\\', k=700_000))
    assert len(text.encode()) > 2**20
    wire.says(json.dumps(said(vendor, text), ensure_ascii=False).encode())
    reply = await model(wire, vendor).complete(prompt())
    assert (reply.text, reply.usage.calls) == (text, 1)


@each_vendor
async def test_a_long_error_is_one_short_line(vendor: str, wire: Any) -> None:
    # litellm looks for secrets in it, ten seconds a megabyte
    wire.says({"error": {"message": "no\n" * 20_000, "type": "x"}}, 400)
    with pytest.raises(CallError, match="HTTP 400: no no ") as caught:
        await model(wire, vendor).complete(prompt())
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


@each_vendor
async def test_a_late_reply_is_not_taken_for_the_answer_to_another_question(
    vendor: str, wire: Any
) -> None:
    wire.says(said(vendor, "to the first"))
    asked = model(wire, vendor, timeout_s=1.5)
    await asked.complete(prompt())  # from here on there is a connection to use again
    wire.late = [3.0]
    wire.first = [(200, json.dumps(said(vendor, "too late")))]
    wire.says(said(vendor, "in time"))
    for number in range(3):
        reply = await asked.complete(prompt(f"Question {number}."))
        assert (reply.text, reply.usage.calls) == ("in time", 2 if number == 0 else 1)
    while wire.replied < 5:
        await asyncio.sleep(0.05)
    assert (await asked.complete(prompt("One more."))).text == "in time"
    given_up = wire.connections[1]
    assert given_up not in wire.connections[2:], "a connection that owes a reply was used again"
    assert len(wire.requests) == 6


@each_vendor
async def test_late_replies_to_some_of_many_leave_the_others_alone(vendor: str, wire: Any) -> None:
    wire.late = [3.0, 0.0] * 4
    wire.first = [(200, json.dumps(said(vendor, f"{n}"))) for n in range(8)]
    wire.says(said(vendor, "again"))
    asked = model(wire, vendor, timeout_s=1.5)
    replies = await asyncio.gather(*(asked.complete([f"Question {n}."]) for n in range(8)))
    assert sorted(reply.text for reply in replies) == ["1", "3", "5", "7", *["again"] * 4]
    assert sum(reply.usage.calls for reply in replies) == len(wire.requests) == 12


# Clocks that somebody sets.


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # litellm ages its clients by it
@each_vendor
@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0, 3.2e9])
async def test_a_clock_that_jumps_changes_no_wait(
    vendor: str, jump_s: float, mock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, looks = time.time, []

    def jumping() -> float:
        looks.append(1)
        return real() + jump_s * (len(looks) % 2)

    mock.queue(type="fail", status=429, retry_after=1)
    asked = model(mock, vendor)
    monkeypatch.setattr(time, "time", jumping)
    reply = await asked.complete(prompt())
    monkeypatch.undo()
    gc.collect()
    assert reply.usage.calls == len(mock.requests()) == 2
    assert 0 <= reply.usage.seconds < 20
    assert mock.verdict()["findings"] == []


@each_vendor
@pytest.mark.parametrize(
    ("days", "calls"), [(-36500, 2), (-1, 2), (0, 2), (1, 1), (36500, 1)],
)  # fmt: skip
async def test_a_date_to_wait_for_that_a_clock_has_moved_away_is_never_waited_for(
    vendor: str, days: int, calls: int, wire: Any
) -> None:
    moment = datetime.now(timezone.utc) + timedelta(days=days)
    wire.more_headers = {"Retry-After": format_datetime(moment, usegmt=True)}
    wire.first = [(429, '{"error": {"message": "slow down"}}')]
    wire.says(said(vendor, "A red one."))
    asked = asyncio.wait_for(model(wire, vendor).complete(prompt()), 15)
    if calls == 2:
        assert (await asked).usage.calls == 2
    else:
        with pytest.raises(CallError, match=r"longer than patience.longest_wait_s = 5") as caught:
            await asked
        assert caught.value.kind == "rate_limit"
    assert len(wire.requests) == calls


CLOCKS = {"time.time", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
READ_FOR_A_DATE = {"llm/failures.py"}  # a date to wait until


def test_no_wait_is_reckoned_by_a_clock_that_somebody_sets(repository: Path) -> None:
    package = repository / "src" / "openeqa_lab"
    found = set()
    for path in [*package.glob("llm/*.py"), package / "concurrency.py", package / "journal.py",
                 package / "runner.py", package / "progress.py"]:  # fmt: skip
        for node in ast.walk(ast.parse(path.read_text())):
            imported = isinstance(node, ast.ImportFrom) and node.module == "time"
            read = isinstance(node, ast.Attribute) and ast.unparse(node) in CLOCKS
            if imported or read:
                found.add(path.relative_to(package).as_posix())
    assert found == READ_FOR_A_DATE


# No network.


@each_vendor
@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://no-such-host.invalid"])
async def test_no_way_to_the_server_is_a_connection_fault_that_is_tried_again(
    vendor: str, address: str
) -> None:
    asked = ApiModel(
        MODELS[vendor], seed=None, api_base=address, timeout_s=20,
        patience=Patience(attempts=3, first_wait_s=0.05),
    )  # fmt: skip
    message = r"check the network and api_base, then start the same command again\), tried 3 times$"
    with pytest.raises(CallError, match=message) as caught:
        await asked.complete(prompt())
    assert (caught.value.kind, caught.value.fatal) == ("connection", False)
    assert [attempt.kind for attempt in caught.value.attempts] == ["connection"] * 2
    assert caught.value.usage is not None
    assert caught.value.usage.calls == 3


@pytest.mark.parametrize("address", [f"http://{'a' * 64}.invalid/v1", "http://a..b.invalid/v1"])
def test_a_host_that_there_cannot_be_is_refused_at_once(address: str) -> None:
    with pytest.raises(OpenEQAError, match=r"llm.api_base is no address \(.*expected an address"):
        ApiModel("openai/gpt-4o", api_base=address)


@each_vendor
async def test_an_unknown_price_is_said_to_be_unknown_and_never_0(vendor: str, wire: Any) -> None:
    wire.says(said(vendor, "A red one."))
    asked = ApiModel(f"{vendor}/my-own-vlm", seed=None, api_base=wire.base(vendor))
    usage = (await asked.complete(prompt())).usage
    assert (usage.calls, usage.prompt_tokens, usage.dollars) == (1, 100, None)
