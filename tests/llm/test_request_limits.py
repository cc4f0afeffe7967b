"""What a vendor takes is known to the byte, and what it does not take is not sent."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from openeqa_lab import config
from openeqa_lab.data.episode import Image
from openeqa_lab.errors import CallError, OpenEQAError
from openeqa_lab.llm import client
from openeqa_lab.llm.api import ApiModel
from openeqa_lab.llm.image_tokens import Constant, Crops, ImageTokens, Patches, Tiles
from openeqa_lab.llm.patience import Patience
from openeqa_lab.llm.request_limits import NO_LIMITS, RequestLimits, encoded_bytes, request_bytes

CONF = Path(__file__).resolve().parents[2] / "conf"
OPTIONS = sorted(path.stem for path in (CONF / "llm/request_limits").glob("*.yaml"))
FORMULAS = sorted(
    path.stem for path in (CONF / "llm/request_limits/tokens_an_image").glob("*.yaml")
)
MIB = 2**20


def picture(size: int = 10, kind: str = "image/jpeg", width: int = 512, height: int = 382) -> Image:
    return Image(b"\0" * size, kind, width, height)


def option(name: str, *overrides: str) -> RequestLimits:
    """The limits of one YAML file."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        settings = compose(f"llm/request_limits/{name}", overrides=list(overrides))
    node = config.plain(settings, ["llm"])["llm"]
    assert isinstance(node, dict)
    built = config.build(node["request_limits"], "llm.request_limits")
    assert isinstance(built, RequestLimits)
    return built


def refusal(limits: RequestLimits, *prompt: str | Image, system: str = "") -> CallError:
    with pytest.raises(CallError) as caught:
        limits.check("vendor/model", prompt, system)
    error = caught.value
    assert error.kind == "bad_request"  # which no patience tries again
    assert not error.fatal
    assert error.usage is None  # nothing was paid
    assert error.found in str(error)
    return error


# ------------------------------------------------------------------------------------- borders


@pytest.mark.parametrize(
    ("raw", "encoded"), [(0, 0), (1, 4), (2, 4), (3, 4), (4, 8), (3_932_160, 5_242_880),
                         (3_932_161, 5_242_884), (4_804_036, 6_405_384)],
)  # fmt: skip
def test_the_length_of_base64_text_is_exact(raw: int, encoded: int) -> None:
    import base64

    assert encoded_bytes(raw) == encoded
    if raw < 10:
        assert len(base64.b64encode(b"x" * raw)) == encoded


@pytest.mark.parametrize(("size", "fits"), [(3_932_160, True), (3_932_161, False)])
def test_a_picture_is_compared_as_the_text_it_is_sent_as(size: int, fits: bool) -> None:
    limits = RequestLimits(image_bytes=5 * MIB)
    if fits:
        limits.check("m", [picture(size)], "")
    else:
        error = refusal(limits, picture(), picture(size))
        assert str(error) == (
            "vendor/model: picture 2 of 2 has 5,242,884 bytes as base64 text, 3,932,161 as a file, "
            "where at most 5,242,880 are taken; nothing was sent: lower reasoner.encoder.size "
            "(where more is taken by now, set reasoner.llm.request_limits.image_bytes)"
        )


def test_a_vendor_that_counts_files_is_told_apart() -> None:
    limits = RequestLimits(image_bytes=5 * MIB, image_bytes_are="raw")
    limits.check("m", [picture(5 * MIB)], "")
    assert "picture 1 of 1 has 5,242,881 bytes, where" in str(refusal(limits, picture(5 * MIB + 1)))


def test_the_reported_pictures_are_judged_as_the_vendor_does(shared: Path) -> None:
    with open(shared / "cases/base64_limit.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    for row in rows:
        raw = int(row["raw_bytes"])
        assert encoded_bytes(raw) == int(row["encoded_bytes"])
        limits = RequestLimits(image_bytes=int(row["limit_bytes"]))
        if row["right"] == "ok":
            limits.check("m", [picture(raw)], "")
        else:
            assert f"{int(row['encoded_bytes']):,}" in str(refusal(limits, picture(raw)))


def test_as_many_pictures_as_are_taken_pass_and_one_more_does_not() -> None:
    limits = RequestLimits(source="Somebody (page, date)", images=3)
    limits.check("m", ["Look.", *[picture()] * 3], "")
    assert str(refusal(limits, "Look.", *[picture()] * 4)) == (
        "vendor/model: 4 pictures in one request, where at most 3 are taken by Somebody (page, "
        "date); nothing was sent: set sampler.k=3 or less (where more is taken by now, set "
        "reasoner.llm.request_limits.images)"
    )


def test_a_request_is_as_long_as_its_texts_and_its_pictures_as_text() -> None:
    prompt = ["Grüße", picture(3), picture(4)]
    assert request_bytes(prompt, "\n") == len('"\\n"') + len('"Grüße"'.encode()) + 4 + 8
    limits = RequestLimits(request_bytes=request_bytes(prompt, "\n"))
    limits.check("m", prompt, "\n")
    error = refusal(limits, *prompt, system="\n!")
    assert "a request of 26 bytes, where at most 25 are taken" in str(error)
    assert "lower sampler.k or reasoner.encoder.size (" in str(error)


def test_a_long_text_alone_is_to_be_shortened() -> None:
    error = refusal(RequestLimits(request_bytes=100), "x" * 100)
    assert "nothing was sent: shorten the text (" in str(error)


def test_half_a_character_can_be_counted() -> None:
    assert request_bytes(["\ud83d"], "") == len('"\\ud83d"')


@pytest.mark.parametrize(
    ("count", "width", "height", "found", "remedy"),
    [(20, 8000, 10, None, ""), (20, 10, 8001, "10 x 8001 pixels, where at most 8000",
      "set reasoner.encoder.size=8000 or less ("),
     (21, 2000, 2000, None, ""), (21, 2001, 10, "2001 x 10 pixels, where at most 2000 a side",
      "set reasoner.encoder.size=2000 or less, or sampler.k=20 or less (")],
)  # fmt: skip
def test_a_side_is_held_to_the_lower_limit_when_there_are_many_pictures(
    count: int, width: int, height: int, found: str | None, remedy: str
) -> None:
    limits = RequestLimits(longest_side_px=8000, many_images=20, longest_side_of_many_px=2000)
    prompt = [*[picture()] * (count - 1), picture(width=width, height=height)]
    if found is None:
        limits.check("m", prompt, "")
    else:
        error = refusal(limits, *prompt)
        assert f"picture {count} of {count} is {found}" in str(error)
        assert remedy in str(error)


def test_the_lower_limit_holds_alone_too() -> None:
    limits = RequestLimits(many_images=2, longest_side_of_many_px=100)
    limits.check("m", [picture(), picture()], "")
    assert "at most 100 a side" in str(refusal(limits, picture(), picture(), picture()))


def test_a_media_type_that_is_not_taken_is_named_with_those_that_are() -> None:
    limits = RequestLimits(media_types=["image/png", "image/jpeg"])
    limits.check("m", [picture(), picture(kind="image/png")], "")
    error = refusal(limits, picture(), picture(kind="image/webp"), picture(kind="image/bmp"))
    assert (
        "pictures of type image/bmp and image/webp, where image/png, image/jpeg are taken; nothing "
        "was sent: take encoder@reasoner.encoder=jpeg (" in str(error)
    )


def test_all_limits_that_a_request_is_over_are_named_at_once() -> None:
    limits = RequestLimits(images=1, request_bytes=10, image_bytes=10, longest_side_px=100)
    error = refusal(limits, *[picture(20, "image/png")] * 2)
    for knob in ("images", "request_bytes", "image_bytes", "longest_side_px"):
        assert f"llm.request_limits.{knob}" in str(error)
    assert str(error).count("encoder@reasoner.encoder=jpeg") == 2
    assert "\n" not in str(error)


def test_jpeg_is_no_remedy_for_jpegs() -> None:
    limits = RequestLimits(request_bytes=10, image_bytes=10)
    assert "encoder=jpeg" not in str(refusal(limits, picture(20)))


def test_without_limits_everything_passes() -> None:
    NO_LIMITS.check("m", ["x" * 10**6, *[picture(10**5, "image/bmp", 99_999, 1)] * 2000], "")
    NO_LIMITS.check("m", [], "")


@pytest.mark.parametrize(
    ("knobs", "message"),
    [({"images": 0}, "llm.request_limits.images is 0: expected 1 or more, or null"),
     ({"request_bytes": -1}, "llm.request_limits.request_bytes is -1"),
     ({"longest_side_px": 0}, "llm.request_limits.longest_side_px is 0"),
     ({"many_images": 20}, "go together: 20 and None were given"),
     ({"longest_side_of_many_px": 20}, "go together: None and 20 were given"),
     ({"media_types": []}, r"media_types is \[\]: expected a list"),
     ({"media_types": "image/png"}, "media_types is 'image/png': expected a list")],
)  # fmt: skip
def test_a_limit_that_cannot_be_is_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(OpenEQAError, match=message):
        RequestLimits(**knobs)


# --------------------------------------------------------------------------------- YAML files


@pytest.mark.parametrize("name", OPTIONS)
def test_every_vendors_file_has_every_knob_and_takes_the_demos_prompt(name: str) -> None:
    from dataclasses import fields

    import yaml

    node = yaml.safe_load((CONF / f"llm/request_limits/{name}.yaml").read_text())
    assert set(node) - {"defaults", "_target_"} == {knob.name for knob in fields(RequestLimits)} - {
        "tokens_an_image"
    }
    limits = option(name)
    limits.check("m", ["Look.", *[picture(40_000)] * 50, "What?"], "Be brief.")
    known = [knob.name for knob in fields(limits) if getattr(limits, knob.name)]
    assert bool(limits.source) == (name != "none")
    assert ("read 2026-" in limits.source) == (name != "none")
    assert ("media_types" in known) == (name != "none")


@pytest.mark.parametrize("formula", FORMULAS)
def test_every_formula_can_be_chosen_for_a_vendor(formula: str) -> None:
    from dataclasses import fields

    import yaml

    place = "llm/request_limits/tokens_an_image"
    limits = option("none", f"{place}={formula}")
    node = yaml.safe_load((CONF / place / f"{formula}.yaml").read_text())
    assert set(node) - {"_target_"} == {
        knob.name
        for knob in fields(limits.tokens_an_image)  # type: ignore[arg-type]
    }
    assert limits.image_tokens(picture()) > 0


@pytest.mark.parametrize(
    ("name", "prompt", "found"),
    [
        ("anthropic", [picture()] * 601, "601 pictures in one request, where at most 600"),
        ("anthropic", [picture(7_864_321)], "10,485,764 bytes as base64 text"),
        ("anthropic", [picture(500_000, "image/png")] * 51, "a request of 34,000,068 bytes"),
        ("anthropic", [picture(width=2001)] * 21, "2001 x 382 pixels, where at most 2000"),
        ("anthropic", [picture(kind="image/heic")], "image/heic"),
        ("openai", [picture()] * 1501, "1501 pictures"),
        ("openai", [picture(750_000)] * 51, "where at most 50,000,000"),
        ("google", [picture()] * 3601, "3601 pictures"),
        ("google", [picture(1_500_000)] * 51, "where at most 100,000,000"),
        ("google", [picture(kind="image/gif")], "image/gif"),
        ("openrouter", [picture(kind="image/heic")], "image/heic"),
    ],
)  # fmt: skip
def test_each_vendors_limits_are_those_of_its_pages(
    name: str, prompt: list[Image], found: str
) -> None:
    error = refusal(option(name), *prompt)
    assert found in str(error)
    vendor = {"openai": "OpenAI", "openrouter": "OpenRouter"}.get(name, name.capitalize())
    assert f" by {vendor} (https://" in str(error)


def test_fifty_frames_at_the_border_pass_at_anthropic() -> None:
    limits = option("anthropic")
    limits.check("m", [picture(7_864_320)], "")
    limits.check("m", [picture(width=2000, height=2000)] * 21, "")
    limits.check("m", [picture()] * 600, "")


# ----------------------------------------------------------------------------------- the wire


@pytest.mark.parametrize(
    "name", ["openai/gpt-4o", "anthropic/claude-opus-5-5", "gemini/gemini-3.8-flash"]
)
async def test_a_body_is_never_shorter_than_what_is_counted_and_little_longer(
    name: str, wire: Any
) -> None:
    wire.says({"error": {"message": "no"}}, 400)
    prompt = ['Look at "these".\n', *[picture(30_000 + n) for n in range(20)], "Größe?"]
    asked = ApiModel(
        name, api_base=wire.base(name.partition("/")[0]), patience=Patience(attempts=1)
    )
    with pytest.raises(CallError, match="HTTP 400"):
        await asked.complete(prompt, system="Be brief.")
    [headers] = wire.headers
    counted = request_bytes(prompt, "Be brief.")
    assert counted <= int(headers["content-length"]) <= counted + 110 * len(prompt) + 300


# ------------------------------------------------------------------------------------- tokens

# Transcribed from https://huggingface.co/datasets/JOHNISKING/image-token-cost, less 77 and 65
# tokens of text for the two columns of Claude.
MEASURED = [
    (256, 256, "openai_patches", 77), (512, 512, "openai_patches", 308),
    (1024, 1024, "openai_patches", 1229), (1920, 1080, "openai_patches", 2448),
    (4032, 3024, "openai_patches", 14364),
    (256, 256, "anthropic", 100), (512, 512, "anthropic", 361), (768, 768, "anthropic", 784),
    (1024, 1024, "anthropic", 1369), (1280, 720, "anthropic", 1196),
    (1920, 1080, "anthropic", 2691), (1024, 1024, "anthropic_small", 1369),
]  # fmt: skip


@pytest.mark.parametrize(("width", "height", "formula", "tokens"), MEASURED)
def test_estimates_are_what_others_were_billed(
    width: int, height: int, formula: str, tokens: int
) -> None:
    limits = option("none", f"llm/request_limits/tokens_an_image={formula}")
    assert limits.image_tokens(picture(width=width, height=height)) == tokens


GUIDES: list[tuple[ImageTokens, int, int, int]] = [
    # OpenAI, "Images and vision", Calculating costs
    (Patches(32, 1536), 1024, 1024, 1024), (Patches(32, 1536), 1800, 2400, 1452),
    (Tiles(85, 170), 1024, 1024, 765), (Tiles(85, 170), 2048, 4096, 1105),
    (Tiles(85, 170), 512, 382, 255), (Tiles(2833, 5667), 512, 382, 8500),
    # Google, "Image understanding", Token calculation
    (Crops(), 384, 384, 258), (Crops(), 960, 540, 6 * 258), (Crops(), 385, 100, 2 * 258),
    (Constant(1120), 512, 382, 1120),
    # what the default frame costs a vendor that counts in squares
    (Patches(28), 512, 382, 19 * 14), (Patches(16), 512, 384, 768),
    (Patches(32, factor=1.2), 512, 382, 231),
    # of the dataset above: a budget of patches, and a long picture
    (Patches(32, 10_000, 6000, 1.2), 4032, 3024, 11_868), (Patches(32, 2500), 2560, 1440, 2442),
    (Patches(32, 1536), 100_000, 1, 1536), (Patches(28), 1, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize(("formula", "width", "height", "tokens"), GUIDES)
def test_formulas_give_the_examples_of_their_guides(
    formula: ImageTokens, width: int, height: int, tokens: int
) -> None:
    assert formula.of(width, height) == tokens


@pytest.mark.parametrize(
    ("model", "formula", "share"),
    [("openai/gpt-6-astra", "openai_patches", 0), ("openai/gpt-4o", "openai_tiles", 0),
     ("anthropic/claude-opus-5-5", "anthropic", 0.07),
     ("anthropic/claude-haiku-4-5", "anthropic_small", 0.07)],
)  # fmt: skip
def test_formulas_agree_with_litellms(model: str, formula: str, share: float) -> None:
    import base64
    import random

    from PIL import Image as Picture

    client.load()
    from litellm.litellm_core_utils.token_counter import estimate_image_tokens

    limits = option("none", f"llm/request_limits/tokens_an_image={formula}")
    draw = random.Random(0)
    for _ in range(20):
        width = draw.randint(32, 4000)
        height = draw.randint(width // 2, width * 2)
        buffer = io.BytesIO()
        Picture.new("1", (width, height)).save(buffer, "PNG")
        data = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
        theirs = estimate_image_tokens(model, data)
        ours = limits.image_tokens(picture(width=width, height=height))
        assert ours == pytest.approx(theirs, rel=share, abs=0), (width, height)


@pytest.mark.parametrize(
    ("build", "knob"),
    [(lambda: Constant(0), "tokens is 0"), (lambda: Patches(0), "side_px is 0"),
     (lambda: Patches(28, 0), "most is 0"), (lambda: Patches(28, factor=0.0), "factor is 0.0"),
     (lambda: Tiles(85, 170, side_px=-1), "side_px is -1"),
     (lambda: Crops(least_px=0), "least_px is 0")],
)  # fmt: skip
def test_a_formula_without_sense_is_refused_by_its_knob(build: Any, knob: str) -> None:
    with pytest.raises(OpenEQAError, match=f"tokens_an_image.{knob}: expected more than 0"):
        build()
