"""Classification of a member's end: the kind of failure, or that the cluster took the member away. Pure."""

from dataclasses import dataclass

from trainmaster.protocol.agent import RunEnd
from trainmaster.protocol.states import FailureCategory
from trainmaster_agent.kube.pods import START_FAILURES, UNSEEN_ENDS, PodSight
from trainmaster_agent.runtime.kubernetes import entry_point_container

_NODE_LOST = frozenset(("NodeLost", "NodeShutdown", "Terminated", "DeletionByTaintManager", "DeletionByPodGC"))
_TAKEN = frozenset(("PreemptionByScheduler", "EvictionByEvictionAPI", "Preempting"))
_NOT_ADMITTED = frozenset(
    ("NodeAffinity", "OutOfpods", "OutOfcpu", "OutOfmemory", "TopologyAffinityError", "UnexpectedAdmissionError")
)
"""A kubelet's refusals: the pod was bound to a node without enough free capacity for it."""

IMAGE_TROUBLE = frozenset(
    ("ErrImagePull", "ImagePullBackOff", "ImageInspectError", "ErrImageNeverPull", "RegistryUnavailable")
)
CONFIG_TROUBLE = frozenset(
    (
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "PreCreateHookError",
        "PostStartHookError",
    )
)
HOPELESS = frozenset(("InvalidImageName",))
_RUNTIME_MESSAGE = 800
"""The most characters of a container runtime's message; the helpful ones, such as "no such file", are at its end."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The cluster took a member away; it did not fail by itself. ``category`` where the run then counts as failed."""

    message: str
    category: FailureCategory | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A member failed by itself."""

    end: RunEnd


@dataclass(frozen=True, slots=True)
class PodRefusal:
    """A node refused the member."""

    message: str


def classify(pod: PodSight) -> Loss | Failure | PodRefusal:
    """Classify the end of a pod that has failed, or that somebody else has deleted."""
    name = f"{pod.role}-{pod.index}"
    words = f": {shortened(pod.message)}" if pod.message else ""
    why = pod.disrupted or pod.reason
    if why in _NODE_LOST:
        return Loss(f"node {pod.node} of {name} was lost ({why}){words}", FailureCategory.NODE_LOST)
    if why in UNSEEN_ENDS:
        message = (
            f"node {pod.node}, or its container runtime, crashed under {name}: how {name} ended is unknown ({why})"
        )
        return Loss(message, FailureCategory.NODE_LOST)
    if why in _TAKEN:
        return Loss(f"the cluster removed {name} ({why}){words}")
    if pod.reason == "Evicted" or pod.disrupted == "TerminationByKubelet":
        end = RunEnd(category=FailureCategory.EVICTED, member=name, message=f"{name} was evicted by its node{words}")
        return Failure(end)
    if pod.deleting or pod.stage != "failed":
        return Loss(f"somebody deleted {name}")
    if pod.reason in _NOT_ADMITTED or pod.reason.startswith("OutOf"):
        return PodRefusal(f"node {pod.node} did not take {name} ({pod.reason}){words}")
    if pod.reason == "DeadlineExceeded":
        return Failure(RunEnd(category=FailureCategory.DEADLINE, member=name, message=f"{name} ran past its deadline"))
    return Failure(_own_end(pod, name, words))


def _own_end(pod: PodSight, name: str, words: str) -> RunEnd:
    """Return the end of a member that failed by itself. ``words``: the message of its pod."""
    if pod.init_container == entry_point_container.NAME and pod.exit_code in entry_point_container.FAILURES:
        # That of an image that cannot be pulled: registries that are away were called for as long as a pull is tried.
        message = f"the entry point of the image of {name} was not read: {shortened(pod.message, _RUNTIME_MESSAGE)}"
        return RunEnd(category=FailureCategory.IMAGE, member=name, message=message)
    if pod.reason in START_FAILURES:
        message = (
            f"the command of {name} could not be started: {shortened(pod.message or pod.reason, _RUNTIME_MESSAGE)}"
        )
        return RunEnd(category=FailureCategory.CONFIG, member=name, message=message)
    if pod.reason == "OOMKilled":
        message = f"{name} was killed because it used more memory than its limit"
        return RunEnd(category=FailureCategory.OOM, exit_code=pod.exit_code, member=name, message=message)
    if pod.signal is not None:
        message = f"{name} was killed by signal {pod.signal}"
        return RunEnd(category=FailureCategory.SIGNAL, signal=pod.signal, member=name, message=message)
    if pod.exit_code is not None:
        message = f"{name} ended with exit code {pod.exit_code}"
        return RunEnd(category=FailureCategory.EXIT, exit_code=pod.exit_code, member=name, message=message)
    message = f"{name} failed ({pod.reason or 'no reason'}){words}"
    return RunEnd(category=FailureCategory.CONFIG, member=name, message=message)


def trouble(pod: PodSight) -> FailureCategory | None:
    """Return the category of what keeps a container from starting; None when nothing does."""
    if pod.stage != "bound":
        return None
    if pod.reason in IMAGE_TROUBLE or pod.reason in HOPELESS:
        return FailureCategory.IMAGE
    return FailureCategory.CONFIG if pod.reason in CONFIG_TROUBLE else None


def shortened(text: str, most: int = 300) -> str:
    """Return the text as one line of at most ``most`` characters. A longer text loses its middle: causes stand at the end."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    front = (most - 5) // 3
    return f"{line[:front]} ... {line[-(most - 5 - front) :]}"
