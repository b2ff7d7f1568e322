"""Which scheduler is chosen, over the discovery documents of API servers that there are."""

from collections.abc import Mapping
from typing import Any, cast

import pytest
from pydantic import ValidationError

from tests.unit.test_placement_gangs import ON_A_RACK, RACK
from trainmaster.cluster_model.capabilities import Capability
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import ForbiddenError, NotFoundError
from trainmaster_agent.placement.choose import (
    PlacementConfig,
    PlacementUnavailableError,
    ServedApis,
    choose,
    detect,
    probe_native,
)
from trainmaster_agent.placement.coscheduling import Coscheduling
from trainmaster_agent.placement.detect import tiers_of
from trainmaster_agent.placement.kai import Kai
from trainmaster_agent.placement.kueue import Kueue
from trainmaster_agent.placement.native import Native
from trainmaster_agent.placement.volcano import Volcano

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"


class FakeApi:
    """An API server with these resources by version, and these objects by path; it keeps what is listed of a spec."""

    def __init__(self, *served: str, keeps: tuple[str, ...] = (), **objects: list[dict[str, Any]]) -> None:
        self.served = [one.rsplit("/", 1) for one in served]
        self.objects = objects
        self.keeps = keeps
        self.calls: list[str] = []

    async def call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None
    ) -> dict[str, Any]:
        self.calls.append(f"{method} {path} {dict(query or {})}")
        if method == "POST":
            return {**body, "spec": {name: value for name, value in body["spec"].items() if name in self.keeps}}
        if path == "/apis":
            versions = [{"groupVersion": version} for version, _ in self.served]
            return {"groups": [{"name": one["groupVersion"].split("/")[0], "versions": [one]} for one in versions]}
        names = [{"name": name} for version, name in self.served if path == f"/apis/{version}"]
        if names:
            return {"resources": names}
        plural = path.rsplit("/", 1)[-1]
        if plural not in self.objects:
            raise ForbiddenError(403, f"cannot list {plural}")
        return {"items": self.objects[plural]}


async def found(api: FakeApi, namespace: str | None = None) -> ServedApis:
    return await detect(cast(ApiServer, api), namespace)


VOLCANO = ("scheduling.volcano.sh/v1beta1/podgroups", "topology.volcano.sh/v1alpha1/hypernodes")
KAI = ("scheduling.run.ai/v2alpha2/podgroups", "kai.scheduler/v1alpha1/topologies")
NATIVE_1_36, NATIVE_1_37 = "scheduling.k8s.io/v1alpha2/podgroups", "scheduling.k8s.io/v1beta1/podgroups"
COSCHEDULING = "scheduling.x-k8s.io/v1alpha1/podgroups"
KUEUE = ("kueue.x-k8s.io/v1beta1/workloads", "kueue.x-k8s.io/v1beta2/workloads", "kueue.x-k8s.io/v1beta2/topologies")

AUTOMATIC = {
    "a plain cluster": ((), "gates"),
    "PriorityClass in v1beta1, long ago": (("scheduling.k8s.io/v1beta1/priorityclasses",), "gates"),
    "Kubernetes 1.35, whose Workload is another API": (("scheduling.k8s.io/v1alpha1/workloads",), "gates"),
    "native": ((NATIVE_1_36,), "native"),
    "volcano before all others": ((NATIVE_1_37, *KAI, *VOLCANO, *KUEUE, COSCHEDULING), "volcano"),
    "kai before native": ((NATIVE_1_37, *KAI), "kai"),
    "what needs a word of the owner": ((*KUEUE, COSCHEDULING), "gates"),
}


@pytest.mark.parametrize(("served", "name"), AUTOMATIC.values(), ids=AUTOMATIC.keys())
async def test_found_by_itself(served: tuple[str, ...], name: str) -> None:
    assert choose(PlacementConfig(), await found(FakeApi(*served))).name == name


@pytest.mark.parametrize(
    ("scheduler", "sentence"),
    [
        ("native", "does not serve podgroups of scheduling.k8s.io"),
        ("volcano", "does not serve podgroups of scheduling.volcano.sh/v1beta1"),
        ("kai", "does not serve podgroups of scheduling.run.ai/v2alpha2"),
        ("coscheduling", "does not serve podgroups of scheduling.x-k8s.io/v1alpha1"),
        ("kueue", "does not serve workloads of kueue.x-k8s.io"),
    ],
)
def test_a_scheduler_that_is_not_there_is_refused(scheduler: str, sentence: str) -> None:
    with pytest.raises(PlacementUnavailableError, match=sentence):
        choose(PlacementConfig.model_validate({"scheduler": scheduler}), ServedApis())


def test_what_cannot_be_discovered_is_taken_at_its_word() -> None:
    config = PlacementConfig.model_validate({"scheduler": "yunikorn", "schedulerName": "yk"})
    placement = choose(config, ServedApis())
    assert (placement.name, getattr(placement, "scheduler_name", None)) == ("yunikorn", "yk")
    assert choose(PlacementConfig(scheduler="gates"), ServedApis(volcano=True)).name == "gates"


async def test_the_newest_native_shape_is_used() -> None:
    placement = choose(PlacementConfig(), await found(FakeApi(NATIVE_1_36, NATIVE_1_37)))
    assert isinstance(placement, Native)
    assert placement.version == "v1beta1"
    assert placement.priority_class == "trainmaster"


@pytest.mark.parametrize(("keeps", "topology"), [(("schedulingPolicy", "schedulingConstraints"), True), ((), False)])
async def test_native_topology_is_probed_without_a_trace(keeps: tuple[str, ...], topology: bool) -> None:
    api = FakeApi(NATIVE_1_36, keeps=keeps)
    placement = choose(PlacementConfig(), await found(api, "team-a"))
    assert ("topology" in placement.capabilities) is topology
    assert "POST /apis/scheduling.k8s.io/v1alpha2/namespaces/team-a/podgroups {'dryRun': 'All'}" in api.calls


async def test_a_probe_tells_the_servers_refusal() -> None:
    class Refusing(FakeApi):
        async def call(self, method: str, path: str, **_: Any) -> dict[str, Any]:
            raise NotFoundError(404, 'namespaces "none" not found')

    with pytest.raises(NotFoundError):
        await probe_native(cast(ApiServer, Refusing()), "none")


def test_hyper_nodes_tell_which_label_they_stand_for() -> None:
    def hyper_node(tier: int, name: str = "", **labels: str) -> dict[str, Any]:
        selector = {"labelMatch": {"matchLabels": labels}} if labels else {"exactMatch": {"name": "n1"}}
        return {"spec": {"tier": tier, "tierName": name, "members": [{"type": "Node", "selector": selector}]}}

    assert tiers_of(
        [
            hyper_node(1, **{RACK: "r1"}),
            hyper_node(1, **{RACK: "r2"}),
            hyper_node(3, **{RACK: "r3"}),
            hyper_node(1, gpu="h100", pool="a"),
            hyper_node(2, ZONE),
            hyper_node(2),
        ]
    ) == {RACK: 1, ZONE: 2}


async def test_tiers_that_the_owner_gives_count_before_those_found() -> None:
    rack = {"labelMatch": {"matchLabels": {RACK: "r1"}}}
    members = [{"type": "Node", "selector": rack}]
    api = FakeApi(*VOLCANO, hypernodes=[{"spec": {"tier": 1, "members": members}}])
    placement = choose(PlacementConfig(tiers={ZONE: 4}, numa=True), await found(api))
    assert isinstance(placement, Volcano)
    assert placement.tiers == {RACK: 1, ZONE: 4}
    assert placement.numa
    assert choose(PlacementConfig(tiers={RACK: 2}), await found(api)).objects(ON_A_RACK)[0].body["spec"][
        "networkTopology"
    ] == {"mode": "hard", "highestTierAllowed": 2}


def topology(name: str, *levels: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"levels": [{"nodeLabel": level} for level in levels]}}


async def test_kai_topologies_are_found_and_may_be_narrowed() -> None:
    facts = await found(FakeApi(*KAI, topologies=[topology("wide", ZONE, RACK), topology("near", RACK, HOST)]))
    both, one = choose(PlacementConfig(), facts), choose(PlacementConfig(topology="wide"), facts)
    assert isinstance(both, Kai)
    assert isinstance(one, Kai)
    assert both.topologies == {ZONE: "wide", RACK: "near", HOST: "near"}
    assert one.topologies == {ZONE: "wide", RACK: "wide"}
    with pytest.raises(PlacementUnavailableError, match="there are: near, wide"):
        choose(PlacementConfig(topology="none"), facts)


async def test_topologies_that_may_not_be_read_are_none() -> None:
    placement = choose(PlacementConfig(), await found(FakeApi(*KAI)))
    assert isinstance(placement, Kai)
    assert placement.topologies == {}


async def test_kueue_needs_a_queue_and_knows_its_levels() -> None:
    facts = await found(FakeApi(*KUEUE, topologies=[topology("default", ZONE, RACK)]))
    with pytest.raises(PlacementUnavailableError, match="neither queues nor defaultQueue names a LocalQueue"):
        choose(PlacementConfig(scheduler="kueue"), facts)
    placement = choose(PlacementConfig(scheduler="kueue", queues={"research": "lq"}), facts)
    assert isinstance(placement, Kueue)
    assert (placement.version, placement.levels) == ("v1beta2", (ZONE, RACK))


async def test_coscheduling_goes_to_the_profile_that_is_named() -> None:
    facts = await found(FakeApi(COSCHEDULING))
    config = PlacementConfig(scheduler="coscheduling", scheduler_name="default-scheduler")
    placement = choose(config, facts)
    assert isinstance(placement, Coscheduling)
    assert placement.scheduler_name == "default-scheduler"


def test_gates_pin_members_to_zones_where_nodes_report_them() -> None:
    for numa in (True, False):
        placement = choose(PlacementConfig(scheduler="gates", numa=numa), ServedApis())
        assert (Capability.NUMA in placement.capabilities) is numa


@pytest.mark.parametrize("scheduler", ["native", "yunikorn"])
def test_numa_is_refused_where_the_scheduler_does_not_know_it(scheduler: str) -> None:
    config = PlacementConfig.model_validate({"scheduler": scheduler, "numa": True})
    with pytest.raises(PlacementUnavailableError, match="does not know NUMA zones"):
        choose(config, ServedApis(native="v1alpha2"))


@pytest.mark.parametrize(
    "mistake",
    [
        {"scheduler": "slurm"},
        {"queues": {"Research": "q"}},
        {"queues": {"research": "no such/queue"}},
        {"tiers": {RACK: -1}},
        {"queue": "default"},
    ],
)
def test_mistakes_of_the_owner_are_found(mistake: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PlacementConfig.model_validate(mistake)
