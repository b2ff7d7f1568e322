"""What the Kubernetes agent decides of a run: scenarios, of which each name says what has to come of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from trainmaster.protocol.agent import RunEnd, StartRun, StopRun
from trainmaster.protocol.states import FailureCategory, RunState, StopCause
from trainmaster_agent.kube.pods import PodSight, Stage
from trainmaster_agent.placement.port import GangState
from trainmaster_agent.runtime.kubernetes.node_health import Unready
from trainmaster_agent.runtime.kubernetes.reconcile import Assessment, ReconcileLimits, Sights, reconcile
from trainmaster_agent.runtime.kubernetes.record import Progress, RecordedEnd
from trainmaster_agent.runtime.kubernetes.run_spec import Member, facts_of

NOW = 1_000.0
LIMITS = ReconcileLimits(image=120, container=30, start=1800, opened=20)
RUN = "gang-0000001-r1"
CREATED = Progress(created=True)
STARTED = NOW - 50


def a_run(size: int = 3, **spec: Any) -> StartRun:
    role = {"name": "worker", "replicas": size, "template": {"image": "sim", "resources": {"cpu": "1"}}}
    return StartRun(
        run=RUN,
        job="gang-0000001",
        queue="org/team",
        attempt=1,
        token=1,
        generation=1,
        spec={"name": "gang", "queue": "org/team", "roles": [role], **spec},
        sizes={"worker": size},
        placement_timeout_seconds=600,
    )


def pod(index: int, stage: Stage = "running", **more: Any) -> PodSight:
    """Return a member; ``uid`` is ``u`` and its index unless another is given."""
    started = STARTED if stage in ("running", "succeeded", "failed") else None
    placed = "" if stage in ("gated", "waiting") else "node-0"
    fields: dict[str, Any] = {
        "name": f"{RUN}-worker-{index}",
        "namespace": "jobs",
        "uid": f"u{index}",
        "version": 1,
        "run": RUN,
        "role": "worker",
        "index": index,
        "stage": stage,
        "node": placed,
        "created_at": NOW - 60,
        "started_at": started,
        **more,
    }
    return PodSight(**fields)


def pods(*sights: PodSight) -> dict[Member, PodSight]:
    return {(one.role, one.index): one for one in sights}


NO_SUCH_FILE = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    'unable to start container process: error during container init: exec: "/opt/train": '
    "stat /opt/train: no such file or directory: unknown"
)
ALL_RUN = (pod(0), pod(1), pod(2))
RESTART_MEMBER = {"memberFailure": {"action": "restartMember", "limit": 2, "backOff": "10s"}}
RESTART_GANG = {"memberFailure": {"action": "restartGang", "limit": 2, "backOff": "10s"}}
STOP = StopRun(run=RUN, generation=2, cause=StopCause.PREEMPT, grace_seconds=30)

SAVE = STOP.model_copy(update={"checkpoint_seconds": 60.0, "checkpoint_signal": "SIGUSR1"})
NAMES = ("worker-0", "worker-1", "worker-2")


@dataclass(frozen=True)
class Case:
    """What is seen, and what is to come of it; what is not said of the outcome may be anything."""

    seen: tuple[PodSight, ...] = ()
    progress: Progress = field(default_factory=lambda: CREATED)
    spec: Mapping[str, Any] = field(default_factory=dict)
    size: int = 3
    sights: Mapping[str, Any] = field(default_factory=dict)
    # the outcome
    state: RunState | None = None
    words: str = ""
    says_nothing: bool = False
    creates: tuple[int, ...] = ()
    removes: tuple[int, ...] = ()
    ends: RunState | None = None
    """The verdict that is written down."""
    lacks_room: bool = False
    category: FailureCategory | None = None
    written: Mapping[str, Any] | None = None
    """Fields of the record that is to be written; None: nothing is."""


def failed(index: int, code: int = 1, **more: Any) -> PodSight:
    return pod(index, "failed", exit_code=code, **more)


EXITED = RunEnd(
    category=FailureCategory.EXIT, exit_code=1, member="worker-1", message="worker-1 ended with exit code 1"
)
FAILED_WITHOUT_RESULTS = RecordedEnd(RunState.FAILED, EXITED.message, EXITED)

CASES: dict[str, Case] = {
    # -- creating
    "all members are created at first": Case(progress=Progress(), state=RunState.ACCEPTED, creates=(0, 1, 2)),
    "after a crash while members were created only those that are missing are created": Case(
        (pod(1, "waiting"),), Progress(), creates=(0, 2), state=RunState.PENDING
    ),
    "after a crash just behind the last creation it is written down that all are there": Case(
        (pod(0, "waiting"), pod(1, "waiting"), pod(2, "waiting")), Progress(), written={"created": True}
    ),
    "of a member alone nothing is written down": Case((pod(0),), Progress(), size=1, state=RunState.RUNNING),
    "nothing is created before the pause of a restart is over": Case(
        progress=Progress(round=1, not_before=NOW + 5), state=RunState.PENDING
    ),
    "members of an earlier round have to be gone before new ones are created": Case(
        (pod(0), pod(1), pod(2)), Progress(round=1), removes=(0, 1, 2)
    ),
    # -- waiting
    "a gang of which one member has no place waits": Case(
        (pod(0), pod(1), pod(2, "waiting", message="0/2 nodes are available")),
        state=RunState.PENDING,
        words="waits for nodes for 1 of 3 members (worker: 1 CPU each)",
    ),
    "a gang that may start with two runs with two": Case(
        (pod(0), pod(1), pod(2, "waiting")), spec={"minMember": 2}, state=RunState.RUNNING
    ),
    "without places the run is returned when the placement time-out is over": Case(
        (pod(0, "waiting"), pod(1, "waiting"), pod(2, "waiting")),
        sights={"accepted_at": NOW - 601},
        ends=RunState.RETURNED,
        lacks_room=True,
    ),
    "with places it may take longer to start": Case(
        (pod(0, "bound"), pod(1, "bound"), pod(2, "bound")),
        sights={"accepted_at": NOW - 601},
        state=RunState.PENDING,
    ),
    "what the scheduler will never place is returned at once": Case(
        (pod(0, "waiting"),),
        sights={"gang": GangState(refused="no such queue")},
        ends=RunState.RETURNED,
        words="no such queue",
    ),
    # -- members taken away
    "a member that somebody deleted ends a gang below its least as preempted": Case(
        (pod(0), pod(2)), ends=RunState.PREEMPTED, words="preempted by the cluster: somebody deleted worker-1"
    ),
    "a member that is being deleted counts until its processes have ended": Case(
        (pod(0), pod(1, deleting=True), pod(2)), state=RunState.RUNNING
    ),
    "a member that was deleted and has ended was taken away, whatever its exit code": Case(
        (pod(0), failed(1, 143, deleting=True), pod(2)), ends=RunState.PREEMPTED
    ),
    "a member that ended well while it was deleted has succeeded": Case(
        (pod(0), pod(1, "succeeded", deleting=True), pod(2)), state=RunState.RUNNING
    ),
    "a member that this agent told to go was not taken away": Case(
        (pod(0), pod(1, deleting=True), pod(2)), sights={"ours": frozenset(("u1",))}, state=RunState.RUNNING
    ),
    "a deleted member that is not needed for the gang comes again": Case(
        (pod(0), pod(2)), spec={"minMember": 2}, written={"again": {"worker-1": (NOW, "")}}
    ),
    "a deleted member of a role whose members restart comes again alone": Case(
        (pod(0), pod(2)), spec=RESTART_MEMBER, written={"again": {"worker-1": (NOW, "")}, "restarts": {}}
    ),
    "a member to come again is created once its pod is gone": Case(
        (pod(0), pod(2)),
        Progress(created=True, again={"worker-1": (NOW, "u1")}, running_since=STARTED),
        spec=RESTART_MEMBER,
        creates=(1,),
        state=RunState.RUNNING,
    ),
    "while the pod of a member to come again is there it is removed and none is created": Case(
        (pod(0), failed(1), pod(2)),
        Progress(created=True, again={"worker-1": (NOW, "u1")}, running_since=STARTED),
        spec=RESTART_MEMBER,
        removes=(1,),
    ),
    "a member preempted by the scheduler ends the gang as preempted": Case(
        (pod(0), failed(1, disrupted="PreemptionByScheduler"), pod(2)), ends=RunState.PREEMPTED
    ),
    "a lost node fails the run by its category": Case(
        (pod(0), failed(1, disrupted="DeletionByTaintManager"), pod(2)),
        ends=RunState.FAILED,
        category=FailureCategory.NODE_LOST,
    ),
    "a member whose pod is gone already was taken away by whom its pod said last": Case(
        (pod(0), pod(2)),
        sights={"last_seen": pods(pod(1, deleting=True, disrupted="DeletionByTaintManager"))},
        ends=RunState.FAILED,
        category=FailureCategory.NODE_LOST,
    ),
    "a member that had failed by itself before somebody deleted it has failed": Case(
        (pod(0), pod(2)),
        sights={"last_seen": pods(failed(1, 3))},
        ends=RunState.FAILED,
        category=FailureCategory.EXIT,
    ),
    "the pod of an earlier round says nothing of this one": Case(
        (pod(0, round=1), pod(2, round=1)),
        Progress(created=True, round=1),
        sights={"last_seen": pods(failed(1, 3))},
        ends=RunState.PREEMPTED,
    ),
    "a crashed node is not blamed on the program": (
        Case(
            (pod(0), pod(1, "failed", reason="Unknown"), pod(2)),
            ends=RunState.FAILED,
            category=FailureCategory.NODE_LOST,
            words="node node-0, or its container runtime, crashed under worker-1",
        )
    ),
    "a container that its kubelet does not find went with its node": Case(
        (pod(0), pod(1, "failed", reason="ContainerStatusUnknown"), pod(2)),
        ends=RunState.FAILED,
        category=FailureCategory.NODE_LOST,
    ),
    "a member of a role whose members restart comes again after its node has crashed, and no restart is counted": Case(
        (pod(0), pod(1, "failed", reason="Unknown"), pod(2)),
        spec=RESTART_MEMBER,
        written={"again": {"worker-1": (NOW, "u1")}, "restarts": {}},
    ),
    "a succeeded member that somebody removes later has succeeded": Case(
        (pod(0), pod(2)), Progress(created=True, done=["worker-1"]), state=RunState.RUNNING
    ),
    "a node that does not take a member returns the run": Case(
        (pod(0), pod(1, "failed", reason="OutOfcpu"), pod(2)), ends=RunState.RETURNED
    ),
    # -- failures
    "a failed member fails the run": Case(
        (pod(0), failed(1, 3), pod(2)), ends=RunState.FAILED, category=FailureCategory.EXIT, words="exit code 3"
    ),
    "a failed member restarts after its pause where the job says so": Case(
        (pod(0), failed(1), pod(2)),
        spec=RESTART_MEMBER,
        written={"again": {"worker-1": (NOW + 10, "u1")}, "restarts": {"worker-1": 1}},
    ),
    "a member that was ended for lack of memory is counted beside its restart": Case(
        (pod(0), failed(1, 137, reason="OOMKilled"), pod(2)),
        Progress(created=True, restarts={"worker-1": 1}, oom_kills={"worker-1": 1, "worker-2": 1}),
        spec=RESTART_MEMBER,
        written={"restarts": {"worker-1": 2}, "oom_kills": {"worker-1": 2, "worker-2": 1}},
    ),
    "a gang that restarts as one of its members lacked memory counts that": Case(
        (pod(0), failed(1, 137, reason="OOMKilled"), pod(2)),
        spec=RESTART_GANG,
        written={"gang_restarts": 1, "oom_kills": {"worker-1": 1}},
    ),
    "a command that cannot be started fails the run, whatever the job says of restarts": Case(
        (pod(0), pod(1, "failed", reason="StartError", message=NO_SUCH_FILE), pod(2)),
        spec=RESTART_MEMBER,
        ends=RunState.FAILED,
        category=FailureCategory.CONFIG,
        words="the command of worker-1 could not be started: failed to create containerd task",
    ),
    "the last words of the runtime are told": Case(
        (pod(0), pod(1, "failed", reason="StartError", message=NO_SUCH_FILE), pod(2)),
        spec=RESTART_GANG,
        ends=RunState.FAILED,
        category=FailureCategory.CONFIG,
        words="no such file or directory",
    ),
    "an entry point that cannot be read fails the run, whatever the job says of restarts": Case(
        (pod(0), failed(1, 82, init_container="read-entry-point", message="the registry does not have it"), pod(2)),
        spec=RESTART_MEMBER,
        ends=RunState.FAILED,
        category=FailureCategory.IMAGE,
        words="the entry point of the image of worker-1 was not read: the registry does not have it",
    ),
    "a member that has failed too often fails the run": Case(
        (pod(0), failed(1), pod(2)),
        Progress(created=True, restarts={"worker-1": 2}),
        spec=RESTART_MEMBER,
        ends=RunState.FAILED,
    ),
    "a failed member restarts the whole gang where the job says so": Case(
        (pod(0), failed(1), pod(2)),
        spec=RESTART_GANG,
        written={"round": 1, "gang_restarts": 1, "created": False, "not_before": NOW + 10},
    ),
    "an image that cannot be pulled is waited for": Case(
        (pod(0), pod(1, "bound", reason="ImagePullBackOff"), pod(2)),
        sights={"trouble_since": {"u1": NOW - 119}},
        state=RunState.PENDING,
    ),
    "why an image cannot be pulled is told while it is waited for": Case(
        (pod(0), pod(1, "bound", reason="ErrImagePull", message="x: not found"), pod(2)),
        sights={"trouble_since": {"u1": NOW}},
        state=RunState.PENDING,
        words="worker-1 cannot start yet (ErrImagePull): x: not found; if that lasts until 1970-01-01 00:18:40 UTC",
    ),
    "why a container cannot be created is told though the scheduler has words of its own": Case(
        (pod(0, "bound", reason="CreateContainerConfigError", message='secret "s" not found'), pod(1), pod(2)),
        sights={"trouble_since": {"u0": NOW}, "gang": GangState(message="3 of 3 placed")},
        state=RunState.PENDING,
        words='worker-0 cannot start yet (CreateContainerConfigError): secret "s" not found',
    ),
    "a member that cannot start again is told though the gang runs": Case(
        (pod(0), pod(1, "bound", reason="ErrImagePull", message="denied"), pod(2)),
        spec={"minMember": 2},
        state=RunState.RUNNING,
        words="worker-1 cannot start yet (ErrImagePull): denied",
    ),
    "members on a node that does not answer are told, since when, and what comes next": Case(
        ALL_RUN,
        sights={"unready": {"node-0": Unready(silent=True, since=NOW, reason="NodeStatusUnknown")}},
        state=RunState.RUNNING,
        words=(
            "worker-0, worker-1, worker-2 on node node-0, which Kubernetes has counted as silent since 1970-01-01 00:16:40 UTC "
            "(NodeStatusUnknown): whether it still runs is unknown. Unless the node answers, Kubernetes tells it to end"
        ),
    ),
    "a member that was told to end on a silent node is told to count still": Case(
        (pod(0, deleting=True), pod(1, node="node-1"), pod(2, node="node-1")),
        sights={"unready": {"node-0": Unready(silent=True, since=NOW)}},
        state=RunState.RUNNING,
        words="whether it has is unknown. Each counts as running until the node answers again, or until its object is removed",
    ),
    "a run that is stopped says which silent node holds that up": Case(
        (pod(0, deleting=True, grace=10), pod(1, "succeeded"), pod(2, "succeeded")),
        Progress(created=True, stop=STOP, stopped_at=NOW, generation=2),
        sights={"unready": {"node-0": Unready(silent=True, since=NOW)}},
        state=RunState.STOPPING,
        words="worker-0 on node node-0, which Kubernetes has counted as silent since",
    ),
    "a node that is not ready but answers is told": Case(
        ALL_RUN,
        sights={"unready": {"node-0": Unready(silent=False, since=NOW, reason="KubeletNotReady")}},
        state=RunState.RUNNING,
        words="on node node-0, which has not been ready since 1970-01-01 00:16:40 UTC (KubeletNotReady)",
    ),
    "nothing is told of silent nodes that have none of its members": Case(
        ALL_RUN,
        sights={"unready": {"node-7": Unready(silent=True, since=NOW)}},
        state=RunState.RUNNING,
        says_nothing=True,
    ),
    "an image that cannot be pulled for too long fails the run": Case(
        (pod(0), pod(1, "bound", reason="ImagePullBackOff"), pod(2)),
        sights={"trouble_since": {"u1": NOW - 121}},
        ends=RunState.FAILED,
        category=FailureCategory.IMAGE,
    ),
    # -- ends
    "a run whose members have all succeeded has succeeded and is over": Case(
        (pod(0, "succeeded"), pod(1, "succeeded"), pod(2, "succeeded")),
        ends=RunState.SUCCEEDED,
        written={"ended_at": NOW},
    ),
    "the results of the first member are written down once all have ended": Case(
        (pod(0, "succeeded", results='{"a": 1}'), pod(1, "succeeded", results='{"b": 1}')),
        size=2,
        ends=RunState.SUCCEEDED,
        written={"verdict": RecordedEnd(RunState.SUCCEEDED, results={"a": 1})},
    ),
    "the results of a first member that is stopped last are written down as well": Case(
        (failed(0, 143, results='{"a": 1}'), failed(1)),
        Progress(created=True, verdict=FAILED_WITHOUT_RESULTS),
        size=2,
        written={"verdict": replace(FAILED_WITHOUT_RESULTS, results={"a": 1}), "ended_at": NOW},
    ),
    "results are written down although the pod that left them is gone": Case(
        (failed(1),),
        Progress(created=True, verdict=FAILED_WITHOUT_RESULTS),
        size=2,
        sights={"last_seen": pods(failed(0, 143, results='{"a": 1}'))},
        written={"verdict": replace(FAILED_WITHOUT_RESULTS, results={"a": 1}), "ended_at": NOW},
    ),
    "results of a first member that has ended are written down with the verdict, as its pod may be gone later": Case(
        (pod(0, "succeeded", results='{"a": 1}'), failed(1), pod(2)),
        written={"verdict": RecordedEnd(RunState.FAILED, EXITED.message, EXITED, {"a": 1}), "ended_at": None},
    ),
    "results stay with the verdict when that pod is not known any more": Case(
        (failed(1),),
        Progress(created=True, verdict=replace(FAILED_WITHOUT_RESULTS, results={"a": 1})),
        written={"verdict": replace(FAILED_WITHOUT_RESULTS, results={"a": 1}), "ended_at": NOW},
    ),
    "a first member that still runs has left nothing yet": Case(
        (pod(0), failed(1, results='{"b": 1}')),
        size=2,
        written={"verdict": RecordedEnd(RunState.FAILED, EXITED.message, EXITED), "ended_at": None},
    ),
    "results of an earlier round do not count": Case(
        (failed(0, 143, results='{"a": 1}'), failed(1)),
        Progress(created=True, round=1, verdict=FAILED_WITHOUT_RESULTS),
        size=2,
        written={"verdict": FAILED_WITHOUT_RESULTS, "ended_at": NOW},
    ),
    "results that cannot be read fail nothing": Case(
        (pod(0, "succeeded", results="done"),),
        size=1,
        ends=RunState.SUCCEEDED,
        written={
            "verdict": RecordedEnd(
                RunState.SUCCEEDED,
                results_error="the results of worker-0 are not a JSON object: Expecting value: line 1 column 1 (char 0)",
            )
        },
    ),
    "a run that was preempted has no results": Case(
        (failed(0, 143, results='{"a": 1}'),),
        Progress(created=True, verdict=RecordedEnd(RunState.PREEMPTED, "taken")),
        size=1,
        written={"verdict": RecordedEnd(RunState.PREEMPTED, "taken"), "ended_at": NOW},
    ),
    "one that still runs keeps the run going": Case(
        (pod(0, "succeeded"), pod(1, "succeeded"), pod(2)), state=RunState.RUNNING
    ),
    "the time limit ends a run": Case(
        ALL_RUN, spec={"timeLimit": "50s"}, ends=RunState.FAILED, category=FailureCategory.DEADLINE
    ),
    "a run is lost when the dispatcher was silent for too long": Case(
        ALL_RUN, sights={"lost_at": NOW}, ends=RunState.LOST
    ),
    "a stopped run tells its members to go within the grace": Case(
        ALL_RUN,
        Progress(created=True, stop=STOP, stopped_at=NOW, generation=2),
        state=RunState.STOPPING,
        removes=(0, 1, 2),
    ),
    "members that may save their state have time for it": Case(
        ALL_RUN, Progress(created=True, stop=SAVE, stopped_at=NOW - 10, generation=2), state=RunState.STOPPING
    ),
    "members that could not be told to save their state are not waited for": Case(
        ALL_RUN,
        Progress(created=True, stop=SAVE, stopped_at=NOW - 1, generation=2, not_told=dict.fromkeys(NAMES, "no shell")),
        state=RunState.STOPPING,
        removes=(0, 1, 2),
        words="the checkpoint signal did not reach worker-0, worker-1, worker-2: no shell",
    ),
    "one member that was told to save its state is waited for with all": Case(
        ALL_RUN,
        Progress(created=True, stop=SAVE, stopped_at=NOW - 1, generation=2, not_told={"worker-0": "no shell"}),
        state=RunState.STOPPING,
        words="the checkpoint signal did not reach worker-0: no shell",
    ),
    "a run whose members could not be told to save their state ends with that": Case(
        (),
        Progress(created=True, stop=SAVE, generation=2, not_told={"worker-0": "no shell"}, ended_at=NOW),
        state=RunState.PREEMPTED,
        words="the checkpoint signal did not reach worker-0: no shell",
    ),
    "a member that goes already is not told again": Case(
        (pod(0, deleting=True, grace=20), pod(1)),
        Progress(created=True, stop=STOP, stopped_at=NOW),
        state=RunState.STOPPING,
        removes=(1,),
    ),
    "a stopped run is over once every member is gone": Case(
        (failed(0),), Progress(created=True, stop=STOP, stopped_at=NOW), written={"ended_at": NOW}
    ),
    "with a verdict members leave and none is created": Case(
        (pod(1),),
        Progress(verdict=RecordedEnd(RunState.PREEMPTED, "taken")),
        state=RunState.STOPPING,
        words="taken",
        removes=(1,),
    ),
    "what is over stays as it was decided": Case(
        progress=Progress(verdict=RecordedEnd(RunState.PREEMPTED, "taken"), ended_at=NOW - 1),
        state=RunState.PREEMPTED,
        words="taken",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_comes_of(name: str) -> None:
    case = CASES[name]
    found = look(case)
    if case.state is not None:
        assert found.progress is None, "nothing was to be decided"
        assert found.state is case.state
    assert sorted(index for _, index in found.create) == list(case.creates)
    assert sorted(one.index for one, _ in found.remove) == list(case.removes)
    verdict = None if found.progress is None else found.progress.verdict
    if case.ends is not None:
        assert verdict is not None
        assert verdict.state is case.ends
        assert case.words in verdict.message
        assert case.lacks_room == (verdict.end is not None and verdict.end.lacks_room)
        if case.category is not None:
            assert verdict.end is not None
            assert verdict.end.category is case.category
    elif case.words:
        assert case.words in found.message
    if case.says_nothing:
        assert found.message == ""
    for name_of_field, value in (case.written or {}).items():
        assert found.progress is not None, "something was to be written down"
        assert getattr(found.progress, name_of_field) == value


def look(case: Case) -> Assessment:
    start = a_run(case.size, **case.spec)
    sights = Sights(**{"pods": pods(*case.seen), "accepted_at": NOW - 60, **case.sights})
    return reconcile(facts_of(start), case.progress, start.sizes, sights, LIMITS, NOW)


@pytest.mark.parametrize("name", CASES)
def test_what_was_decided_is_not_decided_anew_but_acted_on(name: str) -> None:
    """An agent that dies after writing finds its decision: looking again never decides the same thing once more."""
    case = CASES[name]
    for _ in range(3):
        found = look(case)
        if found.progress is None:
            return
        assert found.progress != case.progress
        case = replace(case, progress=found.progress)
    raise AssertionError(f"it does not come to rest: {found.progress}")
