"""The reasoners' YAML files: what each baseline is, and that the command line wins."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.reasoners.prompted import Prompted
from openeqa_lab.testing import EchoLLM

EPISODES = {"unseen": "openeqa_lab.data.episode.Unseen",
            "recorded": "openeqa_lab.data.recorded.Recorded"}  # fmt: skip
SAMPLERS = {"linspace": "openeqa_lab.sampling.Linspace",
            "stride": "openeqa_lab.sampling.Stride",
            "first_last_middle": "openeqa_lab.sampling.FirstLastMiddle"}  # fmt: skip


@pytest.fixture
def composed(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Composed:
    monkeypatch.setenv("OPENEQA_DATA_DIR", str(tmp_path))
    return Composed(repository / "conf")


class Composed:
    """Composes conf/run.yaml as the command line does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *overrides: str) -> dict[str, dict[str, object]]:
        with initialize_config_dir(str(self.folder), version_base="1.3"):
            config = compose("run", overrides=list(overrides))
        plain = OmegaConf.to_container(config, resolve=True)
        assert isinstance(plain, dict)
        return plain  # type: ignore[return-value]


UPSTREAM = [
    ("gpt4", "openai/gpt-4-0613", "blind-llm", None, None),
    ("llama", "hosted_vllm/meta-llama/Llama-2-70b-chat-hf", "blind-llm", None, None),
    ("gemini_pro", "gemini/gemini-pro", "blind-llm", None, None),
    ("gpt4v", "openai/gpt-4-vision-preview", "gpt4v", 50, "User Query:"),
    ("claude3_vision", "anthropic/claude-3-opus-20240229", "claude3-vision", 20, "User Query:"),
    ("gemini_pro_vision", "gemini/gemini-pro-vision", "gemini-pro-vision", 15, "User Query:"),
]


@pytest.mark.parametrize(("option", "model", "template", "k", "marker"), UPSTREAM)
def test_upstreams_baselines_are_as_published(
    option: str, model: str, template: str, k: int | None, marker: str | None, composed: Composed
) -> None:
    settings = composed(f"reasoner={option}")
    reasoner = settings["reasoner"]
    assert reasoner["template"] == template
    assert reasoner["marker"] == marker
    llm = reasoner["llm"]
    assert isinstance(llm, dict)
    assert {name: llm[name] for name in ("model", "temperature", "max_tokens", "seed")} == {
        "model": model,
        "temperature": 0.2,
        "max_tokens": 128,
        "seed": 1234,
    }
    if k is None:
        assert settings["episodes"]["_target_"] == EPISODES["unseen"]
        assert reasoner["encoder"] is None
        assert reasoner["answer"] == "a_line"
    else:
        assert settings["episodes"]["_target_"] == EPISODES["recorded"]
        assert settings["sampler"] == {"_target_": SAMPLERS["linspace"], "k": k}
        encoder = reasoner["encoder"]
        assert isinstance(encoder, dict)
        assert encoder["_target_"] == "openeqa_lab.images.encoders.UpstreamEncoder"
        assert encoder["size"] == 512


@pytest.mark.parametrize(
    ("option", "episodes", "sampler", "k"),
    [("blind", "unseen", "linspace", 50), ("prior", "unseen", "linspace", 50),
     ("replay", "unseen", "linspace", 50), ("multi_frame", "recorded", "linspace", 50),
     ("single_frame", "recorded", "first_last_middle", 1)],
)  # fmt: skip
def test_our_own_reasoners_choose_what_they_are_shown(
    option: str, episodes: str, sampler: str, k: int, composed: Composed
) -> None:
    settings = composed(f"reasoner={option}")
    assert settings["episodes"]["_target_"] == EPISODES[episodes]
    assert settings["sampler"] == {"_target_": SAMPLERS[sampler], "k": k}


@pytest.mark.parametrize("order", [1, -1])
def test_the_command_line_wins_wherever_it_stands(order: int, composed: Composed) -> None:
    words = ["reasoner=gemini_pro_vision", "sampler.k=7", "sampler=stride",
             "llm@reasoner.llm=gpt4o", "encoder@reasoner.encoder=jpeg",
             "reasoner.llm.temperature=0.9"]  # fmt: skip
    settings = composed(*words[::order])
    assert settings["sampler"] == {"_target_": SAMPLERS["stride"], "k": 7}
    llm, encoder = settings["reasoner"]["llm"], settings["reasoner"]["encoder"]
    assert isinstance(llm, dict)
    assert isinstance(encoder, dict)
    assert (llm["model"], llm["temperature"]) == ("openai/gpt-4o", 0.9)
    assert encoder["_target_"] == "openeqa_lab.images.encoders.Encoder"


def test_another_sampler_keeps_the_papers_k(composed: Composed) -> None:
    settings = composed("reasoner=claude3_vision", "sampler=stride")
    assert settings["sampler"] == {"_target_": SAMPLERS["stride"], "k": 20}


def test_a_sampler_without_k_takes_the_papers_k_away(composed: Composed) -> None:
    settings = composed("reasoner=gpt4v", "sampler=all", "~sampler.k")
    assert settings["sampler"] == {"_target_": "openeqa_lab.sampling.All"}


def test_a_blind_reasoner_can_be_given_other_episodes(composed: Composed) -> None:
    settings = composed("reasoner=blind", "episodes=recorded")
    assert settings["episodes"]["_target_"] == EPISODES["recorded"]


def test_the_question_file_reaches_prior_whatever_the_dataset(composed: Composed) -> None:
    for dataset in ("openeqa", "openeqa_demo"):
        settings = composed("reasoner=prior", f"dataset={dataset}")
        assert settings["reasoner"]["questions"] == settings["dataset"]


OURS = ("blind", "single_frame", "multi_frame")


@pytest.mark.parametrize("option", [*OURS, *(row[0] for row in UPSTREAM)])
def test_every_prompt_fits_its_option(option: str, shared: Path, composed: Composed) -> None:
    knobs = dict(composed(f"reasoner={option}")["reasoner"])
    assert knobs.pop("_target_") == "openeqa_lab.reasoners.prompted.Prompted"
    encoder = None
    if knobs["encoder"] is not None:
        from openeqa_lab.images.encoders import Encoder

        encoder = Encoder()
    prompts = str(shared / "data/openeqa/prompts")
    Prompted(**(knobs | {"llm": EchoLLM(), "encoder": encoder, "prompts_dir": prompts}))  # type: ignore[arg-type]


def test_a_prompt_that_is_not_installed_names_the_command(composed: Composed) -> None:
    knobs = dict(composed("reasoner=gpt4")["reasoner"])
    knobs.pop("_target_")
    with pytest.raises(OpenEQAError, match=r"'blind-llm'.*fetch prompts.*reasoner=blind"):
        Prompted(**(knobs | {"llm": EchoLLM()}))  # type: ignore[arg-type]


def test_a_models_server_comes_from_the_environment(
    composed: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTED_VLLM_API_BASE", "http://gpu:8000/v1")
    llm = composed("reasoner=llama")["reasoner"]["llm"]
    assert isinstance(llm, dict)
    assert llm["api_base"] == "http://gpu:8000/v1"
    assert llm["api_key_env"] is None
