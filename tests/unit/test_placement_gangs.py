"""Gangs to place, for all tests of placements, and what these have in common."""

from typing import Any

import pytest

from trainmaster.protocol.quantities import Resources
from trainmaster_agent.kube.pods import PodSight, Stage
from trainmaster_agent.placement.conditions import why_pods_wait
from trainmaster_agent.placement.manifests import quantities
from trainmaster_agent.placement.port import Gang, GangRole
from trainmaster_agent.placement.queues import QueueRules
from trainmaster_agent.placement.requirements import lacks_numa, lacks_role_minimum, starters

RACK = "topology.kubernetes.io/rack"
RUN = "llama-3f9k2-r1"
LABELS = {"app.kubernetes.io/managed-by": "trainmaster", "trainmaster.dev/run": RUN}
OWNER = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "name": RUN,
    "uid": "0b8e7c1e-3a52-4f0f-9d0c-5a2f4a6c0001",
    "controller": True,
}
SMALL: Resources = {"cpu": 500, "memory": 2**30}
LARGE: Resources = {"cpu": 4000, "memory": 8 * 2**30, "nvidia.com/gpu": 8}


def a_role(name: str, size: int, least: int | None = None, requests: Resources = LARGE, **spec: Any) -> GangRole:
    resources = {"requests": quantities(requests), "limits": quantities(requests)}
    containers = [{"name": "main", "image": "example/train", "resources": resources}]
    pod = {"containers": containers, "restartPolicy": "Never", "priorityClassName": "trainmaster"} | spec
    return GangRole(name, size, size if least is None else least, requests, pod)


def a_gang(*roles: GangRole, least: int | None = None, **changes: Any) -> Gang:
    needed = sum(role.least for role in roles) if least is None else least
    values: dict[str, Any] = {"namespace": "team-a", "queue": "research/vision", "labels": LABELS, "owner": OWNER}
    return Gang(run=RUN, roles=roles, least=needed, **values | changes)


LAUNCHER = a_role("launcher", 1, requests=SMALL)
WHOLE = a_gang(LAUNCHER, a_role("worker", 8, nodeSelector={"gpu": "h100"}))
ON_A_RACK = a_gang(LAUNCHER, a_role("worker", 8, nodeSelector={"gpu": "h100"}), required=RACK)
ALONE = a_gang(a_role("main", 1))
ELASTIC = a_gang(LAUNCHER, a_role("worker", 8, least=4))
ELASTIC_WORKERS = a_gang(a_role("worker", 8, least=4))


def a_pod(gang: Gang, role: GangRole, index: int = 0) -> dict[str, Any]:
    """Return a member's manifest as the runtime has it before a placement sees it."""
    labels = {**gang.labels, "trainmaster.dev/role": role.name, "trainmaster.dev/index": str(index)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{gang.run}-{role.name}-{index}",
            "namespace": gang.namespace,
            "labels": labels,
            "annotations": {"trainmaster.dev/queue": gang.queue},
            "ownerReferences": [dict(gang.owner)],
        },
        "spec": dict(role.pod),
    }


def a_sight(index: int = 0, stage: Stage = "waiting", **facts: Any) -> PodSight:
    """Return a worker as it is seen."""
    name = f"{RUN}-worker-{index}"
    return PodSight(name, "team-a", f"uid-{index}", index + 1, RUN, "worker", index, stage, **facts)


@pytest.mark.parametrize(
    ("amounts", "written"),
    [
        ({"cpu": 4000, "memory": 8 * 2**30, "nvidia.com/gpu": 8}, {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "8"}),
        ({"cpu": 1500, "memory": 2**30 + 1}, {"cpu": "1500m", "memory": "1073741825"}),
        ({"hugepages-2Mi": 2**21, "ephemeral-storage": 0}, {"ephemeral-storage": "0", "hugepages-2Mi": "2Mi"}),
    ],
)
def test_amounts_are_written_to_the_last_unit(amounts: Resources, written: dict[str, str]) -> None:
    assert quantities(amounts) == written


def test_the_gang_never_starts_with_fewer_than_its_roles_need() -> None:
    assert starters(WHOLE) == 9
    assert starters(a_gang(LAUNCHER, a_role("worker", 8, least=4), least=2)) == 5
    assert starters(a_gang(LAUNCHER, a_role("worker", 8, least=4), least=7)) == 7


ROLE_MINIMA = {
    "a gang that starts whole": (WHOLE, None),
    "a gang of one role": (ELASTIC_WORKERS, None),
    "a single member": (ALONE, None),
    "a role that may be missing": (a_gang(a_role("helper", 2, least=0), a_role("worker", 4), least=6), None),
    "a role that has no members now": (a_gang(a_role("helper", 0), a_role("worker", 8, least=4)), None),
    "workers could start without the launcher": (ELASTIC, "role launcher, which needs 1"),
    "all but one of the launchers": (a_gang(a_role("server", 2), a_role("worker", 8), least=9), None),
}


@pytest.mark.parametrize(("gang", "sentence"), ROLE_MINIMA.values(), ids=ROLE_MINIMA.keys())
def test_one_number_for_the_whole_gang_and(gang: Gang, sentence: str | None) -> None:
    found = lacks_role_minimum(gang, "S")
    assert (found is None) if sentence is None else (found is not None and sentence in found)


def test_numa_matters_only_where_it_is_strict() -> None:
    assert lacks_numa(a_gang(a_role("main", 1), numa="bestEffort"), "S") is None
    assert lacks_numa(a_gang(a_role("main", 1), numa="singleNode"), "S", numa=True) is None
    assert "singleNode" in (lacks_numa(a_gang(a_role("main", 1), numa="singleNode"), "S") or "")


def test_the_rule_of_the_longest_path_names_the_queue() -> None:
    rules = QueueRules({"research": "r", "research/vision": "v"}, "other")
    assert [rules.of(path) for path in ("research/vision/tiny", "research/nlp", "researchers", "ops")] == [
        "v",
        "r",
        "other",
        "other",
    ]
    assert QueueRules().of("research") == ""


def test_the_pod_that_counts_what_is_wrong_with_the_nodes_speaks_for_all() -> None:
    blocked = a_sight(0, reason="Unschedulable", message="rejected as another pod of the group is unschedulable")
    cause = a_sight(1, reason="Unschedulable", message="0/4 nodes are available:\n 4 Insufficient cpu.")
    gated = a_sight(2, "gated", reason="SchedulingGated", message="Scheduling is blocked due to non-empty gates")
    placed = a_sight(3, "bound", node="n1", reason="ImagePullBackOff", message="Back-off pulling image")
    assert why_pods_wait([gated, placed, blocked, cause]) == "0/4 nodes are available: 4 Insufficient cpu."
    assert why_pods_wait([gated, placed, blocked]) == blocked.message
    leaving = a_sight(4, reason="Unschedulable", message="0/4 nodes are available", deleting=True)
    assert why_pods_wait([gated, placed, leaving]) == ""
