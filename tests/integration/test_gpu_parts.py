"""Parts of GPUs from submission to the bill: by a template or by a pod's annotations, in quota, ``why``, usage and cost."""

from decimal import Decimal
from typing import Any

import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import execute
from tests.integration.test_queue_admission import pod, put_queue
from tests.integration.test_usage import GPU, accounting, priced, usage
from tests.waiting import eventually
from trainmaster.protocol.agent import CapacityReport, NodeGroup, Sharing
from trainmaster.protocol.states import RunState

TEMPLATE = {"command": ["true"], "image": "a", "resources": {"cpu": "1", "memory": "1Gi"}}
SHARING = Sharing(device=GPU, memory=80 * 2**30)


@pytest.fixture
async def queues(service: Service) -> Service:
    await put_queue(service, "org")
    await put_queue(service, "org/free")
    await put_queue(service, "org/limited", resources={GPU: {"limit": "0.75"}})
    return service


async def connect(service: Service, gpus: int = 1) -> FakeAgent:
    agent = service.agent()
    labels = {"nvidia.com/gpu.product": "H100"}
    group = NodeGroup(
        name="node", count=1, free={"cpu": 8000, "memory": 2**34, GPU: gpus}, labels=labels, sharing=SHARING
    )
    report = CapacityReport(groups=(group,), runtime="test", scheduler="test", capabilities=("gang", "podTemplate"))
    answer = await agent.sync(capacity=report)
    if answer.json()["sendFull"]:
        await agent.sync(full=True)
    return agent


async def submit(service: Service, role: dict[str, Any], queue: str = "org/limited") -> tuple[int, Any]:
    body = {"kind": "Job", "name": "part", "queue": queue, "roles": [{"name": "main", **role}]}
    answer = await service.http.post("/v1/jobs", json={"jobs": [body]})
    found = answer.json()
    return answer.status_code, found["jobs"][0] if answer.status_code == 201 else found


def part(**gpu: str) -> dict[str, Any]:
    return {"template": TEMPLATE | {"gpu": gpu}}


async def until_told(service: Service, agent: FakeAgent, job: str, *words: str) -> None:
    said = ""

    async def is_told() -> bool:
        nonlocal said
        await agent.sync()  # a cluster out of contact would be another reason to wait
        said = (await service.http.get(f"/v1/jobs/{job}/why")).json()["sentence"]
        return all(one in said for one in words)

    try:
        await eventually(is_told)
    except AssertionError as error:
        raise AssertionError(said) from error


async def test_a_limit_counts_parts(queues: Service) -> None:
    agent = await connect(queues, gpus=4)
    _, first = await submit(queues, part(fraction="0.5"))
    _, second = await submit(queues, part(memory="24Gi"))
    assert (await agent.next_start())["job"] == first["id"]
    await until_told(queues, agent, second["id"], "uses 0.5 of its 0.75", "needs 0.3 more")


async def test_a_pod_with_annotations_of_kai_counts_as_well(queues: Service) -> None:
    agent = await connect(queues, gpus=4)
    template = pod()[0]["podTemplate"] | {"metadata": {"annotations": {"gpu-fraction": "0.5"}}}
    status, first = await submit(queues, {"podTemplate": template})
    assert status == 201, first
    assert (await agent.next_start())["job"] == first["id"]
    _, second = await submit(queues, part(fraction="0.5"))
    await until_told(queues, agent, second["id"], "uses 0.5 of its 0.75")
    template = pod()[0]["podTemplate"] | {"metadata": {"annotations": {"gpu-fraction": "2"}}}
    status, answer = await submit(queues, {"podTemplate": template})
    assert (status, answer["code"]) == (422, "invalid-spec")
    assert "gpu-fraction" in str(answer["mistakes"])


async def test_two_jobs_share_a_gpu_and_the_third_waits_for_it(queues: Service) -> None:
    agent = await connect(queues)
    for _ in range(2):
        _, started = await submit(queues, part(fraction="0.5"), "org/free")
        assert (await agent.next_start())["job"] == started["id"]
    _, third = await submit(queues, part(fraction="0.1"), "org/free")
    await until_told(queues, agent, third["id"], "needs 0.1 part of nvidia.com/gpu on one node, the best node has 0")
    _, fourth = await submit(queues, part(memory="1Gi"), "org/free")
    await until_told(queues, agent, fourth["id"], "needs 1Gi memory of nvidia.com/gpu on one node, the best node has 0")


async def test_usage_and_cost_are_in_proportion(queues: Service) -> None:
    await priced(queues)
    await execute(queues.stores, "UPDATE tariffs SET since = since - interval '1 day'")
    agent = await connect(queues)
    for role in (part(fraction="0.5"), part(memory="20Gi")):
        await submit(queues, role, "org/free")
        run = (await agent.next_start())["run"]
        await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}})
        await execute(queues.stores, "UPDATE runs SET placed_at = now() - interval '2 hours' WHERE ended_at IS NULL")
        await agent.report(run, RunState.SUCCEEDED, 3)
    assert await accounting(queues).run() == 2
    total = (await usage(queues))["total"]
    assert Decimal(total["devices"][f"{GPU}@product=H100"]) == pytest.approx(Decimal("1.5"), rel=Decimal("0.01"))
    # Two cores and two GiB for two hours, and 1.5 GPU-hours of an H100.
    expected = Decimal("0.04") * 4 + Decimal("0.005") * 4 + Decimal("2.5") * Decimal("1.5")
    assert Decimal(total["cost"]) == pytest.approx(expected, rel=Decimal("0.01"))


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ({"fraction": "1.5"}, "more than 0 and less than 1"),
        ({"fraction": "0.5", "memory": "1Gi"}, "exactly one of fraction and memory"),
        ({"part": "0.5"}, "not known"),
    ],
)
async def test_what_is_no_part_is_refused_with_its_path(queues: Service, gpu: dict[str, str], words: str) -> None:
    status, answer = await submit(queues, part(**gpu))
    assert status == 422
    (mistake,) = answer["mistakes"]
    assert mistake["path"].startswith("jobs[0].roles[0].template.gpu")
    assert words in mistake["message"]
