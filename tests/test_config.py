"""Every option composes, binds and types; a bad value is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from openeqa_lab import config
from openeqa_lab.errors import OpenEQAError
from openeqa_lab.run import KEYS

CONF = Path(__file__).resolve().parents[1] / "conf"
GROUPS = sorted(
    folder.name for folder in CONF.iterdir() if folder.is_dir() and folder.name[0] != "_"
)
OPTIONS = [
    (group, path.stem)
    for group in GROUPS
    for path in sorted((CONF / group).glob("*.yaml"))
    if group not in ("llm", "encoder")
]
SEVERAL = ("metrics", "loggers")


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        settings = compose("run", overrides=list(overrides))
    for key in OmegaConf.missing_keys(settings):  # what a user must give
        OmegaConf.update(settings, key, "given")
    return settings


def faults(settings: dict[str, object]) -> list[str]:
    return [fault for name, node in settings.items() for fault in config._faults(node, name)]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENEQA_DATA_DIR", str(tmp_path))


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_of_every_group_composes_and_binds(group: str, option: str) -> None:
    value = f"[{option}]" if group in SEVERAL else option
    settings = config.plain(composed(f"{group}={value}"), KEYS)
    assert faults(settings) == []


@pytest.mark.parametrize("option", sorted(path.stem for path in (CONF / "llm").glob("*.yaml")))
@pytest.mark.parametrize("place", ["reasoner", "judge"])
def test_every_model_can_be_mounted_where_one_is_used(place: str, option: str) -> None:
    settings = config.plain(composed("reasoner=gpt4v", f"llm@{place}.llm={option}"), KEYS)
    assert faults(settings) == []


@pytest.mark.parametrize("option", sorted(path.stem for path in (CONF / "encoder").glob("*.yaml")))
def test_every_encoder_can_be_mounted(option: str) -> None:
    settings = config.plain(composed("reasoner=gpt4v", f"encoder@reasoner.encoder={option}"), KEYS)
    assert faults(settings) == []


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_knob_of_a_class_stands_in_its_yaml(group: str, option: str) -> None:
    import inspect
    import pkgutil

    value = f"[{option}]" if group in SEVERAL else option
    settings = config.plain(composed(f"{group}={value}"), KEYS)

    def missing(node: object) -> list[str]:
        found: list[str] = []
        if isinstance(node, dict):
            if "_target_" in node:
                target = node["_target_"]
                knobs = inspect.signature(pkgutil.resolve_name(target)).parameters
                found = [f"{target}: {knob}" for knob in knobs if knob not in node]
            found += [each for value in node.values() for each in missing(value)]
        return found

    assert missing(settings) == []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+sampler.kk=3", r"sampler.kk is no knob of .*did you mean k\?"),
        ("+concurency=3", r"concurency is no key of this command: did you mean concurrency\?"),
        ("+run.dryrun=true", r"run.dryrun is no knob of .*did you mean dry_run"),
        ("sampler.k=None", r"sampler.k = 'None': Input should be a valid integer"),
        ("sampler.k=[1,5]", r"sampler.k = \[1, 5\]: Input should be a valid integer"),
        ("sampler.k=2.5", r"sampler.k = 2.5: .*integer"),
        ("sampler.k=true", r"sampler.k = True: .*integer"),
        ("sampler.k=nan", r"sampler.k = nan: a finite number is needed"),
        ("concurrency=many", r"concurrency = 'many': .*integer"),
        ("run.coverage=98", r"run.coverage = 98.*from 0 to 1"),
        ("run.reask=[answered]", r"run.reask = \['answered'\]: .*'refused', 'blocked' or 'empty'"),
        ("dataset.limit=ten", r"dataset.limit = 'ten'"),
        ("sampler._target_=openeqa_lab.sampling.Strid", r"sampler._target_ = .*Strid.*must name"),
        ("sampler._target_=os", r"sampler._target_ = os: that is no class"),
    ],
)
def test_a_bad_value_is_refused_by_its_name(override: str, message: str) -> None:
    def check() -> None:
        settings = config.plain(composed(override), KEYS)
        config.run_options(settings["run"])
        config.limits(settings)
        for name in ("sampler", "dataset"):
            config.build(settings[name], name)

    with pytest.raises(OpenEQAError, match=message):
        check()


def test_all_faults_of_a_node_are_named_at_once() -> None:
    node = {"_target_": "openeqa_lab.sampling.Random", "k": "x", "sed": 3}
    with pytest.raises(OpenEQAError, match=r"sampler.k = 'x'.*sampler.sed is no knob.*seed"):
        config.build(node, "sampler")


def test_an_error_of_a_constructor_keeps_its_own_words() -> None:
    with pytest.raises(OpenEQAError, match="k"):
        config.build({"_target_": "openeqa_lab.sampling.Linspace", "k": 0}, "sampler")


def test_a_target_that_runs_commands_is_refused(tmp_path: Path) -> None:
    from hydra.errors import InstantiationException

    victim = tmp_path / "kept"
    victim.write_text("")
    with pytest.raises(InstantiationException, match=r"os\.remove"):
        config.build({"_target_": "os.remove", "path": str(victim)}, "sampler")
    assert victim.exists()


class Loose:
    """A user's class that takes whatever it is given."""

    def __init__(self, k: int, **more: object) -> None:
        self.k, self.more = k, more


def test_a_class_that_takes_any_knob_is_built_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    module = ModuleType("loose_module")
    module.Loose = Loose  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "loose_module", module)
    built = config.build({"_target_": "loose_module.Loose", "k": 3, "seed": 1}, "sampler")
    assert (built.k, built.more) == (3, {"seed": 1})
    with pytest.raises(OpenEQAError, match=r"sampler\.k is missing"):
        config.build({"_target_": "loose_module.Loose", "seed": 1}, "sampler")


def test_an_unforeseen_error_of_a_constructor_is_shown_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        config.build({"_target_": "fractions.Fraction", "numerator": 1, "denominator": 0}, "x")


@pytest.mark.parametrize(
    ("overrides", "sampler", "k", "episodes"),
    [
        (["reasoner=gpt4v"], "Linspace", 50, "Recorded"),
        (["reasoner=gpt4v", "sampler.k=15"], "Linspace", 15, "Recorded"),
        (["reasoner=gpt4v", "sampler=stride", "sampler.k=15"], "Stride", 15, "Recorded"),
        (["reasoner=claude3_vision"], "Linspace", 20, "Recorded"),
        (["reasoner=gemini_pro_vision"], "Linspace", 15, "Recorded"),
        (["reasoner=single_frame"], "FirstLastMiddle", 1, "Recorded"),
        (["reasoner=gpt4"], "Linspace", None, "Unseen"),
        (["reasoner=gpt4", "episodes=recorded"], "Linspace", None, "Recorded"),
        (["reasoner=prior"], "Linspace", None, "Unseen"),
    ],
)
def test_a_baseline_brings_its_own_k_and_the_command_line_wins(
    overrides: list[str], sampler: str, k: int | None, episodes: str
) -> None:
    settings = composed(*overrides)
    assert settings.sampler._target_.endswith(f".{sampler}")
    assert k is None or settings.sampler.k == k
    assert settings.episodes._target_.endswith(f".{episodes}")


def test_the_nodeset_profile_brings_its_metric_along() -> None:
    assert set(composed("judge=llm_match_nodeset").metrics) == {"score", "usage", "nodeset"}
    assert set(composed("judge=exact", "metrics=[score]").metrics) == {"score"}
    assert composed("loggers=[]").loggers == {}


def test_conf_is_found_as_a_package_or_as_a_folder() -> None:
    path = config.conf_path()
    assert path == "pkg://openeqa_lab.conf" or Path(path) == CONF
