"""How one frame becomes one picture; nothing here knows of threads, processes or stores."""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from PIL import Image as Pillow

from openeqa_lab.data.episode import Image, RawFrame
from openeqa_lab.errors import FrameError
from openeqa_lab.images.decoding import checked_pixels, decode, fast_pixels, opened

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Format = Literal["jpeg", "png", "webp"]
Resampling = Literal["box", "bilinear", "bicubic", "lanczos", "catmull_rom"]

PILLOWS: Mapping[str, Pillow.Resampling] = {
    "box": Pillow.Resampling.BOX,
    "bilinear": Pillow.Resampling.BILINEAR,
    "bicubic": Pillow.Resampling.BICUBIC,
    "lanczos": Pillow.Resampling.LANCZOS,
}


@dataclass(frozen=True, slots=True)
class Shrinking:
    """What `Encoder` does with a frame; see there.

    Args:
        format: What is written.
        size: Long side in pixels; 0 leaves pictures as they are.
        quality: Of JPEG and WebP.
        resampling: The filter that pictures are shrunk with.
        fast: Decode plain PNG with kornia-rs; the bytes written are the same.
    """

    format: Format
    size: int
    quality: int
    resampling: Resampling
    fast: bool = False

    def __call__(self, raw: RawFrame) -> Image:
        """The picture of a frame; raises `FrameError` where it cannot be read or written."""
        picture = decode(raw, fast=self.fast)
        scale = self.size / max(picture.size)
        if 0 < scale < 1:
            width, height = (max(1, round(side * scale)) for side in picture.size)
            picture = _shrunk(picture, (width, height), self.resampling)
        picture.info.clear()  # profiles, comments and the like are not sent
        buffer = io.BytesIO()
        try:
            if self.format == "png":
                # Run lengths alone: a third of the time, and no more bytes on photographs.
                picture.save(buffer, "PNG", compress_level=1, compress_type=zlib.Z_RLE)
            else:
                picture.save(buffer, self.format.upper(), quality=self.quality)
        except (ValueError, OSError) as error:  # more pixels a side than the format can hold
            raise FrameError(
                f"{raw.name}: {picture.width}x{picture.height} cannot be written as "
                f"{self.format} ({error}): set encoder.size, or take encoder=png"
            ) from None
        return _image(buffer.getvalue(), *picture.size)


@dataclass(frozen=True, slots=True)
class UpstreamShrinking:
    """What `UpstreamEncoder` does with a frame; see there.

    Args:
        size: Long side in pixels; 0 leaves pictures as they are.
        fast: Decode plain PNG and write PNG with kornia-rs; the pixels are the same.
    """

    size: int
    fast: bool = False

    def __call__(self, raw: RawFrame) -> Image:
        """The picture of a frame; raises `FrameError` where it cannot be read or shrunk."""
        import cv2

        # RGB or BGR makes no difference to the resizing, which works channel by channel.
        rgb = fast_pixels(raw.content) if self.fast and isinstance(raw.content, bytes) else None
        picture = _bgr(raw) if rgb is None else rgb
        height, width = picture.shape[:2]
        if self.size:
            factor = self.size / max(height, width)
            if round(min(height, width) * factor) < 1:
                raise FrameError(f"{raw.name}: {width}x{height} has no line left at {self.size} px")
            picture = cv2.resize(picture, dsize=None, fx=factor, fy=factor)
            height, width = picture.shape[:2]
        if rgb is None:
            data = cv2.imencode(".png", picture)[1].tobytes()
        else:
            from kornia_rs import image as kornia

            data = kornia.Image.frombuffer(picture).encode("png", compress_level=1)
        return _image(data, width, height)


Preparation = Shrinking | UpstreamShrinking


def _shrunk(picture: Pillow.Image, size: tuple[int, int], resampling: str) -> Pillow.Image:
    if resampling in PILLOWS:
        return picture.resize(size, PILLOWS[resampling])
    from cykooz_resizer import FilterType, ResizeAlg, ResizeOptions, Resizer

    shrunk = Pillow.new("RGB", size)
    filter_ = ResizeAlg.convolution(FilterType.catmull_rom)
    Resizer().resize_pil(picture, shrunk, ResizeOptions(resize_alg=filter_, use_alpha=False))
    return shrunk


def _bgr(raw: RawFrame) -> NDArray[np.uint8]:
    """The pixels as ``cv2.imread(path, IMREAD_COLOR)`` gives them."""
    import cv2
    import numpy as np

    if not isinstance(raw.content, bytes):
        return np.ascontiguousarray(checked_pixels(raw.content, raw.name)[..., ::-1])
    opened(raw.content, raw.name)
    pixels: NDArray[np.uint8] | None = cv2.imdecode(
        np.frombuffer(raw.content, np.uint8), cv2.IMREAD_COLOR
    )
    if pixels is None:
        raise FrameError(
            f"{raw.name} is cut or damaged (OpenCV cannot read it): copy or download it again"
        )
    return pixels


def _image(data: bytes, width: int, height: int) -> Image:
    """The picture with its media type read off the bytes that were written."""
    return Image(data, media_type(data), width, height)


def media_type(data: bytes) -> str:
    """What an encoder here has written, told by its first bytes."""
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    raise AssertionError(f"an encoder wrote {data[:12]!r}")
