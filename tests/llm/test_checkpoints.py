"""Two models never have one identity, and one model never has two."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.llm.local import LocalModel

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(reading: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds one model, and no network."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--lab--tiny"
    shutil.copytree(reading, model / "snapshots" / COMMIT)
    (model / "refs").mkdir()
    (model / "refs/main").write_text(COMMIT)
    (model / "blobs").mkdir()
    return tmp_path


def identity(model: Path | str, **knobs: Any) -> dict[str, object]:
    return dict(LocalModel(str(model), **knobs).identity)


def test_a_folder_is_its_name_and_content_wherever_it_lies(reading: Path, tmp_path: Path) -> None:
    here = identity(reading)
    there = identity(shutil.copytree(reading, tmp_path / "reading"))
    assert here == there
    assert here["model"] == "reading"
    assert str(reading.parent) not in json.dumps(here)
    (tmp_path / "reading/optimizer.pt").write_bytes(b"a trainer's")
    (tmp_path / "reading/.cache").mkdir()
    assert identity(tmp_path / "reading") == here


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "chat_template.jinja"])
def test_folders_that_differ_in_one_byte_are_two_models(
    reading: Path, tmp_path: Path, file: str
) -> None:
    other = shutil.copytree(reading, tmp_path / "reading")
    content = bytearray((other / file).read_bytes())
    content[-1] ^= 1
    (other / file).write_bytes(content)
    assert identity(other) != identity(reading)
    assert identity(other)["model"] == identity(reading)["model"]


def test_weights_of_another_training_are_another_model(
    tiny_models: Any, reading: Path, tmp_path: Path
) -> None:
    other = tiny_models.reading(tmp_path / "reading", seed=1)
    assert (other / "config.json").read_bytes() == (reading / "config.json").read_bytes()
    assert identity(other)["version"] != identity(reading)["version"]


def test_the_identity_holds_what_can_change_a_reply_and_no_more(reading: Path) -> None:
    plain = identity(reading)
    assert identity(reading, device="cpu", batch_size=9, attention="eager") == plain
    for knobs in (
        {"dtype": "bfloat16"}, {"temperature": 0.5}, {"max_tokens": 5}, {"seed": 5}, {"seed": None},
        {"trust_remote_code": True},
    ):  # fmt: skip
        assert identity(reading, **knobs) != plain


async def test_a_model_of_the_hub_is_its_commit(hub: Path, reading: Path) -> None:
    model = LocalModel("lab/tiny", max_tokens=4)
    assert (model.identity["model"], model.identity["version"]) == ("lab/tiny", COMMIT)
    assert identity("lab/tiny", revision=COMMIT)["version"] == COMMIT
    assert identity("lab/tiny", revision="main")["version"] == COMMIT
    reply = await model.complete(["Hello."])
    assert reply.text == (await LocalModel(str(reading), max_tokens=4).complete(["Hello."])).text
    assert reply.model == "lab/tiny"
    (hub / "models--lab--tiny/refs/main").write_text("f" * 40)  # the branch moves on meanwhile
    assert model.identity["version"] == COMMIT


@pytest.mark.parametrize(
    ("model", "revision", "message"),
    [
        ("lab/other", None, r"lab/other is not on this machine and cannot be downloaded \(.*offl"),
        ("lab/tiny", "v2", r"lab/tiny at revision v2 is not on this machine"),
        ("lab/tiny", "f" * 40, r"lab/tiny at revision f{40} is not on this machine"),
        ("lab/tiny!", None, r"lab/tiny! is no name: .*: write owner/name, or a folder's path"),
        ("models/lab/tiny", None, r"llm\.model is models/lab/tiny: there is no such folder"),
        ("./tiny", None, r"llm\.model is \./tiny: there is no such folder"),
        ("/no/such", None, r"llm\.model is /no/such: there is no such folder"),
    ],
)
def test_a_model_that_is_not_there_is_named_in_one_line(
    hub: Path, model: str, revision: str | None, message: str
) -> None:
    with pytest.raises(OpenEQAError, match=message) as caught:
        identity(model, revision=revision)
    assert "\n" not in str(caught.value)


async def test_a_call_says_the_same_of_a_model_that_is_not_there(hub: Path) -> None:
    with pytest.raises(OpenEQAError, match="lab/other is not on this machine"):
        await LocalModel("lab/other").complete(["Hello."])


def test_a_folder_that_is_no_model_and_a_revision_of_one_are_refused(
    reading: Path, tmp_path: Path
) -> None:
    with pytest.raises(OpenEQAError, match=rf"{tmp_path} holds no config\.json: llm\.model must"):
        identity(tmp_path)
    with pytest.raises(OpenEQAError, match=r"llm\.revision is main, and .* is a folder"):
        identity(reading, revision="main")
