from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from openeqa_lab.data.episode import Frame, Image, RawFrame
from openeqa_lab.data.layouts import FolderSource
from openeqa_lab.errors import FrameError, OpenEQAError
from openeqa_lab.images.encoders import Encoder, UpstreamEncoder
from openeqa_lab.images.preparation import Shrinking, UpstreamShrinking
from openeqa_lab.images.workers import Workers, _Worker

pytest.importorskip("kornia_rs", reason="needs the extra [fast]")

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
FRAMES = 16  # more than are prepared before a process is started


def picture(seed: int, width: int = 600, height: int = 440) -> Pillow.Image:
    """A smooth picture with some noise, large enough for a process."""
    noise = np.random.default_rng(seed).normal(0, 6, (height, width, 3))
    x, y = np.linspace(0, 180, width)[None, :, None], np.linspace(0, 60, height)[:, None, None]
    return Pillow.fromarray((x + y + noise).clip(0, 255).astype(np.uint8))


def raw(content: bytes, name: str = "room/00007-rgb.png") -> RawFrame:
    return RawFrame(content, sha256(content).hexdigest(), name)


@cache
def png(seed: int = 0) -> bytes:
    buffer = io.BytesIO()
    picture(seed).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def episode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of so many large frames, one of them gray and one a JPEG under a PNG's name."""
    folder = tmp_path_factory.mktemp("data") / "room"
    folder.mkdir()
    for number in range(FRAMES):
        path = folder / f"{number:05}-rgb.png"
        if number == 12:
            picture(number).convert("L").save(path, "PNG")
        elif number == 13:
            picture(number).save(path, "JPEG")
        else:
            picture(number).save(path, "PNG", compress_level=1)
    return folder


def frames(folder: Path) -> list[Frame]:
    names = sorted(path.name for path in folder.iterdir())
    source = FolderSource(folder, folder.name, names)
    return [Frame(source, index) for index in range(len(names))]


def children(process: int | None = None) -> list[int]:
    tasks = Path(f"/proc/{process or os.getpid()}/task").iterdir()
    found: list[int] = []
    for task in tasks:
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            found += map(int, (task / "children").read_text().split())
    return found


def soon(condition: Callable[[], bool], tries: int = 1000) -> None:
    for _ in range(tries):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(f"waited for {tries / 100} seconds in vain")


def alive(process: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def busy(workers: Workers, contents: Sequence[bytes], threads: int = 4) -> list[object]:
    """What so many threads at once get for these frames: pictures or errors, in order."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(workers, raw(content)) for content in contents]
    return [future.exception() or future.result() for future in futures]


# The bytes are the same


@pytest.mark.parametrize("settings", [{}, {"resampling": "box"}, {"format": "png"}, {"size": 0}])
async def test_pictures_are_the_same_with_and_without_processes(
    episode: Path, settings: dict[str, object]
) -> None:
    inside = Encoder(processes=0, **settings)  # type: ignore[arg-type]
    outside = Encoder(processes=2, **settings)  # type: ignore[arg-type]
    wanted = await inside.encode(frames(episode))
    assert await outside.encode(frames(episode)) == wanted
    assert outside.identity == inside.identity
    assert outside._once._prepare._idle  # type: ignore[attr-defined]
    assert not inside._once._prepare._idle  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [512, 0, 900])
async def test_upstreams_pixels_are_the_same_with_and_without_processes(
    episode: Path, size: int
) -> None:
    pytest.importorskip("cv2", reason="needs the extra [upstream]")

    def pixels(images: Sequence[Image]) -> list[bytes]:
        return [Pillow.open(io.BytesIO(image.data)).tobytes() for image in images]

    outside = UpstreamEncoder(size, processes=2)
    wanted = await UpstreamEncoder(size, processes=0).encode(frames(episode))
    given = await outside.encode(frames(episode))
    assert pixels(given) == pixels(wanted)
    assert {(each.media_type, each.width, each.height) for each in given} == {
        (each.media_type, each.width, each.height) for each in wanted
    }
    assert outside._once._prepare._idle  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "prepare",
    [
        Shrinking("jpeg", 512, 90, "bicubic"),
        Shrinking("webp", 100, 50, "lanczos"),
        Shrinking("jpeg", 300, 90, "catmull_rom"),
        UpstreamShrinking(512),
    ],
)
def test_a_process_prepares_as_we_do(prepare: Shrinking | UpstreamShrinking) -> None:
    pytest.importorskip("cv2", reason="needs the extra [upstream]")
    worker = _Worker(prepare)
    for seed in range(3):
        assert worker.prepare(raw(png(seed))) == prepare(raw(png(seed)))
    assert worker.end() == "with exit code 0"


# Which frames go to a process


def test_without_the_extra_there_are_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kornia_rs", None)
    assert Workers(Shrinking("jpeg", 512, 90, "bicubic"), 3).processes == 0


@pytest.mark.parametrize("number", [0, 1, 3])
def test_there_are_as_many_processes_as_asked_for(number: int) -> None:
    workers = Workers(Shrinking("jpeg", 512, 90, "box"), number)
    busy(workers, [png()] * 20, threads=6)
    assert len(workers._idle) <= number
    assert bool(workers._idle) == bool(number)


def test_by_default_there_is_one_a_core_up_to_four() -> None:
    workers = Workers(Shrinking("jpeg", 512, 90, "box"), None)
    assert workers.processes == min(4, len(os.sched_getaffinity(0)))


def test_small_and_unusual_frames_are_prepared_here() -> None:
    small, gray = io.BytesIO(), io.BytesIO()
    picture(0, 320, 240).save(small, "PNG")
    picture(0).convert("L").save(gray, "PNG")
    pixels = RawFrame(np.asarray(picture(0)), "0" * 64, "walk.mp4#1")
    workers = Workers(Shrinking("jpeg", 512, 90, "box"), 2)
    for _ in range(12):
        for frame in (raw(small.getvalue()), raw(gray.getvalue()), pixels):
            workers(frame)
    assert not workers._idle


# What a process is, and what goes wrong in one


OWN = """
import os, sys, time
from dataclasses import dataclass
from openeqa_lab.data.episode import Image
from openeqa_lab.errors import FrameError, OpenEQAError
from openeqa_lab.images.preparation import Shrinking

def picture(words):
    return Image(b"\\xff\\xd8\\xff" + words.encode(), "image/jpeg", 1, 1)

@dataclass(frozen=True)
class Own:
    what: str
    folder: str = ""
    times: int = 0
    fast: bool = False

    def __call__(self, raw):
        return getattr(self, self.what)(raw) if self.fast else picture("prepared here")

    def modules(self, raw):
        Shrinking("jpeg", 100, 90, "catmull_rom", fast=True)(raw)
        return picture(" ".join(sys.modules))

    def refuse(self, raw):
        raise FrameError(f"{raw.name} is a web page", kind="own_kind")

    def object(self, raw):
        raise OpenEQAError("a setting is wrong")

    def fail(self, raw):
        return {}[raw.name]

    def print(self, raw):
        print("a library's words", flush=True)
        os.write(1, b"and a C library's")
        return picture(raw.name)

    def killed(self, raw):
        return self.dies(raw, lambda: os.kill(os.getpid(), 9))

    def ends(self, raw):
        return self.dies(raw, lambda: os._exit(7))

    def dies(self, raw, how):
        seen = len(os.listdir(self.folder))
        if seen < self.times:
            open(os.path.join(self.folder, str(seen)), "x").close()
            how()
        return picture(raw.name)

    def slowly(self, raw):
        time.sleep(0.1)
        return picture(str(os.getpid()))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Workers]:
    """Makes workers whose processes do something of their own."""
    (tmp_path / "own_preparations.py").write_text(OWN)
    (tmp_path / "seen").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_preparations", raising=False)
    from own_preparations import Own

    def make(what: str, processes: int = 1, times: int = 0) -> Workers:
        workers = Workers(Own(what, str(tmp_path / "seen"), times), processes)
        for _ in range(8):  # which are not worth a process
            assert words(workers(raw(PNG))) == "prepared here"
        return workers

    return make


PNG = png()


def words(image: Image) -> str:
    return image.data[3:].decode()


def test_a_process_loads_what_it_needs_and_no_more(own: Callable[..., Workers]) -> None:
    loaded = set(words(own("modules")(raw(PNG))).split())
    assert {"kornia_rs.io", "PIL.Image", "numpy", "cykooz_resizer"} <= loaded
    heavy = {"torch", "litellm", "wandb", "hydra", "asyncio", "av", "cv2", "pydantic", "own_main"}
    assert not loaded & heavy
    assert not {name for name in loaded if name.startswith("openeqa_lab.")} - {
        "openeqa_lab.data", "openeqa_lab.data.episode", "openeqa_lab.errors", "openeqa_lab.images",
        "openeqa_lab.images.decoding", "openeqa_lab.images.preparation",
        "openeqa_lab.images.workers",
    }  # fmt: skip


def test_a_failure_keeps_its_kind_and_the_process_goes_on(own: Callable[..., Workers]) -> None:
    workers = own("refuse")
    for name in ("a.png", "b.png"):
        with pytest.raises(FrameError, match=f"^{name} is a web page$") as error:
            workers(raw(PNG, name))
        assert error.value.kind == "own_kind"
    assert len(workers._idle) == 1


def test_a_foreseen_error_stays_one(own: Callable[..., Workers]) -> None:
    with pytest.raises(OpenEQAError, match=r"^a setting is wrong$"):
        own("object")(raw(PNG))


def test_an_unforeseen_error_comes_with_its_traceback(own: Callable[..., Workers]) -> None:
    workers = own("fail")
    for _ in range(2):  # the second process is a new one
        with pytest.raises(RuntimeError, match=r"failed over a\.png:") as error:
            workers(raw(PNG, "a.png"))
        assert "KeyError: 'a.png'" in str(error.value)
        assert "return {}[raw.name]" in str(error.value)
    assert not workers._idle


def test_what_a_library_prints_is_no_picture(own: Callable[..., Workers]) -> None:
    workers = own("print")
    assert [words(workers(raw(PNG, name))) for name in ("a", "b")] == ["a", "b"]


@pytest.mark.parametrize("how", ["killed", "ends"])
def test_a_process_that_ends_is_replaced(own: Callable[..., Workers], how: str) -> None:
    workers = own(how, times=1)
    assert [words(workers(raw(PNG, name))) for name in ("a", "b")] == ["a", "b"]


@pytest.mark.parametrize(
    ("how", "ending"),
    [
        ("killed", r"by signal 9 \(killed, as when memory runs out\)"),
        ("ends", "with exit code 7"),
    ],
)
def test_a_frame_over_which_two_processes_end_is_named(
    own: Callable[..., Workers], how: str, ending: str
) -> None:
    workers = own(how, times=2)
    message = rf"^room/3\.png: two processes that .* ended, the second {ending}: leave more memory"
    with pytest.raises(FrameError, match=message) as error:
        workers(raw(PNG, "room/3.png"))
    assert error.value.kind == "worker_died"
    assert words(workers(raw(PNG, "room/4.png"))) == "room/4.png"


@linux
def test_processes_killed_while_they_work_cost_no_frame(own: Callable[..., Workers]) -> None:
    workers = own("slowly", processes=2)
    killed: set[int] = set()

    def kill() -> None:
        soon(lambda: bool(children()))
        for _ in range(3):
            time.sleep(0.15)
            victim = next(iter(set(children()) - killed), None)
            if victim is not None:
                killed.add(victim)
                os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    outcomes = busy(workers, [PNG] * 20)
    killer.join()
    pictures = [each for each in outcomes if isinstance(each, Image)]
    died = [each for each in outcomes if isinstance(each, FrameError)]
    assert len(pictures) + len(died) == 20
    assert len(died) <= len(killed) // 2  # only where both tries were hit
    assert killed
    assert {int(words(each)) for each in pictures} - killed


@pytest.mark.parametrize(
    ("executable", "message"),
    [
        ("/bin/false", r"could not start \(it ended with exit code 1\)"),
        ("/nowhere/python", r"could not start \(/nowhere/python: .*No such file"),
        (None, r"could not start \(None: "),
    ],
)
def test_a_process_that_cannot_start_says_so(
    monkeypatch: pytest.MonkeyPatch, executable: str | None, message: str
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(OpenEQAError, match=rf"{message}.*: set encoder\.processes=0$"):
        _Worker(Shrinking("jpeg", 512, 90, "box"))


def test_no_frame_waits_for_ever_when_no_process_can_start(
    monkeypatch: pytest.MonkeyPatch, episode: Path
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    encoder = Encoder(processes=2)
    for _ in range(2):
        with pytest.raises(OpenEQAError, match=r"set encoder\.processes=0"):
            asyncio.run(asyncio.wait_for(encoder.encode(frames(episode)), 30))


# How they end


@linux
def test_processes_end_with_the_object_and_leave_no_zombie(episode: Path) -> None:
    encoder = Encoder(processes=2)
    asyncio.run(encoder.encode(frames(episode)))
    own = {worker._process.pid for worker in encoder._once._prepare._idle}  # type: ignore[attr-defined]
    assert 1 <= len(own) <= 2
    assert own <= set(children())
    del encoder
    gc.collect()
    soon(lambda: not set(children()) & own)  # a zombie would still be listed


SCRIPT = """
import asyncio, os, sys, time
from pathlib import Path
from openeqa_lab.data.episode import Frame
from openeqa_lab.data.layouts import FolderSource
from openeqa_lab.images.encoders import Encoder

folder = Path(sys.argv[1])
names = sorted(path.name for path in folder.iterdir())
source = FolderSource(folder, "room", names)
encoder = Encoder(processes=2, cache_mb=0)
frames = [Frame(source, index) for index in range(len(names))]
"""
ONCE = "pictures = asyncio.run(encoder.encode(frames))\n"
TELL = """
tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
print(" ".join((task / "children").read_text().strip() for task in tasks), flush=True)
"""
FOREVER = """
async def forever():
    while True:
        await encoder.encode(frames)
asyncio.run(forever())
"""


def script(code: str, folder: Path, how: Sequence[str] = ("-c",)) -> subprocess.Popen[str]:
    stdin = how == ("-",)
    command = [sys.executable, *how, *([] if stdin else [code]), str(folder)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=os.environ | {"PYTHONWARNINGS": "default"},
    )  # fmt: skip
    if stdin:
        assert process.stdin is not None
        process.stdin.write(code)
        process.stdin.close()
        process.stdin = None
    return process


@linux
@pytest.mark.parametrize("how", [("-c",), ("-",), ("file",)])
def test_a_script_without_a_main_guard_ends_by_itself(
    tmp_path: Path, episode: Path, how: tuple[str, ...]
) -> None:
    code = SCRIPT + ONCE + TELL + f"assert len(pictures) == {FRAMES}\n"
    if how == ("file",):
        (tmp_path / "script.py").write_text(code)
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "script.py"), str(episode)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    else:
        process = script(code, episode, how)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    own = [int(each) for each in out.split()]
    assert 1 <= len(own) <= 2
    assert not any(alive(each) for each in own)


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_process_outlives_its_caller(episode: Path, number: signal.Signals) -> None:
    process = script(SCRIPT + ONCE + TELL + FOREVER, episode)
    assert process.stdout is not None
    own = [int(each) for each in process.stdout.readline().split()]
    assert own
    time.sleep(0.2)  # in the midst of work
    os.killpg(process.pid, number)  # as a terminal does for Ctrl-C
    _, err = process.communicate(timeout=30)
    assert process.returncode != 0
    soon(lambda: not any(alive(each) for each in own))
    if number is signal.SIGINT:
        assert err.rstrip().endswith("KeyboardInterrupt")
        assert "images/workers.py" not in err  # none of the processes has heard of it
    else:
        assert err == ""


FORKED = """
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
"""
HOLDING = """
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
"""


@linux
def test_a_fork_that_ends_lets_the_processes_be(episode: Path) -> None:
    process = script(SCRIPT + ONCE + TELL + FORKED + ONCE + TELL, episode)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    before, after = (line.split() for line in out.splitlines())
    assert before == after
    assert not any(alive(int(each)) for each in after)


@linux
@pytest.mark.slow
def test_a_fork_that_holds_their_input_does_not_keep_them_for_long(episode: Path) -> None:
    process = script(SCRIPT + ONCE + TELL + HOLDING + FOREVER, episode)
    assert process.stdout is not None
    own = [int(each) for each in process.stdout.readline().split()]
    time.sleep(0.5)
    process.kill()
    process.wait()
    soon(lambda: not any(alive(each) for each in own), tries=2000)
    os.killpg(process.pid, signal.SIGKILL)  # the fork
    process.communicate()
