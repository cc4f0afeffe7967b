"""LLM-Match: a language model marks an answer against the reference (OpenEQA paper, section 4)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from openeqa_lab.data.case import Case, Question, Verbatim
from openeqa_lab.errors import CallError, CaseError, OpenEQAError, UnparsedError
from openeqa_lab.judges.parsers import MarkParser
from openeqa_lab.llm import LLM, Completion, Forecast, Forecaster
from openeqa_lab.prompts import Template, load
from openeqa_lab.records import Answer, Attempt, Usage, Verdict

ExtraStyle = Literal["python_list", "lines"]


class LLMMatch:
    """A judge made of three parts: a wording, a model, and the rule that reads its reply.

    Args:
        name: The profile's name, for reports.
        llm: The model that marks.
        template: The prompt, with slots ``{question}``, ``{answer}`` and ``{prediction}``: a name
            that `prompts.load` knows or a path that ends in ``.txt``.
        template_extra: The prompt for cases that have extra answers, with the slot
            ``{extra_answers}`` besides; None never shows them.
        prompts_dir: Where upstream's prompts are installed; None if none of them is used.
        parser: Reads the mark; also knows the scale. Another scale than 1-5 gives scores alone.
        extra_style: ``python_list`` shows extra answers as Python prints a list, as upstream does;
            ``lines`` one a line.
        texts: ``clean`` shows texts without outer white space and empty or repeated extra answers;
            ``upstream`` as upstream's evaluator shows them, letter for letter from the file, and
            the prediction cut after its last full stop (`1.5 meters` becomes `1.`).
        system: The system message; empty for none.
        reasks: Further calls when a reply is empty or holds no mark, with a reminder of the form
            added to the prompt and the same settings.
    """

    def __init__(
        self,
        name: str,
        llm: LLM,
        template: str,
        template_extra: str | None,
        prompts_dir: str | None,
        parser: MarkParser,
        extra_style: ExtraStyle,
        texts: Literal["clean", "upstream"],
        system: str,
        reasks: int,
    ) -> None:
        if reasks < 0:
            raise OpenEQAError(f"judge.reasks is {reasks}: it must be 0 or more")
        if texts not in ("clean", "upstream"):
            raise OpenEQAError(f"judge.texts is '{texts}': it must be clean or upstream")
        if extra_style not in ("python_list", "lines"):
            raise OpenEQAError(
                f"judge.extra_style is '{extra_style}': it must be python_list or lines"
            )
        self._name = name
        self._llm = llm
        self._parser = parser
        self._template = _load(template, prompts_dir, extra=False)
        self._template_extra = (
            None if template_extra is None else _load(template_extra, prompts_dir, extra=True)
        )
        self._extra_style = extra_style
        self._texts = texts
        self._system = system
        self._reasks = reasks
        self._reminder = load("reask")

    @property
    def scale(self) -> Literal["1-5", "0-1"]:
        """``1-5`` with a parser of that scale, else scores alone."""
        return "1-5" if (self._parser.lowest, self._parser.highest) == (1, 5) else "0-1"

    @property
    def identity(self) -> Mapping[str, object]:
        """Wordings by their hash, model, parser and rules."""
        extra = self._template_extra
        return {
            "name": self._name,
            "template": self._template.sha256,
            "template_extra": None if extra is None else extra.sha256,
            "extra_style": None if extra is None else self._extra_style,
            "system": hashlib.sha256(self._system.encode()).hexdigest() if self._system else None,
            "texts": self._texts,
            "reasks": self._reasks,
            "reminder": self._reminder.sha256 if self._reasks else None,
            "parser": dict(self._parser.identity),
            "llm": dict(self._llm.identity),
        }

    async def judge(self, case: Case, answer: Answer, /) -> Verdict:
        """The model's mark as a verdict; `usage` covers the calls of re-asks.

        Raises:
            UnparsedError: No reply held a mark.
            CallError: The last reply was empty (kind ``empty``), or a call failed.
            CaseError: The judge declined or was blocked (kind ``refused``).
        """
        prompt = self._prompt(case, answer)
        usage, reply = Usage(), ""
        attempts: tuple[Attempt, ...] = ()
        for attempt in range(1 + self._reasks):
            asked = prompt if attempt == 0 else f"{prompt}\n\n{self._reminded()}"
            try:
                completion = await self._llm.complete([asked], self._system)
            except CaseError as error:
                # What earlier attempts cost and said is not lost with this one.
                error.usage = usage if error.usage is None else usage + error.usage
                error.raw = error.raw or reply
                error.attempts = attempts + error.attempts
                raise
            usage, reply = usage + completion.usage, completion.text
            attempts += completion.attempts
            if completion.finish_reason in ("refusal", "content_filter"):
                raise _after(attempts, self._refused(case, completion, usage))
            mark = self._parser.parse(reply)
            if mark is not None:
                return self._verdict(mark, replace(completion, usage=usage, attempts=attempts))
        raise _after(attempts, self._unusable(case, reply, usage))

    async def rehearse(self) -> Usage:
        """Judge a made-up answer.

        Raises:
            CaseError: The call failed, or its reply holds no mark.
        """
        question = Question("made-up", "What color is the sofa?")
        case = Case(question.id, question, "red", "", "")
        return (await self.judge(case, Answer("dark red"))).usage

    async def forecast(self, case: Case, answer: Answer, /) -> Forecast:
        """What the judgement may cost, without a call for a second reply.

        Raises:
            CaseError: The vendor would refuse the prompt.
        """
        if not isinstance(self._llm, Forecaster):
            return Forecast(1, dollars=None, most_dollars=None)
        return await self._llm.forecast([self._prompt(case, answer)], self._system)

    def _prompt(self, case: Case, answer: Answer) -> str:
        shown, prediction = (
            Verbatim(case.question.text, case.answer, case.extra_answers),
            answer.text,
        )
        if self._texts == "upstream":
            shown, prediction = case.verbatim or shown, _after_last_stop(prediction)
        values = {"question": shown.question, "answer": shown.answer, "prediction": prediction}
        if self._template_extra is None or not shown.extra_answers:
            return self._template.fill(values)
        if self._extra_style == "python_list":
            values["extra_answers"] = str(list(shown.extra_answers))
        else:
            values["extra_answers"] = "\n".join(f"- {text}" for text in shown.extra_answers)
        return self._template_extra.fill(values)

    def _reminded(self) -> str:
        parser = self._parser
        return self._reminder.fill(
            {"tag": parser.tag, "lowest": str(parser.lowest), "highest": str(parser.highest)}
        )

    def _verdict(self, mark: int, completion: Completion) -> Verdict:
        low, high = self._parser.lowest, self._parser.highest
        return Verdict(
            score=(mark - low) / (high - low),
            mark=mark if self.scale == "1-5" else None,
            raw=completion.text,
            model=completion.model,
            usage=completion.usage,
            adjusted=completion.adjusted,
            attempts=completion.attempts,
        )

    def _refused(self, case: Case, completion: Completion, usage: Usage) -> CaseError:
        how = "was blocked" if completion.finish_reason == "content_filter" else "declined"
        return CaseError(
            f"question {case.id}: the judge {self._name} {how} instead of giving a mark: "
            f"look at question and answer, or take another judge model (llm@judge.llm=...)",
            kind="refused",
            raw=completion.text,
            usage=usage,
        )

    def _unusable(self, case: Case, reply: str, usage: Usage) -> CaseError:
        calls = f"asked {1 + self._reasks} times" if self._reasks else "asked once"
        if not reply.strip():
            return CallError(
                f"question {case.id}: the judge {self._name} said nothing ({calls}): start the run "
                f"again to ask it again, or raise judge.llm.max_tokens",
                kind="empty",
                raw=reply,
                usage=usage,
            )
        scale = f"{self._parser.lowest} to {self._parser.highest}"
        return UnparsedError(
            f"question {case.id}: no mark from {scale} can be read from the judge "
            f"{self._name}'s reply {_quoted(reply)} ({calls}): start the run again to ask it again",
            raw=reply,
            usage=usage,
        )


def _after(attempts: tuple[Attempt, ...], error: CaseError) -> CaseError:
    error.attempts = attempts
    return error


def _load(name: str, directory: str | None, *, extra: bool) -> Template:
    template = load(name, directory)
    template.require("question", "answer", "prediction", *(["extra_answers"] if extra else []))
    if not extra and "{extra_answers}" in template.text:
        raise OpenEQAError(
            f"the prompt '{name}' has a slot {{extra_answers}}, but most cases have none: "
            f"give it as judge.template_extra, and a prompt without the slot as judge.template"
        )
    return template


def _after_last_stop(text: str) -> str:
    """The text up to its last full stop, if there is one; upstream's rule, decimals included."""
    end = text.rfind(".")
    return text[: end + 1] if end >= 0 else text


def _quoted(reply: str, limit: int = 60) -> str:
    line = " ".join(reply.split())
    return f"'{line}'" if len(line) <= limit else f"'{line[:limit]}...'"
