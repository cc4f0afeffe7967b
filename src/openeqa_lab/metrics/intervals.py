"""Uncertainty of a mean over questions that come in episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Draws of clusters held at once: some 16 MB.
_AT_ONCE = 1_000_000


@dataclass(frozen=True, slots=True)
class Interval:
    """A percentile interval and the standard error, both of the bootstrap."""

    low: float
    high: float
    error: float


def cluster_bootstrap(
    values: Mapping[str, Sequence[float]], *, resamples: int, seed: int
) -> Interval | None:
    """The 95 % interval of the mean over all values, by drawing whole clusters with replacement.

    Questions about one episode are not independent, so the episode is what is drawn. A draw's mean
    is the ratio of its sum to its count, since episodes differ in their number of questions. The
    order of clusters and of values does not matter.

    Args:
        values: By cluster; clusters without values are left out.
        resamples: Draws.
        seed: Of the draws.

    Returns:
        None for fewer than two clusters: nothing is known of how episodes differ.
    """
    import numpy as np  # not at the top: a dry run computes nothing

    clusters = [values[name] for name in sorted(values) if values[name]]
    if len(clusters) < 2:
        return None
    sums = np.array([math.fsum(cluster) for cluster in clusters])
    counts = np.array([len(cluster) for cluster in clusters])
    generator = np.random.default_rng(seed)
    step = max(1, _AT_ONCE // len(clusters))
    means = np.empty(resamples)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = generator.integers(len(clusters), size=(rows, len(clusters)))
        means[start : start + rows] = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(low), float(high), float(means.std(ddof=1)))
