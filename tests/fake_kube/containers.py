"""What a simulated container does, and the statuses that a kubelet reports of it."""

from dataclasses import dataclass
from datetime import datetime

from tests.fake_kube.objects import Object, now, rfc3339, set_condition

SIGTERM_CODE = 143
SIGKILL_CODE = 137
_NEVER_STARTS = {
    "image-error": ("ImagePullBackOff", "Back-off pulling image"),
    "config-error": ("CreateContainerConfigError", "configmap not found"),
}


@dataclass(frozen=True, slots=True)
class Exit:
    """How the first container ended."""

    code: int
    signal: int | None = None
    reason: str = ""

    @property
    def told(self) -> str:
        return self.reason or ("Completed" if self.code == 0 else "Error")


@dataclass(frozen=True, slots=True)
class Script:
    """The command ``["sim", WORD, ARGUMENT]``; any other command runs for ever.

    ``fail-first TIMES CODE`` exits with CODE until the variable TRAINMASTER_RESTARTS has come to TIMES, and succeeds then.
    """

    word: str
    argument: str = ""

    @classmethod
    def of(cls, pod: Object) -> "Script":
        first = pod["spec"]["containers"][0]
        match first.get("command"):
            case ["sim", "fail-first", times, code]:
                env = {one["name"]: one.get("value", "") for one in first.get("env") or ()}
                restarts = int(env.get("TRAINMASTER_RESTARTS") or 0)
                return cls("exit", str(code)) if restarts < int(times) else cls("succeed")
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
        """How it ends by itself right after its start, if it does."""
        match self.word:
            case "succeed" | "print":
                return Exit(0)
            case "exit":
                return Exit(int(self.argument))
            case "signal":
                return Exit(128 + int(self.argument), int(self.argument))
            case "oom":
                return Exit(SIGKILL_CODE, 9, "OOMKilled")
            case _:
                return None

    @property
    def exit_at_deletion(self) -> Exit | None:
        """How it answers SIGTERM; one that does not answer is killed when its grace is over."""
        match self.word:
            case "stubborn":
                return None
            case "peaceful":
                return Exit(0)
            case _:
                return Exit(SIGTERM_CODE)


def report_waiting(pod: Object, script: Script) -> None:
    """The node has taken the pod, and its container cannot start."""
    reason, message = _NEVER_STARTS[script.word]
    _report_taken(pod)
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
    """All containers have ended; those beside the first ended well."""
    pod["status"]["phase"] = "Succeeded" if how.code == 0 else "Failed"
    moments = {"startedAt": rfc3339(began), "finishedAt": rfc3339(now())}
    _report_containers(pod, {"terminated": {"exitCode": 0, "reason": "Completed", **moments}}, ready=False)
    first = {"exitCode": how.code, "reason": how.told, **moments}
    if how.signal is not None:
        first["signal"] = how.signal
    pod["status"]["containerStatuses"][0]["state"] = {"terminated": first}
    for kind in ("ContainersReady", "Ready"):
        set_condition(pod["status"], kind, "False", "PodCompleted" if how.code == 0 else "PodFailed")


def report_deadline(pod: Object) -> None:
    """The pod was there for longer than it may be, whatever its containers did."""
    pod["status"] |= {
        "phase": "Failed",
        "reason": "DeadlineExceeded",
        "message": "Pod was active on the node longer than the specified deadline",
    }


def _report_taken(pod: Object) -> None:
    pod["status"].setdefault("startTime", rfc3339(now()))
    set_condition(pod["status"], "PodScheduled", "True")
    set_condition(pod["status"], "PodReadyToStartContainers", "True")
    set_condition(pod["status"], "Initialized", "True")


def _report_containers(pod: Object, state: Object, *, ready: bool) -> None:
    pod["status"]["containerStatuses"] = [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "containerID": f"fake://{pod['metadata']['uid']}/{container['name']}" if "waiting" not in state else "",
            "state": dict(state),
            "lastState": {},
            "ready": ready,
            "started": ready,
            "restartCount": 0,
        }
        for container in pod["spec"]["containers"]
    ]
