"""The Kubernetes runtime with the schedulers of other projects: real programs, on a real control plane with simulated nodes.

Which of them are there, ``TRAINMASTER_SCHEDULER_ASSETS`` says (see ``tests.cluster.schedulers``). A control plane for each: their
kinds and webhooks stay out of the way of other tests.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from itertools import zip_longest
from typing import Any, ClassVar

import pytest
import yaml

from tests import waiting
from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import Cluster, has_default_account, need_programs, open_cluster, pod
from tests.cluster.kueue_queues import (
    KUEUE,
    make_kueue_cohort,
    make_kueue_queue,
    make_kueue_topology,
    remove_kueue_topologies,
    set_kueue_quota,
)
from tests.cluster.schedulers import ASSETS, assets_of, installed
from tests.cluster.shipped import Installed
from tests.conformance.kube_lab import KubeLab
from tests.conformance.runtime_suite import (
    RUNS,
    WAITS_FOR_GATE,
    A,
    B,
    Part,
    RuntimeConformance,
    eventually,
    start_run,
    stop_run,
    until,
    until_living,
    until_over,
    until_state,
)
from tests.conformance.scheduler_suite import (
    RACK,
    SchedulerConformance,
    apply,
    configure,
    serve_zones,
    until_changed,
    urgent_pod,
)
from tests.e2e.test_kubernetes_conformance import make_lab
from trainmaster.cluster_model.capabilities import Capability
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.states import RunState
from trainmaster.workload_kinds.specification import translated

need_programs(whole_module=True)

BLOCK = "topology.example.com/block"
SMALL = {"cpu": "2", "memory": "8Gi", "pods": "110"}
"""A node beside the two of 4 CPU."""


class SchedulerSite:
    """A control plane with the scheduler ``scheduler``, and labs on it."""

    scheduler: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def site(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
        if assets_of(cls.scheduler) is None:
            pytest.skip(f"{ASSETS} names no folder with {cls.scheduler}")
        loop, stack = asyncio.new_event_loop(), AsyncExitStack()

        async def start() -> Installed:
            plane = await ControlPlane.start(tmp_path_factory.mktemp("plane"))
            stack.push_async_callback(plane.stop)
            return await stack.enter_async_context(
                installed(cls.scheduler, plane, tmp_path_factory.mktemp(cls.scheduler))
            )

        try:
            site = loop.run_until_complete(start())
            print(f"{site.name} {site.version} on Kubernetes {site.plane.version}")
            yield site
        finally:
            loop.run_until_complete(stack.aclose())
            loop.close()

    @pytest.fixture
    async def cluster(self, site: Installed) -> AsyncIterator[Cluster]:
        async with open_cluster(site.plane) as cluster:
            await self.prepare(cluster)
            yield cluster
            await self.clear(cluster)
            await cluster.api.delete(cluster.pods, query={"gracePeriodSeconds": 1})
            await waiting.eventually(
                lambda: _is_empty(cluster), 60
            )  # a scheduler may hold pods back until it has counted them

    async def prepare(self, cluster: Cluster) -> None:
        """Make what the scheduler needs in the namespace of a test."""

    async def clear(self, cluster: Cluster) -> None:
        """Remove what would keep pods of the test from going: what ``forget`` removes of runs that have ended."""

    @pytest.fixture
    async def lab(self, site: Installed, cluster: Cluster) -> AsyncIterator[KubeLab]:
        lab = await make_lab(cluster, site.placement)
        await lab.open()
        try:
            yield lab
        finally:
            await lab.close()


class OnItsScheduler(SchedulerSite, SchedulerConformance, RuntimeConformance):
    """The runtime suite on a scheduler, gangs, and what the scheduler does to them by itself."""

    silence_seconds = 10.0  # most of them decide once a second

    async def add_place(self, cluster: Cluster) -> None:
        """Add a node for a member of 2 CPU."""
        await cluster.kubelet.add_node("late", allocatable=SMALL)

    # Gangs

    async def test_five_members_wait_for_a_fifth_place_and_then_all_start(self, cluster: Cluster, lab: KubeLab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE, count=5, cpu="2")))
        await until(lab, A, lambda status: status.state is RunState.PENDING and bool(status.message))
        await asyncio.sleep(3)  # what must not happen would have happened by now
        assert (lab.runtime.held()[A].state, lab.living(A)) == (RunState.PENDING, 0)
        await self.add_place(cluster)
        await until_state(lab, A, RunState.RUNNING)
        await until_living(lab, A, 5)
        lab.open_gate(A)
        assert (await until_over(lab, A)).state is RunState.SUCCEEDED

    async def test_of_gangs_that_would_block_one_another_one_runs_after_the_other(self, lab: KubeLab) -> None:
        runs = [f"rival-{number:07d}-r1" for number in range(4)]
        for run in runs:
            await lab.runtime.start(start_run(lab, run, Part(WAITS_FOR_GATE, count=3, cpu="2"), placement_timeout=300))
        for left in (4, 3, 2, 1):
            (running,) = await _running(lab, 1)
            await asyncio.sleep(1)
            living = {run: lab.living(run) for run in runs}
            assert living == {run: 3 if run == running else 0 for run in runs}, f"with {left} gangs left"
            lab.open_gate(running)
            assert (await until_over(lab, running)).state is RunState.SUCCEEDED

    async def test_a_gang_that_waits_starts_although_the_scheduler_is_killed(
        self, site: Installed, cluster: Cluster, lab: KubeLab
    ) -> None:
        await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE, count=5, cpu="2"), placement_timeout=300))
        await until(lab, A, lambda status: status.state is RunState.PENDING and bool(status.message))
        for program in site.daemons:
            await site.restart(program)
        await self.add_place(cluster)
        await until_state(lab, A, RunState.RUNNING)
        await until_living(lab, A, 5)
        lab.open_gate(A)
        assert (await until_over(lab, A)).state is RunState.SUCCEEDED

    async def test_a_gang_of_several_roles_starts_with_the_least_number_of_each(
        self, cluster: Cluster, lab: KubeLab
    ) -> None:
        """5 places are enough for the launcher and the 4 workers without which there is no gang; the others come with more places."""
        parts = (
            Part(WAITS_FOR_GATE, name="launcher", cpu="1500m"),
            Part(WAITS_FOR_GATE, count=7, cpu="1500m", of_role={"minReplicas": 4}),
        )
        order = start_run(lab, A, *parts, placement_timeout=300)
        await cluster.kubelet.add_node("half", allocatable={**SMALL, "cpu": "1500m"})
        await lab.runtime.start(order)
        status = await until(lab, A, lambda status: status.state is RunState.RUNNING or status.state.is_terminal)
        if status.state is RunState.RETURNED:
            pytest.skip(f"{self.scheduler}: {status.message}")
        await until_living(lab, A, 5)
        assert {(one.role, one.state) for one in lab.runtime.held()[A].members if one.state == "running"} == {
            ("launcher", "running"),
            ("worker", "running"),
        }
        await cluster.kubelet.add_node("late", allocatable=SMALL)
        await cluster.kubelet.add_node("later", allocatable={**SMALL, "cpu": "4"})
        await until_living(lab, A, 8)
        lab.open_gate(A)
        assert (await until_over(lab, A)).state is RunState.SUCCEEDED

    async def test_a_gang_that_waits_in_vain_is_returned_with_the_words_of_its_scheduler(self, lab: KubeLab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=5, cpu="2"), placement_timeout=8))
        status = await until_over(lab, A)
        assert status.state is RunState.RETURNED
        assert lab.living(A) == 0
        print(f"{self.scheduler}: {status.message}")
        assert status.message


async def _is_empty(cluster: Cluster) -> bool:
    return not (await cluster.api.get(cluster.pods))["items"]


async def _running(lab: KubeLab, many: int) -> list[str]:
    """Return the runs that are running, once there are as many."""

    def found() -> list[str]:
        return [run for run, status in lab.runtime.held().items() if status.state is RunState.RUNNING]

    await eventually(lambda: len(found()) >= many, f"{many} runs are running")
    return found()


class TestVolcano(OnItsScheduler):
    scheduler = "volcano"
    guarded = ("scheduling.volcano.sh", "v1beta1", "podgroups")
    crd = "podgroups.scheduling.volcano.sh"
    webhook_program = "vc-webhook-manager"
    zones_path = "/apis/nodeinfo.volcano.sh/v1alpha1/numatopologies"
    quota_words = "queue resource quota insufficient"

    async def let_it_evict(self, site: Installed | None, cluster: Cluster) -> dict[str, Any]:
        """Add the actions by which it evicts, which are off by default."""
        assert site is not None
        conf = site.folder / "volcano-scheduler.conf"
        conf.write_text(conf.read_text().replace("allocate, backfill", "allocate, preempt, reclaim, backfill"))
        await site.restart("vc-scheduler")
        return {}

    async def urgent(self, cluster: Cluster) -> dict[str, Any]:
        return await self._other(cluster, "default", priorityClassName="urgent")

    async def lend(self, cluster: Cluster) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make two queues of the same weight: each is owed half of the cluster."""
        borrower, owner = (f"{name}-{cluster.namespace}" for name in ("borrower", "owner"))
        for name in (borrower, owner):
            await self._set_queue(cluster, name, {"weight": 100})
        return {"queues": {"org/team": borrower}}, await self._other(cluster, owner)

    async def _other(self, cluster: Cluster, queue: str, **spec: str) -> dict[str, Any]:
        await cluster.api.post(
            f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{cluster.namespace}/podgroups",
            {
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "PodGroup",
                "metadata": {"name": "urgent"},
                "spec": {"minMember": 1, "queue": queue, **spec},
            },
        )
        return urgent_pod("volcano", annotations={"scheduling.k8s.io/group-name": "urgent"})

    @staticmethod
    async def _turn_on(site: Installed | None, plugin: str) -> None:
        """Add a plugin to the configuration of the scheduler, and start it again; nothing if it has the plugin."""
        assert site is not None
        conf = site.folder / "volcano-scheduler.conf"
        settings = yaml.safe_load(conf.read_text())
        plugins = settings["tiers"][-1]["plugins"]
        if not any(one["name"] == plugin for one in plugins):
            plugins.append({"name": plugin})
            conf.write_text(yaml.safe_dump(settings))
            await site.restart("vc-scheduler")

    async def set_up_racks(self, site: Installed | None, cluster: Cluster) -> None:
        """Make a HyperNode for each rack, and turn the plugin on that reads them, which is off by default."""
        await self._turn_on(site, "network-topology-aware")
        for rack in ("a", "b"):
            member = {"type": "Node", "selector": {"labelMatch": {"matchLabels": {RACK: rack}}}}
            body = {
                "apiVersion": "topology.volcano.sh/v1alpha1",
                "kind": "HyperNode",
                "metadata": {"name": f"rack-{rack}"},
                "spec": {"tier": 1, "tierName": RACK, "members": [member]},
            }
            await apply(cluster.api, "/apis/topology.volcano.sh/v1alpha1/hypernodes", body)

    async def set_up_zones(self, site: Installed | None, cluster: Cluster) -> None:
        """Turn the plugin on that reads Numatopologies, which is off by default."""
        await self._turn_on(site, "numa-aware")

    async def report_zones(self, cluster: Cluster, node: str, zones: Sequence[int], used: Sequence[int] = ()) -> None:
        """Report CPUs by their numbers, as Volcano's resource exporter does."""
        of_zone = [number for number, count in enumerate(zones) for _ in range(count)]
        free: list[str] = []
        left = [count - taken for count, taken in zip_longest(zones, used, fillvalue=0)]
        for cpu, zone in enumerate(of_zone):
            if left[zone] > 0:
                left[zone] -= 1
                free.append(str(cpu))
        body = {
            "apiVersion": "nodeinfo.volcano.sh/v1alpha1",
            "kind": "Numatopology",
            "metadata": {"name": node},
            "spec": {
                "policies": {"CPUManagerPolicy": "static", "TopologyManagerPolicy": "single-numa-node"},
                "numares": {"cpu": {"allocatable": ",".join(free), "capacity": len(of_zone)}},
                "cpuDetail": {
                    str(cpu): {"numa": zone, "socket": zone, "core": cpu} for cpu, zone in enumerate(of_zone)
                },
            },
        }
        await apply(cluster.api, self.zones_path, body)

    async def limit(self, cluster: Cluster, cpu: int) -> dict[str, Any]:
        name = f"small-{cluster.namespace}"
        await self._set_queue(cluster, name, {"weight": 1, "capability": {"cpu": str(cpu)}})
        return {"queues": {"org/team": name}}

    async def _set_queue(self, cluster: Cluster, name: str, spec: dict[str, Any]) -> None:
        queues = "/apis/scheduling.volcano.sh/v1beta1/queues"
        body = {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": spec,
        }
        await apply(cluster.api, queues, body)

        async def is_open() -> bool:
            return ((await cluster.api.get(f"{queues}/{name}")).get("status") or {}).get("state") == "Open"

        await waiting.eventually(is_open, 30)


KAI_ACTIONS = "allocate, consolidation, reclaim, preempt, stalegangeviction"
KAI_PLUGINS: list[dict[str, Any]] = [
    *(
        {"name": name}
        for name in (
            *("predicates", "proportion", "priority", "elastic", "kubeflow", "ray", "nodeavailability"),
            *("gpusharingorder", "gpupack", "resourcetype", "subgrouporder", "taskorder", "nominatednode"),
            *("dynamicresources", "minruntime", "topology", "snapshot", "sg-nodelocalgreedy", "sg-multinodegang"),
        )
    ),
    {"name": "nodeplacement", "arguments": {"cpu": "binpack", "gpu": "binpack"}},
]
"""Those that are on by default."""


class TestKai(OnItsScheduler):
    """KAI packs: it fills a node with small members before the large ones have their places."""

    scheduler = "kai"
    large_members_first = False
    guarded = ("scheduling.run.ai", "v2alpha2", "podgroups")
    crd = "podgroups.scheduling.run.ai"
    eviction_words = "KAI evicted it|somebody deleted"  # it notes an eviction after it has deleted a pod
    quota_words = "limit"

    async def urgent(self, cluster: Cluster) -> dict[str, Any]:
        return await self._other(cluster, "jobs", priorityClassName="urgent")

    async def lend(self, cluster: Cluster) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make a queue that is owed nothing, and one that is owed a node."""
        borrower, owner = (f"{name}-{cluster.namespace}" for name in ("borrower", "owner"))
        await self._set_queue(cluster, borrower, quota=0)
        await self._set_queue(cluster, owner, quota=4000)
        return {"queues": {"org/team": borrower}}, await self._other(cluster, owner, priorityClassName="trainmaster")

    async def _other(self, cluster: Cluster, queue: str, **spec: str) -> dict[str, Any]:
        await cluster.api.post(
            f"/apis/scheduling.run.ai/v2alpha2/namespaces/{cluster.namespace}/podgroups",
            {
                "apiVersion": "scheduling.run.ai/v2alpha2",
                "kind": "PodGroup",
                "metadata": {"name": "urgent"},
                "spec": {"minMember": 1, "queue": queue, **spec},
            },
        )
        notes = {"pod-group-name": "urgent", "kai.scheduler/skip-podgrouper": "true"}
        return urgent_pod("kai-scheduler", annotations=notes, labels={"kai.scheduler/queue": queue})

    async def set_up_racks(self, site: Installed | None, cluster: Cluster) -> None:
        levels = [{"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]
        body = {
            "apiVersion": "kai.scheduler/v1alpha1",
            "kind": "Topology",
            "metadata": {"name": "racks"},
            "spec": {"levels": levels},
        }
        await apply(cluster.api, "/apis/kai.scheduler/v1alpha1/topologies", body)

    async def set_up_zones(self, site: Installed | None, cluster: Cluster) -> None:
        """Turn the plugin on that reads NodeResourceTopologies, which is off by default; KAI looks for their kind when it starts."""
        assert site is not None
        await serve_zones(cluster)
        settings = {"actions": KAI_ACTIONS, "tiers": [{"plugins": [*KAI_PLUGINS, {"name": "numa"}]}]}
        (site.folder / "scheduler.conf").write_text(yaml.safe_dump(settings))
        await site.restart("scheduler")

    async def limit(self, cluster: Cluster, cpu: int) -> dict[str, Any]:
        name = f"small-{cluster.namespace}"
        await self._set_queue(cluster, name, limit=1000 * cpu)
        return {"queues": {"org/team": name}}

    async def _set_queue(self, cluster: Cluster, name: str, **of_cpu: int) -> None:
        free = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
        resources = {"cpu": {**free, **of_cpu}, "gpu": free, "memory": free}
        body = {
            "apiVersion": "scheduling.run.ai/v2",
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": {"parentQueue": "all", "resources": resources},
        }
        await apply(cluster.api, "/apis/scheduling.run.ai/v2/queues", body)

    async def clear(self, cluster: Cluster) -> None:
        """Remove the groups: KAI takes groups of one name for the same, also of several namespaces, and tests use the same names."""
        await cluster.api.delete(f"/apis/scheduling.run.ai/v2alpha2/namespaces/{cluster.namespace}/podgroups")


class TestCoscheduling(OnItsScheduler):
    """Its quota is that of the plugin CapacityScheduling, which the same project ships in the same profile."""

    scheduler = "coscheduling"
    guarded = ("scheduling.x-k8s.io", "v1alpha1", "podgroups")
    crd = "podgroups.scheduling.x-k8s.io"
    quota_words = "ElasticQuota"

    async def set_up_zones(self, site: Installed | None, cluster: Cluster) -> None:
        """Do nothing: the plugin NodeResourceTopologyMatch is in the profile that the project ships."""

    async def urgent(self, cluster: Cluster) -> dict[str, Any]:
        return urgent_pod("scheduler-plugins-scheduler")

    async def limit(self, cluster: Cluster, cpu: int) -> dict[str, Any]:
        await self._set_quota(cluster, cluster.namespace, cpu, cpu)
        return {}

    async def lend(self, cluster: Cluster) -> tuple[dict[str, Any], dict[str, Any]]:
        """Give half of the cluster to the namespace of the runs, which may use all of it, and the other half to another namespace."""
        owner = f"{cluster.namespace}-owner"
        await cluster.api.post("/api/v1/namespaces", {"metadata": {"name": owner}})
        await has_default_account(cluster.api, owner)
        await self._set_quota(cluster, cluster.namespace, 4, 8)
        await self._set_quota(cluster, owner, 4, 8)
        return {}, urgent_pod("scheduler-plugins-scheduler", name="urgent", namespace=owner)

    async def clear(self, cluster: Cluster) -> None:
        """Remove what ``lend`` has made, if it has."""
        owner = f"/api/v1/namespaces/{cluster.namespace}-owner"
        with suppress(ApiError):
            await cluster.api.get(owner)
            await cluster.api.delete(f"{owner}/pods", query={"gracePeriodSeconds": 0})
            await cluster.api.delete(owner)

    async def test_a_rejected_member_is_tried_again_when_its_group_changes(
        self, cluster: Cluster, lab: KubeLab
    ) -> None:
        """The agent relies on this where all members were rejected because of one another."""
        groups = f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{cluster.namespace}/podgroups"
        body = {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": "changed"},
            "spec": {"minMember": 2, "scheduleTimeoutSeconds": 60},
        }
        await cluster.api.post(groups, body)
        common: dict[str, Any] = {"schedulerName": "scheduler-plugins-scheduler", "automountServiceAccountToken": False}
        members: dict[str, dict[str, Any]] = {"fits": {}, "never": {"nodeSelector": {"nowhere": "true"}}}
        for name, more in members.items():
            member = pod(name, "run", **common, **more)
            member["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = "changed"
            await cluster.api.post(cluster.pods, member)

        async def is_rejected() -> bool:
            status = (await cluster.api.get(f"{cluster.pods}/fits"))["status"]
            return any(
                "optimistic rejection in PostFilter" in one.get("message", "") for one in status.get("conditions", ())
            )

        await waiting.eventually(is_rejected, 30)
        await cluster.api.patch(f"{groups}/changed", {"spec": {"minMember": 1}})
        await cluster.until_phase("fits", "Running", 30)

    async def _set_quota(self, cluster: Cluster, namespace: str, least: int, most: int) -> None:
        rest = {"memory": "64Gi", "ephemeral-storage": "1Ti"}
        body = {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "ElasticQuota",
            "metadata": {"name": "small"},
            "spec": {"min": {"cpu": str(least), **rest}, "max": {"cpu": str(most), **rest}},
        }
        await apply(cluster.api, f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{namespace}/elasticquotas", body)


class TestYuniKorn(OnItsScheduler):
    """A queue evicts for what it is guaranteed, whatever the priorities. Placeholder pods of large members are not placed first."""

    scheduler = "yunikorn"
    not_offered = frozenset({"exclusiveNodes"})
    large_members_first = False
    eviction_words = "somebody deleted"
    quota_words = "queue root.small cannot fit application"
    quota_refuses = True

    async def let_it_evict(self, site: Installed | None, cluster: Cluster) -> dict[str, Any]:
        owners = {
            "name": "owners",
            "resources": {"guaranteed": {"vcore": "4"}},
            "properties": {"preemption.delay": "1s"},
        }
        await self._set_queues(cluster, owners, {"name": "jobs"})
        return {"queues": {"org/team": "root.jobs"}}

    async def lend(self, cluster: Cluster) -> tuple[dict[str, Any], dict[str, Any]]:
        return await self.let_it_evict(None, cluster), await self.urgent(cluster)

    async def urgent(self, cluster: Cluster) -> dict[str, Any]:
        return urgent_pod(
            "yunikorn", labels={"yunikorn.apache.org/app-id": "urgent", "yunikorn.apache.org/queue": "root.owners"}
        )

    async def limit(self, cluster: Cluster, cpu: int) -> dict[str, Any]:
        await self._set_queues(cluster, {"name": "small", "resources": {"max": {"vcore": str(cpu)}}})
        return {"queues": {"org/team": "root.small"}}

    async def _set_queues(self, cluster: Cluster, *queues: dict[str, Any]) -> None:
        """Set the queues that pods may name; all others are in that of their namespace, as it is shipped."""
        rules = [{"name": "provided"}, {"name": "tag", "value": "namespace", "create": True}]
        root = {"name": "root", "submitacl": "*", "queues": list(queues)}
        partition = {"name": "default", "placementrules": rules, "queues": [root]}
        data = {"queues.yaml": yaml.safe_dump({"partitions": [partition]})}
        await cluster.api.patch("/api/v1/namespaces/yunikorn/configmaps/yunikorn-configs", {"data": data})
        await asyncio.sleep(2)  # it says nowhere that it has read them


QUOTA = {"cpu": "8", "memory": "16Gi", "ephemeral-storage": "100Gi"}
"""What the nodes have."""


class TestKueue(OnItsScheduler):
    """Kueue admits gangs by quota; the default scheduler places their pods one by one."""

    scheduler = "kueue"
    large_members_first = False
    not_offered = frozenset({"memberRestart", "gangRestart", "resize"})
    webhook_program = "manager"
    eviction_words = "Kueue evicted it"
    quota_words = "insufficient (unused )?quota for cpu"

    async def prepare(self, cluster: Cluster) -> None:
        await set_kueue_quota(cluster.api, QUOTA)
        await make_kueue_queue(cluster.api, cluster.namespace)

    async def clear(self, cluster: Cluster) -> None:
        await cluster.api.delete(f"{KUEUE}/namespaces/{cluster.namespace}/workloads")
        await set_kueue_quota(cluster.api, QUOTA)
        await remove_kueue_topologies(cluster.api)

    async def set_up_racks(self, site: Installed | None, cluster: Cluster) -> None:
        await self._set_levels(cluster, RACK)

    async def _set_levels(self, cluster: Cluster, *levels: str) -> None:
        """Let the quota be that of nodes with these labels, by which Kueue then chooses nodes."""
        await make_kueue_topology(cluster.api, "racks", [*levels, "kubernetes.io/hostname"])
        await set_kueue_quota(cluster.api, {**QUOTA, "cpu": "12"}, "racks")

    async def _set_up_blocks(self, cluster: Cluster, lab: KubeLab) -> None:
        """Let the lab have two racks in block x, and a third one in block y, all of one node of 4 CPU."""
        for node, rack in (("node-0", "a"), ("node-1", "b")):
            await cluster.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {RACK: rack, BLOCK: "x"}}})
        await cluster.kubelet.add_node("far", allocatable={**SMALL, "cpu": "4"}, labels={RACK: "c", BLOCK: "y"})
        await self._set_levels(cluster, BLOCK, RACK)
        levels = [{"level": "block", "label": BLOCK}, {"level": "rack", "label": RACK}]
        await configure(lab, capacity={"levels": levels})

    async def test_with_a_topology_levels_are_offered_and_whole_nodes_are_not(
        self, cluster: Cluster, lab: KubeLab
    ) -> None:
        await self._set_up_blocks(cluster, lab)
        capabilities = (await lab.runtime.capacity()).capabilities
        assert Capability.TOPOLOGY in capabilities
        assert Capability.EXCLUSIVE_NODES not in capabilities
        await lab.runtime.start(start_run(lab, A, Part(RUNS), topology={"exclusive": "node"}))
        status = await until_over(lab, A)
        assert status.state is RunState.RETURNED
        assert "topology.exclusive is requested, and Kueue with a topology here" in status.message

    async def test_a_gang_that_fits_no_rack_is_returned_with_the_words_of_kueue(
        self, cluster: Cluster, lab: KubeLab
    ) -> None:
        await self._set_up_blocks(cluster, lab)
        order = start_run(lab, A, Part(RUNS, count=3, cpu="2"), topology={"required": "rack"}, placement_timeout=8)
        await lab.runtime.start(order)
        status = await until_over(lab, A)
        print(f"kueue: {status.message}")
        assert (status.state, lab.living(A)) == (RunState.RETURNED, 0)
        assert 'topology "racks" allows to fit only 2 out of 3 pod(s)' in status.message

    @pytest.mark.parametrize("topology", [{"required": "block"}, {"preferred": "rack"}], ids=["required", "preferred"])
    async def test_a_gang_too_large_for_a_rack_is_within_a_block(
        self, cluster: Cluster, lab: KubeLab, topology: dict[str, str]
    ) -> None:
        await self._set_up_blocks(cluster, lab)
        await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE, count=4, cpu="2"), topology=topology))
        await until_state(lab, A, RunState.RUNNING)
        assert {life.node for life in cluster.kubelet.started({"trainmaster.dev/run": A})} == {"node-0", "node-1"}
        lab.open_gate(A)
        assert (await until_over(lab, A)).state is RunState.SUCCEEDED

    async def test_a_launcher_and_its_workers_share_a_rack(self, cluster: Cluster, lab: KubeLab) -> None:
        await self._set_up_blocks(cluster, lab)
        parts = (Part(WAITS_FOR_GATE, name="launcher"), Part(WAITS_FOR_GATE, count=3))
        await lab.runtime.start(start_run(lab, A, *parts, topology={"required": "rack"}))
        await until_state(lab, A, RunState.RUNNING)
        assert len({life.node for life in cluster.kubelet.started({"trainmaster.dev/run": A})}) == 1
        lab.open_gate(A)
        assert (await until_over(lab, A)).state is RunState.SUCCEEDED

    async def let_it_evict(self, site: Installed | None, cluster: Cluster) -> dict[str, Any]:
        spec = {"preemption": {"withinClusterQueue": "LowerPriority"}}
        await cluster.api.patch(f"{KUEUE}/clusterqueues/all", {"spec": spec})
        return {}

    async def urgent(self, cluster: Cluster) -> dict[str, Any]:
        return urgent_pod(labels={"kueue.x-k8s.io/queue-name": "default"})

    async def lend(self, cluster: Cluster) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make two ClusterQueues of one cohort: each has half of the cluster."""
        queues = {name: f"{name}-{cluster.namespace}" for name in ("borrower", "owner")}
        await make_kueue_cohort(cluster.api, cluster.namespace, list(queues.values()), "4")
        for name, queue in queues.items():
            await make_kueue_queue(cluster.api, cluster.namespace, name, queue)
        return {"queues": {"org/team": "borrower"}}, urgent_pod(labels={"kueue.x-k8s.io/queue-name": "owner"})

    async def limit(self, cluster: Cluster, cpu: int) -> dict[str, Any]:
        await set_kueue_quota(cluster.api, {**QUOTA, "cpu": str(cpu)})
        return {}

    async def test_the_agent_begins_anew_with_the_version_of_workloads_that_is_still_served(
        self, site: Installed, cluster: Cluster, lab: KubeLab
    ) -> None:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/workloads.kueue.x-k8s.io"
        versions = (await cluster.api.get(path))["spec"]["versions"]
        served = [{**one, "served": one["name"] != "v1beta2"} for one in versions]
        try:
            await cluster.api.patch(path, {"spec": {"versions": served}})
            words = await until_changed(lab)
            assert words.startswith("the cluster no longer serves workloads of kueue.x-k8s.io/v1beta2")
            await lab.restart()
            assert not (await lab.runtime.capacity()).closed
        finally:
            await cluster.api.patch(path, {"spec": {"versions": versions}})
            await site.restart("manager")
        await lab.restart()
        await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE, count=2), placement_timeout=300))
        await until_state(lab, A, RunState.RUNNING)
        lab.open_gate(A)
        assert (await until_over(lab, A)).state is RunState.SUCCEEDED

    async def add_place(self, cluster: Cluster) -> None:
        """Add a node, and its CPU to the quota, as Kueue counts nodes only where topologies are set up."""
        await super().add_place(cluster)
        await set_kueue_quota(cluster.api, {**QUOTA, "cpu": "10"})

    async def test_a_gang_is_admitted_runs_and_leaves_nothing(self, cluster: Cluster, lab: KubeLab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE, count=3), Part(WAITS_FOR_GATE, name="ps")))
        await until_state(lab, A, RunState.RUNNING)
        await until_living(lab, A, 4)
        workloads = f"{KUEUE}/namespaces/{cluster.namespace}/workloads"
        assert [one["metadata"]["name"] for one in (await cluster.api.get(workloads))["items"]] == [A]
        lab.open_gate(A)
        assert (await until_over(lab, A)).state is RunState.SUCCEEDED
        await lab.runtime.forget(A)
        await waiting.eventually(lambda: _is_empty(cluster), 30)

        async def is_removed() -> bool:
            return not (await cluster.api.get(workloads))["items"]

        await waiting.eventually(is_removed, 30)

    async def test_a_stopped_gang_leaves_no_pods_although_kueue_holds_them(
        self, cluster: Cluster, lab: KubeLab
    ) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=3)))
        await until_living(lab, A, 3)
        await lab.runtime.stop(stop_run(A))
        assert (await until_over(lab, A)).state is RunState.CANCELLED
        await lab.runtime.forget(A)
        await waiting.eventually(lambda: _is_empty(cluster), 30)

    async def test_a_gang_beyond_all_quota_is_returned_with_the_words_of_kueue(self, lab: KubeLab) -> None:
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=9), placement_timeout=3))
        status = await until_over(lab, A)
        assert status.state is RunState.RETURNED
        assert "insufficient quota for cpu" in status.message

    async def test_a_job_of_kubernetes_runs_once_kueue_admits_it_and_leaves_nothing(
        self, cluster: Cluster, lab: KubeLab
    ) -> None:
        assert "workload:batch/v1/Job" in (await lab.runtime.capacity()).capabilities
        await lab.runtime.start(start_run(lab, B, Part(WAITS_FOR_GATE, count=3, cpu="2")))
        await until_state(lab, B, RunState.RUNNING)
        await lab.runtime.start(_job_of_kubernetes(A, parallelism=2, cpu="2"))
        await until(lab, A, lambda status: "insufficient unused quota for cpu" in status.message)
        await asyncio.sleep(2)  # what must not happen would have happened by now
        assert lab.living(A) == 0, "Kueue holds it back"
        lab.open_gate(B)
        assert (await until_over(lab, B)).state is RunState.SUCCEEDED
        await lab.runtime.forget(B)
        await until_state(lab, A, RunState.RUNNING)
        lab.open_gate(A)
        assert (await until_over(lab, A)).state is RunState.SUCCEEDED
        await lab.runtime.forget(A)
        await self.nothing_is_left(cluster)

    async def test_a_job_of_kubernetes_beyond_all_quota_is_returned(self, cluster: Cluster, lab: KubeLab) -> None:
        await lab.runtime.start(_job_of_kubernetes(A, parallelism=9, cpu="1", placement_timeout=3))
        status = await until_over(lab, A)
        assert (status.state, "insufficient quota for cpu" in status.message) == (RunState.RETURNED, True)
        await lab.runtime.forget(A)
        await self.nothing_is_left(cluster)

    async def test_a_job_of_kubernetes_that_kueue_evicts_is_preempted(self, cluster: Cluster, lab: KubeLab) -> None:
        await lab.runtime.start(_job_of_kubernetes(A, parallelism=2, cpu="1"))
        await until_state(lab, A, RunState.RUNNING)
        workloads = f"{KUEUE}/namespaces/{cluster.namespace}/workloads"
        (workload,) = (await cluster.api.get(workloads))["items"]
        await cluster.api.patch(f"{workloads}/{workload['metadata']['name']}", {"spec": {"active": False}})
        status = await until_over(lab, A)
        assert status.state is RunState.PREEMPTED
        assert "Kueue evicted it" in status.message
        await lab.runtime.forget(A)
        await self.nothing_is_left(cluster)

    async def nothing_is_left(self, cluster: Cluster) -> None:
        async def is_gone() -> bool:
            workloads = await cluster.api.get(f"{KUEUE}/namespaces/{cluster.namespace}/workloads")
            jobs = await cluster.api.get(f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs")
            return not workloads["items"] and not jobs["items"] and await _is_empty(cluster)

        await waiting.eventually(is_gone, 30)


def _job_of_kubernetes(run: str, *, parallelism: int, cpu: str, placement_timeout: float = 300.0) -> StartRun:
    container = {
        "name": "main",
        "image": "sim",
        "command": ["sim", "gate", run],
        "resources": {"requests": {"cpu": cpu}},
    }
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "pi", "annotations": {"trainmaster.dev/queue": "default"}},
        "spec": {
            "parallelism": parallelism,
            "completions": parallelism,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }
    return StartRun(
        run=run,
        job=run.rpartition("-r")[0],
        queue="default",
        attempt=1,
        token=1,
        generation=1,
        spec=translated(manifest).spec,
        sizes={"main": parallelism},
        placement_timeout_seconds=placement_timeout,
    )
