"""What a vendor takes in one request, looked at before the request is paid."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

from openeqa_lab.data.episode import Image
from openeqa_lab.errors import CallError, OpenEQAError
from openeqa_lab.llm.image_tokens import ImageTokens, Patches

_GUESS = Patches(16)  # conf/llm/request_limits/tokens_an_image/guess.yaml


class _Fault(NamedTuple):
    """What is over a limit, the knob that holds the limit, and what to do."""

    found: str
    knob: str
    remedy: str


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one vendor takes in one request; None is no limit that is known.

    Args:
        source: Whose limits they are, where they stand, and when that was read: for messages.
        images: In one request.
        request_bytes: Of the whole body. Counted are the texts and the pictures as base64 text,
            without what stands around them: some tens of bytes a part.
        image_bytes: Of one picture.
        image_bytes_are: Whether the vendor counts a picture's base64 text, ``4 * ceil(n / 3)``
            bytes, or the bytes of the file.
        longest_side_px: Of one picture.
        many_images: With more pictures than this, `longest_side_of_many_px` holds too.
        longest_side_of_many_px: Of each of many pictures.
        media_types: Such as ``image/png``.
        tokens_an_image: The formula by which tokens are estimated.
    """

    source: str = ""
    images: int | None = None
    request_bytes: int | None = None
    image_bytes: int | None = None
    image_bytes_are: Literal["encoded", "raw"] = "encoded"
    longest_side_px: int | None = None
    many_images: int | None = None
    longest_side_of_many_px: int | None = None
    media_types: Sequence[str] | None = None
    tokens_an_image: ImageTokens = _GUESS

    def __post_init__(self) -> None:
        for knob in fields(self):
            value = getattr(self, knob.name)
            if isinstance(value, int) and value < 1:
                raise OpenEQAError(
                    f"llm.request_limits.{knob.name} is {value}: expected 1 or more, or null"
                )
        if (self.many_images is None) != (self.longest_side_of_many_px is None):
            raise OpenEQAError(
                "llm.request_limits.many_images and longest_side_of_many_px go together: "
                f"{self.many_images} and {self.longest_side_of_many_px} were given"
            )
        if self.media_types is not None and (
            isinstance(self.media_types, str) or not self.media_types
        ):
            raise OpenEQAError(
                f"llm.request_limits.media_types is {self.media_types!r}: expected a list such as "
                "[image/png,image/jpeg], or null"
            )

    def check(self, model: str, prompt: Sequence[str | Image], system: str) -> None:
        """See to it that the vendor takes a request, as far as its limits are known.

        Args:
            model: For the message.
            prompt: Texts and pictures.
            system: The system message.

        Raises:
            CallError: It is over a limit; all such limits are named, with what to do.
        """
        images = [part for part in prompt if isinstance(part, Image)]
        faults = [
            *self._images(images),
            *self._request_bytes(images, prompt, system),
            *self._image_bytes(images),
            *self._sides(images),
            *self._media_types(images),
        ]
        if not faults:
            return
        found = "; ".join(fault.found for fault in faults)
        remedies = "; ".join(dict.fromkeys(fault.remedy for fault in faults))
        knobs = " and ".join(f"reasoner.llm.request_limits.{fault.knob}" for fault in faults)
        source = f" by {self.source}" if self.source else ""
        raise CallError(
            f"{model}: {found}{source}; nothing was sent: {remedies} "
            f"(where more is taken by now, set {knobs})",
            kind="bad_request",
            found=f"{found}{source}",
        )

    def image_tokens(self, image: Image) -> int:
        """About what a picture costs, in tokens."""
        return self.tokens_an_image.of(image.width, image.height)

    def _images(self, images: Sequence[Image]) -> Iterator[_Fault]:
        if self.images is not None and len(images) > self.images:
            yield _Fault(
                f"{len(images)} pictures in one request, where at most {self.images} are taken",
                "images",
                f"set sampler.k={self.images} or less",
            )

    def _request_bytes(
        self, images: Sequence[Image], prompt: Sequence[str | Image], system: str
    ) -> Iterator[_Fault]:
        if self.request_bytes is None:
            return
        size = request_bytes(prompt, system)
        if size > self.request_bytes:
            remedy = "lower sampler.k or reasoner.encoder.size" if images else "shorten the text"
            yield _Fault(
                f"a request of {size:,} bytes, where at most {self.request_bytes:,} are taken",
                "request_bytes",
                remedy + _or_jpeg(images),
            )

    def _image_bytes(self, images: Sequence[Image]) -> Iterator[_Fault]:
        if self.image_bytes is None or not images:
            return
        encoded = self.image_bytes_are == "encoded"
        sizes = [encoded_bytes(len(image.data)) if encoded else len(image.data) for image in images]
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        if sizes[largest] > self.image_bytes:
            raw = len(images[largest].data)
            size = f"{sizes[largest]:,} bytes"
            if encoded:
                size += f" as base64 text, {raw:,} as a file"
            yield _Fault(
                f"picture {largest + 1} of {len(images)} has {size}, where at most "
                f"{self.image_bytes:,} are taken",
                "image_bytes",
                "lower reasoner.encoder.size" + _or_jpeg(images),
            )

    def _sides(self, images: Sequence[Image]) -> Iterator[_Fault]:
        limits: list[tuple[int, str, str]] = []
        if self.longest_side_px is not None:
            limits.append((self.longest_side_px, "longest_side_px", ""))
        most, fewer = self.many_images, self.longest_side_of_many_px
        if most is not None and fewer is not None and len(images) > most:
            limits.append((fewer, "longest_side_of_many_px", f", or sampler.k={most} or less"))
        if not limits or not images:
            return
        limit, knob, remedy = min(limits)
        sides = [max(image.width, image.height) for image in images]
        longest = max(range(len(sides)), key=sides.__getitem__)
        if sides[longest] > limit:
            image = images[longest]
            yield _Fault(
                f"picture {longest + 1} of {len(images)} is {image.width} x {image.height} pixels, "
                f"where at most {limit} a side are taken",
                knob,
                f"set reasoner.encoder.size={limit} or less{remedy}",
            )

    def _media_types(self, images: Sequence[Image]) -> Iterator[_Fault]:
        if self.media_types is None:
            return
        others = sorted({image.media_type for image in images} - set(self.media_types))
        if others:
            yield _Fault(
                f"pictures of type {' and '.join(others)}, where {', '.join(self.media_types)} "
                "are taken",
                "media_types",
                "take encoder@reasoner.encoder=jpeg",
            )


def encoded_bytes(raw: int) -> int:
    """The length of so many bytes as base64 text."""
    return 4 * -(-raw // 3)


def request_bytes(prompt: Sequence[str | Image], system: str) -> int:
    """What texts and pictures take of a request's body, in bytes, without what is around them."""
    texts = [text for text in (system, *prompt) if isinstance(text, str) and text]
    images = (part for part in prompt if isinstance(part, Image))
    return sum(
        len(json.dumps(text, ensure_ascii=False).encode("utf-8", "backslashreplace"))
        for text in texts
    ) + sum(encoded_bytes(len(image.data)) for image in images)


def _or_jpeg(images: Sequence[Image]) -> str:
    other = any(image.media_type not in ("image/jpeg", "image/webp") for image in images)
    return ", or take encoder@reasoner.encoder=jpeg" if other else ""


NO_LIMITS = RequestLimits()
