"""What a simulated container does, and the statuses that a kubelet reports of it."""

import hashlib
from dataclasses import dataclass
from datetime import datetime

from tests.fake_kube.objects import Object, now, rfc3339, set_condition

SIGTERM_CODE = 143
SIGKILL_CODE = 137
NO_SUCH_COMMAND = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
    'container process: error during container init: exec: "/opt/none": stat /opt/none: no such file or directory: unknown'
)
_NEVER_STARTS = {
    "image-error": (
        "ImagePullBackOff",
        'Back-off pulling image "sim": ErrImagePull: failed to pull and unpack image "docker.io/library/sim": not found',
    ),
    "config-error": ("CreateContainerConfigError", 'configmap "settings" not found'),
}
_NEVER = "1970-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Exit:
    """How the first container ended."""

    code: int
    signal: int | None = None
    reason: str = ""
    message: str = ""
    never_began: bool = False
    """The runtime could not execute the command: then the start is reported to have been in 1970."""

    @property
    def status_reason(self) -> str:
        return self.reason or ("Completed" if self.code == 0 else "Error")


def _restarts(container: Object) -> int:
    env = {one["name"]: one.get("value", "") for one in container.get("env") or ()}
    return int(env.get("TRAINMASTER_RESTARTS") or 0)


@dataclass(frozen=True, slots=True)
class Script:
    """The command ``["sim", WORD, ARGUMENT]``; any other command runs for ever.

    ``fail-first TIMES CODE`` exits with CODE until the variable TRAINMASTER_RESTARTS has come to TIMES, and succeeds then.
    ``oom-first TIMES`` ends for lack of memory until then, and runs after that.
    ``results TEXT exit CODE`` exits with TEXT as its termination message.
    """

    word: str
    argument: str = ""
    left: str = ""

    @classmethod
    def of(cls, pod: Object) -> "Script":
        first = pod["spec"]["containers"][0]
        match first.get("command"):
            case ["sim", "fail-first", times, code]:
                return cls("exit", str(code)) if _restarts(first) < int(times) else cls("succeed")
            case ["sim", "oom-first", times]:
                return cls("oom") if _restarts(first) < int(times) else cls("run")
            case ["sim", "results", text, "exit", code]:
                return cls("exit", str(code), str(text))
            case ["sim", str(word)]:
                return cls(word)
            case ["sim", str(word), argument, *_]:
                return cls(word, str(argument))
            case _:
                return cls("run")

    @property
    def never_starts(self) -> bool:
        return self.word in _NEVER_STARTS

    @property
    def exit_at_once(self) -> Exit | None:
        """The exit right after its start, if the container ends by itself."""
        match self.word:
            case "succeed" | "print":
                return Exit(0)
            case "exit":
                return Exit(int(self.argument), message=self.left)
            case "signal":
                return Exit(128 + int(self.argument), int(self.argument))
            case "oom":
                return Exit(SIGKILL_CODE, 9, "OOMKilled")
            case "no-such-command":
                return Exit(128, None, "StartError", NO_SUCH_COMMAND, never_began=True)
            case _:
                return None

    @property
    def exit_at_deletion(self) -> Exit | None:
        """The exit after SIGTERM; None if it ignores SIGTERM and is killed when its grace is over."""
        match self.word:
            case "stubborn":
                return None
            case "peaceful":
                return Exit(0)
            case _:
                return Exit(SIGTERM_CODE)


def report_waiting(pod: Object, script: Script, address: str) -> None:
    """Report that the node has taken the pod, which has an address, and its container cannot start."""
    reason, message = _NEVER_STARTS[script.word]
    _report_taken(pod)
    pod["status"] |= {"podIP": address, "podIPs": [{"ip": address}]}
    _report_containers(pod, {"waiting": {"reason": reason, "message": message}}, ready=False)
    for kind in ("ContainersReady", "Ready"):
        set_condition(pod["status"], kind, "False", "ContainersNotReady", "containers with unready status")


def report_running(pod: Object, address: str, began: datetime) -> None:
    _report_taken(pod)
    pod["status"] |= {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    _report_containers(pod, {"running": {"startedAt": rfc3339(began)}}, ready=True)
    for kind in ("ContainersReady", "Ready"):
        set_condition(pod["status"], kind, "True")


def report_ended(pod: Object, how: Exit, began: datetime) -> None:
    """Report that all containers have ended; those after the first with success."""
    _report_taken(pod)
    pod["status"]["phase"] = "Succeeded" if how.code == 0 else "Failed"
    moments = {"startedAt": _NEVER if how.never_began else rfc3339(began), "finishedAt": rfc3339(now())}
    _report_containers(pod, {"terminated": {"exitCode": 0, "reason": "Completed", **moments}}, ready=False)
    first = {"exitCode": how.code, "reason": how.status_reason, **moments}
    if how.message:
        first["message"] = how.message
    pod["status"]["containerStatuses"][0]["state"] = {"terminated": first}
    for kind in ("ContainersReady", "Ready"):
        set_condition(pod["status"], kind, "False", "PodCompleted" if how.code == 0 else "PodFailed")
    _report_torn_down(pod)
    if how.code == 0:
        set_condition(pod["status"], "Initialized", "True", "PodCompleted")


def report_crashed(pod: Object, began: datetime) -> None:
    """Report what a kubelet finds after its machine went down and came up again: containerd knows only that they ran."""
    pod["status"]["phase"] = "Failed"
    ended = {"exitCode": 255, "reason": "Unknown", "startedAt": rfc3339(began), "finishedAt": rfc3339(now())}
    _report_containers(pod, {"terminated": ended}, ready=False)
    for kind in ("ContainersReady", "Ready"):
        set_condition(pod["status"], kind, "False", "PodFailed")
    _report_torn_down(pod)


def report_never_ran(pod: Object) -> None:
    """Report a pod that was deleted before its containers began: the kubelet invents an end, without a time."""
    pod["status"]["phase"] = "Failed"
    message = "The container could not be located when the pod was terminated"
    _report_containers(
        pod,
        {
            "terminated": {
                "exitCode": SIGKILL_CODE,
                "reason": "ContainerStatusUnknown",
                "message": message,
                "startedAt": None,
                "finishedAt": None,
            }
        },
        ready=False,
    )
    for status in pod["status"]["containerStatuses"]:
        status["containerID"] = ""
    _report_torn_down(pod)


def report_deadline(pod: Object) -> None:
    """Report that the pod exceeded its deadline, whatever its containers did."""
    pod["status"] |= {
        "phase": "Failed",
        "reason": "DeadlineExceeded",
        "message": "Pod was active on the node longer than the specified deadline",
    }


def container_id(uid: str, container: str) -> str:
    return f"containerd://{hashlib.sha256(f'{uid}/{container}'.encode()).hexdigest()}"


def _report_taken(pod: Object) -> None:
    pod["status"].setdefault("startTime", rfc3339(now()))
    set_condition(pod["status"], "PodScheduled", "True")
    set_condition(pod["status"], "PodReadyToStartContainers", "True")
    set_condition(pod["status"], "Initialized", "True")


def _report_torn_down(pod: Object) -> None:
    """Report that the pod has no network any more."""
    set_condition(pod["status"], "PodReadyToStartContainers", "False")


def _report_containers(pod: Object, state: Object, *, ready: bool) -> None:
    pod["status"]["containerStatuses"] = [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "containerID": container_id(pod["metadata"]["uid"], container["name"]) if "waiting" not in state else "",
            "state": dict(state),
            "lastState": {},
            "ready": ready,
            "started": ready,
            "restartCount": 0,
        }
        for container in pod["spec"]["containers"]
    ]
