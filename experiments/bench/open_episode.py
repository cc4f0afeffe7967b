"""How long it takes to open an episode of 600 frames, and the official question file.

python experiments/bench/open_episode.py [QUESTIONS.json]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from openeqa_lab.data.case import Case, Question
from openeqa_lab.data.datasets import Dataset
from openeqa_lab.data.layouts import frames_of, open_source
from openeqa_lab.data.recorded import Recorded

KEY = "scannet-v0/002-scannet-scene"
CASE = Case("q", Question("q", "What?"), "That.", "", KEY)


def milliseconds(action: Callable[[], object], repeats: int = 50) -> str:
    times = []
    busy = process_time()
    for _ in range(repeats):
        start = perf_counter()
        action()
        times.append(1000 * (perf_counter() - start))
    busy = 1000 * (process_time() - busy) / repeats
    return (
        f"median {median(times):.3f} ms, worst {max(times):.3f} ms of {repeats}; CPU {busy:.3f} ms"
    )


async def awaited(source: Recorded) -> float:
    start = perf_counter()
    await source.episode(CASE)
    return 1000 * (perf_counter() - start)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / KEY).mkdir(parents=True)
        for index in range(600):
            for ending in ("-rgb.png", "-depth.png", ".txt"):
                (root / KEY / f"{index:06}{ending}").touch()
        source = open_source(root, KEY)
        print("list and open, 600 of 1,800 files:", milliseconds(lambda: open_source(root, KEY)))
        print("frames of a listed episode:       ", milliseconds(lambda: frames_of(source)))

        async def twice() -> None:
            recorded = Recorded(root)
            print(f"Recorded, first question:          {await awaited(recorded):.3f} ms")
            print(f"Recorded, second question:         {await awaited(recorded):.3f} ms")

        asyncio.run(twice())
    if len(sys.argv) > 1:
        dataset = Dataset(sys.argv[1])
        print(f"{len(dataset):,} questions:", milliseconds(lambda: Dataset(sys.argv[1]), 20))
        if len(dataset) == 1636:
            subset = milliseconds(lambda: Dataset(sys.argv[1], subset="aeqa184"), 20)
            print("subset aeqa184:", subset)


if __name__ == "__main__":
    main()
