"""What comes of the turn of a class of jobs: a closed set of values, each carried out in one place of ``decide``."""

from dataclasses import dataclass

from trainmaster.protocol.reasons import Reason
from trainmaster_dispatcher.scheduling.cycle.burst import BurstStart
from trainmaster_dispatcher.scheduling.cycle.cluster_selection import Choice
from trainmaster_dispatcher.scheduling.preemption.victims import PreemptionPlan


@dataclass(frozen=True, slots=True)
class StartAfterEviction:
    """Its first job is sent to a cluster at once, and starts there when the runs have ended that give way."""

    preemption: PreemptionPlan


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """Runs end for its first job, which waits until they have: it is quota that they give back."""

    preemption: PreemptionPlan


@dataclass(frozen=True, slots=True)
class HoldJob:
    """Its first job is held until somebody releases it."""

    message: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Its first job waits for a reason. ``only_it``: other jobs of the class may start."""

    reason: Reason
    only_it: bool = False


Outcome = Choice | StartAfterEviction | MakeRoom | BurstStart | HoldJob | Wait


def after_eviction(preemption: PreemptionPlan) -> StartAfterEviction | MakeRoom:
    """Return what comes of a class for which runs end."""
    return StartAfterEviction(preemption) if preemption.at_once else MakeRoom(preemption)
