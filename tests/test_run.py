"""The command as a user types it, in a process of its own."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from openeqa_lab.entries import read_journal

# A reasoner and a judge from another package, as a user would write them: they note each call.
OWN_PACKAGE = """
import asyncio, random
from pathlib import Path
from openeqa_lab import Answer, Verdict, Usage

def note(line):
    with Path("calls.txt").open("a") as file:
        file.write(line + "\\n")

class Slow:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
    identity = {"name": "slow"}
    async def answer(self, question, frames, /):
        note(f"answer {question.id}")
        await asyncio.sleep(random.uniform(0, 2 * self.seconds))
        return Answer(question.text[-7:], usage=Usage(1, 10, 2, 0.01, 0.1))

class Strict:
    scale = "1-5"
    identity = {"name": "strict"}
    async def judge(self, case, answer, /):
        note(f"judge {case.id}")
        await asyncio.sleep(0.02)
        mark = 1 + len(case.question.text) % 5
        return Verdict((mark - 1) / 4, mark, usage=Usage(1, 5, 1, 0.001, 0.02))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder to work in, with a package and config files of a user's own."""
    (tmp_path / "own.py").write_text(OWN_PACKAGE)
    for group, text in {
        "reasoner/slow": "_target_: own.Slow\nseconds: 0.05\n",
        "judge/strict": "_target_: own.Strict\n",
    }.items():
        path = tmp_path / "conf" / f"{group}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    rows = [
        {
            "question_id": f"q{number:03d}",
            "question": f"Where is thing {number}? {'x' * (number % 7)}",
            "answer": "here",
            "category": "object localization",
            "episode_history": f"hm3d-v0/{number // 10:03d}-a",
        }
        for number in range(150)
    ]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "open-eqa-v0.json").write_text(json.dumps(rows))
    return tmp_path


def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": f"{place}:{os.environ.get('PYTHONPATH', '')}"}
    environment["OPENEQA_DATA_DIR"] = str(place / "data")
    return subprocess.Popen(
        [sys.executable, "-m", "openeqa_lab.run", *arguments],
        cwd=place, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def run(place: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(place, *arguments)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


OWN = ("--config-dir=conf", "reasoner=slow", "episodes=unseen", "judge=strict", "loggers=[jsonl]")


def test_the_demo_runs_without_data_keys_or_network(tmp_path: Path) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.endswith("_API_KEY") and name != "OPENEQA_DATA_DIR"
    }
    result = subprocess.run(
        [sys.executable, "-m", "openeqa_lab.run", "experiment=demo"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "24 of 24 judged" in result.stdout
    (folder,) = (tmp_path / "outputs").iterdir()
    assert {path.name for path in folder.iterdir()} >= {
        "journal.jsonl", "report.json", "report.md", "predictions.json", "config.yaml",
    }  # fmt: skip


def test_a_sweep_started_twice_does_nothing_the_second_time(place: Path) -> None:
    code, _, err = run(place, "-m", *OWN, "sampler.k=1,5", "dataset.limit=10")
    assert code == 0, err
    folders = sorted((place / "outputs").glob("slow-*"))
    assert [path.name.rsplit("-", 1)[0] for path in folders] == [
        "slow-linspace-k1-strict", "slow-linspace-k5-strict",
    ]  # fmt: skip
    before = [(path / "journal.jsonl").read_bytes() for path in folders]
    calls = (place / "calls.txt").read_text()
    code, out, err = run(place, "-m", *OWN, "sampler.k=1,5", "dataset.limit=10")
    assert code == 0, err
    assert out.count("10 of 10 judged") == 2
    assert (place / "calls.txt").read_text() == calls
    assert [(path / "journal.jsonl").read_bytes() for path in folders] == before


def test_in_a_sweep_a_bad_job_is_named_and_the_others_go_on(place: Path) -> None:
    code, out, err = run(place, "-m", *OWN, "sampler.k=x,5", "dataset.limit=5")
    assert code == 1
    assert "5 of 5 judged" in out
    assert "error: job 0 (" in err
    assert "sampler.k = 'x'" in err
    assert "Traceback" not in err


def test_ctrl_c_ends_the_calls_in_flight_and_writes_a_partial_report(place: Path) -> None:
    process = start(place, *OWN, "concurrency=2", "output_dir=run")
    while not (place / "calls.txt").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "start the same command again" in err
    assert "Traceback" not in err
    report = json.loads((place / "run" / "report.json").read_text())
    assert report["state"] == "stopped"
    calls = Counter((place / "calls.txt").read_text().split("\n"))
    answered = read_journal(place / "run").entries
    assert sum(line.startswith("answer") for line in calls) == len(answered)
    code, out, _ = run(place, *OWN, "output_dir=run")
    assert code == 0
    assert "150 of 150 judged" in out
    assert max(Counter((place / "calls.txt").read_text().split("\n")).values()) == 1


@pytest.mark.slow
def test_twenty_random_kills_lose_nothing_and_repeat_only_calls_in_flight(place: Path) -> None:
    code, _, err = run(place, *OWN, "output_dir=calm")
    assert code == 0, err
    (place / "calls.txt").unlink()
    concurrency, kills = 4, 0
    chance = random.Random(7)
    arguments = (*OWN, "output_dir=killed", f"concurrency={concurrency}", "reasoner.seconds=0.2")
    while kills < 20:
        before = len((place / "calls.txt").read_text()) if (place / "calls.txt").exists() else 0
        process = start(place, *arguments)
        while process.poll() is None and (
            not (place / "calls.txt").exists() or len((place / "calls.txt").read_text()) == before
        ):
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.6))
        if process.poll() is not None:
            break
        process.kill()
        process.communicate()
        kills += 1
    code, out, err = run(place, *arguments)
    assert code == 0, err
    assert "150 of 150 judged" in out
    assert kills == 20, "the run ended before it was killed often enough"
    calm, killed = (read_journal(place / name).entries for name in ("calm", "killed"))
    assert sorted(calm) == sorted(killed)
    for case, entry in calm.items():
        assert [entry.result, entry.trace, entry.shown, entry.verdicts] == [
            killed[case].result, killed[case].trace, killed[case].shown, killed[case].verdicts,
        ], case  # fmt: skip
        assert not killed[case].earlier, f"{case} was bought twice"
    calls = Counter((place / "calls.txt").read_text().split())
    extra = sum(calls[f"q{number:03d}"] for number in range(150)) - 300
    assert 0 <= extra <= kills * concurrency


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reasoner=gpt5"], "reasoner=gpt5: there is no such option; did you mean gpt4"),
        (["loggers=[jsonl,wand]"], "loggers=wand: there is no such option; did you mean wandb?"),
        (["sampler.kk=3"], "sampler.kk is no key of this config: did you mean k?"),
        (["+sampler.kk=3"], "sampler.kk is no knob of"),
        (["sampler.k=None"], "sampler.k = 'None'"),
        (["reasoner=replay"], "reasoner.path must be given: reasoner.path=..."),
        (["sampler=null"], "must be a string or a list"),
        (["reasoner.model=epoch=1-step=2.ckpt"], "quoted twice"),
        (["dataset.path=nowhere.json"], "nowhere.json"),
        (["dataset.category=[object]"], "object"),
        (["reasoner=multi_frame", "run.dry_run=true"], "No frames folder"),
        (["output_dir=data/open-eqa-v0.json"], "cannot write to output_dir"),
    ],
)
def test_a_bad_start_is_one_line_with_a_way_out(
    place: Path, arguments: list[str], message: str
) -> None:
    code, _, err = run(place, "judge=exact", "loggers=[]", *arguments)
    assert code == 1
    (line,) = err.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_help_lists_every_option(tmp_path: Path) -> None:
    code, out, _ = run(tmp_path, "--help")
    assert code == 0
    for word in ("gpt4v", "llm_match_upstream", "first_last_middle", "--multirun"):
        assert word in out


def test_coverage_below_the_threshold_is_an_exit_code(place: Path) -> None:
    answers = [{"question_id": f"q{number:03d}", "answer": "here"} for number in range(100)]
    (place / "predictions.json").write_text(json.dumps(answers))
    code, out, err = run(
        place, "reasoner=replay", "reasoner.path=predictions.json", "judge=exact", "loggers=[]"
    )
    assert code == 1
    assert "100 of 150 judged" in out
    assert "below run.coverage = 0.98" in err
    code, _, err = run(
        place, "reasoner=replay", "reasoner.path=predictions.json", "judge=exact", "loggers=[]",
        "run.coverage=0.5",
    )  # fmt: skip
    assert code == 0, err


def test_a_dry_run_says_what_would_be_asked_and_names_what_is_missing(place: Path) -> None:
    code, out, err = run(place, *OWN, "run.dry_run=true", "dataset.limit=12")
    assert code == 0, err
    first, second, third = out.strip().splitlines()
    assert first.startswith("12 questions of openeqa, reasoner slow, no frames, judge strict, ")
    assert second.strip() == "limit=12: kept 12, dropped 138"
    assert third.startswith("dry run: would ask the reasoner 12 questions")
    assert not (place / "calls.txt").exists()
    assert not (place / "outputs").exists()
    (place / "data" / "frames").mkdir()
    code, out, err = run(place, *OWN, "run.dry_run=true", "dataset.limit=12", "episodes=recorded")
    assert code == 1
    assert "Episode 'hm3d-v0/001-a' is missing" in out
    assert "12 of 12 questions have no frames (2 episodes" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["~sampler"], "sampler must not be left out"),
        (["~concurrency"], "concurrency must not be left out"),
        (["judge._target_=openeqa_lab.sampling.All", "~judge.articles"], "judge"),
        (["judge={_target_:builtins.dict}"], "judge"),
        (["-m", "hydra.sweep.dir=data/open-eqa-v0.json"], "File exists"),
    ],
)
def test_a_config_taken_apart_is_one_line_too(
    place: Path, arguments: list[str], message: str
) -> None:
    code, _, err = run(place, *arguments, "loggers=[]")
    assert code == 1, err
    assert message in err
    assert "Traceback" not in err


def test_closed_and_narrow_streams_do_not_end_a_run(place: Path) -> None:
    environment = os.environ | {"OPENEQA_DATA_DIR": "", "PYTHONIOENCODING": "ascii"}
    command = f"{sys.executable} -m openeqa_lab.run experiment=demo \"output_dir='o/\u00fc'\" 2>&-"
    result = subprocess.run(
        ["bash", "-c", command], cwd=place, env=environment, capture_output=True, timeout=120
    )
    assert result.returncode == 0
    assert b"24 of 24 judged" in result.stdout


def test_a_disk_that_fills_up_is_one_line_and_the_next_start_goes_on(place: Path) -> None:
    command = f'ulimit -f 16; exec {sys.executable} -m openeqa_lab.run "$@"'  # 16 kB a file
    environment = os.environ | {
        "PYTHONPATH": str(place), "OPENEQA_DATA_DIR": str(place / "data"),
    }  # fmt: skip
    arguments = [*OWN, "loggers=[]", "output_dir=full"]
    result = subprocess.run(
        ["bash", "-c", command, "bash", *arguments], cwd=place, env=environment, text=True,
        capture_output=True, timeout=120,
    )  # fmt: skip
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "cannot write full/journal.jsonl: File too large. Make room" in result.stderr
    kept = read_journal(place / "full").entries
    assert kept
    asked = Counter((place / "calls.txt").read_text().split("\n"))
    code, out, err = run(place, *arguments)
    assert code == 0, err
    assert "150 of 150 judged" in out
    again = Counter((place / "calls.txt").read_text().split("\n")) - asked
    bought = {case for case, entry in kept.items() if entry.result}
    assert not [line for line in again if line.removeprefix("answer ") in bought]
