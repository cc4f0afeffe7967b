"""An episode's frames are found in the layouts that are about, and nowhere else."""

from __future__ import annotations

import logging
import os
from hashlib import sha256
from pathlib import Path

import pytest

from openeqa_lab.data.layouts import FolderSource, frames_of, natural, open_source
from openeqa_lab.errors import FrameError, OpenEQAError

KEY = "hm3d-v0/000-hm3d-a"


def place(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def found(root: Path, key: str = KEY) -> list[str]:
    return [frame.path for frame in frames_of(open_source(root, key))]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # as upstream extracts it
        (
            [f"{KEY}/0000{i}{end}" for i in (1, 0) for end in ("-rgb.png", "-depth.png", ".txt")],
            [f"{KEY}/00000-rgb.png", f"{KEY}/00001-rgb.png"],
        ),
        # a root of depth pictures does not hide the folder that holds the frames
        ([f"{KEY}/0-depth.png", f"{KEY}/rgb/0.jpg"], [f"{KEY}/rgb/0.jpg"]),
        ([f"{KEY}/frames/0-seg.png", f"{KEY}/color/0.jpg"], [f"{KEY}/color/0.jpg"]),
        # the episode's folder itself first, then in the order frames, rgb, color, images
        ([f"{KEY}/a.png", f"{KEY}/rgb/b.png"], [f"{KEY}/a.png"]),
        ([f"{KEY}/images/a.png", f"{KEY}/frames/b.png"], [f"{KEY}/frames/b.png"]),
        ([f"{KEY}/images/a.png", f"{KEY}/other/b.png"], [f"{KEY}/images/a.png"]),
        # any case, any kind; hidden files and other files are not frames
        (
            [
                f"{KEY}/{name}"
                for name in ("1.PNG", "2.Jpg", "3.jpeg", "4.WEBP", "._1.PNG", "5.gif")
            ],
            [f"{KEY}/{name}" for name in ("1.PNG", "2.Jpg", "3.jpeg", "4.WEBP")],
        ),
        # natural order
        (
            [f"{KEY}/color/{i}.jpg" for i in (10, 9, 0, 100)],
            [f"{KEY}/color/{i}.jpg" for i in (0, 9, 10, 100)],
        ),
        # without the split
        (["000-hm3d-a/0-rgb.png"], ["000-hm3d-a/0-rgb.png"]),
        # the full key wins
        (["000-hm3d-a/0.png", f"{KEY}/1.png"], [f"{KEY}/1.png"]),
        # a file of that name is not an episode
        ([KEY, "000-hm3d-a/0.png"], ["000-hm3d-a/0.png"]),
    ],
)
def test_frames_are_found(tmp_path: Path, names: list[str], expected: list[str]) -> None:
    place(tmp_path, *names)
    assert found(tmp_path) == expected


@pytest.mark.parametrize("kind", ["depth", "seg", "sem", "semantic", "normal", "instance", "DEPTH"])
def test_other_pictures_are_dropped(tmp_path: Path, kind: str) -> None:
    place(tmp_path, f"{KEY}/0-{kind}.png", f"{KEY}/0-{kind}x.png", f"{KEY}/{kind}.png")
    assert found(tmp_path) == sorted([f"{KEY}/0-{kind}x.png", f"{KEY}/{kind}.png"])


def test_a_key_with_more_before_the_split_is_found_by_its_last_two_parts(tmp_path: Path) -> None:
    place(tmp_path, f"{KEY}/0.png")
    assert found(tmp_path, f"data/frames/{KEY}") == [f"{KEY}/0.png"]


@pytest.mark.parametrize(
    "name", [f"{KEY}.mp4", f"{KEY}-0.mp4", f"{KEY}.webm", f"{KEY}.MOV", "000-hm3d-a.mp4"]
)
def test_a_video_stands_for_an_episode(tmp_path: Path, shared: Path, name: str) -> None:
    content = (shared / "cases/videos/ten_frames.mp4").read_bytes()
    place(tmp_path, f"{KEY}/0-depth.png", name)
    (tmp_path / name).write_bytes(content)
    assert found(tmp_path) == [f"{name}#{index}" for index in range(10)]


def test_a_folder_with_frames_goes_before_a_video(tmp_path: Path) -> None:
    place(tmp_path, f"{KEY}.mp4", f"{KEY}/0-rgb.png")
    assert found(tmp_path) == [f"{KEY}/0-rgb.png"]


def test_natural_order_that_differs_from_lexical_is_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place(tmp_path, *[f"{KEY}/{i:02}.png" for i in range(12)])
    place(tmp_path, *[f"s/e/{i}.png" for i in range(12)])
    with caplog.at_level(logging.INFO):
        found(tmp_path)
        assert not caplog.text
        found(tmp_path, "s/e")
    assert "natural order" in caplog.text
    assert str(tmp_path / "s/e") in caplog.text


@pytest.mark.parametrize(
    "names",
    [
        ["frame1.jpg", "frame2.jpg", "frame10.jpg", "frame100.jpg"],
        ["a", "a1", "a1b", "a01b2", "a1b2", "a2", "b"],
        ["2.png", "1" * 200 + ".png", "²1.png", "é1.png"],
    ],
)
def test_natural_order_can_sort_anything(names: list[str]) -> None:
    assert sorted(sorted(names), key=natural) == names


def test_one_frame_in_two_formats_is_refused(tmp_path: Path) -> None:
    place(tmp_path, f"{KEY}/0.png", f"{KEY}/0.jpg", f"{KEY}/1.png")
    with pytest.raises(FrameError, match=r"holds one frame twice, as 0\.(png and 0\.jpg|jpg and)"):
        open_source(tmp_path, KEY)


def test_a_missing_episode_names_the_places_that_were_looked_at(tmp_path: Path) -> None:
    place(tmp_path, "hm3d-v0/001-hm3d-b/0.png")
    with pytest.raises(FrameError, match=f"'{KEY}' is missing") as caught:
        open_source(tmp_path, KEY)
    assert caught.value.kind == "episode_missing"
    assert f"{tmp_path / KEY}, {tmp_path / '000-hm3d-a'}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["0-depth.png", "rgb/0-DEPTH.png"], r"found 2 pictures that are not RGB, such as 0-d"),
        (["poses.txt"], r"found no picture at all"),
        (["0.png/x.txt"], r"found no picture at all"),
    ],
)
def test_an_episode_without_rgb_frames_says_what_is_there(
    tmp_path: Path, names: list[str], message: str
) -> None:
    place(tmp_path, *[f"{KEY}/{name}" for name in names])
    with pytest.raises(FrameError, match=rf"has no RGB frame: {message}") as caught:
        open_source(tmp_path, KEY)
    assert caught.value.kind == "episode_missing"
    assert str(tmp_path / KEY) in str(caught.value)


@pytest.mark.parametrize(
    "key", ["../out/e", "a/../../out/e", "..", "/etc", ".", "", "a\0b", "./", "hm3d-v0/.."]
)
def test_a_key_that_is_not_below_the_root_is_refused(tmp_path: Path, key: str) -> None:
    root = tmp_path / "root"
    place(root, f"{KEY}/0.png")
    place(tmp_path, "out/e/0.png")
    with pytest.raises(FrameError, match="is not a key below the frames folder") as caught:
        open_source(root, key)
    assert caught.value.kind == "episode_missing"


def test_an_absurdly_long_key_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FrameError, match="cannot be listed"):
        open_source(tmp_path, "a" * 5000)


@pytest.mark.parametrize("linked", ["hm3d-v0", KEY, f"{KEY}/rgb", f"{KEY}/0.png"])
def test_links_to_another_disk_are_followed(tmp_path: Path, linked: str) -> None:
    root = tmp_path / "root"
    place(tmp_path, "disk/000-hm3d-a/0.png", "disk/0.png")
    (root / linked).parent.mkdir(parents=True)
    (root / linked).symlink_to(tmp_path / ("disk/0.png" if linked.endswith("png") else "disk"))
    source = open_source(root, KEY)
    assert source.count == 1
    assert source.path(0).startswith("hm3d-v0/")


def test_links_within_the_root_and_the_root_itself_are_followed(tmp_path: Path) -> None:
    place(tmp_path, "real/store/0.png", "real/store/1.png")
    (tmp_path / "root").symlink_to(tmp_path / "real")
    (tmp_path / "real/hm3d-v0").mkdir()
    (tmp_path / "real" / KEY).symlink_to("../store")
    (tmp_path / "real/store/2.png").symlink_to("1.png")
    source = open_source(tmp_path / "root", KEY)
    assert [frame.content for frame in source.read([2])] == [b"real/store/1.png"]


def test_a_dead_link_is_a_frame_that_cannot_be_read(tmp_path: Path) -> None:
    place(tmp_path, f"{KEY}/0.png")
    (tmp_path / KEY / "1.png").symlink_to("gone.png")
    source = open_source(tmp_path, KEY)
    assert source.count == 2
    with pytest.raises(FrameError, match=r"Cannot read frame .*1\.png: No such file"):
        source.read([0, 1])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list every folder")
def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    place(tmp_path, f"{KEY}/0.png")
    (tmp_path / KEY).chmod(0)
    with pytest.raises(FrameError, match="cannot be listed: Permission denied"):
        open_source(tmp_path, KEY)


def test_no_root_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(OpenEQAError, match=r"No frames folder .*OPENEQA_DATA_DIR") as caught:
        open_source(tmp_path / "nowhere", KEY)
    assert not isinstance(caught.value, FrameError)


def test_digests_are_of_the_bytes_and_known_once_read(tmp_path: Path) -> None:
    place(tmp_path, f"{KEY}/0.png", f"{KEY}/1.png")
    source = open_source(tmp_path, KEY)
    assert isinstance(source, FolderSource)
    assert source.key == KEY
    frame = frames_of(source)[1]
    assert frame.sha256 is None
    raw = frame.read()
    assert raw.content == f"{KEY}/1.png".encode()
    assert raw.sha256 == frame.sha256 == sha256(f"{KEY}/1.png".encode()).hexdigest()
    assert raw.name == str(tmp_path / KEY / "1.png")
    assert source.sha256(0) is None


@pytest.mark.parametrize(
    ("count", "max_frames", "indices"),
    [
        (5, 0, [0, 1, 2, 3, 4]),
        (5, 5, [0, 1, 2, 3, 4]),
        (5, 9, [0, 1, 2, 3, 4]),
        (10, 4, [0, 2, 5, 8]),
        (10, 1, [0]),
        (7, 5, [0, 1, 3, 4, 6]),
        (600, 3, [0, 200, 400]),
    ],
)
def test_max_frames_strides_over_the_episode(
    tmp_path: Path, count: int, max_frames: int, indices: list[int]
) -> None:
    source = FolderSource(tmp_path, KEY, [f"{index}.png" for index in range(count)])
    assert [frame.index for frame in frames_of(source, max_frames)] == indices
