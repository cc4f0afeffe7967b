"""Each file in conf/llm/ sends what its vendor documents, and a price nobody knows is none."""

from __future__ import annotations

import base64
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir

from openeqa_lab import config
from openeqa_lab.data.episode import Image
from openeqa_lab.errors import CallError
from openeqa_lab.llm import client
from openeqa_lab.llm.api import ApiModel
from openeqa_lab.llm.request_limits import RequestLimits
from openeqa_lab.testing import check_llm

CONF = Path(__file__).resolve().parents[2] / "conf"
KEY = "sk-test-0123456789abcdefgh"
PICTURES = [Image(f"picture {n}".encode(), "image/jpeg", 8, 6) for n in range(3)]
PROMPT = ["Look at these.", *PICTURES, "What color is the sofa?"]
KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "gemini": "GEMINI_API_KEY",
        "openrouter": "OPENROUTER_API_KEY"}  # fmt: skip


@dataclass(frozen=True)
class Expected:
    """What one file is to put on the wire.

    Args:
        wire: Whose.
        model: By its name there.
        path: That is asked.
        limit: Name and value of the reply's limit.
        temperature: None for not sent.
        seed: None for not sent.
        priced: Whether litellm knows a price.
        adjusted: What is said to be sent otherwise.
        system: Whether the system message has a place of its own; else it stands first.
    """

    wire: str
    model: str
    path: str
    limit: tuple[str, int]
    temperature: float | None = None
    seed: int | None = 1234
    priced: bool = True
    adjusted: tuple[str, ...] = ()
    system: bool = True


CHAT, MESSAGES = "/v1/chat/completions", "/anthropic/v1/messages"
RAISED = "max_tokens=128 is raised to 4224 for hidden reasoning"
NO_SEED = "seed=1234 is not sent: the model does not take it"
RENAMED = ("max_tokens is sent as max_completion_tokens",)
GOOGLE = ("max_tokens is sent as max_output_tokens",)


def openai(name: str) -> Expected:
    limit = ("max_completion_tokens", 4224)
    return Expected("openai", name, CHAT, limit, adjusted=(RAISED, *RENAMED))


def anthropic(name: str) -> Expected:
    limit = ("max_tokens", 4224)
    return Expected("anthropic", name, MESSAGES, limit, seed=None, adjusted=(RAISED,))


def gemini(name: str, most: int = 4224, **other: Any) -> Expected:
    path = f"/gemini/v1beta/models/{name}:generateContent"
    adjusted = (RAISED, *GOOGLE) if most > 128 else GOOGLE
    return Expected(
        "gemini", name, path, ("max_output_tokens", most), **{"adjusted": adjusted, **other}
    )


def old(wire: str, name: str, path: str = CHAT, **other: Any) -> Expected:
    return Expected(wire, name, path, ("max_tokens", 128), **{"temperature": 0.2, **other})


EXPECTED = {
    "gpt6_astra": openai("gpt-6-astra"),
    "gpt6_1_sol": openai("gpt-6.1-sol"),
    "gpt6_luna": openai("gpt-6-luna"),
    "gpt4o": old("openai", "gpt-4o"),
    "gpt4_0613": old("openai", "gpt-4-0613"),
    "gpt4_1106": old("openai", "gpt-4-1106-preview"),
    "gpt4_vision": old("openai", "gpt-4-vision-preview", priced=False),
    "claude5_5_opus": anthropic("claude-opus-5-5"),
    "claude5_5_sonnet": anthropic("claude-sonnet-5-5"),
    "claude5_5_haiku": anthropic("claude-haiku-5-5"),
    "claude3_opus": old("anthropic", "claude-3-opus-20240229", MESSAGES, seed=None, priced=False,
                        adjusted=(NO_SEED,)),
    "gemini4_argon": gemini("gemini-4-argon"),
    "gemini3_8_flash": gemini("gemini-3.8-flash"),
    "gemini_pro": gemini("gemini-pro", 128, temperature=0.2, priced=False, system=False),
    "gemini_pro_vision": gemini("gemini-pro-vision", 128, temperature=0.2, priced=False,
                                system=False),
    "openrouter": old("openrouter", "some/model", priced=False),
    "vllm": old("hosted_vllm", "my/own-vlm", priced=False),
    "ollama": old("hosted_vllm", "qwen3-vl:8b", priced=False),
    "openai_compatible": old("hosted_vllm", "my/own", priced=False),
    "llama2": old("hosted_vllm", "meta-llama/Llama-2-70b-chat-hf", priced=False),
}  # fmt: skip
# What a user gives where a file leaves it open.
GIVEN = {
    "openrouter": "openrouter/some/model",
    "vllm": "hosted_vllm/my/own-vlm",
    "ollama": "hosted_vllm/qwen3-vl:8b",
    "openai_compatible": "hosted_vllm/my/own",
}
PATHS = {"openrouter": "/v1", "hosted_vllm": "/v1"}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for vendor in ("OPENAI", "ANTHROPIC", "GEMINI", "GOOGLE", "OPENROUTER", "HOSTED_VLLM"):
        for name in ("API_KEY", "API_BASE", "BASE_URL"):
            monkeypatch.delenv(f"{vendor}_{name}", raising=False)
    monkeypatch.setenv("TEST_API_KEY", KEY)


def node(option: str, *overrides: str) -> dict[str, Any]:
    """One file as it is composed."""
    given = ["+cache_dir=cache", "+cache=read"]
    given += [f"llm.model={GIVEN[option]}"] if option in GIVEN else []
    with initialize_config_dir(str(CONF), version_base="1.3"):
        settings = compose(f"llm/{option}", overrides=[*given, *overrides])
    composed = config.plain(settings, ["llm", "cache", "cache_dir"])["llm"]
    assert isinstance(composed, dict)
    return composed


def built(option: str, base: str, *overrides: str) -> ApiModel:
    """The model of one file, at a server of ours."""
    local = (f"llm.api_base={base}", "llm.api_key_env=TEST_API_KEY", "llm.timeout_s=20",
             "llm.patience.attempts=1")  # fmt: skip
    model = config.build(node(option, *local, *overrides), "llm")
    assert isinstance(model, ApiModel)
    return model


def base(server: Any, wire: str) -> str:
    """Where a server speaks a vendor's wire."""
    return server.url + PATHS[wire] if wire in PATHS else str(server.base(wire))


def parts_sent(body: dict[str, Any]) -> list[object]:
    """Texts, and pictures as bytes with their media type, in the vendor's form and in order."""
    if "contents" in body:
        [content] = body["contents"]
        return [
            part["text"]
            if "text" in part
            else (base64.b64decode(part["inline_data"]["data"]), part["inline_data"]["mime_type"])
            for part in content["parts"]
        ]
    found: list[object] = []
    for part in next(m for m in body["messages"] if m["role"] == "user")["content"]:
        if part["type"] == "text":
            found.append(part["text"])
        elif part["type"] == "image":
            source = part["source"]
            assert source["type"] == "base64"
            found.append((base64.b64decode(source["data"]), source["media_type"]))
        else:
            head, _, data = part["image_url"]["url"].partition(";base64,")
            found.append((base64.b64decode(data), head.removeprefix("data:")))
    return found


def system_sent(body: dict[str, Any]) -> object:
    """The system message where it has a place of its own."""
    if "contents" in body:
        return (
            body["system_instruction"]["parts"][0]["text"] if "system_instruction" in body else None
        )
    if "system" in body:
        return body["system"][0]["text"]
    return next((m["content"] for m in body["messages"] if m["role"] == "system"), None)


def settings_sent(body: dict[str, Any]) -> dict[str, Any]:
    """All that goes along with the prompt."""
    about_prompt = {"model", "messages", "system", "contents", "system_instruction"}
    sent = {name: value for name, value in body.items() if name not in about_prompt}
    return sent.pop("generationConfig", {}) | sent


def test_every_file_is_in_the_table() -> None:
    files = {
        path.stem
        for path in (CONF / "llm").glob("*.yaml")
        if yaml.safe_load(path.read_text()).get("_target_", "").endswith(".ApiModel")
    }
    assert files == set(EXPECTED)


@pytest.mark.parametrize("option", EXPECTED)
async def test_each_file_sends_what_its_vendor_documents(
    option: str, mock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    expected = EXPECTED[option]
    mock.queue(type="reply", text="A red one.")
    asked = built(option, base(mock, expected.wire))
    with caplog.at_level(logging.WARNING, "openeqa_lab"):
        reply = await asked.complete(PROMPT, system="Be brief.")
    assert reply.text == "A red one."
    [request] = mock.requests()
    assert (request["model"], request["path"]) == (expected.model, expected.path)
    body = request["body"]
    parts = [part if isinstance(part, str) else (part.data, part.media_type) for part in PROMPT]
    assert parts_sent(body) == (parts if expected.system else ["Be brief.", *parts])
    assert system_sent(body) == ("Be brief." if expected.system else None)
    sent = settings_sent(body)
    sent.pop("usage", None)  # OpenRouter is asked to count
    wanted = {
        expected.limit[0]: expected.limit[1],
        "temperature": expected.temperature,
        "seed": expected.seed,
    }
    assert sent == {name: value for name, value in wanted.items() if value is not None}
    assert reply.adjusted == expected.adjusted
    assert len(caplog.records) == len(expected.adjusted)
    assert (reply.usage.dollars is not None) == expected.priced
    assert reply.usage.dollars is None or reply.usage.dollars > 0


@pytest.mark.parametrize("option", EXPECTED)
async def test_the_key_goes_where_the_vendor_looks_for_it(option: str, wire: Any) -> None:
    wire.says({"error": {"message": "no"}}, 400)
    vendor = EXPECTED[option].wire
    with pytest.raises(CallError, match="HTTP 400"):
        await built(option, base(wire, vendor)).complete(["Hello."])
    [headers] = wire.headers
    place = {"anthropic": "x-api-key", "gemini": "x-goog-api-key"}.get(vendor, "authorization")
    assert headers[place] == (f"Bearer {KEY}" if place == "authorization" else KEY)
    assert [name for name, value in headers.items() if KEY in value] == [place]
    if vendor == "anthropic":
        assert headers["anthropic-version"] == "2023-06-01"


@pytest.mark.parametrize("option", EXPECTED)
async def test_the_variable_of_a_missing_key_is_the_one_the_file_names(option: str) -> None:
    vendor = EXPECTED[option].wire
    if vendor not in KEYS:
        assert "null: no key is sent" in (CONF / f"llm/{option}.yaml").read_text()
        return
    model = config.build(node(option), "llm")
    with pytest.raises(CallError, match=f"needs a key: .*{KEYS[vendor]}") as caught:
        await model.complete(["Hello."])
    assert caught.value.kind == "auth"
    assert KEYS[vendor] in (CONF / f"llm/{option}.yaml").read_text()


async def test_a_server_of_ones_own_is_asked_without_a_key(wire: Any) -> None:
    wire.says({"error": {"message": "no"}}, 400)
    for option in ("vllm", "ollama"):
        asked = built(option, f"{wire.url}/v1", "llm.api_key_env=null")
        with pytest.raises(CallError, match="HTTP 400"):
            await asked.complete(["Hello."])
    assert [headers["authorization"] for headers in wire.headers] == ["Bearer none"] * 2


async def test_ollamas_own_wire_which_is_not_used_would_part_pictures_from_texts(
    wire: Any,
) -> None:
    wire.says({"error": {"message": "no"}}, 400)
    asked = built("ollama", wire.url, "llm.model=ollama_chat/qwen3-vl:8b")
    with pytest.raises(CallError):
        await asked.complete(PROMPT)
    [message] = wire.requests[0]["messages"]
    assert message["content"] == "Look at these.What color is the sofa?"
    assert [base64.b64decode(data) for data in message["images"]] == [p.data for p in PICTURES]


def test_servers_of_ones_own_are_looked_for_where_they_usually_are() -> None:
    assert node("vllm")["api_base"] == "http://localhost:8000/v1"
    assert node("ollama")["api_base"] == "http://localhost:11434/v1"


@pytest.mark.parametrize("option", ["gpt6_luna", "claude5_5_haiku", "gemini3_8_flash", "ollama"])
async def test_a_file_of_each_vendor_passes_the_kit(option: str, mock: Any) -> None:
    await check_llm(built(option, base(mock, EXPECTED[option].wire)))


@pytest.mark.parametrize("model", ["gemini-3-pro-preview", "gemma-4-31b-it", "gemini-of-tomorrow"])
async def test_a_model_that_is_not_listed_or_stands_there_with_0_is_unpriced(
    model: str, mock: Any
) -> None:
    asked = built("gemini4_argon", mock.base("gemini"), f"llm.model=gemini/{model}")
    usage = (await asked.complete(["Hello."])).usage
    assert usage.completion_tokens > 0
    assert usage.dollars is None


@pytest.mark.parametrize(
    "option", [name for name, expected in EXPECTED.items() if expected.limit[1] > 128]
)
def test_todays_models_see_reason_and_have_a_price_in_litellms_list(option: str) -> None:
    litellm = client.load()
    entry = litellm.get_model_info(node(option)["model"])
    assert entry["supports_vision"]
    assert entry["supports_reasoning"]
    assert entry["input_cost_per_token"] > 0
    assert entry["max_output_tokens"] >= 4224


@pytest.mark.parametrize("option", EXPECTED)
def test_a_temperature_that_a_vendor_refuses_stands_as_null_with_a_reason(option: str) -> None:
    """Not dropped at run time, so that a run's identity says what was asked for."""
    line = re.search(
        r"^temperature: (\S+) # (.+)$", (CONF / f"llm/{option}.yaml").read_text(), re.M
    )
    assert line
    expected = EXPECTED[option].temperature
    assert line.group(1) == ("null" if expected is None else str(expected))
    assert not any("temperature" in phrase for phrase in EXPECTED[option].adjusted)


LIMITS = [  # whose, how many pictures, and what a frame of 512 x 382 pixels costs in tokens
    ("gpt6_astra", "OpenAI", 1500, 231), ("gpt6_1_sol", "OpenAI", 1500, 231),
    ("gpt6_luna", "OpenAI", 1500, 231), ("gpt4o", "OpenAI", 1500, 255),
    ("gpt4_vision", "OpenAI", 1500, 255), ("gpt4_0613", "OpenAI", 1500, 231),
    ("gpt4_1106", "OpenAI", 1500, 231), ("claude5_5_opus", "Anthropic", 600, 266),
    ("claude5_5_sonnet", "Anthropic", 600, 266), ("claude5_5_haiku", "Anthropic", 600, 266),
    ("claude3_opus", "Anthropic", 100, 266), ("gemini4_argon", "Google", 3600, 1120),
    ("gemini3_8_flash", "Google", 3600, 1120), ("gemini_pro", "Google", 3600, 1120),
    ("gemini_pro_vision", "Google", 16, 258), ("openrouter", "OpenRouter", None, 768),
    ("vllm", "", None, 768), ("ollama", "", None, 768), ("openai_compatible", "", None, 768),
    ("llama2", "", None, 768),
]  # fmt: skip


@pytest.mark.parametrize(("option", "vendor", "images", "tokens"), LIMITS)
def test_each_file_has_its_vendors_limits(
    option: str, vendor: str, images: int | None, tokens: int
) -> None:
    composed = node(option, "llm.api_base=http://localhost:8000/v1")
    limits = config.build(composed["request_limits"], "llm.request_limits")
    assert isinstance(limits, RequestLimits)
    assert limits.source.partition(" (")[0] == vendor
    assert limits.images == images
    assert limits.image_tokens(Image(b"", "image/jpeg", 512, 382)) == tokens


def test_the_table_of_limits_holds_every_file() -> None:
    assert {row[0] for row in LIMITS} == set(EXPECTED)


@pytest.mark.parametrize("option", ["claude3_opus", "gpt6_luna", "gemini_pro_vision"])
async def test_one_picture_too_many_is_not_sent_and_what_a_user_sets_holds(
    option: str, mock: Any
) -> None:
    images = next(row[2] for row in LIMITS if row[0] == option)
    assert images is not None
    server = base(mock, EXPECTED[option].wire)
    prompt = [*PICTURES[:1] * (images + 1), "What color is the sofa?"]
    with pytest.raises(CallError, match=f"where at most {images} are taken by ") as caught:
        await built(option, server).complete(prompt)
    assert caught.value.kind == "bad_request"
    assert caught.value.usage is None
    assert mock.requests() == []
    asked = built(option, server, f"llm.request_limits.images={images + 1}")
    assert (await asked.complete(prompt)).text
