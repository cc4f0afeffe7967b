"""The wire of three vendors, what comes back, and what can go wrong."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from openeqa_lab.data.episode import Image
from openeqa_lab.errors import CallError, OpenEQAError
from openeqa_lab.llm.api import ApiModel
from openeqa_lab.llm.patience import Patience
from openeqa_lab.testing import check_llm

MODELS = {
    "openai": "openai/gpt-4o",
    "anthropic": "anthropic/claude-sonnet-4-5",
    "gemini": "gemini/gemini-2.5-flash",
    "hosted_vllm": "hosted_vllm/my/own-vlm",
}
VENDORS = ("openai", "anthropic", "gemini")
ONCE = Patience(attempts=1)
KEY = "sk-test-0123456789abcdefgh"
PICTURES = [Image(f"picture {n}".encode(), "image/jpeg", 8, 6) for n in range(3)]
PROMPT = ["Look at these.", *PICTURES, "What color is the sofa?"]


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI", "ANTHROPIC", "GEMINI", "GOOGLE", "HOSTED_VLLM"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)
        monkeypatch.delenv(f"{name}_API_BASE", raising=False)
        monkeypatch.delenv(f"{name}_BASE_URL", raising=False)
    monkeypatch.setenv("TEST_API_KEY", KEY)


def model(server: Any, vendor: str, **knobs: Any) -> ApiModel:
    knobs = {"api_base": server.base(vendor), "api_key_env": "TEST_API_KEY", **knobs}
    return ApiModel(MODELS[vendor], **{"timeout_s": 20, "patience": ONCE, **knobs})


def chat(text: str | None = "A red one.", reason: str = "stop", **message: object) -> object:
    """A reply in OpenAI's shape."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o-2024-08-06",
        "choices": [
            {
                "index": 0,
                "finish_reason": reason,
                "message": {"role": "assistant", "content": text, **message},
            }
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }


def messages(text: str = "A red one.", reason: str = "end_turn") -> object:
    """A reply in Anthropic's shape."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5-20250929",
        "content": [{"type": "text", "text": text}] if text else [],
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 10},
    }


def candidates(text: str | None = "A red one.", reason: str = "STOP") -> object:
    """A reply in Gemini's shape."""
    parts = [] if text is None else [{"text": text}]
    return {
        "candidates": [
            {"content": {"role": "model", "parts": parts}, "finishReason": reason, "index": 0}
        ],
        "usageMetadata": {
            "promptTokenCount": 100,
            "candidatesTokenCount": 10,
            "totalTokenCount": 110,
        },
        "modelVersion": "gemini-2.5-flash-001",
    }


def parts_sent(vendor: str, body: dict[str, Any]) -> list[object]:
    """Texts, and pictures as bytes with their media type, in the order they went over the wire."""
    found: list[object] = []
    if vendor == "gemini":
        for part in body["contents"][0]["parts"]:
            data = part.get("inline_data") or part.get("inlineData")
            if data is None:
                found.append(part["text"])
            else:
                kind = data.get("mime_type") or data["mimeType"]
                found.append((base64.b64decode(data["data"]), kind))
        return found
    for part in next(m for m in body["messages"] if m["role"] == "user")["content"]:
        if part["type"] == "text":
            found.append(part["text"])
        elif part["type"] == "image":
            source = part["source"]
            found.append((base64.b64decode(source["data"]), source["media_type"]))
        else:
            head, _, data = part["image_url"]["url"].partition(";base64,")
            found.append((base64.b64decode(data), head.removeprefix("data:")))
    return found


def system_sent(vendor: str, body: dict[str, Any]) -> object:
    if vendor == "openai":
        return next(m for m in body["messages"] if m["role"] == "system")["content"]
    if vendor == "anthropic":
        system = body["system"]
        return system if isinstance(system, str) else system[0]["text"]
    return (body.get("system_instruction") or body["systemInstruction"])["parts"][0]["text"]


@pytest.mark.parametrize("vendor", VENDORS)
async def test_pictures_texts_and_system_arrive_in_order_at_each_vendor(
    vendor: str, mock: Any
) -> None:
    mock.queue(type="reply", text="A red one.")
    reply = await model(mock, vendor).complete(PROMPT, system="Be brief.")
    assert (reply.text, reply.finish_reason) == ("A red one.", "stop")
    assert reply.model.endswith(MODELS[vendor].partition("/")[2])
    assert reply.usage.calls == 1
    assert reply.usage.prompt_tokens > 0
    assert reply.usage.completion_tokens > 0
    assert reply.usage.dollars is not None
    assert 0 < reply.usage.dollars < 0.01
    assert reply.usage.seconds > 0
    [request] = mock.requests()
    expected = [p if isinstance(p, str) else (p.data, p.media_type) for p in PROMPT]
    assert parts_sent(vendor, request["body"]) == expected
    assert system_sent(vendor, request["body"]) == "Be brief."


@pytest.mark.parametrize("vendor", VENDORS)
async def test_the_demo_videos_questions_are_asked_with_its_real_frames(
    vendor: str, mock: Any, shared: Path
) -> None:
    from openeqa_lab.data.datasets import Dataset
    from openeqa_lab.data.recorded import Recorded
    from openeqa_lab.images.encoders import Encoder
    from openeqa_lab.reasoners.prompted import Prompted
    from openeqa_lab.sampling import Linspace

    folder = shared / "data/openeqa"
    dataset = Dataset(folder / "open-eqa-demo-data.json")
    episodes = Recorded(folder)
    encoder = Encoder()
    reasoner = Prompted(model(mock, vendor), encoder, "multi_frame")
    for case in dataset:
        episode = await episodes.episode(case)
        frames = Linspace(4).sample(episode.frames, case.question)
        mock.reset()
        answer = await reasoner.answer(case.question, frames)
        assert answer.status == "answered"
        [request] = mock.requests()
        first, *pictures, last = parts_sent(vendor, request["body"])
        expected = [(image.data, image.media_type) for image in await encoder.encode(frames)]
        assert pictures == expected
        assert len(set(expected)) == 4
        assert case.question.text in str(last)
        assert case.question.text not in str(first)


@pytest.mark.parametrize("vendor", VENDORS)
async def test_each_vendor_passes_the_kit(vendor: str, mock: Any) -> None:
    await check_llm(model(mock, vendor))


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "bad_request"), (401, "auth"), (403, "auth"), (404, "not_found"), (413, "bad_request"),
     (429, "rate_limit"), (500, "server"), (503, "server")],
)  # fmt: skip
async def test_an_error_status_is_one_call_and_its_kind(
    vendor: str, status: int, kind: str, mock: Any
) -> None:
    mock.queue(type="fail", status=status, message=f"no, not with {KEY}")
    with pytest.raises(CallError, match=rf"^{MODELS[vendor]}: HTTP {status}: no, not ") as caught:
        await model(mock, vendor).complete(PROMPT)
    assert caught.value.kind == kind
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(mock.requests()) == 1


@pytest.mark.parametrize("vendor", VENDORS)
async def test_the_time_limit_ends_a_call(vendor: str, mock: Any) -> None:
    mock.queue(type="delay", seconds=2)
    with pytest.raises(CallError, match=r"no reply within 0\.4 s .*timeout_s") as caught:
        await model(mock, vendor, timeout_s=0.4).complete(["Hello."])
    assert caught.value.kind == "timeout"
    assert not caught.value.fatal


async def test_one_that_runs_out_of_time_leaves_the_others_and_no_task(mock: Any) -> None:
    slow = {"model": "gpt-4o-mini"}
    mock.queue(type="delay", seconds=2, match=slow)
    models = [model(mock, "openai", timeout_s=1) for _ in range(2)]
    models.insert(
        1,
        ApiModel("openai/gpt-4o-mini", api_base=mock.base("openai"), timeout_s=0.5, patience=ONCE),
    )
    before = asyncio.all_tasks()
    replies = await asyncio.gather(*(m.complete(["Hi."]) for m in models), return_exceptions=True)
    assert [isinstance(reply, CallError) for reply in replies] == [False, True, False]
    ours = [
        task
        for task in asyncio.all_tasks() - before
        if "LoggingWorker" not in repr(task)  # litellm's own, ended with the loop
    ]
    assert ours == []


async def test_the_limit_counts_from_sending_not_from_queueing(mock: Any) -> None:
    mock.queue(type="delay", seconds=0.4, times=3)
    one_at_a_time = asyncio.Semaphore(1)
    asked = model(mock, "openai", timeout_s=0.9)

    async def ask() -> str:
        async with one_at_a_time:
            return (await asked.complete(["Hello."])).text

    assert all(await asyncio.gather(ask(), ask(), ask()))


@pytest.mark.parametrize("vendor", ["openai", "hosted_vllm"])
async def test_a_filter_that_answers_400_is_a_block_and_one_call(vendor: str, wire: Any) -> None:
    wire.says({"error": {"message": "stopped", "code": "content_filter", "type": "x"}}, 400)
    reply = await model(wire, vendor).complete(PROMPT)
    assert (reply.text, reply.finish_reason) == ("", "content_filter")
    assert reply.usage.calls == len(wire.requests) == 1
    assert reply.usage.dollars is None


async def test_a_filter_told_by_llmock_is_a_block_and_one_call(mock: Any) -> None:
    mock.queue(type="fail", status=400, code="content_filter", message="stopped: content filter")
    assert (await model(mock, "openai").complete(PROMPT)).finish_reason == "content_filter"
    assert len(mock.requests()) == 1


REPLIES: list[tuple[str, str, object, tuple[str, str]]] = [
    ("openai", "null and filter", chat(None, "content_filter"), ("", "content_filter")),
    ("openai", "refusal", chat(None, refusal="I will not."), ("I will not.", "refusal")),
    ("openai", "cut", chat("A red", "length"), ("A red", "length")),
    ("openai", "null", chat(None), ("", "stop")),
    ("openai", "tool", chat(None, "tool_calls"), ("", "other")),
    ("anthropic", "refusal", messages("No.", "refusal"), ("No.", "refusal")),
    ("anthropic", "bare refusal", messages("", "refusal"), ("", "refusal")),
    ("anthropic", "cut", messages("A red", "max_tokens"), ("A red", "length")),
    ("anthropic", "empty", messages(""), ("", "stop")),
    ("gemini", "safety", candidates(None, "SAFETY"), ("", "content_filter")),
    ("gemini", "cut", candidates("A red", "MAX_TOKENS"), ("A red", "length")),
    ("gemini", "prompt blocked", {"promptFeedback": {"blockReason": "SAFETY"},
     "usageMetadata": {"promptTokenCount": 100, "totalTokenCount": 100}}, ("", "content_filter")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("vendor", "body", "expected"),
    [(vendor, body, expected) for vendor, _, body, expected in REPLIES],
    ids=[f"{vendor}, {name}" for vendor, name, _, _ in REPLIES],
)
async def test_refused_blocked_cut_and_empty_are_replies(
    vendor: str, body: object, expected: tuple[str, str], wire: Any
) -> None:
    wire.says(body)
    reply = await model(wire, vendor).complete(["Hello."])
    assert (reply.text, reply.finish_reason) == expected
    assert len(wire.requests) == 1


@pytest.mark.parametrize(
    ("vendor", "body"),
    [("openai", chat("", "length")), ("openai", chat(" \n", "length")),
     ("openai", chat(None, "length", reasoning_content="hmm")), ("hosted_vllm", chat("", "length")),
     ("anthropic", messages("", "max_tokens")), ("gemini", candidates(None, "MAX_TOKENS"))],
)  # fmt: skip
async def test_a_limit_spent_before_any_text_is_a_failure_that_was_paid(
    vendor: str, body: object, wire: Any
) -> None:
    wire.says(body)
    with pytest.raises(CallError, match=r"\(max_tokens=7\).*raise max_tokens") as caught:
        await model(wire, vendor, max_tokens=7, reasoning_tokens=0).complete(["Hello."])
    assert caught.value.kind == "truncated"
    assert caught.value.usage is not None
    assert caught.value.usage.completion_tokens == 10


@pytest.mark.parametrize("vendor", [*VENDORS, "hosted_vllm"])
@pytest.mark.parametrize(
    ("body", "content_type"),
    [('{"id": "chatcmpl', "application/json"), ("<html>Sign in</html>", "text/html"),
     ("", "application/json"), ("[]", "application/json"), ("null", "application/json")],
)  # fmt: skip
async def test_a_body_that_is_no_reply_is_a_fault_of_the_server(
    vendor: str, body: str, content_type: str, wire: Any
) -> None:
    wire.says(body)
    wire.content_type = content_type
    with pytest.raises(CallError) as caught:
        await model(wire, vendor).complete(["Hello."])
    assert caught.value.kind == "server"
    assert "\n" not in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert len(wire.requests) == 1


@pytest.mark.parametrize(
    ("vendor", "body"),
    [("openai", {"id": "x", "object": "chat.completion", "model": "m", "choices": []}),
     ("hosted_vllm", {"id": "x", "object": "chat.completion", "model": "m", "choices": []}),
     ("gemini", {"usageMetadata": {"promptTokenCount": 100, "totalTokenCount": 100}})],
)  # fmt: skip
async def test_a_reply_without_a_choice_is_a_fault_of_the_server(
    vendor: str, body: object, wire: Any
) -> None:
    wire.says(body)
    with pytest.raises(CallError, match="the reply holds no choice") as caught:
        await model(wire, vendor).complete(["Hello."])
    assert caught.value.kind == "server"


@pytest.mark.parametrize("vendor", [*VENDORS, "hosted_vllm"])
async def test_a_dropped_connection_is_a_connection_fault(vendor: str, wire: Any) -> None:
    wire.says("", None)
    with pytest.raises(CallError, match="check the network and api_base") as caught:
        await model(wire, vendor).complete(["Hello."])
    assert caught.value.kind == "connection"
    assert len(wire.requests) == 1


@pytest.mark.parametrize("vendor", [*VENDORS, "hosted_vllm"])
async def test_nobody_at_the_address_is_a_connection_fault(vendor: str) -> None:
    asked = ApiModel(MODELS[vendor], api_base="http://127.0.0.1:9", timeout_s=20, patience=ONCE)
    with pytest.raises(CallError) as caught:
        await asked.complete(["Hello."])
    assert caught.value.kind == "connection"


@pytest.mark.parametrize(
    ("status", "kind"), [(302, "server"), (402, "auth"), (408, "timeout"), (422, "bad_request"),
                         (502, "server"), (529, "server")],
)  # fmt: skip
@pytest.mark.parametrize("vendor", ["openai", "hosted_vllm"])
async def test_rarer_statuses_have_their_kind(
    vendor: str, status: int, kind: str, wire: Any
) -> None:
    wire.says("<html>a proxy</html>", status)
    wire.content_type = "text/html"
    with pytest.raises(CallError, match=f"HTTP {status}") as caught:
        await model(wire, vendor).complete(["Hello."])
    assert caught.value.kind == kind
    assert len(wire.requests) == 1


async def test_geminis_400_for_a_bad_key_is_a_wrong_key(wire: Any) -> None:
    error = {"code": 400, "message": "API key not valid. Please pass a valid API key."}
    wire.says({"error": error | {"status": "INVALID_ARGUMENT"}}, 400)
    with pytest.raises(CallError, match=r"HTTP 400: API key not valid\.") as caught:
        await model(wire, "gemini").complete(["Hello."])
    assert caught.value.kind == "auth"
    assert caught.value.fatal


@pytest.mark.parametrize(
    ("vendor", "variable"),
    [("openai", "OPENAI_API_KEY"), ("anthropic", "ANTHROPIC_API_KEY"),
     ("gemini", "GOOGLE_API_KEY or GEMINI_API_KEY")],
)  # fmt: skip
async def test_a_missing_key_is_named_by_its_variable(vendor: str, variable: str) -> None:
    with pytest.raises(CallError, match=f"needs a key: set .*{variable}") as caught:
        await ApiModel(MODELS[vendor]).complete(["Hello."])
    assert caught.value.kind == "auth"


@pytest.mark.parametrize("value", [None, "", "  \n"])
async def test_a_key_variable_that_is_not_set_or_blank_is_named(
    value: str | None, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEST_API_KEY")
    if value is not None:
        monkeypatch.setenv("TEST_API_KEY", value)
    with pytest.raises(CallError, match="set the environment variable TEST_API_KEY"):
        await model(wire, "openai").complete(["Hello."])
    assert wire.requests == []


async def test_a_vendors_key_goes_to_another_server_only_when_it_is_named(
    wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    wire.says(chat())
    await model(wire, "openai", api_key_env=None).complete(["Hello."])
    await model(wire, "openai", api_key_env="OPENAI_API_KEY").complete(["Hello."])
    assert [headers["authorization"] for headers in wire.headers] == [
        "Bearer none",
        f"Bearer {KEY}",
    ]


async def test_a_key_with_white_space_around_it_is_sent_without(
    wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_API_KEY", f" {KEY}\n")
    wire.says(chat())
    await model(wire, "openai").complete(["Hello."])
    assert wire.headers[0]["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("name", ["gpt-9-does-not-exist-anywhere", "nonsense/foo", "nonsense"])
async def test_a_model_of_no_known_vendor_is_not_found(name: str) -> None:
    with pytest.raises(CallError, match=f"'{name}' names no vendor.*openai/gpt-4o") as caught:
        await ApiModel(name).complete(["Hello."])
    assert caught.value.kind == "not_found"


async def test_a_server_of_ones_own_without_address_is_not_asked_at_openai() -> None:
    with pytest.raises(CallError, match="has no server: set api_base") as caught:
        await ApiModel("hosted_vllm/llama").complete(["Hello."])
    assert caught.value.kind == "not_found"


SENT = {"temperature": 0.2, "max_tokens": 128, "seed": 1234}


def test_the_knobs_are_sent_and_a_lone_text_goes_as_text(wire: Any) -> None:
    wire.says(chat())
    asyncio.run(_ask(model(wire, "openai")))
    body = wire.requests[0]
    assert {name: body[name] for name in SENT} == SENT
    assert body["messages"] == [{"role": "user", "content": "Hello."}]
    assert set(body) == {"model", "messages", *SENT}


async def _ask(asked: ApiModel) -> str:
    return (await asked.complete(["Hello."])).text


@pytest.mark.parametrize("knob", list(SENT))
async def test_a_null_knob_is_not_sent(knob: str, wire: Any) -> None:
    wire.says(chat())
    await model(wire, "openai", **{knob: None}).complete(["Hello."])
    assert set(wire.requests[0]) == {"model", "messages", *SENT} - {knob}


async def test_what_a_model_does_not_take_is_said_once_and_not_sent(
    wire: Any, caplog: pytest.LogCaptureFixture
) -> None:
    wire.says(chat())
    asked = ApiModel("openai/gpt-5", api_base=wire.base("openai"))
    with caplog.at_level(logging.WARNING, "openeqa_lab"):
        await asyncio.gather(*(asked.complete(["Hello."]) for _ in range(3)))
    assert [record.getMessage() for record in caplog.records] == [
        "openai/gpt-5: max_tokens=128 is raised to 4224 for hidden reasoning",
        "openai/gpt-5: max_tokens is sent as max_completion_tokens",
        "openai/gpt-5: temperature=0.2 is not sent: the model does not take it",
    ]
    assert all("temperature" not in body for body in wire.requests)
    assert wire.requests[0]["max_completion_tokens"] == 4224


async def test_anthropic_takes_no_seed(wire: Any, caplog: pytest.LogCaptureFixture) -> None:
    wire.says(messages())
    with caplog.at_level(logging.WARNING, "openeqa_lab"):
        reply = await model(wire, "anthropic").complete(["Hello."])
    assert "seed=1234 is not sent: the model does not take it" in caplog.text
    assert reply.text == "A red one."
    assert "seed" not in wire.requests[0]


@pytest.mark.parametrize(
    ("name", "known"),
    [("openai/gpt-4o", True), ("openai/gpt-4-vision-preview", False), ("openai/my-own", False),
     ("hosted_vllm/my/own-vlm", False), ("hosted_vllm/gpt-4o", False)],
)  # fmt: skip
async def test_an_unknown_price_is_none_and_never_0(name: str, known: bool, wire: Any) -> None:
    wire.says(chat())
    usage = (await ApiModel(name, api_base=wire.base("openai")).complete(["Hello."])).usage
    assert (usage.dollars is not None) == known
    assert (usage.prompt_tokens, usage.completion_tokens) == (100, 10)
    if known:
        assert usage.dollars == pytest.approx(100 * 2.5e-6 + 10 * 1e-5)


async def test_a_model_priced_0_in_the_list_has_an_unknown_price(wire: Any) -> None:
    wire.says(candidates())
    asked = ApiModel("gemini/gemini-3-pro-preview", api_base=wire.base("gemini"))
    assert (await asked.complete(["Hello."])).usage.dollars is None


async def test_a_reply_without_usage_has_no_tokens_and_an_unknown_price(wire: Any) -> None:
    body = chat()
    assert isinstance(body, dict)
    wire.says({key: value for key, value in body.items() if key != "usage"})
    usage = (await model(wire, "hosted_vllm").complete(["Hello."])).usage
    assert (usage.calls, usage.dollars) == (1, None)


async def test_the_returned_model_is_kept(wire: Any) -> None:
    wire.says(chat())
    assert (await model(wire, "openai").complete(["Hello."])).model == "gpt-4o-2024-08-06"


def test_one_client_works_on_several_event_loops_in_turn(wire: Any) -> None:
    wire.says(chat())
    asked = model(wire, "openai")
    assert [asyncio.run(_ask(asked)) for _ in range(4)] == ["A red one."] * 4


def test_identity_holds_what_can_change_a_reply_and_no_address_or_key() -> None:
    asked = ApiModel("openai/x", api_base="http://localhost:1/v1", api_key_env="TEST_API_KEY")
    assert asked.identity == {
        "name": "api", "model": "openai/x", **SENT,
        "reasoning_effort": None, "reasoning_tokens": 4096,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("knobs", "message"),
    [({"model": " "}, "llm.model is not set"), ({"model": "???"}, "llm.model is not set"),
     ({"temperature": -0.1}, r"llm.temperature is -0.1: expected 0 to 2"),
     ({"temperature": 2.1}, "llm.temperature"), ({"max_tokens": 0}, "llm.max_tokens is 0"),
     ({"timeout_s": 0}, "llm.timeout_s is 0"), ({"timeout_s": float("nan")}, "llm.timeout_s"),
     ({"api_base": "localhost:8000"}, "llm.api_base is 'localhost:8000': expected an address"),
     ({"api_base": "???"}, "llm.api_base"), ({"api_base": ""}, "llm.api_base")],
)  # fmt: skip
def test_a_knob_out_of_range_is_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(OpenEQAError, match=message):
        ApiModel(**{"model": "openai/gpt-4o", **knobs})


def _python(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_importing_and_building_a_model_does_not_import_litellm() -> None:
    done = _python("""
        import sys
        from openeqa_lab.llm.api import ApiModel
        ApiModel("openai/gpt-4o")
        print([name for name in ("litellm", "openai", "httpx", "numpy") if name in sys.modules])
    """)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_program_ends_without_a_word_of_open_connections(wire: Any) -> None:
    wire.says(messages())
    code = f"""
        import asyncio, os
        from openeqa_lab.llm.api import ApiModel
        asked = ApiModel(
            {MODELS["anthropic"]!r}, seed=None, reasoning_tokens=0,
            api_base={wire.base("anthropic")!r},
        )
        async def main():
            await asyncio.gather(*(asked.complete(["Hello."]) for _ in range(8)))
        asyncio.run(main())
        asyncio.run(main())
    """
    done = _python(code, "-W", "always::ResourceWarning")
    assert done.returncode == 0
    assert (done.stdout, done.stderr) == ("", "")
    assert len(wire.requests) == 16
    assert json.dumps(wire.requests[0]["messages"])


@pytest.mark.parametrize(
    "knobs",
    [
        {"api_key_env": "sk-live-abcdefgh12345678"},
        {"api_key_env": "MY KEY"},
        {"api_base": "http://user:hunter2hunter2@localhost:8000/v1"},
        {"api_base": "http://localhost:8000/v1?api_key=hunter2hunter2"},
    ],
)
def test_a_secret_in_a_knob_is_refused_and_not_repeated(knobs: dict[str, Any]) -> None:
    with pytest.raises(OpenEQAError, match="not shown") as caught:
        ApiModel("openai/gpt-4o", **knobs)
    assert "abcdefgh" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["http://localhost:99999/v1", "http://[::1", "ftp://x", "http://", "http://x:0/v1"]
)
def test_an_address_that_there_cannot_be_is_refused_at_once(address: str) -> None:
    with pytest.raises(OpenEQAError, match=r"llm.api_base is .*expected an address"):
        ApiModel("openai/gpt-4o", api_base=address)


async def test_half_a_character_and_a_model_that_is_no_text_are_spelled_out(wire: Any) -> None:
    body: Any = chat("a \ud83d chair")
    wire.says(body | {"model": 7})
    reply = await ApiModel("hosted_vllm/x", api_base=wire.base("hosted_vllm")).complete(["Hi."])
    assert (reply.text, reply.model) == ("a \\ud83d chair", "7")


async def test_a_call_without_a_reply_is_not_called_free_unless_it_was_turned_away(
    wire: Any,
) -> None:
    llm = ApiModel("hosted_vllm/x", api_base=wire.base("hosted_vllm"), timeout_s=5, patience=ONCE)
    for status, dollars in ((500, None), (429, 0.0), (400, 0.0)):
        wire.says({"error": {"message": "no"}}, status)
        with pytest.raises(CallError) as caught:
            await llm.complete(["Hi."])
        assert caught.value.usage is not None
        assert (caught.value.usage.calls, caught.value.usage.dollars) == (1, dollars)


@pytest.mark.parametrize(
    "said",
    ["openai/gpt-6 requires moderation and your input was flagged",
     "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_X"],
)  # fmt: skip
async def test_a_403_about_the_prompt_is_a_block_and_no_wrong_key(said: str, wire: Any) -> None:
    wire.says({"error": {"message": said}}, status=403)
    assert (await model(wire, "openai").complete(["Hello."])).finish_reason == "content_filter"


async def test_reasoning_that_a_template_began_is_not_the_answer(wire: Any) -> None:
    wire.says(chat("It may be blue, or 1.</think>\n\nA red one."))
    assert (await model(wire, "hosted_vllm").complete(["Hello."])).text == "A red one."


async def test_a_half_character_in_a_prompt_is_spelled_out(wire: Any) -> None:
    wire.says(chat())
    await model(wire, "openai").complete(["What is \ud83d?"], system="\udc00")
    assert "What is \\ud83d?" in json.dumps(wire.requests[0]).replace("\\\\", "\\")
