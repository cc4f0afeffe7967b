"""The bootstrap over episodes."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from openeqa_lab.metrics.intervals import Interval, cluster_bootstrap


def interval(values: dict[str, list[float]], resamples: int = 10_000, seed: int = 0) -> Interval:
    found = cluster_bootstrap(values, resamples=resamples, seed=seed)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", [0, 1, 1234])
def test_the_exact_bootstrap_of_the_public_case(shared: Path, seed: int) -> None:
    case = json.loads((shared / "cases/marks.json").read_text())
    exact = case["right"]["bootstrap_exact"]
    values: dict[str, list[float]] = {}
    for row in case["marks"]:
        values.setdefault(row["episode_history"], []).append(25 * (row["mark"] - 1))

    found = interval(values, seed=seed)

    assert abs(found.error - exact["se"]) < 4 * exact["se"] / math.sqrt(2 * 10_000)
    assert (found.low, found.high) == (exact["p2_5_linear"], exact["p97_5_linear"])


def test_a_draw_is_a_ratio_of_sums() -> None:
    # One episode of one question, one of three: draws give 100, 0, and 25, never 50.
    found = interval({"a": [100.0], "b": [0.0, 0.0, 0.0]})

    assert (found.low, found.high) == (0.0, 100.0)
    assert found.error == pytest.approx(np.std([100, 25, 25, 0]), rel=0.02)


def test_the_order_of_episodes_and_values_does_not_matter() -> None:
    generator = np.random.default_rng(3)
    values = {f"e{i}": list(generator.random(i % 5 + 1)) for i in range(20)}
    turned = {name: values[name][::-1] for name in reversed(values)}

    assert interval(values) == interval(turned)


def test_a_seed_gives_one_interval_and_another_seed_another() -> None:
    values = {f"e{i}": [float(i % 7)] for i in range(20)}

    assert interval(values, seed=5) == interval(values, seed=5)
    assert interval(values, seed=5) != interval(values, seed=6)


def test_drawing_in_parts_changes_nothing_but_memory() -> None:
    # More clusters than fit at once are drawn row by row.
    values = {f"e{i}": [float(i % 2)] for i in range(1500)}

    found = interval(values, resamples=2000)

    assert found.error == pytest.approx(0.5 / math.sqrt(1500), rel=0.1)
    assert found.low < 0.5 < found.high


@pytest.mark.parametrize("values", [{}, {"a": [1.0, 0.0]}, {"a": [1.0], "b": []}])
def test_fewer_than_two_episodes_have_no_interval(values: dict[str, list[float]]) -> None:
    assert cluster_bootstrap(values, resamples=10, seed=0) is None


def test_equal_episodes_have_an_interval_of_no_width() -> None:
    found = interval({"a": [0.75, 0.25], "b": [0.25, 0.75], "c": [0.5, 0.5]})

    assert found == Interval(0.5, 0.5, 0.0)


def test_the_whole_benchmark_needs_little_memory() -> None:
    values = {f"e{i}": [float(i % 5)] * (i % 14 + 1) for i in range(152)}

    tracemalloc.start()
    try:
        interval(values)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 50e6
