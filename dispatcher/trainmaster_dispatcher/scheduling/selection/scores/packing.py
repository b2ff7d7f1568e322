"""Score of a full cluster after the start, so that large free shapes stay whole elsewhere."""

from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.scheduling.selection.scores.base import PART, DependsOn, Score, Usage


def fullest(usage: Usage, needs: Resources) -> float:
    """Return the part in use afterwards of the fullest resource that the gang needs."""
    most = 0.0
    for name, amount in needs.items():
        found = usage.get(name)
        if found is not None:
            part = (found[0] + amount) / found[1]
            if part > most:
                most = part
    return most if most < 1.0 else 1.0


def most_added(needs: Resources, least: Resources) -> float:
    """Return how much fuller the needs make a cluster that has only the least amount of each resource."""
    return max((amount / least[name] for name, amount in needs.items() if name in least), default=0.0)


SCORE = Score(
    name="packing",
    unit="part",
    measure=fullest,
    curve=PART,
    words=lambda best, second: "it packs tighter there",
    depends_on=DependsOn.CAPACITY,
    gain=most_added,
    is_always_shown=True,
)
