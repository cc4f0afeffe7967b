"""Whole runs whose questions go in batches: one report, whatever came between."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openeqa_lab.data.datasets import Dataset
from openeqa_lab.data.recorded import Recorded
from openeqa_lab.entries import read_journal
from openeqa_lab.evaluation import Evaluation
from openeqa_lab.images.encoders import Encoder
from openeqa_lab.judges import Judge
from openeqa_lab.judges.lexical import Exact
from openeqa_lab.judges.llm_match import LLMMatch
from openeqa_lab.judges.parsers import Robust
from openeqa_lab.llm.api import ApiModel
from openeqa_lab.llm.batch_mode import batches, steps
from openeqa_lab.llm.patience import Patience
from openeqa_lab.metrics.scores import Score
from openeqa_lab.reasoners.prompted import Prompted
from openeqa_lab.records import Failure
from openeqa_lab.sampling import Linspace
from openeqa_lab.testing import write_frames

MODELS = {"openai": "openai/gpt-4o", "anthropic": "anthropic/claude-sonnet-4-5"}
EPISODES = [f"hm3d-v0/{n:03}-room" for n in range(5)]
CASES = 50


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_API_KEY", "sk-test-0123456789abcdefgh")
    monkeypatch.setattr(batches, "QUIET_S", 2.0)
    monkeypatch.setattr(steps, "FIRST_POLL_S", 0.1)
    monkeypatch.setattr(steps, "LONGEST_POLL_S", 0.2)


@pytest.fixture
def asked(vendor: Any, tmp_path: Path) -> Callable[..., Evaluation]:
    """A run of fifty questions about five rooms, with its own objects each time."""
    rows = [
        {
            "question_id": f"q{n}",
            "question": f"What color is thing {n % 40}?",  # ten stand there twice
            "answer": "red",
            "category": "attribute recognition",
            "episode_history": EPISODES[n * len(EPISODES) // CASES],
        }
        for n in range(CASES)
    ]
    (tmp_path / "questions.json").write_text(json.dumps(rows))
    for episode in EPISODES:
        write_frames(tmp_path / "frames" / episode, 4)

    def make(name: str = "openai", run: str = "run", judge: Judge | None = None) -> Evaluation:
        return Evaluation(
            Dataset(path=tmp_path / "questions.json"),
            Recorded(tmp_path / "frames"),
            Linspace(k=2),
            Prompted(model(name), Encoder(), "multi_frame"),
            judge or Exact(),
            {"score": Score(resamples=100, seed=0)},
            {},
            tmp_path / run,
            concurrency=200,
        )

    def model(name: str) -> ApiModel:
        return ApiModel(
            MODELS[name],
            api_base=vendor.base(name),
            api_key_env="TEST_API_KEY",
            patience=Patience(attempts=3, first_wait_s=0.01),
            batch=True,
            batch_dir=str(tmp_path / "batches"),
        )

    make.model = model  # type: ignore[attr-defined]
    return make


async def stopped_when(evaluation: Evaluation, true: Callable[[], object]) -> Any:
    """The report of a run that is stopped by a signal."""
    running = asyncio.create_task(evaluation.run())
    while not true():
        assert not running.done(), running.result()
        await asyncio.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
    return await running


@pytest.mark.parametrize("name", MODELS)
async def test_a_run_goes_in_one_batch_is_stopped_and_goes_on(
    name: str, vendor: Any, asked: Any, tmp_path: Path
) -> None:
    vendor.held = True
    report = await stopped_when(asked(name), lambda: len(vendor.batches) == 1)
    assert report.state == "complete"  # all were asked; that they failed is counted
    assert report.counts.judged == 0
    entries = read_journal(tmp_path / "run").entries
    for entry in entries.values():
        assert isinstance(entry.result, Failure)
        assert (entry.result.kind, entry.result.usage.calls) == ("timeout", 0)
        assert f"batch batch_0 ({CASES} requests) goes on at {name}" in entry.result.message
    vendor.held = False
    report = await asked(name).run()
    assert report.counts.judged == CASES
    assert len(vendor.batches) == 1
    assert len(vendor.bought) == len(set(vendor.bought)) == CASES
    entries = read_journal(tmp_path / "run").entries
    dollars = sum(entry.result.usage.dollars for entry in entries.values())
    saved = sum(entry.result.usage.saved_dollars for entry in entries.values())
    each = {"openai": 100 * 2.5 + 10 * 10, "anthropic": 100 * 3 + 10 * 15}[name] / 1e6
    assert dollars == pytest.approx(CASES * each / 2)
    assert saved == pytest.approx(CASES * each / 2)
    assert all(entry.shown for entry in entries.values())


async def test_another_run_of_the_same_questions_is_given_replies_of_its_own(
    vendor: Any, asked: Any
) -> None:
    await asked().run()
    await asked(run="another").run()
    assert len(vendor.bought) == len(set(vendor.bought)) == 2 * CASES


async def test_judgements_go_in_batches_and_one_without_a_mark_is_asked_anew(
    vendor: Any, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = vendor.said
    unmarked = ["What color is thing 7?"]

    def said(request: dict[str, Any], *, anthropic: bool) -> Any:
        text = json.dumps(request)
        line = answer(request, anthropic=anthropic)
        if "image_url" not in text:
            marked = not any(question in text for question in unmarked)
            message = line["response"]["body"]["choices"][0]["message"]
            message["content"] = "Your mark: 4" if marked else "I cannot say."
        return line

    monkeypatch.setattr(vendor, "said", said)

    def judge() -> LLMMatch:
        parser = Robust("Your mark", 1, 5)
        model = asked.model("openai")
        return LLMMatch("own", model, "judge", None, None, parser, "lines", "clean", "", 0)

    report = await asked(judge=judge()).run()
    assert (report.counts.judged, len(vendor.batches)) == (CASES - 2, 2)
    unmarked.clear()
    report = await asked(judge=judge()).run()
    assert report.counts.judged == CASES
    assert [len(batch["asked"]) for batch in vendor.batches.values()] == [CASES, CASES, 2]
    assert len(vendor.bought) == len(set(vendor.bought))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_command_goes_on_after_a_kill(name: str, vendor: Any, tmp_path: Path) -> None:
    vendor.held = True
    command = [
        sys.executable, "-m", "openeqa_lab.run", "dataset=demo", "episodes=demo",
        "reasoner=multi_frame", "judge=exact", "loggers=[jsonl]", "sampler.k=2", "concurrency=200",
        f"reasoner.llm.model={MODELS[name]}", f"reasoner.llm.api_base={vendor.base(name)}",
        "reasoner.llm.api_key_env=TEST_API_KEY", "reasoner.llm.batch=true", "run.preflight=false",
        f"cache_dir={tmp_path / 'cache'}", f"output_dir={tmp_path / 'run'}",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not any('"sent"' in text for text in states(tmp_path)):
                assert process.poll() is None, process.stderr and process.stderr.read()
                time.sleep(0.2)
        finally:
            process.kill()
    vendor.held = False
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "batch batch_0 has ended" in done.stderr
    entries = read_journal(tmp_path / "run").entries
    assert len(entries) == len(vendor.bought) == len(set(vendor.bought)) > 20
    assert len(vendor.batches) == 1
    for folder in ("cache/batches", "run"):
        for path in (tmp_path / folder).rglob("*"):
            assert b"sk-test" not in path.read_bytes(), path


def states(folder: Path) -> list[str]:
    found = [json.loads(path.read_text())["state"] for path in folder.glob("cache/batches/*.json")]
    return [json.dumps(state) for state in found]
