"""From a frame's bytes to the picture a model is sent; each frame is prepared once a run."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from PIL import Image as Pillow
from PIL import ImageFile, ImageOps, UnidentifiedImageError

from openeqa_lab.data.episode import Frame, Image, RawFrame
from openeqa_lab.errors import FrameError, OpenEQAError
from openeqa_lab.images.once import PreparedOnce

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Format = Literal["jpeg", "png", "webp"]
Resampling = Literal["box", "bilinear", "bicubic", "lanczos"]

_READABLE = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
_MOST_PIXELS = 89_478_485  # where Pillow begins to warn of a bomb
_RESAMPLING: Mapping[str, Pillow.Resampling] = {
    "box": Pillow.Resampling.BOX,
    "bilinear": Pillow.Resampling.BILINEAR,
    "bicubic": Pillow.Resampling.BICUBIC,
    "lanczos": Pillow.Resampling.LANCZOS,
}
# What Pillow's readers raise on damaged bytes; anything else is a fault of ours and shows itself.
_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error)
_NOT_PICTURES = (
    (b"<", "is a web page or other markup, not a picture: the download went wrong"),
    (b"version https://git-lfs", "is a Git LFS pointer, not a picture: run `git lfs pull`"),
)


class Encoder:
    """Decodes, orients, shrinks and encodes frames: the same bytes for the same frame.

    `decode` says what is taken for a frame. Pictures are never enlarged. Each of the resamplings
    is anti-aliased: the filter widens as the picture shrinks.

    Args:
        format: What is sent. PNG keeps every pixel at some eight times the bytes of JPEG.
        size: Long side in pixels; 0 leaves pictures as they are.
        quality: Of JPEG and WebP, from 1 to 100; PNG has none.
        resampling: The filter that pictures are shrunk with; ``box`` is the area average.
        cache_mb: Megabytes of encoded pictures that are kept; 0 keeps none.
        threads: Threads that decode.
    """

    def __init__(
        self,
        format: Format = "jpeg",  # noqa: A002 - the word of the YAML file
        size: int = 512,
        quality: int = 90,
        resampling: Resampling = "bicubic",
        cache_mb: int = 128,
        threads: int = 4,
    ) -> None:
        _check_choice("format", format, ("jpeg", "png", "webp"))
        _check_range("size", size, 0)
        _check_range("quality", quality, 1, 100)
        _check_choice("resampling", resampling, tuple(_RESAMPLING))
        _check_range("cache_mb", cache_mb, 0)
        _check_range("threads", threads, 1)
        self._format, self._size, self._quality = format, size, quality
        self._resampling = resampling
        self._once = PreparedOnce(self._prepare, cache_mb, threads)

    @property
    def identity(self) -> Mapping[str, object]:
        """Format, size, resampling and, where the format has one, quality."""
        settings = {"format": self._format, "size": self._size, "resampling": self._resampling}
        return settings if self._format == "png" else settings | {"quality": self._quality}

    async def encode(self, frames: Sequence[Frame], /) -> Sequence[Image]:
        """One picture a frame, in the order given; frames that wait share one decoding.

        Raises:
            FrameError: A frame cannot be read; the message names its path.
        """
        return await self._once.get(frames)

    def _prepare(self, raw: RawFrame) -> Image:
        picture = decode(raw)
        scale = self._size / max(picture.size)
        if 0 < scale < 1:
            width, height = (max(1, round(side * scale)) for side in picture.size)
            picture = picture.resize((width, height), _RESAMPLING[self._resampling])
        picture.info.clear()  # profiles, comments and the like are not sent
        buffer = io.BytesIO()
        try:
            if self._format == "png":
                # Run lengths alone: a third of the time, and no more bytes on photographs.
                picture.save(buffer, "PNG", compress_level=1, compress_type=zlib.Z_RLE)
            else:
                picture.save(buffer, self._format.upper(), quality=self._quality)
        except (ValueError, OSError) as error:  # more pixels a side than the format can hold
            raise FrameError(
                f"{raw.name}: {picture.width}x{picture.height} cannot be written as "
                f"{self._format} ({error}): set encoder.size, or take encoder=png"
            ) from None
        return _image(buffer.getvalue(), *picture.size)


class UpstreamEncoder:
    """Pixels identical to upstream's preparation, with OpenCV (the extra ``upstream``).

    OpenCV reads the frame (orientation applied, alpha dropped, gray and palette made colour),
    resizes by ``size / long side`` without anti-aliasing, *up as well as down*, and writes PNG.
    What `decode` refuses is refused here too, where upstream would show a wrong picture.

    Args:
        size: Long side in pixels; 0 leaves pictures as they are.
        cache_mb: Megabytes of encoded pictures that are kept; 0 keeps none.
        threads: Threads that decode.

    Raises:
        OpenEQAError: OpenCV is not installed.
    """

    def __init__(self, size: int = 512, cache_mb: int = 128, threads: int = 4) -> None:
        _check_range("size", size, 0)
        _check_range("cache_mb", cache_mb, 0)
        _check_range("threads", threads, 1)
        try:
            import cv2  # noqa: F401 - said now, not at the first frame
        except ImportError as error:
            raise OpenEQAError(
                f"encoder=png_upstream needs OpenCV ({error}): pip install 'openeqa-lab[upstream]'"
            ) from None
        self._size = size
        self._once = PreparedOnce(self._prepare, cache_mb, threads)

    @property
    def identity(self) -> Mapping[str, object]:
        """Name and size."""
        return {"format": "png_upstream", "size": self._size}

    async def encode(self, frames: Sequence[Frame], /) -> Sequence[Image]:
        """One PNG a frame, in the order given; frames that wait share one decoding.

        Raises:
            FrameError: A frame cannot be read; the message names its path.
        """
        return await self._once.get(frames)

    def _prepare(self, raw: RawFrame) -> Image:
        import cv2

        picture = _bgr(raw)
        height, width = picture.shape[:2]
        if self._size:
            factor = self._size / max(height, width)
            if round(min(height, width) * factor) < 1:
                raise FrameError(
                    f"{raw.name}: {width}x{height} has no line left at {self._size} px"
                )
            picture = cv2.resize(picture, dsize=None, fx=factor, fy=factor)
            height, width = picture.shape[:2]
        _, data = cv2.imencode(".png", picture)
        return _image(data.tobytes(), width, height)


def decode(raw: RawFrame) -> Pillow.Image:
    """The frame as an upright RGB picture of its full size.

    Orientation is applied, where EXIF can be read; CMYK, gray, palette and 1-bit pictures become
    RGB; transparent pixels are laid on white; colour profiles are not applied.

    Raises:
        FrameError: It is not one whole 8-bit picture: empty, cut, damaged, a web page, of another
            format, 16-bit, animated, or beyond 89 million pixels.
    """
    if not isinstance(raw.content, bytes):
        return Pillow.fromarray(_checked_pixels(raw.content, raw.name))
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise OpenEQAError(
            "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is on, so cut frames would be filled with gray "
            "unseen: set it to False"
        )
    picture = _open(raw.content, raw.name)
    try:
        picture.load()
        ImageOps.exif_transpose(picture, in_place=True)
        if picture.has_transparency_data:
            colours = picture.convert("RGBA")
            picture = Pillow.new("RGBA", picture.size, "white")
            picture.alpha_composite(colours)
        return picture if picture.mode == "RGB" else picture.convert("RGB")
    except _DAMAGED as error:
        raise FrameError(
            f"{raw.name} is cut or damaged ({error}): copy or download it again"
        ) from None


def _open(content: bytes, name: str) -> Pillow.Image:
    """The picture with its header read and found to be that of a frame."""
    if not content:
        raise FrameError(f"{name} is empty (0 bytes): copy or download it again")
    start = content[:64].removeprefix(b"\xef\xbb\xbf").lstrip()
    for prefix, what in _NOT_PICTURES:
        if start.startswith(prefix):
            raise FrameError(f"{name} {what}")
    try:
        picture = Pillow.open(io.BytesIO(content), formats=_READABLE)
        # A phone's multi-picture JPEG (MPO) is one picture with its previews: the first is meant.
        pictures = 1 if picture.format == "MPO" else getattr(picture, "n_frames", 1)
    except (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning):
        raise FrameError(f"{name} has more than {_MOST_PIXELS} pixels") from None
    except UnidentifiedImageError:
        raise FrameError(
            f"{name} is no picture that can be read (it begins {content[:8]!r}): expected one of "
            f"{', '.join(_READABLE)}, whole"
        ) from None
    except _DAMAGED as error:
        raise FrameError(f"{name} is cut or damaged ({error}): copy or download it again") from None
    if picture.width * picture.height > _MOST_PIXELS:
        raise FrameError(f"{name} has more than {_MOST_PIXELS} pixels")
    if pictures != 1:
        raise FrameError(f"{name} is an animation of {pictures} pictures: a frame is one picture")
    # Pillow reads 16-bit colour as 8-bit without a word, so the PNG header itself is asked.
    if picture.mode.startswith(("I", "F")) or (picture.format == "PNG" and content[24] == 16):
        raise FrameError(
            f"{name} is not an RGB frame: it has 16 bits a channel, as depth pictures have; "
            "expected 8"
        )
    return picture


def _bgr(raw: RawFrame) -> NDArray[np.uint8]:
    """The pixels as ``cv2.imread(path, IMREAD_COLOR)`` gives them."""
    import cv2
    import numpy as np

    if not isinstance(raw.content, bytes):
        return np.ascontiguousarray(_checked_pixels(raw.content, raw.name)[..., ::-1])
    _open(raw.content, raw.name)
    pixels: NDArray[np.uint8] | None = cv2.imdecode(
        np.frombuffer(raw.content, np.uint8), cv2.IMREAD_COLOR
    )
    if pixels is None:
        raise FrameError(
            f"{raw.name} is cut or damaged (OpenCV cannot read it): copy or download it again"
        )
    return pixels


def _checked_pixels(pixels: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != "uint8" or not pixels.size:
        raise FrameError(
            f"{name} is not an RGB frame: its pixels are {pixels.dtype} {pixels.shape}, expected "
            "uint8 (height, width, 3)"
        )
    return pixels


def _image(data: bytes, width: int, height: int) -> Image:
    """The picture with its media type read off the bytes that were written."""
    if data.startswith(b"\xff\xd8\xff"):
        return Image(data, "image/jpeg", width, height)
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return Image(data, "image/png", width, height)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return Image(data, "image/webp", width, height)
    raise AssertionError(f"an encoder wrote {data[:12]!r}")


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise OpenEQAError(f"encoder.{name} must be one of {', '.join(choices)}, not {value!r}")


def _check_range(name: str, value: int, low: int, high: int | None = None) -> None:
    number = isinstance(value, int) and not isinstance(value, bool)
    if not number or value < low or (high is not None and value > high):
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise OpenEQAError(f"encoder.{name} must be a whole number {bounds}, not {value!r}")
