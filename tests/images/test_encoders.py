from __future__ import annotations

import io
import json
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import ImageFile

from openeqa_lab.data.episode import Frame, Image, RawFrame
from openeqa_lab.data.layouts import FolderSource
from openeqa_lab.errors import FrameError, OpenEQAError
from openeqa_lab.images.decoding import decode
from openeqa_lab.images.encoders import Encoder, UpstreamEncoder


class Folder:
    """Files of a folder, in the order of their names."""

    def __init__(self, folder: Path) -> None:
        self.key = folder.name
        self.files = sorted(folder.iterdir())

    def path(self, index: int) -> str:
        return f"{self.key}/{self.files[index].name}"

    def read(self, indices: Sequence[int]) -> Sequence[RawFrame]:
        return [raw(self.files[index].read_bytes(), str(self.files[index])) for index in indices]

    def sha256(self, index: int) -> str | None:
        return None

    def frames(self) -> list[Frame]:
        return [Frame(self, index) for index in range(len(self.files))]


class Pixels:
    """Frames that have no file of their own, as a video's."""

    key = "walk.mp4"

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels

    def path(self, index: int) -> str:
        return f"{self.key}#{index}"

    def read(self, indices: Sequence[int]) -> Sequence[RawFrame]:
        return [RawFrame(self.pixels, "", f"{self.key}#{index}") for index in indices]

    def sha256(self, index: int) -> str | None:
        return None


def raw(content: bytes, name: str = "room/00007-rgb.png") -> RawFrame:
    return RawFrame(content, sha256(content).hexdigest(), name)


def scene(width: int = 64, height: int = 48, seed: int = 0) -> Pillow.Image:
    """A smooth picture with some noise, as a photograph has."""
    noise = np.random.default_rng(seed).normal(0, 8, (height, width, 3))
    x, y = np.linspace(0, 200, width)[None, :, None], np.linspace(0, 55, height)[:, None, None]
    return Pillow.fromarray((x + y + noise).clip(0, 255).astype(np.uint8))


def written(picture: Pillow.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def opened(image: Image) -> Pillow.Image:
    picture = Pillow.open(io.BytesIO(image.data))
    picture.load()
    return picture


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, depth: int, colour: int, lines: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )


async def encoded(encoder: Encoder | UpstreamEncoder, folder: Path) -> Sequence[Image]:
    return await encoder.encode(Folder(folder).frames())


# What is sent


@pytest.mark.parametrize(
    ("kind", "media_type", "pillow"),
    [
        ("jpeg", "image/jpeg", "JPEG"),
        ("png", "image/png", "PNG"),
        ("webp", "image/webp", "WEBP"),
    ],
)
async def test_media_type_and_size_are_those_of_the_bytes(
    tmp_path: Path, kind: str, media_type: str, pillow: str
) -> None:
    scene(1296, 968).save(tmp_path / "00000-rgb.png")
    (image,) = await encoded(Encoder(format=kind), tmp_path)  # type: ignore[arg-type]
    assert (image.media_type, image.width, image.height) == (media_type, 512, 382)
    assert opened(image).format == pillow
    assert opened(image).size == (512, 382)


async def test_a_jpeg_named_png_is_read_by_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "00000-rgb.png").write_bytes(written(scene(), "JPEG"))
    (image,) = await encoded(Encoder(format="png", size=0), tmp_path)
    assert image.media_type == "image/png"
    assert np.array_equal(opened(image), decode(raw(written(scene(), "JPEG"))))


@pytest.mark.parametrize(
    ("stored", "size", "sent"),
    [
        ((64, 48), 512, (64, 48)),  # never enlarged
        ((64, 48), 64, (64, 48)),
        ((64, 48), 32, (32, 24)),
        ((48, 64), 32, (24, 32)),
        ((64, 48), 0, (64, 48)),  # 0 is off
        ((400, 1), 100, (100, 1)),  # a side never vanishes
        ((1, 1), 1, (1, 1)),
        ((1296, 968), 512, (512, 382)),
    ],
)
async def test_the_long_side_is_shrunk_to_size(
    tmp_path: Path, stored: tuple[int, int], size: int, sent: tuple[int, int]
) -> None:
    scene(*stored).save(tmp_path / "0.png")
    (image,) = await encoded(Encoder(size=size), tmp_path)
    assert (image.width, image.height) == sent == opened(image).size


async def test_png_keeps_every_pixel_of_a_frame_that_is_not_shrunk(tmp_path: Path) -> None:
    scene().save(tmp_path / "0.png")
    (image,) = await encoded(Encoder(format="png"), tmp_path)
    assert np.array_equal(opened(image), scene())


@pytest.mark.parametrize("resampling", ["box", "bilinear", "bicubic", "lanczos", "catmull_rom"])
async def test_every_resampling_averages_what_it_leaves_out(
    tmp_path: Path, resampling: str
) -> None:
    if resampling == "catmull_rom":
        pytest.importorskip("cykooz_resizer", reason="needs the extra [fast]")
    lines = np.zeros((400, 400, 3), np.uint8)
    lines[:, ::2] = 255  # picking pixels would give stripes or one flat black or white
    Pillow.fromarray(lines).save(tmp_path / "0.png")
    encoder = Encoder(format="png", size=40, resampling=resampling)  # type: ignore[arg-type]
    inner = np.asarray(opened((await encoded(encoder, tmp_path))[0]))[:, 4:-4]
    assert inner.min() > 115
    assert inner.max() < 140


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
async def test_the_same_frame_gives_the_same_bytes(tmp_path: Path, kind: str) -> None:
    scene(700, 500).save(tmp_path / "0.png")
    first = await encoded(Encoder(format=kind), tmp_path)  # type: ignore[arg-type]
    second = await encoded(Encoder(format=kind), tmp_path)  # type: ignore[arg-type]
    assert first == second


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
async def test_profiles_comments_and_positions_are_not_sent(tmp_path: Path, kind: str) -> None:
    exif = Pillow.Exif()
    exif[0x010F] = "SECRET-MAKER"
    secret = {"icc_profile": b"SECRET-PROFILE", "exif": exif}
    scene().save(tmp_path / "0.png", **secret)
    scene().save(tmp_path / "1.jpg", comment="SECRET-COMMENT", **secret)
    for image in await encoded(Encoder(format=kind), tmp_path):  # type: ignore[arg-type]
        assert b"SECRET" not in image.data


async def test_pixels_of_a_video_are_taken_as_rgb() -> None:
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[..., 0] = 255
    for encoder in (Encoder(format="png"), UpstreamEncoder(size=0)):
        (image,) = await encoder.encode([Frame(Pixels(pixels), 3)])
        assert opened(image).convert("RGB").getpixel((5, 5)) == (255, 0, 0)


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((48, 64), np.uint8),
        np.zeros((48, 64, 4), np.uint8),
        np.zeros((48, 64, 3), np.uint16),
        np.zeros((48, 64, 3), np.float32),
        np.zeros((0, 64, 3), np.uint8),
    ],
)
@pytest.mark.parametrize("encoder", [Encoder(), UpstreamEncoder()])
async def test_pixels_that_are_not_rgb_are_refused_with_their_frame(
    encoder: Encoder | UpstreamEncoder, pixels: np.ndarray
) -> None:
    with pytest.raises(FrameError, match=r"walk\.mp4#3 is not an RGB frame: its pixels are "):
        await encoder.encode([Frame(Pixels(pixels), 3)])


async def test_no_frames_are_no_pictures() -> None:
    assert await Encoder().encode([]) == ()


# What is taken for a frame


def test_each_exif_orientation_is_applied(shared: Path) -> None:
    files = sorted((shared / "cases/exif").glob("*.jpg"))
    assert len(files) == 8
    for file in files:
        assert corners(decode(raw(file.read_bytes(), str(file)))) == UPRIGHT, file


@pytest.mark.parametrize("encoder", [Encoder(size=24, format="png"), UpstreamEncoder(size=24)])
async def test_orientation_is_applied_before_shrinking(
    shared: Path, encoder: Encoder | UpstreamEncoder
) -> None:
    folder = Folder(shared / "cases/exif")
    images = await encoder.encode(folder.frames()[:8])
    for image in images:
        assert (image.width, image.height) == (24, 16)
        assert corners(opened(image).resize((48, 32))) == UPRIGHT


UPRIGHT = ["red", "green", "blue", "white"]


def corners(picture: Pillow.Image) -> list[str]:
    """The colours of a 48x32 picture: top left, top right, bottom left, bottom right."""
    assert picture.size == (48, 32)
    names = {(1, 0, 0): "red", (0, 1, 0): "green", (0, 0, 1): "blue", (1, 1, 1): "white"}
    places = [(6, 6), (42, 6), (6, 26), (42, 26)]
    pixels = [picture.convert("RGB").getpixel(place) for place in places]
    return [names.get(tuple(int(v > 127) for v in pixel), str(pixel)) for pixel in pixels]  # type: ignore[union-attr]


@pytest.mark.parametrize("orientation", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_orientation_is_applied_whatever_the_format(kind: str, orientation: int) -> None:
    turned = Pillow.new("RGB", (48, 32), "red")
    for place, colour in (((24, 0), "green"), ((0, 16), "blue"), ((24, 16), "white")):
        turned.paste(colour, (*place, place[0] + 24, place[1] + 16))
    undo: dict[int, list[Pillow.Transpose]] = {
        1: [],
        2: [Pillow.Transpose.FLIP_LEFT_RIGHT],
        3: [Pillow.Transpose.ROTATE_180],
        4: [Pillow.Transpose.FLIP_TOP_BOTTOM],
        5: [Pillow.Transpose.TRANSPOSE],
        6: [Pillow.Transpose.ROTATE_90],
        7: [Pillow.Transpose.TRANSVERSE],
        8: [Pillow.Transpose.ROTATE_270],
    }
    for method in undo[orientation]:
        turned = turned.transpose(method)
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    assert corners(decode(raw(written(turned, kind, exif=exif)))) == UPRIGHT


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_is_ignored(orientation: int) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    assert decode(raw(written(scene(), "JPEG", exif=exif))).size == (64, 48)


def flat(mode: str, colour: object, **info: object) -> bytes:
    return written(Pillow.new(mode, (8, 8), colour), "PNG", **info)  # type: ignore[arg-type]


def palette_with_hole() -> bytes:
    picture = Pillow.new("P", (8, 8), 1)
    picture.putpalette([10, 20, 30, 200, 0, 0])
    return written(picture, "PNG", transparency=1)


@pytest.mark.parametrize(
    ("content", "pixel"),
    [
        (flat("RGB", (200, 100, 50)), (200, 100, 50)),
        (flat("L", 77), (77, 77, 77)),
        (flat("1", 1), (255, 255, 255)),
        (flat("1", 0), (0, 0, 0)),
        # Hidden colours stay hidden: transparent pixels are laid on white.
        (flat("RGBA", (200, 0, 0, 0)), (255, 255, 255)),
        (flat("RGBA", (200, 0, 0, 255)), (200, 0, 0)),
        (flat("RGBA", (0, 0, 0, 51)), (204, 204, 204)),
        (flat("LA", (0, 0)), (255, 255, 255)),
        (flat("LA", (90, 255)), (90, 90, 90)),
        (flat("RGB", (9, 9, 9), transparency=(9, 9, 9)), (255, 255, 255)),
        (flat("L", 9, transparency=9), (255, 255, 255)),
        (flat("P", 0, transparency=5), (0, 0, 0)),
        (palette_with_hole(), (255, 255, 255)),
        (written(Pillow.new("RGB", (8, 8), (1, 2, 3)), "BMP"), (1, 2, 3)),
        (written(Pillow.new("P", (8, 8), 0), "GIF"), (0, 0, 0)),
    ],
)
def test_every_kind_of_8_bit_picture_becomes_rgb(
    content: bytes, pixel: tuple[int, int, int]
) -> None:
    picture = decode(raw(content))
    assert picture.mode == "RGB"
    assert picture.getpixel((4, 4)) == pixel


def test_cmyk_is_not_inverted() -> None:
    red = Pillow.new("CMYK", (16, 16), (0, 255, 255, 0))
    content = written(red, "JPEG", quality=95)  # Pillow writes Adobe's inverted form
    assert b"Adobe" in content
    pixel = decode(raw(content)).getpixel((8, 8))
    assert isinstance(pixel, tuple)
    assert pixel[0] > 240
    assert max(pixel[1:]) < 15


def test_a_phones_picture_with_previews_is_its_first_picture() -> None:
    content = written(scene(), "MPO", save_all=True, append_images=[scene(8, 6)])
    assert decode(raw(content)).size == (64, 48)


GRAY_16 = png(4, 4, 16, 0, (b"\0" + b"\x12\x34" * 4) * 4)
RGB_16 = png(4, 4, 16, 2, (b"\0" + b"\x12\x34" * 12) * 4)
GRAY_ALPHA_16 = png(4, 4, 16, 4, (b"\0" + b"\x12\x34" * 8) * 4)
RGBA_16 = png(4, 4, 16, 6, (b"\0" + b"\x12\x34" * 16) * 4)
WHOLE = written(scene())
WHOLE_JPEG = written(scene(), "JPEG")
FRAMES = [scene(seed=seed) for seed in range(3)]
BOMB = png(20_000, 20_000, 8, 0, b"\0" * 10)
SMALL_BOMB = png(10_000, 10_000, 8, 0, b"\0" * 10)

BAD = {
    "empty": (b"", r"is empty \(0 bytes\)"),
    "html": (b"<!DOCTYPE html><html>Link Expired</html>", "is a web page or other markup"),
    "html_with_mark": (b"\xef\xbb\xbf\r\n  <html>", "is a web page or other markup"),
    "xml": (b"<?xml version='1.0'?><Error>AccessDenied</Error>", "is a web page or other markup"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer.*git lfs pull"),
    "text": (b"No such frame", "is no picture that can be read.*expected one of JPEG, PNG"),
    "json": (b'{"error": "quota"}', "is no picture that can be read"),
    "zeros": (bytes(5000), "is no picture that can be read"),
    "one_byte": (b"\x89", "is no picture that can be read"),
    "signature": (b"\x89PNG\r\n\x1a\n", "is no picture that can be read|cut or damaged"),
    "tiff": (written(scene(), "TIFF"), "is no picture that can be read.*expected one of"),
    "cut_png": (WHOLE[: len(WHOLE) // 2], "is cut or damaged"),
    "cut_jpeg": (WHOLE_JPEG[: len(WHOLE_JPEG) // 2], "is cut or damaged"),
    "cut_webp": (written(scene(), "WEBP")[:300], "is cut or damaged|no picture"),
    "flipped_png": (WHOLE[:900] + b"\0\0\0\0" + WHOLE[904:], "is cut or damaged"),
    "gray_16": (GRAY_16, "is not an RGB frame: it has 16 bits"),
    "rgb_16": (RGB_16, "is not an RGB frame: it has 16 bits"),
    "gray_alpha_16": (GRAY_ALPHA_16, "is not an RGB frame: it has 16 bits"),
    "rgba_16": (RGBA_16, "is not an RGB frame: it has 16 bits"),
    "gif": (
        written(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]),
        "is an animation of 3 pictures",
    ),
    "apng": (
        written(FRAMES[0], "PNG", save_all=True, append_images=FRAMES[1:]),
        "is an animation of 3 pictures",
    ),
    "animated_webp": (
        written(FRAMES[0], "WEBP", save_all=True, append_images=FRAMES[1:]),
        "is an animation of 3 pictures",
    ),
    "bomb": (BOMB, "has more than 89478485 pixels"),
    "small_bomb": (SMALL_BOMB, "has more than 89478485 pixels"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("encoder", [Encoder(), UpstreamEncoder()])
@pytest.mark.parametrize("bad", BAD)
async def test_what_is_no_frame_is_an_error_that_names_its_path(
    tmp_path: Path, encoder: Encoder | UpstreamEncoder, bad: str
) -> None:
    content, message = BAD[bad]
    folder = tmp_path / f"{bad}-{type(encoder).__name__}"
    folder.mkdir()
    scene().save(folder / "00000-rgb.png")
    (folder / "00001-rgb.png").write_bytes(content)
    with pytest.raises(FrameError, match=rf"00001-rgb\.png.* ({message})") as error:
        await encoder.encode(Folder(folder).frames())
    assert error.value.kind == "frame_unreadable"
    assert "\n" not in str(error.value)


def test_a_bomb_is_refused_also_where_warnings_are_errors() -> None:
    with pytest.raises(FrameError, match="has more than 89478485 pixels"):
        decode(raw(SMALL_BOMB))


@pytest.mark.parametrize(
    "write",
    [
        lambda: written(scene(24, 16)),
        lambda: written(scene(24, 16), "JPEG"),
        lambda: written(scene(24, 16), "WEBP"),
        lambda: written(scene(24, 16), "BMP"),
        lambda: written(scene(24, 16).convert("P"), "GIF"),
    ],
    ids=["png", "jpeg", "webp", "bmp", "gif"],
)
def test_a_frame_cut_anywhere_is_refused_or_whole(write: Callable[[], bytes]) -> None:
    content = write()
    whole = decode(raw(content)).tobytes()
    refused = 0
    for length in range(len(content)):
        try:
            assert decode(raw(content[:length])).tobytes() == whole, length
        except FrameError:
            refused += 1
    assert refused > len(content) * 0.9


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # of EXIF that cannot be read
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF"])
def test_damaged_bytes_raise_nothing_but_frame_errors(kind: str) -> None:
    generator = np.random.default_rng(1)
    exif = Pillow.Exif()
    exif[0x0112] = 6
    options = {"exif": exif} if kind in ("PNG", "JPEG", "WEBP") else {}
    content = bytearray(written(scene(24, 16), kind, **options))
    for _ in range(400):
        damaged = bytearray(content)
        for place in generator.integers(0, min(len(content), 300), 3):
            damaged[place] = generator.integers(256)
        try:
            decode(raw(bytes(damaged)))
        except FrameError:
            continue


def test_filling_cut_frames_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(OpenEQAError, match="LOAD_TRUNCATED_IMAGES is on"):
        decode(raw(WHOLE))


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "jpg"}, r"encoder\.format must be one of jpeg, png, webp, not 'jpg'"),
        ({"resampling": "nearest"}, r"encoder\.resampling must be one of box, .*not 'nearest'"),
        ({"size": -1}, r"encoder\.size must be a whole number of at least 0, not -1"),
        ({"size": 512.0}, r"encoder\.size must be a whole number"),
        ({"size": True}, r"encoder\.size must be a whole number"),
        ({"quality": 0}, r"encoder\.quality must be a whole number from 1 to 100, not 0"),
        ({"quality": 101}, r"encoder\.quality must be a whole number from 1 to 100, not 101"),
        ({"cache_mb": -5}, r"encoder\.cache_mb must be a whole number of at least 0"),
        ({"threads": 0}, r"encoder\.threads must be a whole number of at least 1"),
        ({"processes": -1}, r"encoder\.processes must be a whole number of at least 0, not -1"),
        ({"processes": 2.0}, r"encoder\.processes must be a whole number"),
        ({"store_mb": 0}, r"encoder\.store_mb must be a whole number of at least 1, not 0"),
    ],
)
def test_settings_out_of_range_are_refused_at_once(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(OpenEQAError, match=message):
        Encoder(**settings)  # type: ignore[arg-type]
    if set(settings) <= {"size", "cache_mb", "threads", "processes", "store_mb"}:
        with pytest.raises(OpenEQAError, match=message):
            UpstreamEncoder(**settings)  # type: ignore[arg-type]


def test_identity_holds_what_can_change_a_pixel(tmp_path: Path) -> None:
    jpeg = {"format": "jpeg", "size": 512, "resampling": "bicubic", "quality": 90}
    assert Encoder().identity == jpeg
    elsewhere = {"processes": 0, "store_dir": tmp_path, "store_mb": 1}
    assert Encoder(cache_mb=1, threads=1, **elsewhere).identity == jpeg  # type: ignore[arg-type]
    assert Encoder(format="png", quality=1).identity == Encoder(format="png").identity
    upstream = {"format": "png_upstream", "size": 512}
    assert UpstreamEncoder(threads=1, **elsewhere).identity == upstream  # type: ignore[arg-type]
    assert json.loads(json.dumps(Encoder().identity)) == jpeg


async def test_catmull_rom_is_bicubic_within_a_level_on_photographs(tmp_path: Path) -> None:
    pytest.importorskip("cykooz_resizer", reason="needs the extra [fast]")
    scene(1296, 968).save(tmp_path / "0.png")
    pictures = [
        np.asarray(opened((await encoded(Encoder("png", resampling=name), tmp_path))[0]), int)  # type: ignore[arg-type]
        for name in ("bicubic", "catmull_rom")
    ]
    distance = abs(pictures[0] - pictures[1])
    assert distance.max() == 1
    assert distance.mean() < 0.25
    names = [Encoder(resampling=name).identity["resampling"] for name in ("bicubic", "catmull_rom")]  # type: ignore[arg-type]
    assert names == ["bicubic", "catmull_rom"]


def test_without_its_package_catmull_rom_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cykooz_resizer", None)
    with pytest.raises(OpenEQAError, match=r"pip install 'openeqa-lab\[fast\]', or take .*bicubic"):
        Encoder(resampling="catmull_rom")
    Encoder()


# Upstream's preparation


def upstream(file: Path, size: int) -> np.ndarray:
    """What upstream's steps give: read, resize by one factor, write as PNG."""
    import cv2

    picture = cv2.imread(str(file))
    if size:
        factor = size / max(picture.shape[:2])
        picture = cv2.resize(picture, dsize=None, fx=factor, fy=factor)
    _, data = cv2.imencode(".png", picture)
    return cv2.imdecode(data, cv2.IMREAD_UNCHANGED)[..., ::-1]


def orientation_6() -> Pillow.Exif:
    exif = Pillow.Exif()
    exif[0x0112] = 6
    return exif


UPSTREAM_FRAMES = {
    "scan.png": lambda: written(scene(1296, 968), compress_level=1),
    "scan.jpg": lambda: written(scene(1296, 968), "JPEG", quality=90),
    "small.png": lambda: written(scene(320, 240)),
    "odd.png": lambda: written(scene(641, 479)),
    "tall.png": lambda: written(scene(300, 701)),
    "exact.png": lambda: written(scene(512, 384)),
    "gray.png": lambda: written(scene(600, 400).convert("L")),
    "palette.png": lambda: written(scene(600, 400).quantize(64, Pillow.Quantize.FASTOCTREE)),
    "one_bit.png": lambda: written(scene(600, 400).convert("1")),
    "turned.jpg": lambda: written(scene(600, 400), "JPEG", exif=orientation_6()),
    "gray.jpg": lambda: written(scene(600, 400).convert("L"), "JPEG"),
    "picture.webp": lambda: written(scene(600, 400), "WEBP"),
    "jpeg_named.png": lambda: written(scene(600, 400), "JPEG"),
    "alpha.png": lambda: written(
        Pillow.merge("RGBA", (*scene(600, 400).split(), scene(600, 400, 1).convert("L")))
    ),
}


@cache
def upstream_frame(name: str) -> bytes:
    return UPSTREAM_FRAMES[name]()


@pytest.mark.parametrize("size", [512, 0, 333])
@pytest.mark.parametrize("name", UPSTREAM_FRAMES)
async def test_upstream_pixels_are_identical(tmp_path: Path, name: str, size: int) -> None:
    (tmp_path / name).write_bytes(upstream_frame(name))
    (image,) = await encoded(UpstreamEncoder(size=size), tmp_path)
    wanted = upstream(tmp_path / name, size)
    assert np.array_equal(np.asarray(opened(image)), wanted)
    assert (image.media_type, image.height, image.width) == ("image/png", *wanted.shape[:2])


async def test_upstream_cannot_shrink_a_line_to_nothing(tmp_path: Path) -> None:
    scene(3000, 1).save(tmp_path / "line.png")
    with pytest.raises(FrameError, match=r"line\.png: 3000x1 has no line left at 512 px"):
        await encoded(UpstreamEncoder(), tmp_path)


def test_without_opencv_upstreams_encoder_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(OpenEQAError, match=r"pip install 'openeqa-lab\[upstream\]'"):
        UpstreamEncoder()
    Encoder()


async def test_a_picture_too_long_for_its_format_names_its_path(tmp_path: Path) -> None:
    path = tmp_path / "wide.png"
    Pillow.new("RGB", (17_000, 2)).save(path)
    frame = Frame(FolderSource(tmp_path, "e", ["wide.png"]), 0)
    with pytest.raises(FrameError, match=r"wide.png: 17000x2 cannot be written as webp"):
        await Encoder(format="webp", size=0).encode([frame])
