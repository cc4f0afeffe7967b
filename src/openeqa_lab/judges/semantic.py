"""A judge that compares meanings by word vectors: offline, on the processor, half a millisecond."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import metadata, util
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal, Protocol

from openeqa_lab.data.case import Case
from openeqa_lab.errors import OpenEQAError
from openeqa_lab.judges.lexical import agree_on_polarity, is_polar, normalise
from openeqa_lab.records import Answer, Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class _Vectors(Protocol):
    """What is used of wordllama."""

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """One row a text."""
        ...


class Semantic:
    """The cosine between the answer and the closest of the right answers, from 0 to 1.

    Word vectors put yes near no and two near three, so exact rules come first, for each right
    answer: the same text after `normalise` is 1; where `agree_on_polarity` decides, it decides;
    a bare yes or no that the answer does not echo, and numbers that are not the answer's own, are
    0; a bare number that the answer names (``there are 3``) is 1. The cosine has the rest.

    Raises:
        OpenEQAError: The package wordllama is not installed (extra ``semantic``).
    """

    def __init__(self) -> None:
        if util.find_spec("wordllama") is None:
            raise OpenEQAError(
                "the judge semantic needs the package wordllama, which is not installed: "
                "pip install 'openeqa-lab[semantic]', or choose judge=token_f1"
            )
        self._lock = Lock()

    @property
    def scale(self) -> Literal["1-5", "0-1"]:
        """Scores alone."""
        return "0-1"

    @property
    def identity(self) -> Mapping[str, object]:
        """Name and version of the rules, and the package that holds the vectors."""
        return {"name": "semantic", "version": 1, "wordllama": metadata.version("wordllama")}

    async def judge(self, case: Case, answer: Answer, /) -> Verdict:
        """The best verdict over the right answers."""
        right = (case.answer, *case.extra_answers)
        ruled = [_by_rule(answer.text, reference) for reference in right]
        best = max((score for score in ruled if score is not None), default=0.0)
        close = [text for text, score in zip(right, ruled, strict=True) if score is None]
        if close and best < 1.0:
            best = max(best, await asyncio.to_thread(self._closest, answer.text, close))
        return Verdict(best)

    def _closest(self, prediction: str, references: Sequence[str]) -> float:
        import numpy as np

        with self._lock:
            vectors = self._vectors.embed([prediction, *references])
        lengths = np.linalg.norm(vectors, axis=1)
        # A text of no known word has the vector 0, and is close to nothing.
        units = vectors / np.where(lengths > 0, lengths, 1)[:, None]
        return float(np.clip((units[1:] @ units[0]).max(), 0, 1))

    @cached_property
    def _vectors(self) -> _Vectors:
        import wordllama

        # Its own folder, since without network it looks for the tokenizer where it is not.
        folder = Path(wordllama.__file__).parent
        try:
            found: _Vectors = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
        except OSError as error:
            raise OpenEQAError(
                f"the judge semantic cannot load the word vectors in {folder} ({error}): install "
                f"them again with pip install --force-reinstall wordllama"
            ) from error
        return found


def _by_rule(prediction: str, reference: str) -> float | None:
    """1 or 0 where a rule decides, None where meaning has to."""
    agree = agree_on_polarity(prediction, reference)
    if agree is not None:
        return float(agree)
    said, meant = normalise(prediction), normalise(reference)
    if said == meant:
        return 1.0
    if is_polar(reference) and " " not in meant:
        return 0.0
    numbers = _numbers(meant)
    if numbers != _numbers(said):
        return 0.0 if numbers else None
    return 1.0 if numbers and _NUMBER.fullmatch(meant) else None


_NUMBER = re.compile(r"(?<!\S)\d+(?:\.\d+)*(?!\S)")


def _numbers(text: str) -> Counter[str]:
    """The numbers of a normalised text; a 1 within it is more often a pronoun, as in left one."""
    return Counter(
        found[0] for found in _NUMBER.finditer(text) if found[0] != "1" or found.start() == 0
    )
