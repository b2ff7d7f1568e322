"""Nodes in trouble as an agent counts them: not ready, flapping, with device errors; and what others use."""

from typing import Any

import pytest

from tests.unit.test_capacity_inventory import OWN, inventory, node, pod
from trainmaster.protocol.agent import MOST_TROUBLED, CapacityReport, ClusterHealth
from trainmaster_agent.capacity.cluster_health import FLAPPING_RETURNS, FLAPPING_SECONDS
from trainmaster_agent.capacity.config import CapacityConfig
from trainmaster_agent.capacity.inventory import Inventory

GPU = "nvidia.com/gpu"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def gpu_node(name: str = "n1", *, capacity: int = 8, allocatable: int = 8, **condition: Any) -> dict[str, Any]:
    made = node(name, allocatable={GPU: str(allocatable)})
    made["status"]["capacity"] = {"cpu": "8", GPU: str(capacity)}
    if condition:
        made["status"]["conditions"].append(condition)
    return made


def amounts(cpu: str, gpus: str) -> dict[str, Any]:
    return {"cpu": cpu, GPU: gpus}


def flap(made: Inventory, name: str = "n1") -> None:
    made.node_put(node(name, ready=False))
    made.node_put(node(name))


def test_nodes_are_counted_by_state() -> None:
    made = inventory(node("n1"), node("n2", ready=False), node("n3", unschedulable=True), pod(on="n4"))
    found = made.report().health
    assert (found.ready, found.not_ready, found.cordoned) == (1, 1, 1)
    assert [(one.node, one.trouble) for one in found.troubled] == [("n2", "not ready")]


def test_a_node_that_keeps_coming_back_flaps_for_an_hour() -> None:
    clock = Clock()
    made = Inventory(CapacityConfig(), OWN, clock)
    made.node_put(node())
    for _ in range(FLAPPING_RETURNS - 1):
        flap(made)
        clock.now += 60
    assert made.report().health.flapping == 0
    flap(made)
    found = made.report().health
    assert found.flapping == 1
    assert "3 times in the last hour" in found.troubled[0].trouble
    version = made.report_version
    clock.now += FLAPPING_SECONDS - 60
    assert made.report().health.flapping == 0, "the first return is more than an hour ago"
    assert made.report_version == version + 1, "the dispatcher is told"


def test_a_node_that_starts_flaps_not() -> None:
    made = Inventory(CapacityConfig(), OWN, Clock())
    for _ in range(FLAPPING_RETURNS):
        made.node_put(node())
        made.node_drop("n1")
    made.node_put(node())
    assert made.report().health == ClusterHealth(ready=1)


@pytest.mark.parametrize(
    ("condition", "is_error"),
    [
        ({"type": "GpuUnhealthy", "status": "True", "reason": "XID79"}, True),
        ({"type": "GpuUnhealthy", "status": "False"}, False),
        ({"type": "NVIDIAXidErrors", "status": "True"}, True),
        ({"type": "GPUHealthy", "status": "False"}, True),
        ({"type": "GPUHealthy", "status": "True"}, False),
        ({"type": "GPUNotReady", "status": "True"}, True),
        ({"type": "MemoryPressure", "status": "True"}, False),
        ({"type": "GpuUnhealthy", "status": "Unknown"}, False),
    ],
)
def test_conditions_report_device_errors(condition: dict[str, Any], is_error: bool) -> None:
    found = inventory(gpu_node(**condition)).report().health
    assert found.device_errors == is_error
    if is_error:
        reason = f": {condition['reason']}" if "reason" in condition else ""
        assert found.troubled[0].trouble == f"condition {condition['type']}{reason}"


def test_devices_that_are_gone_are_an_error() -> None:
    made = inventory(gpu_node(allocatable=6))
    assert made.report().health.troubled[0].trouble == f"2 of 8 {GPU} are unhealthy"
    version = made.report_version
    made.node_put(gpu_node(allocatable=8))
    assert made.report().health == ClusterHealth(ready=1)
    assert made.report_version == version + 1


def test_a_report_names_some_of_the_nodes() -> None:
    made = inventory(*(node(f"n{number:02}", ready=False) for number in range(MOST_TROUBLED + 5)))
    found = made.report().health
    assert found.not_ready == MOST_TROUBLED + 5
    assert [one.node for one in found.troubled] == [f"n{number:02}" for number in range(MOST_TROUBLED)]


def test_nodes_that_must_not_be_used_are_left_out() -> None:
    made = inventory(
        node("n1", ready=False, labels={"pool": "system"}), ignoreNodes={"matchLabels": {"pool": "system"}}
    )
    assert made.report().health == ClusterHealth()


def test_what_others_use_is_counted_by_product() -> None:
    labels = {"nvidia.com/gpu.product": "H100"}
    made = inventory(
        node("n1", labels=labels, allocatable={GPU: "8"}),
        node("n2", labels=labels, allocatable={GPU: "8"}),
        pod("p1", on="n1", **amounts("2", "3"), memory="4Gi"),
        pod("p2", on="n2", own=True, **amounts("4", "4")),
    )
    found = {one.product: one.amounts for one in made.report().others}
    assert found == {"": {"cpu": 2000, "memory": 4 * 2**30}, "H100": {GPU: 3}}
    made.pod_drop("team/p1")
    assert made.report().others == ()


def test_nodes_that_take_no_members_are_not_counted_in_others() -> None:
    made = inventory(node("n1", ready=False), pod("p1", on="n1", cpu="2"))
    assert made.report().others == ()


def test_an_earlier_agent_reports_nothing_of_it() -> None:
    found = CapacityReport.model_validate({"groups": [], "runtime": "kubernetes", "scheduler": ""})
    assert (found.health, found.others) == (None, ())
