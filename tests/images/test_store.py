from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from openeqa_lab.data.episode import Frame, Image, RawFrame
from openeqa_lab.data.layouts import FolderSource
from openeqa_lab.errors import FrameError
from openeqa_lab.images.encoders import Encoder, UpstreamEncoder
from openeqa_lab.images.store import FrameStore

RECIPE = {"format": "jpeg", "size": 512, "pillow": "1.0"}


def picture(number: int = 0, size: int = 1000) -> Image:
    return Image(b"\xff\xd8\xff" + bytes([number % 256]) * size, "image/jpeg", 5, 7)


def raw(number: int = 0) -> RawFrame:
    content = str(number).encode()
    return RawFrame(content, sha256(content).hexdigest(), f"room/{number}.png")


def pixels(height: int, width: int) -> RawFrame:
    content = np.zeros((height, width, 3), np.uint8)
    return RawFrame(content, sha256(content.data).hexdigest(), "walk.mp4#1")


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def store(tmp_path: Path) -> FrameStore:
    return FrameStore(tmp_path / "frames", 100, RECIPE)


# What is kept and found


def test_a_picture_is_found_by_its_frames_content(store: FrameStore, tmp_path: Path) -> None:
    assert store.by_content(raw(1)) is None
    store.keep(raw(1), picture(1))
    assert store.by_content(raw(1)) == picture(1)
    assert store.by_content(raw(2)) is None
    again = FrameStore(tmp_path / "frames", 100, dict(reversed(RECIPE.items())))
    assert again.by_content(raw(1)) == picture(1)  # the order of settings is none


@pytest.mark.parametrize(
    "recipe", [RECIPE | {"size": 256}, RECIPE | {"pillow": "1.1"}, RECIPE | {"more": None}, {}]
)
def test_another_recipe_finds_nothing(
    store: FrameStore, tmp_path: Path, recipe: dict[str, object]
) -> None:
    store.keep(raw(), picture())
    store.note("stamp", raw())
    other = FrameStore(tmp_path / "frames", 100, recipe)
    assert other.by_content(raw()) is None
    assert other.by_stamp("stamp") is None
    other.keep(raw(), picture(9))
    assert store.by_content(raw()) == picture()
    assert other.by_stamp("stamp") == (picture(9), raw().sha256)  # a content has no recipe


def test_a_picture_is_found_by_the_stamp_of_its_frame(store: FrameStore) -> None:
    assert store.by_stamp("stamp") is None
    store.note("stamp", raw(1))
    assert store.by_stamp("stamp") is None
    store.keep(raw(1), picture(1))
    assert store.by_stamp("stamp") == (picture(1), raw(1).sha256)
    store.note("stamp", raw(2))  # the file has changed, and its stamp as well or not
    assert store.by_stamp("stamp") is None
    odd = "room/\udcff\u00e9.png"
    store.note(odd, raw(1))
    assert store.by_stamp(odd) == (picture(1), raw(1).sha256)


def test_pixels_of_one_digest_and_two_shapes_are_two_frames(store: FrameStore) -> None:
    wide, tall = pixels(2, 3), pixels(3, 2)
    assert wide.sha256 == tall.sha256
    store.keep(wide, picture(1))
    assert store.by_content(tall) is None
    store.keep(tall, picture(2))
    store.note("tall", tall)
    assert store.by_content(wide) == picture(1)
    assert store.by_stamp("tall") == (picture(2), tall.sha256)


@pytest.mark.parametrize("digest", ["", "none", "AB" * 32, "ab" * 31, "ab" * 32 + "\n"])
def test_a_frame_without_a_digest_is_not_kept(
    store: FrameStore, tmp_path: Path, digest: str
) -> None:
    frame = RawFrame(b"content", digest, "a.png")
    store.keep(frame, picture())
    store.note("stamp", frame)
    assert store.by_content(frame) is None
    assert files(tmp_path) == []


@pytest.mark.parametrize("start", [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBP"])
def test_a_picture_keeps_its_type_and_its_size(store: FrameStore, start: bytes) -> None:
    types = {b"\xff": "image/jpeg", b"\x89": "image/png", b"R": "image/webp"}
    image = Image(start + bytes(50), types[start[:1]], 4096, 3)
    store.keep(raw(), image)
    assert store.by_content(raw()) == image


# Damage


def test_a_file_cut_or_damaged_anywhere_is_as_good_as_none(
    store: FrameStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.keep(raw(), picture(size=60))
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place])
        assert store.by_content(raw()) is None, place
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert store.by_content(raw()) is None, place
    path.write_bytes(whole + b"more")
    assert store.by_content(raw()) is None
    assert caplog.messages[-1] == f"{path} is cut or damaged and is made anew"
    store.keep(raw(), picture(3))
    assert store.by_content(raw()) == picture(3)


def test_notes_cut_or_damaged_anywhere_are_left_out(store: FrameStore, tmp_path: Path) -> None:
    for number in range(3):
        store.keep(raw(number), picture(number))
        store.note(f"stamp {number}", raw(number))
    path = tmp_path / "frames" / "notes"
    whole = path.read_bytes()
    line = len(whole) // 3
    for place in range(line, 2 * line):
        for damaged in (whole[:place], whole[:place] + b"8" + whole[place + 1 :]):
            path.write_bytes(damaged)
            again = FrameStore(tmp_path / "frames", 100, RECIPE)
            assert again.by_stamp("stamp 0") == (picture(0), raw(0).sha256)
            assert again.by_stamp("stamp 1") in (None, (picture(1), raw(1).sha256))
            third = None if len(damaged) < len(whole) else (picture(2), raw(2).sha256)
            assert again.by_stamp("stamp 2") in (third, None)
    path.write_bytes(whole[: line - 20])  # torn by a kill, and then written on
    FrameStore(tmp_path / "frames", 100, RECIPE).note("stamp 2", raw(2))
    FrameStore(tmp_path / "frames", 100, RECIPE).note("stamp 1", raw(1))
    again = FrameStore(tmp_path / "frames", 100, RECIPE)
    assert again.by_stamp("stamp 0") is None
    assert again.by_stamp("stamp 1") == (picture(1), raw(1).sha256)


def test_notes_are_begun_anew_before_they_grow_without_bound(tmp_path: Path) -> None:
    store = FrameStore(tmp_path, 1, RECIPE)
    store.keep(raw(), picture())
    for number in range(600):
        store.note(f"stamp {number}", raw())
        store.note(f"stamp {number}", raw())  # which is known
    assert 50_000 < (tmp_path / "notes").stat().st_size < 600 * 120
    again = FrameStore(tmp_path, 1, RECIPE)
    assert again.by_stamp("stamp 1") is None
    again.note("stamp 1", raw())
    assert (tmp_path / "notes").stat().st_size < 120
    assert FrameStore(tmp_path, 1, RECIPE).by_stamp("stamp 1") == (picture(), raw().sha256)


def test_what_a_killed_process_left_unfinished_is_not_taken_and_goes_later(
    store: FrameStore, tmp_path: Path
) -> None:
    store.keep(raw(1), picture(1))
    (path,) = files(tmp_path)
    old = path.with_name(f"{path.name}.{'0' * 16}.tmp")
    new = path.with_name(f"{path.name}.{'1' * 16}.tmp")
    for each in (old, new):
        each.write_bytes(path.read_bytes()[:500])
    os.utime(old, (time.time() - 7200,) * 2)
    FrameStore(tmp_path / "frames", 100, RECIPE).keep(raw(2), picture(2))
    assert not old.exists()
    assert new.exists()  # may be under way
    assert store.by_content(raw(1)) == picture(1)


# The bound


def taken(folder: Path) -> int:
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in files(folder))


def kept(store: FrameStore, numbers: Sequence[int]) -> list[int]:
    return [number for number in numbers if store.by_content(raw(number)) is not None]


def test_the_longest_unused_go_when_the_bound_is_passed(tmp_path: Path) -> None:
    store, now = FrameStore(tmp_path, 1, RECIPE), time.time()
    for number in range(15):  # of 53 kB each as they lie on a disk
        before = set(files(tmp_path))
        store.keep(raw(number), picture(number, 50_000))
        (path,) = set(files(tmp_path)) - before
        os.utime(path, (now - 50_000 + number,) * 2)
    assert kept(store, [3, 0]) == [3, 0]  # which is a use
    for number in range(15, 25):
        store.keep(raw(number), picture(number, 50_000))
        assert taken(tmp_path) <= 1_100_000
    left = kept(store, range(25))
    assert {0, 3, *range(15, 25)} <= set(left)
    assert left == [0, 3, *range(left[2], 25)]
    assert len(left) >= 14


def test_a_new_object_and_other_processes_see_what_is_there(tmp_path: Path) -> None:
    for number in range(60):  # each of them new, as from another process
        FrameStore(tmp_path, 1, RECIPE).keep(raw(number), picture(number, 50_000))
        assert taken(tmp_path) <= 1_000_000


def test_a_picture_beyond_the_bound_is_not_kept(tmp_path: Path) -> None:
    store = FrameStore(tmp_path, 1, RECIPE)
    store.keep(raw(1), picture(1))
    store.keep(raw(2), picture(2, 1_000_000))
    assert kept(store, [1, 2]) == [1]


def test_nothing_that_is_not_the_stores_is_removed(tmp_path: Path) -> None:
    names = [
        "thesis.tex",
        "ab/notes.txt",
        "ab/" + "0" * 61,
        "ab/" + "0" * 62 + ".bak",
        "zz/" + "0" * 62,
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(2_000_000))
        os.utime(tmp_path / name, (0, 0))
    store = FrameStore(tmp_path, 1, RECIPE)
    for number in range(40):
        store.keep(raw(number), picture(number, 50_000))
    assert all((tmp_path / name).stat().st_size == 2_000_000 for name in names)
    assert taken(tmp_path) <= 1_100_000 + 5 * 2_002_944


# Disks and neighbours


def test_a_folder_that_cannot_be_made_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_bytes(b"")
    store = FrameStore(tmp_path / "taken", 100, RECIPE)
    for number in range(5):
        store.keep(raw(number), picture())
        store.note("stamp", raw(number))
        assert store.by_content(raw(number)) is None
        assert store.by_stamp("stamp") is None
    (message,) = caplog.messages
    assert message.startswith(f"Prepared frames cannot be stored in {tmp_path / 'taken'} (")
    assert message.endswith(
        "the run goes on, and the next one prepares them again; make room, or set cache_dir to a "
        "folder that can be written, or encoder.store_dir=null"
    )


FULL = """
import resource, signal, sys
from hashlib import sha256
from pathlib import Path
from openeqa_lab.data.episode import Image, RawFrame
from openeqa_lab.images.store import FrameStore

store = FrameStore(Path(sys.argv[1]), 100, {})
frames = [RawFrame(b"%d" % n, sha256(b"%d" % n).hexdigest(), "") for n in range(3)]
picture = Image(b"\\xff\\xd8\\xff" + bytes(60_000), "image/jpeg", 1, 1)
store.keep(frames[0], picture)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # in the midst of a write
for frame in frames[1:]:
    store.keep(frame, picture)
print([store.by_content(frame) == picture for frame in frames])
"""


def test_a_disk_that_is_full_is_warned_of_once_and_what_is_there_is_used(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[True, False, False]\n"
    assert result.stderr.count("Prepared frames cannot be stored in") == 1
    assert os.strerror(errno.EFBIG) in result.stderr
    assert len(files(tmp_path)) == 1  # nothing half


NEIGHBOUR = """
import random, sys
from hashlib import sha256
from pathlib import Path
from openeqa_lab.data.episode import Image, RawFrame
from openeqa_lab.images.store import FrameStore

random.seed(sys.argv[2])
store = FrameStore(Path(sys.argv[1]), 2, {})
found = 0
for _ in range(600):
    number = random.randrange(60)
    frame = RawFrame(b"%d" % number, sha256(b"%d" % number).hexdigest(), "")
    picture = Image(b"\\xff\\xd8\\xff" + bytes([number]) * 50_000, "image/jpeg", number, 1)
    store.note(f"stamp {number}", frame)
    stored = store.by_content(frame) or (store.by_stamp(f"stamp {number}") or [None])[0]
    assert stored in (None, picture)
    found += stored is not None
    if stored is None:
        store.keep(frame, picture)
assert found
"""


def test_several_processes_share_a_folder(tmp_path: Path) -> None:
    """Under a bound that makes each of them remove what another may be about to read."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", NEIGHBOUR, str(tmp_path), str(seed)], stderr=subprocess.PIPE
        )
        for seed in range(3)
    ]
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, b"")
    assert taken(tmp_path) <= 3_000_000
    assert not [path for path in files(tmp_path) if path.suffix]


# With an encoder


class Counted(FolderSource):
    """A folder that counts what is read of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "room", sorted(path.name for path in folder.iterdir()))
        self.reads: list[int] = []

    def read(self, indices: Sequence[int]) -> Sequence[RawFrame]:
        self.reads += indices
        return super().read(indices)

    def frames(self) -> list[Frame]:
        return [Frame(self, index) for index in range(self.count)]


def scene(seed: int) -> Pillow.Image:
    noise = np.random.default_rng(seed).normal(128, 40, (48, 64, 3))
    return Pillow.fromarray(noise.clip(0, 255).astype(np.uint8))


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of four frames that are at rest, by a clock that is ten seconds ahead."""
    folder, now = tmp_path / "room", time.time_ns
    folder.mkdir()
    for number in range(4):
        scene(number).save(folder / f"{number}.png")
    monkeypatch.setattr(time, "time_ns", lambda: now() + 10_000_000_000)
    return folder


def make(kind: str, store: Path | None, **settings: object) -> Encoder | UpstreamEncoder:
    if kind == "png_upstream":
        pytest.importorskip("cv2", reason="needs the extra [upstream]")
        return UpstreamEncoder(store_dir=store, **settings)  # type: ignore[arg-type]
    return Encoder(kind, store_dir=store, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "png_upstream"])
async def test_a_second_run_reads_nothing_and_sends_the_same(
    room: Path, tmp_path: Path, kind: str
) -> None:
    first, second = Counted(room), Counted(room)
    bare = await make(kind, None).encode(first.frames())
    cold = await make(kind, tmp_path / "store").encode(first.frames())
    assert sorted(first.reads) == [0, 0, 1, 1, 2, 2, 3, 3]
    warm = await make(kind, str(tmp_path / "store")).encode(second.frames())
    assert second.reads == []
    assert bare == cold == warm
    assert [frame.sha256 for frame in second.frames()] == [
        sha256(path.read_bytes()).hexdigest() for path in sorted(room.iterdir())
    ]


async def test_a_frame_that_changed_is_prepared_anew(room: Path, tmp_path: Path) -> None:
    await make("jpeg", tmp_path / "store").encode(Counted(room).frames())
    times = (room / "2.png").stat()
    scene(9).save(room / "2.png")
    os.utime(room / "2.png", ns=(times.st_atime_ns, times.st_mtime_ns))
    source = Counted(room)
    given = await make("jpeg", tmp_path / "store").encode(source.frames())
    assert source.reads == [2]
    assert given == await make("jpeg", None).encode(Counted(room).frames())


async def test_one_content_in_two_places_is_prepared_once(room: Path, tmp_path: Path) -> None:
    (room / "4.png").write_bytes((room / "0.png").read_bytes())
    await make("jpeg", tmp_path / "store").encode(Counted(room).frames())
    assert len(files(tmp_path / "store")) == 1 + 4


SETTINGS: Sequence[tuple[str, dict[str, object]]] = [
    ("jpeg", {}),
    ("jpeg", {"quality": 80}),
    ("jpeg", {"size": 32}),
    ("jpeg", {"size": 32, "resampling": "box"}),
    ("png", {}),
    ("webp", {}),
    ("png_upstream", {}),
    ("png_upstream", {"size": 32}),
]


async def test_other_settings_do_not_share(room: Path, tmp_path: Path) -> None:
    for _ in range(2):
        for kind, settings in SETTINGS:
            bare = await make(kind, None, **settings).encode(Counted(room).frames())
            encoder = make(kind, tmp_path / "store", **settings)
            assert await encoder.encode(Counted(room).frames()) == bare
    assert len(files(tmp_path / "store")) == 1 + 4 * len(SETTINGS)


async def test_a_frame_that_cannot_be_read_is_not_kept(room: Path, tmp_path: Path) -> None:
    whole = (room / "1.png").read_bytes()
    (room / "1.png").write_bytes(whole[:200])
    for _ in range(2):
        with pytest.raises(FrameError, match=r"1\.png is cut or damaged"):
            await make("jpeg", tmp_path / "store").encode(Counted(room).frames())
    (room / "1.png").write_bytes(whole)
    given = await make("jpeg", tmp_path / "store").encode(Counted(room).frames())
    assert given == await make("jpeg", None).encode(Counted(room).frames())


async def test_a_file_that_changes_while_it_is_read_gets_no_note(
    room: Path, tmp_path: Path
) -> None:
    class Restless(Counted):
        def read(self, indices: Sequence[int]) -> Sequence[RawFrame]:
            raws = super().read(indices)
            for index in indices:
                (room / f"{index}.png").touch()
            return raws

    await make("jpeg", tmp_path / "store").encode(Restless(room).frames())
    assert len(files(tmp_path / "store")) == 4  # the pictures alone
    source = Counted(room)
    await make("jpeg", tmp_path / "store").encode(source.frames())
    assert sorted(source.reads) == [0, 1, 2, 3]


async def test_a_source_without_stamps_is_read_and_not_decoded(room: Path, tmp_path: Path) -> None:
    class Plain:
        key = "room"

        def __init__(self) -> None:
            self.inner = Counted(room)

        def path(self, index: int) -> str:
            return self.inner.path(index)

        def read(self, indices: Sequence[int]) -> Sequence[RawFrame]:
            return self.inner.read(indices)

        def sha256(self, index: int) -> str | None:
            return self.inner.sha256(index)

    encoder = make("jpeg", tmp_path / "store")
    await encoder.encode([Frame(Plain(), 1)])
    marked = picture(7)
    encoder._once._store.keep(Plain().read([1])[0], marked)  # type: ignore[union-attr]
    source = Plain()
    again = make("jpeg", tmp_path / "store")
    assert list(await again.encode([Frame(source, 1)])) == [marked]
    assert source.inner.reads == [1]


async def test_a_disk_that_fails_stops_no_run(
    room: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    given = await make("jpeg", tmp_path / "file" / "frames").encode(Counted(room).frames())
    assert given == await make("jpeg", None).encode(Counted(room).frames())
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_frames_of_a_video_that_were_prepared_before_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    av = pytest.importorskip("av")
    from openeqa_lab.data.videos import VideoSource

    path, now = tmp_path / "walk.mp4", time.time_ns
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for seed in range(8):
            container.mux(stream.encode(av.VideoFrame.from_image(scene(seed))))
        container.mux(stream.encode())
    monkeypatch.setattr(time, "time_ns", lambda: now() + 10_000_000_000)

    class Watched(VideoSource):
        def read(self, indices: Sequence[int]) -> Sequence[RawFrame]:
            decoded.extend(indices)
            return super().read(indices)

    decoded: list[int] = []
    sources = [Watched(path, "walk.mp4") for _ in range(3)]
    pictures = []
    for source, wanted in zip(sources, ([1, 3, 5], [1, 3, 5], [1, 2, 5]), strict=True):
        frames = [Frame(source, index) for index in wanted]
        pictures.append(await make("jpeg", tmp_path / "store").encode(frames))
    assert decoded == [1, 3, 5, 2]
    assert pictures[0] == pictures[1]
    assert [pictures[2][0], pictures[2][2]] == [pictures[0][0], pictures[0][2]]
    assert sources[1].sha256(3) == sources[0].sha256(3) is not None
