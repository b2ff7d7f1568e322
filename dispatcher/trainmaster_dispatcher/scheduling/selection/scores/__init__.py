"""Scores of the clusters that fit: one module for each; ``registry`` has them all, ``totals`` adds them up."""

from trainmaster_dispatcher.scheduling.selection.scores.base import Fit, Score, Usage, usage_of
from trainmaster_dispatcher.scheduling.selection.scores.registry import SCORES
from trainmaster_dispatcher.scheduling.selection.scores.totals import (
    counts_devices,
    counts_queue,
    deciding,
    fixed_score,
    headroom,
    is_quick,
    score,
    scorer,
    shown,
    varies,
    varies_by_run,
)

__all__ = [
    "SCORES",
    "Fit",
    "Score",
    "Usage",
    "counts_devices",
    "counts_queue",
    "deciding",
    "fixed_score",
    "headroom",
    "is_quick",
    "score",
    "scorer",
    "shown",
    "usage_of",
    "varies",
    "varies_by_run",
]
