"""Score of own machines before rented ones."""

from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.scheduling.selection.scores.base import Curve, DependsOn, Score, itself

_VALUES = {ClusterKind.PRIVATE: 1.0, ClusterKind.EDGE: 0.6, ClusterKind.PUBLIC: 0.0}

SCORE = Score(
    name="kind",
    unit="",
    measure=itself,
    curve=Curve(_VALUES.__getitem__, ", ".join(f"{kind} {value:g}" for kind, value in _VALUES.items())),
    words=lambda best, second: f"{best.cluster.kind} clusters are preferred to {second.cluster.kind} ones",
    depends_on=DependsOn.KIND,
    is_always_shown=True,
)
