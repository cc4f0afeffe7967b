"""A model that cannot be loaded, or is not whole, says so in one line before it answers."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from openeqa_lab.errors import CallError, OpenEQAError
from openeqa_lab.llm.local import LocalModel


async def refused(model: LocalModel, message: str) -> None:
    """All that wait are told, and none of them as if the call alone had failed."""
    calls = (model.complete(["Hello."]) for _ in range(3))
    for error in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(error, OpenEQAError)
        assert not isinstance(error, CallError)
        assert "\n" not in str(error)
        with pytest.raises(OpenEQAError, match=message):
            raise error


def changed(folder: Path, file: str, **entries: object) -> None:
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**content, **entries}))


@pytest.fixture
def copy(reading: Path, tmp_path: Path) -> Path:
    return shutil.copytree(reading, tmp_path / "copy")


async def test_weights_that_are_missing_are_not_made_up(copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    await refused(
        LocalModel(str(copy)),
        r"copy cannot be loaded: its weights are not whole: 1 are missing, such as model\.layers",
    )


@pytest.mark.parametrize("size", [0, 100, 20_000])
async def test_a_cut_file_of_weights_is_named(copy: Path, size: int) -> None:
    content = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(content[:size])
    await refused(LocalModel(str(copy)), r"copy cannot be loaded: .*\(check llm\.model\)")


async def test_a_folder_without_weights_is_named(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    await refused(LocalModel(str(copy)), r"copy cannot be loaded: .*model\.safetensors")


async def test_a_model_that_is_no_chat_model_is_refused(
    tiny_models: Any, tmp_path: Path, copy: Path
) -> None:
    plain = tiny_models.reading(tmp_path / "plain", template=None)
    await refused(LocalModel(str(plain)), r"plain cannot be loaded: it has no chat template")
    changed(copy, "config.json", model_type="vit", architectures=["ViTModel"])
    await refused(LocalModel(str(copy)), r"copy cannot be loaded: .*(ViT|vit)")
    changed(copy, "config.json", model_type="of_tomorrow")
    await refused(LocalModel(str(copy)), r"copy cannot be loaded: .*of_tomorrow")


async def test_code_of_a_model_is_not_run_unless_it_is_trusted(copy: Path) -> None:
    own = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nOwn = None\n"
    (copy / "own.py").write_text(own)
    changed(
        copy,
        "config.json",
        model_type="own",
        auto_map={"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"},
    )
    await refused(LocalModel(str(copy)), r"set llm\.trust_remote_code=true if you would run it")
    assert not list(copy.rglob("ran"))


async def test_a_model_that_wants_another_package_names_it(
    tiny_models: Any, tmp_path: Path, seeing: Path
) -> None:
    if importlib.util.find_spec("torchvision") is not None:
        pytest.skip("torchvision is there, which is what would be missing")
    folder = shutil.copytree(seeing, tmp_path / "copy")
    changed(
        folder,
        "processor_config.json",
        processor_class="Qwen2VLProcessor",
        video_processor={"video_processor_type": "Qwen2VLVideoProcessor"},
    )
    await refused(LocalModel(str(folder)), r"[Tt]orchvision.*\(install what it names, in the build")


async def test_a_model_with_eyes_and_no_settings_for_pictures_is_refused(
    seeing: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(seeing, tmp_path / "copy")
    (folder / "processor_config.json").unlink()
    await refused(LocalModel(str(folder)), r"copy cannot be loaded: .*(pictures|preprocessor)")


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", r"llm\.device is 'gpu': expected auto, cpu, cuda, cuda:1 or mps"),
        ("cuda:99", r"llm\.device is cuda:99, and torch .* finds no such device here: .*cpu"),
    ],
)
async def test_a_device_that_is_not_there_is_named(
    reading: Path, device: str, message: str
) -> None:
    await refused(LocalModel(str(reading), device=device), message)


async def test_attention_that_is_unknown_is_refused(reading: Path) -> None:
    model = LocalModel(str(reading), attention="flash_attention_9")
    await refused(model, r"reading cannot be loaded: .*flash_attention_9")


async def test_a_model_without_a_token_for_padding_is_padded_all_the_same(
    reading: Path, copy: Path
) -> None:
    for file in ("config.json", "tokenizer_config.json", "generation_config.json"):
        content = json.loads((copy / file).read_text())
        (copy / file).write_text(
            json.dumps({name: value for name, value in content.items() if "pad_token" not in name})
        )
    models = [LocalModel(str(folder), max_tokens=8) for folder in (reading, copy)]
    prompts = ["a", "a longer one", "b"]
    said = [
        [
            reply.text
            for reply in await asyncio.gather(*(model.complete([text]) for text in prompts))
        ]
        for model in models
    ]
    assert said[0] == said[1]
