"""Whether a cluster still serves the objects of its scheduler: words where not, and another version in use where there is one."""

from typing import Any

import pytest

from trainmaster_agent.kube.errors import NotFoundError
from trainmaster_agent.placement.choose import PlacementUnavailableError
from trainmaster_agent.placement.coscheduling import Coscheduling
from trainmaster_agent.placement.gates import Gates
from trainmaster_agent.placement.kueue import Kueue
from trainmaster_agent.placement.port import PlacementPort
from trainmaster_agent.placement.volcano import Volcano
from trainmaster_agent.runtime.kubernetes.served_placement import PlacementChangedError, ServedPlacement


class Groups:
    """An API server's answers on its groups, and the placement that a runtime opened now would have."""

    def __init__(self) -> None:
        self.served = {"scheduling.volcano.sh/v1beta1": "podgroups", "kueue.x-k8s.io/v1beta2": "workloads"}
        self.placement: PlacementPort | None = None

    async def call(self, method: str, path: str) -> dict[str, Any]:
        name = self.served.get(path.removeprefix("/apis/"))
        if method != "GET" or name is None:
            raise NotFoundError(404, "the server could not find the requested resource")
        return {"resources": [{"name": name}, {"name": f"{name}/status"}]}

    async def choose(self) -> PlacementPort:
        if self.placement is None:
            raise PlacementUnavailableError("it is not served")
        return self.placement


def served(groups: Groups, placement: PlacementPort) -> ServedPlacement:
    return ServedPlacement(groups, placement, groups.choose)  # type: ignore[arg-type]


async def test_nothing_is_said_while_all_kinds_are_served() -> None:
    for placement in (Volcano(), Kueue(), Gates()):
        found = served(Groups(), placement)
        await found.look()
        assert found.lacks == ""


async def test_a_version_that_is_not_served_is_named_until_it_is_served_again() -> None:
    groups = Groups()
    found = served(groups, Volcano())
    del groups.served["scheduling.volcano.sh/v1beta1"]
    await found.look()
    words = "the cluster no longer serves podgroups of scheduling.volcano.sh/v1beta1, which gangs of volcano need"
    assert found.lacks == words
    groups.served["scheduling.volcano.sh/v1beta1"] = "podgroups"
    await found.look()
    assert found.lacks == ""


async def test_a_kind_that_is_only_created_counts_too() -> None:
    found = served(Groups(), Coscheduling())
    await found.look()
    assert found.lacks.startswith("the cluster no longer serves podgroups of scheduling.x-k8s.io/v1alpha1")


async def test_another_version_of_the_same_scheduler_ends_the_runtime() -> None:
    groups = Groups()
    groups.served = {"kueue.x-k8s.io/v1beta1": "workloads"}
    groups.placement = Kueue("v1beta1")
    with pytest.raises(PlacementChangedError, match=r"no longer serves workloads of kueue\.x-k8s\.io/v1beta2"):
        await served(groups, Kueue("v1beta2")).look()


async def test_another_scheduler_does_not_take_over() -> None:
    groups = Groups()
    groups.served.clear()
    groups.placement = Gates()
    found = served(groups, Volcano())
    await found.look()
    assert found.lacks
