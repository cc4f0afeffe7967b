from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from hashlib import sha256

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import PngImagePlugin

from openeqa_lab.data.episode import RawFrame
from openeqa_lab.errors import FrameError
from openeqa_lab.images.decoding import can_decode_fast, decode, fast_pixels, plain_png

pytest.importorskip("kornia_rs", reason="needs the extra [fast]")

WIDTH, HEIGHT = 24, 16
PIXELS = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
ROWS = b"".join(b"\0" + row.tobytes() for row in PIXELS)
END = (b"IEND", b"")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def header(depth: int = 8, colour: int = 2, interlace: int = 0) -> tuple[bytes, bytes]:
    return b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, colour, 0, 0, interlace)


def png(*chunks: tuple[bytes, bytes], head: tuple[bytes, bytes] | None = None) -> bytes:
    """A PNG of these chunks between its header and its end."""
    parts = [head or header(), *chunks, END]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in parts)


def data(rows: bytes = ROWS) -> tuple[bytes, bytes]:
    return b"IDAT", zlib.compress(rows)


def written(picture: Pillow.Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", **options)
    return buffer.getvalue()


def outcome(content: bytes, *, fast: bool) -> bytes | str:
    """The pixels, or the words of the refusal."""
    raw = RawFrame(content, sha256(content).hexdigest(), "room/00007-rgb.png")
    try:
        return decode(raw, fast=fast).tobytes()
    except FrameError as error:
        return str(error)


def filtered(kinds: list[int]) -> bytes:
    """Rows under each of PNG's five filters, which decoders undo."""
    lines, above = [], np.zeros((WIDTH + 1, 3), int)
    for number, row in enumerate(PIXELS):
        line = np.vstack([np.zeros((1, 3), int), row])
        left, up, corner = line[:-1], above[1:], above[:-1]
        base = left + up - corner
        near = np.argmin([abs(base - each) for each in (left, up, corner)], 0)
        guess = [0, left, up, (left + up) // 2, np.choose(near, [left, up, corner])]
        kind = kinds[number % len(kinds)]
        coded = (line[1:] - guess[kind]) % 256
        lines.append(bytes([kind]) + coded.astype(np.uint8).tobytes())
        above = line
    return b"".join(lines)


def text_with_orientation() -> bytes:
    info = PngImagePlugin.PngInfo()
    info.add_itxt(
        "XML:com.adobe.xmp",
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><tiff:Orientation>6</tiff:Orientation></x:xmpmeta>',
    )
    return written(Pillow.fromarray(PIXELS), pnginfo=info)


def exif_with_orientation() -> bytes:
    exif = Pillow.Exif()
    exif[0x0112] = 6
    return written(Pillow.fromarray(PIXELS), exif=exif)


def animated() -> bytes:
    more = [Pillow.fromarray(PIXELS[::-1])]
    return written(Pillow.fromarray(PIXELS), save_all=True, append_images=more)


GAMMA = b"gAMA", struct.pack(">I", 22_000)
WHOLE = png(data())

PLAIN: dict[str, Callable[[], bytes]] = {
    "as Pillow writes it": lambda: written(Pillow.fromarray(PIXELS)),
    "each filter": lambda: png(data(filtered([0, 1, 2, 3, 4]))),
    "Paeth alone": lambda: png(data(filtered([4]))),
    "stored": lambda: png((b"IDAT", zlib.compress(ROWS, 0))),
    "a small window": lambda: png((b"IDAT", deflated(ROWS, wbits=9))),
    "data in many parts": lambda: png(*((b"IDAT", part) for part in parts(data()[1], 7))),
    "gamma, which nobody applies": lambda: png(GAMMA, data()),
    "sRGB": lambda: png((b"sRGB", b"\0"), data()),
    "size in metres": lambda: png((b"pHYs", struct.pack(">IIB", 3780, 3780, 1)), data()),
    "a background for nothing": lambda: png((b"bKGD", bytes(6)), data()),
    "a time after the data": lambda: png(data(), (b"tIME", bytes([7, 230, 1, 1, 0, 0, 0]))),
    "rows to spare": lambda: png(data(ROWS + bytes(100))),
    "bytes after the stream": lambda: png((b"IDAT", data()[1] + b"more")),
}
UNUSUAL: dict[str, Callable[[], bytes]] = {
    "gray": lambda: written(Pillow.fromarray(PIXELS).convert("L")),
    "one bit": lambda: written(Pillow.fromarray(PIXELS).convert("1")),
    "palette": lambda: written(Pillow.fromarray(PIXELS).quantize(16)),
    "alpha": lambda: written(Pillow.fromarray(np.dstack([PIXELS, PIXELS[..., 0]]))),
    "gray and alpha": lambda: written(Pillow.fromarray(PIXELS).convert("LA")),
    "a colour keyed out": lambda: written(Pillow.fromarray(PIXELS), transparency=(9, 9, 9)),
    "a key for no pixel": lambda: png((b"tRNS", bytes(6)), data()),
    "interlaced": lambda: png(data(ROWS + bytes(99)), head=header(interlace=1)),
    "16 bits": lambda: png(data(bytes(len(ROWS) * 2)), head=header(depth=16)),
    "4 bits": lambda: png(data(), head=header(depth=4, colour=0)),
    "turned by EXIF": exif_with_orientation,
    "turned by text": text_with_orientation,
    "text": lambda: png((b"tEXt", b"Software\0drawn"), data()),
    "a colour profile": lambda: written(Pillow.fromarray(PIXELS), icc_profile=b"profile"),
    "animated": animated,
    "a chunk that nobody knows": lambda: png((b"abCd", b"?"), data()),
    "a critical chunk that nobody knows": lambda: png((b"ABCD", b"?"), data()),
    "a palette beside RGB": lambda: png((b"PLTE", bytes(30)), data()),
    "gamma of a wrong length": lambda: png((b"gAMA", b"\0\0\1"), data()),
    "gamma with a wrong checksum": lambda: png(GAMMA, data()).replace(b"gAMA\0\0", b"gAMA\0\1"),
    "two headers": lambda: png(header(), data()),
    "an end before the end": lambda: png(data(), END),
    "something between the data": lambda: png(data(), GAMMA, data()),
    "bytes after the end": lambda: WHOLE + b"more",
    "no data": lambda: png(),
    "no end": lambda: WHOLE[:-12],
    "an end with a wrong checksum": lambda: WHOLE[:-1] + b"\0",
    "no width": lambda: WHOLE[:16] + bytes(4) + WHOLE[20:],
    "a length beyond the file": lambda: WHOLE[:33] + b"\xff" + WHOLE[34:],
    "too many pixels": lambda: WHOLE[:16] + struct.pack(">II", 20_000, 20_000) + WHOLE[24:],
    "a JPEG": lambda: b"\xff\xd8\xff" + bytes(50),
    "nothing": lambda: b"",
    "a signature": lambda: WHOLE[:8],
}
DAMAGED: dict[str, Callable[[], bytes]] = {
    "data with a wrong checksum": lambda: WHOLE[:60] + bytes([WHOLE[60] ^ 1]) + WHOLE[61:],
    "too few rows": lambda: png(data(ROWS[:-30])),
    "an unknown filter": lambda: png(data(b"\x07" + ROWS[1:])),
    "data that is no stream": lambda: png((b"IDAT", b"not deflated at all")),
    "empty data": lambda: png((b"IDAT", b"")),
    "half the stream": lambda: png((b"IDAT", data()[1][:600])),
    "a header with a wrong checksum": lambda: WHOLE[:29] + b"\0" + WHOLE[30:],
}


def deflated(rows: bytes, wbits: int) -> bytes:
    writer = zlib.compressobj(6, zlib.DEFLATED, wbits)
    return writer.compress(rows) + writer.flush()


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_png_is_decoded_fast_to_the_same_pixels(name: str) -> None:
    content = PLAIN[name]()
    assert plain_png(content) == (HEIGHT, WIDTH)
    pixels = fast_pixels(content)
    assert pixels is not None
    assert pixels.tobytes() == outcome(content, fast=False) == PIXELS.tobytes()


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_not_plain_is_left_to_pillow(name: str) -> None:
    content = UNUSUAL[name]()
    assert plain_png(content) is None
    assert outcome(content, fast=True) == outcome(content, fast=False)


@pytest.mark.parametrize("name", DAMAGED)
def test_of_what_the_fast_decoder_refuses_pillow_has_the_last_word(name: str) -> None:
    content = DAMAGED[name]()
    assert fast_pixels(content) is None
    assert outcome(content, fast=True) == outcome(content, fast=False)


def test_a_file_cut_anywhere_has_the_same_outcome() -> None:
    content = png(GAMMA, *((b"IDAT", part) for part in parts(data()[1], 90)))
    assert outcome(content, fast=True) == PIXELS.tobytes()
    for length in range(len(content)):
        cut = content[:length]
        assert outcome(cut, fast=True) == outcome(cut, fast=False), length


@pytest.mark.filterwarnings("ignore::UserWarning:PIL", "ignore::PIL.Image.DecompressionBombWarning")
def test_a_file_damaged_anywhere_has_the_same_outcome() -> None:
    generator = np.random.default_rng(1)
    content = png(GAMMA, (b"sRGB", b"\0"), *((b"IDAT", part) for part in parts(data()[1])))
    for _ in range(2000):
        damaged = bytearray(content)
        for place in generator.integers(0, len(content), int(generator.integers(1, 4))):
            damaged[place] = generator.integers(256)
        damaged = bytes(damaged)
        assert outcome(damaged, fast=True) == outcome(damaged, fast=False)


def parts(stream: bytes, length: int = 200) -> list[bytes]:
    return [stream[i : i + length] for i in range(0, len(stream), length)]


def test_streams_of_every_kind_give_the_same_pixels() -> None:
    generator = np.random.default_rng(2)
    for number in range(300):
        rows = filtered([int(kind) for kind in generator.integers(0, 5, HEIGHT)])
        strategy = [zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED]
        writer = zlib.compressobj(number % 10, zlib.DEFLATED, 15, 9, strategy[number % 4])
        cut = int(generator.integers(len(rows)))
        stream = writer.compress(rows[:cut]) + writer.flush(zlib.Z_SYNC_FLUSH)
        stream += writer.compress(rows[cut:]) + writer.flush()
        pixels = fast_pixels(png((b"IDAT", stream)))
        assert pixels is not None
        assert np.array_equal(pixels, PIXELS), number


def test_only_the_sum_inside_the_stream_is_not_looked_at() -> None:
    """Under chunk checksums that are right, which nothing but a faulty writer leaves behind."""
    content = png((b"IDAT", data()[1][:-4] + bytes(4)))
    assert outcome(content, fast=True) == PIXELS.tobytes()
    assert "is cut or damaged" in str(outcome(content, fast=False))


def test_a_frame_of_any_size_is_decoded_alike() -> None:
    generator = np.random.default_rng(3)
    for width, height in ((1, 1), (1, 50), (50, 1), (7, 3), (333, 217), (1296, 968)):
        pixels = generator.integers(0, 256, (height, width, 3)).astype(np.uint8)
        content = written(Pillow.fromarray(pixels), compress_level=1)
        assert plain_png(content) == (height, width)
        assert outcome(content, fast=True) == outcome(content, fast=False) == pixels.tobytes()


def test_the_extra_is_looked_for_and_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    assert can_decode_fast()
    monkeypatch.setitem(sys.modules, "kornia_rs", None)
    assert not can_decode_fast()
