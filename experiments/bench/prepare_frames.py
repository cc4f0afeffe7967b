"""Times the preparation of K frames of a long episode, and the memory of the whole process.

    python experiments/bench/prepare_frames.py
    python experiments/bench/prepare_frames.py --encoder png_upstream

600 PNG frames of 1296x968 (20 drawn ones, the others hard links to them) are opened as `Recorded`
opens them, K = 50 are chosen by `linspace`, and all are encoded. No model client is imported.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FRAMES, DISTINCT, SHOWN = 600, 20, 50
ENCODERS = ("jpeg", "png", "webp", "png_upstream")


def draw(folder: Path) -> None:
    """A walk of gradients, boxes and texture under sensor noise, once through JPEG as scans are."""
    import io

    import numpy as np
    from PIL import Image

    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    x, y = np.linspace(0, 1, 1296)[None, :, None], np.linspace(0, 1, 968)[:, None, None]
    texture = generator.normal(0, 3, (968, 1296, 1))
    for number in range(DISTINCT):
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
        Image.open(buffer).save(folder / f"{number:06}-rgb.png", compress_level=6)
    for number in range(DISTINCT, FRAMES):
        os.link(folder / f"{number % DISTINCT:06}-rgb.png", folder / f"{number:06}-rgb.png")


async def prepare(root: Path, name: str) -> None:
    """One encoder's figures, on one line."""
    from openeqa_lab.data.case import Case, Question
    from openeqa_lab.data.recorded import Recorded
    from openeqa_lab.images.encoders import Encoder, UpstreamEncoder
    from openeqa_lab.sampling import Linspace

    encoder = UpstreamEncoder() if name == "png_upstream" else Encoder(format=name)  # type: ignore[arg-type]
    question = Question("q", "What is there?")
    case = Case("q", question, "A box", "object recognition", "scannet-v0/000-bench")
    source = Recorded(root)

    start = time.perf_counter()
    episode = await source.episode(case)
    listed = time.perf_counter()
    await source.episode(case)
    again = time.perf_counter()
    shown = Linspace(SHOWN).sample(episode.frames, question)
    cpu, wall = time.process_time(), time.perf_counter()
    images = await encoder.encode(shown)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    warm = time.perf_counter()
    await encoder.encode(shown)
    warm = time.perf_counter() - warm

    if {"litellm", "torch", "wandb"} & set(sys.modules):
        raise SystemExit("a heavy package was imported: the memory figure would mean nothing")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_mb = peak / (1e6 if sys.platform == "darwin" else 1e3)
    size = sum(len(image.data) for image in images)
    print(
        f"{name:12}  open {1e3 * (listed - start):5.1f} ms, again {1e3 * (again - listed):5.2f} ms"
        f"  encode {1e3 * cpu / SHOWN:5.1f} CPU ms and {1e3 * wall / SHOWN:5.1f} wall ms a frame"
        f"  warm {1e3 * warm / SHOWN:6.3f} ms a frame  {size / 1e6:5.2f} MB"
        f"  peak {peak_mb:4.0f} MB"
    )


def main() -> None:
    """Draws the episode and measures each encoder, all in processes of their own.

    A process inherits the peak of the one that starts it, so this one stays small.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--encoder", choices=ENCODERS)
    parser.add_argument("--draw", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.draw:
        draw(arguments.draw / "scannet-v0/000-bench")
    elif arguments.root:
        asyncio.run(prepare(arguments.root, arguments.encoder))
    else:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, __file__, "--draw", folder], check=True)
            for name in [arguments.encoder] if arguments.encoder else ENCODERS:
                command = [sys.executable, __file__, "--root", folder, "--encoder", name]
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
