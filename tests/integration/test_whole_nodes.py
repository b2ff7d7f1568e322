"""Jobs whose members have nodes for themselves: submitted over the API, planned by the scheduler, sent to agents that can."""

from typing import Any

from tests.conftest import FakeAgent, Service
from tests.waiting import eventually
from trainmaster.protocol.agent import CapacityReport, NodeGroup

GPU = "nvidia.com/gpu"
MEMORY = 2**36


def group(name: str, *, gpus: int = 0, occupied: bool = False) -> NodeGroup:
    free = {"cpu": 8000, "memory": MEMORY} | ({GPU: gpus} if gpus else {})
    return NodeGroup(name=name, count=1, free=free, occupied=occupied)


async def connect(service: Service, cluster: str, *groups: NodeGroup, capabilities: tuple[str, ...] = ()) -> FakeAgent:
    agent = service.agent(cluster, session=f"session-{cluster}")
    report = CapacityReport(groups=groups, runtime="test", scheduler="test", capabilities=("gang", *capabilities))
    await agent.sync(capacity=report, full=True)
    return agent


async def submit(service: Service, name: str, *, gpus: int = 0, exclusive: bool = True) -> str:
    resources = {"cpu": "1", "memory": "1Gi"} | ({GPU: str(gpus)} if gpus else {})
    body: dict[str, Any] = {
        "kind": "Job",
        "name": name,
        "queue": "default",
        "roles": [{"name": "main", "template": {"command": ["true"], "resources": resources}}],
    }
    answer = await service.http.post("/v1/jobs", json=body | ({"topology": {"exclusive": "node"}} if exclusive else {}))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def says_why(service: Service, job: str, words: str) -> None:
    async def is_told() -> bool:
        return words in (await service.http.get(f"/v1/jobs/{job}/why")).text

    await eventually(is_told)


async def test_a_job_goes_to_an_agent_that_can_and_to_a_node_without_others(service: Service) -> None:
    await connect(service, "private", group("old"))
    job = await submit(service, "alone")
    await says_why(service, job, "runtime does not offer exclusiveNodes")
    groups = (group("busy", occupied=True), group("quiet"), group("devices", gpus=8))
    able = await connect(service, "edge", *groups, capabilities=("exclusiveNodes",))
    start = await able.next_start()
    assert (start["job"], start["pins"]) == (job, {"quiet": {"main": 1}})
    assert start["spec"]["topology"] == {"exclusive": "node"}


async def test_nothing_is_planned_beside_it_and_why_names_what_would_lie_idle(service: Service) -> None:
    agent = await connect(service, "private", group("h100", gpus=8), capabilities=("exclusiveNodes",))
    half = await submit(service, "half", gpus=4)
    await says_why(service, half, f"node group h100 has 8 {GPU}, the member requests 4")
    whole = await submit(service, "whole", gpus=8)
    assert (await agent.next_start())["job"] == whole
    beside = await submit(service, "beside", exclusive=False)
    await says_why(service, beside, "the best node has 0")
