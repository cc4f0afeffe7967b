"""Markdown in which foreign text shows letter for letter and tables keep their columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

_MEANS_SOMETHING = re.compile(r"[\\`*_\[\]~#$|]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def escape(text: str) -> str:
    """Text that a Markdown reader shows as it is, also within a table cell.

    Line breaks become ``<br>``; control characters, which no reader can show, become the signs
    that Unicode has for them, so that printing a report cannot drive a terminal.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _CONTROL.sub(lambda found: chr(0x2400 + min(ord(found[0]), 0x21)), text)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = _MEANS_SOMETHING.sub(r"\\\g<0>", text)
    inner = text.strip(" \t")
    if inner != text:  # readers trim cells: outer blanks survive as character references only
        start = text.index(inner) if inner else len(text)
        before, after = text[:start], text[start + len(inner) :]
        text = _blanks(before) + inner + _blanks(after)
    return text.replace("\n", "<br>")


def _blanks(text: str) -> str:
    return "".join(f"&#{ord(blank)};" for blank in text)


def clip(text: str, limit: int = 500) -> str:
    """The beginning of a long text, saying how long it was."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]} … ({len(text):,} characters in all)"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """A table of cells that are Markdown already; the columns in `numbers` are set to the right."""
    right = set(numbers)
    rule = ["---:" if column in right else "---" for column in range(len(head))]
    lines = [head, rule, *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def number(value: float | None) -> str:
    """A figure of unknown size and unit in few digits; a dash where there is none."""
    if value is None:
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def settings_table(settings: Mapping[str, object]) -> str:
    """Nested settings, one a row, by their dotted names."""
    rows = [(escape(name), escape(clip(value))) for name, value in _leaves(settings)]
    return table(("setting", "value"), rows)


def _leaves(node: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            plain = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{prefix}{key}", plain
