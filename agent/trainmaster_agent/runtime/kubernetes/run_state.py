"""`RunTracker`: one run in the agent's memory, and its reported status.

Memory is a copy: all of it can be rebuilt from the record and the pods.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trainmaster.protocol.agent import MemberReport, ResizeRun, StopRun
from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.states import RunState
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.runtime.kubernetes.failure_classification import shortened
from trainmaster_agent.runtime.kubernetes.manifests import Manifests
from trainmaster_agent.runtime.kubernetes.reconcile import Assessment
from trainmaster_agent.runtime.kubernetes.record import KubeRunRecord
from trainmaster_agent.runtime.kubernetes.run_spec import Facts, Member
from trainmaster_agent.runtime.kubernetes.workload_objects import NewPod, WorkloadSight
from trainmaster_agent.runtime.port import RunStatus

GroupOf = Callable[[str], str | None]
"""Returns the group of a node by the node's name."""
_STRIDE = 16
"""Bits of a sequence number that count changes within one term of the agent."""
_LONGEST_MESSAGE = 1000
_LONGEST_MEMBER_MESSAGE = 300
_STATUS_SECONDS = 10.0
"""Time between reports of an object's status whose conditions stay: a Job's counts change with each of its pods."""
UNLISTED = "unlisted"
"""Group of members whose node is in no reported group, for example because it was cordoned."""


@dataclass(slots=True)
class RunTracker:
    """``wishes``: the dispatcher's orders that are not in the record yet; ``retry``: number of failures in a row."""

    record: KubeRunRecord
    facts: Facts
    status: RunStatus
    pods: dict[Member, PodSight] = field(default_factory=dict)
    objects: dict[str, Mapping[str, object]] = field(default_factory=dict)
    """The scheduler's objects, by resource and name."""
    manifests: Manifests | None = None
    made_for: tuple[int, tuple[tuple[str, int], ...]] | None = None
    """Round and sizes of the manifests."""
    wished_stop: StopRun | None = None
    wished_resize: ResizeRun | None = None
    ours: set[str] = field(default_factory=set)
    last_seen: dict[Member, PodSight] = field(default_factory=dict)
    """Last state of members whose pod is gone."""
    gone: set[str] = field(default_factory=set)
    """Uids of pods that are gone: a late answer must not bring them back."""
    ran_in: int = -1
    """The round in which the gang last ran."""
    trouble_since: dict[str, float] = field(default_factory=dict)
    forbidden_since: float | None = None
    """Time since when the agent lacks a permission for it, on the monotonic clock."""
    looked_over: bool = False
    """Whether the check that this cluster can run it has passed."""
    prepared: int = -1
    """The round whose objects exist."""
    listed: dict[str, int] | None = None
    """Members by role of which the list of members is; None where that is not known."""
    fitted: tuple[int, ...] = ()
    """The least numbers, of the gang and of each role, that the scheduler's objects have; empty where that is not known."""
    opened_at: float | None = None
    waits_for: str = ""
    prevented: str = ""
    """Why the API server did not do the last step, such as the creation of its objects, and is called again; empty if it did."""
    signalled: bool = False
    record_is_gone: bool = False
    namespace_is_gone: bool = False
    """Whether the namespace of its members was deleted with all its content."""
    retries: int = 0
    errors: int = 0
    """Unexpected errors in a row."""
    next_look: float = float("inf")
    counter: int = 0
    newcomers: dict[Member, float] = field(default_factory=dict)
    """Members that a growth has added, with the time."""
    workload: WorkloadSight | None = None
    """The object whose controller makes the pods, where it exists."""
    warning: str = ""
    """The last warning about the object or what its controller has made, while pods of it are missing; without an object, the last
    event about the gang, where events alone say why it waits.
    """
    warning_due: float = float("inf")
    """When warnings are read next."""
    touch_due: float = float("inf")
    """When the gang's object is changed so that its scheduler tries again; infinite: the scheduler does so by itself."""
    new_pods: dict[str, NewPod] = field(default_factory=dict)
    """Pods of that controller without an index, by uid."""
    object_status: Mapping[str, object] | None = None
    """Status of the object that is reported, which changes at most every ``_STATUS_SECONDS`` while its conditions stay."""
    object_status_at: float = -1e9
    record_read_at: float = -1e9
    """Time of the API server's last answer on the record, on the monotonic clock."""

    @property
    def run(self) -> str:
        return self.record.start.run

    @property
    def sizes(self) -> dict[str, int]:
        return self.record.progress.sizes or self.record.start.sizes

    @property
    def has_run(self) -> bool:
        """Return whether it was reported as running: its gang was complete."""
        return self.status.state.rank >= RunState.RUNNING.rank

    def note(self, sight: PodSight) -> bool:
        """Take a sight of one of its pods, unless a newer one is known; return whether it was new."""
        # Versions rise over all pods: a late event of a pod is older than the first sight of the next pod of that name.
        held = self.pods.get((sight.role, sight.index))
        if held is not None and held.version >= sight.version:
            return False
        if sight.uid in self.gone:
            return False
        if held is not None and held.uid != sight.uid and _is_earlier(sight, held):
            return False
        self.pods[sight.role, sight.index] = sight
        return True

    def lose(self, sight: PodSight) -> None:
        """Note that a pod no longer exists."""
        self.gone.add(sight.uid)
        held = self.pods.get((sight.role, sight.index))
        if held is not None and held.uid == sight.uid:
            self.last_seen[sight.role, sight.index] = held
            del self.pods[sight.role, sight.index]

    def lose_new(self, uid: str) -> None:
        """Note that a pod no longer exists that no watch has shown with an index.

        It may have one by the answer of the call that gave it, if it was removed by that: an API server removes a terminating pod
        that waits for nothing more as soon as it is changed.
        """
        self.gone.add(uid)
        self.new_pods.pop(uid, None)
        for held in [one for one in self.pods.values() if one.uid == uid]:
            self.lose(held)

    def take_object_status(self, now: float) -> float | None:
        """Report the object's status from now on, if it may change again already; else return the time at which it may."""
        sight = self.workload
        if sight is None or sight.status == self.object_status:
            return None
        due = self.object_status_at + _STATUS_SECONDS
        known = self.object_status or {}
        if now < due and sight.end is None and sight.status.get("conditions") == known.get("conditions"):
            return due
        self.object_status, self.object_status_at = sight.status, now
        return None

    def tell(self, found: Assessment, term: int, group_of: GroupOf) -> bool:
        """Update the status; return whether it has changed."""
        progress, reported = self.record.progress, self.status
        state = found.state if found.state.rank >= reported.state.rank else reported.state
        verdict = progress.verdict if state.is_terminal else None
        message = found.message or (self._object_progress() if state is RunState.RUNNING else "")
        fresh = RunStatus(
            self.run,
            progress.generation,
            reported.seq,
            state,
            message[:_LONGEST_MESSAGE],
            None if verdict is None else verdict.end,
            self._placement(group_of),
            self.members(group_of),
            None if progress.sizes is None else dict(progress.sizes),
            self.object_status,
            None if verdict is None else verdict.results,
            "" if verdict is None else verdict.results_error,
        )
        if fresh == reported:
            return False
        self.counter += 1
        base = max(0, term - self.record.term) << _STRIDE
        self.status = replace(fresh, seq=max(reported.seq + 1, base + self.counter))
        return True

    def _object_progress(self) -> str:
        kind = self.facts.workload
        words = "" if kind is None or self.object_status is None else kind.progress(self.object_status)
        return f"its {kind.kind}: {words}" if kind is not None and words else ""

    def show(self, message: str) -> bool:
        """Report the run as last reported, with another message; return whether that is new."""
        if self.status.state.is_terminal or self.status.message == message[:_LONGEST_MESSAGE]:
            return False
        self.counter += 1
        self.status = replace(self.status, message=message[:_LONGEST_MESSAGE], seq=self.status.seq + 1)
        return True

    def _placement(self, group_of: GroupOf) -> MemberPlacement | None:
        placed: MemberPlacement = {}
        for (role, _), pod in self.pods.items():
            if pod.node and pod.round == self.record.progress.round:
                roles = placed.setdefault(group_of(pod.node) or UNLISTED, {})
                roles[role] = roles.get(role, 0) + 1
        if not placed and self.status.placement is None:
            return None
        # An ended run still reports its placement, as in the other runtimes.
        return placed or self.status.placement

    def members(self, group_of: GroupOf) -> tuple[MemberReport, ...]:
        progress = self.record.progress
        leaving = progress.stop is not None or progress.verdict is not None
        reports = []
        earlier = {(one.role, one.index): one for one in self.status.members}
        for role, index in self.facts.wanted(self.sizes):
            name = f"{role}-{index}"
            pod = self.pods.get((role, index))
            restarts = progress.restarts.get(name, 0) + progress.gang_restarts
            if (pod is None or pod.round != progress.round) and (role, index) in earlier:
                restarts = earlier[role, index].restarts  # it has not restarted yet
            if pod is None:
                if name in progress.done:
                    reports.append(_as_before(earlier, role=role, index=index, state="succeeded", restarts=restarts))
                elif leaving and (role, index) in earlier:
                    before = earlier[role, index]
                    was_over = before.state in ("succeeded", "failed")
                    reports.append(before if was_over else before.model_copy(update={"state": "stopped"}))
                else:
                    state = "stopped" if leaving else "pending"
                    reports.append(_as_before(earlier, role=role, index=index, state=state, restarts=restarts))
                continue
            reports.append(
                _as_before(
                    earlier,
                    role=role,
                    index=index,
                    # A member that was stopped has not failed, whatever its exit code.
                    state="stopped" if leaving and pod.is_over and pod.uid in self.ours else _MEMBER_STATES[pod.stage],
                    node=pod.node,
                    group=(group_of(pod.node) or UNLISTED) if pod.node else "",
                    exit_code=pod.exit_code if pod.is_over else None,
                    signal=pod.signal,
                    restarts=restarts,
                    message=_member_words(pod),
                )
            )
        return tuple(reports)


_NO_POD: dict[str, Any] = {"node": "", "group": "", "exit_code": None, "signal": None, "message": ""}


def _as_before(earlier: Mapping[Member, MemberReport], **fields: Any) -> MemberReport:
    """Return the report of a member with these fields: the earlier one where it is equal, as most are and validation is slow."""
    before = earlier.get((fields["role"], fields["index"]))
    return before if before is not None and before.__dict__ == _NO_POD | fields else MemberReport(**fields)


def _is_earlier(sight: PodSight, held: PodSight) -> bool:
    """Return whether a pod came before the one that is known of the same member: a controller keeps its ended pods for a while."""
    return sight.created_at < held.created_at or (sight.is_over and not held.is_over)


_MEMBER_STATES: dict[str, Literal["pending", "running", "succeeded", "failed"]] = {
    "gated": "pending",
    "waiting": "pending",
    "bound": "pending",
    "running": "running",
    "succeeded": "succeeded",
    "failed": "failed",
}


def _member_words(pod: PodSight) -> str:
    words = f"{pod.reason}: {pod.message}" if pod.reason and pod.message else pod.reason or pod.message
    return shortened(words, _LONGEST_MEMBER_MESSAGE) if pod.stage != "succeeded" else ""


def first_status(record: KubeRunRecord, term: int) -> RunStatus:
    """Return the first status of a run that has just been accepted or read."""
    seq = max(0, term - record.term) << _STRIDE
    return RunStatus(record.start.run, record.progress.generation, seq, RunState.ACCEPTED)
