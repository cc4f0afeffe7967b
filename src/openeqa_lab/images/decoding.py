"""From a frame's bytes to its pixels: what is taken for a frame, and what is refused."""

from __future__ import annotations

import io
import struct
import zlib
from importlib.util import find_spec
from typing import TYPE_CHECKING

from PIL import Image as Pillow
from PIL import ImageFile, ImageOps, UnidentifiedImageError

from openeqa_lab.data.episode import RawFrame
from openeqa_lab.errors import FrameError, OpenEQAError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_READABLE = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
_MOST_PIXELS = 89_478_485  # where Pillow begins to warn of a bomb
# What Pillow's readers raise on damaged bytes; anything else is a fault of ours and shows itself.
_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error)
_NOT_PICTURES = (
    (b"<", "is a web page or other markup, not a picture: the download went wrong"),
    (b"version https://git-lfs", "is a Git LFS pointer, not a picture: run `git lfs pull`"),
)
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_RGB_8 = b"\x08\x02\0\0\0"  # of a PNG's header: 8 bits, RGB, the usual methods, not interlaced
# Chunks that change no pixel for any reader here, and the only length that they may have. Text is
# not among them: it may hold an orientation.
_IDLE = {
    b"gAMA": 4, b"cHRM": 32, b"sRGB": 1, b"pHYs": 9, b"sBIT": 3, b"bKGD": 6, b"tIME": 7
}  # fmt: skip


def decode(raw: RawFrame, *, fast: bool = False) -> Pillow.Image:
    """The frame as an upright RGB picture of its full size.

    Orientation is applied, where EXIF can be read; CMYK, gray, palette and 1-bit pictures become
    RGB; transparent pixels are laid on white; colour profiles are not applied.

    Args:
        raw: The frame as its source holds it.
        fast: Let kornia-rs decode what `plain_png` is sure of. It holds the interpreter's lock.

    Raises:
        FrameError: It is not one whole 8-bit picture: empty, cut, damaged, a web page, of another
            format, 16-bit, animated, or beyond 89 million pixels.
    """
    if not isinstance(raw.content, bytes):
        return Pillow.fromarray(checked_pixels(raw.content, raw.name))
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise OpenEQAError(
            "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is on, so cut frames would be filled with gray "
            "unseen: set it to False"
        )
    if fast and (pixels := fast_pixels(raw.content)) is not None:
        return Pillow.fromarray(pixels)
    picture = opened(raw.content, raw.name)
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


def opened(content: bytes, name: str) -> Pillow.Image:
    """The picture with its header read and found to be that of a frame.

    Raises:
        FrameError: The header alone shows that it is none.
    """
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


def checked_pixels(pixels: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
    """The pixels of a frame that has no file of its own; a `FrameError` when they are not RGB."""
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != "uint8" or not pixels.size:
        raise FrameError(
            f"{name} is not an RGB frame: its pixels are {pixels.dtype} {pixels.shape}, expected "
            "uint8 (height, width, 3)"
        )
    return pixels


def can_decode_fast() -> bool:
    """Whether the extra ``fast`` is installed."""
    return find_spec("kornia_rs") is not None


def plain_png(content: bytes) -> tuple[int, int] | None:
    """Height and width of a PNG that every reader reads alike, None for anything else.

    That is: 8-bit RGB, not interlaced, not too large, whole to its end and with nothing after it,
    and with no chunk that could turn, key out or animate a pixel.
    """
    if content[:16] != _PNG + b"\0\0\0\rIHDR" or content[24:29] != _RGB_8:
        return None
    if content[-12:] != _PNG_END:
        return None
    width, height = struct.unpack_from(">II", content, 16)
    if not 0 < width * height <= _MOST_PIXELS:
        return None
    place, last, data_ended = 33, len(content) - 12, False
    seen = b""
    while place < last:
        length, kind = struct.unpack_from(">I4s", content, place)
        end = place + 12 + length
        if end > last:
            return None
        if kind == b"IDAT":
            if data_ended:
                return None
        else:
            data_ended = data_ended or seen == b"IDAT"
            (checksum,) = struct.unpack_from(">I", content, end - 4)
            idle = _IDLE.get(kind) == length
            if not idle or zlib.crc32(content[place + 4 : end - 4]) != checksum:
                return None
        seen, place = kind, end
    return (height, width) if data_ended or seen == b"IDAT" else None


def fast_pixels(content: bytes) -> NDArray[np.uint8] | None:
    """The RGB pixels of a plain PNG by kornia-rs; None where another reader has to decide.

    The checksums of its data are verified; only the one inside the compressed stream is not, which
    a file that was cut or damaged after it was written cannot have wrong alone.
    """
    shape = plain_png(content)
    if shape is None:
        return None
    from kornia_rs import io as kornia

    try:
        pixels: NDArray[np.uint8] = kornia.decode_image_png_u8(content, shape, "rgb")
    except Exception as error:
        if type(error) is not Exception:  # kornia-rs has no class of its own for a damaged file
            raise
        return None
    return pixels
