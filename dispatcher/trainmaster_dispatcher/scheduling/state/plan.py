"""Decisions of a cycle, as values. They apply nothing."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.reasons import Reason
from trainmaster_dispatcher.domain.burst_policies import Bounds, BurstRun
from trainmaster_dispatcher.domain.shapes import count_members
from trainmaster_dispatcher.scheduling.state.flavors import Product
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey, HeldBack, WaitingJob
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun, Sizes, freeze_placement
from trainmaster_dispatcher.scheduling.state.reservation import Reservation


class Eviction(NamedTuple):
    """A run that is ended so that a job can start, or because its queue is suspended, and why."""

    job_id: int
    attempt: int
    cluster_id: int
    why: str
    sizes: dict[str, int] | None = None
    """For an elastic run that only gives members back: the sizes that it keeps, by role."""


class Growth(NamedTuple):
    """An elastic run that gets more members: its sizes then, by role, and the assumed placement of all members."""

    job_id: int
    attempt: int
    cluster_id: int
    sizes: dict[str, int]
    placement: MemberPlacement


class Moved(NamedTuple):
    """A run that was moved for another job: when, its job, and the queue that allows it; ``for_id``: that other job."""

    at: float
    job_id: int
    queue_id: int
    home: int
    """The cluster where room is kept for it until it has started again."""
    until: float
    """The time until which it is kept at most, in seconds since the epoch."""
    sizes: Sizes
    for_id: int


class Granted(NamedTuple):
    """A grant for a job to go to a public cluster by a policy, with its longest stay and its price."""

    policy_id: int
    policy: str
    revision: int
    bounds: Bounds
    binding: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Node affinity that keeps its members where the policy allows them: key, operator, values."""

    def run(self, at: float) -> BurstRun:
        """Return the part of the grant that belongs to a run that is sent at ``at``, in seconds since the epoch."""
        return BurstRun(self.policy_id, at, self.bounds.until(at, None), self.bounds.rate)


TableLine = dict[str, str | float]
"""The scores of one candidate, for people: its cluster, its total score, and parts of the score by name."""


@dataclass(slots=True)
class Start:
    """A job to be sent to a cluster. ``table``: the scores of each candidate, for people.

    A start must not be changed, though the class is not frozen: thousands are created in a second.
    """

    job: WaitingJob
    cluster_id: int
    sizes: dict[str, int]
    placement: MemberPlacement
    why: str
    table: tuple[TableLine, ...]
    product: Product | None = None
    """The one product of device that the members may be given, where quota depends on it."""
    evicts: tuple[Eviction, ...] = ()
    """Runs on the same cluster that end for the job; the start is applied with all of them or not at all."""
    awaits: float = 0.0
    """The additional seconds that the run may wait for nodes that do not exist yet, beyond the placement timeout of its cluster."""
    pools: tuple[str, ...] = ()
    """The pools of the cluster that have to grow for the job."""
    granted: Granted | None = None
    """The grant of the burst policy by which the job goes to a public cluster, if any."""
    predicted_seconds: float | None = None
    """How long the run is predicted to take, if that is less than its time limit."""
    members_per_unit: Mapping[str, int] = field(default_factory=dict)
    """By role, where members share devices and ``sizes`` and ``placement`` count those that do as one: how many do."""

    @property
    def members(self) -> dict[str, int]:
        """The number of members by role."""
        return count_members(self.sizes, self.members_per_unit) if self.members_per_unit else self.sizes

    @property
    def member_placement(self) -> MemberPlacement:
        """The assumed number of members by node group and role."""
        if not self.members_per_unit:
            return self.placement
        return {group: count_members(roles, self.members_per_unit) for group, roles in self.placement.items()}

    def run(self, at: float, like: LiveRun | None = None) -> LiveRun:
        """Return the run of the start; ``at`` in seconds since the epoch. ``like``: a run with the same sizes and placement."""
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
            user=job.user,
            is_assumed=True,
            predicted_seconds=self.predicted_seconds,
        )


def runs_of(starts: Iterable[Start], at: float) -> Iterator[LiveRun]:
    """Yield the run of each start, in order."""
    before: Start | None = None
    run: LiveRun | None = None
    for start in starts:
        # Equivalent starts in a row share their sizes and placement.
        is_like = before is not None and start.placement is before.placement and start.sizes is before.sizes
        run = start.run(at, run if is_like else None)
        before = start
        yield run


def shrinking(run: LiveRun, sizes: Mapping[str, int], at: float) -> LiveRun:
    """Return the elastic run with its members beyond ``sizes`` leaving since ``at``."""
    return replace(run, leaving=members_leaving(dict(run.sizes), sizes), resized_at=at)


def members_leaving(holding: Mapping[str, int] | None, sizes: Mapping[str, int]) -> Sizes:
    """Return, by role, the members of a run that are to leave and have not left yet."""
    if holding is None:
        return ()
    return tuple(
        sorted((role, many - sizes.get(role, 0)) for role, many in holding.items() if many > sizes.get(role, 0))
    )


def grown(run: LiveRun, growth: Growth, at: float) -> LiveRun:
    """Return the elastic run with the members that it was given at ``at``."""
    sizes, placement = tuple(sorted(growth.sizes.items())), freeze_placement(growth.placement)
    return replace(run, sizes=sizes, placement=placement, resized_at=at)


@dataclass(frozen=True, slots=True)
class Hold:
    """A job that no eligible cluster could place: it is held until a person releases it."""

    job: WaitingJob
    message: str


class Fault(NamedTuple):
    """An unexpected error of one object, to be reported by the caller that requested the plan.

    ``kind``: one of ``cluster``, ``reservation``, ``burst_policy``, ``job_class`` and ``run``.
    ``key``: the key of the object; 0 for a class.
    """

    kind: str
    key: int
    name: str
    error: Exception


@dataclass(slots=True)
class Plan:
    """The outcome of a cycle, with a reason for every class that was tried and has jobs left waiting."""

    starts: list[Start] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    is_cut: bool = False
    """Whether the plan was full before every class was tried; classes that were not tried have no reason in it."""
    stops: list[Eviction] = field(default_factory=list)
    """Runs that end without a start in their place yet: a job for which they free quota starts once they have ended."""
    grows: list[Growth] = field(default_factory=list)
    reasons: dict[ClassKey, Reason] = field(default_factory=dict)
    bursting: frozenset[int] = frozenset()
    """Policies that are open because of the utilisation of private clusters, to be given to the next cycle."""
    next_look: float = inf
    """The earliest time at which a job may start, if nothing else happens, that a burst policy or the hours of its queue keep waiting;
    seconds since the epoch."""
    quiet: frozenset[tuple[int, int]] = frozenset()
    """Queues and clusters: where jobs of the queue start because the cluster was quiet, to be given to the next cycle."""
    reservations: dict[int, Reservation] = field(default_factory=dict)
    """By job: the reservations of jobs that lack capacity, to be given to the next cycle."""
    moved: tuple[Moved, ...] = ()
    """The runs that were moved for others in the last day, to be given to the next cycle."""
    searched_moves: dict[int, float] = field(default_factory=dict)
    """By shape: when moves for it were last searched for in vain, to be given to the next cycle."""
    needs_nodes: frozenset[int] = frozenset()
    """The clusters whose members' nodes are to be read before the next cycle, which searches for moves there."""
    held_back: dict[ClassKey, HeldBack] = field(default_factory=dict)
    """Classes that are held back after unexpected errors, to be given to the next cycle."""
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
