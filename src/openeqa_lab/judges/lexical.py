"""Judges that compare words: no model, no key, the same verdict every time."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from openeqa_lab.data.case import Case
from openeqa_lab.records import Answer, Verdict


class Exact:
    """1 when the answer is any of the right answers after `normalise`, else 0.

    Yes and no: where one of the two texts is nothing but a yes or a no, alone or before a
    punctuation mark (``No, it is closed``), and the other begins with either word, that first word
    alone decides, whichever of the two is the answer.
    """

    @property
    def scale(self) -> Literal["1-5", "0-1"]:
        """Scores alone."""
        return "0-1"

    @property
    def identity(self) -> Mapping[str, object]:
        """Name and version of the rules."""
        return {"name": "exact", "version": 1}

    async def judge(self, case: Case, answer: Answer, /) -> Verdict:
        """The best verdict over the right answers."""
        right = (case.answer, *case.extra_answers)
        return Verdict(max(_exact(answer.text, reference) for reference in right))


class TokenF1:
    """The F1 of the words in common with the closest of the right answers, after `normalise`.

    Yes and no are decided as `Exact` decides them, so that ``yes, it is open`` earns nothing for
    ``no, it is open``.
    """

    @property
    def scale(self) -> Literal["1-5", "0-1"]:
        """Scores alone."""
        return "0-1"

    @property
    def identity(self) -> Mapping[str, object]:
        """Name and version of the rules."""
        return {"name": "token_f1", "version": 1}

    async def judge(self, case: Case, answer: Answer, /) -> Verdict:
        """The best verdict over the right answers."""
        right = (case.answer, *case.extra_answers)
        return Verdict(max(_token_f1(answer.text, reference) for reference in right))


def normalise(text: str) -> str:
    """The words that count, joined by single blanks; doing it twice changes nothing.

    NFKC and lower case; apostrophes and the full stops of abbreviations closed up (``T.V.`` is
    ``tv``); other punctuation and symbols become blanks, unless nothing else is there; number words
    up to ninety-nine become digits; ``a``, ``an`` and ``the`` go, unless nothing else is there.
    """
    before = None
    while text != before:
        before, text = text, _normalise_once(text)
    return text


def polarity(text: str) -> Literal["yes", "no"] | None:
    """What a text says that begins with yes or no (or yeah, yep, yup, nope, nah), else None."""
    found = _FIRST_WORD.match(_fold(text))
    return None if found is None else _POLAR.get(found[1])


def is_polar(text: str) -> bool:
    """Whether a text is a yes or a no, alone or before a punctuation mark."""
    found = _FIRST_WORD.match(_fold(text))
    return found is not None and found[1] in _POLAR and found["alone"] is not None


def agree_on_polarity(prediction: str, reference: str) -> bool | None:
    """Whether both say yes or both no; None where yes and no do not decide."""
    if not (is_polar(prediction) or is_polar(reference)):
        return None
    said, meant = polarity(prediction), polarity(reference)
    return None if said is None or meant is None else said == meant


def _exact(prediction: str, reference: str) -> float:
    agree = agree_on_polarity(prediction, reference)
    return float(normalise(prediction) == normalise(reference) if agree is None else agree)


def _token_f1(prediction: str, reference: str) -> float:
    agree = agree_on_polarity(prediction, reference)
    if agree is not None:
        return float(agree)
    said, meant = normalise(prediction).split(), normalise(reference).split()
    common = (Counter(said) & Counter(meant)).total()
    return 2 * common / (len(said) + len(meant)) if common else 0.0


_ARTICLES = frozenset(("a", "an", "the"))
_POLAR: Mapping[str, Literal["yes", "no"]] = {
    **dict.fromkeys(("yes", "yeah", "yep", "yup"), "yes"),
    **dict.fromkeys(("no", "nope", "nah"), "no"),
}
_FIRST_WORD = re.compile(r"\W*(\w+)(?P<alone>\s*(?:$|[^\w\s'/-]|\s[–—-]))?")
_APOSTROPHES = re.compile("['’‘`´ʼ]")
_ABBREVIATION = re.compile(r"(?<![\w.])[^\W\d_](?:\.[^\W\d_])+(?!\w)\.?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_DECIMAL = re.compile(r"(?<=\d)\.(?=\d)")
# fmt: off
_UNITS = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7,
    "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14,
    "fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19,
}
_TENS = {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80,
    "ninety": 90,
}
# fmt: on


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).lower())


def _normalise_once(text: str) -> str:
    text = " ".join(_fold(text).split())
    bare = _ABBREVIATION.sub(lambda found: found[0].replace(".", ""), text)
    bare = _THOUSANDS.sub("", _APOSTROPHES.sub("", bare))
    # A decimal point is the one mark that a number cannot do without.
    words = ".".join(map(_without_marks, _DECIMAL.split(bare))).split()
    if not words:
        return text
    words = _with_digits(words)
    return " ".join([word for word in words if word not in _ARTICLES] or words)


def _without_marks(text: str) -> str:
    # By category, not by \W: the vowel signs of many scripts are not \w but belong to their words.
    kinds = ((sign, unicodedata.category(sign)) for sign in text)
    return "".join(
        "" if kind == "Cf" else " " if kind[0] in "PSCZ" else sign for sign, kind in kinds
    )


def _with_digits(words: list[str]) -> list[str]:
    found: list[str] = []
    after_tens = False
    for word in words:
        unit = _UNITS.get(word)
        if unit is not None and after_tens and 0 < unit < 10:
            found[-1] = str(int(found[-1]) + unit)
        else:
            value = _TENS.get(word, unit)
            found.append(word if value is None else str(value))
        after_tens = word in _TENS
    return found
