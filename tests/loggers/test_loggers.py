from __future__ import annotations

import json
import logging
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from PIL import Image

from openeqa_lab.data.case import Case, Question
from openeqa_lab.errors import OpenEQAError
from openeqa_lab.loggers import RunInfo, guarded
from openeqa_lab.loggers.jsonl import Jsonl
from openeqa_lab.loggers.tables import COLUMNS
from openeqa_lab.loggers.wandb import Wandb
from openeqa_lab.metrics import Estimate
from openeqa_lab.records import Answer, EpisodeTrace, Failure, Record, Shown, Verdict
from openeqa_lab.report import Report, Timing, build

IDENTITY = {"answer": {"sampler": {"name": "linspace", "k": 50}}, "judge": {"name": "llm_match"}}
ESTIMATES = {
    "llm_match": Estimate(62.5, 58.9, 65.8, 1.8, 2),
    "llm_match/category/a | b.c": Estimate(75.0, count=1),
    "llm_match/category/spatial": Estimate(None),
    "llm_match/split/hm3d": Estimate(50.0, count=1),
    "coverage": Estimate(0.5, count=4),
}


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch, tmp_path):
    """W&B keeps its own log files under the home folder and reads WANDB_*."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)


def case(number: int) -> Case:
    return Case(f"q-{number}", Question(f"q-{number}", "What?"), "a chair", "spatial", "hm3d-v0/0")


def records() -> list[Record]:
    """The mark column of the public bug report H29: 4, nothing, "unparsed", 5."""
    trace = EpisodeTrace("hm3d-v0/0", 4)
    shown = tuple(Shown(f"hm3d-v0/0/{i}-rgb.png", i) for i in range(4))
    chair = Answer("a chair \ud83d")
    unparsed = Failure("judge", "unparsed", "no mark in the reply", "Hmm.")
    return [
        Record(case(1), trace, shown, chair, Verdict(0.75, 4, "4")),
        Record(case(2)),
        Record(case(3), trace, shown[:1], chair, unparsed),
        Record(case(4), trace, shown, chair, Verdict(1.0, 5, "5")),
    ]


def report(**changes) -> Report:
    settings = {
        "name": "gpt4v",
        "state": "complete",
        "identity": IDENTITY,
        "settings": {},
        "versions": {},
        "timing": Timing("2026-01-01T00:00:00+00:00", "2026-01-01T00:01:00+00:00", 60.0),
    } | changes
    return build(records(), ESTIMATES, **settings)


def info(folder: Path, name: str = "gpt4v", group: str | None = "sweep-1", k: int = 50) -> RunInfo:
    identity = {"answer": {"sampler": {"name": "linspace", "k": k}}, "judge": {"name": "x"}}
    return RunInfo(name, group, folder, {"sampler": {"k": k}, "concurrency": 8}, identity)


def events(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


# --- guarded


class Witness:
    """Notes what it is told; raises where it is asked to."""

    def __init__(self, fails_at: str = "", error: BaseException | None = None) -> None:
        self.told: list[str] = []
        self._fails_at = fails_at
        self._error = error or ValueError("no space\nsecond line")

    def _note(self, word: str) -> None:
        self.told.append(word)
        if word == self._fails_at:
            raise self._error

    def start(self, run, /):
        self._note("start")

    def log(self, values, step, /):
        self._note("log")

    def finish(self, report, records, /):
        self._note("finish")


def tell_all(logger, folder: Path) -> None:
    logger.start(info(folder))
    logger.log({"done": 1.0}, 1)
    logger.log({"done": 2.0}, 2)
    logger.finish(report(), records())


@pytest.mark.parametrize(
    ("fails_at", "told"),
    [
        ("start", ["start"]),
        ("log", ["start", "log"]),
        ("finish", ["start", "log", "log", "finish"]),
    ],
)
def test_a_logger_that_raises_is_warned_about_once_and_left_out(tmp_path, caplog, fails_at, told):
    bad, good = Witness(fails_at), Witness()
    tell_all(guarded({"mine": bad, "other": good}), tmp_path)
    assert bad.told == told
    assert good.told == ["start", "log", "log", "finish"]
    assert [entry.getMessage() for entry in caplog.records] == [
        "logger mine failed and is switched off, the run goes on: ValueError: no space"
    ]
    assert caplog.records[0].levelno == logging.WARNING


def test_an_error_without_words_is_still_named(tmp_path, caplog):
    tell_all(guarded({"mine": Witness("log", RuntimeError())}), tmp_path)
    assert caplog.records[0].getMessage().endswith("RuntimeError: no message")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_being_told_to_stop_is_not_swallowed(tmp_path, error):
    with pytest.raises(type(error)):
        tell_all(guarded({"mine": Witness("log", error)}), tmp_path)


def test_no_loggers_are_fine(tmp_path):
    tell_all(guarded({}), tmp_path)


def test_a_logger_can_be_used_for_a_second_run_after_it_failed_in_the_first(tmp_path):
    bad = Witness("finish")
    for _ in range(2):
        tell_all(guarded({"mine": bad}), tmp_path)
    assert bad.told == ["start", "log", "log", "finish"] * 2


# --- jsonl


def test_jsonl_appends_events_with_times_and_goes_on_in_the_same_file(tmp_path):
    logger = Jsonl()
    tell_all(logger, tmp_path / "new")
    tell_all(logger, tmp_path / "new")
    found = events(tmp_path / "new")
    assert [event["event"] for event in found] == ["start", "log", "log", "finish"] * 2
    assert found[0]["config"] == {"sampler": {"k": 50}, "concurrency": 8}
    assert found[1]["values"] == {"done": 1.0}
    assert found[1]["step"] == 1
    assert found[3]["values"]["llm_match"] == 62.5
    assert found[3]["values"]["llm_match/category/spatial"] is None
    assert all("T" in event["time"] for event in found)


@pytest.mark.parametrize("cut", ['{"event": "log", "val', "{"])
def test_jsonl_ends_a_line_that_a_kill_has_cut(tmp_path, cut):
    (tmp_path / "log.jsonl").write_text(cut)
    Jsonl().start(info(tmp_path))
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert lines[0] == cut
    assert json.loads(lines[1])["event"] == "start"


def test_jsonl_writes_null_for_what_json_has_no_number_for(tmp_path):
    logger = Jsonl()
    logger.start(info(tmp_path))
    logger.log({"rate": float("nan"), "eta": float("inf")}, 1)
    assert events(tmp_path)[1]["values"] == {"rate": None, "eta": None}


# --- wandb


def wandb_records(path: Path) -> Iterator[object]:
    """What an offline run has written: LevelDB's log framing around protocol buffers."""
    from wandb.proto.wandb_internal_pb2 import Record as Message

    data = path.read_bytes()
    assert data.startswith(b":W&B")
    place, parts = 7, b""
    while place + 7 <= len(data):
        room = 32768 - place % 32768
        if room < 7:
            place += room
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            message = Message()
            message.ParseFromString(parts)
            parts = b""
            yield message


def read_run(folder: Path) -> dict:
    """Name, group, config, summary, history, files and exit code of an offline run."""
    found = {"config": {}, "summary": {}, "history": [], "files": {}}
    for message in finished(folder):
        kind = message.WhichOneof("record_type")
        if kind == "run":
            run = message.run
            found |= {"id": run.run_id, "name": run.display_name, "group": run.run_group}
            found |= {"project": run.project, "tags": list(run.tags)}
            found["config"] |= values(run.config.update)
        elif kind == "summary":
            found["summary"] |= values(message.summary.update)
        elif kind == "history":
            found["history"].append(values(message.history.item))
        elif kind == "artifact":
            entries = message.artifact.manifest.contents
            found["files"] |= {entry.path: Path(entry.local_path) for entry in entries}
        elif kind == "exit":
            found["exit_code"] = message.exit.exit_code
    return found


def finished(folder: Path) -> list:
    """All that a run has written; W&B's own process ends it some milliseconds after `finish`."""
    (path,) = folder.glob("*.wandb")
    for _ in range(500):
        found = list(wandb_records(path))
        if any(message.WhichOneof("record_type") == "exit" for message in found):
            return found
        time.sleep(0.02)
    raise AssertionError(f"{path} does not end")


def values(items) -> dict:
    found: dict = {}
    for item in items:
        *outer, last = item.nested_key or [item.key]
        inner = found
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = json.loads(item.value_json)
    return found


def runs(output_dir: Path) -> list[Path]:
    return sorted((output_dir / "wandb").glob("offline-run-*"))


def table(folder: Path, key: str) -> dict:
    entry = read_run(folder)["history"][-1][key]
    return json.loads((folder / "files" / entry["path"]).read_text())


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    """Two runs of one process, written as a sweep's two jobs are."""
    folder = tmp_path_factory.mktemp("sweep")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder / "home"))
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        before = dict(os.environ)
        for k in (5, 50):
            logger = Wandb(tags=["tag"])
            logger.start(info(folder / f"k{k}", f"gpt4v-k{k}", k=k))
            logger.log({"done": 1.0}, 1)
            logger.log({"done": 2.0, "dollars": 0.5}, 2)
            logger.finish(report(), records())
        after = {name: text for name, text in os.environ.items() if name != "WANDB_SERVICE"}
        assert after == before  # that one is where W&B's own process listens
    return folder


def test_two_jobs_of_a_sweep_are_two_finished_runs_of_one_group(offline):
    found = [read_run(run) for k in (5, 50) for run in runs(offline / f"k{k}")]
    assert [run["name"] for run in found] == ["gpt4v-k5", "gpt4v-k50"]
    assert [run["exit_code"] for run in found] == [0, 0]
    assert [run["group"] for run in found] == ["sweep-1", "sweep-1"]
    assert len({run["id"] for run in found}) == 2
    assert [run["config"]["sampler"]["k"] for run in found] == [5, 50]
    assert [[point["_step"] for point in run["history"]] for run in found] == [[1, 2], [1, 2]]


def test_a_run_has_identity_tags_history_and_a_summary_of_all_figures(offline):
    run = read_run(runs(offline / "k50")[0])
    assert run["project"] == "openeqa"
    assert run["tags"] == ["tag"]
    assert run["config"]["identity"]["answer"]["sampler"] == {"name": "linspace", "k": 50}
    assert run["history"][1]["dollars"] == 0.5
    wanted = {
        "llm_match": 62.5,
        "llm_match/low": 58.9,
        "llm_match/high": 65.8,
        "llm_match/error": 1.8,
        "llm_match/category/a | b.c": 75.0,
        "llm_match/split/hm3d": 50.0,
        "coverage": 0.5,
        "cases/asked": 4,
        "cases/judged": 2,
        "cases/failed": 1,
        "state": "complete",
    }
    assert {key: run["summary"][key] for key in wanted} == wanted
    assert "llm_match/category/spatial" not in run["summary"]


def test_figures_by_category_are_a_table(offline):
    assert table(runs(offline / "k50")[0], "llm_match/by_category") == {
        "columns": ["category", "value", "low", "high", "error", "count"],
        "data": [["a | b.c", 75.0, None, None, None, 1], ["spatial", None, None, None, None, 0]],
    }


def test_marks_are_numbers_or_empty_and_reasons_have_their_own_column(offline):
    found = table(runs(offline / "k50")[0], "questions")
    assert found["columns"] == list(COLUMNS)
    column = {name: [row[i] for row in found["data"]] for i, name in enumerate(found["columns"])}
    assert column["mark"] == [4, None, None, 5]
    assert column["score"] == [0.75, None, None, 1.0]
    assert column["reason"] == [
        None,
        "not reached",
        "judge: unparsed: no mark in the reply",
        None,
    ]
    assert column["answer"][0] == r"a chair \ud83d"


def test_all_files_of_a_run_are_in_its_folder_and_hold_no_picture(offline):
    outside = [
        path
        for path in (offline / "home").rglob("*")
        if path.is_file() and path.parent.name != "logs"  # W&B's own debug log
    ]
    assert outside == []
    assert not list(offline.rglob("*.jpg"))


def test_the_wandb_command_reads_the_run(offline):
    command = shutil.which("wandb", path=str(Path(sys.executable).parent))
    assert command
    shown = subprocess.run(
        [command, "leet", "inspect", "--summary", "--json", str(runs(offline / "k50")[0])],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    data = json.loads(shown.stdout)
    assert data["state"] == "finished"
    assert data["summary"]["llm_match"] == 62.5


def test_a_run_that_goes_on_keeps_its_id_and_another_judges_gets_its_own(tmp_path):
    identities = [IDENTITY, IDENTITY, IDENTITY | {"judge": {"name": "exact"}}]
    for identity in identities:
        logger = Wandb()
        logger.start(RunInfo("name", None, tmp_path, {}, identity))
        logger.finish(report(), records())
    ids = [read_run(run)["id"] for run in runs(tmp_path)]
    assert len(ids) == 3
    assert len(set(ids)) == 2


def test_a_stopped_run_is_closed_as_one_that_did_not_succeed(tmp_path):
    logger = Wandb(group="mine")
    logger.start(info(tmp_path))
    logger.finish(report(state="stopped"), records())
    run = read_run(runs(tmp_path)[0])
    assert run["exit_code"] == 1
    assert run["summary"]["state"] == "stopped"
    assert run["group"] == "mine"


def test_wandb_says_nothing(tmp_path, capfd):
    logger = Wandb()
    logger.start(info(tmp_path))
    logger.log({"done": 1.0}, 1)
    logger.finish(report(), records())
    assert capfd.readouterr() == ("", "")


def test_wandb_is_told_once_a_second_and_of_the_last_step(tmp_path):
    logger = Wandb()
    logger.start(info(tmp_path))
    for step in range(1, 101):
        logger.log({"done": float(step)}, step)
    logger.finish(report(), records())
    history = read_run(runs(tmp_path)[0])["history"]
    assert [point["done"] for point in history] == [1, 100]


def test_a_key_alone_uploads_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    logger = Wandb()
    logger.start(info(tmp_path))
    logger.finish(report(), records())
    assert len(runs(tmp_path)) == 1


@pytest.mark.parametrize(("setting", "environment"), [("disabled", "online"), (None, "disabled")])
def test_the_setting_goes_before_the_environment(tmp_path, monkeypatch, setting, environment):
    monkeypatch.setenv("WANDB_MODE", environment)
    logger = Wandb(mode=setting)
    logger.start(info(tmp_path))
    logger.log({"done": 1.0}, 1)
    logger.finish(report(), records())
    assert runs(tmp_path) == []


def test_a_server_that_cannot_be_reached_only_warns_and_soon(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    tell_all(guarded({"wandb": Wandb(mode="online", init_timeout_s=1.0)}), tmp_path)
    (message,) = [entry.getMessage() for entry in caplog.records if "logger" in entry.getMessage()]
    assert message.startswith("logger wandb failed and is switched off, the run goes on: ")


def test_thumbnails_show_the_frames_of_a_question_one_strip_for_the_same_frames(tmp_path):
    folder = tmp_path / "frames" / "hm3d-v0" / "0"
    folder.mkdir(parents=True)
    for number, colour in enumerate(["red", "green", "blue", "white"]):
        Image.new("RGB", (400, 300), colour).save(folder / f"{number}-rgb.png")
    logger = Wandb(thumbnails=True, frames_root=str(tmp_path / "frames"))
    logger.start(info(tmp_path / "out"))
    logger.finish(report(), records())
    (run,) = runs(tmp_path / "out")
    files = read_run(run)["files"]
    found = json.loads(files["questions.table.json"].read_text())
    assert found["columns"] == [*COLUMNS, "frames"]
    pictures = [row[-1] for row in found["data"]]
    assert pictures[1] is None
    assert pictures[0]["path"] == pictures[3]["path"] != pictures[2]["path"]
    assert files[pictures[0]["path"]].is_relative_to(tmp_path / "out" / "wandb")
    with Image.open(files[pictures[0]["path"]]) as strip:
        assert strip.format == "JPEG"
        assert strip.size == (4 * 128, 96)
        left, right = strip.getpixel((64, 48)), strip.getpixel((448, 48))
    assert left[0] > 200 > 50 > left[1]
    assert min(right) > 200


def test_frames_that_are_gone_cost_the_pictures_only(tmp_path, caplog):
    logger = Wandb(thumbnails=True, frames_root=str(tmp_path / "nowhere"))
    logger.start(info(tmp_path / "out"))
    logger.finish(report(), records())
    (run,) = runs(tmp_path / "out")
    assert [row[-1] for row in table(run, "questions")["data"]] == [None] * 4
    assert caplog.text.count("no thumbnails of hm3d-v0/0") == 1
    assert read_run(run)["exit_code"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"init_timeout_s": 0}, r"wandb\.init_timeout_s is 0: give seconds above 0"),
        ({"finish_timeout_s": -1.0}, r"wandb\.finish_timeout_s is -1\.0"),
        ({"finish_timeout_s": float("nan")}, r"wandb\.finish_timeout_s is nan"),
        ({"thumbnails": True}, r"wandb\.thumbnails needs wandb\.frames_root"),
    ],
)
def test_a_bad_setting_is_refused_before_the_run(settings, message):
    with pytest.raises(OpenEQAError, match=message):
        Wandb(**settings)


@pytest.mark.parametrize("logger", [Jsonl(), Wandb()])
def test_a_logger_that_was_not_told_the_start_says_so(logger):
    with pytest.raises(OpenEQAError, match="was not told the start of"):
        logger.log({"done": 1.0}, 1)


@pytest.mark.parametrize(("name", "target"), [("jsonl", Jsonl), ("wandb", Wandb)])
def test_a_yaml_file_has_every_knob_with_the_classes_own_value(repository, name, target):
    import inspect

    node = yaml.safe_load((repository / "conf" / "loggers" / f"{name}.yaml").read_text())
    assert list(node) == [name]
    knobs = node[name]
    assert knobs.pop("_target_") == f"openeqa_lab.loggers.{name}.{target.__name__}"
    defaults = {key: p.default for key, p in inspect.signature(target).parameters.items()}
    if name == "wandb":
        assert knobs.pop("frames_root") == "${data_dir}/frames"
        assert defaults.pop("frames_root") is None
        assert tuple(knobs.pop("tags")) == defaults.pop("tags")
    assert knobs == defaults
