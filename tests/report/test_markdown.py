from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from openeqa_lab.report.markdown import clip, escape, number, table

HOSTILE = [
    "</script><script>document.title='pwned'</script>",
    "<img src=x onerror=\"document.title='pwned'\">",
    "a | b | c\nsecond line",
    "`code` **bold** [link](javascript:alert(1))",
    "50% of A&B_C #1 $x$ {y} ~ ^ \\ end",
    "<b>bold?</b> & &amp; &lt;",
    "\\| \\\\| ends in \\",
    "``` fence ``` and `|` and ||",
    "![picture](x.png) <https://a.b> &#124; &nbsp; &copy",
    "~~struck~~ _it_ *it* __b__ ***",
    "# heading #",
    "- item\n1. item\n> quote\n---\n    code",
    " outer blanks\t",
    "  ",
    "",
    "${total} {A; B} 100% ${oc.env:HOME}",
    "日本語 é 🛋️ \u202eabc",
    "[^1]: note [x] [ref]: http://a.b",
    "a\n\n\nb",
]


def cells(markdown: str) -> list[list[str]]:
    """The rows of the tables as a reader sees their text, line breaks as such."""
    rows: list[list[str]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and token.level == 4:  # within a cell
            rows[-1].append("".join(_text(child) for child in token.children or ()))
        elif token.type == "inline":
            rows.append(["outside a table: " + token.content])
    return rows


def _text(token) -> str:
    if token.type == "text":
        return token.content
    if token.type == "html_inline" and token.content == "<br>":
        return "\n"
    return f"({token.type}: {token.content})"  # whatever is not plain text shows up in a comparison


@pytest.mark.parametrize("text", HOSTILE)
def test_foreign_text_shows_letter_for_letter_in_a_cell(text):
    page = table(("one", "two", "three"), [("1", escape(text), "3"), (escape(text), "2", "3")])
    assert cells(page) == [["one", "two", "three"], ["1", text, "3"], [text, "2", "3"]]


@pytest.mark.parametrize("text", HOSTILE)
def test_foreign_text_shows_letter_for_letter_in_a_heading_and_a_line(text):
    page = f"# Run {escape(text)}.\n\nAsked: {escape(text)}.\n"
    inlines = [t for t in MarkdownIt("commonmark").enable("table").parse(page) if t.children]
    shown = ["".join(map(_text, token.children)) for token in inlines]
    assert shown == [f"Run {text}.", f"Asked: {text}."]


def test_carriage_returns_are_line_breaks_and_control_characters_become_visible():
    assert escape("a\r\nb\rc") == "a<br>b<br>c"
    assert escape("\x1b[31mred\x00\x7f") == "␛\\[31mred␀␡"


def test_a_long_text_says_how_long_it_was():
    assert clip("a" * 500) == "a" * 500
    assert clip("a" * 1234) == "a" * 500 + " … (1,234 characters in all)"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0, "0"), (1636.0, "1,636"), (0.12345, "0.123"), (1234.56, "1,234.6")],
)
def test_figures_of_unknown_size_are_short(value, shown):
    assert number(value) == shown
