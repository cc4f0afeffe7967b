"""The runner: nothing bought twice, nothing lost, nothing scored that was not judged."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import pytest

from openeqa_lab.data.case import Case, Question
from openeqa_lab.data.datasets import Dataset
from openeqa_lab.data.episode import EpisodeSource, Frame, Unseen
from openeqa_lab.data.recorded import Recorded
from openeqa_lab.entries import read_journal
from openeqa_lab.errors import CallError, OpenEQAError, UnparsedError
from openeqa_lab.evaluation import Evaluation
from openeqa_lab.llm import repeat, stopping
from openeqa_lab.metrics.scores import Score
from openeqa_lab.plan import plan
from openeqa_lab.records import Answer, Failure, Usage, Verdict
from openeqa_lab.sampling import Linspace
from openeqa_lab.testing import write_frames

EPISODES = ("hm3d-v0/000-a", "hm3d-v0/001-b", "scannet-v0/002-c")


class Oracle:
    """Says what it is told to by question id; everything else is answered with "red"."""

    def __init__(self, says: Mapping[str, Answer | Exception] | None = None, seconds: float = 0.0):
        self.says = dict(says or {})
        self.seconds = seconds
        self.asked: Counter[str] = Counter()
        self.seen: list[tuple[str, int]] = []
        self.temperature = 0.2

    @property
    def identity(self) -> Mapping[str, object]:
        return {"name": "oracle", "temperature": self.temperature}

    async def answer(self, question: Question, frames: Sequence[Frame], /) -> Answer:
        self.asked[question.id] += 1
        self.seen += [(question.id, frame.index) for frame in frames if frame.read()]
        await asyncio.sleep(self.seconds)
        said = self.says.get(question.id, Answer("red", usage=Usage(1, 10, 1, 0.01)))
        if isinstance(said, Exception):
            raise said
        return said


class Marker:
    """A judge of the 1-5 scale that gives 5 to "red" and 2 to the rest."""

    scale = "1-5"

    def __init__(self, name: str = "marker", fails: Mapping[str, Exception] | None = None) -> None:
        self.name = name
        self.fails = dict(fails or {})
        self.judged: Counter[str] = Counter()
        self.before: Callable[[Case], Awaitable[None]] | None = None

    @property
    def identity(self) -> Mapping[str, object]:
        return {"name": self.name}

    async def judge(self, case: Case, answer: Answer, /) -> Verdict:
        self.judged[case.id] += 1
        if self.before:
            await self.before(case)
        if case.id in self.fails:
            raise self.fails[case.id]
        mark = 5 if answer.text == "red" else 2
        return Verdict((mark - 1) / 4, mark, usage=Usage(1, 20, 1, 0.001))


def make_dataset(folder: Path, count: int = 6, limit: int | None = None) -> Dataset:
    rows = [
        {
            "question_id": f"q{number}",
            "question": f"What color is thing {number}?",
            "answer": "red",
            "category": "attribute recognition",
            "episode_history": EPISODES[number * len(EPISODES) // count],
        }
        for number in range(count)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "questions.json").write_text(json.dumps(rows))
    return Dataset(path=folder / "questions.json", limit=limit)


def evaluation(
    folder: Path,
    reasoner: Oracle,
    judge: Marker | None = None,
    *,
    episodes: EpisodeSource | None = None,
    limit: int | None = None,
    count: int = 6,
    concurrency: int = 3,
    k: int = 2,
) -> Evaluation:
    return Evaluation(
        make_dataset(folder / "data", count, limit),
        episodes or Unseen(),
        Linspace(k=k),
        reasoner,
        judge or Marker(),
        {"score": Score(resamples=100, seed=0)},
        {},
        folder / "run",
        concurrency,
    )


async def test_every_case_is_answered_judged_and_reported(tmp_path: Path) -> None:
    oracle, marker = Oracle({"q1": Answer("blue")}), Marker()
    report = await evaluation(tmp_path, oracle, marker).run(name="first")
    assert report.state == "complete"
    assert report.counts.judged == report.counts.asked == 6
    assert report.estimates["llm_match"].value == pytest.approx(100 * (5 + 0.25) / 6)
    assert oracle.asked == marker.judged == Counter({f"q{n}": 1 for n in range(6)})
    written = json.loads((tmp_path / "run" / "report.json").read_text())
    assert written["name"] == "first"
    assert set(json.loads((tmp_path / "run" / "metrics.json").read_text()).values()) == {5, 2}


async def test_a_second_start_buys_nothing_and_changes_no_record(tmp_path: Path) -> None:
    await evaluation(tmp_path, Oracle()).run()
    before = (tmp_path / "run" / "journal.jsonl").read_bytes()
    again, marker = Oracle(), Marker()
    report = await evaluation(tmp_path, again, marker).run()
    assert not again.asked
    assert not marker.judged
    assert report.counts.judged == 6
    assert (tmp_path / "run" / "journal.jsonl").read_bytes() == before


async def test_more_questions_go_on_where_the_run_was(tmp_path: Path) -> None:
    first = await evaluation(tmp_path, Oracle(), limit=2).run()
    assert first.counts.asked == 2
    more = Oracle()
    report = await evaluation(tmp_path, more).run()
    assert sorted(more.asked) == ["q2", "q3", "q4", "q5"]
    assert report.counts.judged == 6


async def test_another_judge_judges_the_answers_that_are_there(tmp_path: Path) -> None:
    await evaluation(tmp_path, Oracle(), Marker("one")).run()
    oracle, two = Oracle(), Marker("two")
    report = await evaluation(tmp_path, oracle, two).run()
    assert not oracle.asked
    assert sum(two.judged.values()) == 6
    assert report.scorer == "two"
    back = Marker("one")
    await evaluation(tmp_path, oracle, back).run()
    assert not back.judged


async def test_other_settings_are_refused_by_name_before_anything_is_asked(tmp_path: Path) -> None:
    await evaluation(tmp_path, Oracle()).run()
    other = Oracle()
    other.temperature = 0.7
    with pytest.raises(OpenEQAError, match=r"reasoner.temperature: 0.2 -> 0.7"):
        await evaluation(tmp_path, other).run()
    assert not other.asked


async def test_a_blind_run_does_not_depend_on_the_sampler(tmp_path: Path) -> None:
    one, five = (evaluation(tmp_path, Oracle(), k=k) for k in (1, 5))
    assert one.answer_identity == five.answer_identity


async def test_a_failure_is_no_score_and_is_tried_again_at_the_next_start(tmp_path: Path) -> None:
    broken = CallError("the server said 503", kind="server", usage=Usage(1, dollars=0.02))
    unparsed = UnparsedError("no mark", raw="I like it", usage=Usage(2, dollars=0.004))
    report = await evaluation(
        tmp_path, Oracle({"q1": broken}), Marker(fails={"q2": unparsed})
    ).run()
    assert report.counts.judged == 4
    assert report.estimates["llm_match"].value == 100.0
    assert report.estimates["llm_match/bounds/low"].value == pytest.approx(100 * 4 / 6)
    kinds = {(failure.stage, failure.kind) for failure in report.counts.failures}
    assert kinds == {("answer", "server"), ("judge", "unparsed")}
    oracle, marker = Oracle(), Marker()
    report = await evaluation(tmp_path, oracle, marker).run()
    assert list(oracle.asked) == ["q1"]
    assert sorted(marker.judged) == ["q1", "q2"]
    assert report.counts.judged == 6
    assert report.costs.earlier.usage.calls == 3
    assert report.costs.earlier.usage.dollars == pytest.approx(0.024)


@pytest.mark.parametrize("status", ["refused", "blocked", "empty"])
async def test_what_was_not_said_gets_mark_one_without_a_call_and_is_not_asked_again(
    tmp_path: Path, status: str
) -> None:
    silent = Answer("", status)  # type: ignore[arg-type]
    marker = Marker()
    report = await evaluation(tmp_path, Oracle({"q3": silent}), marker).run()
    assert "q3" not in marker.judged
    assert report.counts.statuses[status] == 1
    assert report.estimates["llm_match"].value == pytest.approx(100 * 5 / 6)
    oracle = Oracle()
    await evaluation(tmp_path, oracle).run()
    assert not oracle.asked
    report = await evaluation(tmp_path, oracle).run(reask=[status])  # type: ignore[list-item]
    assert list(oracle.asked) == ["q3"]
    assert report.estimates["llm_match"].value == 100.0


@pytest.mark.parametrize("kind", ["auth", "not_found"])
async def test_a_fault_that_all_calls_share_ends_the_run_and_keeps_what_was_done(
    tmp_path: Path, kind: str
) -> None:
    wrong = CallError("the key is wrong", kind=kind)  # type: ignore[arg-type]
    oracle = Oracle({"q3": wrong})
    with pytest.raises(CallError, match="the key is wrong"):
        await evaluation(tmp_path, oracle, concurrency=1).run()
    assert sorted(oracle.asked) == ["q0", "q1", "q2", "q3"]
    assert json.loads((tmp_path / "run" / "report.json").read_text())["state"] == "stopped"
    again = Oracle()
    await evaluation(tmp_path, again).run()
    assert sorted(again.asked) == ["q3", "q4", "q5"]


async def test_an_unforeseen_error_stops_the_run_with_its_own_traceback(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        await evaluation(tmp_path, Oracle({"q2": ZeroDivisionError("bug")}), concurrency=1).run()
    entries = read_journal(tmp_path / "run").entries
    assert {case for case, entry in entries.items() if entry.result} == {"q0", "q1"}


async def test_an_answer_is_on_the_disk_while_its_judge_is_still_thinking(tmp_path: Path) -> None:
    marker, run = Marker(), tmp_path / "run"

    async def look(case: Case) -> None:
        await asyncio.sleep(0.2)
        assert isinstance(read_journal(run).entries[case.id].result, Answer)

    marker.before = look
    await evaluation(tmp_path, Oracle(), marker).run()
    assert sum(marker.judged.values()) == 6


async def test_a_run_that_is_cancelled_keeps_answers_whose_judgement_was_under_way(
    tmp_path: Path,
) -> None:
    marker = Marker()
    thinking = asyncio.Event()

    async def forever(_: Case) -> None:
        thinking.set()
        await asyncio.sleep(60)

    marker.before = forever
    task = asyncio.create_task(evaluation(tmp_path, Oracle(), marker, concurrency=2).run())
    await thinking.wait()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    oracle = Oracle()
    report = await evaluation(tmp_path, oracle).run()
    assert sorted(oracle.asked) == ["q2", "q3", "q4", "q5"]
    assert report.counts.judged == 6


async def test_frames_are_shown_in_order_and_journaled_with_their_digests(tmp_path: Path) -> None:
    for episode in EPISODES:
        write_frames(tmp_path / "frames" / episode, 9)
    oracle = Oracle()
    await evaluation(tmp_path, oracle, episodes=Recorded(tmp_path / "frames"), k=3).run()
    entry = read_journal(tmp_path / "run").entries["q0"]
    assert [shown.index for shown in entry.shown] == [0, 4, 8]
    assert all(shown.sha256 and len(shown.sha256) == 64 for shown in entry.shown)
    assert entry.shown[1].path.endswith("hm3d-v0/000-a/00004-rgb.png")
    assert entry.trace is not None
    assert entry.trace.frames == 9
    assert b"PNG" not in (tmp_path / "run" / "journal.jsonl").read_bytes()


async def test_a_missing_episode_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    for episode in EPISODES[:2]:
        write_frames(tmp_path / "frames" / episode, 4)
    run = evaluation(tmp_path, Oracle(), episodes=Recorded(tmp_path / "frames"))
    planned = await plan(run)
    found = (planned.cases, planned.answers, planned.verdicts, planned.unanswerable)
    assert found == (6, 4, 4, 2)
    assert planned.frames == 8
    assert list(planned.missing) == [EPISODES[2]]
    report = await run.run()
    assert report.counts.judged == 4
    (failures,) = report.counts.failures
    assert (failures.stage, failures.kind, failures.count) == ("episode", "episode_missing", 2)
    assert EPISODES[2] in failures.message


async def test_no_data_root_stops_the_run(tmp_path: Path) -> None:
    oracle = Oracle()
    with pytest.raises(OpenEQAError, match="frames"):
        await evaluation(tmp_path, oracle, episodes=Recorded(tmp_path / "nowhere")).run()
    assert not oracle.asked


async def test_a_plan_asks_nobody_and_writes_nothing(tmp_path: Path) -> None:
    oracle = Oracle()
    planned = await plan(evaluation(tmp_path, oracle))
    assert (planned.cases, planned.answers, planned.verdicts, planned.frames) == (6, 6, 6, 0)
    assert not oracle.asked
    assert not (tmp_path / "run").exists()
    await evaluation(tmp_path, oracle).run()
    planned = await plan(evaluation(tmp_path, oracle))
    assert (planned.answers, planned.verdicts) == (0, 0)


async def test_two_metrics_with_one_key_are_refused(tmp_path: Path) -> None:
    run = evaluation(tmp_path, Oracle())
    run.metrics = {**run.metrics, "twin": Score(resamples=100, seed=0)}
    with pytest.raises(OpenEQAError, match=r"metric twin gives .*coverage"):
        run.estimates([])


async def test_a_failure_record_keeps_what_was_said_and_paid(tmp_path: Path) -> None:
    unparsed = UnparsedError("no mark", raw="I like it", usage=Usage(2, dollars=0.004))
    await evaluation(tmp_path, Oracle(), Marker(fails={"q2": unparsed})).run()
    (failure,) = read_journal(tmp_path / "run").entries["q2"].verdicts.values()
    assert failure == Failure("judge", "unparsed", "no mark", "I like it", Usage(2, dollars=0.004))


async def test_answers_of_another_folder_with_the_same_settings_are_taken_over(
    tmp_path: Path,
) -> None:
    await evaluation(tmp_path, Oracle(), limit=4).run()
    (tmp_path / "run").rename(tmp_path / "other")
    oracle, judge = Oracle(), Marker("two")
    run = evaluation(tmp_path, oracle, judge)
    report = await run.run(take_from=[tmp_path / "other", tmp_path / "run", tmp_path / "data"])
    assert sorted(oracle.asked) == ["q4", "q5"]
    few = evaluation(tmp_path, Oracle(), judge, limit=1)
    few.output_dir = tmp_path / "few"
    await few.run(take_from=[tmp_path / "other"])
    assert list(read_journal(tmp_path / "few").entries) == ["q0"]
    assert report.counts.judged == 6
    assert sum(judge.judged.values()) == 6 + 1
    (tmp_path / "run").rename(tmp_path / "third")
    warmer = Oracle()
    warmer.temperature = 0.9
    await evaluation(tmp_path, warmer).run(take_from=[tmp_path / "third"])
    assert len(warmer.asked) == 6


async def test_an_episode_with_other_frames_than_before_stops_the_run(tmp_path: Path) -> None:
    for episode in EPISODES:
        write_frames(tmp_path / "frames" / episode, 4)
    broken = CallError("the server said 503", kind="server")
    first = Oracle({"q1": broken})
    await evaluation(tmp_path, first, episodes=Recorded(tmp_path / "frames")).run()
    write_frames(tmp_path / "frames" / EPISODES[0], 7)
    again = Oracle()
    with pytest.raises(OpenEQAError, match=r"hm3d-v0/000-a has 7 frames, but had 4"):
        await evaluation(tmp_path, again, episodes=Recorded(tmp_path / "frames")).run()
    assert not again.asked


async def test_a_score_out_of_range_is_a_fault_of_the_judge_and_never_a_mark(
    tmp_path: Path,
) -> None:
    class Broken(Marker):
        async def judge(self, case: Case, answer: Answer, /) -> Verdict:
            return Verdict(float("nan"))

    with pytest.raises(
        OpenEQAError, match=r"judge marker gave question q0 the score nan and the mark None"
    ):
        await evaluation(tmp_path, Oracle(), Broken(), concurrency=1).run()
    report = await evaluation(tmp_path, Oracle(), Marker()).run()
    assert report.counts.judged == 6


class Listener:
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def start(self, run: object, /) -> None:
        self.heard.append("start")

    def log(self, values: object, step: int, /) -> None:
        self.heard.append("log")

    def finish(self, report: object, records: object, /) -> None:
        self.heard.append("finish")


async def test_loggers_are_told_of_the_end_however_it_comes(tmp_path: Path) -> None:
    listener = Listener()
    run = evaluation(tmp_path, Oracle({"q1": ZeroDivisionError("bug")}))
    run.loggers = {"listener": listener}
    (tmp_path / "run" / "report.json").mkdir(parents=True)  # the report cannot be written either
    with pytest.raises(OpenEQAError, match=r"cannot write .*report.json"):
        await run.run()
    assert listener.heard[0] == "start"
    assert listener.heard[-1] == "finish"


async def test_two_metrics_with_one_key_are_found_before_anything_is_bought(
    tmp_path: Path,
) -> None:
    oracle = Oracle()
    run = evaluation(tmp_path, oracle)
    run.metrics = {**run.metrics, "twin": Score(resamples=100, seed=0)}
    with pytest.raises(OpenEQAError, match=r"metric twin gives"):
        await run.run()
    assert not oracle.asked


async def test_a_plan_knows_what_is_taken_over_reasked_and_refused(tmp_path: Path) -> None:
    silent = Answer("", "refused")
    await evaluation(tmp_path, Oracle({"q0": silent}), limit=4).run()
    assert (await plan(evaluation(tmp_path, Oracle()), ["refused"])).answers == 3
    (tmp_path / "run").rename(tmp_path / "other")
    planned = await plan(evaluation(tmp_path, Oracle()), take_from=[tmp_path / "other"])
    assert (planned.answers, planned.verdicts) == (2, 6)
    (tmp_path / "other").rename(tmp_path / "run")
    warmer = Oracle()
    warmer.temperature = 0.9
    with pytest.raises(OpenEQAError, match="asked with other settings"):
        await plan(evaluation(tmp_path, warmer))


async def test_fewer_questions_than_the_folder_holds_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await evaluation(tmp_path, Oracle()).run()
    report = await evaluation(tmp_path, Oracle(), limit=2).run()
    assert report.counts.asked == 2
    assert "holds 4 questions more than are asked now" in caplog.text


async def test_a_reask_that_fails_keeps_the_answer_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await evaluation(tmp_path, Oracle({"q3": Answer("", "refused")})).run()
    down = Oracle({"q3": CallError("the server said 503", kind="server")})
    report = await evaluation(tmp_path, down).run(reask=["refused"])
    assert report.counts.statuses["refused"] == 1
    assert "the server said 503; the earlier answer is kept" in caplog.text


async def test_a_report_of_other_questions_or_another_judge_replaces_none(tmp_path: Path) -> None:
    run = tmp_path / "run"
    await evaluation(tmp_path, Oracle(), Marker("one")).run()
    whole = (run / "report.md").read_text()
    report = await evaluation(tmp_path, Oracle(), Marker("one"), limit=2).run()
    assert report.identity["questions"]["asked"] == 2  # type: ignore[index]
    assert "A selection: 2 of the 6 questions of the file (limit=2)" in (
        (run / "report.md").read_text().replace("\\", "")
    )
    (aside,) = (run / "earlier").iterdir()
    assert aside.name.startswith("one-6-questions-")
    assert (aside / "report.md").read_text() == whole
    assert len(json.loads((aside / "predictions.json").read_text())) == 6
    await evaluation(tmp_path, Oracle(), Marker("two"), limit=2).run()
    assert len(list((run / "earlier").iterdir())) == 2
    await evaluation(tmp_path, Oracle(), Marker("two"), limit=2).run()
    assert len(list((run / "earlier").iterdir())) == 2


async def test_a_reasoner_that_gives_no_answer_object_is_told_what_to_give(tmp_path: Path) -> None:
    class Plain(Oracle):
        async def answer(self, question: Question, frames: Sequence[Frame], /) -> Answer:
            return "red"  # type: ignore[return-value]

    with pytest.raises(OpenEQAError, match=r"reasoner Plain gave str .*openeqa_lab.Answer"):
        await evaluation(tmp_path, Plain()).run()


async def test_frames_that_a_reasoner_did_not_open_were_not_shown(tmp_path: Path) -> None:
    class Blindfolded(Oracle):
        async def answer(self, question: Question, frames: Sequence[Frame], /) -> Answer:
            frames[0].read()
            return Answer("red")

    for episode in EPISODES:
        write_frames(tmp_path / "frames" / episode, 4)
    source = Recorded(tmp_path / "frames")
    await evaluation(tmp_path, Blindfolded(), episodes=source).run()
    assert [shown.index for shown in read_journal(tmp_path / "run").entries["q0"].shown] == [0]


async def test_a_budget_ends_a_run_between_two_questions_and_more_money_goes_on(
    tmp_path: Path,
) -> None:
    oracle, marker = Oracle(), Marker()
    run = evaluation(tmp_path, oracle, marker, count=20, concurrency=1)
    report = await run.run(budget_usd=0.055)  # 0.011 a question, judgement and all
    assert report.state == "out of budget"
    assert report.counts.judged == 5
    assert report.counts.unreached == 15
    page = (tmp_path / "run" / "report.md").read_text()
    assert "**Stopped by its budget.** 15 of 20 questions" in page
    assert "Raise run.budget_usd" in page
    report = await evaluation(tmp_path, oracle, marker, count=20).run(budget_usd=0.055)
    assert (report.state, report.counts.judged) == ("out of budget", 5)
    report = await evaluation(tmp_path, oracle, marker, count=20).run(budget_usd=1)
    assert (report.state, report.counts.judged) == ("complete", 20)
    assert set(oracle.asked.values()) == set(marker.judged.values()) == {1}


async def test_a_model_hears_how_often_it_was_asked_and_when_to_stop(tmp_path: Path) -> None:
    heard: list[tuple[str, int]] = []

    class Listening(Oracle):
        async def answer(self, question: Question, frames: Sequence[Frame], /) -> Answer:
            event = stopping.get()
            assert event is not None
            assert not event.is_set()
            heard.append((question.id, repeat.get()))
            return Answer("", "refused") if question.id == "q1" else Answer("red")

    class Unsure(Marker):
        async def judge(self, case: Case, answer: Answer, /) -> Verdict:
            heard.append((f"judge {case.id}", repeat.get()))
            if case.id == "q0" and repeat.get() < 2:
                raise UnparsedError("no mark", raw="well...")
            return Verdict(1.0, 5)

    for _ in range(3):
        await evaluation(tmp_path, Listening(), Unsure(), count=2).run(reask=["refused"])
    assert Counter(heard) == Counter(
        [("q0", 0), ("q1", 0), ("q1", 1), ("q1", 2)] + [("judge q0", n) for n in range(3)]
    )
