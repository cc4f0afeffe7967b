"""LLM-Match: what is asked, what is made of the reply, and what the profiles stand for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from omegaconf import OmegaConf

from openeqa_lab.data.case import Case, Question
from openeqa_lab.data.datasets import Dataset
from openeqa_lab.data.episode import Image
from openeqa_lab.errors import CallError, CaseError, OpenEQAError, UnparsedError
from openeqa_lab.judges.llm_match import LLMMatch
from openeqa_lab.judges.parsers import Robust
from openeqa_lab.llm import Completion, FinishReason
from openeqa_lab.records import Answer, Usage
from openeqa_lab.testing import EchoLLM, check_judge

PROFILES = ["llm_match", "llm_match_own", "llm_match_upstream", "llm_match_nodeset"]
CONF = Path(__file__).resolve().parents[2] / "conf/judge"

CASE = Case(
    "q-7", Question("q-7", "Where is the {red} lamp?"), "desk", "object localization", "hm3d-v0/1"
)
EXTRA = Case("q-8", Question("q-8", "Where?"), "desk", "x", "hm3d-v0/1", ("it's a desk", "table"))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    """A folder with texts under upstream's names."""
    (tmp_path / "mmbench.txt").write_text("PLAIN\nQ {question}\nA {answer}\nP {prediction}\n")
    (tmp_path / "mmbench-extra.txt").write_text(
        "EXTRA\nQ {question}\nA {answer}\nE {extra_answers}\nP {prediction}\n"
    )
    return str(tmp_path)


def profile(name: str, llm: Any, prompts: str) -> LLMMatch:
    """The judge that the profile's YAML file describes, with another model."""
    node: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"), resolve=False)
    node = node.get("judge", node)
    parser = dict(node["parser"])
    knobs = {key: node[key] for key in node if key not in ("defaults", "_target_", "llm")}
    knobs["parser"] = resolve_name(parser.pop("_target_"))(**parser)
    if knobs["prompts_dir"] is not None:
        knobs["prompts_dir"] = prompts
    return LLMMatch(llm=llm, **knobs)


def judge_of(llm: Any, **knobs: Any) -> LLMMatch:
    settings: dict[str, Any] = {
        "name": "mine",
        "template": "judge",
        "template_extra": "judge_extra",
        "prompts_dir": None,
        "parser": Robust(),
        "extra_style": "lines",
        "texts": "clean",
        "system": "",
        "reasks": 1,
    }
    return LLMMatch(llm=llm, **(settings | knobs))


def saying(*replies: str) -> EchoLLM:
    """A model that gives these replies, one a call."""
    left = iter(replies)
    return EchoLLM(lambda prompt: next(left))


def asked(llm: EchoLLM, call: int = 0) -> str:
    (text,) = llm.calls[call][1]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize(
    ("reply", "score"), [("1", 0.0), ("2", 0.25), ("3", 0.5), ("4", 0.75), ("Your mark: 5", 1.0)]
)
async def test_a_mark_becomes_a_score(reply: str, score: float) -> None:
    verdict = await judge_of(saying(reply)).judge(CASE, Answer("on the desk"))

    assert (verdict.score, verdict.mark, verdict.raw) == (score, round(1 + 4 * score), reply)
    assert verdict.model == "echo"
    assert verdict.usage.calls == 1


async def test_question_answers_and_prediction_reach_the_judge_letter_for_letter() -> None:
    llm = saying("5")
    odd = "{answer} ${total} 100% {} \\1 {prediction}"

    await judge_of(llm).judge(CASE, Answer(odd))

    assert "Question: Where is the {red} lamp?\n" in asked(llm)
    assert f"Given answer: {odd}\n" in asked(llm)
    assert "Reference answer: desk\n" in asked(llm)


async def test_public_odd_questions_reach_the_judge(shared: Path) -> None:
    for row in json.loads((shared / "cases/questions_braces.json").read_text()):
        llm = saying("5")
        case = Case("h", Question("h", row["question"]), row["answer"], "x", "hm3d-v0/1")
        folder = str(shared / "data/openeqa/prompts")

        await profile("llm_match_upstream", llm, folder).judge(case, Answer(row["question"]))

        assert asked(llm).count(row["question"]) == 2


async def test_extra_answers_are_shown_where_there_are_some() -> None:
    llm = saying("5", "5")
    judge = judge_of(llm)

    await judge.judge(EXTRA, Answer("table"))
    await judge.judge(CASE, Answer("table"))

    assert "- it's a desk\n- table\n" in asked(llm)
    assert "Further right answers" not in asked(llm, 1)


async def test_extra_answers_can_be_kept_back(prompts: str) -> None:
    llm = saying("5")

    await judge_of(llm, template_extra=None).judge(EXTRA, Answer("table"))

    assert "it's a desk" not in asked(llm)


async def test_the_system_message_is_sent_beside_the_prompt() -> None:
    llm = saying("5")

    await judge_of(llm, system="Be strict.").judge(CASE, Answer("desk"))

    assert llm.calls[0][0] == "Be strict."


async def test_a_reply_without_a_mark_is_asked_for_once_more() -> None:
    llm = saying("It is close, say 4.", "Your mark: 4")

    verdict = await judge_of(llm).judge(CASE, Answer("desk"))

    assert verdict.mark == 4
    assert verdict.raw == "Your mark: 4"
    assert verdict.usage.calls == 2
    assert asked(llm, 1).startswith(asked(llm, 0) + "\n\n")
    assert "whole number from 1 to 5" in asked(llm, 1)


async def test_what_stays_unparsed_is_a_failure_that_keeps_the_last_reply_and_the_cost() -> None:
    with pytest.raises(
        UnparsedError, match=r"question q-7: no mark from 1 to 5.*mine's reply 'no idea' \(asked 2"
    ) as caught:
        await judge_of(saying("4 or 5", "no\nidea")).judge(CASE, Answer("desk"))

    assert caught.value.kind == "unparsed"
    assert caught.value.raw == "no\nidea"
    assert caught.value.usage is not None
    assert caught.value.usage.calls == 2


async def test_without_re_asks_there_is_one_call() -> None:
    llm = saying("no idea")

    with pytest.raises(UnparsedError, match="asked once"):
        await judge_of(llm, reasks=0).judge(CASE, Answer("desk"))
    assert len(llm.calls) == 1


async def test_a_long_reply_is_cut_in_the_message_and_kept_whole_in_the_failure() -> None:
    with pytest.raises(UnparsedError) as caught:
        await judge_of(EchoLLM(lambda prompt: "word " * 10_000)).judge(CASE, Answer("desk"))

    assert len(str(caught.value)) < 300
    assert len(caught.value.raw) == 50_000


@pytest.mark.parametrize("reply", ["", " \n\t "])
async def test_a_judge_that_says_nothing_is_a_failure_of_its_own_kind(reply: str) -> None:
    with pytest.raises(CallError, match=r"question q-7: the judge mine said nothing") as caught:
        await judge_of(EchoLLM(lambda prompt: reply)).judge(CASE, Answer("desk"))

    assert caught.value.kind == "empty"
    assert caught.value.usage is not None
    assert caught.value.usage.calls == 2


async def test_an_empty_reply_may_be_followed_by_a_good_one() -> None:
    verdict = await judge_of(saying("", "4")).judge(CASE, Answer("desk"))

    assert verdict.mark == 4


@pytest.mark.parametrize(
    ("reason", "words"), [("refusal", "declined"), ("content_filter", "was blocked")]
)
async def test_a_judge_that_refuses_is_a_failure_and_is_not_asked_again(
    reason: FinishReason, words: str
) -> None:
    llm = EchoLLM(lambda prompt: "Your mark: 4", finish_reason=reason)

    with pytest.raises(CaseError, match=f"the judge mine {words} instead") as caught:
        await judge_of(llm).judge(CASE, Answer("desk"))
    assert caught.value.kind == "refused"
    assert caught.value.usage is not None
    assert len(llm.calls) == 1


async def test_a_call_that_fails_after_a_paid_one_keeps_what_was_paid_and_said() -> None:
    def reply(prompt: str) -> str:
        if "Nothing but the mark" in prompt:
            raise CallError("the server is down", kind="server", usage=Usage(calls=3))
        return "no idea"

    with pytest.raises(CallError, match="the server is down") as caught:
        await judge_of(EchoLLM(reply)).judge(CASE, Answer("desk"))

    assert caught.value.usage is not None
    assert caught.value.usage.calls == 4
    assert caught.value.raw == "no idea"


async def test_a_first_call_that_fails_passes_through() -> None:
    def reply(prompt: str) -> str:
        raise CallError("wrong key", kind="auth")

    with pytest.raises(CallError, match="wrong key") as caught:
        await judge_of(EchoLLM(reply)).judge(CASE, Answer("desk"))
    assert caught.value.fatal


async def test_an_unknown_price_stays_unknown_over_re_asks() -> None:
    class Unpriced:
        identity = {"model": "unpriced"}  # noqa: RUF012

        def __init__(self) -> None:
            self.left = [("x", Usage(1, 10, 2, None)), ("4", Usage(1, 10, 2, 0.5))]

        async def complete(self, prompt: Sequence[str | Image], /, system: str = "") -> Completion:
            text, usage = self.left.pop(0)
            return Completion(text, usage=usage)

    verdict = await judge_of(Unpriced()).judge(CASE, Answer("desk"))

    assert verdict.usage == Usage(2, 20, 4, None, known_dollars=0.5)


async def test_another_scale_gives_scores_alone() -> None:
    judge = judge_of(saying("85/100"), parser=Robust(lowest=0, highest=100))

    verdict = await judge.judge(CASE, Answer("desk"))

    assert judge.scale == "0-1"
    assert (verdict.score, verdict.mark) == (0.85, None)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"reasks": -1}, "judge.reasks is -1"),
        ({"extra_style": "commas"}, "judge.extra_style is 'commas'"),
        ({"template": "blind"}, r"the prompt 'blind' has no slot \{answer\}"),
        ({"template_extra": "judge"}, r"the prompt 'judge' has no slot \{extra_answers\}"),
        ({"template": "judge_extra"}, r"'judge_extra' has a slot \{extra_answers\}, but most"),
        ({"template": "juge"}, "there is no prompt 'juge'"),
        ({"template": "mmbench"}, "fetch prompts`, or use our own wording, judge=llm_match_own"),
    ],
)
def test_knobs_that_cannot_work_are_refused(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(OpenEQAError, match=message):
        judge_of(EchoLLM(), **knobs)


@pytest.mark.parametrize(
    "knobs",
    [
        {"name": "other"},
        {"template": "mine.txt"},
        {"template_extra": None},
        {"extra_style": "python_list"},
        {"system": "Be strict."},
        {"texts": "upstream"},
        {"reasks": 0},
        {"parser": Robust(tag="Mark")},
    ],
)
def test_what_can_change_a_mark_changes_the_identity(knobs: dict[str, Any], tmp_path: Path) -> None:
    if "template" in knobs:
        path = tmp_path / "mine.txt"
        path.write_text("{question} {answer} {prediction}")
        knobs = {"template": str(path)}

    before, after = judge_of(EchoLLM()).identity, judge_of(EchoLLM(), **knobs).identity

    assert before != after
    assert str(tmp_path) not in json.dumps(after)


def test_where_the_prompts_lie_does_not_change_the_identity(prompts: str, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    for path in Path(prompts).glob("*.txt"):
        (again / path.name).write_text(path.read_text())

    one = profile("llm_match", EchoLLM(), prompts)
    two = profile("llm_match", EchoLLM(), str(again))

    assert one.identity == two.identity


@pytest.mark.parametrize("name", PROFILES)
async def test_every_profile_keeps_the_contract(name: str, prompts: str) -> None:
    judge = profile(name, EchoLLM("Your mark: 3"), prompts)
    await check_judge(judge, CASE)
    assert judge.scale == "1-5"
    assert judge.identity["name"] == name
    for reply in ("no idea", ""):
        with pytest.raises(CaseError):
            await profile(name, EchoLLM(reply), prompts).judge(CASE, Answer("desk"))


def test_profiles_are_told_apart(prompts: str) -> None:
    identities = {
        json.dumps(profile(name, EchoLLM(), prompts).identity, sort_keys=True) for name in PROFILES
    }
    assert len(identities) == len(PROFILES)


@pytest.mark.parametrize("name", [name for name in PROFILES if name != "llm_match_own"])
def test_a_profile_of_upstreams_wording_needs_it_installed(name: str, tmp_path: Path) -> None:
    with pytest.raises(OpenEQAError, match=r"openeqa_lab.fetch prompts.*judge=llm_match_own"):
        profile(name, EchoLLM(), str(tmp_path))


@pytest.mark.parametrize("name", ["llm_match", "llm_match_own"])
def test_a_profile_for_new_numbers_asks_a_model_that_is_still_served(name: str) -> None:
    node: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"), resolve=False)

    assert node["llm"] == {"max_tokens": 32}
    assert any("gpt6_luna" in str(item) for item in node["defaults"])


@pytest.mark.parametrize("name", ["llm_match_upstream", "llm_match_nodeset"])
def test_a_profile_for_comparing_asks_with_the_settings_of_the_benchmark(name: str) -> None:
    node: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"), resolve=False)
    settings = node.get("judge", node)["llm"]
    tokens = 128 if name == "llm_match_nodeset" else 32

    assert settings == {"temperature": 0.2, "max_tokens": tokens, "seed": 1234}
    assert any("gpt4_1106" in str(item) for item in node["defaults"])


@pytest.mark.parametrize(
    ("prediction", "shown"),
    [
        ("About 1.5 meters", "About 1."),
        ("Mr. Coffee machine", "Mr."),
        ("No. There is a lamp next to it", "No."),
        ("A lamp. A desk. And", "A lamp. A desk."),
        ("on the desk.", "on the desk."),
        ("on the desk", "on the desk"),
        ("on the desk. ", "on the desk."),
        (".", "."),
        (".5", "."),
        ("...", "..."),
    ],
)
async def test_upstreams_profile_cuts_a_prediction_after_its_last_full_stop(
    prediction: str, shown: str, prompts: str
) -> None:
    llm = saying("5", "5")

    await profile("llm_match_upstream", llm, prompts).judge(CASE, Answer(prediction))
    await profile("llm_match", llm, prompts).judge(CASE, Answer(prediction))

    assert asked(llm, 0) == f"PLAIN\nQ Where is the {{red}} lamp?\nA desk\nP {shown}"
    assert asked(llm, 1) == f"PLAIN\nQ Where is the {{red}} lamp?\nA desk\nP {prediction}"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("llm_match", "EXTRA\nQ Where?\nA desk\nE [\"it's a desk\", 'table']\nP table"),
        ("llm_match_upstream", "EXTRA\nQ Where?\nA desk\nE [\"it's a desk\", 'table']\nP table"),
        ("llm_match_nodeset", "PLAIN\nQ Where?\nA desk\nP table"),
    ],
)
async def test_profiles_show_extra_answers_or_not(name: str, shown: str, prompts: str) -> None:
    llm = saying("5")

    await profile(name, llm, prompts).judge(EXTRA, Answer("table"))

    assert asked(llm) == shown
    assert bool(llm.calls[0][0]) == (name == "llm_match_nodeset")


@pytest.mark.parametrize(
    ("reply", "upstream", "nodeset", "robust"),
    [
        ("4", 4, 4, 4),
        (" 4", None, 4, 4),
        ("10", 5, None, None),
        ("0", 1, None, None),
        ("Your mark: 4", 4, 4, 4),
        ("Your mark: 4.", None, 4, 4),
        ("Your mark: 10", 5, 1, None),
        ("Your mark: -1", 1, 1, None),
        ("Your mark: 7", 5, None, None),
        ("Your mark: 1\nYour mark: 5", 1, 1, 5),
        ("Your mark: 4 (close)", None, 4, 4),
        ("**Your mark:** 4", None, 4, 4),
        ("Your mark: 4/5", None, 4, 4),
        ("your mark: 4", None, 4, 4),
        ("```\n5\n```", None, 5, 5),
        ("On a scale of 1 to 5, I would give this a 4.", None, 1, None),
        ('{"score": 4}', None, 4, None),
        ("five", None, None, None),
        ("²", None, None, None),
        ("", None, None, None),
    ],
)
async def test_profiles_read_replies_by_their_own_formulas(
    reply: str, upstream: int | None, nodeset: int | None, robust: int | None, prompts: str
) -> None:
    rights = {
        "llm_match_upstream": upstream,
        "llm_match_nodeset": nodeset,
        "llm_match": robust,
        "llm_match_own": robust,
    }
    for name, mark in rights.items():
        llm = EchoLLM(lambda prompt: reply)
        judge = profile(name, llm, prompts)
        if mark is None:
            with pytest.raises(CaseError, match="question q-7") as caught:
                await judge.judge(CASE, Answer("desk"))
            assert caught.value.kind == ("unparsed" if reply else "empty")
            assert len(llm.calls) == (2 if name in ("llm_match", "llm_match_own") else 1)
        else:
            verdict = await judge.judge(CASE, Answer("desk"))
            assert (verdict.mark, verdict.score) == (mark, (mark - 1) / 4)
            assert verdict.raw == reply


async def test_every_official_prompt_of_the_upstream_profile_is_upstreams_own(
    shared: Path,
) -> None:
    texts = {name: (shared / f"data/openeqa/prompts/{name}.txt").read_text().strip() for name in
             ("mmbench", "mmbench-extra")}  # fmt: skip
    path = shared / "data/openeqa/open-eqa-v0.json"
    llm = EchoLLM(lambda _: "Your mark: 3")
    judge = judge_of(
        llm, template="mmbench", template_extra="mmbench-extra", extra_style="python_list",
        prompts_dir=str(shared / "data/openeqa/prompts"), texts="upstream",
    )  # fmt: skip
    rows = json.loads(path.read_text())
    for row, case in zip(rows, Dataset(path), strict=True):
        await judge.judge(case, Answer("It is on the left. I thin"))
        name = "mmbench-extra" if "extra_answers" in row else "mmbench"
        values = {key: str(row.get(key)) for key in ("question", "answer", "extra_answers")}
        assert llm.calls.pop()[1] == [
            texts[name].format(**values, prediction="It is on the left.")
        ], row["question_id"]
