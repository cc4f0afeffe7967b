from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openeqa_lab.data.case import Question
from openeqa_lab.data.episode import Frame, RawFrame
from openeqa_lab.errors import FrameError, OpenEQAError
from openeqa_lab.sampling import All, FirstLastMiddle, Last, Linspace, Random, Sampler, Stride

QUESTION = Question("q-1", "Where is the kettle?")


class Unopened:
    """A source whose frames nobody may open: samplers choose by index alone."""

    key = "hm3d-v0/000-scene"

    def path(self, index: int) -> str:
        return f"{self.key}/{index:05}-rgb.png"

    def read(self, indices: Sequence[int]) -> Sequence[RawFrame]:
        raise AssertionError("a sampler opened a frame")

    def sha256(self, index: int) -> str | None:
        return None


def chosen(sampler: Sampler, n: int, question: Question = QUESTION) -> list[int]:
    source = Unopened()
    frames = [Frame(source, index) for index in range(n)]
    return [frame.index for frame in sampler.sample(frames, question)]


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


# 1000 frames and k = 64, where one uniform formula is easily passed off as another.
EVERY_16TH = _numbers(
    "0 16 31 47 62 78 94 109 125 141 156 172 188 203 219 234 250 266 281 297 312 328 344 359 "
    "375 391 406 422 438 453 469 484 500 516 531 547 562 578 594 609 625 641 656 672 688 703 "
    "719 734 750 766 781 797 812 828 844 859 875 891 906 922 938 953 969 984"
)
OVER_1000 = _numbers(
    "0 16 32 48 63 79 95 111 127 143 159 174 190 206 222 238 254 270 285 301 317 333 349 365 "
    "381 396 412 428 444 460 476 492 507 523 539 555 571 587 603 618 634 650 666 682 698 714 "
    "729 745 761 777 793 809 825 840 856 872 888 904 920 936 951 967 983 999"
)

# n, k, stride, first_last_middle, linspace, last
TABLE: list[tuple[int, int, list[int], list[int], list[int], list[int]]] = [
    (1, 1, [0], [0], [0], [0]),
    (1, 5, [0], [0], [0], [0]),
    (2, 1, [0], [1], [0], [1]),
    (2, 2, [0, 1], [0, 1], [0, 1], [0, 1]),
    (3, 1, [0], [1], [0], [2]),
    (3, 2, [0, 2], [0, 2], [0, 2], [1, 2]),
    (3, 5, [0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2]),
    (4, 3, [0, 1, 3], [0, 2, 3], [0, 2, 3], [1, 2, 3]),
    (5, 1, [0], [2], [0], [4]),
    (5, 3, [0, 2, 3], [0, 2, 4], [0, 2, 4], [2, 3, 4]),
    (5, 4, [0, 1, 2, 4], [0, 1, 3, 4], [0, 1, 3, 4], [1, 2, 3, 4]),
    (10, 3, [0, 3, 7], [0, 4, 9], [0, 4, 9], [7, 8, 9]),
    # A step of 15/13 added up in floats would give fourteen indices.
    (
        15,
        13,
        [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 12, 13, 14],
        [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14],
        [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14],
        [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
    ),
    (
        69,
        15,
        [0, 5, 9, 14, 18, 23, 28, 32, 37, 41, 46, 51, 55, 60, 64],
        [0, 5, 10, 15, 19, 24, 29, 34, 39, 44, 49, 53, 58, 63, 68],
        [0, 5, 10, 15, 19, 24, 29, 34, 39, 44, 49, 53, 58, 63, 68],
        [54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68],
    ),
    (1000, 64, EVERY_16TH, OVER_1000, OVER_1000, list(range(936, 1000))),
]


@pytest.mark.parametrize(("n", "k", "stride", "first_last_middle", "linspace", "last"), TABLE)
def test_each_strategy_is_its_formula(
    n: int,
    k: int,
    stride: list[int],
    first_last_middle: list[int],
    linspace: list[int],
    last: list[int],
) -> None:
    assert chosen(Stride(k), n) == stride
    assert chosen(FirstLastMiddle(k), n) == first_last_middle
    assert chosen(Linspace(k), n) == linspace
    assert chosen(Last(k), n) == last


def test_the_public_table_of_cases_holds(shared: Path) -> None:
    rows = list(
        csv.DictReader(
            (shared / "cases/sampler_cases.csv").read_text(encoding="utf-8").splitlines()
        )
    )
    assert len(rows) > 15
    for row in rows:
        n, k = int(row["n"]), int(row["k"])
        for name, strategy in (
            ("stride", Stride),
            ("first_last_middle", FirstLastMiddle),
            ("linspace", Linspace),
            ("last", Last),
        ):
            if row[name] == "error":
                with pytest.raises(OpenEQAError):
                    chosen(strategy(k), n)
            else:
                assert chosen(strategy(k), n) == json.loads(row[name]), (name, n, k)


@pytest.mark.parametrize(
    ("n", "k", "position", "by_formula", "by_numpy"),
    [(26, 23, 11, 12, 13), (30, 15, 7, 14, 15), (30, 29, 14, 14, 15)],
)
def test_first_last_middle_meets_halves_exactly_where_linspace_does_not(
    n: int, k: int, position: int, by_formula: int, by_numpy: int
) -> None:
    assert chosen(FirstLastMiddle(k), n)[position] == by_formula
    assert chosen(Linspace(k), n)[position] == by_numpy


SAMPLERS = [Stride(7), FirstLastMiddle(7), Linspace(7), Last(7), Random(7), All()]


@pytest.mark.parametrize("strategy", [Stride, FirstLastMiddle, Linspace, Last, Random])
@given(n=st.integers(1, 1500), k=st.integers(1, 200))
def test_indices_are_sorted_unique_within_range_and_as_many_as_asked(
    strategy: type[Stride], n: int, k: int
) -> None:
    indices = chosen(strategy(k), n)
    assert len(indices) == min(n, k)
    assert indices == sorted(set(indices))
    assert indices[0] >= 0
    assert indices[-1] < n


@given(n=st.integers(1, 1500), k=st.integers(1, 200))
def test_linspace_is_upstreams_formula(n: int, k: int) -> None:
    if k < n:
        assert chosen(Linspace(k), n) == np.round(np.linspace(0, n - 1, k)).astype(int).tolist()


@pytest.mark.parametrize("k", [1, 2, 50])
@pytest.mark.parametrize("strategy", [Stride, FirstLastMiddle, Linspace, Last, Random])
def test_a_one_frame_episode_shows_its_frame(strategy: type[Stride], k: int) -> None:
    assert chosen(strategy(k), 1) == [0]
    assert chosen(All(), 1) == [0]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_an_episode_without_frames_is_an_error_that_names_the_question(sampler: Sampler) -> None:
    with pytest.raises(
        FrameError, match=r"question 'q-1': .* no frames .*episodes=unseen"
    ) as error:
        sampler.sample([], QUESTION)
    assert error.value.kind == "episode_missing"


@pytest.mark.parametrize("k", [0, -1, True, 1.0, 2.5, "5", None, [1, 5], float("nan")])
@pytest.mark.parametrize("strategy", [Stride, FirstLastMiddle, Linspace, Last, Random])
def test_a_k_that_is_no_count_is_refused_at_once(strategy: type[Stride], k: int) -> None:
    with pytest.raises(
        OpenEQAError, match=r"sampler\.k must be a whole number of at least 1, not "
    ):
        strategy(k)


@pytest.mark.parametrize("seed", [True, 1.5, "1", None])
def test_a_seed_that_is_no_whole_number_is_refused_at_once(seed: int) -> None:
    with pytest.raises(OpenEQAError, match=r"sampler\.seed must be a whole number, not "):
        Random(5, seed=seed)


@pytest.mark.parametrize("k", [50, 0, "all", False])
def test_all_refuses_a_k_that_it_would_have_to_drop(k: object) -> None:
    with pytest.raises(OpenEQAError, match=r"'all' shows every frame, but k is .*sampler\.k=null"):
        All(k)  # type: ignore[arg-type]


def test_all_shows_everything() -> None:
    assert chosen(All(), 700) == list(range(700))


def test_random_is_drawn_from_question_and_seed_alone() -> None:
    drawn = chosen(Random(5, seed=3), 100)
    assert drawn == [45, 60, 69, 82, 92]  # pinned: the draw is part of a run's identity
    assert chosen(Random(5, seed=3), 100, Question("q-1", "Other words?")) == drawn
    assert chosen(Random(5, seed=3), 100, Question("q-2", QUESTION.text)) != drawn
    assert chosen(Random(5, seed=4), 100) != drawn
    assert chosen(Random(5, seed=-3), 100) != drawn


def test_random_is_the_same_in_another_process() -> None:
    program = (
        "from openeqa_lab.sampling import Random\n"
        "from openeqa_lab.data.case import Question\n"
        "print(list(Random(5, seed=3).sample(range(100), Question('q-1', ''))))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert outputs == {str(chosen(Random(5, seed=3), 100))}


@given(n=st.integers(2, 300), small=st.integers(1, 100), more=st.integers(0, 100))
def test_a_smaller_k_draws_a_subset(n: int, small: int, more: int) -> None:
    assert set(chosen(Random(small), n)) <= set(chosen(Random(small + more), n))


def test_random_draws_evenly_over_the_walk() -> None:
    draws = [
        index for i in range(400) for index in chosen(Random(5), 50, Question(f"question-{i}", ""))
    ]
    counts = np.bincount(draws, minlength=50)  # 2000 draws, 40 a frame, deviation 6
    assert counts.min() > 15
    assert counts.max() < 65


@pytest.mark.parametrize(
    ("sampler", "identity"),
    [
        (Stride(15), {"name": "stride", "k": 15}),
        (FirstLastMiddle(1), {"name": "first_last_middle", "k": 1}),
        (Linspace(50), {"name": "linspace", "k": 50}),
        (Last(5), {"name": "last", "k": 5}),
        (Random(50, seed=7), {"name": "random", "k": 50, "seed": 7}),
        (All(), {"name": "all"}),
    ],
)
def test_identity_holds_what_the_formula_takes(
    sampler: Sampler, identity: dict[str, object]
) -> None:
    assert sampler.identity == identity


def test_fewer_frames_than_asked_are_noted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="openeqa_lab.sampling"):
        chosen(Linspace(5), 3)
        chosen(Linspace(3), 3)
    assert caplog.messages == ["question 'q-1': all 3 frames are shown, fewer than k=5"]
