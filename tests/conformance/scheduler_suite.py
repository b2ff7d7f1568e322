"""What a scheduler inside a cluster, and the owner of the cluster, do to runs by themselves; a suite beside that of runtimes.

Subclass ``SchedulerConformance`` together with ``RuntimeConformance``, with a fixture ``cluster`` beside ``lab``, and one ``site``:
the programs of the scheduler, or None where it is that of the control plane.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from functools import partial
from itertools import zip_longest
from pathlib import Path
from signal import SIGKILL
from typing import Any, ClassVar

import pytest
import yaml

from tests import waiting
from tests.cluster.api import ApiClient, ApiError
from tests.cluster.fixtures import Cluster, pod
from tests.cluster.shipped import Installed
from tests.conformance.kube_lab import KubeLab
from tests.conformance.runtime_suite import (
    RUNS,
    WAITS_FOR_GATE,
    A,
    B,
    C,
    Part,
    eventually,
    start_run,
    until,
    until_living,
    until_over,
    until_state,
)
from trainmaster.cluster_model.capabilities import Capability
from trainmaster.protocol.states import RunState
from trainmaster_agent.runtime.kubernetes.served_placement import PlacementChangedError

URGENT: dict[str, Any] = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 1000,
}
RACK = "topology.example.com/rack"
LATE = {"cpu": "2", "memory": "8Gi", "pods": "110"}
NEWER = "v9"
"""A version of a kind that its project does not have."""
_ZONES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
_ZONES_CRD = Path(__file__).parents[1] / "crds/noderesourcetopology.yaml"
_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


async def configure(lab: KubeLab, **fields: Any) -> None:
    """Start the agent again with other fields of its configuration."""
    data = lab.config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    lab.config = type(lab.config).model_validate({**data, **fields})
    await lab.restart()


async def place_with(lab: KubeLab, **settings: Any) -> None:
    """Start the agent again with other settings of ``placement``."""
    before = lab.config.placement.model_dump(mode="json", by_alias=True, exclude_unset=True)
    await configure(lab, placement={**before, **settings})


async def apply(api: ApiClient, path: str, body: dict[str, Any]) -> None:
    """Create an object, or merge it into the one of its name."""
    try:
        await api.post(path, body)
    except ApiError as error:
        if error.status != 409:
            raise
        await api.patch(f"{path}/{body['metadata']['name']}", body)


async def serve_zones(cluster: Cluster) -> None:
    """Let the cluster serve NodeResourceTopologies."""
    for crd in yaml.safe_load_all(_ZONES_CRD.read_text()):
        await apply(cluster.api, _CRDS, crd)

    async def is_served() -> bool:
        try:
            await cluster.api.get(_ZONES)
        except ApiError:
            return False
        return True

    await waiting.eventually(is_served, 30)


class SchedulerConformance:
    """Gangs that the scheduler evicts, that its quota holds back, whose objects a webhook or the API server refuses."""

    guarded: ClassVar[tuple[str, str, str]] = ("", "v1", "pods")
    """The kind by whose creation a gang begins: group, version and plural."""
    crd: ClassVar[str] = ""
    """The CustomResourceDefinition of the kind that the agent creates, or reads; empty: there is none."""
    webhook_program: ClassVar[str] = ""
    """The program that answers the scheduler's own webhooks, where they are installed."""
    eviction_words: ClassVar[str] = "PreemptionByScheduler"
    """A regular expression for what the end of an evicted run says."""
    quota_words: ClassVar[str] = ""
    """A regular expression for what the scheduler says of a gang beyond its quota; empty: it knows no quota."""
    zones_path: ClassVar[str] = _ZONES
    """The objects that report NUMA zones of nodes."""
    numa_words: ClassVar[str] = "(?i)numa|cannot align"
    """A regular expression for what the scheduler says of a member for which no NUMA zone has enough free."""
    lends: ClassVar[str] = "it has no queues"
    """Why no queue takes back what another one uses of it, where ``lend`` is not overridden."""
    quota_refuses: ClassVar[bool] = False
    """Whether a gang beyond the quota is refused at once, and does not wait for more of it."""

    # What a scheduler has of its own

    async def urgent(self, cluster: Cluster) -> dict[str, Any]:
        """Return a pod of somebody else that takes a whole node and goes before all runs; make what has to exist before it."""
        raise NotImplementedError

    async def let_it_evict(self, site: Installed | None, cluster: Cluster) -> dict[str, Any]:
        """Configure the scheduler so that it evicts pods by itself; return settings of ``placement`` beside ``preemptible``."""
        return {}

    async def lend(self, cluster: Cluster) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make a queue that may use what another one is owed, a node; return settings of ``placement`` by which runs are in the first
        one, and a pod of that other one, which may be of another namespace. Where queues lend one another nothing, skip the test.
        """
        pytest.skip(self.lends)

    async def limit(self, cluster: Cluster, cpu: int) -> dict[str, Any]:
        """Set the quota of the scheduler for queue ``org/team``; return settings of ``placement`` by which it counts."""
        raise NotImplementedError

    async def set_up_zones(self, site: Installed | None, cluster: Cluster) -> None:
        """Let the scheduler see NUMA zones. Where it does not look after them, skip the test."""
        pytest.skip("it does not know NUMA zones")

    async def report_zones(self, cluster: Cluster, node: str, zones: Sequence[int], used: Sequence[int] = ()) -> None:
        """Report the NUMA zones of a node whose policy is ``single-numa-node``, as its exporter does: of each zone the CPUs for pods,
        and how many of them are used.
        """
        parts = zip_longest(zones, used, fillvalue=0)
        body = {
            "apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": {"name": node},
            "attributes": [
                {"name": "topologyManagerPolicy", "value": "single-numa-node"},
                {"name": "topologyManagerScope", "value": "container"},
            ],
            "topologyPolicies": ["SingleNUMANodeContainerLevel"],
            "zones": [
                {
                    "name": f"node-{number}",
                    "type": "Node",
                    "resources": [_amount("cpu", *part), _amount("memory", "4Gi")],
                }
                for number, part in enumerate(parts)
            ],
        }
        await apply(cluster.api, self.zones_path, body)

    async def set_up_racks(self, site: Installed | None, cluster: Cluster) -> None:
        """Let the scheduler know the level of the node label ``RACK``, and of its values a and b."""

    # Topology

    async def test_a_gang_that_must_share_a_rack_waits_for_one_with_room_and_one_that_wants_to_does(
        self, site: Installed | None, cluster: Cluster, lab: KubeLab
    ) -> None:
        for node, rack in (("node-0", "a"), ("node-1", "b")):
            await cluster.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {RACK: rack}}})
        await self.set_up_racks(site, cluster)
        await configure(lab, capacity={"levels": [{"level": "rack", "label": RACK}]})
        if Capability.TOPOLOGY not in (await lab.runtime.capacity()).capabilities:
            pytest.skip("no required level")
        wished = start_run(lab, B, Part(WAITS_FOR_GATE, count=2, cpu="2"), topology={"preferred": "rack"})
        await lab.runtime.start(wished)
        await until_state(lab, B, RunState.RUNNING)
        assert len(_nodes(cluster, B)) == 1
        lab.open_gate(B)
        assert (await until_over(lab, B)).state is RunState.SUCCEEDED
        order = start_run(
            lab, A, Part(WAITS_FOR_GATE, count=3, cpu="2"), topology={"required": "rack"}, placement_timeout=300
        )
        await lab.runtime.start(order)
        status = await until(lab, A, lambda status: status.state is RunState.PENDING and bool(status.message))
        await asyncio.sleep(3)  # what must not happen would have happened by now
        print(f"{lab.config.placement.scheduler}: {status.message}")
        assert (lab.runtime.held()[A].state, lab.living(A)) == (RunState.PENDING, 0)
        await cluster.kubelet.add_node("late", allocatable=LATE, labels={RACK: "b"})
        await until_state(lab, A, RunState.RUNNING)
        assert _nodes(cluster, A) == {"node-1", "late"}
        lab.open_gate(A)
        assert (await until_over(lab, A)).state is RunState.SUCCEEDED

    # NUMA

    async def test_a_member_that_needs_one_numa_zone_gets_only_a_node_with_such_a_zone(
        self, site: Installed | None, cluster: Cluster, lab: KubeLab
    ) -> None:
        """Three nodes have room for it: one has a zone that is large enough, one the sum of two, and one reports nothing."""
        await self.set_up_zones(site, cluster)
        await cluster.kubelet.add_node("plain", allocatable={"cpu": "3", "memory": "8Gi", "pods": "110"})
        try:
            await self.report_zones(cluster, "node-0", (2, 2))
            await self.report_zones(cluster, "node-1", (3, 1))
            await place_with(lab, numa=True)
            await asyncio.sleep(2)  # it says nowhere that the scheduler has read them
            assert Capability.NUMA in (await lab.runtime.capacity()).capabilities
            part = Part(WAITS_FOR_GATE, extra={"resources": {"cpu": "3", "memory": "1Gi"}})
            numa = {"numa": "singleNode"}
            await lab.runtime.start(start_run(lab, A, part, topology=numa, placement_timeout=300))
            await until_state(lab, A, RunState.RUNNING)
            assert _nodes(cluster, A) == {"node-1"}
            await self.report_zones(cluster, "node-1", (3, 1), (3, 0))
            await lab.runtime.start(start_run(lab, B, part, topology=numa, placement_timeout=300))
            status = await until(lab, B, lambda status: re.search(self.numa_words, status.message) is not None)
            await asyncio.sleep(3)  # what must not happen would have happened by now
            print(f"{lab.config.placement.scheduler}: {status.message}")
            assert (lab.runtime.held()[B].state, lab.living(B)) == (RunState.PENDING, 0)
            lab.open_gate(A)
            assert (await until_over(lab, A)).state is RunState.SUCCEEDED
            await self.report_zones(cluster, "node-1", (3, 1))
            await until_state(lab, B, RunState.RUNNING)
            assert _nodes(cluster, B) == {"node-1"}
            lab.open_gate(B)
            assert (await until_over(lab, B)).state is RunState.SUCCEEDED
        finally:
            await cluster.api.delete(self.zones_path)

    # Eviction

    async def test_a_gang_that_its_scheduler_evicts_is_preempted_and_leaves_nothing(
        self, site: Installed | None, cluster: Cluster, lab: KubeLab
    ) -> None:
        await self._is_full_and_evicts(site, cluster, lab, {})
        status = await until_over(lab, A)
        print(f"{lab.config.placement.scheduler}: {status.message}")
        assert status.state is RunState.PREEMPTED
        assert re.search(self.eviction_words, status.message)
        await self._runs(cluster, "urgent")
        assert lab.living(A) == 0
        await lab.runtime.forget(A)
        await waiting.eventually(partial(self._is_without, cluster, A), 30)

    async def test_a_gang_is_preempted_for_a_queue_that_takes_back_what_it_is_owed(
        self, site: Installed | None, cluster: Cluster, lab: KubeLab
    ) -> None:
        await apply(cluster.api, _CLASSES, URGENT)
        settings, other = await self.lend(cluster)
        await self.let_it_evict(site, cluster)
        await place_with(lab, preemptible=True, **settings)
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2, cpu="4")))
        await until_state(lab, A, RunState.RUNNING)
        await until_living(lab, A, 2)
        await self._create_other(cluster, other)
        status = await until_over(lab, A)
        print(f"{lab.config.placement.scheduler}: {status.message}")
        assert (status.state, lab.living(A)) == (RunState.PREEMPTED, 0)

        async def is_running() -> bool:
            return bool((await cluster.api.get(f"{_pods(cluster, other)}/urgent"))["status"]["phase"] == "Running")

        await waiting.eventually(is_running, 30)

    @pytest.mark.needs(Capability.MEMBER_RESTART)
    async def test_a_gang_whose_members_may_restart_goes_on_after_its_scheduler_has_evicted_some(
        self, site: Installed | None, cluster: Cluster, lab: KubeLab
    ) -> None:
        await self._is_full_and_evicts(site, cluster, lab, {"memberFailure": {"action": "restartMember", "limit": 3}})
        await self._runs(cluster, "urgent")
        assert lab.living(A) < 2
        assert lab.runtime.held()[A].state is RunState.RUNNING
        await cluster.api.delete(f"{cluster.pods}/urgent", query={"gracePeriodSeconds": 1})
        await until_living(lab, A, 2)
        lab.open_gate(A)
        assert (await until_over(lab, A)).state is RunState.SUCCEEDED

    async def _is_full_and_evicts(
        self, site: Installed | None, cluster: Cluster, lab: KubeLab, spec: dict[str, Any]
    ) -> None:
        """Let a gang have all nodes, and somebody else want one of them."""
        settings = await self.let_it_evict(site, cluster)
        await place_with(lab, preemptible=True, **settings)
        await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE, count=2, cpu="4"), **spec))
        await until_state(lab, A, RunState.RUNNING)
        await until_living(lab, A, 2)
        await apply(cluster.api, _CLASSES, URGENT)
        await self._create_other(cluster, await self.urgent(cluster))

    async def _create_other(self, cluster: Cluster, other: dict[str, Any]) -> None:
        async def is_taken() -> bool:
            try:
                await cluster.api.post(_pods(cluster, other), other)
            except ApiError as error:
                if "no PriorityClass with name" not in str(error):
                    raise
                return False
            return True

        await waiting.eventually(is_taken)  # admission sees a new class a moment later

    async def _runs(self, cluster: Cluster, name: str) -> None:
        async def is_running() -> bool:
            return (await cluster.phases()).get(name) == "Running"

        await waiting.eventually(is_running, 30)

    async def _is_without(self, cluster: Cluster, run: str) -> bool:
        """Return whether neither pods nor groups of a run are left."""
        group, version, plural = self.guarded
        kinds = {cluster.pods, f"/api{f's/{group}' if group else ''}/{version}/namespaces/{cluster.namespace}/{plural}"}
        items = [one for kind in kinds for one in (await cluster.api.get(kind))["items"]]
        return not any((one["metadata"].get("labels") or {}).get("trainmaster.dev/run") == run for one in items)

    # Quota

    async def test_a_gang_beyond_its_quota_waits_with_the_words_of_its_scheduler_and_starts_once_it_is_raised(
        self, cluster: Cluster, lab: KubeLab
    ) -> None:
        self._need_quota(waits=True)
        settings = await self.limit(cluster, 2)
        await place_with(lab, **settings)
        await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE, count=2, cpu="2"), placement_timeout=300))
        status = await until(lab, A, lambda status: re.search(self.quota_words, status.message) is not None)
        print(f"{lab.config.placement.scheduler}: {status.message}")
        if settings:  # other queues go on
            await lab.runtime.start(start_run(lab, B, Part(RUNS, count=2)).model_copy(update={"queue": "org/other"}))
            await until_state(lab, B, RunState.RUNNING)
        assert (lab.runtime.held()[A].state, lab.living(A)) == (RunState.PENDING, 0)
        await self.limit(cluster, 8)
        await until_state(lab, A, RunState.RUNNING)
        await until_living(lab, A, 2)
        lab.open_gate(A)
        assert (await until_over(lab, A)).state is RunState.SUCCEEDED

    async def test_a_gang_beyond_its_quota_is_returned_with_the_words_of_its_scheduler(
        self, cluster: Cluster, lab: KubeLab
    ) -> None:
        self._need_quota(waits=False)
        await place_with(lab, **await self.limit(cluster, 2))
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2, cpu="2"), placement_timeout=15))
        status = await until_over(lab, A)
        print(f"{lab.config.placement.scheduler}: {status.message}")
        assert (status.state, lab.living(A)) == (RunState.RETURNED, 0)
        assert re.search(self.quota_words, status.message)
        await lab.runtime.forget(A)
        await waiting.eventually(partial(self._is_without, cluster, A), 30)

    def _need_quota(self, *, waits: bool) -> None:
        if not self.quota_words:
            pytest.skip("the scheduler has no quota of its own")
        if waits and self.quota_refuses:
            pytest.skip("what is beyond a quota is refused at once")

    # Webhooks

    async def test_a_gang_waits_while_a_webhook_does_not_answer_and_starts_once_it_is_removed(
        self, cluster: Cluster, lab: KubeLab
    ) -> None:
        """A webhook that is configured to fail, and of which nobody is there: as when a scheduler's installation is half removed."""
        async with self._unanswered_webhook(cluster) as name:
            await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE, count=2), placement_timeout=300))
            status = await until(lab, A, lambda status: "failed calling webhook" in status.message)
            print(f"{lab.config.placement.scheduler}: {status.message}")
            assert name in status.message
            assert (status.state.is_terminal, lab.living(A)) == (False, 0)
        await until_state(lab, A, RunState.RUNNING)
        await until_living(lab, A, 2)
        lab.open_gate(A)
        assert (await until_over(lab, A)).state is RunState.SUCCEEDED

    async def test_a_gang_waits_for_the_webhook_of_its_scheduler(
        self, site: Installed | None, cluster: Cluster, lab: KubeLab
    ) -> None:
        if site is None or not self.webhook_program:
            pytest.skip("no webhook of its own is installed")
        daemon = site.daemons[self.webhook_program]
        await daemon.stop(SIGKILL)
        try:
            await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE, count=2), placement_timeout=300))
            status = await until(lab, A, lambda status: "failed calling webhook" in status.message)
            print(f"{lab.config.placement.scheduler}: {status.message}")
            assert (status.state.is_terminal, lab.living(A)) == (False, 0)
        finally:
            daemon.start()
        await until_state(lab, A, RunState.RUNNING)
        lab.open_gate(A)
        assert (await until_over(lab, A)).state is RunState.SUCCEEDED

    @asynccontextmanager
    async def _unanswered_webhook(self, cluster: Cluster) -> AsyncIterator[str]:
        """Provide the name of a webhook for the first kind of a gang, in the namespace of the test, that nobody answers."""
        group, version, plural = self.guarded
        webhook = {
            "name": "gone.example.com",
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [
                {"apiGroups": [group], "apiVersions": [version], "resources": [plural], "operations": ["CREATE"]}
            ],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 1,
        }
        name = f"gone-{cluster.namespace}"
        body = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [webhook],
        }
        await cluster.api.post(_WEBHOOKS, body)
        try:
            await waiting.eventually(partial(self._is_called, cluster), 30)
            yield webhook["name"]  # type: ignore[misc]
        finally:
            await cluster.api.delete(f"{_WEBHOOKS}/{name}")

    async def _is_called(self, cluster: Cluster) -> bool:
        group, version, plural = self.guarded
        base = f"/apis/{group}/{version}" if group else f"/api/{version}"
        body = {
            "apiVersion": f"{group}/{version}" if group else version,
            "kind": "PodGroup" if group else "Pod",
            "metadata": {"name": "tried"},
            "spec": {},
        }
        try:
            await cluster.api.request(
                "POST", f"{base}/namespaces/{cluster.namespace}/{plural}", body, query={"dryRun": "All"}
            )
        except ApiError as error:
            return "failed calling webhook" in str(error)
        return False

    # Versions of the scheduler's kinds

    async def test_runs_go_on_with_a_newer_version_of_the_kind_and_without_the_older_one_nothing_is_started(
        self, site: Installed | None, cluster: Cluster, lab: KubeLab
    ) -> None:
        group, version, plural = self.guarded
        if site is None or not self.crd or not group:
            pytest.skip("the agent creates no objects of a CustomResourceDefinition")
        try:
            await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE, count=2)))
            await until_state(lab, A, RunState.RUNNING)
            await self._serve(cluster.api, stores_newer=True)
            await lab.runtime.start(start_run(lab, B, Part(WAITS_FOR_GATE, count=2)))
            await until_state(lab, B, RunState.RUNNING)
            await self._serve(cluster.api, version, served=False, stores_newer=True)
            words = f"the cluster no longer serves {plural} of {group}/{version}"
            await waiting.eventually(lambda: _is_closed(lab, words), 30)
            assert {lab.runtime.held()[run].state for run in (A, B)} == {RunState.RUNNING}
            for run in (A, B):
                lab.open_gate(run)
                assert (await until_over(lab, run)).state is RunState.SUCCEEDED
            await lab.runtime.start(start_run(lab, C, Part(RUNS, count=2)))
            refused = await until_over(lab, C)
            print(f"{lab.config.placement.scheduler}: {refused.message}")
            assert (refused.state, words in refused.message) == (RunState.RETURNED, True)
        finally:
            await self._serve(cluster.api)
            for program in site.daemons:
                await site.restart(program)
        await waiting.eventually(lambda: _is_closed(lab, ""), 30)
        again = "again-0000004-r1"
        await lab.runtime.start(start_run(lab, again, Part(WAITS_FOR_GATE, count=2)))
        await until_state(lab, again, RunState.RUNNING)
        lab.open_gate(again)
        assert (await until_over(lab, again)).state is RunState.SUCCEEDED

    async def _serve(
        self, api: ApiClient, version: str = "", *, served: bool = True, stores_newer: bool = False
    ) -> None:
        """Serve the kind in its version, unless ``served`` is false, and in a newer one, which may be the one that is stored.

        Return once the API server does so.
        """
        path = f"{_CRDS}/{self.crd}"
        versions = (await api.get(path))["spec"]["versions"]
        stored = next(one for one in versions if one["storage"])
        if not any(one["name"] == NEWER for one in versions):
            versions.append({**deepcopy(stored), "name": NEWER, "storage": False})
        older = next(one for one in versions if one["name"] != NEWER)
        for one in versions:
            one["storage"] = one["name"] == NEWER if stores_newer else one is older
            one["served"] = served if one["name"] == version else one["name"] != NEWER or stores_newer
        await api.patch(path, {"spec": {"versions": versions}})
        group, plural = self.guarded[0], self.guarded[2]

        async def is_so() -> bool:
            for one in versions:
                try:
                    await api.get(f"/apis/{group}/{one['name']}/{plural}")
                except ApiError as error:
                    if one["served"] or error.status != 404:
                        return False
                else:
                    if not one["served"]:
                        return False
            return True

        await waiting.eventually(is_so, 30)


def _amount(name: str, most: object, used: int = 0) -> dict[str, str]:
    """Return what a zone has of a resource; ``used`` where it is a number."""
    left = most - used if isinstance(most, int) else most
    return {"name": name, "capacity": str(most), "allocatable": str(most), "available": str(left)}


def _pods(cluster: Cluster, pod_of_others: dict[str, Any]) -> str:
    """Return the path of the pods of a pod's namespace; that of the test where it names none."""
    return f"/api/v1/namespaces/{pod_of_others['metadata'].get('namespace', cluster.namespace)}/pods"


def _nodes(cluster: Cluster, run: str) -> set[str]:
    return {life.node for life in cluster.kubelet.started({"trainmaster.dev/run": run})}


async def _is_closed(lab: KubeLab, words: str) -> bool:
    closed = (await lab.runtime.capacity()).closed
    return words in closed if words else not closed


async def until_changed(lab: KubeLab) -> str:
    """Return the words with which the runtime ends itself, to begin anew with other versions of the scheduler's kinds."""
    with pytest.raises(PlacementChangedError) as raised:
        await asyncio.wait_for(lab.kubernetes.watch_over(), 60)
    return str(raised.value)


def urgent_pod(scheduler: str = "", **metadata: Any) -> dict[str, Any]:
    """Return a pod that takes a whole node of the lab, with labels and annotations."""
    # Without a token: no controller of these control planes publishes the certificates that come with one.
    body = pod("urgent", "run", cpu="4", priorityClassName="urgent", automountServiceAccountToken=False)
    if scheduler:
        body["spec"]["schedulerName"] = scheduler
    body["metadata"] = {**body["metadata"], **metadata}
    return body


__all__ = [
    "RACK",
    "SchedulerConformance",
    "apply",
    "configure",
    "eventually",
    "place_with",
    "serve_zones",
    "until_changed",
    "urgent_pod",
]
