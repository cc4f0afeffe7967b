"""A video's frames are those that can be decoded, whatever its header says."""

from __future__ import annotations

import json
import logging
import struct
import time
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from openeqa_lab.data import videos
from openeqa_lab.data.videos import VideoSource
from openeqa_lab.errors import FrameError

av = pytest.importorskip("av")


def write_video(path: Path, count: int = 12, codec: str = "libx264") -> Path:
    """Frame i is gray 20 * i in its upper left quarter and black elsewhere."""
    options = {} if path.suffix == ".webm" else {"movflags": "faststart"}
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuv420p"
        for index in range(count):
            pixels = np.zeros((32, 64, 3), np.uint8)
            pixels[:16, :32] = 20 * index
            picture = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            for packet in stream.encode(picture):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def grays(source: VideoSource, indices: list[int]) -> list[int]:
    """The gray of each frame divided by 20."""
    return [round(float(frame.content[4:12, 4:28].mean()) / 20) for frame in source.read(indices)]


@pytest.mark.parametrize(
    ("name", "codec"),
    [("a.mp4", "libx264"), ("a.mov", "mpeg4"), ("a.webm", "libvpx"), ("a.webm", "libvpx-vp9")],
)
def test_each_kind_of_video_gives_its_frames_in_order(
    tmp_path: Path, name: str, codec: str
) -> None:
    source = VideoSource(write_video(tmp_path / name, codec=codec), name)
    assert source.count == 12
    assert grays(source, list(range(12))) == list(range(12))


def test_frames_come_in_the_order_asked_for(tmp_path: Path) -> None:
    source = VideoSource(write_video(tmp_path / "a.mp4"), "s/a.mp4")
    assert grays(source, [7, 0, 11, 7]) == [7, 0, 11, 7]
    assert source.path(7) == "s/a.mp4#7"
    assert source.read([]) == []


def test_the_digest_is_that_of_the_pixels_and_known_once_read(tmp_path: Path) -> None:
    source = VideoSource(write_video(tmp_path / "a.mp4"), "a.mp4")
    assert source.sha256(3) is None
    (frame,) = source.read([3])
    assert isinstance(frame.content, np.ndarray)
    assert (frame.content.shape, frame.content.dtype) == ((32, 64, 3), np.uint8)
    assert frame.content.flags.c_contiguous
    assert frame.sha256 == source.sha256(3) == sha256(frame.content.tobytes()).hexdigest()
    assert source.sha256(2) is None
    assert frame.name.endswith("a.mp4#3")


def test_opening_a_sound_video_decodes_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_video(tmp_path / "a.mp4")
    with monkeypatch.context() as without:
        without.delattr(videos, "_pictures")
        source = VideoSource(path, "a.mp4")
    assert source.count == 12
    assert grays(source, [11]) == [11]


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_a_video_cut_anywhere_counts_only_frames_that_can_be_read(
    tmp_path: Path, codec: str, caplog: pytest.LogCaptureFixture
) -> None:
    content = write_video(tmp_path / "whole.mp4", codec=codec).read_bytes()
    whole = [frame.sha256 for frame in VideoSource(tmp_path / "whole.mp4", "").read(range(12))]
    path = tmp_path / "cut.mp4"
    counts = []
    refusals = set()
    for size in range(0, len(content), max(1, len(content) // 60)):
        path.write_bytes(content[:size])
        caplog.clear()
        try:
            source = VideoSource(path, "cut.mp4")
        except FrameError as error:
            refusals.add(str(error).replace(str(path), "PATH").partition(":")[0])
            continue
        frames = source.read(range(source.count))
        # Frames are stored in another order than they are shown in: the cut may leave a gap.
        places = [whole.index(frame.sha256) for frame in frames]
        assert places == sorted(set(places))
        assert source.count == 12 or f"12 frames, {source.count} can be decoded" in caplog.text
        counts.append(source.count)
    assert counts == sorted(counts)
    assert len(set(counts)) > 5
    assert refusals <= {
        "Cannot read the video PATH",
        "No picture of the video PATH can be decoded",
        "PATH holds no video stream",
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Cannot read the video .*copy or download it again"),
        (b"<html>Link Expired</html>", "Cannot read the video"),
    ],
)
def test_what_is_no_video_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    with pytest.raises(FrameError, match=message) as caught:
        VideoSource(path, "a.mp4")
    assert str(path) in str(caught.value)


def test_a_file_with_sound_only_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        sound = av.AudioFrame.from_ndarray(
            np.zeros((1, 1024), np.float32), format="fltp", layout="mono"
        )
        sound.sample_rate = 8000
        for packet in [*stream.encode(sound), *stream.encode()]:
            container.mux(packet)
    with pytest.raises(FrameError, match=r"a\.mp4 holds no video stream"):
        VideoSource(path, "a.mp4")


def test_a_video_that_went_away_is_an_error_of_the_frame(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4")
    source = VideoSource(path, "a.mp4")
    path.unlink()
    with pytest.raises(FrameError, match=r"Cannot read the video .*a\.mp4"):
        source.read([0])


def test_a_video_that_was_cut_after_it_was_opened_names_the_frame(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4")
    source = VideoSource(path, "a.mp4")
    path.write_bytes(path.read_bytes()[:-40])
    assert grays(source, [0]) == [0]
    with pytest.raises(FrameError, match=r"a\.mp4#11 cannot be decoded"):
        source.read([0, 11])


def test_a_damaged_frame_is_an_error_and_shifts_no_other(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4")
    whole = [frame.sha256 for frame in VideoSource(path, "a.mp4").read(range(12))]
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    content = path.read_bytes()
    for start, size in packets[1:]:
        path.write_bytes(content[:start] + b"\xff" * size + content[start + size :])
        source = VideoSource(path, "a.mp4")
        errors = 0
        for index in range(source.count):
            try:
                (frame,) = source.read([index])
            except FrameError:
                errors += 1
            else:
                assert frame.sha256 == whole[index]
        assert errors


@pytest.mark.parametrize(
    ("matrix", "quarters"),
    [((0, 1, -1, 0), -1), ((-1, 0, 0, -1), 2), ((0, -1, 1, 0), 1)],
)
def test_a_turned_video_is_shown_upright(
    tmp_path: Path, matrix: tuple[int, int, int, int], quarters: int
) -> None:
    path = write_video(tmp_path / "a.mp4")
    (plain,) = VideoSource(path, "a.mp4").read([9])
    content = bytearray(path.read_bytes())
    start = content.index(b"tkhd") + 4 + 40  # the matrix of a version 0 track header
    a, b, c, d = (value << 16 for value in matrix)
    content[start : start + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(content)
    (turned,) = VideoSource(path, "a.mp4").read([9])
    assert np.array_equal(turned.content, np.rot90(plain.content, quarters))


def test_a_public_report_of_a_header_that_says_ten(
    shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shared / "cases/videos"
    assert set(json.loads((folder / "right.json").read_text())) == {
        "ten_frames.mp4",
        "header_says_ten.mp4",
    }
    with caplog.at_level(logging.WARNING):
        cut = VideoSource(folder / "header_says_ten.mp4", "header_says_ten.mp4")
    assert cut.count == 7
    assert "the header says 10 frames, 7 can be decoded" in caplog.text
    assert len({frame.sha256 for frame in cut.read(range(7))}) == 7
    whole = VideoSource(folder / "ten_frames.mp4", "ten_frames.mp4")
    assert whole.count == 10
    for index, frame in enumerate(whole.read(range(10))):
        assert abs(int(frame.content[20, 5, 0]) - (20 + 20 * index)) <= 2


def test_the_real_walk_has_168_frames(shared: Path) -> None:
    source = VideoSource(shared / "data/openeqa/open-eqa-hm3d-demo.mp4", "demo.mp4")
    assert source.count == 168
    first, last = source.read([0, 167])
    assert first.content.shape == last.content.shape == (720, 1280, 3)
    assert first.sha256 != last.sha256


def test_a_title_in_another_encoding_does_not_matter(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    path = tmp_path / "walk.mp4"
    with av.open(str(path), "w") as container:
        container.metadata["title"] = "Kueche"
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height = 32, 16
        for shade in (20, 120, 220):
            picture = np.full((16, 32, 3), shade, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    data = path.read_bytes()
    assert b"Kueche" in data
    path.write_bytes(data.replace(b"Kueche", b"K\xfcche!"))
    source = VideoSource(path, "walk.mp4")
    assert source.count == 3
    assert len(source.read([0, 2])) == 2


def test_a_frame_is_stamped_by_its_file_its_number_and_the_decoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_video(tmp_path / "a.mp4")
    source = VideoSource(path, "s/a.mp4")
    assert source.stamp(0) is None  # written just now
    now = time.time_ns() + 10_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now)
    stamps = [source.stamp(0), source.stamp(1), VideoSource(path, "s/a.mp4").stamp(0)]
    assert stamps[0] == stamps[2] != stamps[1]
    monkeypatch.setattr(av, "__version__", "0.0.1")
    assert source.stamp(0) not in (None, *stamps)
    source.remember(1, "ab" * 32)
    assert (source.sha256(0), source.sha256(1)) == (None, "ab" * 32)
