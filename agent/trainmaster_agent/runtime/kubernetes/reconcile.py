"""`reconcile`: decides a run's next step from its record and the state of its pods. Pure.

The order matters. A decision is written into the record before it is carried out: an agent that dies between the two
finds the decision and carries it out, and one that dies before decides again from the same pods.

    over? ── stop or verdict: members leave ── losses and failures ── success ── limits ── members missing: create ── waits, runs
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from trainmaster.protocol.agent import RunEnd
from trainmaster.protocol.quantities import format_name, format_quantity
from trainmaster.protocol.results import read_results
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.placement.port import GangState
from trainmaster_agent.runtime.kubernetes.checkpoint import not_told_words
from trainmaster_agent.runtime.kubernetes.failure_classification import (
    HOPELESS,
    Failure,
    Loss,
    PodRefusal,
    classify,
    shortened,
    trouble,
)
from trainmaster_agent.runtime.kubernetes.node_health import Unready, clock, words_on
from trainmaster_agent.runtime.kubernetes.record import Again, Progress, RecordedEnd
from trainmaster_agent.runtime.kubernetes.run_spec import Facts, Member
from trainmaster_agent.runtime.kubernetes.workload_objects import WorkloadSight


@dataclass(frozen=True, slots=True)
class ReconcileLimits:
    """Tolerances in seconds."""

    image: float
    container: float
    start: float
    opened: float


@dataclass(frozen=True, slots=True)
class Sights:
    """Everything known of a run's members at one moment. Times are seconds of the epoch."""

    pods: Mapping[Member, PodSight]
    gang: GangState = field(default_factory=GangState)
    accepted_at: float = 0.0
    placement_timeout: float = 600.0
    ours: frozenset[str] = frozenset()
    """Uids of pods that this agent has deleted."""
    trouble_since: Mapping[str, float] = field(default_factory=dict)
    """Time since when a pod's container cannot start, by uid."""
    lost_at: float | None = None
    """Time at which the disconnect limit stops the run."""
    lost_grace: float = 1.0
    """Grace in seconds that its members then have."""
    waits_for: str = ""
    """With emulated gangs: why the gates are still closed."""
    prevented: str = ""
    """Why the API server does not take what the agent does for the run at the moment, in its words."""
    last_seen: Mapping[Member, PodSight] = field(default_factory=dict)
    """Last state of members whose pod is gone: a kubelet reports a pod's end and removes the pod at almost the same time."""
    unready: Mapping[str, Unready] = field(default_factory=dict)
    """Nodes that are not ready."""
    opened_at: float | None = None
    """With emulated gangs: time at which the gates of this round were opened."""
    workload: WorkloadSight | None = None
    """The object whose controller makes the pods, where the run has one and it exists."""
    warning: str = ""
    """The last warning of the cluster about that object, while pods of it are missing; without one, the last event about the gang."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """``state`` is reported to the dispatcher now. If ``progress`` differs from the record's, it has to be written first.

    ``remove``: pods to delete, with the grace in seconds; ``create``: members to create; ``signal``: members to send the checkpoint
    signal to; ``wake_at``: when to reconcile again even if nothing has changed.
    """

    state: RunState
    message: str = ""
    progress: Progress | None = None
    remove: tuple[tuple[PodSight, int], ...] = ()
    create: tuple[Member, ...] = ()
    signal: bool = False
    wake_at: float | None = None
    over: bool = False
    at_work: bool = False
    """Whether the gang of this round was complete and running."""
    creates_workload: bool = False
    """Whether to create the object whose controller makes the pods."""
    removes_workload: bool = False
    """Whether to delete that object."""


def reconcile(
    facts: Facts,
    progress: Progress,
    sizes: Mapping[str, int],
    sights: Sights,
    limits: ReconcileLimits,
    now: float,
    look: "type[Look] | None" = None,
) -> Assessment:
    """Decide the next step. Never decides on unknown facts: a member without a known pod is waited for or created.

    ``look``: the rules of runs whose pods another controller makes; None for all others.
    """
    if progress.ended_at is not None:
        return _over(progress)
    run = (look or Look)(facts, progress, sizes, sights, limits, now)
    return run.leave() if progress.verdict is not None or progress.stop is not None else run.reconcile()


def _over(progress: Progress) -> Assessment:
    verdict = progress.verdict
    if verdict is not None:
        return Assessment(verdict.state, verdict.message, over=True)
    state = RunState.CANCELLED if progress.stop is None else progress.stop.cause.ends_as
    return Assessment(state, not_told_words(progress.not_told), over=True)


def _with_results(progress: Progress, first: Member, sights: Sights) -> Progress:
    """Return the record of a run that ends, with the results of ``first``, the member of rank 0, once that has ended."""
    verdict = progress.verdict
    pod = sights.pods.get(first) or sights.last_seen.get(first)
    if (
        verdict is None
        or not verdict.state.has_results
        or pod is None
        or pod.round != progress.round
        or not pod.is_over
    ):
        return progress
    results, wrong = read_results(pod.results)
    error = f"the results of {first[0]}-{first[1]} {wrong}" if wrong else ""
    return replace(progress, verdict=replace(verdict, results=results, results_error=error))


def _leaving(facts: Facts, progress: Progress, first: Member, sights: Sights, now: float) -> Assessment:
    """Remove every member within the grace; the run is over once all are gone."""
    stop = progress.stop
    living = [pod for pod in sights.pods.values() if not pod.is_over]
    if not living:
        ended = replace(_with_results(progress, first, sights), ended_at=now)
        return replace(_over(progress), progress=ended, over=False)
    grace, saving = facts.stop_grace, 0.0
    decided = "" if progress.verdict is None else progress.verdict.message
    said = (decided, not_told_words(progress.not_told), words_on(living, sights.unready))
    message = "; ".join(one for one in said if one)
    if stop is not None:
        grace = stop.grace_seconds
        saving = stop.checkpoint_seconds if progress.verdict is None else 0.0
    if sights.lost_at is not None and now >= sights.lost_at:
        grace, saving = min(grace, sights.lost_grace), 0.0
    may_save = any(pod.has_started and f"{pod.role}-{pod.index}" not in progress.not_told for pod in living)
    if saving and now < progress.stopped_at + saving and may_save:
        waiting = tuple((pod, ceil(grace)) for pod in living if not pod.has_started and not pod.deleting)
        wake_at = progress.stopped_at + saving
        if sights.lost_at is not None:
            wake_at = min(wake_at, sights.lost_at)
        return Assessment(RunState.STOPPING, message, remove=waiting, signal=True, wake_at=wake_at)
    left = max(1, ceil(grace if stop is None else grace - max(0.0, now - progress.stopped_at - saving)))
    # A pod that is being deleted is deleted again only where it would stay clearly longer than allowed.
    remove = tuple((pod, left) for pod in living if not pod.deleting or (pod.grace or 0) > left + 1)
    return Assessment(RunState.STOPPING, message, remove=remove, wake_at=sights.lost_at)


@dataclass(slots=True)
class _MemberEnds:
    """Judgements of the members that have ended: those that the cluster took, and the counts and restarts to record."""

    again: dict[str, Again]
    restarts: dict[str, int]
    oom_kills: dict[str, int]
    lost: list[tuple[Member, Loss]] = field(default_factory=list)

    @staticmethod
    def of(progress: Progress) -> "_MemberEnds":
        return _MemberEnds(dict(progress.again), dict(progress.restarts), dict(progress.oom_kills))


class Look:
    """One assessment of a run."""

    def __init__(
        self,
        facts: Facts,
        progress: Progress,
        sizes: Mapping[str, int],
        sights: Sights,
        limits: ReconcileLimits,
        now: float,
    ) -> None:
        self.facts = facts
        self.progress = progress
        self.sizes = sizes
        self.sights = sights
        self.limits = limits
        self.now = now
        self.wanted = facts.wanted(sizes)
        self.first = next(iter(self.wanted), ("", 0))
        """The member of rank 0."""
        self.pods = {member: pod for member, pod in sights.pods.items() if pod.round == progress.round}
        """Pods of this round's members."""
        self.done = {tuple(name.rsplit("-", 1)) for name in progress.done}
        self.wake_at: list[float] = []

    def leave(self) -> Assessment:
        """Return the next step of a run that is stopped, or has ended."""
        return _leaving(self.facts, self.progress, self.first, self.sights, self.now)

    def reconcile(self) -> Assessment:
        """Return the next step of a run that goes on."""
        found = self._decided()
        if found is not None:
            return found
        since = self._running_since()
        state = RunState.PENDING
        if since is not None:
            state = RunState.RUNNING
            limit = self.facts.time_limit
            if limit is not None:
                if self.now >= since + limit:
                    end = RunEnd(category=FailureCategory.DEADLINE, message="its time limit is over")
                    return self._end(RunState.FAILED, "its time limit is over", end)
                self.wake_at.append(since + limit)
            if self.progress.running_since is None and self._needs_mark():
                return self._decide(replace(self.progress, running_since=since))
        elif (late := self._too_late()) is not None:
            return late
        extra = [pod for member, pod in self.sights.pods.items() if self._is_surplus(member, pod)]
        remove = tuple((pod, max(1, ceil(self.facts.stop_grace))) for pod in extra if not pod.deleting)
        create = () if extra and any(pod.round != self.progress.round for pod in extra) else self._missing()
        if not self.progress.created and self._is_complete():
            # The previous agent created the last of them and could not record it.
            return self._decide(replace(self.progress, created=True))
        message = self._hindered() or ("" if state is RunState.RUNNING else self._waits_for())
        if not self.sights.pods and not self.progress.created:
            state = RunState.ACCEPTED if state is RunState.PENDING and not self.progress.round else state
        wake_at = min((at for at in self.wake_at if at > self.now), default=None)
        at_work = self._count(lambda pod: pod.has_started)
        return Assessment(state, message, remove=remove, create=create, wake_at=wake_at, at_work=at_work)

    # -- decisions that end the run or restart members

    def _decided(self) -> Assessment | None:
        """Return a change of the record: the run's end, or members to restart."""
        sights = self.sights
        if (ended := self._lost()) is not None:
            return ended
        if sights.gang.refused:
            return self._end(RunState.RETURNED, sights.gang.refused)
        ends = _MemberEnds.of(self.progress)
        for member in self.wanted:
            decided = self._judge(member, ends)
            if decided is not None:
                return decided
        if ends.lost:
            decided = self._taken_away(ends)
            if decided is not None:
                return decided
        if ends.again != self.progress.again:
            since = self.progress.running_since or self._running_since()
            return self._decide(
                replace(
                    self.progress,
                    again=ends.again,
                    restarts=ends.restarts,
                    oom_kills=ends.oom_kills,
                    running_since=since,
                )
            )
        return self._succeeded()

    def _lost(self) -> Assessment | None:
        """End the run once the dispatcher has been silent for as long as the job allows."""
        lost_at = self.sights.lost_at
        if lost_at is None:
            return None
        if self.now >= lost_at:
            return self._end(RunState.LOST, "no contact with the dispatcher for as long as the job allows")
        self.wake_at.append(lost_at)
        return None

    def _judge(self, member: Member, ends: _MemberEnds) -> Assessment | None:
        """Judge one member; add the result to ``ends`` unless it decides the whole run."""
        pod = self.pods.get(member)
        name = f"{member[0]}-{member[1]}"
        if pod is None:
            if not self.progress.created or name in ends.again or self._is_done(member):
                return None
            last = self.sights.last_seen.get(member)
            if last is None or last.round != self.progress.round or not (last.disrupted or last.stage == "failed"):
                ends.lost.append((member, Loss(f"somebody deleted {name}")))
                return None
            return self._ended(member, last, ends)
        if name in ends.again:
            if ends.again[name][1] == pod.uid:
                return None  # its end has been judged; only the pod is left to delete
            del ends.again[name]
        if pod.stage != "failed" and not (pod.is_over and self._taken(pod)):
            return self._troubled(pod)
        return self._ended(member, pod, ends)

    def _ended(self, member: Member, pod: PodSight, ends: _MemberEnds) -> Assessment | None:
        """Judge a member that has failed or was taken away."""
        judged = classify(pod)
        if isinstance(judged, PodRefusal):
            return self._end(RunState.RETURNED, judged.message)
        if isinstance(judged, Loss):
            ends.lost.append((member, judged))
            return None
        return self._failed(pod, judged, ends)

    def _failed(self, pod: PodSight, failure: Failure, ends: _MemberEnds) -> Assessment | None:
        policy = self.facts.roles[pod.role]
        name = f"{pod.role}-{pod.index}"
        action, limit = policy.failure.action, policy.failure.limit
        if failure.end.category in (FailureCategory.DEADLINE, FailureCategory.CONFIG, FailureCategory.IMAGE):
            action = "failRun"  # a restart would fail again
        if failure.end.category is FailureCategory.OOM:
            ends.oom_kills[name] = ends.oom_kills.get(name, 0) + 1
        if action == "restartMember" and ends.restarts.get(name, 0) < limit:
            ends.restarts[name] = ends.restarts.get(name, 0) + 1
            ends.again[name] = (self.now + policy.back_off, pod.uid)
            return None
        if action == "restartGang" and self.progress.gang_restarts < limit:
            return self._decide(
                replace(
                    self.progress,
                    round=self.progress.round + 1,
                    gang_restarts=self.progress.gang_restarts + 1,
                    oom_kills=ends.oom_kills,
                    created=False,
                    again={},
                    done=[],
                    not_before=self.now + policy.back_off,
                    running_since=self.progress.running_since or self._running_since(),
                )
            )
        return self._end(RunState.FAILED, failure.end.message, failure.end)

    def _taken_away(self, ends: _MemberEnds) -> Assessment | None:
        """Handle members that the cluster took: below the gang's least the run is preempted; else they are recreated."""
        gone = {member for member, _ in ends.lost}
        left: dict[str, int] = {}
        for member in self.wanted:
            pod = self.pods.get(member)
            if member not in gone and (
                self._is_done(member) or (pod is not None and pod.stage in ("running", "succeeded"))
            ):
                left[member[0]] = left.get(member[0], 0) + 1
        kept = self._is_enough(left)
        for (role, index), loss in ends.lost:
            restartable = self.facts.roles[role].failure.action == "restartMember"
            if not kept and not restartable:
                words = self.sights.gang.evicted or loss.message
                if loss.category is not None:
                    end = RunEnd(category=loss.category, member=f"{role}-{index}", message=words)
                    return self._end(RunState.FAILED, words, end)
                return self._end(RunState.PREEMPTED, f"preempted by the cluster: {words}")
            pod = self.pods.get((role, index))
            ends.again[f"{role}-{index}"] = (self.now, "" if pod is None else pod.uid)
        return None

    def _troubled(self, pod: PodSight) -> Assessment | None:
        """Fail the run for a container that could not start for longer than is tolerated."""
        category = trouble(pod)
        if category is None:
            return None
        until = self._gives_up_at(pod)
        if self.now < until:
            self.wake_at.append(until)
            return None
        words = f"{pod.role}-{pod.index} cannot start ({pod.reason}): {shortened(pod.message, 600)}"
        end = RunEnd(category=category, member=f"{pod.role}-{pod.index}", message=words)
        return self._end(RunState.FAILED, words, end)

    def _succeeded(self) -> Assessment | None:
        deciding = [member for member in self.wanted if self.facts.success in (None, member[0])]
        if deciding and all(self._has_succeeded(member) for member in deciding):
            return self._end(RunState.SUCCEEDED, "")
        return None

    def _too_late(self) -> Assessment | None:
        """End the run if its placement time-out is over and the gang has no nodes, or has nodes and does not start."""
        placed = self._count(lambda pod: pod.is_placed)
        if self.progress.round and self.progress.gang_restarts and self.progress.running_since is not None:
            since = max(self.sights.accepted_at, self.progress.not_before)
        else:
            since = self.sights.accepted_at
        until = since + self.sights.placement_timeout
        if placed:
            bound_since = max((pod.created_at for pod in self.pods.values()), default=since)
            until = max(until, bound_since + self.limits.start)
        if self.now < until:
            self.wake_at.append(until)
            return None
        what = "its members have places but have not all started" if placed else self._waits_for()
        message = f"not started within the placement time-out: {what}"
        end = None if placed else RunEnd(message=message, lacks_room=True)
        return self._end(RunState.RETURNED, message, end)

    # -- members

    def _missing(self) -> tuple[Member, ...]:
        """Return the members to create now."""
        if self.now < self.progress.not_before:
            self.wake_at.append(self.progress.not_before)
            return ()
        create = []
        for member in self.wanted:
            if member in self.pods or member in self.sights.pods or self._is_done(member):
                continue
            at, _ = self.progress.again.get(f"{member[0]}-{member[1]}", (0.0, ""))
            if at > self.now:
                self.wake_at.append(at)
                continue
            create.append(member)
        return tuple(create)

    def _is_complete(self) -> bool:
        """Return whether a gang has all its members. A single member is one creation, which needs no such mark."""
        return len(self.wanted) > 1 and all(member in self.pods or self._is_done(member) for member in self.wanted)

    def _is_surplus(self, member: Member, pod: PodSight) -> bool:
        """Return whether the pod is of an earlier round, beyond the size, or has ended and is to restart."""
        if pod.round != self.progress.round or member[1] >= self.sizes.get(member[0], 0):
            return True
        _, judged = self.progress.again.get(f"{member[0]}-{member[1]}", (0.0, ""))
        return pod.uid == judged

    def _taken(self, pod: PodSight) -> bool:
        return bool(pod.disrupted) or (pod.deleting and pod.uid not in self.sights.ours and pod.stage != "succeeded")

    def _is_done(self, member: Member) -> bool:
        return (member[0], str(member[1])) in self.done

    def _has_succeeded(self, member: Member) -> bool:
        pod = self.pods.get(member)
        return self._is_done(member) or (pod is not None and pod.stage == "succeeded" and not self._taken(pod))

    def _count(self, holds: Callable[[PodSight], bool]) -> bool:
        """Return whether ``holds`` is true of as many members as the gang needs, of each role and in total."""
        counts: dict[str, int] = {}
        for member in self.wanted:
            pod = self.pods.get(member)
            if self._is_done(member) or (pod is not None and holds(pod)):
                counts[member[0]] = counts.get(member[0], 0) + 1
        return self._is_enough(counts)

    def _is_enough(self, counts: Mapping[str, int]) -> bool:
        """Return whether ``counts`` members by role make up the gang that the job needs at its current size."""
        least = min(self.facts.least, sum(self.sizes.values()))
        roles = self.facts.roles.items()
        enough = all(counts.get(name, 0) >= min(role.least, self.sizes.get(name, 0)) for name, role in roles)
        return enough and sum(counts.values()) >= least

    def _running_since(self) -> float | None:
        """Return when the gang first had its least members running; None if it has not yet."""
        if self.progress.running_since is not None:
            return self.progress.running_since
        if not self._count(lambda pod: pod.has_started):
            return None
        started = sorted(pod.started_at for pod in self.pods.values() if pod.started_at is not None)
        return started[min(len(started), self.facts.least) - 1] if started else self.now

    def _needs_mark(self) -> bool:
        """Return whether the run's start has to be recorded, as its pods will no longer show it once some are replaced."""
        return bool(self.progress.again) or self.progress.round > 0

    def _hindered(self) -> str:
        """Return a text on wanted members' problems that may pass: nodes that are not ready, containers that cannot start."""
        silence = words_on(self.pods.values(), self.sights.unready)
        troubled = [pod for pod in self.pods.values() if trouble(pod) is not None]
        if not troubled:
            return silence
        first = min(troubled, key=self._gives_up_at)
        others = f" (and {len(troubled) - 1} more members)" if len(troubled) > 1 else ""
        sentence = (
            f"{first.role}-{first.index}{others} cannot start yet ({first.reason}): {shortened(first.message, 500)}; "
            f"if that lasts until {clock(self._gives_up_at(first))} the run fails"
        )
        return f"{sentence}; {silence}" if silence else sentence

    def _gives_up_at(self, pod: PodSight) -> float:
        """Return when a container that cannot start fails the run."""
        patience = self.limits.image if trouble(pod) is FailureCategory.IMAGE else self.limits.container
        return self.sights.trouble_since.get(pod.uid, self.now) + (0.0 if pod.reason in HOPELESS else patience)

    def _waits_for(self) -> str:
        """Return why the gang is not running yet, in the scheduler's own words where it has any."""
        said = (self.sights.gang.message, self.sights.warning)
        words = ": ".join(one for one in said if one) or self.sights.waits_for
        if self.sights.prevented and len(self.pods) < len(self.wanted):
            return f"its members cannot be created at the moment: {self.sights.prevented}"
        if not words:
            talking = next((pod for pod in self.pods.values() if pod.message and not pod.is_over), None)
            words = "" if talking is None else " ".join(talking.message.split())
        unplaced = [member for member in self.wanted if (pod := self.pods.get(member)) is None or not pod.node]
        if not unplaced:
            return words
        needs = "; ".join(self._needs(name) for name in dict.fromkeys(role for role, _ in unplaced))
        sentence = f"waits for nodes for {len(unplaced)} of {len(self.wanted)} members ({needs})"
        return f"{sentence}: {words}" if words else sentence

    def _needs(self, name: str) -> str:
        """Return what each member of a role needs of its node, as text."""
        role = self.facts.roles[name]
        apart = ""
        if role.max_per_node is not None and role.max_per_node < self.sizes.get(name, 0):
            apart = f", at most {role.max_per_node} on a node"
        if self.facts.is_exclusive:
            apart = ", each on a node without other members"
        parts = [
            f"{format_quantity(one, n)} {'CPU' if one == 'cpu' else format_name(one)}"
            for one, n in sorted(role.requests.items())
        ]
        if (many := role.members_per_claim) > 1:
            apart += f", {many} that share devices on one node"
        return f"{name}: {', '.join(parts) or 'nothing'} each{apart}"

    # -- decisions

    def _end(self, state: RunState, message: str, end: RunEnd | None = None) -> Assessment:
        verdict = RecordedEnd(state, message, end)
        over = all(pod.is_over for pod in self.sights.pods.values())
        progress = replace(self.progress, verdict=verdict, ended_at=self.now if over else None)
        return self._decide(_with_results(progress, self.first, self.sights), RunState.STOPPING)

    def _decide(self, progress: Progress, state: RunState | None = None) -> Assessment:
        if state is None:
            state = RunState.RUNNING if self._running_since() is not None else RunState.PENDING
        return Assessment(state, progress=progress)
