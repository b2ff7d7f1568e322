"""A real API server takes every object and pod that a placement writes, field by field, and keeps all of it.

Schedulers of others are stood for by CRDs written for tests: what these take, the real ones take as far as the fields are as
documented.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.api import ApiClient, ApiError
from tests.cluster.control_plane import API_SERVER, ControlPlane, assets
from tests.unit.test_kubernetes_manifests import made
from tests.unit.test_placement_gangs import RACK, WHOLE, a_pod
from tests.unit.test_placement_golden import FOLDER, GANGS
from tests.unit.workload_manifests import SAMPLES
from tests.waiting import eventually
from trainmaster.workload_kinds.specification import translated
from trainmaster_agent.kube.access import open_access
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.paths import PODS, Resource
from trainmaster_agent.placement.choose import PlacementConfig, ServedApis, choose, detect, probe_native
from trainmaster_agent.placement.gates import Gates, opening_patch
from trainmaster_agent.placement.native import pod_groups
from trainmaster_agent.placement.port import PlacementPort

if assets() is None:
    pytest.skip("KUBEBUILDER_ASSETS names no folder of Kubernetes programs", allow_module_level=True)

CRDS = Path(__file__).parents[1] / "crds"
CRD = Resource("apiextensions.k8s.io/v1", "customresourcedefinitions")
NAMESPACE = "team-a"
STRICT = {"fieldValidation": "Strict"}
BUILT_IN = ("v1", "scheduling.k8s.io/v1alpha2")
"""Kubernetes writes its defaults into these."""
PLURALS = {"Pod": "pods", "PodGroup": "podgroups"}
TAKEN = sorted(name for name in GANGS if "1.37" not in name)
"""Kubernetes 1.36 serves another shape of the native API than 1.37."""

Json = dict[str, Any]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """No scheduler and no controllers: what is created stays as it is."""
    loop = asyncio.new_event_loop()
    made = loop.run_until_complete(start(tmp_path_factory.mktemp("plane")))
    yield made
    loop.run_until_complete(made.stop())
    loop.close()


async def start(folder: Path, **flags: list[str]) -> ControlPlane:
    made = await ControlPlane.start(folder, scheduler=False, controller_manager=False, flags=flags)
    async with made.client() as api:
        await api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        priority = {"metadata": {"name": "trainmaster"}, "value": 1000, "preemptionPolicy": "Never"}
        await api.post("/apis/scheduling.k8s.io/v1/priorityclasses", priority)
    return made


@asynccontextmanager
async def agent_of(plane: ControlPlane) -> AsyncIterator[ApiServer]:
    """Provide the product's own client."""
    async with ApiServer(await open_access(plane.kubeconfig)) as api:
        yield api


async def apply_crds(api: ApiClient) -> None:
    """Create the CRDs that do not exist yet, and wait until all are served."""
    for path in sorted(CRDS.iterdir()):
        for crd in yaml.safe_load_all(path.read_text()):
            try:
                await api.request("POST", CRD.path(), crd, query=STRICT)
            except ApiError as error:
                if error.status != 409:
                    raise

    async def served() -> bool:
        items = (await api.get(CRD.path()))["items"]
        conditions = [{one["type"]: one["status"] for one in crd["status"].get("conditions") or ()} for crd in items]
        return all(said.get("Established") == "True" for said in conditions)

    await eventually(served)


def holds(stored: object, written: object) -> bool:
    """Return whether all that was written is stored unchanged; the server may add to mappings."""
    if isinstance(written, dict) and isinstance(stored, dict):
        return all(name in stored and holds(stored[name], value) for name, value in written.items())
    if isinstance(written, list) and isinstance(stored, list):
        return len(stored) == len(written) and all(holds(*pair) for pair in zip(stored, written, strict=True))
    return stored == written


def test_what_is_lost_would_be_seen() -> None:
    assert holds({"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 1}]})
    assert not holds({"a": [{"c": 2}]}, {"a": [{"b": 1}]})
    assert not holds({"a": []}, {"a": [{"b": 1}]})


@pytest.mark.parametrize("name", TAKEN)
async def test_taken_and_kept_whole(plane: ControlPlane, name: str) -> None:
    async with plane.client() as api:
        await apply_crds(api)
        for manifest in yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()):
            place = Resource(manifest["apiVersion"], PLURALS[manifest["kind"]]).path(NAMESPACE)
            await api.request("POST", place, manifest, query=STRICT)
            one = f"{place}/{manifest['metadata']['name']}"
            stored = await api.get(one)
            await api.delete(one, {"gracePeriodSeconds": 0})
            await free(api, one)
            assert holds(stored, manifest)
            if manifest["apiVersion"] not in BUILT_IN:
                assert stored["spec"] == manifest["spec"]


async def free(api: ApiClient, one: str) -> None:
    """Remove the finalizers of an object if it still exists: no controller runs that would do so for a native PodGroup."""
    try:
        await api.patch(one, {"metadata": {"finalizers": None}})
    except ApiError as error:
        if error.status != 404:
            raise


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("volcano-gang", {"minMembers": 9}),
        ("kai-gang", {"topologyConstraints": {}}),
        ("coscheduling-gang", {"queue": "default"}),
        ("native-gang", {"priorities": 1}),
    ],
)
async def test_a_field_that_does_not_exist_is_refused(plane: ControlPlane, name: str, mistake: Json) -> None:
    async with plane.client() as api:
        await apply_crds(api)
        manifest = next(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))
        manifest["spec"] |= mistake
        place = Resource(manifest["apiVersion"], "podgroups").path(NAMESPACE)
        with pytest.raises(ApiError, match=rf"unknown field .*spec\.{next(iter(mistake))}\W"):
            await api.request("POST", place, manifest, query=STRICT)


async def test_every_scheduler_is_found_by_its_api(plane: ControlPlane) -> None:
    async with plane.client() as api, agent_of(plane) as agent:
        await apply_crds(api)
        topology = {"metadata": {"name": "t"}, "spec": {"levels": [{"nodeLabel": RACK}]}}
        member = {"type": "Node", "selector": {"labelMatch": {"matchLabels": {RACK: "r1"}}}}
        hyper_node = {"metadata": {"name": "h"}, "spec": {"tier": 1, "members": [member]}}
        made = (
            ("kai.scheduler/v1alpha1", "topologies", {"kind": "Topology", **topology}),
            ("kueue.x-k8s.io/v1beta2", "topologies", {"kind": "Topology", **topology}),
            ("topology.volcano.sh/v1alpha1", "hypernodes", {"kind": "HyperNode", **hyper_node}),
        )
        for version, plural, body in made:
            manifest = {"apiVersion": version, **body}
            await api.request("POST", Resource(version, plural).path(), manifest, query=STRICT)
        found = await detect(agent, NAMESPACE)
    assert found == ServedApis(
        native="v1alpha2",
        native_topology=True,
        volcano=True,
        tiers={RACK: 1},
        kai=True,
        kai_topologies={"t": (RACK,)},
        coscheduling=True,
        kueue="v1beta2",
        kueue_topologies={"t": (RACK,)},
        provisioning=True,
    )
    explicit = ("native", "volcano", "kai", "yunikorn", "coscheduling", "kueue", "gates")
    configs = [PlacementConfig.model_validate({"scheduler": name, "defaultQueue": "q"}) for name in explicit]
    placements: list[PlacementPort] = [choose(config, found) for config in configs]
    assert [placement.name for placement in placements] == list(explicit)


async def test_the_probe_leaves_nothing_behind(plane: ControlPlane) -> None:
    async with plane.client() as api, agent_of(plane) as agent:
        assert await probe_native(agent, NAMESPACE)
        assert (await api.get(pod_groups("v1alpha2").path(NAMESPACE)))["items"] == []


async def test_without_its_gate_the_topology_constraint_is_dropped_and_the_probe_sees_it(tmp_path: Path) -> None:
    plane = await start(tmp_path, **{API_SERVER: ["--feature-gates=TopologyAwareWorkloadScheduling=false"]})
    try:
        async with agent_of(plane) as agent:
            found = await detect(agent, NAMESPACE)
    finally:
        await plane.stop()
    assert (found.native, found.native_topology) == ("v1alpha2", False)
    assert "topology" not in choose(PlacementConfig(), found).capabilities


async def test_an_object_whose_pods_prefer_several_nodes_and_repel_members_is_taken(plane: ControlPlane) -> None:
    spec = translated(SAMPLES["batch/v1 Job"].manifest).spec
    manifests = made(*spec["roles"], workload=spec["workload"], topology={"exclusive": "node"}, prefers_nodes=True)
    (name,) = (one["name"] for one in spec["roles"])
    body = manifests.workload({name: {"n1", "n2"}}).body
    body["metadata"] = {"name": "wide", "namespace": NAMESPACE}
    async with plane.client() as api:
        kept = await api.request("POST", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", body, query=STRICT)
    assert kept["spec"]["template"]["spec"]["affinity"] == body["spec"]["template"]["spec"]["affinity"]


async def test_opening_takes_our_gate_and_leaves_the_others(plane: ControlPlane) -> None:
    role = WHOLE.roles[1]
    pod = a_pod(WHOLE, role)
    pod["spec"]["schedulingGates"] = [{"name": "example.com/quota"}]
    Gates().dress(WHOLE, role, pod)
    name = pod["metadata"]["name"]
    async with agent_of(plane) as api:
        stored = await api.create(PODS, NAMESPACE, pod)
        opened = await api.patch(PODS, NAMESPACE, name, opening_patch(stored["spec"]["schedulingGates"], {RACK: "r7"}))
        await api.delete(PODS, NAMESPACE, name, grace=0)
    assert opened["spec"]["schedulingGates"] == [{"name": "example.com/quota"}]
    assert opened["spec"]["nodeSelector"] == {"gpu": "h100", RACK: "r7"}


async def test_opening_the_last_gate_makes_the_pod_ready_to_be_placed(plane: ControlPlane) -> None:
    role = WHOLE.roles[0]
    pod = a_pod(WHOLE, role)
    Gates().dress(WHOLE, role, pod)
    name = pod["metadata"]["name"]
    async with agent_of(plane) as api:
        stored = await api.create(PODS, NAMESPACE, pod)
        opened = await api.patch(PODS, NAMESPACE, name, opening_patch(stored["spec"]["schedulingGates"], {RACK: "r7"}))
        await api.delete(PODS, NAMESPACE, name, grace=0)
    assert "schedulingGates" not in opened["spec"]
    assert opened["spec"]["nodeSelector"] == {RACK: "r7"}
