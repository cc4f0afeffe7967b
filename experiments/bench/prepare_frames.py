"""CPU a frame, wall, stalls and memory of preparing the frames of an episode, cold and warm.

    python experiments/bench/prepare_frames.py
    python experiments/bench/prepare_frames.py --only jpeg_fast

300 PNG frames of 1296x968 (20 drawn pictures, each frame with a time of its own written into it,
so that no two have one digest) are opened as `Recorded` opens them, and all are encoded. Cold
starts with an empty store of prepared frames, warm is a second process. No model client is
imported. Memory is the sum of the proportional set sizes of all processes, sampled (Linux only).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

FRAMES, DRAWN = 300, 20
KEY = "scannet-v0/000-bench"
ROWS = {  # name: (kind, whether the extra `fast` may be used, settings)
    "jpeg": ("jpeg", False, {}),
    "jpeg [fast]": ("jpeg", True, {}),
    "jpeg box [fast]": ("jpeg", True, {"resampling": "box"}),
    "jpeg_fast": ("jpeg", True, {"resampling": "catmull_rom"}),
    "png_upstream": ("png_upstream", False, {}),
    "png_upstream [fast]": ("png_upstream", True, {}),
}


def pictures() -> list[bytes]:
    """A walk of gradients, boxes and texture under sensor noise, once through JPEG as scans are."""
    import io

    import numpy as np
    from PIL import Image

    drawn = []
    generator = np.random.default_rng(0)
    x, y = np.linspace(0, 1, 1296)[None, :, None], np.linspace(0, 1, 968)[:, None, None]
    texture = generator.normal(0, 3, (968, 1296, 1))
    for number in range(DRAWN):
        pixels = (
            60 + 120 * x * np.array([1.0, 0.8, 0.6]) + 40 * y + np.roll(texture, 60 * number, 1)
        )
        for _ in range(25):
            left, top = generator.integers(0, 1200), generator.integers(0, 900)
            width, height = generator.integers(20, 300, 2)
            pixels[top : top + height, left : left + width] *= generator.uniform(0.3, 1.4, 3)
        pixels += generator.normal(0, 1.5, pixels.shape)
        buffer = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
        png = io.BytesIO()
        Image.open(buffer).save(png, "PNG", compress_level=6)
        drawn.append(png.getvalue())
    return drawn


def at_another_time(png: bytes, year: int, second: int = 0) -> bytes:
    """The same picture in a file of other bytes: with a time of its own after its header."""
    moment = b"tIME" + struct.pack(">HBBBBB", year, 1, 1, 0, 0, second)
    chunk = struct.pack(">I", 7) + moment + struct.pack(">I", zlib.crc32(moment))
    return png[:33] + chunk + png[33:]


def draw(folder: Path) -> None:
    """An episode of which no two files have the same bytes."""
    folder.mkdir(parents=True)
    drawn = pictures()
    for number in range(FRAMES):
        png = at_another_time(drawn[number % DRAWN], 2000 + number)
        (folder / f"{number:06}-rgb.png").write_bytes(png)


async def prepare(root: Path, store: Path, row: str) -> None:
    """One row's figures, as a line of JSON."""
    from openeqa_lab.data.case import Case, Question
    from openeqa_lab.data.recorded import Recorded
    from openeqa_lab.images.encoders import Encoder, UpstreamEncoder

    kind, fast, settings = ROWS[row]
    if not fast:
        sys.modules["kornia_rs"] = None  # type: ignore[assignment]
    make = UpstreamEncoder if kind == "png_upstream" else Encoder
    encoder = make(store_dir=store, **settings)  # type: ignore[arg-type]
    case = Case("q", Question("q", "What is there?"), "A box", "object recognition", KEY)
    frames = (await Recorded(root).episode(case)).frames

    gaps: list[float] = []
    ticker = asyncio.create_task(tick(gaps))
    cpu, wall = used(), time.perf_counter()
    images = await encoder.encode(frames)
    wall = time.perf_counter() - wall
    ticker.cancel()
    sizes = [len(image.data) for image in images]
    assert all(frame.sha256 for frame in frames)
    del encoder
    await asyncio.sleep(1)  # its processes end, and their time counts
    cpu = used() - cpu
    if {"litellm", "torch", "wandb"} & set(sys.modules):
        raise SystemExit("a heavy package was imported: the memory figure would mean nothing")
    gaps.sort()
    figures = {
        "cpu_ms": 1e3 * cpu / FRAMES,
        "wall_ms": 1e3 * wall / FRAMES,
        "stall_ms": 1e3 * gaps[int(0.99 * len(gaps))],
        "kb": sum(sizes) / 1e3 / FRAMES,
    }
    print(json.dumps(figures))


async def tick(gaps: list[float]) -> None:
    """Notes by how much the loop is late to wake a task that sleeps for a millisecond."""
    while True:
        start = time.perf_counter()
        await asyncio.sleep(0.001)
        gaps.append(time.perf_counter() - start - 0.001)


def used() -> float:
    """CPU seconds of this process and of those that it started and that have ended."""
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in times)


def memory_mb(process: int) -> float:
    """What a process and those below it take now, in megabytes; 0 where there is no /proc."""
    try:
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        below = [int(each) for task in tasks for each in (task / "children").read_text().split()]
    except OSError:  # it has ended
        return 0
    own = next((line for line in rollup.splitlines() if line.startswith("Pss:")), "Pss: 0")
    return int(own.split()[1]) / 1e3 + sum(memory_mb(each) for each in below)


def measure(root: Path, store: Path, row: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--root", str(root), "--store", str(store), "--only", row]
    peak = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        while process.poll() is None:
            peak = max(peak, memory_mb(process.pid))
            time.sleep(0.05)
        assert process.stdout is not None
        figures: dict[str, float] = json.loads(process.stdout.read())
    return figures | {"peak_mb": peak}


def main() -> None:
    """Draws the episode and measures each row, all in processes of their own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=ROWS)
    parser.add_argument("--draw", type=Path, help="only draw the frames, into this folder")
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.draw:
        draw(arguments.draw / KEY)
        return
    if arguments.root:
        asyncio.run(prepare(arguments.root, arguments.store, arguments.only))
        return
    columns = ("cpu_ms", "wall_ms", "stall_ms", "kb", "peak_mb")
    print(f"{FRAMES} frames, a frame".ljust(27), *(name.rjust(9) for name in columns))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        subprocess.run([sys.executable, __file__, "--draw", folder], check=True)
        time.sleep(4)  # files that changed just now are read, whatever the store holds
        for row in [arguments.only] if arguments.only else ROWS:
            store = root / "store" / row
            for start in ("cold", "warm"):
                figures = measure(root, store, row)
                name = f"{row}, {start}".ljust(27)
                print(name, *(f"{figures[column]:9.2f}" for column in columns), flush=True)


if __name__ == "__main__":
    main()
