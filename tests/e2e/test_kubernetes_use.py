"""What pods use, as a real API server answers where nothing in the cluster says it."""

import re
from collections.abc import AsyncIterator

import pytest

from tests.cluster.fixtures import Cluster, cluster, need_programs, plane
from tests.conformance.kube_lab import KubeLab
from tests.conformance.runtime_suite import RUNS, A, Part, start_run, until_state
from tests.e2e.test_kubernetes_conformance import make_lab
from trainmaster.protocol.states import RunState
from trainmaster_agent.runtime.kubernetes.member_use import NO_METRICS
from trainmaster_agent.runtime.port import UseReading

need_programs(whole_module=True)
__all__ = ["cluster", "plane"]


@pytest.fixture
async def lab(cluster: Cluster, request: pytest.FixtureRequest) -> AsyncIterator[KubeLab]:
    lab = await make_lab(cluster, {"scheduler": "gates"}, useSource=request.param)
    await lab.open()
    try:
        yield lab
    finally:
        await lab.close()


async def run_two(lab: KubeLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
    await until_state(lab, A, RunState.RUNNING)


@pytest.mark.parametrize("lab", ["kubelet"], indirect=True)
async def test_nodes_to_which_the_api_server_has_no_way_are_named(lab: KubeLab) -> None:
    """The simulated nodes have loopback addresses: an API server refuses to be a proxy for those."""
    await run_two(lab)
    reading = await lab.kubernetes.member_use()
    assert reading.members == ()
    assert re.fullmatch(r"[12] nodes did not answer, such as node-[01]", reading.missing)


@pytest.mark.parametrize("lab", ["metrics"], indirect=True)
async def test_an_api_server_without_metrics_says_so(lab: KubeLab) -> None:
    await run_two(lab)
    assert await lab.kubernetes.member_use() == UseReading((), NO_METRICS)
