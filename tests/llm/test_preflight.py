"""Before the first paid answer: wrong keys, useless judges and costs are found out, in one call."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from openeqa_lab.data.datasets import Dataset
from openeqa_lab.data.episode import Unseen
from openeqa_lab.data.recorded import Recorded
from openeqa_lab.errors import OpenEQAError
from openeqa_lab.evaluation import Evaluation
from openeqa_lab.images.encoders import Encoder
from openeqa_lab.judges.lexical import Exact
from openeqa_lab.judges.llm_match import LLMMatch
from openeqa_lab.judges.parsers import Robust
from openeqa_lab.llm.api import ApiModel
from openeqa_lab.llm.patience import Patience
from openeqa_lab.preflight import preflight
from openeqa_lab.reasoners.prompted import Prompted
from openeqa_lab.sampling import Linspace
from openeqa_lab.testing import write_frames


def chat(text: str, model: str = "gpt-4o") -> dict[str, object]:
    return {
        "id": "1", "object": "chat.completion", "created": 1, "model": model,
        "choices": [{"index": 0, "finish_reason": "stop",
                     "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 90, "completion_tokens": 4, "total_tokens": 94},
    }  # fmt: skip


def api(server: Any, name: str = "openai/gpt-4o", **knobs: Any) -> ApiModel:
    settings = {"patience": Patience(attempts=1), "timeout_s": 20, "max_tokens": 100, **knobs}
    return ApiModel(name, api_base=server.base("openai"), **settings)


def match(llm: ApiModel) -> LLMMatch:
    return LLMMatch(
        "own", llm, "judge", "judge_extra", None, Robust("Your mark", 1, 5), "lines", "clean", "", 0
    )


def evaluation(
    folder: Path, llm: ApiModel, judge: LLMMatch | Exact, *, sees: bool = False
) -> Evaluation:
    rows = [
        {"question_id": f"q{n}", "question": f"What is thing {n}?", "answer": "a lamp",
         "category": "object recognition", "episode_history": "hm3d-v0/000-a"}
        for n in range(40)
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "questions.json").write_text(json.dumps(rows))
    if sees:
        write_frames(folder / "frames/hm3d-v0/000-a", 6, 512, 384)
        reasoner = Prompted(llm, Encoder(), "multi_frame")
    else:
        reasoner = Prompted(llm, None, "blind", marker=None)
    return Evaluation(
        Dataset(folder / "questions.json"),
        Recorded(folder / "frames") if sees else Unseen(),
        Linspace(4), reasoner, judge, {}, {}, folder / "run",
    )  # fmt: skip


async def test_each_model_is_called_once_and_the_rest_is_estimated(
    wire: Any, tmp_path: Path
) -> None:
    wire.first = [(200, json.dumps(chat("Gray."))), (200, json.dumps(chat("Your mark: 5")))]
    found = await preflight(evaluation(tmp_path, api(wire), match(api(wire)), sees=True))
    assert found.spent.calls == len(wire.requests) == 2
    pictures = [json.dumps(body).count('"image_url": {') for body in wire.requests]
    assert pictures == [1, 0]
    assert found.answers is not None
    assert found.judgements is not None
    assert found.answers.calls == found.judgements.calls == 40
    assert found.answers.prompt_tokens > found.judgements.prompt_tokens
    assert found.answers.reply_tokens == 4000
    price_in, price_out = 2.5e-6, 1e-5  # of gpt-4o in litellm's list
    assert found.answers.dollars == pytest.approx(found.answers.prompt_tokens * price_in)
    assert found.answers.most_dollars == pytest.approx(found.answers.dollars + 4000 * price_out)
    assert not (tmp_path / "run").exists()


async def test_a_wrong_key_is_said_before_any_question_is_asked(wire: Any, tmp_path: Path) -> None:
    wire.says({"error": {"message": "no such key"}}, status=401)
    with pytest.raises(OpenEQAError, match=r"preflight: .*HTTP 401: no such key.*No question was"):
        await preflight(evaluation(tmp_path, api(wire), match(api(wire))))
    assert len(wire.requests) == 1


async def test_a_judge_that_gives_no_mark_stops_the_run_before_it_costs(
    wire: Any, tmp_path: Path
) -> None:
    wire.says(chat("I would rather not say."))
    with pytest.raises(OpenEQAError, match=r"preflight: the judge failed at a made-up question: "
                       r".*no mark from 1 to 5.*run\.preflight=false"):  # fmt: skip
        await preflight(evaluation(tmp_path, api(wire), match(api(wire))))


async def test_no_network_is_said_in_one_line(tmp_path: Path) -> None:
    class Nowhere:
        def base(self, _: str) -> str:
            return "http://127.0.0.1:9/v1"

    with pytest.raises(OpenEQAError, match=r"preflight: the reasoner does not reply: openai/gpt-4o"
                       r".*check the network and api_base"):  # fmt: skip
        await preflight(evaluation(tmp_path, api(Nowhere()), match(api(Nowhere()))))


async def test_an_unknown_price_stays_unknown(wire: Any, tmp_path: Path) -> None:
    wire.says(chat("Gray."))
    found = await preflight(evaluation(tmp_path, api(wire, "hosted_vllm/my/own"), Exact()))
    assert found.answers is not None
    assert found.answers.dollars is None
    assert found.together.dollars is None


async def test_a_run_that_is_done_calls_nobody(wire: Any, tmp_path: Path) -> None:
    wire.says(chat("a lamp"))
    run = evaluation(tmp_path, api(wire), Exact())
    await run.run()
    before = len(wire.requests)
    found = await preflight(evaluation(tmp_path, api(wire), Exact()))
    assert len(wire.requests) == before
    assert found.together.calls == 0


@pytest.mark.parametrize(
    ("typed", "code", "asked"),
    [("n\n", 1, 1), ("\n", 1, 1), ("y\n", 0, 4)],
    ids=["no", "enter", "yes"],
)
def test_on_a_terminal_a_paid_run_asks_whether_to_go_on(
    typed: str, code: int, asked: int, wire: Any, tmp_path: Path
) -> None:
    wire.says(chat("a lamp"))
    evaluation(tmp_path / "data", api(wire), Exact())
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "openeqa_lab.run", "reasoner=blind", "judge=exact",
         f"dataset.path={tmp_path / 'data/questions.json'}", "dataset.limit=3", "loggers=[]",
         f"reasoner.llm.api_base={wire.base('openai')}"],
        cwd=tmp_path, stdin=terminal, stdout=terminal, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(terminal)
    said = ""
    deadline = time.monotonic() + 60
    while "[y/N]" not in said and time.monotonic() < deadline:
        said += os.read(keyboard, 1000).decode()
    os.write(keyboard, typed.encode())
    _, errors = process.communicate(timeout=60)
    assert process.wait(60) == code, errors
    os.close(keyboard)
    assert len(wire.requests) == asked
    assert "preflight: model calls that replied: 1 ($0.000" in said
    assert "3 answers: about" in said
    assert ("nothing was asked" in errors) == (code == 1)
