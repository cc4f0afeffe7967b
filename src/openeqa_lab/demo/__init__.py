"""Three small episodes with drawn frames and two dozen questions, for a first run.

The frames are drawings (``experiments/demo/draw.py``), so a score says that a set-up works and
nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from openeqa_lab.data.datasets import Dataset
from openeqa_lab.data.recorded import Recorded

# Beside this file, so that no config has to know where the package was installed.
FOLDER = Path(__file__).resolve().parent


def dataset(category: str | Sequence[str] | None = None, limit: int | None = None) -> Dataset:
    """The demo's questions.

    Args:
        category: One category or several; None for all.
        limit: The first so many questions; None for all.
    """
    return Dataset(
        FOLDER / "questions.json",
        root=FOLDER / "frames",
        name="demo",
        category=category,
        limit=limit,
    )


def episodes(max_frames: int = 0) -> Recorded:
    """The demo's episodes.

    Args:
        max_frames: Leave so many frames of an episode, evenly spaced; 0 for all.
    """
    return Recorded(FOLDER / "frames", max_frames=max_frames)
