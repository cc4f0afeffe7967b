"""What a whole run costs beside the models' own time: 300 questions, 50 frames each.

    python experiments/bench/run_300.py
    python experiments/bench/run_300.py --quick
    python experiments/bench/run_300.py --rows floor,jpeg --work bench-frames

30 episodes of 60 PNG frames (1296x968, 1.1 MB; 20 drawn pictures, no two files of the same bytes),
ten questions each, K = 50 at 512 px, 32 questions at once, a judgement after each answer; the
endpoint (`endpoint.py`, a process of its own) replies after 0.2 s, so that the calls alone take
4 s. Each row is a process of its own; `run_300_rows.py` says what they do.

Wall and CPU leave out what is imported, which a call before the clock sees to; CPU counts child
processes. The peak is the sum of the proportional set sizes of all of a row's processes, from
/proc, ten times a second, imports included. Log is all that is in the run folder. Cold begins with
an empty store of prepared frames, warm with what cold has left there; the frames themselves lie in
the system's cache. `upstream` is timed on a few questions and multiplied.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prepare_frames import at_another_time, pictures
from run_300_rows import ENCODERS, FRAMES, Job, processes

HERE = Path(__file__).resolve().parent
ROWS = ("upstream", "floor", *ENCODERS)
HEAD = "| row | questions | wall s | wall ms/q | CPU ms/q | peak MB | MB sent | log kB/q |"


def draw_episodes(work: Path, episodes: int) -> None:
    """The frames, unless they are there from an earlier run."""
    missing = [n for n in range(episodes) if not Job.folder(work, n).is_dir()]
    drawn = pictures() if missing else []
    for episode in missing:
        folder = Job.folder(work, episode)
        half = folder.with_name(folder.name + ".half")
        half.mkdir(parents=True, exist_ok=True)
        for number in range(FRAMES):
            png = at_another_time(drawn[number % len(drawn)], 2000 + episode, number)
            (half / f"{number:06}-rgb.png").write_bytes(png)
        half.rename(folder)


@contextmanager
def endpoint(latency: float) -> Iterator[int]:
    """The port of an endpoint that runs as long as the block."""
    command = [sys.executable, str(HERE / "endpoint.py"), "--latency", str(latency)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.stdin.close()


def count(port: int) -> tuple[int, int]:
    """Requests and bytes of bodies that the endpoint has had."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/count") as reply:
        requests, received = json.loads(reply.read())
    return requests, received


def measure(row: str, state: str, job: Job) -> tuple[dict[str, float], float]:
    """What a row says of itself, and the peak of its processes in MB; 0 where there is no /proc."""
    words = [sys.executable, str(HERE / "run_300_rows.py"), row, state, json.dumps(job.plain())]
    peak = 0.0
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile("w+") as told:
        with subprocess.Popen(words, stdout=said, stderr=told) as process:
            while process.poll() is None:
                peak = max(peak, sum(map(proportional_mb, processes(process.pid))))
                time.sleep(0.1)
        if process.returncode:
            told.seek(0)
            raise SystemExit(f"{row} {state} failed:\n{told.read()}")
        said.seek(0)
        figures: dict[str, float] = json.loads(said.read().splitlines()[-1])
    return figures, peak


def proportional_mb(pid: int) -> float:
    """Its own memory, and its share of what it has in common with others."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0.0
    return sum(int(line.split()[1]) / 1000 for line in lines if line.startswith("Pss:"))


def report(row: str, state: str, job: Job, of: int) -> str:
    """A row of the table."""
    before = count(job.port)[1]
    figures, peak = measure(row, state, job)
    sent = (count(job.port)[1] - before) / 1e6
    asked, scale = job.questions, of / job.questions
    wall, name = figures["wall"], f"{row} {state}".strip()
    return (
        f"| {name} | {asked if scale == 1 else f'{asked}, times {scale:g}'} | {wall * scale:.1f} "
        f"| {1e3 * wall / asked:.1f} | {1e3 * figures['cpu'] / asked:.1f} | {peak:.0f} "
        f"| {sent * scale:.0f} | {figures['log'] / 1e3 / asked:.1f} |"
    )


def main() -> None:
    """Each row asked for, in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", help=f"of {', '.join(ROWS)}; all by default")
    quick = "30 questions about 3 episodes; upstream, floor and jpeg unless told"
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--questions", type=int)
    parser.add_argument("--upstream-questions", type=int)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds, of the endpoint")
    parser.add_argument("--work", type=Path, help="a folder that keeps the frames (2 GB)")
    given = parser.parse_args()
    questions = given.questions or (30 if given.quick else 300)
    few = given.upstream_questions or (2 if given.quick else 6)
    rows = [word.strip() for word in given.rows.split(",")] if given.rows else list(ROWS)
    if given.quick and not given.rows:
        rows = ["upstream", "floor", "jpeg"]
    if unknown := set(rows) - set(ROWS):
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    work = given.work or Path(tempfile.mkdtemp(prefix="run_300-"))
    try:
        episodes = max(1, questions // 10)
        draw_episodes(work, episodes)
        print(HEAD, "|---" * (HEAD.count("|") - 1) + "|", sep="\n", flush=True)
        with endpoint(given.latency) as port:
            job = Job(str(work), port, questions, episodes, given.at_once)
            for row in rows:
                if row in ENCODERS:
                    for state in ("cold", "warm"):
                        print(report(row, state, job, questions), flush=True)
                else:
                    part = job.of(few) if row == "upstream" else job
                    print(report(row, "", part, questions), flush=True)
    finally:
        if given.work is None:
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
