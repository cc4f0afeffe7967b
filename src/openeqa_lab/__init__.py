"""Embodied question answering, measured: OpenEQA (EM-EQA) and EmbodiedQA.

The names below are loaded when they are first used, so that a command which needs none of them
answers at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openeqa_lab.data.case import Case, Question
    from openeqa_lab.data.datasets import Dataset
    from openeqa_lab.data.episode import Episode, Frame, Image, Unseen
    from openeqa_lab.data.recorded import Recorded
    from openeqa_lab.errors import CaseError, OpenEQAError
    from openeqa_lab.evaluation import Evaluation
    from openeqa_lab.images.encoders import Encoder
    from openeqa_lab.metrics import Estimate
    from openeqa_lab.records import Answer, Failure, Record, Usage, Verdict

_HOMES = {
    "Answer": "records",
    "Case": "data.case",
    "CaseError": "errors",
    "Dataset": "data.datasets",
    "Encoder": "images.encoders",
    "Episode": "data.episode",
    "Estimate": "metrics",
    "Evaluation": "evaluation",
    "Failure": "records",
    "Frame": "data.episode",
    "Image": "data.episode",
    "OpenEQAError": "errors",
    "Question": "data.case",
    "Record": "records",
    "Recorded": "data.recorded",
    "Unseen": "data.episode",
    "Usage": "records",
    "Verdict": "records",
}

__all__ = [
    "Answer",
    "Case",
    "CaseError",
    "Dataset",
    "Encoder",
    "Episode",
    "Estimate",
    "Evaluation",
    "Failure",
    "Frame",
    "Image",
    "OpenEQAError",
    "Question",
    "Record",
    "Recorded",
    "Unseen",
    "Usage",
    "Verdict",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
