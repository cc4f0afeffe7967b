"""A prompt as litellm takes it, in OpenAI's shape, and a guess at its size."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence

from openeqa_lab.data.episode import Image
from openeqa_lab.records import whole_characters

_LETTERS_A_TOKEN = 4


def tokens(prompt: Sequence[str | Image], system: str, image_tokens: Callable[[Image], int]) -> int:
    """A guess at a prompt's tokens, before anybody has counted."""
    letters = len(system) + sum(len(part) for part in prompt if isinstance(part, str))
    pictures = (part for part in prompt if isinstance(part, Image))
    return letters // _LETTERS_A_TOKEN + sum(map(image_tokens, pictures))


def fingerprint(prompt: Sequence[str | Image]) -> list[object]:
    """A prompt as JSON values, with digests for pictures."""
    return [
        part
        if isinstance(part, str)
        else {"media_type": part.media_type, "sha256": hashlib.sha256(part.data).hexdigest()}
        for part in prompt
    ]


def as_base64(image: Image) -> str:
    """A picture's bytes as text."""
    return base64.b64encode(image.data).decode("ascii")


def messages(
    prompt: Sequence[str | Image],
    system: str,
    *,
    marked: bool = False,
    text_of: Callable[[Image], str] = as_base64,
) -> list[dict[str, object]]:
    """The messages of a request, texts and pictures in the order given.

    Args:
        prompt: Texts and pictures.
        system: The system message, empty for none.
        marked: Whether the last picture is marked as the end of what the vendor shall cache.
        text_of: Writes a picture as base64, or what stands for it.
    """
    # Servers for text alone may know no lists.
    prompt = [whole_characters(part) if isinstance(part, str) else part for part in prompt]
    system = whole_characters(system)
    lone = len(prompt) == 1 and isinstance(prompt[0], str)
    parts = [_part(part, text_of) for part in prompt]
    if marked:
        last = max(place for place, part in enumerate(prompt) if isinstance(part, Image))
        parts[last]["cache_control"] = {"type": "ephemeral"}
    content: object = prompt[0] if lone else parts
    sent: list[dict[str, object]] = [{"role": "user", "content": content}]
    return [{"role": "system", "content": system}, *sent] if system else sent


def _part(part: str | Image, text_of: Callable[[Image], str]) -> dict[str, object]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    url = f"data:{part.media_type};base64,{text_of(part)}"
    return {"type": "image_url", "image_url": {"url": url}}
