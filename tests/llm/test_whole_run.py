"""Upstream's baselines from their YAML files: real frames, over each vendor's wire, to a report."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from openeqa_lab import config
from openeqa_lab.entries import read_journal
from openeqa_lab.evaluation import Evaluation
from openeqa_lab.records import Answer

CONF = Path(__file__).resolve().parents[2] / "conf"
BASELINES = {
    "openai": ("gpt4v", 50, "OPENAI_API_KEY"),
    "anthropic": ("claude3_vision", 20, "ANTHROPIC_API_KEY"),
    "gemini": ("gemini_pro_vision", 15, "GEMINI_API_KEY"),
}
VERDICT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4-1106-preview",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Your mark: 4"},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 90, "completion_tokens": 4, "total_tokens": 94},
}


@pytest.mark.parametrize("vendor", BASELINES)
async def test_a_baseline_answers_the_demo_videos_questions_over_the_wire(
    vendor: str, mock: Any, wire: Any, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cv2", reason="needs the extra [upstream]")
    name, k, key = BASELINES[vendor]
    monkeypatch.setenv("OPENEQA_DATA_DIR", str(shared / "data" / "openeqa"))
    monkeypatch.setenv(key, "sk-test-0123456789abcdefgh")
    wire.says(VERDICT)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("run", overrides=[
            "dataset=openeqa_demo", f"reasoner={name}", "judge=llm_match", "loggers=[jsonl]",
            f"+reasoner.llm.api_base={mock.base(vendor)}", f"reasoner.llm.api_key_env={key}",
            f"+judge.llm.api_base={wire.base('openai')}",
            f"episodes.root={shared / 'data' / 'openeqa'}",
            # llmock keeps bodies of up to 256 kB to be looked at: 50 small frames fit
            "reasoner.encoder.size=48",
        ])  # fmt: skip
    settings: Any = OmegaConf.to_container(composed, resolve=True)
    parts = {part: config.build(settings[part], part) for part in
             ("dataset", "episodes", "sampler", "reasoner", "judge")}  # fmt: skip
    evaluation = Evaluation(
        **parts,
        metrics=config.build_all(settings["metrics"], "metrics"),
        loggers=config.build_all(settings["loggers"], "loggers"),
        output_dir=tmp_path / "run",
        concurrency=2,
    )
    report = await evaluation.run(config=settings)
    assert report.counts.judged == 3, [f.message for f in report.counts.failures]
    assert report.estimates["llm_match"].value == 75.0
    requests = mock.requests()
    assert len(requests) == 3
    assert [pictures_in(request["body"]) for request in requests] == [k] * 3
    assert len(wire.requests) == 3
    entries = read_journal(tmp_path / "run").entries
    for entry in entries.values():
        assert len(entry.shown) == k
        assert entry.shown[-1].index == 167
        assert all(shown.sha256 for shown in entry.shown)
        assert isinstance(entry.result, Answer)
        assert entry.result.usage.prompt_tokens > 0
    secret = os.environ[key]
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def pictures_in(body: object) -> int:
    """Pictures in a request, however the vendor's wire spells them."""
    text = json.dumps(body)
    return sum(text.count(mark) for mark in ('"image_url": {', '"type": "image"', 'mime_type"'))
