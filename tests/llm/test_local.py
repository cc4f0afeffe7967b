"""Models of transformers in this process: a batch changes nothing, and faults say what to do."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import io
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image as Pictures

from openeqa_lab import config
from openeqa_lab.data.episode import Image
from openeqa_lab.errors import CallError, OpenEQAError
from openeqa_lab.llm import Completion, Forecaster, local, repeat
from openeqa_lab.llm.generation import Request, _Draws, _without_thoughts
from openeqa_lab.llm.local import LocalModel
from openeqa_lab.testing import check_llm

YAML = Path(__file__).resolve().parents[2] / "conf/llm/local.yaml"
Prompt = list[str | Image]


def picture(seed: int, width: int = 40, height: int = 30) -> Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Pictures.fromarray(pixels).save(buffer, "PNG")
    return Image(buffer.getvalue(), "image/png", width, height)


async def said(model: LocalModel, *prompts: Prompt) -> list[str]:
    replies = await asyncio.gather(*(model.complete(prompt) for prompt in prompts))
    return [reply.text for reply in replies]


@contextlib.asynccontextmanager
async def watched(model: LocalModel, watch: Callable[[int], None]) -> AsyncIterator[None]:
    """The model is loaded, and tells the size of each batch that it is to step."""
    await model.complete(["Hello."])
    assert model._batches is not None
    loaded: Any = model._batches._loaded

    def look(_module: object, _positional: object, named: dict[str, Any]) -> None:
        watch(len(named["input_ids"]))

    hook = loaded.model.register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


@pytest.fixture(params=["reading", "seeing", "seeing_any_size"])
def folder(
    request: pytest.FixtureRequest, tiny_models: Any, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    if request.param != "seeing_any_size":
        made: Path = request.getfixturevalue(request.param)
        return made
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("needs torchvision, in the build that fits this torch")
    place = tmp_path_factory.getbasetemp() / "seeing_any_size"
    return place if place.exists() else tiny_models.seeing_any_size(place)


async def test_its_yaml_file_holds_every_knob_and_builds_it(reading: Path) -> None:
    node = OmegaConf.create({"llm": OmegaConf.load(YAML)})
    node.llm.model = str(reading)
    settings: Any = OmegaConf.to_container(node.llm, resolve=True)
    assert list(inspect.signature(LocalModel).parameters) == [
        knob for knob in settings if knob != "_target_"
    ]
    model = config.build({**settings, "max_tokens": 4}, "reasoner.llm")
    assert (await model.complete(["Hello."])).usage.completion_tokens <= 4


async def test_the_contract_is_kept(folder: Path) -> None:
    await check_llm(LocalModel(str(folder), max_tokens=4), pictures=folder.name != "reading")


async def test_a_batch_of_all_lengths_says_what_each_says_alone(folder: Path) -> None:
    prompts: list[Prompt] = [["a"], ["What is on the table, and what is under it?"], ["b", "c"]]
    if folder.name != "reading":
        prompts += [
            ["Look.", picture(1), "What is this?"],
            [picture(2, 80, 20), "What is to the left of the door in this long picture?"],
            ["Here", picture(3)],
            ["Two", picture(3), picture(4, 20, 90)],
            ["Two, and more words about them", picture(5), picture(6)],
        ]
    sizes: set[int] = set()
    model = LocalModel(str(folder), max_tokens=16, batch_size=8)
    async with watched(model, sizes.add):
        alone = [(await said(model, prompt))[0] for prompt in prompts]
        assert sizes == {1}
        assert await said(model, *prompts[::-1]) == alone[::-1]
        assert 3 in sizes
    assert len(set(alone)) == len(prompts)


async def test_pictures_and_their_order_change_what_is_said(folder: Path) -> None:
    if folder.name == "reading":
        pytest.skip("reads text alone")
    model = LocalModel(str(folder), max_tokens=16)
    one, two = picture(1), picture(2)
    prompts: list[Prompt] = [
        [one, two, "?"], [two, one, "?"], [one, "?", two], [one, one, "?"], [one, "?"], ["?"],
    ]  # fmt: skip
    assert len(set(await said(model, *prompts))) == len(prompts)


async def test_what_was_read_and_written_is_counted(seeing: Path) -> None:
    replies = await asyncio.gather(
        *(LocalModel(str(seeing), max_tokens=9).complete([text]) for text in ("a", "abcde"))
    )
    short, long = (reply.usage for reply in replies)
    assert long.prompt_tokens == short.prompt_tokens + 4
    assert (short.calls, short.completion_tokens, short.dollars) == (1, 9, 0.0)
    assert short.seconds > 0
    assert {reply.model for reply in replies} == {"seeing"}
    assert {reply.finish_reason for reply in replies} == {"length"}


async def test_a_reply_ends_where_the_model_says(reading: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    whole = await LocalModel(str(reading), max_tokens=40).complete(["Hello."])
    letter = next(letter for letter in whole.text[3:] if letter.isascii() and letter.isalnum())
    (end,) = AutoTokenizer.from_pretrained(reading)(letter)["input_ids"]
    shutil.copytree(reading, tmp_path / "ends")
    GenerationConfig(eos_token_id=[2, end]).save_pretrained(tmp_path / "ends")
    cut = await LocalModel(str(tmp_path / "ends"), max_tokens=40).complete(["Hello."])
    assert (whole.finish_reason, cut.finish_reason) == ("length", "stop")
    assert cut.text == whole.text[: whole.text.index(letter)]
    assert cut.usage.completion_tokens < whole.usage.completion_tokens


async def test_the_models_own_sampling_is_left_out(reading: Path, tmp_path: Path) -> None:
    from transformers import GenerationConfig

    shutil.copytree(reading, tmp_path / "own")
    GenerationConfig(
        do_sample=True, temperature=1.9, top_k=5, top_p=0.5, repetition_penalty=5.0, eos_token_id=2
    ).save_pretrained(tmp_path / "own")
    plain, own = (LocalModel(str(place), max_tokens=40) for place in (reading, tmp_path / "own"))
    assert await said(own, ["Hello."]) == await said(plain, ["Hello."])


async def test_draws_are_repeated_by_their_seed_whatever_is_beside_them(reading: Path) -> None:
    def model(seed: int | None) -> LocalModel:
        return LocalModel(str(reading), temperature=1.0, max_tokens=12, seed=seed, batch_size=8)

    prompts: list[Prompt] = [["a"], ["some more words"], ["b"]]
    alone = [(await said(model(1), prompt))[0] for prompt in prompts]
    assert await said(model(1), *prompts) == alone
    assert (await said(model(2), ["a"]))[0] != alone[0]
    assert len(set(await said(model(None), ["a"], ["a"], ["a"]))) == 3
    assert await said(LocalModel(str(reading), max_tokens=12), ["a"]) != [alone[0]]
    again = (await said(model(2), ["a"]))[0]
    repeat.set(1)
    assert (await said(model(1), ["a"]))[0] == again


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_probabilities(tiny_models: Any, temperature: float) -> None:
    import torch

    logits = torch.log(torch.tensor([0.6, 0.3, 0.1]))
    requests = [Request(("a",), "", temperature, 1, seed) for seed in range(50)]
    draws, counts = _Draws(requests), torch.zeros(3)
    for _ in range(100):
        chosen = draws(torch.zeros(50, 1), logits.expand(50, 3)).argmax(dim=1)
        counts += torch.bincount(chosen, minlength=3)
    expected = torch.softmax(logits / temperature, dim=0)
    assert torch.allclose(counts / 5000, expected, atol=0.025)
    likeliest = _Draws([Request(("a",), "", 0.0, 1, 1)])
    assert torch.equal(likeliest(torch.zeros(1, 1), logits[None]), logits[None])


def test_it_is_loaded_once_for_all_threads_and_loops(reading: Path) -> None:
    models = [LocalModel(str(reading), max_tokens=6, temperature=heat) for heat in (0.0, 0.5)]
    texts: list[str] = []

    async def ask() -> None:
        texts.extend(await said(models[0], ["Hello."], ["Hello."]))
        await said(models[1], ["Hello."])

    threads = [threading.Thread(target=asyncio.run, args=(ask(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(ask())
    assert len(texts) == 8
    assert len(set(texts)) == 1
    assert models[0]._batches is models[1]._batches
    other = LocalModel(str(reading), dtype="bfloat16", max_tokens=6)
    asyncio.run(said(other, ["Hello."]))
    assert other._batches is not models[0]._batches


async def test_a_dtype_that_is_asked_for_is_the_models(seeing: Path) -> None:
    import torch

    model = LocalModel(str(seeing), dtype="bfloat16", max_tokens=2)
    await model.complete(["What?", picture(1)])
    assert model._batches is not None
    loaded: Any = model._batches._loaded
    assert {weight.dtype for weight in loaded.model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(("fault", "attention"), [("cuda", "sdpa"), ("processor", "eager")])
async def test_a_batch_that_is_too_large_is_halved_and_the_run_goes_on(
    reading: Path, fault: str, attention: str
) -> None:
    import torch

    sizes: list[int] = []

    def watch(size: int) -> None:
        sizes.append(size)
        if size > 2 and fault == "cuda":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if size > 2:
            torch.empty(1 << 58)

    prompts: list[Prompt] = [[f"chair number {number}"] for number in range(8)]
    fresh = LocalModel(str(reading), max_tokens=6)
    alone = [(await said(fresh, prompt))[0] for prompt in prompts]
    model = LocalModel(str(reading), max_tokens=6, batch_size=8, attention=attention)
    async with watched(model, watch):
        assert await said(model, *prompts) == alone
        assert sizes[:2] == [8, 4]
        sizes.clear()
        assert await said(model, *prompts) == alone
        assert max(sizes) == 2


async def test_one_request_that_does_not_fit_is_refused_alone(reading: Path) -> None:
    import torch

    def watch(size: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    model = LocalModel(str(reading), max_tokens=6, batch_size=3)
    message = r"reading: the memory of cpu is too small for one request with 0 pictures \(fewer"
    async with watched(model, watch):
        done = await asyncio.gather(
            *(model.complete(["Hello."]) for _ in range(3)), return_exceptions=True
        )
    for each in done:
        assert isinstance(each, CallError)
        assert each.kind == "bad_request"
        with pytest.raises(CallError, match=message):
            raise each


async def test_another_fault_of_the_model_is_shown_as_it_is(reading: Path) -> None:
    def watch(size: int) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    model = LocalModel(str(reading), max_tokens=6, batch_size=3)
    async with watched(model, watch):
        done = await asyncio.gather(
            *(model.complete(["Hello."]) for _ in range(3)), return_exceptions=True
        )
    assert [type(each) for each in done] == 3 * [RuntimeError]


async def test_a_reply_that_nobody_waits_for_is_ended(reading: Path) -> None:
    loop, begun = asyncio.get_running_loop(), asyncio.Event()
    dropped, steps = threading.Event(), [0]

    def watch(size: int) -> None:
        steps[0] += 1
        if steps[0] == 3:
            loop.call_soon_threadsafe(begun.set)
            dropped.wait(60)

    model = LocalModel(str(reading), max_tokens=400, batch_size=2)
    after = LocalModel(str(reading), max_tokens=4, batch_size=2)
    whole = await model.complete(["Hello."])
    assert whole.usage.completion_tokens > 50
    async with watched(after, watch):
        tasks = [asyncio.create_task(model.complete(["Hello."])) for _ in range(6)]
        await begun.wait()
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        dropped.set()
        assert all(isinstance(each, asyncio.CancelledError) for each in done)
        assert isinstance(await after.complete(["Hello."]), Completion)
    assert after._batches is model._batches
    assert steps[0] <= 3 + 4


async def test_a_text_model_refuses_pictures(reading: Path) -> None:
    model = LocalModel(str(reading), max_tokens=4)
    prompt: Prompt = ["What?", picture(1), picture(2)]
    with pytest.raises(CallError, match=r"reading: it reads text alone, .* 2 pictures") as caught:
        await model.complete(prompt)
    assert caught.value.kind == "bad_request"


async def test_more_than_the_context_holds_is_refused_with_the_count(seeing: Path) -> None:
    model = LocalModel(str(seeing), max_tokens=16, batch_size=4)
    fine, long = "chair" * 80, "chair" * 120
    done = await asyncio.gather(
        *(model.complete([text]) for text in (fine, long, "a")), return_exceptions=True
    )
    assert [type(each) for each in done] == [Completion, CallError, Completion]
    message = r"a prompt of 619 tokens with 0 pictures and a reply of up to 16 need 635, .* 512 \("
    with pytest.raises(CallError, match=message) as caught:
        await model.complete([long])
    assert caught.value.kind == "bad_request"
    with pytest.raises(CallError, match=r"with 20 pictures .*: sampler\.k, reasoner\.encoder"):
        await model.complete(["Look.", *(picture(seed) for seed in range(20))])
    edge = 512 - 16 - 22 + 3
    assert isinstance(await model.complete(["a" * (edge - 3)]), Completion)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (["a", Image(b"GIF89a", "image/gif", 1, 1)], r"part 2 of 2 of the prompt \(image/gif, 6 b"),
        (["a", Image(picture(1).data[:99], "image/png", 40, 30)], r"is no picture that Pillow"),
        (["What is <image>?", picture(1)], r"seeing: the text holds '<image>', which stands"),
    ],
)
async def test_a_prompt_that_cannot_be_shown_is_refused(
    seeing: Path, prompt: Prompt, message: str
) -> None:
    model = LocalModel(str(seeing), max_tokens=4)
    done = await asyncio.gather(
        model.complete(prompt), model.complete(["b", picture(2)]), return_exceptions=True
    )
    assert isinstance(done[1], Completion)
    with pytest.raises(CallError, match=message) as caught:
        await model.complete(prompt)
    assert caught.value.kind == "bad_request"


async def test_a_system_message_that_the_template_refuses_is_named(
    tiny_models: Any, tmp_path: Path
) -> None:
    refuses = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
    )
    folder = tiny_models.seeing(tmp_path / "model", template=refuses + tiny_models.TEMPLATE)
    model = LocalModel(str(folder), max_tokens=4)
    done = await asyncio.gather(
        model.complete(["a"]), model.complete(["b"], "Be brief."), return_exceptions=True
    )
    assert isinstance(done[0], Completion)
    assert isinstance(done[1], CallError)
    with pytest.raises(CallError, match=r"refuses the prompt: No system role \(change the prompt"):
        raise done[1]


async def test_reasoning_is_left_out_and_counts_towards_the_limit(
    tiny_models: Any, tmp_path: Path
) -> None:
    template = tiny_models.TEMPLATE.replace("assistant\n", "assistant\n<think>\n")
    folder = tiny_models.reading(tmp_path / "model", template=template)
    with pytest.raises(CallError, match=r"\(max_tokens=6\) was spent before any text") as caught:
        await LocalModel(str(folder), max_tokens=6).complete(["Hello."])
    assert caught.value.kind == "truncated"
    assert caught.value.usage is not None
    assert caught.value.usage.completion_tokens == 6


@pytest.mark.parametrize(
    ("text", "thinks", "left"),
    [
        ("a chair", False, "a chair"),
        ("<think>\nhm\n</think>\n\na chair", False, "a chair"),
        ("hm</think>a chair", True, "a chair"),
        ("hm, and so on", True, ""),
        ("<think>hm", False, ""),
        ("a <think> b </think> c", False, "a <think> b </think> c"),
    ],
)
def test_what_follows_the_reasoning_is_the_reply(text: str, thinks: bool, left: str) -> None:
    assert _without_thoughts(text, thinks) == left


async def test_a_call_is_said_to_be_free_before_it_is_made(reading: Path) -> None:
    model = LocalModel(str(reading), max_tokens=7)
    assert isinstance(model, Forecaster)
    forecast = await model.forecast(["What is this?"], "Be brief.")
    assert (forecast.calls, forecast.dollars, forecast.most_dollars) == (1, 0, 0)
    assert forecast.reply_tokens == 7
    assert 0 < forecast.prompt_tokens < 20
    seen = await model.forecast(["What is this?", picture(1)])
    assert seen.prompt_tokens > forecast.prompt_tokens
    assert seen.most_dollars == 0


@pytest.mark.parametrize("text", ["", "\0", "half \ud83d an emoji", "🛋️", "<|im_end|>", "{{ 1 }}"])
async def test_odd_texts_are_answered_too(reading: Path, text: str) -> None:
    reply = await LocalModel(str(reading), max_tokens=3).complete([text], system=text)
    reply.text.encode()
    assert reply.usage.calls == 1


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"model": "???"}, r"llm\.model is not set: name a folder"),
        ({"temperature": -1.0}, r"llm\.temperature is -1\.0: expected 0 to 2"),
        ({"seed": -1}, r"llm\.seed is -1"),
        ({"max_tokens": 0}, r"llm\.max_tokens is 0: expected 1 or more"),
        ({"batch_size": 0}, r"llm\.batch_size is 0: expected 1 or more"),
    ],
)
def test_a_knob_out_of_range_is_refused(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(OpenEQAError, match=message):
        LocalModel(**{"model": "folder", **knobs})


def test_a_missing_package_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "find_spec", lambda name: None)
    with pytest.raises(OpenEQAError, match=r"pip install 'openeqa-lab\[local\]'"):
        LocalModel("folder")


def test_a_run_with_frames_ends_cleanly(seeing: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "openeqa_lab.run", "experiment=demo", "reasoner=multi_frame",
        "sampler.k=2", "encoder@reasoner.encoder=jpeg", "llm@reasoner.llm=local",
        f"reasoner.llm.model={seeing}", "reasoner.llm.max_tokens=4", "reasoner.llm.device=cpu",
        "dataset.limit=3", "judge=exact", "loggers=[]", f"output_dir={tmp_path / 'run'}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "3 of 3 judged" in done.stdout
