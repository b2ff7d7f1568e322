"""What pods use, as the agent reads it of the metrics API, of kubelets and of DCGM exporters: on the fake API server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.conformance.kube_lab import KubeLab
from tests.conformance.runtime_suite import RUNS, A, Part, start_run, until, until_state
from tests.fake_kube.nodes import FakeNodes
from tests.fake_kube.pod_use import Amounts
from tests.fake_kube.resources import NODES, PODS
from tests.fake_kube.server import FakeKube
from tests.integration.fake_lab import fake_cluster, lab_on, two_nodes
from trainmaster.protocol.states import RunState
from trainmaster_agent.runtime.kubernetes import member_use
from trainmaster_agent.runtime.port import UseReading

GIB = 2**30
CORE = 10**9


class Stage:
    """A run of four members, two on each of two nodes, and what its pods use."""

    def __init__(self, kube: FakeKube, lab: KubeLab) -> None:
        self.kube = kube
        self.lab = lab

    async def read(self) -> UseReading:
        return await self.lab.kubernetes.member_use()

    def pods(self) -> list[dict[str, Any]]:
        return sorted(self.kube.store.scan(PODS.id).values(), key=lambda pod: str(pod["metadata"]["name"]))

    def set_all(self, **amounts: Any) -> None:
        for pod in self.pods():
            self.kube.uses.amounts[pod["metadata"]["name"]] = Amounts(**amounts)

    def on(self, node: str) -> set[int]:
        """Return the indexes of the members on a node."""
        return {
            int(pod["metadata"]["labels"]["trainmaster.dev/index"])
            for pod in self.pods()
            if pod["spec"]["nodeName"] == node
        }


@asynccontextmanager
async def staged(**config: Any) -> AsyncIterator[Stage]:
    async with fake_cluster() as kube:
        with two_nodes(kube) as nodes:
            lab = lab_on(kube, nodes, **config)
            await lab.open()
            try:
                yield await _started(kube, lab, nodes)
            finally:
                await lab.close()


async def _started(kube: FakeKube, lab: KubeLab, _nodes: FakeNodes) -> Stage:
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=4, cpu="2")))
    await until_state(lab, A, RunState.RUNNING)
    return Stage(kube, lab)


def amounts(reading: UseReading) -> dict[int, tuple[float | None, int | None]]:
    assert {one.run for one in reading.members} <= {A}
    return {one.index: (one.cpu, one.memory) for one in reading.members}


async def test_the_metrics_api_is_read_for_all_members() -> None:
    async with staged() as stage:
        stage.set_all(nano=3 * CORE // 2, memory=2 * GIB)
        reading = await stage.read()
        assert amounts(reading) == dict.fromkeys(range(4), (1.5, 2 * GIB))
        assert reading.missing == ""
        assert stage.kube.uses.asked_nodes == [], "no kubelet is read unless the configuration says so"


async def test_members_without_metrics_yet_are_unknown() -> None:
    async with staged() as stage:
        first = stage.pods()[0]["metadata"]["name"]
        stage.kube.uses.amounts[first] = Amounts(nano=CORE, memory=GIB)
        assert list(amounts(await stage.read()).values()) == [(1.0, GIB)]


async def test_a_cluster_without_metrics_says_what_to_install() -> None:
    async with staged() as stage:
        stage.kube.uses.has_metrics = False
        assert await stage.read() == UseReading((), member_use.NO_METRICS)


async def test_a_missing_permission_is_said() -> None:
    async with staged() as stage:
        stage.kube.deny("list", "pods.metrics.k8s.io")
        assert await stage.read() == UseReading((), member_use.NO_PERMISSION)
        stage.kube.allow("list", "pods.metrics.k8s.io")
        stage.set_all(nano=CORE)
        assert len((await stage.read()).members) == 4


async def test_metrics_that_do_not_answer_are_no_use() -> None:
    async with staged() as stage:
        stage.kube.fail_next("list", "pods.metrics.k8s.io", 500)
        reading = await stage.read()
        assert reading.members == ()
        assert "does not answer" in reading.missing


async def test_kubelets_are_read_of_the_nodes_with_members() -> None:
    async with staged(useSource="kubelet") as stage:
        stage.kube.uses.has_metrics = False
        stage.set_all(nano=CORE // 4, memory=GIB)
        reading = await stage.read()
        assert amounts(reading) == dict.fromkeys(range(4), (0.25, GIB))
        assert reading.missing == ""
        assert sorted(stage.kube.uses.asked_nodes) == ["node-0", "node-1"]


async def test_kubelets_that_may_not_be_read_are_replaced_by_the_metrics_api() -> None:
    async with staged(useSource="kubelet") as stage:
        stage.kube.deny("get", "nodes/proxy")
        stage.set_all(nano=CORE, memory=GIB)
        reading = await stage.read()
        assert amounts(reading) == dict.fromkeys(range(4), (1.0, GIB))
        assert reading.missing == member_use.NO_KUBELETS
        tried = len(stage.kube.uses.asked_nodes)
        await stage.read()
        assert len(stage.kube.uses.asked_nodes) == tried, "they are not tried at each reading"


async def test_a_slow_node_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_use, "_CALL_SECONDS", 0.2)
    async with staged(useSource="kubelet") as stage:
        stage.set_all(nano=CORE, memory=GIB)
        stage.kube.uses.silent.add("node-0")
        reading = await stage.read()
        assert amounts(reading).keys() == stage.on("node-1")
        assert reading.missing == "1 nodes did not answer, such as node-0"
        stage.kube.uses.asked_nodes.clear()
        await stage.read()
        assert stage.kube.uses.asked_nodes == ["node-1"], "the slow one is passed over for some time"


async def test_a_node_that_is_gone_is_passed_over() -> None:
    async with staged(useSource="kubelet") as stage:
        stage.set_all(nano=CORE, memory=GIB)
        there = stage.on("node-1")
        for key, node in stage.kube.store.scan(NODES.id).items():
            if node["metadata"]["name"] == "node-0":
                stage.kube.store.remove(key)
                break
        reading = await stage.read()
        assert amounts(reading).keys() == there
        assert reading.missing == ""


async def test_rates_come_from_counters_where_a_kubelet_has_none_and_never_go_below_zero() -> None:
    async with staged(useSource="kubelet") as stage:
        stage.set_all(nano=None, total=100 * CORE, at=1_000_000)
        assert set(amounts(await stage.read()).values()) == {(None, 0)}
        stage.set_all(nano=None, total=115 * CORE, at=1_000_030)
        assert set(amounts(await stage.read()).values()) == {(0.5, 0)}
        stage.set_all(nano=None, total=3 * CORE, at=1_000_060)  # the container was restarted
        assert set(amounts(await stage.read()).values()) == {(None, 0)}
        stage.set_all(nano=None, total=33 * CORE, at=1_000_090)
        assert set(amounts(await stage.read()).values()) == {(1.0, 0)}


async def test_the_rate_is_that_since_the_reading_before_and_not_of_the_kubelets_last_seconds() -> None:
    async with staged(useSource="kubelet") as stage:
        stage.set_all(nano=2 * CORE, total=100 * CORE, at=1_000_000)
        assert set(amounts(await stage.read()).values()) == {(2.0, 0)}
        stage.set_all(nano=2 * CORE, total=115 * CORE, at=1_000_030)  # works at the end of each half minute alone
        assert set(amounts(await stage.read()).values()) == {(0.5, 0)}
        assert set(amounts(await stage.read()).values()) == {(2.0, 0)}, "the kubelet has no newer counter"
        stage.set_all(nano=CORE, total=3 * CORE, at=1_000_060)  # the container was restarted
        assert set(amounts(await stage.read()).values()) == {(1.0, 0)}


@pytest.mark.parametrize("action", ["restartMember", "restartGang"])
async def test_restarts_and_ends_for_lack_of_memory_of_earlier_pods_count(action: str) -> None:
    """A member that starts again is a new pod, of which the kubelet knows neither; a new agent knows both."""
    async with fake_cluster() as kube:
        with two_nodes(kube) as nodes:
            lab = lab_on(kube, nodes)
            await lab.open()
            try:
                parts = Part(RUNS, name="tight", extra={"command": ["sim", "oom-first", "2"]}), Part(RUNS)
                failure = {"action": action, "limit": 3}
                await lab.runtime.start(start_run(lab, A, *parts, memberFailure=failure))
                await until(
                    lab,
                    A,
                    lambda status: (
                        [(one.restarts, one.state) for one in status.members if one.role == "tight"] == [(2, "running")]
                    ),
                )
                stage = Stage(kube, lab)
                stage.set_all(nano=CORE)
                for _ in range(2):
                    found = {one.role: one for one in (await stage.read()).members}
                    assert (found["tight"].restarts, found["tight"].oom_kills) == (2, 2)
                    assert (found["worker"].restarts, found["worker"].oom_kills) == (2 * (action == "restartGang"), 0)
                    await lab.restart()
            finally:
                await lab.close()


async def test_a_pod_of_the_same_name_is_not_taken_for_the_member() -> None:
    async with staged(useSource="kubelet") as stage:
        stage.set_all(nano=CORE)
        original = stage.kube.uses._of_pod

        def of_another(pod: dict[str, Any]) -> dict[str, Any]:
            found = original(pod)
            return {**found, "podRef": {**found["podRef"], "uid": "another"}}

        stage.kube.uses._of_pod = of_another  # type: ignore[method-assign]
        assert (await stage.read()).members == ()


Handler = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def exporter(handler: Handler) -> AsyncIterator[str]:
    """Serve an exporter's page on a free port of the loopback."""
    app = web.Application()
    app.router.add_get("/metrics", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    finally:
        await runner.cleanup()


async def test_gpus_are_read_of_the_exporter() -> None:
    pages: list[str] = []

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="".join(pages))

    async with exporter(page) as address, staged(gpuMetrics={"endpoints": [address]}) as stage:
        name, namespace = stage.pods()[0]["metadata"]["name"], stage.pods()[0]["metadata"]["namespace"]
        for gpu, percent in ((0, 40), (1, 60)):
            labels = f'gpu="{gpu}",container="main",namespace="{namespace}",pod="{name}"'
            pages.append(f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} {percent}\nDCGM_FI_DEV_FB_USED{{{labels}}} 1024\n")
        stage.kube.uses.has_metrics = False
        reading = await stage.read()
        (member,) = reading.members
        assert (member.gpu, member.gpu_memory, member.cpu) == (50.0, 2 * GIB, None)
        assert reading.missing == member_use.NO_METRICS


async def test_exporters_that_fail_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmaster_agent.runtime.kubernetes.gpu_metrics._SECONDS", 0.2)

    async def silent(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def broken(_: web.Request) -> web.Response:
        return web.Response(text="{this is no metric")

    async with (
        exporter(silent) as slow,
        exporter(broken) as bad,
        staged(gpuMetrics={"endpoints": [slow, bad]}) as stage,
    ):
        stage.set_all(nano=CORE)
        reading = await stage.read()
        assert len(reading.members) == 4
        assert reading.missing.startswith("2 DCGM exporters cannot be read, such as http://127.0.0.1:")
