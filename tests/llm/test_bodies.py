"""Pictures that are put in as a request goes out: what servers read, and what can go wrong."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from openeqa_lab.data.episode import Image
from openeqa_lab.llm import bodies, client, failures
from openeqa_lab.llm.bodies import Address

MODELS = {
    "openai": "openai/gpt-4o",
    "anthropic": "anthropic/claude-sonnet-4-5",
    "gemini": "gemini/gemini-2.5-flash",
    "hosted_vllm": "hosted_vllm/my/own-vlm",
}
ANSWERS: dict[str, object] = {
    "openai": {
        "id": "x", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop",
                     "message": {"role": "assistant", "content": "Red."}}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
    },
    "anthropic": {
        "id": "x", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "Red."}],
        "usage": {"input_tokens": 9, "output_tokens": 2},
    },
    "gemini": {
        "candidates": [{"index": 0, "finishReason": "STOP",
                        "content": {"role": "model", "parts": [{"text": "Red."}]}}],
        "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 2, "totalTokenCount": 11},
    },
}  # fmt: skip
ANSWERS["hosted_vllm"] = ANSWERS["openai"]
KEY = "sk-test-0123456789abcdefgh"
LARGE = random.Random(0).randbytes(700_000)
PICTURES = [
    Image(data, "image/png", 8, 6)
    for data in (b"a", b"ab", b"abc", bytes(range(256)), LARGE, b"\xff\xff\xfb")
]


@pytest.fixture(autouse=True)
async def _closed() -> AsyncIterator[None]:
    yield
    await bodies.close()


def address(vendor: str, api_base: str, timeout_s: float = 20.0) -> Address:
    return Address(MODELS[vendor], vendor, api_base, KEY, timeout_s)


async def send(
    where: Address, parts: Sequence[str | Image], *, carried: bool = True, late: bool = False
) -> str:
    """One request, written out or with stand-ins; `late` sends it when its pictures are gone."""
    from openeqa_lab.llm.content import messages

    litellm = client.load()
    await client.close_with_loop(litellm)
    through = await bodies.client(litellm, where) if carried else None
    assert carried == (through is not None)
    call = {
        "model": where.model, "api_base": where.api_base, "api_key": where.api_key,
        "client": through, "timeout": where.timeout_s, "num_retries": 0, "max_retries": 0,
    }  # fmt: skip
    if not carried:
        reply = await litellm.acompletion(messages=messages(parts, "Be brief."), **call)
        return str(reply.choices[0].message.content)
    with bodies.held() as stand_in:
        sent = messages(parts, "Be brief.", text_of=stand_in)
        if not late:
            reply = await litellm.acompletion(messages=sent, **call)
            return str(reply.choices[0].message.content)
    reply = await litellm.acompletion(messages=sent, **call)
    return str(reply.choices[0].message.content)


@pytest.mark.parametrize("vendor", MODELS)
async def test_a_server_reads_the_request_that_it_reads_without_stand_ins(
    vendor: str, wire: Any
) -> None:
    wire.says(ANSWERS[vendor])
    parts = ["Look: é ", *PICTURES[:3], 'a "text" between', *PICTURES[3:], "What?"]
    where = address(vendor, wire.base(vendor))
    assert await send(where, parts, carried=False) == await send(where, parts) == "Red."
    assert wire.requests[0] == wire.requests[1]
    plain, carried = wire.headers
    each_its_own = {"idempotency-key"}
    assert {name: value for name, value in carried.items() if name not in each_its_own} == {
        name: value for name, value in plain.items() if name not in each_its_own
    }
    assert bodies._MARK.decode() not in json.dumps(wire.requests)


@pytest.mark.parametrize("vendor", MODELS)
async def test_requests_under_way_together_have_each_its_own_pictures(
    vendor: str, wire: Any
) -> None:
    wire.says(ANSWERS[vendor])
    wire.seconds = 0.1
    where = address(vendor, wire.base(vendor))
    prompts = [
        [f"Question {n}.", *(Image(b"%d %d" % (n, i), "image/jpeg", 1, 1) for i in range(n))]
        for n in range(1, 9)
    ]
    await asyncio.gather(*(send(where, prompt) for prompt in prompts))
    carried = wire.requests[:]
    wire.requests.clear()
    for prompt in prompts:
        await send(where, prompt, carried=False)
    assert sorted(map(json.dumps, carried)) == sorted(map(json.dumps, wire.requests))
    assert bodies._held == {}


@pytest.mark.parametrize("vendor", MODELS)
@pytest.mark.parametrize(
    ("text", "late"), [("What?", True), (f"What is {bodies._MARK.decode()}?", False),
                       (f"{bodies._MARK.decode()}ffffffffffff", False)],
    ids=["gone", "part of one", "made up"],
)  # fmt: skip
async def test_a_stand_in_without_a_picture_is_not_sent(
    vendor: str, text: str, late: bool, wire: Any
) -> None:
    wire.says(ANSWERS[vendor])
    where = address(vendor, wire.base(vendor))
    with pytest.raises(Exception, match="stand-in of a picture that is not there is not sent"):
        await send(where, [*PICTURES[:2], text], late=late)
    assert wire.requests == []
    assert await send(where, [*PICTURES[:2], "What?"]) == "Red."


FAULTS: dict[str, tuple[int | None, str]] = {
    "429": (429, '{"error": {"message": "slow down"}}'),
    "400": (400, '{"error": {"message": "no such picture"}}'),
    "401": (401, '{"error": {"message": "no such key"}}'),
    "413": (413, "<html>too large</html>"),
    "500": (500, '{"error": {"message": "oh"}}'),
    "503": (503, ""),
    "dropped": (None, ""),
    "malformed": (200, '{"id": "chatcmpl'),
}


@pytest.mark.parametrize("vendor", MODELS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_comes_out_as_it_does_without_stand_ins(
    vendor: str, fault: str, wire: Any
) -> None:
    wire.status, wire.body = FAULTS[fault]
    wire.more_headers = {"retry-after": "7"}
    where = address(vendor, wire.base(vendor))
    seen = [await said(where, carried) for carried in (False, True)]
    assert seen[0] == seen[1]
    assert len(wire.requests) == 2
    assert bodies._held == {}


@pytest.mark.parametrize("vendor", MODELS)
@pytest.mark.parametrize("fault", ["late", "nobody"])
async def test_no_answer_comes_out_as_it_does_without_stand_ins(
    vendor: str, fault: str, wire: Any
) -> None:
    wire.says(ANSWERS[vendor])
    wire.seconds = 1.0
    there = wire.base(vendor) if fault == "late" else "http://127.0.0.1:9"
    where = address(vendor, there, timeout_s=0.3)
    [plain, carried] = [await said(where, carried) for carried in (False, True)]
    assert carried[:3] == plain[:3]
    assert carried[1] == ("timeout" if fault == "late" else "connection")
    assert bodies._held == {}


async def said(where: Address, carried: bool) -> tuple[object, ...]:
    """How a failed request looks to those who ask."""
    litellm = client.load()
    with pytest.raises(litellm.exceptions.openai.OpenAIError) as caught:
        await send(where, ["Look.", *PICTURES[:4], "What?"], carried=carried)
    error = caught.value
    return (
        type(error),
        failures.kind(error),
        failures.http_status(error),
        failures.retry_after_s(error),
        failures.describe(error),
    )


@pytest.mark.parametrize("vendor", MODELS)
async def test_pictures_go_along_to_where_a_server_sends_a_request(vendor: str, wire: Any) -> None:
    wire.says(ANSWERS[vendor])
    wire.first = [(307, "")]
    wire.more_headers = {"location": f"{wire.base(vendor)}/elsewhere"}
    assert await send(address(vendor, wire.base(vendor)), PICTURES) == "Red."
    assert len(wire.requests) == 2
    assert wire.requests[0] == wire.requests[1]
    assert bodies._MARK.decode() not in json.dumps(wire.requests)


async def test_one_that_finds_nobody_leaves_the_others_their_connections(wire: Any) -> None:
    wire.says(ANSWERS["hosted_vllm"])
    wire.seconds = 0.5
    under_way = asyncio.create_task(
        send(address("hosted_vllm", wire.base("hosted_vllm")), ["Look.", *PICTURES])
    )
    await asyncio.sleep(0.2)
    await said(address("hosted_vllm", "http://127.0.0.1:9"), True)
    assert await under_way == "Red."


async def test_a_given_up_request_holds_no_picture(wire: Any) -> None:
    wire.says(ANSWERS["openai"])
    wire.seconds = 1.0
    asking = asyncio.create_task(send(address("openai", wire.base("openai")), PICTURES))
    while not wire.requests:
        await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert bodies._held == {}


@pytest.mark.parametrize("provider", ["cohere_chat", "vertex_ai", "openrouter", "ollama", ""])
async def test_other_vendors_are_sent_pictures_written_out(provider: str) -> None:
    where = Address(f"{provider}/some-model", provider, None, KEY, 5.0)
    assert await bodies.client(client.load(), where) is None


async def test_a_model_whose_client_litellm_leaves_aside_is_sent_pictures_written_out() -> None:
    where = Address("cohere_chat/command-r", "hosted_vllm", None, KEY, 5.0)
    assert await bodies.client(client.load(), where) is None


async def test_another_transport_of_litellms_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DISABLE_AIOHTTP_TRANSPORT", "True")
    where = address("openai", "http://127.0.0.1:9")
    assert await bodies.client(client.load(), where) is None


async def test_trying_out_sends_nothing_and_happens_once_an_address(wire: Any) -> None:
    where = address("anthropic", wire.base("anthropic"))
    made = await asyncio.gather(*(bodies.client(client.load(), where) for _ in range(5)))
    assert made[0] is not None
    assert all(each is made[0] for each in made)
    assert wire.requests == []
    assert KEY not in repr(where)


def test_event_loops_in_turn_and_at_once_have_each_their_own_client(wire: Any) -> None:
    wire.says(ANSWERS["openai"])
    wire.seconds = 0.1
    where = address("openai", wire.base("openai"))
    heard: list[str] = []

    async def ask() -> None:
        heard.extend(await asyncio.gather(*(send(where, PICTURES) for _ in range(3))))
        await bodies.close()

    client.load()
    asyncio.run(ask())
    threads = [threading.Thread(target=asyncio.run, args=(ask(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(ask())
    assert heard == ["Red."] * 15
    assert all(body == wire.requests[0] for body in wire.requests)


def test_a_program_ends_without_a_word_of_open_connections(wire: Any) -> None:
    wire.says(ANSWERS["openai"])
    code = f"""
        import asyncio
        from openeqa_lab.data.episode import Image
        from openeqa_lab.llm import bodies, client, content
        litellm = client.load()
        base = {wire.base("openai")!r}
        async def ask(model, provider):
            where = bodies.Address(model, provider, base, "none", 9.0)
            through = await bodies.client(litellm, where)
            with bodies.held() as stand_in:
                sent = content.messages([Image(b"abc", "image/png", 1, 1)], "", text_of=stand_in)
                await litellm.acompletion(
                    model=model, api_base=base, api_key="none", client=through, messages=sent
                )
        async def main():
            several = [("openai/x", "openai"), ("hosted_vllm/x", "hosted_vllm")] * 3
            await asyncio.gather(*(ask(*each) for each in several))
            await bodies.close()
            await litellm.close_litellm_async_clients()
        asyncio.run(main())
        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(wire.requests) == 12
