"""An unexpected error while one run, object or message is handled by the Kubernetes runtime: that run fails, all else goes on."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conformance.kube_lab import KubeLab
from tests.conformance.runtime_suite import (
    RUNS,
    SUCCEEDS,
    A,
    B,
    Part,
    eventually,
    resize_run,
    start_run,
    stop_run,
    until,
    until_over,
    until_state,
)
from tests.fake_kube.nodes import FakeNodes
from tests.fake_kube.server import FakeKube
from tests.integration.fake_lab import NAMESPACE, fake_cluster, lab_on, two_nodes
from trainmaster.metrics import exporter
from trainmaster.metrics.kinds import Process
from trainmaster.metrics.renewals import note_contained
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster_agent import containment
from trainmaster_agent.capacity.inventory import Inventory
from trainmaster_agent.kube.lease import LeaseKeeper
from trainmaster_agent.kube.paths import NODES, PODS
from trainmaster_agent.kube.watch import KubeWatch
from trainmaster_agent.placement.gates import Gates
from trainmaster_agent.runtime.kubernetes import event_handlers, run_reconciler, runtime
from trainmaster_agent.runtime.kubernetes.accept import RunAcceptor
from trainmaster_agent.runtime.kubernetes.garbage_collector import GarbageCollector
from trainmaster_agent.runtime.kubernetes.gate_opener import GateOpener
from trainmaster_agent.runtime.kubernetes.leftovers import Leftovers
from trainmaster_agent.runtime.kubernetes.manifests import Manifests
from trainmaster_agent.runtime.kubernetes.namespaces import JobNamespaces
from trainmaster_agent.runtime.kubernetes.node_capacity import NodeCapacity
from trainmaster_agent.runtime.kubernetes.orphans import Orphans
from trainmaster_agent.runtime.kubernetes.record_store import RecordStore
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker
from trainmaster_agent.runtime.kubernetes.runtime import KubernetesRuntime
from trainmaster_agent.runtime.kubernetes.worklist import Worklist
from trainmaster_agent.runtime.port import RuntimeAwayError


@pytest.fixture(autouse=True)
def measured() -> None:
    """Count as an agent with a page for Prometheus does."""
    containment.observe(note_contained)


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


def contained(place: str) -> float:
    """Return the metric's value for one place."""
    series = f'trainmaster_agent_contained_errors_total{{place="{place}"}} '
    for line in exporter.page(Process.AGENT)[0].decode().splitlines():
        if line.startswith(series):
            return float(line.rpartition(" ")[2])
    return 0.0


def is_of(run: str, values: tuple[object, ...]) -> bool:
    """Return whether a call concerns a run."""
    for value in values:
        name = getattr(value, "run", None)
        if run in (value, name, getattr(value, "_run_of_test", None)):
            return True
        record = getattr(value, "record", None) or getattr(value, "_record", None) or value
        if getattr(getattr(record, "start", None), "run", None) == run:
            return True
        gang = getattr(value, "gang", value)
        if getattr(gang, "run", None) == run:
            return True
    return False


FOR_EVER = 1e9


class Fault:
    """Makes a function raise in each call that has to do with one run, or in every call; counts them."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, run: str | None, most: float = FOR_EVER
    ) -> None:
        self.count = 0
        original = getattr(owner, name)

        def broken(*args: Any, **kwargs: Any) -> Any:
            if (run is None or is_of(run, (*args, *kwargs.values()))) and self.count < most:
                self.count += 1
                raise LookupError(f"an injected fault in {name}")
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, broken)


async def goes_on(lab: KubeLab) -> None:
    """Assert that the runtime still starts runs to their end, and that none of its tasks has ended."""
    await lab.runtime.start(start_run(lab, B, Part(SUCCEEDS)))
    assert (await until_over(lab, B)).state is RunState.SUCCEEDED
    assert [task.get_name() for task in lab.kubernetes._tasks if task.done()] == []


ONCE_PER_RUN: dict[str, tuple[object, str, float]] = {
    "its manifests are made": (Manifests, "__init__", FOR_EVER),
    "the manifest of a member is made": (Manifests, "pod", FOR_EVER),
    "its objects are made": (Manifests, "objects", FOR_EVER),
    "it is checked against the policy": (Manifests, "mistakes", FOR_EVER),
    "it is looked over": (runtime, "what_lacks", FOR_EVER),
    "room is looked for": (NodeCapacity, "never", FOR_EVER),
    "its gates are opened": (GateOpener, "open", FOR_EVER),
    "its scheduler's objects are read": (Gates, "read", FOR_EVER),
    # Without these no run can end, so that they recover after some errors.
    "its state is worked out": (run_reconciler, "reconcile", 6),
    "its state is reported": (RunTracker, "tell", 6),
}
NOT_TOLD_THE_RUN = ("reconcile", "never")


@pytest.mark.parametrize("handler", ONCE_PER_RUN)
async def test_a_run_whose_handling_raises_has_failed_and_all_others_go_on(
    handler: str, lab: KubeLab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owner, name, most = ONCE_PER_RUN[handler]
    before = contained("run")
    fault = Fault(monkeypatch, owner, name, None if name in NOT_TOLD_THE_RUN else A, most)
    with caplog.at_level(logging.ERROR, "trainmaster_agent.containment"):
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
        over = await until_over(lab, A)
    assert fault.count > 0
    assert over.state is RunState.FAILED
    assert over.end is not None
    assert over.end.category is FailureCategory.CONFIG
    assert f"LookupError: an injected fault in {name}" in over.end.message
    assert contained("run") > before
    record = next(one for one in caplog.records if one.exc_info is not None)
    assert getattr(record, "run_id", "") == A
    await eventually(lambda: lab.living(A) == 0, "its members are gone")
    if name in NOT_TOLD_THE_RUN:
        monkeypatch.undo()
    await goes_on(lab)
    await lab.runtime.forget(A)
    assert A not in lab.runtime.held()


@pytest.mark.parametrize("handler", ["its manifests are made", "the manifest of a member is made"])
async def test_the_record_of_such_a_run_does_not_keep_the_next_agent_from_its_work(
    handler: str, lab: KubeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, _ = ONCE_PER_RUN[handler]
    # The agent dies before it can do anything about the run but record it.
    monkeypatch.setattr(lab.kubernetes, "_look_at", lambda _: None)
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
    fault = Fault(monkeypatch, owner, name, A)
    await lab.restart()
    over = await until_over(lab, A)
    assert fault.count > 0
    assert (over.state, over.end and over.end.category) == (RunState.FAILED, FailureCategory.CONFIG)
    await goes_on(lab)
    await lab.restart()
    assert lab.runtime.held()[A].state is RunState.FAILED, "and the next one knows"


async def test_a_run_at_work_survives_errors_that_pass(lab: KubeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    await until_state(lab, A, RunState.RUNNING)
    fault = Fault(monkeypatch, RunTracker, "tell", A, most=3)
    for _ in range(3):
        lab.kubernetes._look_at(A)
    await eventually(lambda: fault.count == 3, "the errors have been met")
    monkeypatch.undo()
    lab.kubernetes._look_at(A)
    await eventually(lambda: lab.kubernetes._trackers[A].errors == 0, "it is handled again")
    assert lab.runtime.held()[A].state is RunState.RUNNING
    assert lab.living(A) == 1


async def test_a_run_that_cannot_be_stopped_is_tried_again_says_so_and_blocks_nobody(
    lab: KubeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    await until_state(lab, A, RunState.RUNNING)
    fault = Fault(monkeypatch, run_reconciler.RunReconcilers, "_remove", A)
    await lab.runtime.stop(stop_run(A))
    status = await until(lab, A, lambda one: "tries again" in one.message)
    assert not status.state.is_terminal
    assert "an injected fault in _remove" in status.message
    await goes_on(lab)
    await eventually(lambda: fault.count >= 3, "it is tried again")
    monkeypatch.undo()
    assert (await until_over(lab, A)).state is RunState.CANCELLED
    assert lab.living(A) == 0


async def test_such_a_run_can_be_cancelled_before_it_has_failed(lab: KubeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    Fault(monkeypatch, Manifests, "__init__", A)
    saved = Fault(monkeypatch, RecordStore, "save", A, most=4)  # its end cannot be recorded yet
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    await eventually(lambda: saved.count > 0, "it was to be failed")
    await lab.runtime.stop(stop_run(A))
    assert (await until_over(lab, A)).state in (RunState.CANCELLED, RunState.FAILED)
    await goes_on(lab)


async def test_other_sizes_that_cannot_be_worked_out_leave_the_run_at_its_own(
    lab: KubeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    await until_state(lab, A, RunState.RUNNING)
    fault = Fault(monkeypatch, run_reconciler, "take_resize", A)
    await lab.runtime.resize(resize_run(A, 3))
    status = await until(lab, A, lambda one: one.generation == 2)
    assert fault.count == 1
    assert (status.state, status.sizes) == (RunState.RUNNING, {"worker": 1})
    await goes_on(lab)


async def test_a_specification_that_breaks_the_reader_has_failed_without_a_record(
    lab: KubeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    Fault(monkeypatch, runtime, "facts_of", A)
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    status = lab.runtime.held()[A]
    assert (status.state, status.end and status.end.category) == (RunState.FAILED, FailureCategory.CONFIG)
    await goes_on(lab)


async def test_a_run_whose_recording_raises_is_not_called_off_as_its_record_may_be_there(
    lab: KubeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(monkeypatch, RunAcceptor, "record", A, most=1)
    with pytest.raises(RuntimeAwayError, match="an injected fault in record"):
        await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    assert A not in lab.runtime.held()
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    await until_state(lab, A, RunState.RUNNING)
    assert fault.count == 1
    await goes_on(lab)


SIDE_TASKS: dict[str, tuple[object, str, str]] = {
    "what ended runs leave is cleared away": (GarbageCollector, "_clear", "clear"),
    "records of ended runs are removed": (GarbageCollector, "_delete", "clear"),
    "the lease is renewed": (LeaseKeeper, "_renew", "lease"),
    "namespaces are looked for": (JobNamespaces, "_look_again", "namespaces"),
    "objects without a run are looked for": (Leftovers, "clear", "leftovers"),
    "pods without a run are looked for": (Orphans, "clear", "orphans"),
    "a pod is counted": (Inventory, "pod_put", "pod"),
    "a listing is taken over": (Inventory, "relisted", "listed"),
    "a node is counted": (Inventory, "node_put", "node"),
    "runs on turned nodes are looked for": (KubernetesRuntime, "_look_at_turned_nodes", "tick"),
    "runs that wait are looked for": (KubernetesRuntime, "_look_at_waiting", "tick"),
    "the tick waits": (KubernetesRuntime, "_tick", "tick"),
    "a worker waits for a run": (Worklist, "take", "worker"),
    "a worker waits for an ended run": (GarbageCollector, "_clear_all", "clear"),
    "it is asked whether leftovers may be cleared": (Leftovers, "run", "leftovers"),
    "a watch runs": (KubeWatch, "run", "watch"),
}


@pytest.mark.parametrize("handler", SIDE_TASKS)
async def test_errors_in_what_is_done_beside_runs_end_nothing(
    handler: str, kube: FakeKube, nodes: FakeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, place = SIDE_TASKS[handler]
    before = contained(place)
    monkeypatch.setattr("trainmaster_agent.runtime.kubernetes.namespaces._LOOK_SECONDS", 0.05)
    monkeypatch.setattr("trainmaster_agent.runtime.kubernetes.orphans._LOOK_SECONDS", 0.05)
    monkeypatch.setattr("trainmaster_agent.runtime.kubernetes.garbage_collector._RETRY_SECONDS", 0.05)
    fault = Fault(monkeypatch, owner, name, None, most=2)
    monkeypatch.setattr("trainmaster_agent.runtime.kubernetes.leftovers._FIRST_LOOK_SECONDS", 0.05)
    lab = lab_on(kube, nodes, lease={"duration": "2s"})
    await lab.open()
    try:
        await lab.runtime.renew(lab.now())  # who is not served by the dispatcher clears nothing away
        await lab.runtime.start(start_run(lab, A, Part(SUCCEEDS)))
        await eventually(lambda: fault.count > 0 or lab.runtime.held()[A].state.is_terminal, "it has come so far")
        if name in ("node_put", "relisted"):
            # A node that cannot be read is not there, until it is seen again.
            for number in range(2):
                await lab.api.patch(NODES, None, f"node-{number}", {"metadata": {"labels": {"seen": "again"}}})
        await until_over(lab, A)
        await lab.runtime.forget(A)
        await eventually(lambda: fault.count > 0, f"{name} was called")
        await goes_on(lab)
        await eventually(lambda: contained(place) > before, "it was counted")
    finally:
        await lab.close()


async def test_a_record_that_breaks_the_reader_is_passed_over(lab: KubeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    await until_state(lab, A, RunState.RUNNING)
    Fault(monkeypatch, event_handlers, "read_record", None)
    before = contained("anchor")
    await lab.restart()
    assert contained("anchor") > before
    assert A not in lab.runtime.held()
    await goes_on(lab)


async def test_a_report_that_cannot_be_made_names_the_nodes_left_out(
    lab: KubeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Inventory._traits

    def broken(self: Inventory, host: Any) -> Any:
        if host.name == "node-0":
            raise LookupError("an injected fault")
        return original(self, host)

    monkeypatch.setattr(Inventory, "_traits", broken)
    await lab.api.patch(NODES, None, "node-0", {"metadata": {"labels": {"seen": "again"}}})
    await eventually(lambda: bool(lab.kubernetes.inventory._dirty), "the node has changed")
    report = await lab.runtime.capacity()
    assert sum(group.count for group in report.groups) == 1
    assert "1 nodes that cannot be read, such as node-0" in report.not_counted
    monkeypatch.undo()
    await lab.api.patch(NODES, None, "node-0", {"metadata": {"labels": {"seen": "once more"}}})
    await eventually(lambda: bool(lab.kubernetes.inventory._dirty), "the node has changed")
    report = await lab.runtime.capacity()
    assert sum(group.count for group in report.groups) == 2
    assert not any("cannot be read" in note for note in report.not_counted)


def _foreign(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"containers": [{"name": "main", "image": "x"}], "nodeName": "node-0", **spec},
    }


ODD_PODS: dict[str, dict[str, Any]] = {
    "quantities that are none": {
        "containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "a lot", "memory": "1e400Gi"}}}]
    },
    "an affinity that is none": {"affinity": "anywhere"},
    "containers that are none": {"containers": ["main"]},
    "a node name that is none": {"nodeName": 5},
    "labels that are none": {"containers": None},
}


@pytest.mark.parametrize("odd", ODD_PODS)
async def test_an_odd_pod_of_somebody_else_ends_neither_the_watch_nor_the_report(odd: str, lab: KubeLab) -> None:
    pod = _foreign("odd", **ODD_PODS[odd])
    watch = next(one for one in lab.kubernetes._watches if one._resource is PODS)
    lists = watch.lists
    watch._take(
        {"type": "ADDED", "object": {**pod, "metadata": {**pod["metadata"], "uid": "u", "resourceVersion": "9"}}}
    )
    watch._version = ""
    assert (await lab.runtime.capacity()).groups
    await goes_on(lab)
    assert watch.lists == lists
