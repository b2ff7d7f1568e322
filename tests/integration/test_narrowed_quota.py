"""Quota that depends on the product: what is charged is what the agent is told to use."""

from tests.conftest import Service
from trainmaster.protocol.agent import CapacityReport, NodeGroup

GPU = "nvidia.com/gpu"


def gpus(product: str) -> NodeGroup:
    free = {"cpu": 8000, "memory": 2**34, GPU: 2}
    return NodeGroup(name=product.lower(), count=1, free=free, labels={"nvidia.com/gpu.product": product})


async def test_members_are_bound_to_the_product_that_they_are_charged_for(service: Service) -> None:
    queue = {"path": "gpus", "resources": {f"{GPU}@product=H100": {"limit": 1}}}
    assert (await service.http.put("/v1/queues/gpus", json=queue)).is_success
    agent = service.agent()
    report = CapacityReport(
        groups=(gpus("H100"), gpus("A100")), runtime="test", scheduler="test", capabilities=("gang",)
    )
    answer = await agent.sync(capacity=report)
    if answer.json()["sendFull"]:
        await agent.sync(full=True)
    template = {"command": ["true"], "resources": {"cpu": "1", GPU: "1"}}
    plain = {"command": ["true"], "resources": {"cpu": "1"}}
    roles = [{"name": "worker", "template": template}, {"name": "main", "template": plain}]
    for number in range(3):
        spec = {"kind": "Job", "name": f"j{number}", "queue": "gpus", "roles": roles}
        assert (await service.http.post("/v1/jobs", json=spec)).status_code == 201
    starts = [await agent.next_start() for _ in range(3)]
    selectors = [start["spec"]["roles"][0]["template"]["nodeSelector"] for start in starts]
    assert sorted(selector["nvidia.com/gpu.product"] for selector in selectors) == ["A100", "A100", "H100"]
    assert all("nodeSelector" not in start["spec"]["roles"][1]["template"] for start in starts)
    for start, selector in zip(starts, selectors, strict=True):
        assert selector["nvidia.com/gpu.product"].lower() in start["pins"]
