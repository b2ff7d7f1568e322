"""The status a kubelet writes for a pod, as patches of the ``status`` subresource."""

import hashlib
from datetime import UTC, datetime
from typing import Any

from tests.cluster.behaviour import CRASHED
from tests.cluster.sandbox import Container, Sandbox


def rfc3339(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def status_patch(pod: Sandbox) -> dict[str, Any]:
    """Return a strategic merge patch: conditions are merged by type, and another pod of the same name is refused by uid."""
    return {"metadata": {"uid": pod.uid}, "status": _status(pod)}


def lost_patch(pod: Sandbox) -> dict[str, Any]:
    """Return the patch for a pod that ran when its machine went down, as its kubelet reports it later: exit code 255, Unknown."""
    now = rfc3339(datetime.now(UTC))
    containers = [
        _container_status(pod, one)
        | {
            "ready": False,
            "started": False,
            "containerID": _container_id(pod, one),
            "state": {
                "terminated": {
                    "exitCode": CRASHED.code,
                    "reason": CRASHED.reason,
                    "startedAt": rfc3339(one.started) if one.started else now,
                    "finishedAt": now,
                    "containerID": _container_id(pod, one),
                }
            },
        }
        for one in pod.containers
    ]
    return {"metadata": {"uid": pod.uid}, "status": {"phase": "Failed", "containerStatuses": containers}}


def never_ran_patch(pod: Sandbox) -> dict[str, Any]:
    """Return the patch for a pod that was deleted before its containers began: the kubelet invents an end, without a time."""
    ended = {
        "exitCode": 137,
        "reason": "ContainerStatusUnknown",
        "message": "The container could not be located when the pod was terminated",
        "startedAt": None,
        "finishedAt": None,
    }
    containers = [_container_status(pod, one) | {"state": {"terminated": ended}} for one in pod.containers]
    conditions = [{"type": "PodReadyToStartContainers", "status": "False"}]
    status = {"phase": "Failed", "containerStatuses": containers, "conditions": conditions}
    return {"metadata": {"uid": pod.uid}, "status": status}


def _status(pod: Sandbox) -> dict[str, Any]:
    now = datetime.now(UTC)
    phase = _phase(pod)
    ready = phase == "Running" and all(one.exit is None for one in pod.containers)
    done = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase)
    unready = {"status": "False", "reason": done or "ContainersNotReady"}
    begun = pod.life is not None or pod.waiting_reason is not None
    address = f"10.{64 + (pod.number >> 16) % 64}.{(pod.number >> 8) % 256}.{pod.number % 256}"
    status: dict[str, Any] = {
        "phase": phase,
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
        "startTime": rfc3339(pod.started or now),
        "conditions": [
            {"type": kind, "lastTransitionTime": rfc3339(now), "reason": None, **facts}
            for kind, facts in (
                ("PodReadyToStartContainers", {"status": "True" if begun and done is None else "False"}),
                ("Initialized", {"status": "True", **({"reason": "PodCompleted"} if phase == "Succeeded" else {})}),
                ("ContainersReady", {"status": "True"} if ready else unready),
                ("Ready", {"status": "True"} if ready else unready),
            )
        ],
        "containerStatuses": [_container_status(pod, one) for one in pod.containers],
    }
    if begun:
        status |= {"podIP": address, "podIPs": [{"ip": address}]}
    if pod.init_containers:
        status["initContainerStatuses"] = [_init_status(pod, one) for one in pod.init_containers]
    if pod.overdue:
        status |= {
            "reason": "DeadlineExceeded",
            "message": "Pod was active on the node longer than the specified deadline",
        }
    return status


def _phase(pod: Sandbox) -> str:
    if pod.overdue:
        return "Failed"
    if pod.life is None:
        return "Pending"
    if not pod.ended:
        return "Running"
    return "Failed" if any(one.exit is not None and one.exit.code for one in pod.containers) else "Succeeded"


def _container_status(pod: Sandbox, container: Container) -> dict[str, Any]:
    return {
        "name": container.name,
        "image": container.image,
        "imageID": f"sim://{container.image}" if container.started else "",
        "containerID": _container_id(pod, container) if container.started else "",
        "ready": container.started is not None and container.exit is None,
        "started": container.started is not None and container.exit is None,
        "restartCount": 0,
        "state": _state(pod, container),
        "lastState": {},
    }


def _state(pod: Sandbox, container: Container) -> dict[str, Any]:
    if container.started is None:
        reason = container.behaviour.end.waiting_reason or "ContainerCreating"
        return {"waiting": {"reason": reason, "message": f"{reason}: {container.image}"}}
    if container.exit is None or container.ended is None:
        return {"running": {"startedAt": rfc3339(container.started)}}
    message = {"message": container.exit.message} if container.exit.message else {}
    return {
        "terminated": {
            "exitCode": container.exit.code,
            "reason": container.exit.reason,
            **message,
            "startedAt": "1970-01-01T00:00:00Z" if container.exit.never_began else rfc3339(container.started),
            "finishedAt": rfc3339(container.ended),
            "containerID": _container_id(pod, container),
        }
    }


def _init_status(pod: Sandbox, container: Container) -> dict[str, Any]:
    if container.started is None:
        return _container_status(pod, container)
    when = rfc3339(container.started)
    done = {"exitCode": 0, "reason": "Completed", "startedAt": when, "finishedAt": when}
    return _container_status(pod, container) | {"ready": True, "started": False, "state": {"terminated": done}}


def _container_id(pod: Sandbox, container: Container) -> str:
    return f"containerd://{hashlib.sha256(f'{pod.uid}-{container.number}'.encode()).hexdigest()}"
