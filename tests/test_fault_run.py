"""Whole runs over a wire that fails in every way: all answered or named, and nothing bought twice.

The server speaks three vendors' wires, spoils a seeded share of what it is asked, and keeps what
it sold: replies that gave what was asked for and were delivered whole.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from openeqa_lab.data.datasets import Dataset
from openeqa_lab.data.episode import Unseen
from openeqa_lab.entries import read_journal
from openeqa_lab.errors import CallError
from openeqa_lab.evaluation import Evaluation
from openeqa_lab.judges.llm_match import LLMMatch
from openeqa_lab.judges.parsers import Robust
from openeqa_lab.llm.api import ApiModel
from openeqa_lab.llm.patience import Patience
from openeqa_lab.metrics.scores import Score
from openeqa_lab.reasoners.prompted import Prompted
from openeqa_lab.records import Answer, Failure, Usage, Verdict
from openeqa_lab.report import Report
from openeqa_lab.sampling import Linspace

QUESTIONS = 300
TIMEOUT_S = 8.0  # a busy machine may take seconds for a reply that is not late
MODELS = {
    "openai": "openai/gpt-4o",
    "anthropic": "anthropic/claude-sonnet-4-5",
    "gemini": "gemini/gemini-2.5-flash",
}
Stage = Literal["answer", "judge"]

# What passes, with or without a reply.
IN_PASSING = ("429 with Retry-After", "429", "500", "503", "529", "malformed", "cut", "not UTF-8",
              "dropped unread", "dropped", "late")  # fmt: skip
# Replies: what they are worth differs by who is asked.
ODD = ("empty", "length", "refusal", "filter as 400", "filter as reason", "megabyte")
# An answer that says nothing is an answer; a judge that gives no mark has not judged.
SOLD: dict[Stage, set[str]] = {
    "answer": {"good", "empty", "refusal", "filter as 400", "filter as reason", "megabyte"},
    "judge": {"good", "megabyte"},
}


def said(path: str, text: str, how: str = "") -> dict[str, Any]:
    """A reply in the shape of the vendor whose path it is."""
    if path.endswith("/chat/completions"):
        message: dict[str, object] = {"role": "assistant", "content": text}
        if how == "refusal":
            message = {"role": "assistant", "content": None, "refusal": "I will not."}
        reason = {"length": "length", "filter as reason": "content_filter"}.get(how, "stop")
        return {
            "id": "1", "object": "chat.completion", "created": 1, "model": "gpt-4o",
            "choices": [{"index": 0, "finish_reason": reason, "message": message}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        }  # fmt: skip
    if path.endswith("/messages"):
        refused = dict.fromkeys(("refusal", "filter as reason"), "refusal")
        reason = {"length": "max_tokens", **refused}.get(how, "end_turn")
        return {
            "id": "1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
            "content": [{"type": "text", "text": text}] if text else [], "stop_reason": reason,
            "stop_sequence": None, "usage": {"input_tokens": 100, "output_tokens": 10},
        }  # fmt: skip
    blocked = {"refusal": "PROHIBITED_CONTENT", "filter as reason": "SAFETY"}
    reason = {"length": "MAX_TOKENS", **blocked}.get(how, "STOP")
    parts = [{"text": text}] if text else []
    return {
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": reason}],
        "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 10,
                          "totalTokenCount": 110},
        "modelVersion": "gemini-2.5-flash",
    }  # fmt: skip


@dataclass
class Vendor:
    """A server that answers and judges, with faults.

    Args:
        share: Of the requests that are spoilt, 0 to 1.
        chance: Says which they are, and how.
        stuck: Faults that stay: what a question's request in this stage always meets.
            pause_s: Before each reply.
        key: Without which nobody is answered; empty for none.
        models: That there are; empty for all.
    """

    share: float = 0.0
    chance: random.Random = field(default_factory=random.Random)
    stuck: dict[tuple[Stage, int], str] = field(default_factory=dict)
    pause_s: float = 0.0
    key: str = ""
    models: tuple[str, ...] = ()
    port: int = 0
    calls: int = 0
    asked: Counter[tuple[Stage, int]] = field(default_factory=Counter)
    sold: Counter[tuple[Stage, int]] = field(default_factory=Counter)
    met: Counter[tuple[Stage, str]] = field(default_factory=Counter)
    mixed: list[object] = field(default_factory=list)

    deck: list[str] = field(default_factory=list)

    def spoil(self, share: float, seed: int) -> None:
        self.share, self.chance = share, random.Random(seed)

    def base(self, stage: Stage, vendor: str) -> str:
        path = {"openai": "/v1", "anthropic": "", "gemini": "/v1beta"}[vendor]
        return f"http://127.0.0.1:{self.port}/{stage}{path}"

    def fault(self) -> str:
        """What the next request meets; each kind comes before any comes again."""
        if self.chance.random() >= self.share:
            return "good"
        if not self.deck:
            self.deck = [*IN_PASSING, *ODD]
            self.chance.shuffle(self.deck)
        return self.deck.pop()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self.replied(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has gone, or the test has
        finally:
            writer.close()

    async def replied(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether the connection stays."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ", 2)[1].partition("?")[0].partition(":")[0]
        stage: Stage = "judge" if path.startswith("/judge/") else "answer"
        how = self.fault()
        if how == "dropped unread":
            self.calls += 1
            self.met[stage, how] += 1
            return False
        length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
        assert length is not None
        body = (await reader.readexactly(int(length[1]))).decode()
        if self.key not in head or not any(model in path + body for model in self.models or [""]):
            status = 404 if self.key in head else 401
            await self.say(writer, status, {"error": {"message": "turned away", "type": "x"}})
            return True
        found = {int(number) for number in re.findall(r"thing (\d+)", body)}
        if len(found) != 1:  # two are the answer to another question, none is a rehearsal
            self.mixed += [found] if found else []
            await self.say(writer, 200, said(path, "Your mark: 5"))
            return True
        key = (stage, found.pop())
        if key in self.stuck:
            self.deck += [how] if how != "good" else []  # for another
            how = self.stuck[key]
        self.calls += 1
        self.asked[key] += 1
        self.met[stage, how] += 1
        return await self.spoilt(writer, path, key, how)

    async def spoilt(
        self, writer: asyncio.StreamWriter, path: str, key: tuple[Stage, int], how: str
    ) -> bool:
        status = {"filter as 400": 400, "429 with Retry-After": 429}.get(how, 200)
        status = int(how) if how.isdigit() else status
        text = "Your mark: 4" if key[0] == "judge" else f"thing {key[1]} is red"
        if how == "megabyte":
            text = f"{'So it is. ' * 110_000}\n{text}"
        if how in ("empty", "length", "refusal", "filter as reason"):
            text = ""
        reply: dict[str, Any] = said(path, text, how)
        if status != 200:
            code = "content_filter" if status == 400 else "slow_down"
            reply = {"error": {"message": f"stopped: {code}", "type": "x", "code": code}}
        if how == "dropped":
            return False
        if how == "late":
            await asyncio.sleep(TIMEOUT_S + 1)
        await asyncio.sleep(self.pause_s)
        await self.say(writer, status, reply, how)
        if how in SOLD[key[0]]:
            self.sold[key] += 1
        return how != "cut"

    async def say(
        self, writer: asyncio.StreamWriter, status: int, reply: object, how: str = ""
    ) -> None:
        body = json.dumps(reply).encode()
        length = len(body)
        if how == "malformed":
            body = body[:-9] + b"<br></br>"
        if how == "not UTF-8":
            body = body[:-9] + b"\xe9" * 9
        if how == "cut":
            body = body[: length // 2]
        wait = "retry-after: 1\r\n" if how == "429 with Retry-After" else ""
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{wait}"
            f"content-length: {length}\r\n\r\n".encode()
        )
        writer.write(body)
        await writer.drain()


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    """Without faults until a test asks for some."""
    made = Vendor()
    loop = asyncio.new_event_loop()

    async def begin() -> asyncio.Server:
        return await asyncio.start_server(made.connected, "127.0.0.1", 0)

    async def end(server: asyncio.Server) -> None:
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    server = loop.run_until_complete(begin())
    made.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield made
    asyncio.run_coroutine_threadsafe(end(server), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(autouse=True)
def _of_this_test_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openeqa_lab.llm.limits._limiters", {})
    monkeypatch.setenv("TEST_API_KEY", "sk-test-0123456789abcdefgh")


def write_questions(folder: Path, count: int) -> Path:
    rows = [
        {
            "question_id": f"q{number:03d}",
            "question": f"What color is thing {number}?",
            "answer": "red",
            "category": "attribute recognition",
            "episode_history": f"hm3d-v0/{number // 10:03d}-a",
        }
        for number in range(count)
    ]
    folder.mkdir(exist_ok=True)
    (folder / "open-eqa-v0.json").write_text(json.dumps(rows))
    return folder / "open-eqa-v0.json"


def evaluation(
    folder: Path, base: str, name: str, judge_base: str, *, count: int = QUESTIONS,
    patience: Patience | None = None, timeout_s: float = TIMEOUT_S,
) -> Evaluation:  # fmt: skip
    def model(name: str, base: str) -> ApiModel:
        return ApiModel(
            name, seed=None, api_base=base, api_key_env="TEST_API_KEY", timeout_s=timeout_s,
            patience=patience or Patience(first_wait_s=0.05, longest_wait_s=2.0),
        )  # fmt: skip

    judge = LLMMatch(
        "own", model(MODELS["openai"], judge_base), "judge", None, None,
        Robust("Your mark", 1, 5), "lines", "clean", "", reasks=1,
    )  # fmt: skip
    return Evaluation(
        Dataset(write_questions(folder, count)),
        Unseen(),
        Linspace(k=1),
        Prompted(model(name, base), None, "blind", marker=None),
        judge,
        {"score": Score(resamples=100, seed=0)},
        {},
        folder / "run",
        concurrency=32,
    )


def check_calls(report: Report, vendor: Vendor, folder: Path) -> None:
    """No call was made that no record has, and none is recorded that was not made."""
    costs = report.costs
    parts = (costs.answers.usage, costs.judgements.usage, costs.earlier.usage)
    recorded = sum(parts, Usage()).calls
    timeouts = (folder / "journal.jsonl").read_text().count('"kind":"timeout"')
    late = sum(times for (_, how), times in vendor.met.items() if how == "late")
    # One that ran out of time for a busy machine may not have come as far as the server.
    assert vendor.calls <= recorded <= vendor.calls + timeouts - late


def check_sums(report: Report, folder: Path, count: int = QUESTIONS) -> None:
    """Every question is answered or named as failed, once."""
    counts = report.counts
    assert (counts.asked, counts.unjudged, counts.unreached) == (count, 0, 0)
    assert counts.judged + counts.failed == count
    assert sum(failures.count for failures in counts.failures) == counts.failed
    assert sum(counts.statuses.values()) == counts.answered
    entries = read_journal(folder).entries
    assert len(entries) == count
    for case, entry in entries.items():
        verdicts = list(entry.verdicts.values())
        failed = [each for each in (entry.result, *verdicts) if isinstance(each, Failure)]
        assert len(failed) + sum(isinstance(each, Verdict) for each in verdicts) == 1, case
        for failure in failed:
            assert re.search(r", tried (once|\d times)|asked|declined|blocked", failure.message)


def check_answers(folder: Path) -> None:
    """Each answer is the one to its own question."""
    for case, entry in read_journal(folder).entries.items():
        if isinstance(entry.result, Answer) and entry.result.status == "answered":
            assert entry.result.text.endswith(f"thing {int(case[1:])} is red"), case


@pytest.mark.parametrize(
    ("name", "seed"),
    [("openai", 1), pytest.param("anthropic", 2, marks=pytest.mark.slow),
     pytest.param("gemini", 3, marks=pytest.mark.slow)],
)  # fmt: skip
async def test_300_questions_through_faults_of_every_kind_are_answered_or_named_and_bought_once(
    name: str, seed: int, vendor: Vendor, tmp_path: Path
) -> None:
    vendor.spoil(0.05, seed)
    vendor.stuck = {
        ("answer", 7): "503", ("answer", 90): "not UTF-8", ("answer", 171): "length",
        ("judge", 8): "cut", ("judge", 91): "refusal", ("judge", 280): "empty",
    }  # fmt: skip
    bases = (vendor.base("answer", name), MODELS[name], vendor.base("judge", "openai"))
    report = await evaluation(tmp_path, *bases).run()
    check_sums(report, tmp_path / "run")
    check_answers(tmp_path / "run")
    assert {kind for _, kind in vendor.met} == {"good", *IN_PASSING, *ODD}
    check_calls(report, vendor, tmp_path / "run")
    assert max(vendor.sold.values()) == 1
    assert vendor.mixed == []
    failed = failures(tmp_path / "run")
    assert failed >= {number for _, number in vendor.stuck}
    assert report.counts.failed == len(failed) < 20

    vendor.spoil(0, 0)
    vendor.stuck = {}
    before, sold = vendor.asked.copy(), vendor.sold.copy()
    again = await evaluation(tmp_path, *bases).run()
    check_sums(again, tmp_path / "run")
    check_answers(tmp_path / "run")
    assert (again.counts.judged, again.counts.failed) == (QUESTIONS, 0)
    check_calls(again, vendor, tmp_path / "run")
    new = vendor.asked - before
    assert {number for _, number in new} == failed
    assert not [key for key in new if sold[key]], "what was sold was asked for again"
    assert set(vendor.sold.values()) == {1}


def failures(folder: Path) -> set[int]:
    """The questions without a verdict."""
    return {
        int(case[1:])
        for case, entry in read_journal(folder).entries.items()
        if not any(isinstance(verdict, Verdict) for verdict in entry.verdicts.values())
    }


@pytest.mark.parametrize(
    ("key", "models", "message"),
    [("sk-test-another-abcdefgh", (), r"HTTP 401: turned away \(check the key"),
     ("", ("gpt-9",), r"HTTP 404: turned away \(check model and api_base")],
    ids=["wrong key", "unknown model"],
)  # fmt: skip
async def test_what_all_calls_share_ends_the_run_with_nothing_sold_and_the_next_start_does_it_all(
    key: str, models: tuple[str, ...], message: str, vendor: Vendor, tmp_path: Path
) -> None:
    vendor.key, vendor.models = key, models
    bases = (vendor.base("answer", "openai"), MODELS["openai"], vendor.base("judge", "openai"))
    with pytest.raises(CallError, match=message):
        await evaluation(tmp_path, *bases, count=60).run()
    assert not vendor.sold
    assert not read_journal(tmp_path / "run").entries
    vendor.key, vendor.models = "", ()
    report = await evaluation(tmp_path, *bases, count=60).run()
    assert report.counts.judged == 60
    assert set(vendor.sold.values()) == {1}


@pytest.mark.parametrize(
    ("address", "count"), [("http://127.0.0.1:9", 100), ("http://no-such-host.invalid", 8)]
)
async def test_without_a_network_every_question_is_named_and_asked_when_it_is_back(
    address: str, count: int, vendor: Vendor, tmp_path: Path
) -> None:
    short = Patience(attempts=2, first_wait_s=0.01)
    name = MODELS["openai"]
    run = evaluation(tmp_path, address, name, address, count=count, patience=short)
    report = await run.run()
    check_sums(report, tmp_path / "run", count)
    (named,) = report.counts.failures
    assert (named.stage, named.kind, named.count) == ("answer", "connection", count)
    assert "check the network and api_base, then start the same command again" in named.message
    assert not report.counts.judged
    assert report.costs.answers.usage.dollars is None
    bases = (vendor.base("answer", "openai"), name, vendor.base("judge", "openai"))
    report = await evaluation(tmp_path, *bases, count=count).run()
    assert report.counts.judged == count
    assert set(vendor.sold.values()) == {1}
    assert report.costs.earlier.usage.calls == 2 * count


async def test_what_is_refused_blocked_or_not_said_is_bought_once_and_never_judged(
    vendor: Vendor, tmp_path: Path
) -> None:
    silent = {0: "filter as 400", 1: "filter as reason", 2: "refusal", 3: "empty"}
    vendor.stuck = {("answer", number): how for number, how in silent.items()}
    bases = (vendor.base("answer", "openai"), MODELS["openai"], vendor.base("judge", "openai"))
    for _ in range(2):
        report = await evaluation(tmp_path, *bases, count=6).run()
        statuses = {"answered": 2, "blocked": 2, "empty": 1, "refused": 1}
        assert dict(report.counts.statuses) == statuses
        assert (report.counts.judged, report.counts.without_call) == (6, 4)
        assert report.estimates["llm_match"].value == pytest.approx(100 * 2 * 0.75 / 6)
        answered = {("answer", number): 1 for number in range(6)}
        assert vendor.asked == answered | {("judge", 4): 1, ("judge", 5): 1}


async def test_one_that_runs_out_of_time_leaves_the_others_and_no_task(
    vendor: Vendor, tmp_path: Path
) -> None:
    vendor.stuck = {("answer", 1): "late"}
    bases = (vendor.base("answer", "openai"), MODELS["openai"], vendor.base("judge", "openai"))
    before = asyncio.all_tasks()
    once = Patience(attempts=1)
    report = await evaluation(tmp_path, *bases, count=3, patience=once, timeout_s=3).run()
    left = {task for task in asyncio.all_tasks() - before if "LoggingWorker" not in repr(task)}
    assert not left  # litellm's own ends with the loop
    (failed,) = report.counts.failures
    assert (report.counts.judged, failed.kind, failed.case) == (2, "timeout", "q001")
    assert "no reply within 3 s" in failed.message


async def test_waiting_for_a_slot_is_not_counted_as_waiting_for_a_reply(
    vendor: Vendor, tmp_path: Path
) -> None:
    vendor.pause_s = 1.2
    bases = (vendor.base("answer", "openai"), MODELS["openai"], vendor.base("judge", "openai"))
    one = Patience(attempts=1, at_once=1)
    report = await evaluation(tmp_path, *bases, count=4, patience=one, timeout_s=4).run()
    assert report.counts.judged == 4, report.counts.failures
    assert 4 * vendor.pause_s > 4


async def test_a_price_that_is_unknown_is_reported_as_unpriced_and_never_as_0(
    vendor: Vendor, tmp_path: Path
) -> None:
    bases = (vendor.base("answer", "openai"), "openai/my-own", vendor.base("judge", "openai"))
    report = await evaluation(tmp_path, *bases, count=5).run()
    assert report.costs.answers.usage.dollars is None
    assert report.costs.answers.unpriced_calls == 5
    assert report.costs.judgements.usage.dollars is not None
    assert report.costs.judgements.unpriced_calls == 0
    text = (tmp_path / "run" / "report.md").read_text()
    assert "5 calls unpriced" in text


# The command as a user types it.


def command(place: Path, vendor: Vendor, *more: str) -> subprocess.Popen[str]:
    write_questions(place / "data", QUESTIONS)
    knobs = {
        "model": "openai/gpt-4o", "api_key_env": "TEST_API_KEY", "seed": "null",
        "timeout_s": TIMEOUT_S, "patience.first_wait_s": 0.05, "patience.longest_wait_s": 2,
    }  # fmt: skip
    llms = [f"++{part}.llm.{knob}={value}" for knob, value in knobs.items()
            for part in ("reasoner", "judge")]  # fmt: skip
    return subprocess.Popen(
        [
            sys.executable, "-m", "openeqa_lab.run", "reasoner=gpt4", "reasoner.template=blind",
            "judge.template=judge", "judge.template_extra=null", "loggers=[]", "output_dir=run",
            f"++reasoner.llm.api_base={vendor.base('answer', 'openai')}",
            f"++judge.llm.api_base={vendor.base('judge', 'openai')}",
            "concurrency=16", *llms, *more,
        ],
        cwd=place,
        env=os.environ | {"OPENEQA_DATA_DIR": str(place / "data")},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=200)
    return process.returncode, out, err


@pytest.mark.slow
@pytest.mark.parametrize("kills", [(250,), (40, 130, 260, 380, 520)])
def test_a_run_that_is_killed_goes_on_and_buys_nothing_again_but_what_was_under_way(
    kills: tuple[int, ...], vendor: Vendor, tmp_path: Path
) -> None:
    vendor.pause_s = 0.02
    vendor.spoil(0.05, 5)
    twice = 0
    for kill in kills:
        process = command(tmp_path, vendor)
        while sum(vendor.sold.values()) < kill:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.kill()
        process.communicate()
        time.sleep(0.2)  # what was under way is sold to nobody
        kept = done(tmp_path / "run")
        twice += len(set(vendor.sold) - kept)
        asked = vendor.asked.copy()
        assert kept
    vendor.spoil(0, 0)
    code, out, err = finished(command(tmp_path, vendor))
    assert code == 0, err
    assert f"{QUESTIONS} of {QUESTIONS} judged" in out
    assert not [key for key in vendor.asked - asked if key in kept], "asked again after the kill"
    again = [key for key, times in vendor.sold.items() if times > 1]
    assert len(again) <= twice <= 16 * len(kills)
    check_answers(tmp_path / "run")
    assert vendor.mixed == []


def done(folder: Path) -> set[tuple[Stage, int]]:
    """What a journal holds."""
    kept: set[tuple[Stage, int]] = set()
    for case, entry in read_journal(folder).entries.items():
        if isinstance(entry.result, Answer):
            kept.add(("answer", int(case[1:])))
        if any(isinstance(verdict, Verdict) for verdict in entry.verdicts.values()):
            kept.add(("judge", int(case[1:])))
    return kept


@pytest.mark.parametrize(
    ("key", "models", "more", "message"),
    [("sk-test-another-abcdefgh", (), (), "HTTP 401: turned away (check the key"),
     pytest.param("", ("gpt-9",), (), "HTTP 404: turned away (check model and api_base",
                  marks=pytest.mark.slow),
     pytest.param("", (), ("++judge.llm.api_base=http://127.0.0.1:9",
                           "++judge.llm.patience.attempts=2"),
                  "check the network and api_base", marks=pytest.mark.slow)],
    ids=["wrong key", "unknown model", "a judge that nobody reaches"],
)  # fmt: skip
def test_the_command_says_before_the_first_paid_answer_that_no_call_can_succeed(
    key: str, models: tuple[str, ...], more: tuple[str, ...], message: str,
    vendor: Vendor, tmp_path: Path,
) -> None:  # fmt: skip
    vendor.key, vendor.models = key, models
    code, _, err = finished(command(tmp_path, vendor, *more))
    assert code == 1
    assert message in err.strip().splitlines()[-1]
    assert "Traceback" not in err
    assert "sk-test" not in err
    assert not vendor.asked, "a question was asked"
