"""Changes made by applying a plan, as values: for the leader, who stores them, and for what-if studies, which apply them in memory.

A plan is applied in three steps: guard (which parts of it are still valid), ``writes_of`` (here, pure), and write.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainmaster.protocol.reasons import Reason
from trainmaster.protocol.states import HoldCause
from trainmaster_dispatcher.domain import job_machine
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.domain.job_machine import Job
from trainmaster_dispatcher.domain.run_orders import (
    NO_ORDERS,
    BindingTerm,
    BurstTerms,
    NarrowedDevice,
    RunOrders,
)
from trainmaster_dispatcher.scheduling.state.plan import Eviction, Growth, Plan, Start

_GROWS = "it grows: no job waits for this capacity"


@dataclass(frozen=True, slots=True)
class JobWrite:
    """A job's new value, and the event that reports it."""

    job_id: int
    job: Job
    kind: JobEventKind
    states: tuple[str, ...] = ()
    attempt: int | None = None
    cluster_id: int | None = None
    actor: str = ""
    message: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunStart:
    """A run to be leased to a cluster, and its orders."""

    start: Start
    attempt: int
    orders: RunOrders


@dataclass(frozen=True, slots=True)
class Writes:
    """All changes made by applying a plan."""

    jobs: tuple[JobWrite, ...]
    starts: tuple[RunStart, ...]
    stops: tuple[Eviction, ...]
    """Whole runs that end for others."""
    shrinks: tuple[Eviction, ...]
    """Elastic runs that give members back."""
    grows: tuple[Growth, ...]

    @property
    def clusters(self) -> set[int]:
        """The clusters whose agents have something to do because of the plan."""
        return {
            *(one.start.cluster_id for one in self.starts),
            *(one.cluster_id for one in (*self.stops, *self.shrinks)),
            *(one.cluster_id for one in self.grows),
        }


def victims_of(plan: Plan) -> list[Eviction]:
    """Return all runs of a plan that end or give members back, for whatever reason."""
    return [*plan.stops, *(one for start in plan.starts for one in start.evicts)]


def writes_of(
    plan: Plan,
    jobs: Mapping[int, Job],
    sizes: Mapping[int, Mapping[str, int]],
    *,
    cycle: int,
    waited: Mapping[int, Reason] | None = None,
    stop_seconds: Mapping[int, float] | None = None,
) -> Writes:
    """Return the changes made by applying a plan that is valid as a whole.

    ``jobs``: every job that the plan names, in its current state; ``sizes``: the members of their live runs by role. ``waited``: what
    starting jobs have waited for. ``stop_seconds``: how long runs that are ended may take to end. Both by job.
    """
    leaving = victims_of(plan)
    stops = tuple(one for one in leaving if one.sizes is None)
    ended = {one.job_id for one in stops}
    shrinks = tuple(one for one in leaving if one.sizes is not None and one.job_id not in ended)
    starts = [_started(start, jobs[start.job.id], cycle, (waited or {}).get(start.job.id)) for start in plan.starts]
    changed = [
        *starts,
        *(_held(hold.job.id, jobs[hold.job.id], hold.message) for hold in plan.holds),
        *(_preempted(one, jobs[one.job_id]) for one in stops),
        *(_resized(one, one.sizes or {}, jobs[one.job_id], sizes[one.job_id], one.why) for one in shrinks),
        *(_resized(one, one.sizes, jobs[one.job_id], sizes[one.job_id], _GROWS) for one in plan.grows),
    ]
    return Writes(
        tuple(changed),
        tuple(
            RunStart(start, started.job.attempt, orders_of(start, _awaits(start, stop_seconds or {})))
            for start, started in zip(plan.starts, starts, strict=True)
        ),
        stops,
        shrinks,
        tuple(plan.grows),
    )


def orders_of(start: Start, awaits: float) -> RunOrders:
    """Return the orders for the run of a start. ``awaits``: the additional seconds that it may wait for its nodes."""
    product, granted = start.product, start.granted
    narrowed = None
    if product is not None and product.label:
        narrowed = NarrowedDevice(resource=product.resource, selector={product.label: product.name})
    if narrowed is None and granted is None and not awaits:
        return NO_ORDERS
    burst = None
    if granted is not None:
        terms = [BindingTerm(key=key, operator=operator, values=values) for key, operator, values in granted.binding]
        burst = BurstTerms(limit_seconds=granted.bounds.limit, binding=tuple(terms))
    return RunOrders(narrowed=narrowed, awaits_seconds=awaits, burst=burst)


def _started(start: Start, job: Job, cycle: int, waited: Reason | None) -> JobWrite:
    after = job_machine.dispatch(job)
    details: dict[str, Any] = {"cycle": cycle}
    if waited is not None:
        details["waitedFor"] = {"token": waited.token.value, "sentence": waited.sentence}
    return JobWrite(
        start.job.id,
        after,
        kind=JobEventKind.DISPATCHED,
        states=(after.state.value,),
        attempt=after.attempt,
        cluster_id=start.cluster_id,
        message=start.why,
        details=details,
    )


def _held(job_id: int, job: Job, message: str) -> JobWrite:
    """Return the hold of a job that no cluster takes, with what its last run said."""
    if job.message:
        message += f"; the last one said: {job.message}"
    after = job.held(HoldCause.UNPLACEABLE, message=message)
    return JobWrite(job_id, after, kind=JobEventKind.HELD, states=(after.state.value,), message=message)


def _preempted(one: Eviction, job: Job) -> JobWrite:
    return JobWrite(
        one.job_id,
        job._replace(message=one.why),
        kind=JobEventKind.PREEMPT,
        attempt=one.attempt,
        cluster_id=one.cluster_id,
        actor="scheduler",
        message=one.why,
    )


def _resized(
    one: Eviction | Growth, sizes: Mapping[str, int], job: Job, before: Mapping[str, int], why: str
) -> JobWrite:
    members = ", ".join(f"{size} {role}" for role, size in sorted(sizes.items()))
    return JobWrite(
        one.job_id,
        job,
        kind=JobEventKind.RESIZE,
        attempt=one.attempt,
        cluster_id=one.cluster_id,
        actor="scheduler",
        message=f"to {members}: {why}",
        details={"sizes": dict(sizes), "from": dict(before)},
    )


def _awaits(start: Start, stop_seconds: Mapping[int, float]) -> float:
    """Return the additional seconds that a run may wait, because runs have to end for it or its nodes do not exist yet."""
    return max((stop_seconds[one.job_id] for one in start.evicts if one.job_id in stop_seconds), default=start.awaits)
