"""What a cycle decides."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from trainmaster.protocol.reasons import Reason
from trainmaster_dispatcher.domain.burst_policies import Bounds, BurstRun
from trainmaster_dispatcher.scheduling.state.flavors import Product
from trainmaster_dispatcher.scheduling.state.reservation import Reservation
from trainmaster_dispatcher.scheduling.state.state import (
    ClassKey,
    HeldBack,
    LiveRun,
    Sizes,
    WaitingJob,
    freeze_placement,
)


class Eviction(NamedTuple):
    """A run that is ended so that a job can start, or because its queue is suspended, and why."""

    job_id: int
    attempt: int
    cluster_id: int
    why: str
    sizes: dict[str, int] | None = None
    """Of an elastic run that only gives members back: what it keeps, by role."""


class Growth(NamedTuple):
    """An elastic run that gets more members: how many of each role it has then, and where all of them are thought to be."""

    job_id: int
    attempt: int
    cluster_id: int
    sizes: dict[str, int]
    placement: dict[str, dict[str, int]]


class Granted(NamedTuple):
    """That a job goes to a public cluster by a policy, and how long and at what price it may stay."""

    policy_id: int
    policy: str
    revision: int
    bounds: Bounds
    binding: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Node affinity that keeps its members where the policy allows them: key, operator, values."""

    def run(self, at: float) -> BurstRun:
        """What the run has of it that is sent at ``at``, in seconds since the epoch."""
        return BurstRun(self.policy_id, at, self.bounds.until(at, None), self.bounds.rate)


TableLine = dict[str, str | float]
"""What one candidate scored, for people: its cluster, its whole score, and parts of it by name."""


@dataclass(slots=True)
class Start:
    """A job to be handed to a cluster. ``table``: what each candidate scored, for people.

    It is not to be changed, though not frozen: thousands are made in a second.
    """

    job: WaitingJob
    cluster_id: int
    sizes: dict[str, int]
    placement: dict[str, dict[str, int]]
    why: str
    table: tuple[TableLine, ...]
    product: Product | None = None
    """The one product of device that the members may be given, where quota depends on it."""
    evicts: tuple[Eviction, ...] = ()
    """Runs on the same cluster that end for it; the start is applied with all of them or not at all."""
    awaits: float = 0.0
    """Seconds that it may wait for its nodes beyond what its cluster gives everybody, as they are still to come."""
    pools: tuple[str, ...] = ()
    """The pools of its cluster that have to grow for it."""
    granted: Granted | None = None
    """By which policy it goes to a public cluster, if by one."""

    def run(self, at: float, like: LiveRun | None = None) -> LiveRun:
        """The run that it makes; ``at`` in seconds since the epoch. ``like``: a run with as many members in the same places."""
        job = self.job
        return LiveRun(
            job_id=job.id,
            queue_id=job.queue_id,
            shape_id=job.shape_id,
            cluster_id=self.cluster_id,
            sizes=tuple(sorted(self.sizes.items())) if like is None else like.sizes,
            placement=freeze_placement(self.placement) if like is None else like.placement,
            class_id=job.class_id,
            began_at=at,
            attempt=job.attempt + 1,
            burst=None if self.granted is None else self.granted.run(at),
        )


def runs_of(starts: Iterable[Start], at: float) -> Iterator[LiveRun]:
    """The runs that starts make, one after the other."""
    before: Start | None = None
    run: LiveRun | None = None
    for start in starts:
        # Those of a row share what they have alike.
        is_like = before is not None and start.placement is before.placement and start.sizes is before.sizes
        run = start.run(at, run if is_like else None)
        before = start
        yield run


def shrinking(run: LiveRun, sizes: Mapping[str, int], at: float) -> LiveRun:
    """An elastic run whose members beyond these sizes were told to leave at ``at``."""
    return replace(run, leaving=members_leaving(dict(run.sizes), sizes), resized_at=at)


def members_leaving(holding: Mapping[str, int] | None, sizes: Mapping[str, int]) -> Sizes:
    """By role: the members of a run that are to leave and have not."""
    if holding is None:
        return ()
    return tuple(
        sorted((role, many - sizes.get(role, 0)) for role, many in holding.items() if many > sizes.get(role, 0))
    )


def grown(run: LiveRun, growth: Growth, at: float) -> LiveRun:
    """An elastic run that was given more members at ``at``."""
    sizes, placement = tuple(sorted(growth.sizes.items())), freeze_placement(growth.placement)
    return replace(run, sizes=sizes, placement=placement, resized_at=at)


@dataclass(frozen=True, slots=True)
class Hold:
    """A job that no eligible cluster could place: it waits for a person."""

    job: WaitingJob
    message: str


class Fault(NamedTuple):
    """An unexpected error of one object, to be told by whoever asked for the plan.

    ``kind``: one of ``cluster``, ``reservation``, ``burst_policy``, ``job_class`` and ``run``.
    ``key``: that of the object; 0 of a class.
    """

    kind: str
    key: int
    name: str
    error: Exception


@dataclass(slots=True)
class Plan:
    """The outcome of a cycle, with a reason for every class that was looked at and has jobs left waiting."""

    starts: list[Start] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    is_cut: bool = False
    """Whether the plan was full before every class was looked at; those that were not have no reason in it."""
    stops: list[Eviction] = field(default_factory=list)
    """Runs that end though nothing starts in their place yet: a job for which they free quota starts once they have gone."""
    grows: list[Growth] = field(default_factory=list)
    reasons: dict[ClassKey, Reason] = field(default_factory=dict)
    bursting: frozenset[int] = frozenset()
    """Policies that are open by how full private clusters are, to be given to the next cycle."""
    next_look: float = inf
    """When a job may go by a policy that was refused it, if nothing else happens; seconds since the epoch."""
    reservations: dict[int, Reservation] = field(default_factory=dict)
    """By job: the clusters that are kept for jobs that lack room, to be given to the next cycle."""
    held_back: dict[ClassKey, HeldBack] = field(default_factory=dict)
    """Classes that unexpected errors hold back, to be given to the next cycle."""
    faults: list[Fault] = field(default_factory=list)
    """The unexpected errors of this cycle."""

    @property
    def jobs(self) -> list[WaitingJob]:
        """The jobs that are decided on."""
        return [*(start.job for start in self.starts), *(hold.job for hold in self.holds)]

    @property
    def changes_anything(self) -> bool:
        return bool(self.starts or self.holds or self.stops or self.grows)

    @property
    def sentence(self) -> str:
        """The cycle in one line, for the log."""
        held = f", {len(self.holds)} held as unplaceable" if self.holds else ""
        leaving = [*self.stops, *(one for start in self.starts for one in start.evicts)]
        evicted = sum(one.sizes is None for one in leaving)
        held += f", {evicted} runs end for them" if evicted else ""
        held += f", {len(leaving) - evicted} runs shrink" if len(leaving) > evicted else ""
        held += f", {len(self.grows)} runs grow" if self.grows else ""
        rest = "and others were not looked at" if self.is_cut else f"{len(self.reasons)} classes of jobs wait"
        return f"{len(self.starts)} jobs start{held}, {rest}"
