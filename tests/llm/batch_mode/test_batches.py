"""Requests in batches: found again after any stop, bought once, and read like ordinary replies."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openeqa_lab.data.episode import Image
from openeqa_lab.errors import CallError, OpenEQAError
from openeqa_lab.llm import Completion, place, rehearsing, repeat, stopping
from openeqa_lab.llm.api import ApiModel
from openeqa_lab.llm.batch_mode import batches, steps
from openeqa_lab.llm.patience import Patience

MODELS = {"openai": "openai/gpt-4o", "anthropic": "anthropic/claude-sonnet-4-5"}
VENDORS = tuple(MODELS)
MODULES = {"openai": "openai_shaped", "anthropic": "anthropic"}
KEY = "sk-test-0123456789abcdefgh"
QUICK = Patience(attempts=3, first_wait_s=0.01, longest_wait_s=0.02)
PICTURES = [Image(f"picture {n}".encode(), "image/jpeg", 8, 6) for n in range(3)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI", "ANTHROPIC", "HOSTED_VLLM"):
        for what in ("API_KEY", "API_BASE", "BASE_URL"):
            monkeypatch.delenv(f"{name}_{what}", raising=False)
    monkeypatch.setenv("TEST_API_KEY", KEY)
    monkeypatch.setattr(batches, "QUIET_S", 0.5)
    monkeypatch.setattr(steps, "FIRST_POLL_S", 0.05)
    monkeypatch.setattr(steps, "LONGEST_POLL_S", 0.2)


@pytest.fixture
def model(vendor: Any, tmp_path: Path) -> Callable[..., ApiModel]:
    def make(name: str = "openai", **knobs: Any) -> ApiModel:
        settings = {
            "api_base": vendor.base(name) if name in MODELS else None,
            "api_key_env": "TEST_API_KEY",
            "timeout_s": 20,
            "patience": QUICK,
            "batch": True,
            "batch_dir": str(tmp_path / "batches"),
        }
        return ApiModel(MODELS.get(name, name), **{**settings, **knobs})

    return make


async def ask(model: ApiModel, *texts: str) -> list[Completion | BaseException]:
    calls = [model.complete([*PICTURES, text], system="Be brief.") for text in texts]
    return await asyncio.gather(*calls, return_exceptions=True)


def said(replies: list[Completion | BaseException]) -> list[str]:
    return [each.text if isinstance(each, Completion) else repr(each) for each in replies]


@pytest.mark.parametrize("name", VENDORS)
async def test_requests_go_in_one_batch_and_each_gets_its_result_at_half_the_price(
    name: str, vendor: Any, model: Any
) -> None:
    questions = [f"question {n}" for n in range(20)]
    replies = await ask(model(name), *questions)
    assert said(replies) == [f"re: {question}" for question in questions]
    assert len(vendor.batches) == 1
    assert len(set(vendor.bought)) == 20
    prompt, completion = {"openai": (2.5, 10), "anthropic": (3, 15)}[name]
    listed = (100 * prompt + 10 * completion) / 1e6
    for reply in replies:
        assert isinstance(reply, Completion)
        assert (reply.finish_reason, reply.usage.calls, reply.usage.seconds) == ("stop", 1, 0)
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (100, 10)
        assert reply.usage.dollars == pytest.approx(listed / 2)
        assert reply.usage.saved_dollars == pytest.approx(listed / 2)
        assert reply.model.startswith(MODELS[name].partition("/")[2])


@pytest.mark.parametrize(
    ("name", "at"),
    [("openai", "openai"), ("anthropic", "anthropic"), ("openai/gpt-5-mini", "openai"),
     ("openai/my-own", "openai"), ("hosted_vllm/my/own-vlm", "hosted_vllm")],
)  # fmt: skip
@pytest.mark.parametrize("prompt_cache", [False, True])
async def test_a_batch_holds_the_body_of_an_ordinary_call(
    name: str, at: str, prompt_cache: bool, vendor: Any, wire: Any, model: Any
) -> None:
    prompt = [*PICTURES, "What color is it? " + "Think. " * 1000]
    knobs = {"prompt_cache": prompt_cache, "reasoning_effort": "low"}
    await model(name, api_base=vendor.base(at), **knobs).complete(prompt, system="Be brief.")
    wire.says("", 400)
    ordinary = model(name, api_base=wire.base(at), batch=False, **knobs)
    with pytest.raises(CallError):
        await ordinary.complete(prompt, system="Be brief.")
    [ordinary_body] = wire.requests
    [body] = vendor.bodies()
    ordinary_body.pop("stream", None)
    assert body == ordinary_body
    assert ("cache_control" in json.dumps(body)) == (prompt_cache and name == "anthropic")


@pytest.mark.parametrize("name", VENDORS)
async def test_a_batch_goes_through_llmock(name: str, mock: Any, model: Any) -> None:
    questions = [f"question {n}" for n in range(5)]
    replies = await ask(model(name, api_base=mock.base(name)), *questions)
    for reply in replies:
        assert isinstance(reply, Completion), reply
        assert reply.text
        assert reply.usage.prompt_tokens > 0
        assert reply.usage.dollars == pytest.approx(reply.usage.saved_dollars)


async def test_more_than_a_batch_may_hold_goes_in_several_under_way_at_once(
    vendor: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openeqa_lab.llm.batch_mode.openai_shaped.MOST_REQUESTS", 3)
    vendor.held = True
    asked = asyncio.create_task(ask(model(), *(f"question {n}" for n in range(8))))
    await until(lambda: len(vendor.batches) == 3)
    vendor.held = False
    assert said(await asked) == [f"re: question {n}" for n in range(8)]
    assert sorted(len(batch["asked"]) for batch in vendor.batches.values()) == [2, 3, 3]
    assert len(set(vendor.bought)) == 8


@pytest.mark.parametrize("name", VENDORS)
async def test_a_batch_is_no_larger_than_may_be_sent(
    name: str, vendor: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"openeqa_lab.llm.batch_mode.{MODULES[name]}.MOST_BYTES", 2000)
    replies = await ask(
        model(name), *(f"{n} {'long ' * 100}".strip() for n in range(4)), "x" * 2000
    )
    assert [isinstance(reply, Completion) for reply in replies] == [True] * 4 + [False]
    assert isinstance(replies[-1], CallError)
    assert replies[-1].kind == "bad_request"
    assert "a request of 0 MB, and a batch may have 0" in str(replies[-1])
    sizes = [
        sum(len(json.dumps(each)) for each in batch["asked"]) for batch in vendor.batches.values()
    ]
    assert len(sizes) > 1
    assert max(sizes) <= 2000


async def test_equal_requests_at_once_are_different_requests(vendor: Any, model: Any) -> None:
    assert said(await ask(model(), "What?", "What?", "What?")) == ["re: What?"] * 3
    assert len(set(vendor.bought)) == len(vendor.bought) == 3


async def test_what_is_asked_again_elsewhere_or_once_more_is_bought_again(
    vendor: Any, model: Any
) -> None:
    asked = model()
    for where, times in (("run 1", 0), ("run 1", 0), ("run 2", 0), ("run 1", 1)):
        place.set(where)
        repeat.set(times)
        assert said(await ask(asked, "What?")) == ["re: What?"]
    assert len(set(vendor.bought)) == len(vendor.bought) == 3


@pytest.mark.parametrize(
    "change", [{"temperature": 0.3}, {"max_tokens": 9}, {"model": "gpt-4o-mini"}]
)
async def test_other_settings_are_another_request(
    change: dict[str, Any], vendor: Any, model: Any
) -> None:
    vendor.held = True
    stop = asyncio.Event()
    stopping.set(stop)
    first = asyncio.create_task(ask(model(), "What?"))
    await until(lambda: len(vendor.batches) == 1)
    stop.set()
    await first
    vendor.held = False
    stopping.set(None)
    name = f"openai/{change.pop('model')}" if "model" in change else "openai"
    base = vendor.base("openai")
    assert said(await ask(model(name, api_base=base, **change), "What?")) == ["re: What?"]
    assert len(set(vendor.bought)) == 2


async def test_whoever_waits_holds_no_picture(vendor: Any, model: Any) -> None:
    vendor.held = True
    data = b"a picture of one's own"
    asked = model()

    def prompt(n: int) -> list[str | Image]:
        return [Image(data, "image/jpeg", 8, 6), f"question {n}"]

    before = sys.getrefcount(data)
    waiting = [asyncio.create_task(asked.complete(prompt(n))) for n in range(5)]
    await until(lambda: len(vendor.batches) == 1)
    await until(lambda: sys.getrefcount(data) <= before)
    vendor.held = False
    await asyncio.gather(*waiting)


async def until(true: Callable[[], object]) -> None:
    for _ in range(2400):
        if true():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come to that within 2 minutes")


# Stops


@pytest.mark.parametrize("name", VENDORS)
async def test_a_stop_ends_the_waiting_and_the_next_start_collects_what_went_on(
    name: str, vendor: Any, model: Any
) -> None:
    vendor.held = True
    stop = asyncio.Event()
    stopping.set(stop)
    before = asyncio.all_tasks()
    questions = [f"question {n}" for n in range(4)]
    first = asyncio.create_task(ask(model(name), *questions))
    await until(lambda: any(call.startswith("GET") for call in vendor.calls))
    stop.set()
    for reply in await first:
        assert isinstance(reply, CallError)
        assert reply.kind == "timeout"
        assert not reply.usage.calls
        assert f"batch batch_0 (4 requests) goes on at {name} (start the same" in str(reply)
    late = model(name)
    [reply] = await ask(late, "another question")
    assert "the run is being stopped" in str(reply)
    await until(lambda: ours(before) == set())
    vendor.held = False
    stopping.set(None)
    assert said(await ask(model(name), *questions)) == [f"re: {each}" for each in questions]
    assert len(vendor.bought) == len(set(vendor.bought)) == 4
    assert said(await ask(late, "another question")) == ["re: another question"]


def ours(before: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Tasks that were begun since, the current one and litellm's own aside."""
    return {
        task
        for task in asyncio.all_tasks() - before - {asyncio.current_task()}
        if "LoggingWorker" not in repr(task)
    }


async def test_a_stop_before_anything_was_sent_leaves_nothing(
    vendor: Any, model: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(batches, "QUIET_S", 60.0)
    stop = asyncio.Event()
    stopping.set(stop)
    first = asyncio.create_task(ask(model(), "What?"))
    await until(lambda: list(tmp_path.glob("batches/*.requests.jsonl")))
    stop.set()
    [reply] = await first
    assert "the run is being stopped" in str(reply)
    await until(lambda: not list(tmp_path.glob("batches/*")))
    assert vendor.calls == []


SENDING = [
    ("openai", "POST /v1/files"),
    ("openai", "POST /v1/batches"),
    ("anthropic", "POST /v1/messages/batches"),
]


@pytest.mark.parametrize(("name", "call"), SENDING)
async def test_a_stop_while_a_batch_is_sent_is_settled_in_the_same_process(
    name: str, call: str, vendor: Any, model: Any
) -> None:
    vendor.slow = call
    stop = asyncio.Event()
    stopping.set(stop)
    asked = model(name)
    first = asyncio.create_task(ask(asked, "What?"))
    await until(lambda: call in vendor.calls)
    stop.set()
    [reply] = await first
    assert "the run is being stopped while its batch is sent (start the same" in str(reply)
    vendor.quick.set()
    stopping.set(None)
    assert said(await ask(asked, "What?")) == ["re: What?"]
    assert len(vendor.bought) == 1


async def test_one_who_leaves_takes_nothing_from_the_others(vendor: Any, model: Any) -> None:
    vendor.held = True
    asked = model()
    calls = [asyncio.create_task(ask(asked, f"question {n}")) for n in range(3)]
    await until(lambda: len(vendor.batches) == 1)
    calls[1].cancel()
    await asyncio.wait([calls[1]])
    vendor.held = False
    assert said((await calls[0]) + (await calls[2])) == ["re: question 0", "re: question 2"]
    assert said(await ask(asked, "question 1")) == ["re: question 1"]
    assert len(vendor.bought) == 3


# Kills

SCRIPT = """
import asyncio, sys
from openeqa_lab.data.episode import Image
from openeqa_lab.llm.batch_mode import batches, steps
from openeqa_lab.llm.api import ApiModel
from openeqa_lab.llm.batch_mode import batches, steps
from openeqa_lab.llm.patience import Patience
batches.QUIET_S, steps.FIRST_POLL_S, steps.LONGEST_POLL_S = map(float, sys.argv[4:7])
model = ApiModel(sys.argv[1], api_base=sys.argv[2], api_key_env="TEST_API_KEY", timeout_s=20,
                 batch=True, batch_dir=sys.argv[3])
pictures = [Image(f"picture {n}".encode(), "image/jpeg", 8, 6) for n in range(3)]
async def main():
    calls = [model.complete([*pictures, f"question {n}"], system="Be brief.") for n in range(5)]
    await asyncio.gather(*calls)
    print("collected", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


KILLS = [
    ("openai", "spooled", ""),
    ("openai", "sending", "POST /v1/files"),
    ("openai", "sending", "POST /v1/batches"),
    ("openai", "sent", ""),
    ("openai", "collected", ""),
    ("anthropic", "sending", "POST /v1/messages/batches"),
    ("anthropic", "ended", ""),
    ("anthropic", "collected", ""),
]
OFTEN = KILLS[2:3] + KILLS[5:6]  # each takes seconds: litellm is imported anew


@pytest.mark.parametrize(
    ("name", "when", "slow"),
    [pytest.param(*row, marks=() if row in OFTEN else pytest.mark.slow) for row in KILLS],
)
async def test_a_kill_at_any_time_costs_nothing(
    name: str, when: str, slow: str, vendor: Any, model: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "batches"
    vendor.held = when != "collected"
    vendor.slow = slow or "-"
    times = ("60" if when == "spooled" else "0.5", "0.05", "0.2" if when != "ended" else "60")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRIPT, MODELS[name], vendor.base(name), str(folder), *times,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        if when == "spooled":
            await until(lambda: spooled(folder) == 5)
        elif when == "sending":
            await until(lambda: slow in vendor.calls)
        elif when == "collected":
            assert process.stdout is not None
            assert await process.stdout.readline() == b"collected\n"
        else:
            await until(lambda: '"state": "sent"' in states(folder))
        vendor.held = False
    finally:
        process.kill()
        await process.wait()
    vendor.quick.set()
    begun = len(vendor.batches)
    questions = [f"question {n}" for n in range(5)]
    assert said(await ask(model(name), *questions)) == [f"re: {each}" for each in questions]
    assert len(vendor.bought) == len(set(vendor.bought)) == 5
    assert begun == (0 if when == "spooled" or "files" in slow else 1)
    assert list(folder.glob("*.requests.jsonl")) == []


def spooled(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("*.requests.jsonl"))


def states(folder: Path) -> str:
    return " ".join(path.read_text() for path in folder.glob("*.json"))


# Servers that do not do their part


@pytest.mark.parametrize("name", VENDORS)
@pytest.mark.parametrize("fault", [503, 429, 529, None])
async def test_what_passes_while_sending_asking_and_fetching_is_tried_again(
    name: str, fault: int | None, vendor: Any, model: Any
) -> None:
    paths = {
        "openai": ("POST /v1/files", "POST /v1/batches", "GET /v1/batches/", "GET /v1/files/"),
        "anthropic": (
            "POST",
            "GET /v1/messages/batches/batch_0",
            "GET /v1/messages/batches/batch_0/results",
        ),
    }[name]
    vendor.looks = 3
    vendor.faults = [(path, fault) for path in paths for _ in range(2)]
    assert said(await ask(model(name), "What?", "Where?")) == ["re: What?", "re: Where?"]
    assert vendor.faults == []
    assert len(vendor.bought) == 2


@pytest.mark.parametrize("name", VENDORS)
async def test_a_batch_whose_creation_was_not_heard_of_is_found_and_not_bought_again(
    name: str, vendor: Any, model: Any
) -> None:
    vendor.faults = [("POST /v1/batches" if name == "openai" else "POST", "lost")]
    assert said(await ask(model(name), "What?", "Where?")) == ["re: What?", "re: Where?"]
    assert len(vendor.batches) == 1


@pytest.mark.parametrize("name", VENDORS)
async def test_a_batch_is_found_among_those_of_others(
    name: str, vendor: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):  # of as many requests, begun before and after, ended and under way
        vendor.begin(json.loads(json.dumps(STRANGE)), "somebody else's")
        vendor.batches[f"batch_{len(vendor.batches) - 1}"]["looked"] = 1
    begin = vendor.begin

    def and_another(asked: list[dict[str, Any]], more: str = "") -> dict[str, Any]:
        batch: dict[str, Any] = begin(asked, more)
        batch["looked"] = 1
        begin(json.loads(json.dumps(STRANGE)), "somebody else's")
        return batch

    monkeypatch.setattr(vendor, "begin", and_another)
    vendor.faults = [("POST /v1/batches" if name == "openai" else "POST", "lost")]
    assert said(await ask(model(name), "What?", "Where?")) == ["re: What?", "re: Where?"]
    assert len(vendor.batches) == 5


STRANGE = [
    {"custom_id": f"strange-{n}", "params": {"messages": [{"content": "?"}]}} for n in range(2)
]


async def test_a_batch_taken_for_ours_is_not_believed(vendor: Any, model: Any) -> None:
    vendor.begin(json.loads(json.dumps(STRANGE)))  # under way, of as many requests
    vendor.faults = [("POST", None)]
    for reply in await ask(model("anthropic"), "What?", "Where?"):
        assert isinstance(reply, CallError)
        assert reply.kind == "server"
        assert "batch batch_0 was taken for one whose sending was cut off, and is not" in str(reply)
    assert said(await ask(model("anthropic"), "What?", "Where?")) == ["re: What?", "re: Where?"]
    assert len(vendor.batches) == 2


async def test_a_server_that_lists_nothing_may_be_paid_twice_and_that_is_said(
    vendor: Any, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    vendor.lists = False
    vendor.faults = [("POST /v1/batches", "lost")]
    assert said(await ask(model(), "What?")) == ["re: What?"]
    assert len(vendor.batches) == 2
    assert (
        f"{vendor.base('openai')} cannot list its batches (HTTP 405: no): if a batch of 1 "
        in caplog.text
    )


@pytest.mark.parametrize("name", VENDORS)
async def test_after_too_many_faults_the_batch_goes_on_and_is_collected_later(
    name: str, vendor: Any, model: Any
) -> None:
    look = "GET /v1/batches/" if name == "openai" else "GET /v1/messages/batches/"
    vendor.faults = [(look, 503)] * 3
    for reply in await ask(model(name), "What?", "Where?"):
        assert isinstance(reply, CallError)
        assert (reply.kind, reply.status) == ("server", 503)
        assert not reply.usage.calls
        assert "HTTP 503: not now" in str(reply)
        assert str(reply).endswith(
            f"batch batch_0 goes on at {name}, and the same command collects it"
        )
    assert said(await ask(model(name), "What?", "Where?")) == ["re: What?", "re: Where?"]
    assert len(vendor.batches) == 1


@pytest.mark.parametrize("name", VENDORS)
@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, "auth"), (404, "not_found"), (400, "bad_request"), (413, "bad_request")],
)
async def test_what_is_refused_for_good_is_said_to_all_and_leaves_nothing(
    name: str, status: int, kind: str, vendor: Any, model: Any, tmp_path: Path
) -> None:
    vendor.faults = [("POST", status)]
    replies = await ask(model(name), "What?", "Where?")
    for reply in replies:
        assert isinstance(reply, CallError)
        assert (reply.kind, reply.status) == (kind, status)
        assert str(reply).startswith(f"{MODELS[name]}: HTTP {status}: not now (")
    assert replies[0] is not replies[1]
    assert list(tmp_path.glob("batches/*")) == []
    assert said(await ask(model(name), "What?")) == ["re: What?"]


@pytest.mark.parametrize("name", VENDORS)
@pytest.mark.parametrize("lost", ["the batch", "its results"])
async def test_a_batch_that_the_vendor_has_dropped_is_asked_again(
    name: str, lost: str, vendor: Any, model: Any
) -> None:
    path = "/v1/batches/batch_0" if name == "openai" else "/v1/messages/batches/batch_0"
    if lost == "its results":
        path = "/v1/files/output-batch_0" if name == "openai" else f"{path}/results"
    vendor.faults = [(f"GET {path}", 404)]
    [reply] = await ask(model(name), "What?")
    assert isinstance(reply, CallError)
    assert reply.kind == "server"
    assert not reply.fatal
    assert reply.usage.dollars is None
    assert "batch batch_0 is not there any more (HTTP 404: not now)" in str(reply)
    assert said(await ask(model(name), "What?")) == ["re: What?"]
    assert len(vendor.batches) == 2


async def test_a_reply_that_is_no_json_is_tried_again(
    vendor: Any, model: Any, monkeypatch: Any
) -> None:
    answer, broken = vendor.answer, [b"<html>", b"[]", b"\xff", b"{}"]

    def sometimes(method: str, path: str, data: bytes, kind: str) -> tuple[int, object]:
        if method == "POST" and broken:
            return 200, broken.pop()
        reply: tuple[int, object] = answer(method, path, data, kind)
        return reply

    monkeypatch.setattr(vendor, "answer", sometimes)
    patience = Patience(attempts=9, first_wait_s=0.01)
    assert said(await ask(model(patience=patience), "What?")) == ["re: What?"]
    assert broken == []


# Results


def openai_error(status: int, **error: object) -> dict[str, Any]:
    return {"response": {"status_code": status, "body": {"error": error}}, "error": None}


def openai_said(**choice: object) -> dict[str, Any]:
    body = {
        "model": "gpt-4o",
        "choices": [{"index": 0, "finish_reason": "stop", **choice}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }
    return {"response": {"status_code": 200, "body": body}, "error": None}


def anthropic_said(**message: object) -> dict[str, Any]:
    usage = {"input_tokens": 100, "output_tokens": 10}
    whole = {"model": "claude", "content": [], "stop_reason": "end_turn", "usage": usage}
    return {"result": {"type": "succeeded", "message": {**whole, **message}}}


def anthropic_error(kind: str, message: str = "no") -> dict[str, Any]:
    error = {"type": "error", "error": {"type": kind, "message": message}}
    return {"result": {"type": "errored", "error": error}}


NOT_ANSWERED: list[tuple[str, dict[str, Any] | None, str, str]] = [
    ("openai", {"response": None, "error": {"code": "batch_expired", "message": "late"}},
     "timeout", "the batch's time was over: late (start the same command again"),
    ("openai", {"response": None, "error": {"code": "batch_cancelled", "message": "gone"}},
     "server", "the batch was cancelled: gone (start the same command again"),
    ("openai", {"response": None, "error": {"code": "odd", "message": "?"}}, "server", "odd: ?"),
    ("openai", {"response": None, "error": None}, "server", "a result that holds no reply"),
    ("openai", openai_error(400, message="no pictures"), "bad_request", "HTTP 400: no pictures ("),
    ("openai", openai_error(429, message="slowly"), "rate_limit", "HTTP 429: slowly ("),
    ("openai", openai_error(500, message="oh"), "server", "HTTP 500: oh ("),
    ("openai", openai_error(401, message=f"not with {KEY}"), "auth", "HTTP 401: not with ***"),
    ("openai", {"response": {"status_code": 200, "body": {}}}, "server", "no choices"),
    ("openai", openai_said(message=3), "server", "a reply in the batch that cannot"),
    ("openai", None, "server", "batch batch_0 has ended without a result for this request ("),
    ("anthropic", {"result": {"type": "expired"}}, "timeout", "the batch's 24 hours were over"),
    ("anthropic", {"result": {"type": "canceled"}}, "server", "the batch was cancelled before it"),
    ("anthropic", {"result": {"type": "new"}}, "server", "a result of the unknown type new"),
    ("anthropic", {"result": None}, "server", "a result that holds nothing"),
    ("anthropic", anthropic_error("invalid_request_error"), "bad_request", "HTTP 400: invalid"),
    ("anthropic", anthropic_error("overloaded_error"), "server", "HTTP 529: overloaded_error"),
    ("anthropic", anthropic_error("rate_limit_error"), "rate_limit", "HTTP 429: rate_limit_error"),
    ("anthropic", anthropic_error("not_found_error"), "not_found", "HTTP 404: not_found_error"),
    ("anthropic", anthropic_error("brand_new_error"), "server", "HTTP 500: brand_new_error: no ("),
    ("anthropic", {"result": {"type": "errored", "error": 3}}, "server", "HTTP 500: None: None ("),
    ("anthropic", anthropic_said(content="x"), "server", "a reply in the batch that cannot"),
    ("anthropic", {"result": {"type": "succeeded", "message": {"error": 1}}}, "server", "an error"),
    ("anthropic", None, "server", "batch batch_0 has ended without a result for this request ("),
]  # fmt: skip


@pytest.mark.parametrize("name", VENDORS)
async def test_a_request_that_failed_in_a_batch_is_named_and_asked_in_the_next_one(
    name: str, vendor: Any, model: Any
) -> None:
    rows = [row[1:] for row in NOT_ANSWERED if row[0] == name]
    questions = [f"question {n}" for n in range(len(rows))]
    vendor.results = {question: row[0] for question, row in zip(questions, rows, strict=True)}
    replies = await ask(model(name), *questions, "What?")
    for (_, kind, message), reply in zip(rows, replies, strict=False):
        assert isinstance(reply, CallError)
        assert (reply.kind, reply.usage.calls) == (kind, 1)
        assert message in str(reply)
        assert KEY not in str(reply)
    assert said(replies[-1:]) == ["re: What?"]
    vendor.results = {}
    again = await ask(model(name), *questions, "What?")
    assert said(again) == [f"re: {each}" for each in [*questions, "What?"]]
    assert [len(batch["asked"]) for batch in vendor.batches.values()] == [len(rows) + 1, len(rows)]


REPLIES: list[tuple[str, dict[str, Any], tuple[str, str]]] = [
    ("openai", openai_said(message={"role": "assistant", "content": None, "refusal": "I won't."}),
     ("I won't.", "refusal")),
    ("openai", openai_said(message={"role": "assistant", "content": "A"}, finish_reason="length"),
     ("A", "length")),
    ("openai", openai_said(message={"role": "assistant", "content": None},
                           finish_reason="content_filter"), ("", "content_filter")),
    ("openai", openai_error(400, message="stopped", code="content_filter"), ("", "content_filter")),
    ("openai", {"response": None, "error": {"code": "content_filter", "message": "no"}},
     ("", "content_filter")),
    ("anthropic", anthropic_said(stop_reason="refusal"), ("", "refusal")),
    ("anthropic", anthropic_said(content=[{"type": "text", "text": "A"}], stop_reason="max_tokens"),
     ("A", "length")),
    ("anthropic", anthropic_said(), ("", "stop")),
    ("anthropic", anthropic_error("invalid_request_error", "blocked by content filtering policy"),
     ("", "content_filter")),
]  # fmt: skip


@pytest.mark.parametrize("name", VENDORS)
async def test_refused_blocked_cut_and_empty_are_replies_and_are_not_bought_again(
    name: str, vendor: Any, model: Any
) -> None:
    rows = [row[1:] for row in REPLIES if row[0] == name]
    questions = [f"question {n}" for n in range(len(rows))]
    vendor.results = {question: row[0] for question, row in zip(questions, rows, strict=True)}
    for _ in range(2):
        replies = await ask(model(name), *questions)
        for (_, expected), reply in zip(rows, replies, strict=True):
            assert isinstance(reply, Completion), reply
            assert (reply.text, reply.finish_reason) == expected
            assert reply.usage.dollars is not None
    assert len(vendor.batches) == 1


async def test_a_limit_spent_before_any_text_was_paid_at_half_the_price(
    vendor: Any, model: Any
) -> None:
    message = {"role": "assistant", "content": ""}
    vendor.results = {"What?": openai_said(message=message, finish_reason="length")}
    [reply] = await ask(model(), "What?")
    assert isinstance(reply, CallError)
    assert reply.kind == "truncated"
    assert reply.usage is not None
    assert reply.usage.dollars == reply.usage.saved_dollars == pytest.approx(350e-6 / 2)


async def test_what_the_prompt_cache_saved_counts_beside_the_batch(vendor: Any, model: Any) -> None:
    usage = {"input_tokens": 20, "output_tokens": 10, "cache_read_input_tokens": 80}
    text = [{"type": "text", "text": "A"}]
    vendor.results = {"What?": anthropic_said(content=text, usage=usage)}
    [reply] = await ask(model("anthropic"), "What?")
    assert isinstance(reply, Completion)
    full, read = (100 * 3 + 10 * 15) / 1e6, 80 * (3 - 0.3) / 1e6
    assert reply.usage.dollars == pytest.approx((full - read) / 2)
    assert reply.usage.saved_dollars == pytest.approx(full - (full - read) / 2)
    assert reply.usage.cached_tokens == 80


@pytest.mark.parametrize(
    ("refusal", "kind", "message"),
    [
        ([{"code": "token_limit_exceeded", "message": "Enqueued too much"}], "rate_limit",
         r"refused batch batch_0 as a whole: token_limit_exceeded: Enqueued too much "
         r"\(start the same command again when other batches of this account have ended\)$"),
        ([{"code": "model_not_found", "message": "none"}], "not_found", "none .*check model"),
        ([{"code": "invalid_json_line", "message": "line 1"}], "bad_request", "line 1 .*change it"),
        ([], "bad_request", "as a whole: it does not say why"),
    ],
)  # fmt: skip
async def test_a_batch_that_is_refused_as_a_whole_names_why_and_costs_nothing(
    refusal: list[dict[str, object]], kind: str, message: str, vendor: Any, model: Any
) -> None:
    vendor.status, vendor.refusal = "failed", refusal
    vendor.results = {"What?": None, "Where?": None}
    for reply in await ask(model(), "What?", "Where?"):
        assert isinstance(reply, CallError)
        assert reply.kind == kind
        assert not reply.usage.calls
        with pytest.raises(CallError, match=message):
            raise reply
    vendor.status, vendor.refusal, vendor.results = "completed", [], {}
    assert said(await ask(model(), "What?", "Where?")) == ["re: What?", "re: Where?"]


@pytest.mark.parametrize("status", ["expired", "cancelled"])
async def test_of_a_batch_that_ended_early_what_was_answered_counts(
    status: str, vendor: Any, model: Any
) -> None:
    vendor.status = status
    error = {"code": f"batch_{status}", "message": "over"}
    vendor.results = {"Where?": {"response": None, "error": error}}
    replies = await ask(model(), "What?", "Where?")
    assert said(replies[:1]) == ["re: What?"]
    assert isinstance(replies[1], CallError)
    vendor.status, vendor.results = "completed", {}
    assert said(await ask(model(), "What?", "Where?")) == ["re: What?", "re: Where?"]
    assert [len(batch["asked"]) for batch in vendor.batches.values()] == [2, 1]


async def test_results_that_cannot_be_read_are_asked_again(
    vendor: Any, model: Any, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    answer = vendor.answer

    def cut(method: str, path: str, data: bytes, kind: str) -> tuple[int, object]:
        status, body = answer(method, path, data, kind)
        return status, body[:-9] + b"\n[]\n{}\n\xff" if isinstance(body, bytes) else body

    monkeypatch.setattr(vendor, "answer", cut)
    replies = await ask(model(), "What?", "Where?")
    assert said(replies[1:]) == ["re: Where?"]
    assert "4 results cannot be read; they are asked again" in caplog.text
    monkeypatch.setattr(vendor, "answer", answer)
    assert said(await ask(model(), "What?", "Where?")) == ["re: What?", "re: Where?"]


# Settings


async def test_few_requests_are_said_once_to_be_too_few(
    vendor: Any, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    asked = model()
    await ask(asked, "What?")
    await ask(asked, "Where?")
    found = [each.getMessage() for each in caplog.records if "concurrency" in each.getMessage()]
    assert found == [
        "openai/gpt-4o: a batch of only 1 is sent, since no other request came within 0.5 s. A "
        "batch is waited for as a whole: if more questions are to be asked, ask them all at once "
        "(concurrency=2000)"
    ]


async def test_a_small_last_batch_after_full_ones_is_no_mistake(
    vendor: Any, model: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openeqa_lab.llm.batch_mode.openai_shaped.MOST_REQUESTS", 3)
    await ask(model(), *(f"question {n}" for n in range(4)))
    assert len(vendor.batches) == 2
    assert "concurrency" not in caplog.text


async def test_a_batch_that_another_model_gathers_is_left_to_it(vendor: Any, model: Any) -> None:
    one, other = model(), model()
    first = asyncio.create_task(ask(one, "What?"))
    await asyncio.sleep(0.2)
    assert said(await ask(other, "Where?")) == ["re: Where?"]
    assert said(await first) == ["re: What?"]
    assert [len(batch["asked"]) for batch in vendor.batches.values()] == [1, 1]


@pytest.mark.parametrize("name", VENDORS)
async def test_an_estimate_is_at_the_batch_price(name: str, model: Any) -> None:
    prompt = ["word " * 4000]
    batch = await model(name).forecast(prompt)
    ordinary = await model(name, batch=False).forecast(prompt)
    assert batch.dollars == pytest.approx(ordinary.dollars / 2)
    assert batch.most_dollars == pytest.approx(ordinary.most_dollars / 2)


async def test_how_far_a_batch_has_come_is_said_now_and_then(
    vendor: Any, model: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "WORD_S", 0.0)
    vendor.looks = 3
    await ask(model(), "What?")
    words = [each.getMessage() for each in caplog.records if each.name.endswith("batch_mode.steps")]
    assert words[0].startswith(
        "batch batch_0: 1 requests (0.0 MB) are at openai, which may take up"
    )
    assert words[1:] == ["batch batch_0: 0 of 1 done (in_progress)"] * 2 + [
        "batch batch_0 has ended (completed): 1 results for 1 requests"
    ]


async def test_a_rehearsal_is_an_ordinary_call(wire: Any, model: Any) -> None:
    wire.says({"model": "gpt-4o", "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Yes."}}
    ]})  # fmt: skip
    rehearsing.set(True)
    reply = await model(api_base=wire.base("openai")).complete(["Are you there?"])
    assert reply.text == "Yes."


async def test_a_vendor_without_batches_is_refused_before_anything_is_paid(model: Any) -> None:
    asked = model("gemini/gemini-2.5-flash", api_base=None)
    for _ in range(2):
        with pytest.raises(
            OpenEQAError, match=r"^llm\.batch is true, and gemini/.* is gemini's: b"
        ):
            await asked.complete(["Hello."])
        with pytest.raises(OpenEQAError, match="or take another model"):
            await asked.forecast(["Hello."])


def test_batches_need_a_folder() -> None:
    with pytest.raises(
        OpenEQAError, match=r"llm\.batch is true and llm\.batch_dir is not set: give"
    ):
        ApiModel("openai/gpt-4o", batch=True)
    ApiModel("openai/gpt-4o", batch_dir="unused")


async def test_a_key_goes_to_its_server_alone_and_into_no_file(
    vendor: Any, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-vendor-0123456789")
    monkeypatch.setenv("HOSTED_VLLM_API_BASE", vendor.base("hosted_vllm"))
    await ask(model("hosted_vllm/mine", api_base=None, api_key_env=None), "What?")
    await ask(model("openai", api_key_env=None), "What?")
    assert {each["authorization"] for each in vendor.headers} == {"Bearer none"}
    vendor.headers.clear()
    await ask(model("openai"), "Where?")
    assert {each["authorization"] for each in vendor.headers} == {f"Bearer {KEY}"}
    vendor.headers.clear()
    await ask(model("anthropic"), "Where?")
    assert {each["x-api-key"] for each in vendor.headers} == {KEY}
    assert {each["anthropic-version"] for each in vendor.headers} == {"2023-06-01"}
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"What?" in kept
    assert b"sk-" not in kept


@pytest.mark.parametrize(
    ("provider", "variable", "address"),
    [("openai", "OPENAI_BASE_URL", "/v1"), ("anthropic", "ANTHROPIC_BASE_URL", ""),
     ("anthropic", "ANTHROPIC_API_BASE", "/v1/"),
     ("anthropic", "ANTHROPIC_API_BASE", "/v1/messages")],
)  # fmt: skip
async def test_a_server_may_be_named_by_the_environment(
    provider: str, variable: str, address: str, vendor: Any, model: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv(variable, vendor.url + address)
    assert said(await ask(model(provider, api_base=None), "What?")) == ["re: What?"]


async def test_another_key_or_server_does_not_look_for_what_is_not_its_own(
    vendor: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(model(), "What?")
    monkeypatch.setenv("TEST_API_KEY", "sk-another-0123456789")
    assert said(await ask(model(), "What?")) == ["re: What?"]
    assert len(vendor.batches) == 2
