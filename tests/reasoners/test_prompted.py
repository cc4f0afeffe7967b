"""What a model is sent, and what is made of its reply."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from openeqa_lab.data.case import Question
from openeqa_lab.data.episode import Image
from openeqa_lab.errors import CallError, FrameError, OpenEQAError
from openeqa_lab.images.encoders import Encoder
from openeqa_lab.llm import Completion, FinishReason
from openeqa_lab.reasoners.prompted import AnswerRule, Prompted
from openeqa_lab.records import Usage
from openeqa_lab.testing import EchoLLM, check_reasoner, tiny_episode

QUESTION = Question("q-1", "What color is the sofa?")


def blind(llm: Any, **knobs: Any) -> Prompted:
    return Prompted(llm, **{"encoder": None, "template": "blind", "marker": None, **knobs})


def seeing(llm: Any, **knobs: Any) -> Prompted:
    encoder = Encoder(format="png", size=512)
    return Prompted(llm, **{"encoder": encoder, "template": "multi_frame", **knobs})


def text_of(parts: Sequence[str | Image]) -> str:
    return "\n".join(part for part in parts if isinstance(part, str))


async def test_a_blind_prompt_is_one_text_that_holds_the_question() -> None:
    llm = EchoLLM(lambda _: "red")
    answer = await blind(llm).answer(QUESTION, ())
    assert (answer.text, answer.status, answer.raw) == ("red", "answered", "")
    [(system, prompt)] = llm.calls
    assert system == ""
    assert len(prompt) == 1
    assert QUESTION.text in text_of(prompt)


async def test_instructions_then_frames_in_order_then_the_question() -> None:
    llm = EchoLLM(lambda _: "red")
    frames = tiny_episode(3).frames
    await seeing(llm, system="Be brief.").answer(QUESTION, frames)
    [(system, prompt)] = llm.calls
    assert system == "Be brief."
    assert [type(part).__name__ for part in prompt] == ["str", "Image", "Image", "Image", "str"]
    assert QUESTION.text not in str(prompt[0])
    assert QUESTION.text in str(prompt[-1])
    pictures = [part for part in prompt if isinstance(part, Image)]
    assert pictures == list(await Encoder(format="png", size=512).encode(frames))


async def test_two_questions_of_an_episode_share_all_that_comes_before_them() -> None:
    llm = EchoLLM(lambda _: "red")
    reasoner, frames = seeing(llm), tiny_episode(2).frames
    for text in ("Is it open?", "Where is the lamp?"):
        await reasoner.answer(Question(text, text), frames)
    (_, first), (_, second) = llm.calls
    assert first[:-1] == second[:-1]
    assert first[-1] != second[-1]


@pytest.mark.parametrize("name", ["single_frame", "multi_frame"])
async def test_our_own_prompts_take_frames_at_their_slot(name: str) -> None:
    llm = EchoLLM(lambda _: "red")
    await seeing(llm, template=name).answer(QUESTION, tiny_episode(1).frames)
    assert "{" not in text_of(llm.calls[0][1])


@pytest.mark.parametrize("name", ["gpt4v", "claude3-vision", "gemini-pro-vision"])
async def test_upstreams_prompts_take_frames_before_the_query(name: str, shared: Path) -> None:
    folder = shared / "data/openeqa/prompts"
    llm = EchoLLM(lambda _: "red")
    reasoner = seeing(llm, template=name, prompts_dir=str(folder), marker="User Query:")
    await reasoner.answer(QUESTION, tiny_episode(2).frames)
    first, *pictures, last = llm.calls[0][1]
    assert last == f"User Query: {QUESTION.text}"
    assert len(pictures) == 2
    whole = (folder / f"{name}.txt").read_text().strip()
    assert f"{first}{last}" == whole.replace("{question}", QUESTION.text)


async def test_upstreams_blind_prompt_is_sent_letter_for_letter(shared: Path) -> None:
    folder = shared / "data/openeqa/prompts"
    llm = EchoLLM(lambda _: "A: red\nExplanation: sofas often are.")
    reasoner = blind(llm, template="blind-llm", prompts_dir=str(folder), answer="a_line")
    answer = await reasoner.answer(QUESTION, ())
    whole = (folder / "blind-llm.txt").read_text().strip()
    assert llm.calls[0][1] == [whole.replace("{question}", QUESTION.text)]
    assert (answer.text, answer.raw) == ("red", "A: red\nExplanation: sofas often are.")


async def test_braces_and_dollars_of_a_question_reach_the_model(
    shared: Path, tmp_path: Path
) -> None:
    template = tmp_path / "own.txt"
    template.write_text('Reply like {"a": 1} or {b} at 50%.\n{frames}\n{question}', "utf-8")
    rows = json.loads((shared / "cases/questions_braces.json").read_text("utf-8"))
    llm = EchoLLM()
    reasoner = seeing(llm, template=str(template))
    for row in rows:
        answer = await reasoner.answer(Question("h", row["question"]), tiny_episode(1).frames)
        assert answer.text == f'Reply like {{"a": 1}} or {{b}} at 50%.\n{row["question"]}'
    blind_llm = EchoLLM()
    for row in rows:
        await blind(blind_llm).answer(Question("h", row["question"]), ())
        assert row["question"] in text_of(blind_llm.calls[-1][1])


async def test_a_question_that_holds_the_marker_or_a_slot_stays_as_it_is(tmp_path: Path) -> None:
    template = tmp_path / "own.txt"
    template.write_text("Look. User Query: {question}", "utf-8")
    llm = EchoLLM(lambda _: "red")
    question = Question("q", "Who wrote User Query: and {question} and {frames}?")
    await seeing(llm, template=str(template), marker="User Query:").answer(
        question, tiny_episode(1).frames
    )
    assert llm.calls[0][1][-1] == f"User Query: {question.text}"


A_LINES = [
    ("A: the microwave\nExplanation: kitchens have one.", "the microwave"),
    ("Q: What is it?\nA: The microwave\nExplanation: near it.", "The microwave"),
    ("the microwave", "the microwave"),
    ("It is\nthe microwave.", "It is\nthe microwave."),
    ("A: it says A: and B:", "it says A: and B:"),
    ("  A:red  ", "red"),
    ("A: red\nQ: another?\nA: blue", "red"),
    ("A:\nred\nExplanation: x", "red"),
    ("A:\n\n  red", "red"),
    ("Plan A: go left", "Plan A: go left"),
    ("USA: red", "USA: red"),
    ("a: red", "a: red"),
    ("Sure.\r\nA: red\r\nB", "red"),
]


@pytest.mark.parametrize(("reply", "expected"), A_LINES)
async def test_the_a_line_is_the_answer_or_else_the_whole_reply(reply: str, expected: str) -> None:
    answer = await blind(EchoLLM(lambda _: reply), answer="a_line").answer(QUESTION, ())
    assert (answer.text, answer.status) == (expected, "answered")
    assert answer.raw == ("" if expected == reply.strip() else reply.strip())


async def test_the_whole_reply_keeps_its_a_line() -> None:
    answer = await blind(EchoLLM(lambda _: " A: red\nB ")).answer(QUESTION, ())
    assert (answer.text, answer.raw) == ("A: red\nB", "")


@pytest.mark.parametrize("reply", ["A:", "A: \n \n", "Q: x\nA:"])
async def test_an_a_line_that_says_nothing_is_an_empty_answer(reply: str) -> None:
    answer = await blind(EchoLLM(lambda _: reply), answer="a_line").answer(QUESTION, ())
    assert (answer.text, answer.status, answer.raw) == ("", "empty", reply.strip())


@pytest.mark.parametrize(
    ("text", "reason", "expected"),
    [("", "stop", ("", "empty", "")), (" \n", "stop", ("", "empty", "")),
     ("", "other", ("", "empty", "")), ("red", "other", ("red", "answered", "")),
     ("A red", "length", ("A red", "answered", "")), ("No.", "refusal", ("", "refused", "No.")),
     ("", "refusal", ("", "refused", "")), ("", "content_filter", ("", "blocked", "")),
     ("A re", "content_filter", ("", "blocked", "A re"))],
)  # fmt: skip
@pytest.mark.parametrize("rule", ["whole", "a_line"])
async def test_status_by_finish_reason(
    text: str, reason: FinishReason, expected: tuple[str, str, str], rule: AnswerRule
) -> None:
    answer = await blind(EchoLLM(lambda _: text, reason), answer=rule).answer(QUESTION, ())
    assert (answer.text, answer.status, answer.raw) == expected
    assert answer.finish_reason == reason
    assert answer.model == "echo"


async def test_usage_goes_with_the_answer() -> None:
    answer = await blind(EchoLLM(lambda _: "dark red")).answer(QUESTION, ())
    assert answer.usage.calls == 1
    assert answer.usage.completion_tokens == 2


async def test_a_failed_call_stays_a_failure() -> None:
    class Failing:
        identity = {"model": "failing"}  # noqa: RUF012

        async def complete(self, prompt: object, /, system: str = "") -> Completion:
            raise CallError("cut", kind="truncated", usage=Usage(1, 10, 128))

    with pytest.raises(CallError, match="cut"):
        await blind(Failing()).answer(QUESTION, ())


async def test_a_frame_that_cannot_be_read_asks_nothing(tmp_path: Path) -> None:
    from openeqa_lab.data.layouts import frames_of, open_source

    episode = tmp_path / "hm3d-v0" / "000-x"
    episode.mkdir(parents=True)
    (episode / "00000-rgb.png").write_bytes(b"<html>Link expired</html>")
    llm = EchoLLM()
    with pytest.raises(FrameError, match=r"00000-rgb\.png"):
        await seeing(llm).answer(QUESTION, frames_of(open_source(tmp_path, "hm3d-v0/000-x")))
    assert llm.calls == []


async def test_frames_for_a_blind_reasoner_and_none_for_one_that_sees_stop_the_run() -> None:
    llm = EchoLLM()
    with pytest.raises(OpenEQAError, match=r"2 frames for a blind reasoner.*episodes=unseen"):
        await blind(llm).answer(QUESTION, tiny_episode(2).frames)
    with pytest.raises(OpenEQAError, match=r"no frames for a reasoner that sees.*q-1.*recorded"):
        await seeing(llm).answer(QUESTION, ())
    assert llm.calls == []


@pytest.mark.parametrize(
    ("knobs", "message"),
    [({"answer": "b_line"}, "reasoner.answer is 'b_line'"),
     ({"marker": "{frames}"}, "reasoner.encoder and reasoner.marker go together"),
     ({"template": "blnd"}, "there is no prompt 'blnd'"),
     ({"template": "multi_frame"}, r"has a slot \{frames\}, and the reasoner is blind"),
     ({"template": "reask"}, r"no slot \{question\}"),
     ({"template": "gpt4v", "prompts_dir": "nowhere"}, "openeqa_lab.fetch prompts")],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused_before_anything_is_asked(
    knobs: dict[str, Any], message: str
) -> None:
    with pytest.raises(OpenEQAError, match=message):
        blind(EchoLLM(), **knobs)


def test_a_marker_that_is_not_in_the_template_is_refused() -> None:
    with pytest.raises(OpenEQAError, match="holds the marker 'User Query:' 0 times"):
        seeing(EchoLLM(), marker="User Query:")
    with pytest.raises(OpenEQAError, match="go together"):
        seeing(EchoLLM(), marker=None)


async def test_both_kinds_pass_the_kit() -> None:
    await check_reasoner(blind(EchoLLM(lambda _: "red")), QUESTION)
    await check_reasoner(seeing(EchoLLM(lambda _: "red")), QUESTION, tiny_episode(3).frames)


def test_identity_names_model_encoder_prompt_and_rules_but_no_path(tmp_path: Path) -> None:
    template = tmp_path / "own.txt"
    template.write_text("{frames} {question}", "utf-8")
    identity = seeing(EchoLLM(), template=str(template)).identity
    assert str(tmp_path) not in json.dumps(identity)
    assert set(identity) == {"name", "template", "marker", "answer", "system", "encoder", "llm"}
    before = json.dumps(identity)
    template.write_text("{frames}: {question}", "utf-8")
    assert json.dumps(seeing(EchoLLM(), template=str(template)).identity) != before


async def test_only_a_line_end_ends_the_a_line() -> None:
    reasoner = blind(EchoLLM("A: foo\u2028bar\x0bbaz\r\nExplanation: none"), answer="a_line")
    assert (await reasoner.answer(QUESTION, ())).text == "foo\u2028bar\x0bbaz"
