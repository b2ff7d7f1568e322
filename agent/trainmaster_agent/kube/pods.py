"""`PodSight`: a member's state as its pod object reports it. Pure.

Reasons and conditions: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/ and, for disruptions,
https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from trainmaster.protocol.quantities import parse_quantity

LABEL_RUN = "trainmaster.dev/run"
LABEL_ROLE = "trainmaster.dev/role"
LABEL_INDEX = "trainmaster.dev/index"
LABEL_ROUND = "trainmaster.dev/round"
LABEL_HOLDER = "trainmaster.dev/holder"
"""Annotation with the identity of the records that hold the object's run."""

LABEL_EXCLUSIVE = "trainmaster.dev/exclusive"
"""Label of members that have their nodes for themselves."""

RESULTS_PATH = "/dev/trainmaster-results"
"""Termination message path of a member that may leave results: its text is no message on how the member ended."""

_FIRST_SIGNAL, _LAST_SIGNAL = 129, 192

UNSEEN_ENDS = frozenset(("Unknown", "ContainerStatusUnknown"))
"""Reasons of containers whose end nobody observed: containerd's after a crash of the node or of itself (with exit code 255), and the
kubelet's for a container that it does not find (with 137)."""
START_FAILURES = frozenset(("StartError", "ContainerCannotRun"))
"""Reasons of containers whose command the runtime could not execute; the message is the runtime's."""
_NO_EXIT_CODE = UNSEEN_ENDS | START_FAILURES
"""Reasons with an invented exit code: no process ended with it."""
_WAITS_FOR_OTHERS = frozenset(("PodInitializing", "ContainerCreating"))
"""Reasons of containers that wait for others, such as for an init container whose image cannot be pulled, or are about to start."""

_OUT_OF_MEMORY = "OOMKilled"

Stage = Literal["gated", "waiting", "bound", "running", "succeeded", "failed"]


@dataclass(frozen=True, slots=True)
class PodSight:
    """One pod at one moment.

    ``stage``: *gated* waits for scheduling gates, *waiting* for a node, *bound* has a node and has not started, *running* has had all
    containers started. ``deleting``: somebody has deleted it, and its processes may still be there.
    """

    name: str
    namespace: str
    uid: str
    version: int
    run: str
    role: str
    index: int
    stage: Stage
    gates: tuple[str, ...] = ()
    round: int = 0
    """Round of members it belongs to; rises when a gang is restarted as a whole."""
    node: str = ""
    deleting: bool = False
    grace: int | None = None
    """Grace in seconds of the deletion in progress."""
    created_at: float = 0.0
    started_at: float | None = None
    """Start of its last container, in seconds of the epoch."""
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    """Reason of the end or of the delay, such as OOMKilled, Evicted, ImagePullBackOff or Unschedulable."""
    message: str = ""
    disrupted: str = ""
    """The reason of its DisruptionTarget condition, such as PreemptionByScheduler; empty without one."""
    holder: str = ""
    """Identity of the records that hold its run; empty for pods of older releases."""
    container: str = "main"
    """Container whose end or trouble is reported; also the first container, whose output is the member's."""
    init_container: str = ""
    """Init container by whose end the pod has failed, if one did."""
    results: str = ""
    """Text that this container has left as the member's results."""
    restarts: int = 0
    """Restarts of all its containers."""
    oom_kills: int = 0
    """Containers whose present or last end was for lack of memory."""
    memory_limit: int | None = None
    """Bytes of the memory limits of all its containers; None where one of them has none."""

    @property
    def is_over(self) -> bool:
        """Return whether its processes have certainly ended."""
        return self.stage in ("succeeded", "failed")

    @property
    def is_placed(self) -> bool:
        return self.stage in ("bound", "running", "succeeded", "failed") and bool(self.node)

    @property
    def has_started(self) -> bool:
        return self.started_at is not None


def see(pod: Mapping[str, Any]) -> PodSight | None:
    """Read a pod; None when it is not a member of a run."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    run, role, index = labels.get(LABEL_RUN), labels.get(LABEL_ROLE), labels.get(LABEL_INDEX, "")
    if not run or not role or not index.isdigit():
        return None
    status = pod.get("status") or {}
    spec = pod.get("spec") or {}
    containers = list(_containers(status))
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    exit_code = signal = None
    init_container = ""
    phase = status.get("phase", "Pending")
    first = (spec.get("containers") or [{}])[0].get("name", "main")
    trouble: Mapping[str, Any] | None = None
    results = _results(spec, status)
    stage: Stage = "waiting"
    if phase == "Succeeded":
        stage = "succeeded"
        exit_code = 0
    elif phase == "Failed":
        stage = "failed"
        failed = [one for one in containers if _failed(one)]
        seen = (one for one in failed if one["state"]["terminated"].get("reason") not in UNSEEN_ENDS)
        ended = next(seen, failed[0] if failed else None)
        if ended is not None:
            exit_code, signal = _end(ended["state"]["terminated"])
            init_container = str(ended.get("name") or "") if _is_init(ended, status) else ""
            reason = reason or str(ended["state"]["terminated"].get("reason") or "")
            said = str(ended["state"]["terminated"].get("message") or "")
            message = message or (said if said != results else "")
    elif spec.get("nodeName"):
        started = bool(containers) and all(_has_started(one) for one in containers if not _is_init(one, status))
        stage = "running" if phase == "Running" and started else "bound"
        waits = [one["state"]["waiting"] for one in containers if (one.get("state") or {}).get("waiting")]
        trouble = next(
            (one for one in waits if one.get("reason") not in _WAITS_FOR_OTHERS), waits[0] if waits else None
        )
        if trouble is not None:
            reason, message = str(trouble.get("reason") or ""), str(trouble.get("message") or "")
    else:
        if spec.get("schedulingGates"):
            stage = "gated"
        condition = _condition(status, "PodScheduled")
        if condition is not None and condition.get("status") == "False":
            reason, message = str(condition.get("reason") or ""), str(condition.get("message") or "")
    disrupted = _condition(status, "DisruptionTarget")
    return PodSight(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        version=_version(metadata.get("resourceVersion", "0")),
        run=run,
        role=role,
        index=int(index),
        stage=stage,
        gates=tuple(str(gate.get("name")) for gate in spec.get("schedulingGates") or ()),
        round=int(labels.get(LABEL_ROUND, "0")),
        node=spec.get("nodeName", ""),
        deleting="deletionTimestamp" in metadata,
        grace=metadata.get("deletionGracePeriodSeconds"),
        created_at=moment(metadata.get("creationTimestamp")) or 0.0,
        started_at=_started_at(containers, stage),
        exit_code=exit_code,
        signal=signal,
        reason=reason,
        message=message,
        disrupted="" if disrupted is None or disrupted.get("status") != "True" else str(disrupted.get("reason", "")),
        holder=labels.get(LABEL_HOLDER, ""),
        container=first,
        init_container=init_container,
        results=results,
        restarts=sum(int(one.get("restartCount") or 0) for one in containers),
        oom_kills=sum(_was_out_of_memory(one) for one in containers),
        memory_limit=memory_limit_of(spec),
    )


def _was_out_of_memory(container: Mapping[str, Any]) -> bool:
    ends = ((container.get(name) or {}).get("terminated") or {} for name in ("state", "lastState"))
    return any(end.get("reason") == _OUT_OF_MEMORY for end in ends)


def memory_limit_of(spec: Mapping[str, Any]) -> int | None:
    """Return the sum of the memory limits of a pod's containers in bytes; None where one has none."""
    total = 0
    for container in spec.get("containers") or ():
        limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
        try:
            total += parse_quantity("memory", str(limit))
        except ValueError:
            return None
    return total or None


def _results(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    first = (spec.get("containers") or [{}])[0]
    if first.get("terminationMessagePath") != RESULTS_PATH:
        return ""
    states = (one.get("state") for one in status.get("containerStatuses") or [] if one.get("name") == first.get("name"))
    ended = (next(states, None) or {}).get("terminated") or {}
    return "" if ended.get("reason") in _NO_EXIT_CODE else str(ended.get("message") or "")


def _containers(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from status.get("containerStatuses") or []
    yield from status.get("initContainerStatuses") or []


def _is_init(container: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    return any(container is one for one in status.get("initContainerStatuses") or [])


def _has_started(container: Mapping[str, Any]) -> bool:
    state = container.get("state") or {}
    return "running" in state or "terminated" in state


def _failed(container: Mapping[str, Any]) -> bool:
    ended = (container.get("state") or {}).get("terminated")
    return bool(ended and ended.get("exitCode"))


def _end(ended: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return exit code and signal, of which at most one is known. A shell's 128 + n means signal n, as with container runtimes."""
    if ended.get("reason") in _NO_EXIT_CODE:
        return None, None
    code = int(ended.get("exitCode") or 0)
    if ended.get("signal"):
        return None, int(ended["signal"])
    if _FIRST_SIGNAL <= code <= _LAST_SIGNAL:
        return None, code - 128
    return code, None


def _started_at(containers: list[Mapping[str, Any]], stage: Stage) -> float | None:
    if stage not in ("running", "succeeded", "failed"):
        return None
    times = []
    for one in containers:
        state = one.get("state") or {}
        at = moment((state.get("running") or state.get("terminated") or {}).get("startedAt"))
        if at:  # a container that could not be started reports 1970
            times.append(at)
    return max(times, default=None)


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    return next((one for one in status.get("conditions") or [] if one.get("type") == kind), None)


def moment(text: str | None) -> float | None:
    """Return a Kubernetes time in seconds of the epoch."""
    return None if not text else datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _version(text: str) -> int:
    """Return a resource version as a number: versions of one resource rise (KEP-5504). A text that is no number is never newer."""
    return int(text) if text.isdigit() else 0
