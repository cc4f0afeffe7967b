from __future__ import annotations

import dataclasses
import errno
import json
import os

import numpy as np
import pytest
from markdown_it import MarkdownIt

from openeqa_lab import journal
from openeqa_lab.data.case import Case, Question
from openeqa_lab.errors import OpenEQAError
from openeqa_lab.metrics import Estimate
from openeqa_lab.records import Answer, EpisodeTrace, Failure, Record, Shown, Usage, Verdict
from openeqa_lab.report import Timing, build, marks, predictions, to_json, to_markdown, write

# The strings of the public bug report H31.
HOSTILE = [
    "</script><script>document.title='pwned'</script>",
    "<img src=x onerror=\"document.title='pwned'\">",
    "a | b | c\nsecond line",
    "`code` **bold** [link](javascript:alert(1))",
    "50% of A&B_C #1 $x$ {y} ~ ^ \\ end",
    "<b>bold?</b> & &amp; &lt;",
]
TIMING = Timing("2026-01-01T00:00:00+00:00", "2026-01-01T00:01:00+00:00", 60.0)
ESTIMATES = {
    "llm_match": Estimate(62.5, 58.94, 65.86, 1.8, 4),
    "llm_match/split/hm3d": Estimate(50.0, 40.0, 60.0, 5.0, 1),
    "llm_match/category/object recognition": Estimate(75.0, 70.0, 80.0, 2.5, 3),
    "llm_match/category/spatial": Estimate(None),
    "llm_match/bounds/low": Estimate(41.7, count=6),
    "llm_match/bounds/high": Estimate(75.0, count=6),
    "tokens": Estimate(1234.56, count=4),
}
IDENTITY = {
    "answer": {"sampler": {"name": "linspace", "k": 50}, "reasoner": {"llm": {"model": "m-1"}}},
    "judge": {"name": "llm_match", "llm": {"model": "gpt-4"}},
}


def case(number: int, text: str = "What is it?") -> Case:
    return Case(f"q-{number}", Question(f"q-{number}", text), "a chair", "spatial", "hm3d-v0/000")


def paid(dollars: float | None, calls: int = 1) -> Usage:
    return Usage(calls, 100, 10, dollars, 1.5)


def mixed() -> list[Record]:
    """One record of each way that a question can end."""
    trace, shown = EpisodeTrace("hm3d-v0/000", 9), (Shown("hm3d-v0/000/0.png", 0),)
    chair = Answer("a chair", model="gpt-4v-1106", usage=paid(0.02))
    judged = Verdict(1.0, 5, "5", "gpt-4-1106", paid(0.01))
    nothing = Answer("", "refused", raw="I cannot help.", usage=paid(None))
    unparsed = Failure("judge", "unparsed", "no mark in the reply", "Hmm.", paid(0.01, calls=2))
    return [
        Record(case(1), trace, shown, chair, judged, earlier=paid(0.5)),
        Record(case(2), trace, shown * 3, nothing, Verdict(0.0, 1)),
        Record(case(3), trace, shown, chair, unparsed),
        Record(case(4), result=Failure("episode", "episode_missing", "no frames at hm3d-v0/000")),
        Record(case(5), trace, shown, chair),
        Record(case(6)),
    ]


def report_of(records, estimates=ESTIMATES, **changes):
    settings = {
        "name": "gpt4v-linspace-k50",
        "state": "complete",
        "identity": IDENTITY,
        "settings": {"concurrency": 8},
        "versions": {"openeqa-lab": "0.1.0"},
        "timing": TIMING,
        "coverage_threshold": 0.0,
    } | changes
    return build(records, estimates, **settings)


def rows(markdown: str) -> list[list[str]]:
    """The rows of all tables as a reader sees them, text alone."""
    found: list[list[str]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type == "tr_open":
            found.append([])
        elif token.type == "inline" and token.level == 4:
            parts = {
                "text": lambda t: t.content,
                "html_inline": lambda t: {"<br>": "\n"}[t.content],
            }
            found[-1].append("".join(parts[child.type](child) for child in token.children))
    return found


def test_every_way_a_question_can_end_is_counted_once():
    counts = report_of(mixed()).counts
    assert (counts.asked, counts.answered, counts.judged) == (6, 4, 2)
    assert (counts.failed, counts.unjudged, counts.unreached) == (2, 1, 1)
    assert counts.judged + counts.failed + counts.unjudged + counts.unreached == counts.asked
    assert counts.statuses == {"answered": 3, "refused": 1}
    assert counts.without_call == 1
    assert [(group.stage, group.kind, group.count) for group in counts.failures] == [
        ("episode", "episode_missing", 1),
        ("judge", "unparsed", 1),
    ]


def test_the_cost_of_answers_judgements_and_replaced_attempts_is_kept_apart():
    costs = report_of(mixed()).costs
    assert costs.answers.usage.calls == 4
    assert costs.answers.usage.dollars is None
    assert costs.answers.known_dollars == pytest.approx(0.06)
    assert costs.answers.unpriced_calls == 1
    assert costs.judgements.usage.dollars == pytest.approx(0.02)
    assert costs.judgements.usage.calls == 3
    assert costs.earlier.usage.dollars == 0.5
    assert costs.answers.models == {"gpt-4v-1106": 3}
    assert (costs.frames.mean, costs.frames.fewest, costs.frames.most) == (1.5, 1, 3)


def test_an_unknown_price_is_said_to_be_unknown():
    page = to_markdown(report_of(mixed()), mixed())
    found = {row[0]: row for row in rows(page)}
    assert found["answers"][4] == "unknown (0.0600 known, 1 calls unpriced)"
    assert found["judgements"][4] == "0.0200"
    assert found["together"][4] == "unknown (0.5800 known, 1 calls unpriced)"


def test_the_headline_says_value_interval_error_coverage_bounds_and_formula():
    page = to_markdown(report_of(mixed()), mixed())
    assert (
        "**LLM-Match 62.5** (95 % interval 58.9 to 65.9, standard error 1.8; "
        "4 of 6 questions, coverage 33.3 %)" in page
    )
    assert (
        "With mark 1 for all 4 questions without a verdict it would be 41.7, with mark 5 75.0."
        in page
    )
    assert "100 × the mean of (mark − 1) / 4" in page
    assert "from 0 to 100" in page


def test_bounds_are_left_out_when_every_question_has_a_verdict():
    records = [mixed()[0]]
    assert "without a verdict" not in to_markdown(report_of(records), records)


def test_the_judge_that_was_really_used_and_its_calls_are_named():
    page = to_markdown(report_of(mixed()), mixed())
    assert (
        "Judge: **llm\\_match**, 3 calls to a model (gpt-4-1106: 1); "
        "1 of 2 verdicts needed no call." in page
    )
    unnamed = report_of(mixed(), identity={})
    assert "Judge: **unnamed**" in to_markdown(unnamed, mixed())


def test_tables_by_category_and_split_follow_the_estimates():
    found = rows(to_markdown(report_of(mixed()), mixed()))
    assert ["object recognition", "3", "75.0", "70.0 to 80.0", "2.5"] in found
    assert ["spatial", "0", "–", "–", "–"] in found
    assert ["hm3d", "1", "50.0", "40.0 to 60.0", "5.0"] in found
    assert ["tokens", "1,234.6", "–", "–", "–", "4"] in found


def test_a_users_metric_with_categories_gets_its_own_headline_and_table():
    estimates = {"accuracy": Estimate(0.5, count=2), "accuracy/category/a|b": Estimate(0.25)}
    page = to_markdown(report_of(mixed(), estimates), mixed())
    assert "**accuracy 0.5**" in page
    assert ["a|b", "0", "0.2", "–", "–"] in rows(page)


def test_failures_are_shown_by_kind_with_an_example():
    found = rows(to_markdown(report_of(mixed()), mixed()))
    assert ["judge: unparsed", "1", "q-3: What is it?", "no mark in the reply", "Hmm."] in found


def test_a_stopped_run_and_a_low_coverage_are_said_at_the_top():
    page = to_markdown(report_of(mixed(), state="stopped", coverage_threshold=0.98), mixed())
    top = page[: page.index("**LLM-Match")]
    assert "**Stopped before the end.** 1 of 6 questions were not reached and 1 answers" in top
    assert "**Coverage 33.3 % is below the threshold of 98.0 %.** 2 of 6" in top


def test_a_complete_run_has_no_warning():
    records = [mixed()[0]]
    report = report_of(records, coverage_threshold=1.0)
    assert report.covered
    assert ">" not in to_markdown(report, records)


def test_a_coverage_just_short_of_all_is_not_rounded_to_all():
    records = [mixed()[0]] * 1635 + [mixed()[5]]
    page = to_markdown(report_of(records, coverage_threshold=1.0), records)
    assert "Coverage 99.9 % is below the threshold of 100.0 %" in page


@pytest.mark.parametrize("estimates", [{}, {"llm_match": Estimate(None)}])
def test_a_report_of_nothing_can_be_made(tmp_path, estimates):
    report = report_of([], estimates)
    write(report, [], tmp_path)
    assert not report.covered
    assert "**No questions.**" in (tmp_path / "report.md").read_text()
    assert json.loads((tmp_path / "predictions.json").read_text()) == []
    assert json.loads((tmp_path / "report.json").read_text())["coverage"] is None


def test_a_run_that_has_only_begun_can_be_reported(tmp_path):
    records = [Record(case(number)) for number in range(3)]
    write(report_of(records, {"llm_match": Estimate(None)}, state="stopped"), records, tmp_path)
    page = (tmp_path / "report.md").read_text()
    assert "3 of 3 questions were not reached" in page
    assert "**LLM-Match –** (95 % interval –, standard error –; 0 of 3" in page


def test_predictions_are_upstreams_with_null_for_what_was_not_said_and_no_failures():
    assert predictions(mixed()) == [
        {"question_id": "q-1", "answer": "a chair"},
        {"question_id": "q-2", "answer": None},
        {"question_id": "q-3", "answer": "a chair"},
        {"question_id": "q-5", "answer": "a chair"},
    ]


def test_marks_are_upstreams_with_0_for_what_upstream_sees_no_prediction_of():
    assert marks(mixed()) == {"q-1": 5, "q-2": 0}


def test_marks_of_an_earlier_judge_do_not_stay_beside_another_judges_scores(tmp_path):
    records = mixed()
    write(report_of(records), records, tmp_path)
    assert (tmp_path / "metrics.json").exists()
    scored = [
        dataclasses.replace(record, verdict=Verdict(0.5) if record.judged else record.verdict)
        for record in records
    ]
    write(report_of(scored), scored, tmp_path)
    assert not (tmp_path / "metrics.json").exists()


def test_the_json_has_a_version_fixed_fields_and_sorted_names(tmp_path):
    write(report_of(mixed()), mixed(), tmp_path)
    data = json.loads((tmp_path / "report.json").read_text())
    assert list(data) == [
        "schema_version", "name", "state", "identity", "settings", "versions", "estimates",
        "counts", "costs", "timing", "coverage_threshold", "coverage",
    ]  # fmt: skip
    assert list(data["estimates"]) == sorted(ESTIMATES)
    assert data["schema_version"] == 1
    assert data["coverage"] == pytest.approx(1 / 3)
    assert data["estimates"]["llm_match"] == {
        "value": 62.5, "low": 58.94, "high": 65.86, "error": 1.8, "count": 4,
    }  # fmt: skip
    assert data["costs"]["answers"]["usage"]["dollars"] is None
    assert data["counts"]["failures"][1]["message"] == "no mark in the reply"
    assert data["identity"] == IDENTITY


def test_the_same_records_give_the_same_bytes(tmp_path):
    for folder in ("a", "b"):
        shuffled = dict(reversed(ESTIMATES.items())) if folder == "b" else ESTIMATES
        write(report_of(mixed(), shuffled), mixed(), tmp_path / folder)
    one, other = ((tmp_path / folder / "report.json").read_bytes() for folder in ("a", "b"))
    assert one == other


def test_a_metric_that_gives_nan_or_foreign_numbers_does_not_break_the_json():
    estimates = {
        "a": Estimate(float("nan"), float("-inf")),
        "b": Estimate(np.float32(0.5), count=np.int64(3)),
    }
    data = to_json(report_of(mixed(), estimates))
    assert data["estimates"]["a"] == {
        "value": None, "low": None, "high": None, "error": None, "count": 0,
    }  # fmt: skip
    assert data["estimates"]["b"]["value"] == 0.5
    found = rows(to_markdown(report_of(mixed(), estimates), mixed()))
    assert ["a", "–", "–", "–", "–", "0"] in found
    assert ["b", "0.5", "–", "–", "–", "3"] in found


def test_a_setting_that_json_has_no_form_for_is_named():
    with pytest.raises(OpenEQAError, match=r"settings\.a\.b is a set, which JSON has no form for"):
        to_json(report_of(mixed(), settings={"a": {"b": {1}}}))


@pytest.mark.parametrize("text", HOSTILE)
def test_foreign_text_is_shown_letter_for_letter_wherever_it_comes_from(tmp_path, text):
    foreign = Case(text, Question(text, text), text, text, f"hm3d-v0/{text}")
    trace = EpisodeTrace(foreign.episode, 1)
    answer = Answer(text, raw=text, model=text, usage=paid(0.0))
    failure = Failure("answer", text, text, text)
    records = [
        Record(foreign, trace, (), answer, Verdict(0.25, 2, text, text, paid(0.0))),
        Record(foreign, trace, (), failure),
    ]
    estimates = {
        "llm_match": Estimate(25.0, count=1),
        f"llm_match/category/{text}": Estimate(25.0, count=1),
        f"llm_match/split/{text}": Estimate(25.0, count=1),
        text: Estimate(1.0),
    }
    identity = {"answer": {"model": text}, "judge": {"name": text}}
    report = report_of(records, estimates, name=text, identity=identity, settings={text: text})
    write(report, records, tmp_path)

    page = (tmp_path / "report.md").read_text()
    found = rows(page)
    assert [text, "1", "25.0", "–", "–"] in found
    assert [text, "1", "–", "–", "–", "0"] in found
    assert [f"answer: {text}", "1", f"{text}: {text}", text, text] in found
    assert [text, text, text, text, "2", text] in found
    assert ["answer.model", text] in found
    assert [text, text] in found
    for token in MarkdownIt("commonmark").enable("table").parse(page):
        kinds = {child.type for child in token.children or ()}
        assert token.type not in ("html_block", "fence", "code_block")
        assert kinds <= {"text", "softbreak", "strong_open", "strong_close", "html_inline"}
        breaks = {c.content for c in token.children or () if c.type == "html_inline"}
        assert breaks <= {"<br>"}

    assert json.loads((tmp_path / "predictions.json").read_text()) == [
        {"question_id": text, "answer": text}
    ]
    assert json.loads((tmp_path / "report.json").read_text())["name"] == text


def test_the_strings_here_are_the_public_ones(shared):
    assert json.loads((shared / "cases/report_strings.json").read_text())["strings"] == HOSTILE


def test_half_a_character_from_a_model_can_be_written(tmp_path):
    records = [Record(case(1), None, (), Answer("a \ud83d chair"), Verdict(1.0, 5))]
    write(report_of(records), records, tmp_path)
    assert json.loads((tmp_path / "predictions.json").read_text())[0]["answer"] == "a \ud83d chair"
    assert r"a \ud83d chair" in (tmp_path / "report.md").read_text()


def test_a_full_disk_leaves_the_old_report_and_says_that_nothing_is_lost(tmp_path, monkeypatch):
    write(report_of(mixed(), name="old"), mixed(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(journal.os, "fsync", full)
    with pytest.raises(OpenEQAError, match=r"cannot write .*No space left.*Nothing is lost.*again"):
        write(report_of(mixed(), name="new"), mixed(), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_in_the_place_of_a_report_is_named(tmp_path):
    (tmp_path / "report.md").mkdir()
    with pytest.raises(OpenEQAError, match=r"cannot write .*report\.md"):
        write(report_of(mixed()), mixed(), tmp_path)


def test_a_folder_that_is_not_there_is_made(tmp_path):
    write(report_of(mixed()), mixed(), str(tmp_path / "a" / "b"))
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == [
        "metrics.json", "predictions.json", "report.json", "report.md",
    ]  # fmt: skip
