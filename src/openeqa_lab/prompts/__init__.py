"""Prompt texts: our own ship here, upstream's are installed by `openeqa_lab.fetch prompts`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from openeqa_lab.errors import OpenEQAError

# Upstream's names, and what to choose instead of each where it is not installed.
UPSTREAM = {
    "mmbench": "judge=llm_match_own",
    "mmbench-extra": "judge=llm_match_own",
    "blind-llm": "reasoner=blind",
    "gpt4v": "reasoner=multi_frame",
    "claude3-vision": "reasoner=multi_frame",
    "gemini-pro-vision": "reasoner=multi_frame",
}


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt text with named slots such as ``{question}``.

    Only the slots that `fill` is given values for are slots. All other braces, ``%`` and ``$``
    stay as they are, in the text and in the values, so a prompt may hold a JSON example and a
    question may hold ``{question}``.

    Args:
        text: Without outer white space.
        name: As asked for, for messages and identities.
    """

    text: str
    name: str

    @property
    def sha256(self) -> str:
        """Of the text as it is used; belongs in the identity of whoever uses it."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def require(self, *slots: str) -> None:
        """Raises `OpenEQAError` when one of these slots (without braces) is not in the text."""
        for slot in slots:
            if "{" + slot + "}" not in self.text:
                raise OpenEQAError(
                    f"the prompt '{self.name}' has no slot {{{slot}}}: write it where the text "
                    f"shall hold the {slot.replace('_', ' ')}, or choose another prompt"
                )

    def fill(self, values: Mapping[str, str]) -> str:
        """The text with each slot replaced by its value, in one pass.

        Raises:
            OpenEQAError: A value has no slot in the text.
        """
        self.require(*values)
        return _fill(self.text, values)

    def around_frames(self, values: Mapping[str, str], marker: str) -> tuple[str, str]:
        """The filled text before and after the frames.

        Args:
            values: As for `fill`.
            marker: Where the text is split. A slot, ``{frames}``, gives way to the frames together
                with the white space around it; any other marker, such as upstream's
                ``User Query:``, begins the second part. A value that holds it does not matter.

        Raises:
            OpenEQAError: The marker is not in the text exactly once, or a value has no slot.
        """
        self.require(*values)
        count = self.text.count(marker) if marker else 0
        if count != 1:
            raise OpenEQAError(
                f"the prompt '{self.name}' holds the marker '{marker}' {count} times: the frames "
                f"are put at this marker, so it must stand there exactly once"
            )
        before, _, after = self.text.partition(marker)
        if re.fullmatch(r"\{\w+\}", marker):
            before, after = before.rstrip(), after.lstrip()
        else:
            after = marker + after
        return _fill(before, values), _fill(after, values)


def load(name: str, directory: str | Path | None = None) -> Template:
    """The prompt of this name.

    Args:
        name: One of our own texts (`own_names`), one of upstream's six (`UPSTREAM`), or the path
            of a text file of yours, recognised by its ending ``.txt``.
        directory: Where upstream's texts were installed, ``${data_dir}/prompts``.

    Raises:
        OpenEQAError: There is no such prompt, or its file cannot be used.
    """
    if name.endswith(".txt"):
        return Template(_read(Path(name), name), name)
    if name in UPSTREAM:
        return Template(_read_upstream(name, directory), name)
    if name in own_names():
        return Template(
            _decode((files(__name__) / f"{name}.txt").read_bytes(), name, "the package"), name
        )
    raise OpenEQAError(
        f"there is no prompt '{name}': take one of ours ({', '.join(own_names())}), one of "
        f"upstream's ({', '.join(UPSTREAM)}), or a path that ends in .txt"
    )


def own_names() -> tuple[str, ...]:
    """The names of the texts that ship with the package, sorted."""
    found = (item.name for item in files(__name__).iterdir() if item.name.endswith(".txt"))
    return tuple(sorted(name.removesuffix(".txt") for name in found))


def _read_upstream(name: str, directory: str | Path | None) -> str:
    path = None if directory is None else Path(directory) / f"{name}.txt"
    if path is None or not path.is_file():
        where = "no folder of prompts is set" if path is None else f"{path} is not there"
        raise OpenEQAError(
            f"the prompt '{name}' is upstream's and is not installed ({where}): run "
            f"`python -m openeqa_lab.fetch prompts`, or use our own wording, {UPSTREAM[name]}"
        )
    return _read(path, name)


def _read(path: Path, name: str) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise OpenEQAError(
            f"the prompt file {path} is not there: give the path of a text file"
        ) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OpenEQAError(f"the prompt file {path} cannot be read: {reason}") from error
    return _decode(content, name, str(path))


def _decode(content: bytes, name: str, where: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OpenEQAError(
            f"the prompt '{name}' ({where}) is not UTF-8 text (at byte {error.start}): "
            f"save it as UTF-8"
        ) from error
    # As a file opened for reading text gives it, and stripped as upstream strips it.
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip()
    if not text:
        raise OpenEQAError(f"the prompt '{name}' ({where}) is empty: write a text with its slots")
    return text


def _fill(text: str, values: Mapping[str, str]) -> str:
    if not values:
        return text
    slots = re.compile("|".join(re.escape("{" + slot + "}") for slot in values))
    return slots.sub(lambda match: values[match[0][1:-1]], text)
