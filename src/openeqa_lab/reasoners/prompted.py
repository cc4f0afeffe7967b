"""A model asked with a prompt: blind, single-frame and multi-frame are YAML files of one class."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from typing import Literal

from openeqa_lab.data.case import Question
from openeqa_lab.data.episode import Frame, Image
from openeqa_lab.errors import OpenEQAError
from openeqa_lab.images import FrameEncoder
from openeqa_lab.llm import LLM, Completion, Forecast, Forecaster
from openeqa_lab.prompts import load
from openeqa_lab.records import Answer, Usage

AnswerRule = Literal["whole", "a_line"]


class Prompted:
    """Asks a model: instructions first, then the frames, then the question.

    An episode's questions so share all that comes before the question, which vendors' caches use.

    Args:
        llm: The model that answers.
        encoder: Prepares the frames; None for a blind reasoner, which is given none.
        template: The prompt, with the slot ``{question}``: a name that `prompts.load` knows or a
            path that ends in ``.txt``.
        prompts_dir: Where upstream's prompts are installed; None if none of them is used.
        marker: Where the frames stand in the template: its slot ``{frames}``, or words of the
            template before which they are put, as upstream does. None for a blind reasoner.
        answer: ``whole`` takes the reply; ``a_line`` what follows ``A:`` in the first line that
            begins so (in the next line that says anything, where that one does not), and the whole
            reply when there is no such line.
        system: The system message; empty for none.
    """

    def __init__(
        self,
        llm: LLM,
        encoder: FrameEncoder | None,
        template: str,
        prompts_dir: str | None = None,
        marker: str | None = "{frames}",
        answer: AnswerRule = "whole",
        system: str = "",
    ) -> None:
        if answer not in ("whole", "a_line"):
            raise OpenEQAError(f"reasoner.answer is '{answer}': it must be whole or a_line")
        if (encoder is None) != (marker is None):
            raise OpenEQAError(
                "reasoner.encoder and reasoner.marker go together: null both for a blind reasoner, "
                "else give an encoder and where in the template the frames stand"
            )
        self._llm = llm
        self._encoder = encoder
        self._template = load(template, prompts_dir)
        self._marker = marker
        self._rule: AnswerRule = answer
        self._system = system
        self._prompt("", ())  # a slot or marker that is missing is said before anything is asked
        if encoder is None and "{frames}" in self._template.text:
            raise OpenEQAError(
                f"the prompt '{template}' has a slot {{frames}}, and the reasoner is blind: choose "
                "another template, or a reasoner with an encoder"
            )

    @property
    def identity(self) -> Mapping[str, object]:
        """Prompt by its hash, model, encoder and rules."""
        encoder = self._encoder
        return {
            "name": "prompted",
            "template": self._template.sha256,
            "marker": self._marker,
            "answer": self._rule,
            "system": hashlib.sha256(self._system.encode()).hexdigest() if self._system else None,
            "encoder": None if encoder is None else dict(encoder.identity),
            "llm": dict(self._llm.identity),
        }

    async def answer(self, question: Question, frames: Sequence[Frame], /) -> Answer:
        """What the model says.

        Raises:
            CaseError: A frame cannot be read, or the call failed.
            OpenEQAError: Frames for a blind reasoner, or none for one that sees.
        """
        if self._encoder is None and frames:
            raise OpenEQAError(
                f"{len(frames)} frames for a blind reasoner (question {question.id}): choose "
                "episodes=unseen, or a reasoner that sees"
            )
        if self._encoder is not None and not frames:
            raise OpenEQAError(
                f"no frames for a reasoner that sees (question {question.id}): choose "
                "episodes=recorded, or a blind reasoner"
            )
        images = await self._encoder.encode(frames) if self._encoder is not None else ()
        prompt = self._prompt(question.text, images)
        del images  # a model that answers in hours may let them go
        waiting = self._llm.complete(prompt, self._system)
        del prompt
        return _answer(await waiting, self._rule)

    async def rehearse(self) -> Usage:
        """Ask a made-up question, with one gray picture for a reasoner that sees.

        Raises:
            CaseError: The call failed.
        """
        images = () if self._encoder is None else (_gray(),)
        prompt = self._prompt("What color is this picture?", images)
        return (await self._llm.complete(prompt, self._system)).usage

    async def forecast(self, question: Question, frames: Sequence[Frame], /) -> Forecast:
        """What the answer may cost; nothing where the model does not say.

        Raises:
            CaseError: A frame cannot be read, or the vendor would refuse the prompt.
        """
        if not isinstance(self._llm, Forecaster):
            return Forecast(1, dollars=None, most_dollars=None)
        images = await self._encoder.encode(frames) if self._encoder is not None else ()
        return await self._llm.forecast(self._prompt(question.text, images), self._system)

    def _prompt(self, question: str, images: Sequence[Image]) -> list[str | Image]:
        values = {"question": question}
        if self._marker is None:
            return [self._template.fill(values)]
        before, after = self._template.around_frames(values, self._marker)
        parts: list[str | Image] = [before, *images, after]
        return [part for part in parts if part != ""]


def _gray() -> Image:
    """A picture large enough for every vendor to take."""
    from PIL import Image as Pillow

    buffer = io.BytesIO()
    Pillow.new("RGB", (64, 64), "gray").save(buffer, "PNG")
    return Image(buffer.getvalue(), "image/png", 64, 64)


def _answer(completion: Completion, rule: AnswerRule) -> Answer:
    said = completion.text.strip()
    common = (
        completion.model,
        completion.finish_reason,
        completion.usage,
        completion.adjusted,
        completion.attempts,
    )
    if completion.finish_reason == "refusal":
        return Answer("", "refused", said, *common)
    if completion.finish_reason == "content_filter":
        return Answer("", "blocked", said, *common)
    text = said if rule == "whole" else _after_a(said)
    raw = said if text != said else ""
    return Answer(text, "answered" if text else "empty", raw, *common)


def _after_a(reply: str) -> str:
    lines = [line.strip() for line in reply.split("\n")]
    for number, line in enumerate(lines):
        if line.startswith("A:"):
            rest = [line.removeprefix("A:").strip(), *lines[number + 1 :]]
            return next((text for text in rest if text), "")
    return reply
