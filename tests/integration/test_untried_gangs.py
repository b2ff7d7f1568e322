"""A gang that its scheduler does not try again by itself gets a changed object, so that it does."""

import pytest

from tests.conformance.runtime_suite import RUNS, A, Part, start_run
from tests.integration.fake_lab import NAMESPACE, fake_cluster, lab_on, two_nodes
from tests.waiting import eventually
from trainmaster_agent.kube.errors import NotFoundError
from trainmaster_agent.kube.paths import PODS
from trainmaster_agent.placement.coscheduling import POD_GROUPS
from trainmaster_agent.runtime.kubernetes import untried_gangs

REJECTED = "0/2 nodes are available: 1 rejection in Unreserve."


async def test_the_group_of_members_that_coscheduling_rejected_because_of_one_another_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(untried_gangs, "_FIRST_SECONDS", 0.2)
    async with fake_cluster() as kube:
        kube.serve(POD_GROUPS.version, [POD_GROUPS.plural])
        with two_nodes(kube) as nodes:
            lab = lab_on(kube, nodes, placement={"scheduler": "coscheduling", "schedulerName": "nobody"})
            await lab.open()
            try:
                await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
                names = [f"{A}-worker-{index}" for index in range(2)]

                async def is_rejected() -> bool:
                    for name in names:
                        one = {
                            "type": "PodScheduled",
                            "status": "False",
                            "reason": "Unschedulable",
                            "message": REJECTED,
                        }
                        try:
                            await lab.api.call(
                                "PATCH",
                                PODS.path(NAMESPACE, name, "status"),
                                body={"status": {"phase": "Pending", "conditions": [one]}},
                                content_type="application/merge-patch+json",
                            )
                        except NotFoundError:
                            return False
                    return True

                async def notes() -> dict[str, str]:
                    group = await lab.api.get(POD_GROUPS, NAMESPACE, A)
                    found: dict[str, str] = group["metadata"].get("annotations") or {}
                    return found

                async def is_changed() -> bool:
                    return untried_gangs.TRIED_AT in await notes()

                await eventually(is_rejected, 30)
                await eventually(is_changed, 30)
            finally:
                await lab.close()
