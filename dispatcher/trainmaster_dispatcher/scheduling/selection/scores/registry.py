"""Registry of the scores: each module of this package for which ``protocol.scoring`` declares a score of its name."""

from collections.abc import Mapping
from importlib import import_module

from trainmaster.protocol.scoring import SCORE_WEIGHTS
from trainmaster_dispatcher.scheduling.selection.scores.base import Score


def _score_of(name: str) -> Score:
    found = import_module(f"{__package__}.{name}").SCORE
    if not isinstance(found, Score) or found.name != name:
        raise TypeError(f"SCORE of {__package__}.{name} is no score of this name")
    return found


SCORES: Mapping[str, Score] = {name: _score_of(name) for name in SCORE_WEIGHTS}
"""By name, in the order of ``Weights``."""
