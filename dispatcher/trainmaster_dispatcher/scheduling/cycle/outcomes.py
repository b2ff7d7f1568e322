"""Outcomes of the turn of a class of jobs: a closed set of values, each carried out in one place of ``decide``."""

from dataclasses import dataclass
from typing import NamedTuple

from trainmaster.protocol.reasons import Reason
from trainmaster_dispatcher.scheduling.cycle.burst import BurstStart
from trainmaster_dispatcher.scheduling.cycle.cluster_selection import Choice
from trainmaster_dispatcher.scheduling.preemption.victims import PreemptionPlan


@dataclass(frozen=True, slots=True)
class StartAfterEviction:
    """The first job is sent to a cluster at once, and starts there when the runs that are ended for it have ended."""

    preemption: PreemptionPlan


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """Runs are ended for the first job, which waits until they have ended, because it lacks the quota that they use."""

    preemption: PreemptionPlan


@dataclass(frozen=True, slots=True)
class HoldJob:
    """The first job is held until a person releases it."""

    message: str


class Wait(NamedTuple):
    """The first job waits for a reason. ``only_it``: other jobs of the class may start."""

    reason: Reason
    only_it: bool = False


Outcome = Choice | StartAfterEviction | MakeRoom | BurstStart | HoldJob | Wait


def after_eviction(preemption: PreemptionPlan) -> StartAfterEviction | MakeRoom:
    """Return the outcome for a class for which runs end."""
    return StartAfterEviction(preemption) if preemption.at_once else MakeRoom(preemption)
