"""The simulated kubelet of ``tests.cluster`` and a real one, on one API server: both report the same of the same ends of pods."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from tests.cluster.api import ApiClient, ApiError
from tests.cluster.kubelet import Kubelet
from tests.nodes.images import BUSYBOX, MISSING
from tests.nodes.requirements import need_real_nodes
from tests.nodes.system import NodeSystem
from tests.waiting import eventually

need_real_nodes()

PODS = "/api/v1/namespaces/default/pods"
KEPT = "trainmaster.test/kept"
"""A finalizer: the object stays, so that the last status of a deleted pod can be read."""
TAINT = {"key": "trainmaster.test/simulated", "effect": "NoSchedule"}
OF_NEWER_RUNC = "error during container init: "
"""Words in a message of runc since 1.2."""
SLEEP = "while :; do sleep 0.1; done"


class Case(NamedTuple):
    """A pod for each kubelet, and what is waited for."""

    real: list[str]
    simulated: list[str]
    reached: str
    """A phase, the reason of a wait, or ``deleted``: it is deleted once it runs, or waits, and has ended."""
    image: str = BUSYBOX
    spec: Mapping[str, Any] = {}
    container: Mapping[str, Any] = {}


CASES = {
    "succeeds": Case(["true"], ["succeed"], "Succeeded"),
    "exits": Case(["sh", "-c", "exit 3"], ["exit", "3"], "Failed"),
    "runs": Case(["sh", "-c", SLEEP], ["run"], "Running"),
    "oom": Case(["sh", "-c", "x=a; while :; do x=$x$x$x$x; done"], ["oom"], "Failed"),
    "no-command": Case(["/opt/none"], ["no-such-command"], "Failed"),
    "no-image": Case(["true"], ["image-error"], "ImagePullBackOff", MISSING),
    "no-settings": Case(
        ["true"],
        ["config-error"],
        "CreateContainerConfigError",
        container={"envFrom": [{"configMapRef": {"name": "settings"}}]},
    ),
    "overdue": Case(["sh", "-c", SLEEP], ["stubborn"], "Failed", spec={"activeDeadlineSeconds": 2}),
    "ends-at-sigterm": Case(["sh", "-c", f"trap 'exit 143' TERM; {SLEEP}"], ["run"], "deleted"),
    "ends-well-at-sigterm": Case(["sh", "-c", f"trap 'exit 0' TERM; {SLEEP}"], ["peaceful"], "deleted"),
    "ignores-sigterm": Case(["sh", "-c", SLEEP], ["stubborn"], "deleted"),
    "deleted-before-it-ran": Case(["true"], ["image-error"], "deleted", MISSING),
}


def pod(name: str, node: str, case: Case, command: list[str]) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": case.image,
        "command": command,
        "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}},
        **case.container,
    }
    spec = {
        "nodeName": node,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 2,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        **case.spec,
    }
    metadata = {"name": name, "finalizers": [KEPT] if case.reached == "deleted" else []}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def facts(pod: dict[str, Any]) -> dict[str, Any]:
    """Return what the product may look at in a pod's status, without times, names and texts that hold them."""
    status = pod["status"]
    conditions = {
        one["type"]: (one["status"], one.get("reason") or "")
        for one in status.get("conditions", ())
        if one["type"] not in ("PodScheduled", "DisruptionTarget")
    }
    return {
        "phase": status["phase"],
        "reason": status.get("reason", ""),
        "conditions": conditions,
        "has an address": bool(status.get("podIP")),
        "containers": [_container(one) for one in status.get("containerStatuses", ())],
    }


def _container(status: dict[str, Any]) -> dict[str, Any]:
    ((kind, state),) = status["state"].items()
    return {
        "state": kind,
        "reason": state.get("reason", ""),
        "exit code": state.get("exitCode"),
        "message": state.get("message", "").replace(OF_NEWER_RUNC, "")
        if kind == "terminated"
        else bool(state.get("message")),
        "began in 1970": str(state.get("startedAt", "")).startswith("1970"),
        "began": bool(state.get("startedAt")),
        "has an id": bool(status.get("containerID")),
        "ready": status.get("ready"),
        "started": status.get("started"),
        "restarts": status["restartCount"],
        "last state": status.get("lastState", {}),
    }


def lines(facts: dict[str, Any]) -> list[str]:
    """Return the facts line by line, so that a difference is easily read."""
    return json.dumps(facts, indent=1, sort_keys=True).splitlines()


async def outcome(api: ApiClient, name: str, node: str, case: Case, command: list[str]) -> dict[str, Any]:
    """Run a pod to what the case waits for; return its facts."""
    await api.post(PODS, pod(name, node, case, command))
    path = f"{PODS}/{name}"

    async def waiting_reason() -> str:
        statuses = (await api.get(path))["status"].get("containerStatuses") or [{}]
        return str((statuses[0].get("state") or {}).get("waiting", {}).get("reason", ""))

    async def reached() -> bool:
        phase = (await api.get(path))["status"]["phase"]
        if case.reached == "deleted":
            return phase == "Running" or await waiting_reason() == "ImagePullBackOff"
        return case.reached in (phase, await waiting_reason())

    async def ended() -> bool:
        found = await api.get(path)
        states = [one["state"] for one in found["status"].get("containerStatuses", ())]
        return found["status"]["phase"] in ("Failed", "Succeeded") and all("terminated" in one for one in states)

    try:
        await eventually(reached, 60)
        if case.reached == "deleted":
            await asyncio.sleep(1)  # a shell has set its traps
            await api.delete(path)
            await eventually(ended, 30)
        return facts(await api.get(path))
    finally:
        await api.patch(path, {"metadata": {"finalizers": None}})
        try:
            await api.delete(path, query={"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.status != 404:
                raise


async def outcomes(system: NodeSystem, name: str, case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    async with system.plane.client() as api, await Kubelet.start(system.plane, lease_seconds=2) as kubelet:
        node = f"simulated-{name}"
        await kubelet.add_node(node, taints=[TAINT])
        try:
            real, simulated = await asyncio.gather(
                outcome(api, f"real-{name}", "node-1", case, case.real),
                outcome(api, f"simulated-{name}", node, case, ["sim", *case.simulated]),
            )
        finally:
            await kubelet.remove_node(node)
    return real, simulated


@pytest.mark.parametrize("name", CASES)
def test_the_simulated_kubelet_reports_what_a_real_one_reports(system: NodeSystem, name: str) -> None:
    real, simulated = asyncio.run(outcomes(system, name, CASES[name]))
    assert lines(simulated) == lines(real)
