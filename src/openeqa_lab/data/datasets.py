"""The questions of a benchmark, as a sequence of cases that can be narrowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import overload

from openeqa_lab.data.case import Case
from openeqa_lab.data.episode import Frame
from openeqa_lab.data.layouts import frames_of, open_source
from openeqa_lab.data.questions import (
    ALIASES,
    complete_aliases,
    decode_text,
    near,
    parse_json,
    read_bytes,
    read_questions,
)
from openeqa_lab.errors import OpenEQAError

SUBSETS: Mapping[str, Mapping[str, str]] = {
    "aeqa184": {
        "ids": "open-eqa-v0-184-questions.json",
        "sha256": "9e13357dbdc5a901e24661d1c2f452f0e1f5e7cc09c4e3bad5efdf71ba60bd36",
    }
}
"""Subsets by name: the file with their ids and their `hash_ids`."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a filter left of the questions before it; `filter` reads like ``split=hm3d``."""

    filter: str
    kept: int
    dropped: int


def hash_ids(ids: Sequence[str]) -> str:
    """The sha256 that names a set of questions: of its ids, sorted, one a line, UTF-8."""
    return sha256("\n".join(sorted(ids)).encode()).hexdigest()


class Dataset(Sequence[Case]):
    """The cases of a question file, in its order, after all filters.

    The file is a JSON list (or an object around one list) or a CSV file; `ALIASES` in
    `data.questions` says what its fields may be called. Filters are applied in the order subset,
    ids, split, category, limit; `kept` says what each of them left.

    Args:
        path: The question file.
        root: Where `frames` looks for episodes; by default the folder ``frames`` beside `path`.
        name: What the data set is called in identities and reports; by default the file's stem.
        aliases: The accepted names of a field, in place of those of the default table; an empty
            list leaves the field unread.
        split: One split or several, such as ``hm3d`` (or ``hm3d-v0``).
        category: One category or several.
        ids: A file with the ids to keep: a JSON list, or one id a line.
        subset: The name of a subset.
        subsets: What subsets there are: name to ``{ids: file, sha256: of the sorted ids}``; a
            file without a folder is looked for beside `path`. By default those of OpenEQA.
        limit: Keep the first so many questions; None for all.

    Raises:
        OpenEQAError: The file or a filter cannot be used, or no question is left.
    """

    def __init__(
        self,
        path: str | Path,
        root: str | Path | None = None,
        name: str = "",
        aliases: Mapping[str, Sequence[str] | str] | None = None,
        split: str | Sequence[str] | None = None,
        category: str | Sequence[str] | None = None,
        ids: str | Path | None = None,
        subset: str | None = None,
        subsets: Mapping[str, Mapping[str, str]] | None = None,
        limit: int | None = None,
    ) -> None:
        self.path = Path(path)
        self.root = self.path.parent / "frames" if root is None else Path(root)
        self.name = name or self.path.stem
        self._subsets = SUBSETS if subsets is None else subsets
        self._aliases = complete_aliases(aliases)
        self._file, self.sha256 = read_questions(self.path, self._aliases)
        self._cases: tuple[Case, ...] = self._file
        self.kept: tuple[Kept, ...] = ()
        chosen = self if subset is None else self.subset(subset)
        chosen = chosen.filter(ids=ids, split=split, category=category)
        chosen = chosen if limit is None else chosen.limit(limit)
        self._cases, self.kept = chosen._cases, chosen.kept

    @overload
    def __getitem__(self, index: int) -> Case: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Case, ...]: ...
    def __getitem__(self, index: int | slice) -> Case | tuple[Case, ...]:
        return self._cases[index]

    def __len__(self) -> int:
        return len(self._cases)

    def __repr__(self) -> str:
        steps = "".join(f", {step.filter}: {step.kept}" for step in self.kept)
        return f"<Dataset {self.name}: {len(self)} of {len(self._file)} questions{steps}>"

    @property
    def identity(self) -> Mapping[str, object]:
        """The hash of the question file, and own aliases, as they say what is read of it.

        Filters are not part of it: more questions of one file go on with one run.
        """
        own = {
            field: list(names) for field, names in self._aliases.items() if names != ALIASES[field]
        }
        return {"sha256": self.sha256} | ({"aliases": own} if own else {})

    @property
    def whole(self) -> tuple[Case, ...]:
        """All the cases of the file, before any filter."""
        return self._file

    @property
    def ids_sha256(self) -> str:
        """Names the set of questions that is left, whichever filters led to it: `hash_ids`."""
        return hash_ids([case.id for case in self])

    def frames(self, case: Case) -> tuple[Frame, ...]:
        """The frames of the case's episode, not yet opened: for notebooks; runs use `Recorded`.

        Raises:
            FrameError: The episode is not there or holds no frames.
        """
        return frames_of(open_source(self.root, case.episode))

    def filter(
        self,
        *,
        ids: str | Path | Sequence[str] | None = None,
        split: str | Sequence[str] | None = None,
        category: str | Sequence[str] | None = None,
    ) -> Dataset:
        """The cases that have one of the values given for each filter; None does not filter.

        `ids` is a file or the ids themselves.
        """
        chosen = self
        if ids is not None:
            if isinstance(ids, str | Path):
                named, label = _read_ids(Path(ids)), f"ids={ids}"
            else:
                named, label = tuple(ids), "ids"
            chosen = chosen._keep_ids(label, named)
        if split is not None:
            splits = {value.removesuffix("-v0") for value in _several("split", split)}
            chosen = chosen._keep_values("split", splits, lambda case: case.split)
        if category is not None:
            categories = set(_several("category", category))
            chosen = chosen._keep_values("category", categories, lambda case: case.category)
        return chosen

    def subset(self, name: str) -> Dataset:
        """The cases of a named subset, whose id list is checked against its hash."""
        if name not in self._subsets:
            raise OpenEQAError(
                f"Unknown subset {name!r} of {self.name}: expected one of "
                f"{', '.join(self._subsets) or 'none'}{near(name, self._subsets)} "
                "(a list of ids of your own: dataset.ids)"
            )
        named = self._subsets[name]
        if set(named) != {"ids", "sha256"}:
            raise OpenEQAError(
                f"subsets.{name} has the entries {', '.join(named) or 'none'}: expected ids (a "
                "file) and sha256 (of its sorted ids)"
            )
        path = Path(named["ids"])
        path = path if path.name != str(path) else self.path.parent / path
        ids = _read_ids(path)
        found = hash_ids(ids)
        if found != named["sha256"]:
            raise OpenEQAError(
                f"{path} is not the list of subset {name!r}: its {len(ids)} sorted ids have "
                f"sha256 {found}, expected {named['sha256']}; `python -m openeqa_lab.fetch "
                "questions --force` brings the official list"
            )
        return self._keep_ids(f"subset={name}", ids)

    def limit(self, count: int) -> Dataset:
        """The first `count` cases."""
        if isinstance(count, bool) or count < 1:
            raise OpenEQAError(f"limit is {count}: expected 1 or more, or null for all questions")
        return self._with(f"limit={count}", self._cases[:count])

    def _with(self, label: str, cases: tuple[Case, ...]) -> Dataset:
        narrowed = copy(self)
        narrowed._cases = cases
        narrowed.kept = (*self.kept, Kept(label, len(cases), len(self) - len(cases)))
        return narrowed

    def _keep_ids(self, label: str, ids: Sequence[str]) -> Dataset:
        known = {case.id for case in self._file}
        unknown = [name for name in dict.fromkeys(ids) if name not in known]
        if unknown:
            raise OpenEQAError(
                f"{len(unknown)} of {len(set(ids))} ids ({label}) are not in {self.path}, such as "
                f"{unknown[0]!r}{near(unknown[0], known)}"
            )
        wanted = set(ids)
        return self._some(label, tuple(case for case in self if case.id in wanted), ())

    def _keep_values(self, field: str, wanted: set[str], value: Callable[[Case], str]) -> Dataset:
        known = {value(case) for case in self._file}
        unknown = sorted(wanted - known)
        if unknown:
            raise OpenEQAError(
                f"Unknown {field} {unknown[0]!r}: {self.path} has "
                f"{_listed(known)}{near(unknown[0], known)}"
            )
        label = f"{field}={','.join(sorted(wanted))}"
        left = tuple(case for case in self if value(case) in wanted)
        return self._some(label, left, {value(case) for case in self})

    def _some(self, label: str, left: tuple[Case, ...], present: set[str] | tuple[()]) -> Dataset:
        narrowed = self._with(label, left)
        if not left:
            steps = ", then ".join(
                f"{step.filter} kept {step.kept} of {step.kept + step.dropped}"
                for step in narrowed.kept
            )
            there = f"; before it there were {_listed(present)}" if present else ""
            raise OpenEQAError(f"No question of {self.path} is left: {steps}{there}")
        return narrowed


def _several(field: str, values: str | Sequence[str]) -> Sequence[str]:
    if not values:
        raise OpenEQAError(f"{field} names nothing: expected one or several, or null for all")
    return [values] if isinstance(values, str) else values


def _listed(values: set[str] | tuple[()]) -> str:
    return ", ".join(repr(value) if value else "questions without one" for value in sorted(values))


def _read_ids(path: Path) -> tuple[str, ...]:
    content = read_bytes(
        path,
        "expected a file of ids (`python -m openeqa_lab.fetch questions` brings the official "
        "subsets)",
    )
    text = decode_text(path, content)
    if text.lstrip()[:1] not in ("[", "{"):
        ids = tuple(line.strip() for line in text.split("\n") if line.strip())
    else:
        value = parse_json(path, text)
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise OpenEQAError(f"{path}: expected a JSON list of ids in quotes, or one id a line")
        ids = tuple(value)
    if not ids:
        raise OpenEQAError(f"{path} names no ids: expected a JSON list, or one id a line")
    return ids
