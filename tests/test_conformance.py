"""Every option of every group is built from its YAML file and held against its role's contract."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from openeqa_lab import config
from openeqa_lab.data.case import Question
from openeqa_lab.prompts import UPSTREAM
from openeqa_lab.testing import (
    check_encoder,
    check_episode_source,
    check_judge,
    check_logger,
    check_metric,
    check_reasoner,
    check_sampler,
    tiny_case,
    tiny_episode,
    write_frames,
)

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"
DEMO = ROOT / "src" / "openeqa_lab" / "demo" / "questions.json"


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with questions, frames, answers to replay, and texts under upstream's names."""
    monkeypatch.setenv("OPENEQA_DATA_DIR", str(tmp_path))
    shutil.copy(DEMO, tmp_path / "open-eqa-v0.json")
    rows = json.loads(DEMO.read_text())
    write_frames(tmp_path / "frames" / "tiny" / "000-room", 4)
    answers = [{"question_id": row["question_id"], "answer": "red"} for row in rows]
    (tmp_path / "predictions.json").write_text(json.dumps(answers))
    (tmp_path / "prompts").mkdir()
    for name in UPSTREAM:
        extra = "{extra_answers}" if name == "mmbench-extra" else ""
        judge = f"{{answer}} {extra} {{prediction}}" if name.startswith("mmbench") else ""
        text = f"Look.\nUser Query: {{question}}\n{judge}\n"
        (tmp_path / "prompts" / f"{name}.txt").write_text(text)
    return tmp_path


def settings(data: Path, *overrides: str) -> dict[str, object]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("run", overrides=list(overrides))
    if "llm" in composed.reasoner:
        composed.reasoner.llm = {"_target_": "openeqa_lab.testing.EchoLLM"}
    if "llm" in composed.judge:
        composed.judge.llm = {"_target_": "openeqa_lab.testing.EchoLLM", "reply": "Your mark: 3"}
    if OmegaConf.is_missing(composed.reasoner, "path"):
        composed.reasoner.path = str(data / "predictions.json")
    return dict(OmegaConf.to_container(composed, resolve=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("option", options("sampler"))
def test_samplers(option: str, data: Path) -> None:
    check_sampler(config.build(settings(data, f"sampler={option}")["sampler"], "sampler"))


@pytest.mark.parametrize("option", options("episodes"))
async def test_episode_sources(option: str, data: Path) -> None:
    source = config.build(settings(data, f"episodes={option}")["episodes"], "episodes")
    episode = "demo/000-kitchen" if option == "demo" else "tiny/000-room"
    await check_episode_source(source, tiny_case(episode=episode))


@pytest.mark.parametrize("option", options("encoder"))
async def test_encoders(option: str, data: Path) -> None:
    if option == "png_upstream":
        pytest.importorskip("cv2", reason="needs the extra [upstream]")
    node = settings(data, "reasoner=multi_frame", f"encoder@reasoner.encoder={option}")["reasoner"]
    await check_encoder(config.build(node["encoder"], "encoder"))  # type: ignore[index]


@pytest.mark.parametrize("option", options("reasoner"))
async def test_reasoners(option: str, data: Path) -> None:
    composed = settings(data, f"reasoner={option}")
    blind = str(composed["episodes"]["_target_"]).endswith("Unseen")  # type: ignore[index]
    question = json.loads(DEMO.read_text())[0]
    await check_reasoner(
        config.build(composed["reasoner"], "reasoner"),
        Question(question["question_id"], question["question"]),
        () if blind else tiny_episode().frames,
    )


@pytest.mark.parametrize("option", options("judge"))
async def test_judges(option: str, data: Path) -> None:
    if option == "semantic":
        pytest.importorskip("wordllama", reason="needs the extra [semantic]")
    await check_judge(
        config.build(settings(data, f"judge={option}")["judge"], "judge"), tiny_case()
    )


@pytest.mark.parametrize("option", options("metrics"))
def test_metrics(option: str, data: Path) -> None:
    (metric,) = config.build_all(settings(data, f"metrics=[{option}]")["metrics"], "m").values()
    check_metric(metric)


@pytest.mark.parametrize("option", options("loggers"))
def test_loggers(option: str, data: Path) -> None:
    (logger,) = config.build_all(settings(data, f"loggers=[{option}]")["loggers"], "l").values()
    check_logger(logger, data / "run")


@pytest.mark.parametrize("option", options("dataset"))
def test_datasets(option: str, data: Path) -> None:
    shutil.copy(DEMO, data / "open-eqa-demo-data.json")
    dataset = config.build(settings(data, f"dataset={option}")["dataset"], "dataset")
    assert len(dataset) == 24
    assert len({case.id for case in dataset}) == 24
    assert len(dataset.sha256) == 64
    assert json.loads(json.dumps(dataset.identity)) == dataset.identity
