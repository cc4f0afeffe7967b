"""How a mark is read off a judge's reply; each parser is part of its judge's identity."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from openeqa_lab.errors import OpenEQAError


class MarkParser(Protocol):
    """Reads a mark off a reply, or says that there is none; it never raises and never guesses."""

    @property
    def lowest(self) -> int:
        """The mark of a wrong answer."""
        ...

    @property
    def highest(self) -> int:
        """The mark of a right answer."""
        ...

    @property
    def tag(self) -> str:
        """The words before the mark, without the colon."""
        ...

    @property
    def identity(self) -> Mapping[str, object]:
        """The name of the rules, their version and settings, as JSON values."""
        ...

    def parse(self, reply: str, /) -> int | None:
        """The mark, from `lowest` to `highest`; None when the reply is unparsed."""
        ...


@dataclass(frozen=True, slots=True)
class Robust:
    """Takes a mark only where the judge says that it is one.

    Reasoning blocks and markdown are stripped from the NFKC-normalised text. The last tag decides,
    even when an earlier one was valid, and must carry a whole number: `Your mark: 4`, `4.0`, `4/5`,
    `4 out of 5`, `[4]`, with words after it, in any case, on the same line or the next. Without a
    tag the whole reply must be the number: `4`, `4.`, `4/5`. All else is unparsed: marks outside
    the scale (nothing is clipped), other scales (`4/10`), fractions, signs, leading zeros, words,
    choices (`4 or 5`, `4-5`, `4, 5`), JSON, numbers in prose.

    Digits of any script count (full-width, Arabic). Superscripts, subscripts and fractions do not,
    though NFKC would make digits of them: they are footnotes, exponents, parts.

    Args:
        tag: The words before the mark, without the colon.
        lowest: The mark of a wrong answer, at least 0.
        highest: The mark of a right answer.
    """

    tag: str = "Your mark"
    lowest: int = 1
    highest: int = 5

    def __post_init__(self) -> None:
        if not self.tag.strip() or ":" in self.tag:
            raise OpenEQAError(
                f"parser.tag is '{self.tag}': give the words before the mark, without the colon"
            )
        if not 0 <= self.lowest < self.highest:
            raise OpenEQAError(
                f"parser.lowest is {self.lowest} and parser.highest {self.highest}: "
                f"lowest must be at least 0 and below highest"
            )

    @property
    def identity(self) -> Mapping[str, object]:
        """Name, version, tag and scale."""
        return {
            "name": "robust",
            "version": 1,
            "tag": self.tag,
            "lowest": self.lowest,
            "highest": self.highest,
        }

    def parse(self, reply: str, /) -> int | None:
        """The mark of the last tag, or of a reply that is nothing but a number."""
        text = _plain(reply)
        words = r"\s+".join(re.escape(word) for word in self.tag.split())
        end = None
        for found in re.finditer(rf"(?<!\w){words}\s*:\s*", text, re.IGNORECASE):
            end = found.end()
        number = _BARE.fullmatch(text) if end is None else _TAGGED.match(text, end)
        if number is None:
            return None
        digits, scale = number["mark"], number["scale"]
        if int(digits[0]) == 0 and len(digits) > 1:
            return None
        if scale is not None and int(scale) != self.highest:
            return None
        mark = int(digits)
        return mark if self.lowest <= mark <= self.highest else None


@dataclass(frozen=True, slots=True)
class Upstream:
    """Upstream's rules to the letter: the first tag decides, any whole number is taken.

    Its evaluator clips marks to 1-5 when it sums up (10 becomes 5; 0 and -1 become 1), so they are
    clipped here. Where it stops the run with a ValueError the reply is unparsed.
    """

    lowest: int = field(default=1, init=False)
    highest: int = field(default=5, init=False)
    tag: str = field(default="Your mark", init=False)

    @property
    def identity(self) -> Mapping[str, object]:
        """Name and version."""
        return {"name": "upstream", "version": 1}

    def parse(self, reply: str, /) -> int | None:
        """The whole reply or what stands between the first tag and the end of its line."""
        tag = self.tag + ":"
        if reply.isdigit():
            found = reply
        elif tag in reply:
            line = reply[reply.index(tag) :].partition("\n")[0]
            found = line.replace(tag, "").strip()
        else:
            return None
        number = _whole(found)
        return None if number is None else min(max(number, self.lowest), self.highest)


@dataclass(frozen=True, slots=True)
class Nodeset:
    """The node set's rules: a lone digit, else the tag's digit, else the first lone digit 1-5.

    It reads a mark out of prose (`On a scale of 1 to 5` gives 1) and `Your mark: 10` as 1. Where
    the node set fails on an exotic digit (superscript two) the reply is unparsed.
    """

    lowest: int = field(default=1, init=False)
    highest: int = field(default=5, init=False)
    tag: str = field(default="Your mark", init=False)

    @property
    def identity(self) -> Mapping[str, object]:
        """Name and version."""
        return {"name": "nodeset", "version": 1}

    def parse(self, reply: str, /) -> int | None:
        """A mark from 1 to 5; None stands for the node set's -1."""
        text = reply.strip()
        if text.isdigit():
            number = _whole(text)
            if number is not None and 1 <= number <= 5:
                return number
        found = re.search(r"Your mark:\s*([1-5])", text) or re.search(r"\b([1-5])\b", text)
        return None if found is None else int(found[1])


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


# A mark, perhaps with its scale, in a text whose blanks are single (else these would be slow).
# Nine digits are more than any scale has, and keep int() cheap.
_BARE = re.compile(r"(?P<mark>\d{1,9})(?: ?/ ?(?P<scale>\d{1,9}))?\.?")
_TAGGED = re.compile(
    r"""
    [\[("']?                                                    # Your mark: [4]
    (?P<mark>\d{1,9}) (?:\.0{1,9})?                             # 4.0 is whole
    (?: [ ]? (?: / | (?:out[ ])?of[ ] ) [ ]? (?P<scale>\d{1,9}) (?:\.0{1,9})? )?
    (?= $ | \s | -\s | [.,;:!?)\]}"'(|–—] )                     # what may touch a number
    (?! [.,:]\d )                                               # 3.5, 3,5
    (?! [ ]? [)\]"']? [ ]? (?: [-–—~,;:/|&]+ | \.\.+ | to\b | and\b )? [ ]? \d )  # 4-5, 4, 5
    (?! [ ]? \ufffd )                                            # 3 ½
    (?! [ ]? (?: / | % | or\b | (?:out[ ])?of\b | percent\b | point\b | and[ ]a[ ]half\b ) )
    """,
    re.VERBOSE | re.IGNORECASE,
)

_REASONING = re.compile(
    r"</?(?:think|thinking|thought|thoughts|reasoning|reflection)>|\[/?think\]", re.IGNORECASE
)
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_NO_DIGITS = re.compile("[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2089\u2150-\u215f\u2189]")
_BLANKS = re.compile(r"[^\S\n]+")
_FENCE = re.compile(r"^ ?(?:`{3,}|~{3,})[^\n`]*$", re.MULTILINE)
_BLOCK = re.compile(r"^ ?(?:#{1,6}|>) ", re.MULTILINE)
_EMPHASIS = re.compile(r"[*_`~]+")


def _plain(reply: str) -> str:
    """The reply as text: normalised, without reasoning, invisible signs and markdown."""
    text = unicodedata.normalize("NFKC", _NO_DIGITS.sub("\ufffd", reply))
    text = _spoken(_INVISIBLE.sub("", text).replace("\u2044", "/").replace("\u2215", "/"))
    text = _BLANKS.sub(" ", text)
    text = _BLOCK.sub("", _FENCE.sub("", text))
    return _EMPHASIS.sub(_unless_within, text).strip()


def _spoken(text: str) -> str:
    """What was said outside reasoning blocks.

    A block that is not closed goes on to the end; one that is only closed began before the reply.
    """
    kept: list[str] = []
    position, inside = 0, False
    for mark in _REASONING.finditer(text):
        if "/" in mark[0]:
            if not inside:
                kept.clear()
            position, inside = mark.end(), False
        elif not inside:
            kept.append(text[position : mark.start()])
            inside = True
    if not inside:
        kept.append(text[position:])
    return "".join(kept)


def _unless_within(run: re.Match[str]) -> str:
    """Nothing, but for a sign inside a word or number: `4*5` must not become 45."""
    before = run.string[run.start() - 1 : run.start()] if run.start() else ""
    after = run.string[run.end() : run.end() + 1]
    return run[0] if before.isalnum() and after.isalnum() else ""
