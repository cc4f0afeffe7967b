"""Marks are read off replies by three rules: with care, as upstream does, as the node set does."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.judges.parsers import MarkParser, Nodeset, Robust, Upstream

PUBLIC_REPLIES: list[tuple[str, int | None]] = [
    ("4", 4),
    ("4\n", 4),
    ("  5 ", 5),
    ("**4**", 4),
    ("3/5", 3),
    ("4.", 4),
    ("Your mark: 2", 2),
    ("your mark:3", 3),
    ("**Your mark:** 4", 4),
    ("Your mark: **4**", 4),
    ("Your mark: 5/5", 5),
    ("Your mark: 4 (close enough)", 4),
    ("Your mark:\n4", 4),
    ("The answer names the wrong room.\n\nYour mark: 1", 1),
    ("Your mark: 2\nOn second thought the colour fits.\nYour mark: 4", 4),
    ("The relevance score is 7.", None),
    ("I rate this an 8 out of 10.", None),
    ("I rate this a 4 out of 5.", None),
    ("This should be a 10!", None),
    ("Irrelevant text 123 Main Street.", None),
    ("0.8", None),
    ("85.5", None),
    ("1.0", None),
    ("the score is [[7]]. In short, 7/10", None),
    ("Your mark: 7", None),
    ("Your mark: 0", None),
    ("Your mark: -3", None),
    ("Your mark: 3.5", None),
    ("Your mark: four", None),
    ("Your mark:", None),
    ("", None),
    ("I'm sorry, I can't evaluate this.", None),
    ("There are 2 chairs and 3 lamps in the response.", None),
]


@pytest.mark.parametrize(("reply", "mark"), PUBLIC_REPLIES)
def test_replies_of_public_bug_reports(reply: str, mark: int | None) -> None:
    assert Robust().parse(reply) == mark


def test_the_table_above_is_the_whole_file(shared: Path) -> None:
    with (shared / "cases/judge_replies.csv").open(newline="") as file:
        rows = [(row["reply"], row["right_value"]) for row in csv.DictReader(file)]

    assert rows == [(reply, str(mark or "unparsed")) for reply, mark in PUBLIC_REPLIES]


@pytest.mark.parametrize(
    ("reply", "mark"),
    [
        # the whole reply
        ("4 / 5", 4),
        ("4/5.", 4),
        ("`4`", 4),
        ("```\n4\n```", 4),
        ("```text\n4\n```", 4),
        ("~~~\n4\n~~~", 4),
        ("# 4", 4),
        ("> 4", 4),
        ("_4_", 4),
        ("４", 4),
        ("𝟒", 4),
        ("٤", 4),
        ("\u200e4\u200f", 4),
        ("\ufeff4", 4),
        ("\xa04\xa0", 4),
        ("6", None),
        ("0", None),
        ("-4", None),
        ("- 4", None),
        ("+4", None),
        ("−4", None),
        ("04", None),
        ("4/10", None),
        ("4/", None),
        ("4/5/5", None),
        ("4.5", None),
        ("4,5", None),
        ("4.0", None),
        ("4..", None),
        ("4!", None),
        ("4%", None),
        ("4 5", None),
        ("4\n5", None),
        ("4*5", None),
        ("4_5", None),
        ("45", None),
        ("4 out of 5", None),
        ("²", None),
        ("₄", None),
        ("½", None),
        ("4½", None),
        ("4²", None),
        ("'4'", None),
        ("four", None),
        ("mark 4", None),
        ("Mark: 4", None),
        ("4" * 5000, None),
        (" \n\t ", None),
        ("***", None),
        # behind a tag
        ("YOUR MARK: 4", 4),
        ("Your  mark : 4", 4),
        ("Your\nmark: 4", 4),
        ("Your mark：４", 4),
        ("Your mark: \u200f٤", 4),
        ("Your mark: 4.0", 4),
        ("Your mark: 4.00/5", 4),
        ("Your mark: 4.", 4),
        ("Your mark: 4!", 4),
        ("Your mark: 4, since the colour fits", 4),
        ("Your mark: 4 - the colour fits", 4),
        ("Your mark: 4 — the colour fits", 4),
        ("Your mark: 4—the colour fits", 4),
        ("Your mark: 4\n1. The colour fits.", 4),
        ("Your mark: 4. 2 chairs are named.", 4),
        ("Your mark: 4 / 5", 4),
        ("Your mark: 4 out of 5", 4),
        ("Your mark: 4 of 5.", 4),
        ("Your mark: [4]", 4),
        ('Your mark: "4"', 4),
        ("Your mark: (4)", 4),
        ("Your mark: `4`", 4),
        ("Your mark: __4__/5", 4),
        ("### Your mark: 4", 4),
        ("```\nYour mark: 4\n```", 4),
        ("Your mark:\n\n\n4", 4),
        ("Your mark:\n```\n4\n```", 4),
        ("Your mark: 4.0.1", None),
        ("Your mark: 4.01", None),
        ("Your mark: 4,5", None),
        ("Your mark: 4/10", None),
        ("Your mark: 4 / 10", None),
        ("Your mark: 4⁄10", None),
        ("Your mark: 4 ∕ 10", None),
        ("Your mark: 4/x", None),
        ("Your mark: 4 out of 10", None),
        ("Your mark: 4 out of ten", None),
        ("Your mark: 40", None),
        ("Your mark: 04", None),
        ("Your mark: 4%", None),
        ("Your mark: 4 %", None),
        ("Your mark: 4e0", None),
        ("Your mark: 4th", None),
        ("Your mark: 4-5", None),
        ("Your mark: 4 - 5", None),
        ("Your mark: 4–5", None),
        ("Your mark: 4..5", None),
        ("Your mark: 4 or 5", None),
        ("Your mark: 4 or maybe 5", None),
        ("Your mark: 4 to 5", None),
        ("Your mark: 4, 5", None),
        ("Your mark: 4 5", None),
        ("Your mark: 4*5", None),
        ("Your mark: 4-ish", None),
        ("Your mark: [1-5]", None),
        ("Your mark: [4, 5]", None),
        ("Your mark: 4½", None),
        ("Your mark: ½", None),
        ("Your mark: 4²", None),
        ("Your mark: 3 1/2", None),
        ("Your mark: 3 and a half", None),
        ("Your mark: +4", None),
        ("Your mark: −4", None),
        ("Your mark: - 4", None),
        ("Your mark: about 4", None),
        ("Your mark: N", None),
        ("Your mark: N/A\n4", None),
        ("Your mark is 4", None),
        ("Your marks: 4", None),
        ("Not-your mark: 4", 4),
        ("Allyour mark: 4", None),
        ('{"score": 4}', None),
        ('{"Your mark": 4}', None),
        ("Your mark: 4" + "0" * 5000, None),
        # the last tag decides
        ("Your mark: 4\nYour mark: 9", None),
        ("Your mark: 4\nYour mark:", None),
        ("Your mark: N\nYour mark: 4", 4),
        ("Your mark: 4 Your mark: 2", 2),
        # the whole line of a public report on each scale
        ("I would rate your answer as 10.", None),
        ("I cannot evaluate this", None),
        ("On a scale of 1 to 5, I would give this a 4.", None),
        # reasoning is not the reply
        ("<think>Your mark: 1</think>Your mark: 4", 4),
        ("<think>Your mark: 1</think>\n\n4", 4),
        ("<THINK>Your mark: 1</THINK> 4", 4),
        ("<thinking>1</thinking><think>2</think>4", 4),
        ("[THINK]Your mark: 1[/THINK]Your mark: 4", 4),
        ("Your mark: 4 <think>or Your mark: 2?</think>", 4),
        ("Your mark: 1, no.</think>Your mark: 4", 4),
        ("1</think>4", 4),
        ("<think>Your mark: 1", None),
        ("<think>Your mark: 1</think>", None),
        ("Your mark: 4<think>Your mark: 1", 4),
        ("<think>a <think>Your mark: 1</think> Your mark: 2</think> Your mark: 4", 4),
        ("<think></think>", None),
    ],
)
def test_the_robust_rules(reply: str, mark: int | None) -> None:
    assert Robust().parse(reply) == mark


@pytest.mark.parametrize(
    "reply",
    [
        " " * 1_000_000,
        "\n" * 1_000_000,
        "Your mark:" + " " * 1_000_000 + "x",
        "Your mark: 4" + " " * 1_000_000 + "5",
        "Your mark: " * 100_000,
        "your " * 200_000,
        "4" * 1_000_000,
        "Your mark: " + "4" * 1_000_000,
        "4/" * 500_000,
        "Your mark: 4" + "-" * 1_000_000,
        "<think>" * 150_000,
        "</think>" * 150_000,
        "<" * 1_000_000,
        "*" * 1_000_000,
        "a*" * 500_000,
        "`" * 1_000_000,
        "#" * 1_000_000,
        "# \n" * 300_000,
        "\ufdfa" * 50_000,
        "½" * 500_000,
    ],
    ids=lambda reply: f"{reply[:14]!r}",
)
@pytest.mark.parametrize("parser", [Robust(), Upstream(), Nodeset()])
def test_a_reply_of_a_megabyte_is_read_at_once(reply: str, parser: MarkParser) -> None:
    # A second at most; a pattern that backtracks takes hours, and the suite hangs here.
    parser.parse(reply)


@pytest.mark.parametrize(
    ("parser", "reply", "mark"),
    [
        (Robust(lowest=0, highest=100), "Your mark: 85", 85),
        (Robust(lowest=0, highest=100), "Your mark: 85/100", 85),
        (Robust(lowest=0, highest=100), "Your mark: 4/5", None),
        (Robust(lowest=0, highest=1), "0", 0),
        (Robust(tag="Final grade (1-5)"), "final GRADE (1-5): 3", 3),
        (Robust(tag="Final grade (1-5)"), "Your mark: 3", None),
    ],
)
def test_another_scale_and_tag(parser: Robust, reply: str, mark: int | None) -> None:
    assert parser.parse(reply) == mark


@pytest.mark.parametrize(
    ("tag", "lowest", "highest", "message"),
    [
        (" ", 1, 5, "parser.tag is ' '"),
        ("Your mark:", 1, 5, "without the colon"),
        ("Your mark", 5, 5, "parser.lowest is 5 and parser.highest 5"),
        ("Your mark", -1, 5, "lowest must be at least 0"),
    ],
)
def test_a_scale_that_is_none_is_refused(tag: str, lowest: int, highest: int, message: str) -> None:
    with pytest.raises(OpenEQAError, match=message):
        Robust(tag, lowest, highest)


@pytest.mark.parametrize(
    ("reply", "mark"),
    [
        ("5", 5),
        ("10", 5),
        ("0", 1),
        ("٤", 4),
        ("Your mark: 4", 4),
        ("Your mark:4\n", 4),
        ("So. Your mark: 4\nbecause", 4),
        ("Your mark: 10", 5),
        ("Your mark: 0", 1),
        ("Your mark: -1", 1),
        ("Your mark: +4", 4),
        ("Your mark: 1_0", 5),
        ("Your mark: 1\nYour mark: 5", 1),
        ("Your mark: Your mark: 3", 3),
        ("5\n", None),
        (" 5", None),
        ("Your mark: 5.", None),
        ("Your mark: 4 (close)", None),
        ("**Your mark:** 4", None),
        ("Your mark: 4/5", None),
        ("Your mark:\n4", None),
        ("your mark: 4", None),
        ("```\n5\n```", None),
        ("", None),
        ("²", None),
        ("five", None),
        ('{"score": 4}', None),
        ("On a scale of 1 to 5, I would give this a 4.", None),
        ("9" * 5000, None),
    ],
)
def test_upstreams_rules(reply: str, mark: int | None) -> None:
    assert Upstream().parse(reply) == mark


@pytest.mark.parametrize(
    ("reply", "mark"),
    [
        ("4", 4),
        (" 4\n", 4),
        ("05", 5),
        ("６", None),
        ("４", 4),
        ("Your mark: 4", 4),
        ("Your mark:\n\n4", 4),
        ("3 of 5. Your mark: 4", 4),
        ("Your mark: 1\nYour mark: 5", 1),
        ("your mark: 4", 4),
        ("2 words; your mark: 4", 2),
        ("Your mark: 10", 1),
        ("Your mark: -1", 1),
        ("Your mark: 7", None),
        ("On a scale of 1 to 5, I would give this a 4.", 1),
        ('{"score": 4}', 4),
        ("**4**", 4),
        ("3.5", 3),
        ("0.8", None),
        ("10", None),
        ("0", None),
        ("45", None),
        ("4th", None),
        ("five", None),
        ("²", None),
        ("", None),
        ("9" * 5000, None),
    ],
)
def test_the_node_sets_rules(reply: str, mark: int | None) -> None:
    assert Nodeset().parse(reply) == mark


@pytest.mark.parametrize("parser", [Robust(), Upstream(), Nodeset()])
@pytest.mark.parametrize("reply", [reply for reply, _ in PUBLIC_REPLIES])
def test_a_mark_is_never_outside_the_scale(parser: MarkParser, reply: str) -> None:
    mark = parser.parse(reply)

    assert mark is None or parser.lowest <= mark <= parser.highest


def test_parsers_are_told_apart_by_their_identity() -> None:
    identities = [Robust(), Robust(tag="Mark"), Robust(highest=10), Upstream(), Nodeset()]

    assert len({str(parser.identity) for parser in identities}) == 5


@pytest.mark.parametrize(
    "reply", ["Your mark: 3 \u00bd", "Your mark: 3\u00bd", "Your mark: 4 \u2153"]
)
def test_a_fraction_beside_a_mark_is_no_whole_mark(reply: str) -> None:
    assert Robust().parse(reply) is None
