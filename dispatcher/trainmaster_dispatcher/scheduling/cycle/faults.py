"""Containment of unexpected errors inside one decision: which object is to blame, and how long it is left out.

An error during the attempt of a class is a bug in Trainmaster, or an error in what is stored, and must not keep other classes from
being decided on. First each cluster and each reservation is computed by itself, and those that fail are closed. If none fails, the
class is held back, for longer each time.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from trainmaster_dispatcher.scheduling.cycle import explain
from trainmaster_dispatcher.scheduling.packing.free_capacity import ClusterLayouts
from trainmaster_dispatcher.scheduling.packing.release_timeline import ReleaseTimeline
from trainmaster_dispatcher.scheduling.reservations.advance import AdvanceReservations
from trainmaster_dispatcher.scheduling.selection.cluster_index import ClusterIndex
from trainmaster_dispatcher.scheduling.state.declared_objects import AdvanceReservation, Cluster
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey, HeldBack
from trainmaster_dispatcher.scheduling.state.plan import Fault
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

FEW_RESTARTS = 3
"""The number of errors for which a decision is restarted; after that, classes whose attempt fails are held back without a restart."""
MOST_RESTARTS = 24
_MOST_SECONDS = 64.0
_STEP = 4.0
"""Longer holds end at multiples of this number of seconds, so that the classes are tried again together."""


class TurnError(Exception):
    """The turn of a class has ended in an unexpected error; what the decision has counted until then must not be used."""

    def __init__(self, key: ClassKey, error: Exception) -> None:
        super().__init__(str(error))
        self.key = key
        self.error = error


class TooManyFaultsError(Exception):
    """Repeated decisions have ended in an unexpected error."""

    def __init__(self, found: list[Fault]) -> None:
        super().__init__(f"{len(found)} unexpected errors in one decision, the last one of {found[-1].name}")
        self.__cause__ = found[-1].error


def still_held(state: SchedulerState, held_back: Mapping[ClassKey, HeldBack]) -> dict[ClassKey, HeldBack]:
    """Return the classes that the previous cycle has held back and of which jobs still wait."""
    return {key: one for key, one in held_back.items() if key in state.waiting.get(key.queue_id, ())}


def hold_back(
    state: SchedulerState, held: dict[ClassKey, HeldBack], key: ClassKey, error: Exception, now: float
) -> Fault:
    """Hold a class back and return the fault."""
    before = held.get(key)
    failures = 1 if before is None else before.failures + 1
    seconds = min(2.0 ** min(failures - 1, 10), _MOST_SECONDS)
    until = now + seconds if seconds < _STEP else ceil((now + seconds) / _STEP) * _STEP
    held[key] = HeldBack(failures, until, explain.internal_error(error))
    queue, of = state.queues.get(key.queue_id), state.classes.get(key.class_id)
    name = f"{queue.path if queue else key.queue_id}, {of.name if of else key.class_id}, shape {key.shape_id}"
    return Fault("job_class", 0, name, error)


def close_faulty(state: SchedulerState, now: float) -> list[Fault]:
    """Close the clusters that cannot be computed by themselves, drop such reservations, and return the faults."""
    found = []
    layouts = ClusterLayouts(state)  # new ones, as cached values may be wrong
    index = ClusterIndex(layouts)
    for cluster in list(state.clusters.values()):
        try:
            _work_out(layouts, index, cluster)
        except Exception as error:  # noqa: BLE001 - returned to the caller, which reports it
            fault = f"cluster {cluster.name} cannot be used ({type(error).__name__})"
            state.put_cluster(replace(cluster, report=None, fault=fault), now)
            found.append(Fault("cluster", cluster.id, cluster.name, error))
    for one in list(state.advance.values()):
        try:
            _work_out_reservation(layouts, one, now)
        except Exception as error:  # noqa: BLE001 - returned to the caller, which reports it
            state.set_advance(other for other in list(state.advance.values()) if other.id != one.id)
            found.append(Fault("reservation", one.id, one.name, error))
    return found


def _work_out(layouts: ClusterLayouts, index: ClusterIndex, cluster: Cluster) -> None:
    layouts.empty(cluster.id).total()
    layouts.now(cluster.id).rank()
    ReleaseTimeline(layouts, cluster.id)
    index.capacity(cluster)
    index.usage(cluster)


def _work_out_reservation(layouts: ClusterLayouts, one: AdvanceReservation, now: float) -> None:
    AdvanceReservations(layouts, now, [one]).work_out()
