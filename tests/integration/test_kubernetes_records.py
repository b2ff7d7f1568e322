"""Where the records of runs on Kubernetes are, who can read them, what they cost, and what becomes of those of an older release."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from tests.conformance.kube_lab import KubeLab
from tests.conformance.runtime_suite import (
    RUNS,
    WAITS_FOR_GATE,
    A,
    B,
    Part,
    eventually,
    start_run,
    stop_run,
    until_over,
    until_state,
)
from tests.fake_kube.nodes import FakeNodes
from tests.fake_kube.resources import ResourceId
from tests.fake_kube.server import FakeKube
from tests.integration.fake_lab import AGENT_NAMESPACE, NAMESPACE, fake_cluster, lab_on, two_nodes
from trainmaster.protocol.admission import check_pod_template
from trainmaster.protocol.admission_policy import AdmissionPolicy
from trainmaster.protocol.states import RunState
from trainmaster_agent.kube.errors import KubeError, NotFoundError
from trainmaster_agent.kube.paths import CONFIG_MAPS, NAMESPACES, PODS, SERVICES
from trainmaster_agent.runtime.kubernetes import leftovers, orphans
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster, RecordsExposedError
from trainmaster_agent.runtime.kubernetes.record import ACCEPTED_AT, LABEL_RECORD, TOMBSTONE
from trainmaster_agent.runtime.kubernetes.runtime import KubernetesRuntime
from trainmaster_agent.runtime.local.layout import boottime

SECRET = "hunter2-of-tenant-a"
RESTART_MEMBER = {"action": "restartMember", "limit": 3}


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    async with fake_cluster() as server:
        yield server


@pytest.fixture
async def nodes(kube: FakeKube) -> AsyncIterator[FakeNodes]:
    with two_nodes(kube) as nodes:
        yield nodes


@pytest.fixture
async def lab(kube: FakeKube, nodes: FakeNodes) -> AsyncIterator[KubeLab]:
    lab = lab_on(kube, nodes)
    await lab.open()
    try:
        yield lab
    finally:
        await lab.close()


def objects_in(kube: FakeKube, namespace: str, plural: str = "configmaps") -> dict[str, dict[str, Any]]:
    found = kube.store.scan(ResourceId("v1", plural))
    return {key.name: value for key, value in found.items() if key.namespace == namespace}


def with_secret(lab: KubeLab, run: str, count: int) -> Any:
    """Return the order to start a run whose specification holds a secret variable."""
    start = start_run(lab, run, Part(RUNS, count=count))
    spec = orjson.loads(orjson.dumps(start.spec))
    spec["roles"][0]["template"]["env"] = {"PASSWORD": SECRET}
    return start.model_copy(update={"spec": spec})


async def test_what_a_job_can_mount_holds_nothing_of_any_specification(lab: KubeLab, kube: FakeKube) -> None:
    for run, count in ((A, 1), (B, 3)):
        await lab.runtime.start(with_secret(lab, run, count))
        await until_state(lab, run, RunState.RUNNING)
    mountable = [*objects_in(kube, NAMESPACE).values(), *objects_in(kube, NAMESPACE, "secrets").values()]
    assert SECRET not in orjson.dumps(mountable).decode()
    assert {A, B} <= objects_in(kube, AGENT_NAMESPACE).keys()
    assert SECRET in orjson.dumps(objects_in(kube, AGENT_NAMESPACE)[A]).decode()


def mounting(name: str) -> list[dict[str, Any]]:
    """Return pod templates that read a ConfigMap in each of the ways that Kubernetes has."""
    safe = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsUser": 1000}
    ways: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"envFrom": [{"configMapRef": {"name": name}}]}, {}),
        ({"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": name, "key": "start"}}}]}, {}),
        ({}, {"volumes": [{"name": "x", "configMap": {"name": name}}]}),
        ({}, {"volumes": [{"name": "x", "projected": {"sources": [{"configMap": {"name": name}}]}}]}),
    ]
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return [
        {
            "spec": {
                "containers": [{"name": "main", "image": "sim", "securityContext": safe, **container}],
                "automountServiceAccountToken": False,
                "securityContext": security,
                **pod,
            }
        }
        for container, pod in ways
    ]


async def test_no_pod_template_reads_what_belongs_to_a_run(kube: FakeKube, nodes: FakeNodes) -> None:
    """Neither by the check at submission nor by the agent's, even where the owner allows every ConfigMap."""
    lab = lab_on(kube, nodes, admission={"configMaps": ["*"]})
    await lab.open()
    try:
        await lab.runtime.start(with_secret(lab, A, 3))
        await until_state(lab, A, RunState.RUNNING)
        ours = {*objects_in(kube, NAMESPACE), *objects_in(kube, AGENT_NAMESPACE)} - {"trainmaster-records-lab"}
        assert ours == {A, f"{A}-roster"}
        every = AdmissionPolicy(config_maps=("*",))
        assert [one for one in mounting("datasets") if check_pod_template(one, every)] == []
        for name in ours:
            for template in mounting(name):
                for policy in (AdmissionPolicy(), every):
                    assert check_pod_template(template, policy), (name, template)
        start = start_run(lab, B, Part(RUNS))
        spec = orjson.loads(orjson.dumps(start.spec))
        del spec["roles"][0]["template"]
        spec["roles"][0]["podTemplate"] = mounting(f"{A}-roster")[2]
        await lab.runtime.start(start.model_copy(update={"spec": spec}))
        over = await until_over(lab, B)
        assert (over.state, f"{A}-roster" in over.message) == (RunState.RETURNED, True)
        assert not [name for name in objects_in(kube, NAMESPACE, "pods") if name.startswith(B)]
    finally:
        await lab.close()


@pytest.mark.parametrize(("count", "writes"), [(1, 5), (4, 17)])
async def test_a_run_costs_no_more_writes_than_with_its_record_among_the_jobs(
    lab: KubeLab, kube: FakeKube, count: int, writes: int
) -> None:
    """One and four members with emulated gangs; the numbers are those of older releases."""
    before = len(kube.calls)
    await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE, count=count)))
    await until_state(lab, A, RunState.RUNNING)
    lab.open_gate(A)
    await until_over(lab, A)
    await lab.runtime.forget(A)
    await eventually(lambda: A not in objects_in(kube, AGENT_NAMESPACE), "the record is gone")
    reading = ("get", "list", "watch")
    made = Counter(
        f"{call.verb} {call.resource}"
        for call in kube.calls[before:]
        if call.verb not in reading
        and call.resource in ("configmaps", "pods", "services")
        and call.namespace in (NAMESPACE, AGENT_NAMESPACE)
    )
    ours = {kind: number for kind, number in made.items() if kind != "patch pods/status"}
    assert sum(ours.values()) == writes, ours


def test_records_are_never_where_jobs_run() -> None:
    config = KubernetesCluster.model_validate({"cluster": "east", "namespace": "jobs"})
    with pytest.raises(RecordsExposedError, match="namespace jobs is for jobs"):
        KubernetesRuntime(None, config, namespace="jobs", clock=boottime)  # type: ignore[arg-type] # it is not asked anything
    apart = config.model_copy(update={"record_namespace": "jobs"})
    with pytest.raises(RecordsExposedError):
        apart.home("agent")
    assert config.home("agent") == "agent"


async def test_the_identity_of_the_records_is_lost_with_them_and_no_sooner(lab: KubeLab) -> None:
    first = lab.runtime.holder
    await lab.restart()
    assert lab.runtime.holder == first
    await lab.close()
    await lab.api.delete(CONFIG_MAPS, AGENT_NAMESPACE, "trainmaster-records-lab")
    await lab.restart()
    assert lab.runtime.holder != first


# -- an older release


async def make_older(lab: KubeLab, kube: FakeKube, run: str) -> None:
    """Turn the record of a run into what an older release wrote: a ConfigMap among the jobs that owns all that was made."""
    stored = await lab.api.get(CONFIG_MAPS, AGENT_NAMESPACE, run)
    data = {key: value for key, value in stored["data"].items() if key != "namespace"}
    metadata = {"name": run, "namespace": NAMESPACE, "labels": stored["metadata"]["labels"]}
    older = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    record = await lab.api.create(CONFIG_MAPS, NAMESPACE, older)
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": run, "uid": record["metadata"]["uid"]}
    for resource in (PODS, SERVICES, CONFIG_MAPS):
        for name in objects_in(kube, NAMESPACE, resource.plural):
            if name != run or resource is SERVICES:
                body = {"metadata": {"ownerReferences": [owner]}}
                await lab.api.patch(resource, NAMESPACE, name, body)
    await lab.api.delete(CONFIG_MAPS, AGENT_NAMESPACE, run)
    await lab.api.delete(CONFIG_MAPS, AGENT_NAMESPACE, "trainmaster-records-lab")


@pytest.mark.parametrize("fault", ["", "create", "patch"])
async def test_records_of_an_older_release_are_moved_while_their_runs_go_on(
    lab: KubeLab, kube: FakeKube, nodes: FakeNodes, fault: str
) -> None:
    await lab.runtime.start(with_secret(lab, A, 3))
    await until_state(lab, A, RunState.RUNNING)
    await lab.kubernetes.close()
    await make_older(lab, kube, A)
    if fault:
        await lab.close()
        kube.lose_next_answer(fault, "configmaps")
        if fault == "create":  # the identity is created first
            kube.lose_next_answer(fault, "configmaps")
        for _ in range(2):
            try:
                await lab.restart()
            except KubeError:
                continue
            break
    if not lab.kubernetes.is_ready:
        await lab.restart()
    assert lab.runtime.holder == (await lab.api.get(NAMESPACES, None, NAMESPACE))["metadata"]["uid"]
    assert lab.runtime.held()[A].state is RunState.RUNNING
    assert SECRET not in orjson.dumps(list(objects_in(kube, NAMESPACE).values())).decode()
    moved = objects_in(kube, AGENT_NAMESPACE)[A]
    assert moved["metadata"]["annotations"][ACCEPTED_AT]
    assert Counter(start.name for start in nodes.starts) == {f"{A}-worker-{index}": 1 for index in range(3)}
    await lab.restart()
    await lab.runtime.stop(stop_run(A))
    assert (await until_over(lab, A)).state is RunState.CANCELLED
    await lab.runtime.forget(A)
    gone = ("configmaps", "services", "pods")
    await eventually(lambda: not any(objects_in(kube, NAMESPACE, plural) for plural in gone), "nothing is left of it")


async def test_a_member_that_comes_again_after_the_move_stays(lab: KubeLab, kube: FakeKube, nodes: FakeNodes) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2), memberFailure=RESTART_MEMBER))
    await until_state(lab, A, RunState.RUNNING)
    await lab.kubernetes.close()
    await make_older(lab, kube, A)
    await lab.restart()
    await lab.api.delete(PODS, NAMESPACE, f"{A}-worker-1", grace=1)
    await eventually(lambda: sum(one.name == f"{A}-worker-1" for one in nodes.starts) == 2, "the member has come again")
    await until_state(lab, A, RunState.RUNNING)
    assert lab.living(A) == 2


async def test_a_record_that_an_older_release_wrote_late_is_moved_and_held(
    lab: KubeLab, kube: FakeKube, nodes: FakeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_LOOK_SECONDS", 0.2)
    await lab.runtime.start(start_run(lab, B, Part(RUNS)))
    await until_state(lab, B, RunState.RUNNING)
    await lab.kubernetes.close()
    await make_older(lab, kube, B)
    older = await lab.api.get(CONFIG_MAPS, NAMESPACE, B)
    await lab.api.delete(CONFIG_MAPS, NAMESPACE, B)
    await eventually(lambda: not lab.living(B), "the pod went with its owner")
    await lab.restart()
    await lab.runtime.renew(lab.now())  # who is not served by the dispatcher clears nothing away
    assert B not in lab.runtime.held()
    fresh = {"name": B, "namespace": NAMESPACE, "labels": older["metadata"]["labels"]}
    await lab.api.create(CONFIG_MAPS, NAMESPACE, {**older, "metadata": fresh})
    await eventually(lambda: B in lab.runtime.held(), "the run is held")
    await eventually(lambda: "start" not in objects_in(kube, NAMESPACE)[B].get("data", {}), "the older one is emptied")


async def test_tombstones_of_an_older_release_go(lab: KubeLab, kube: FakeKube) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    await until_state(lab, A, RunState.RUNNING)
    await lab.kubernetes.close()
    await make_older(lab, kube, A)
    await lab.api.patch(CONFIG_MAPS, NAMESPACE, A, {"metadata": {"labels": {LABEL_RECORD: TOMBSTONE}}})
    await lab.restart()
    await eventually(lambda: A not in objects_in(kube, NAMESPACE), "the tombstone is gone")
    await eventually(lambda: not objects_in(kube, NAMESPACE, "pods"), "what it owned went with it")


# -- what an agent leaves behind


async def test_what_an_agent_left_of_ended_runs_is_removed_by_the_next_one(
    lab: KubeLab, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the namespace owns these objects, so Kubernetes would keep them."""
    monkeypatch.setattr(orphans, "_PATIENCE", 0.3)
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
    await lab.runtime.start(start_run(lab, B, Part(RUNS, count=2)))
    for run in (A, B):
        await until_state(lab, run, RunState.RUNNING)
    await lab.kubernetes.close()
    await lab.api.patch(CONFIG_MAPS, AGENT_NAMESPACE, A, {"metadata": {"labels": {LABEL_RECORD: TOMBSTONE}}})
    await lab.restart()
    await lab.runtime.renew(lab.now())  # who is not served by the dispatcher clears nothing away

    def left(run: str) -> list[str]:
        kinds = ("configmaps", "services", "pods")
        return [name for kind in kinds for name in objects_in(kube, NAMESPACE, kind) if name.startswith(run)]

    await eventually(lambda: not left(A), "nothing is left of the run that is over")
    assert sorted(left(B)) == sorted([f"{B}-roster", B, f"{B}-worker-0", f"{B}-worker-1"])
    assert lab.living(B) == 2


# -- the namespace of the jobs


async def delete_namespace(lab: KubeLab) -> None:
    await lab.api.call("DELETE", NAMESPACES.path(None, NAMESPACE))


async def test_a_run_whose_namespace_is_deleted_ends_though_its_members_might_come_again(lab: KubeLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2), memberFailure=RESTART_MEMBER))
    await until_state(lab, A, RunState.RUNNING)
    await delete_namespace(lab)
    over = await until_over(lab, A)
    assert over.state is RunState.PREEMPTED
    assert lab.living(A) == 0


async def test_what_is_made_in_a_namespace_that_came_again_belongs_to_the_new_one(lab: KubeLab, kube: FakeKube) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    await until_state(lab, A, RunState.RUNNING)
    await delete_namespace(lab)
    await until_over(lab, A)
    await eventually(lambda: lab.kubernetes._namespaces.is_missing(NAMESPACE), "it is seen that the namespace is gone")
    kube.add_namespace(NAMESPACE)
    uid = (await lab.api.get(NAMESPACES, None, NAMESPACE))["metadata"]["uid"]
    await lab.runtime.start(start_run(lab, B, Part(RUNS)))
    await until_state(lab, B, RunState.RUNNING)
    (pod,) = objects_in(kube, NAMESPACE, "pods").values()
    (owner,) = pod["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Namespace", "name": NAMESPACE, "uid": uid, "controller": True}
    with pytest.raises(NotFoundError):
        await lab.api.get(CONFIG_MAPS, NAMESPACE, B)
