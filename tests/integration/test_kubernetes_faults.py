"""Faults that the Kubernetes runtime meets, on the fake API server. On real ones: tests/e2e/test_kubernetes_faults*.py"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance.kube_lab import KubeLab, plain_access
from tests.conformance.runtime_suite import (
    RUNS,
    WAITS_FOR_GATE,
    A,
    B,
    Part,
    eventually,
    is_at,
    resize_run,
    start_run,
    stop_run,
    until,
    until_over,
    until_state,
)
from tests.fake_kube.nodes import FakeNodes
from tests.fake_kube.resources import QUOTAS, ResourceId
from tests.fake_kube.server import FakeKube
from tests.integration.fake_lab import AGENT_NAMESPACE, NAMESPACE, fake_cluster, lab_on, two_nodes
from trainmaster.protocol.agent import OpenStream, StartRun, StreamPush
from trainmaster.protocol.states import FailureCategory, RunState, StopCause
from trainmaster.workload_kinds.specification import translated
from trainmaster_agent.kube import watch
from trainmaster_agent.kube.client import MERGE_PATCH
from trainmaster_agent.kube.paths import CONFIG_MAPS, LEASES, NAMESPACES, PODS, SERVICES, Resource
from trainmaster_agent.log_tails import LogTails
from trainmaster_agent.output_times import OutputTimes
from trainmaster_agent.runtime.kubernetes import accept, orphans, run_reconciler, runtime
from trainmaster_agent.runtime.kubernetes.checkpoint import NO_PROGRAM
from trainmaster_agent.runtime.kubernetes.record import KubeRunRecord
from trainmaster_agent.runtime.port import RuntimeAwayError
from trainmaster_agent.streams import LogStreams

RACK = "topology.example.com/rack"
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
async def closed_lab(kube: FakeKube, nodes: FakeNodes) -> AsyncIterator[KubeLab]:
    """A lab whose runtime is not open yet."""
    lab = lab_on(kube, nodes, lease={"duration": "4s", "namespace": AGENT_NAMESPACE})
    try:
        yield lab
    finally:
        await lab.close()


@pytest.fixture
async def lab(closed_lab: KubeLab) -> KubeLab:
    await closed_lab.open()
    return closed_lab


def starts(nodes: FakeNodes, name: str) -> int:
    return sum(start.name == name for start in nodes.starts)


async def delete_pod(lab: KubeLab, name: str, grace: int = 1) -> None:
    """Delete a pod as a person does; with no grace the pod is gone at once, and its end is not observed."""
    await lab.api.delete(PODS, NAMESPACE, name, grace=grace)


async def until_started(nodes: FakeNodes, name: str, times: int) -> None:
    await eventually(lambda: starts(nodes, name) >= times, f"start number {times} of {name}")


class Followed:
    """Takes what an agent pushes, and puts each member's output together by its offsets."""

    def __init__(self) -> None:
        self.output: dict[tuple[str, int], str] = {}
        self.missed = 0

    async def push(self, stream: str, body: StreamPush) -> None:
        for chunk in body.chunks:
            place = (chunk.role, chunk.index)
            before = self.output.get(place, "")
            if before:
                self.missed += max(0, chunk.offset - len(before))
            self.output[place] = before + chunk.data[max(0, len(before) - chunk.offset) :]


async def received(followed: Followed, text: str) -> None:
    await eventually(lambda: followed.output.get(("worker", 0)) == text, f"{text!r}; there is {followed.output}")


# -- the checkpoint signal


@pytest.mark.parametrize("image", ["full", "slim"], ids=["a kill program", "a shell alone"])
async def test_the_checkpoint_signal_needs_a_kill_program_or_a_shell(lab: KubeLab, kube: FakeKube, image: str) -> None:
    run = start_run(lab, A, Part(RUNS))
    run.spec["roles"][0]["template"]["image"] = image
    await lab.runtime.start(run)
    await until_state(lab, A, RunState.RUNNING)
    await lab.runtime.stop(stop_run(A, StopCause.PREEMPT, save=0.3))
    status = await until_over(lab, A)
    assert (status.state, status.message) == (RunState.PREEMPTED, "")
    assert kube.execs.signals == [(f"{A}-worker-0", "USR1")]


async def test_a_member_that_cannot_be_told_to_save_its_state_is_not_waited_for_and_the_user_hears_of_it(
    lab: KubeLab, kube: FakeKube
) -> None:
    run = start_run(lab, A, Part(RUNS, count=2))
    run.spec["roles"][0]["template"]["image"] = "scratch"
    await lab.runtime.start(run)
    await until_state(lab, A, RunState.RUNNING)
    await lab.runtime.stop(stop_run(A, StopCause.PREEMPT, save=3600))
    status = await until_over(lab, A)
    assert status.state is RunState.PREEMPTED
    assert status.message == f"the checkpoint signal did not reach worker-0, worker-1: {NO_PROGRAM}"
    assert kube.execs.signals == []


async def test_without_the_permission_for_the_checkpoint_signal_nobody_waits(lab: KubeLab, kube: FakeKube) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    await until_state(lab, A, RunState.RUNNING)
    kube.deny("get", "pods/exec")
    await lab.runtime.stop(stop_run(A, StopCause.PREEMPT, save=3600))
    assert "permission pods/exec" in (await until_over(lab, A)).message


# -- output


async def test_a_follower_and_the_tail_have_the_output_of_all_lives_of_a_member(lab: KubeLab, nodes: FakeNodes) -> None:
    name = f"{A}-worker-0"
    await lab.runtime.start(start_run(lab, A, Part(RUNS, of_role={"memberFailure": RESTART_MEMBER})))
    followed, kept = Followed(), Followed()
    streams, tails = (
        LogStreams(followed, lab.runtime, "s", OutputTimes(time.time)),
        LogTails(kept, lab.runtime, "s", OutputTimes(time.time)),
    )
    streams.open(OpenStream(stream="f", run=A, follow=True, tail_bytes=65_536))
    said = ""
    for life in range(3):
        await until_started(nodes, name, life + 1)
        nodes.write_log(NAMESPACE, name, f"life {life} of the same length")
        said += f"life {life} of the same length\n"
        await received(followed, said)
        nodes.fail(NAMESPACE, name, 3)
    await until_started(nodes, name, 4)
    nodes.fail(NAMESPACE, name, 3)
    await until_over(lab, A)
    assert await tails.keep([A], 10.0, 10.0)
    await streams.close()
    await tails.close()
    assert kept.output["worker", 0] == said
    assert (followed.output["worker", 0], followed.missed) == (said, 0)


async def test_what_was_followed_of_a_member_is_kept_when_its_node_goes(lab: KubeLab, nodes: FakeNodes) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    node = (await until_state(lab, A, RunState.RUNNING)).members[0].node
    nodes.write_log(NAMESPACE, f"{A}-worker-0", "said before")
    followed, kept = Followed(), Followed()
    streams, tails = (
        LogStreams(followed, lab.runtime, "s", OutputTimes(time.time)),
        LogTails(kept, lab.runtime, "s", OutputTimes(time.time)),
    )
    streams.open(OpenStream(stream="f", run=A, follow=True, tail_bytes=65_536))
    await received(followed, "said before\n")
    nodes.crash_node(node)
    nodes.boot_node(node)
    await until_over(lab, A)
    assert await tails.keep([A], 10.0, 10.0)
    await streams.close()
    await tails.close()
    assert kept.output["worker", 0] == "said before\n"
    assert followed.output["worker", 0] == "said before\n"


async def test_a_kubelet_without_the_output_adds_nothing_to_it(lab: KubeLab, nodes: FakeNodes) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    node = (await until_state(lab, A, RunState.RUNNING)).members[0].node
    nodes.write_log(NAMESPACE, f"{A}-worker-0", "nobody has heard this")
    nodes.crash_node(node)
    nodes.boot_node(node)
    await until_over(lab, A)
    kept = Followed()
    tails = LogTails(kept, lab.runtime, "s", OutputTimes(time.time))
    assert await tails.keep([A], 10.0, 10.0)
    await tails.close()
    assert kept.output == {}


async def test_a_follower_gets_all_of_a_fast_writer(lab: KubeLab, nodes: FakeNodes) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    await until_state(lab, A, RunState.RUNNING)
    line = "x" * 1023
    nodes.write_log(NAMESPACE, f"{A}-worker-0", "\n".join([line] * 3_000))
    followed = Followed()
    streams = LogStreams(followed, lab.runtime, "s", OutputTimes(time.time))
    streams.open(OpenStream(stream="f", run=A, follow=True, tail_bytes=0))
    await eventually(lambda: len(followed.output.get(("worker", 0), "")) == 3_000 * 1024, "3 MB have come")
    await streams.close()
    assert followed.missed == 0


# -- nodes that go down


async def test_a_crashed_node_is_not_blamed_on_the_program(lab: KubeLab, nodes: FakeNodes) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    node = (await until_state(lab, A, RunState.RUNNING)).members[0].node
    nodes.crash_node(node)
    nodes.boot_node(node)
    status = await until_over(lab, A)
    assert status.state is RunState.FAILED
    assert status.end is not None
    assert (status.end.category, status.end.exit_code) == (FailureCategory.NODE_LOST, None)
    assert f"node {node}" in status.message
    assert (status.members[0].exit_code, status.members[0].signal) == (None, None)


async def test_a_member_whose_role_restarts_comes_again_after_its_node_has_crashed(
    lab: KubeLab, nodes: FakeNodes
) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS, of_role={"memberFailure": RESTART_MEMBER})))
    node = (await until_state(lab, A, RunState.RUNNING)).members[0].node
    nodes.crash_node(node)
    nodes.boot_node(node)
    await until_started(nodes, f"{A}-worker-0", 2)
    status = await until(lab, A, lambda one: one.members[0].state == "running")
    assert (status.state, status.members[0].restarts) == (RunState.RUNNING, 0)


async def test_a_member_on_a_silent_node_counts_until_its_end_is_certain(lab: KubeLab, nodes: FakeNodes) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS, of_role={"memberFailure": RESTART_MEMBER})))
    node = (await until_state(lab, A, RunState.RUNNING)).members[0].node
    nodes.crash_node(node)
    nodes.evict_from(node)
    await until(lab, A, lambda status: status.state is RunState.RUNNING)
    assert starts(nodes, f"{A}-worker-0") == 1, "another copy might run beside the first one"
    nodes.boot_node(node)
    await until_started(nodes, f"{A}-worker-0", 2)


async def test_a_silent_node_is_told_and_no_more_once_it_answers(lab: KubeLab, nodes: FakeNodes) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    node = (await until_state(lab, A, RunState.RUNNING)).members[0].node
    nodes.set_ready(node, "Unknown", "NodeStatusUnknown")
    told_of = f"worker-0 on node {node}, which Kubernetes has counted as silent since"
    await until(lab, A, lambda status: told_of in status.message)
    nodes.set_ready(node, "True", "KubeletReady")
    await until(lab, A, lambda status: told_of not in status.message)
    nodes.crash_node(node)
    nodes.evict_from(node)
    status = await until(lab, A, lambda status: f"kubectl delete node {node}" in status.message)
    assert status.state is RunState.RUNNING
    nodes.boot_node(node)
    status = await until_over(lab, A)
    assert status.end is not None
    assert status.end.category is FailureCategory.NODE_LOST


async def test_why_a_member_cannot_start_is_told_before_its_run_fails(kube: FakeKube, nodes: FakeNodes) -> None:
    lab = lab_on(kube, nodes, patience={"image": "1m", "container": "1m", "opened": "2s"})
    await lab.open()
    for name, word, reason in (
        (A, "image-error", "ImagePullBackOff"),
        (B, "config-error", "CreateContainerConfigError"),
    ):
        run = start_run(lab, name, Part(RUNS))
        run.spec["roles"][0]["template"]["command"] = ["sim", word]
        await lab.runtime.start(run)
        words = f"cannot start yet ({reason})"
        status = await until(lab, name, lambda one: words in one.message)  # noqa: B023 - used up before the next round
        assert status.state is RunState.PENDING
        assert "not found; if that lasts until " in status.message
    await lab.close()


async def test_a_command_that_does_not_exist_fails_the_run_at_once(lab: KubeLab, nodes: FakeNodes) -> None:
    run = start_run(lab, A, Part(RUNS, of_role={"memberFailure": RESTART_MEMBER}))
    run.spec["roles"][0]["template"]["command"] = ["sim", "no-such-command"]
    await lab.runtime.start(run)
    status = await until_over(lab, A)
    assert status.state is RunState.FAILED
    assert status.end is not None
    assert status.end.category is FailureCategory.CONFIG
    assert "no such file or directory" in status.message
    assert status.members[0].restarts == 0


async def test_members_that_never_started_are_not_shown_as_killed(lab: KubeLab) -> None:
    run = start_run(lab, A, Part(RUNS))
    run.spec["roles"][0]["template"]["command"] = ["sim", "image-error"]
    await lab.runtime.start(run)
    status = await until_over(lab, A)
    assert status.end is not None
    assert status.end.category is FailureCategory.IMAGE
    assert (status.members[0].state, status.members[0].signal) == ("stopped", None)


# -- opening and closing


async def test_a_runtime_that_could_not_read_the_cluster_opens_once_it_can(
    closed_lab: KubeLab, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_LIST_PATIENCE", 0.3)
    kube.deny("list", "pods")
    with pytest.raises(TimeoutError):
        await closed_lab.open()
    await closed_lab.kubernetes.close()
    kube.allow("list", "pods")
    monkeypatch.setattr(runtime, "_LIST_PATIENCE", 30.0)
    await closed_lab.open()
    await closed_lab.runtime.start(start_run(closed_lab, A, Part(RUNS)))
    await until_state(closed_lab, A, RunState.RUNNING)


async def test_a_runtime_opened_again_forgets_what_went_meanwhile(lab: KubeLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    await lab.runtime.start(start_run(lab, B, Part(RUNS)))
    await until_state(lab, A, RunState.RUNNING)
    await until_state(lab, B, RunState.RUNNING)
    await lab.kubernetes.close()
    await lab.api.delete(CONFIG_MAPS, AGENT_NAMESPACE, A)
    await lab.api.delete(PODS, NAMESPACE, f"{A}-worker-0", grace=0)
    await lab.open()
    assert set(lab.runtime.held()) == {B}
    assert (await until_state(lab, B, RunState.RUNNING)).members[0].state == "running"


async def test_a_lease_is_given_back_though_a_renewal_was_cut_off(lab: KubeLab) -> None:
    lease = await lab.api.get(LEASES, "agent", "trainmaster-agent-lab")
    await lab.api.patch(LEASES, "agent", "trainmaster-agent-lab", {"metadata": {"labels": {"seen": "yes"}}})
    await lab.kubernetes.close()
    assert lease["spec"]["holderIdentity"]
    assert not (await lab.api.get(LEASES, "agent", "trainmaster-agent-lab"))["spec"].get("holderIdentity")


# -- recording runs


async def test_a_run_whose_recording_was_not_answered_can_be_called_off_for_certain(
    lab: KubeLab, kube: FakeKube, nodes: FakeNodes
) -> None:
    kube.lose_next_answer("create", "configmaps")
    with pytest.raises(RuntimeAwayError):
        await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    assert A not in lab.runtime.held()
    await lab.runtime.stop(stop_run(A))
    assert (await until_over(lab, A)).state is RunState.CANCELLED


async def test_whether_an_unanswered_run_was_recorded_is_not_guessed(lab: KubeLab, kube: FakeKube) -> None:
    kube.fail_next("create", "configmaps", 500)
    with pytest.raises(RuntimeAwayError):
        await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    kube.fail_next("create", "configmaps", 500)
    with pytest.raises(RuntimeAwayError):
        await lab.runtime.stop(stop_run(A))
    await lab.runtime.stop(stop_run(A))
    assert (await until_over(lab, A)).state is RunState.CANCELLED


async def test_a_record_that_comes_late_from_the_agent_before_is_held(lab: KubeLab) -> None:
    record = KubeRunRecord(start_run(lab, A, Part(RUNS)), NAMESPACE, 1)
    await lab.api.create(CONFIG_MAPS, AGENT_NAMESPACE, record.to_config_map("lab", AGENT_NAMESPACE))
    await eventually(lambda: A in lab.runtime.held(), "the run is held")
    await until_state(lab, A, RunState.RUNNING)


async def test_a_server_that_has_not_read_its_roles_yet_returns_nothing(lab: KubeLab, kube: FakeKube) -> None:
    kube.deny("create", "configmaps")
    with pytest.raises(RuntimeAwayError):
        await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
    kube.allow("create", "configmaps")
    kube.deny("create", "pods")
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
    await asyncio.sleep(0.5)
    assert not lab.runtime.held()[A].state.is_terminal
    kube.allow("create", "pods")
    await until_state(lab, A, RunState.RUNNING)


async def test_without_a_permission_runs_are_returned_with_the_servers_words(
    lab: KubeLab, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept, "PERMISSION_PATIENCE", 0.0)
    monkeypatch.setattr(run_reconciler, "PERMISSION_PATIENCE", 0.0)
    kube.deny("create", "pods")
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    over = await until_over(lab, A)
    assert over.state is RunState.RETURNED
    assert 'cannot create resource "pods"' in over.message
    kube.deny("create", "configmaps")
    await lab.runtime.start(start_run(lab, B, Part(RUNS)))
    assert 'cannot create resource "configmaps"' in lab.runtime.held()[B].message


async def test_while_the_api_server_cannot_create_the_members_the_run_says_so_in_its_words(
    lab: KubeLab, kube: FakeKube
) -> None:
    """A webhook that is away is such a case: the API server answers 500 until it is back."""
    kube.fail_next("create", "pods", 500, times=12)
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    words = "its members cannot be created at the moment: the API server answered 500"
    await eventually(lambda: words in lab.runtime.held()[A].message, "the run's message has the answer")
    await until_state(lab, A, RunState.RUNNING)
    assert "500" not in lab.runtime.held()[A].message


async def test_runs_sent_to_a_cluster_that_is_away_are_given_back_once_it_has_said_so(
    lab: KubeLab, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_AWAY_SECONDS", 0.5)
    await kube.stop()
    await eventually(lambda: not lab.kubernetes.lease.is_valid(), "the lease has run out")
    with pytest.raises(RuntimeAwayError):
        await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    assert "has not answered" in (await lab.runtime.capacity()).closed
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    assert lab.runtime.held()[A].state is RunState.PREEMPTED
    await kube.start()
    await eventually(lab.kubernetes.lease.is_valid, "the lease is renewed")


async def test_without_its_namespace_a_cluster_is_closed(lab: KubeLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
    await until_state(lab, A, RunState.RUNNING)
    await lab.api.call("DELETE", NAMESPACES.path(None, NAMESPACE))
    over = await until_over(lab, A)
    assert over.state is RunState.PREEMPTED
    await eventually(lambda: lab.kubernetes._namespaces.is_missing(NAMESPACE), "it is seen that the namespace is gone")
    with pytest.raises(RuntimeAwayError):
        await lab.runtime.start(start_run(lab, B, Part(RUNS)))
    assert "namespace jobs does not exist" in (await lab.runtime.capacity()).closed
    await lab.runtime.start(start_run(lab, B, Part(RUNS)))
    assert lab.runtime.held()[B].state is RunState.PREEMPTED


# -- watching


async def test_a_permission_given_back_opens_the_cluster_again_at_once(
    lab: KubeLab, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_FIRST_WHEN_REFUSED", 0.05)
    monkeypatch.setattr(watch, "_SLEEP_WHEN_REFUSED", 0.05)
    kube.deny("watch", "configmaps")
    kube.end_watches()

    async def closed() -> str:
        return (await lab.runtime.capacity()).closed

    for _ in range(200):
        if "configmaps" in await closed():
            break
        await asyncio.sleep(0.05)
    assert "configmaps" in await closed()
    kube.allow("watch", "configmaps")
    for _ in range(200):
        if not await closed():
            break
        await asyncio.sleep(0.05)
    assert not await closed()


async def test_changes_are_seen_after_a_watch_has_lost_its_place(
    lab: KubeLab, kube: FakeKube, nodes: FakeNodes
) -> None:
    await lab.runtime.start(start_run(lab, A, Part(WAITS_FOR_GATE, count=2)))
    await lab.runtime.start(start_run(lab, B, Part(RUNS, count=2), memberFailure=RESTART_MEMBER))
    await until_state(lab, A, RunState.RUNNING)
    await until_state(lab, B, RunState.RUNNING)
    await kube.stop()
    lab.open_gate(A)
    await asyncio.sleep(0.3)
    kube.expire_history()
    await kube.start()
    assert (await until_over(lab, A)).state is RunState.SUCCEEDED
    await delete_pod(lab, f"{B}-worker-1")
    await eventually(lambda: starts(nodes, f"{B}-worker-1") == 2, "the member has come again")
    assert starts(nodes, f"{B}-worker-0") == 1


# -- an agent that starts anew


async def test_members_of_ones_own_do_not_fill_the_quota_that_a_run_is_measured_by(
    lab: KubeLab, kube: FakeKube, nodes: FakeNodes
) -> None:
    kube.verbs.create(QUOTAS, NAMESPACE, {"metadata": {"name": "team"}, "spec": {"hard": {"pods": "3"}}})
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=3), memberFailure=RESTART_MEMBER))
    await until_state(lab, A, RunState.RUNNING)
    await lab.restart()
    await delete_pod(lab, f"{A}-worker-1")
    await eventually(lambda: starts(nodes, f"{A}-worker-1") == 2, "the member has come again")
    assert lab.runtime.held()[A].state is RunState.RUNNING


async def test_a_gang_whose_creation_was_not_noted_is_still_known_to_be_whole(lab: KubeLab, nodes: FakeNodes) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
    await until_state(lab, A, RunState.RUNNING)
    await lab.kubernetes.close()
    await lab.api.patch(
        CONFIG_MAPS, AGENT_NAMESPACE, A, {"data": {"progress": "{}"}}
    )  # as one that was killed leaves it
    await lab.restart()
    await until_state(lab, A, RunState.RUNNING)
    await delete_pod(lab, f"{A}-worker-1", grace=0)
    assert (await until_over(lab, A)).state is RunState.PREEMPTED
    assert starts(nodes, f"{A}-worker-1") == 1


async def test_what_is_left_of_a_run_without_a_record_is_deleted(
    lab: KubeLab, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
    await lab.runtime.start(start_run(lab, B, Part(RUNS)))
    await until_state(lab, A, RunState.RUNNING)
    await until_state(lab, B, RunState.RUNNING)
    await lab.kubernetes.close()
    await lab.api.delete(CONFIG_MAPS, AGENT_NAMESPACE, A)
    assert lab.living(A) == 2
    monkeypatch.setattr(orphans, "_PATIENCE", 0.3)
    await lab.restart()
    await lab.runtime.renew(lab.now())  # who is not served by the dispatcher clears nothing away
    assert not await lab.runtime.verify_absent(stop_run(A), "ours")
    await eventually(lambda: lab.living(A) == 0, "the pods without a record are gone")
    assert lab.living(B) == 1
    assert set(lab.runtime.held()) == {B}
    await eventually(lambda: not kube_objects(kube, A), "nothing is left of it")
    assert await lab.runtime.verify_absent(stop_run(A), "ours")


def kube_objects(kube: FakeKube, run: str) -> list[str]:
    """Return all that is in the namespace of the jobs for a run, by kind and name."""
    return [
        f"{key.plural}/{key.name}"
        for resource in (PODS, SERVICES, CONFIG_MAPS)
        for key in kube.store.scan(ResourceId(resource.version, resource.plural))
        if key.namespace == NAMESPACE and key.name.startswith(run)
    ]


async def test_a_run_whose_record_somebody_deleted_ends_and_leaves_nothing(lab: KubeLab, kube: FakeKube) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
    await until_state(lab, A, RunState.RUNNING)
    await lab.api.delete(CONFIG_MAPS, AGENT_NAMESPACE, A)
    over = await until_over(lab, A)
    assert over.state is RunState.PREEMPTED
    assert lab.living(A) == 0
    await lab.runtime.forget(A)
    await eventually(lambda: not kube_objects(kube, A), "nothing is left of it")


async def test_a_record_that_somebody_spoilt_ends_its_run(lab: KubeLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
    await until_state(lab, A, RunState.RUNNING)
    await lab.api.patch(CONFIG_MAPS, AGENT_NAMESPACE, A, {"data": {"start": "spoilt"}})
    await lab.runtime.stop(stop_run(A))
    assert (await until_over(lab, A)).state in (RunState.PREEMPTED, RunState.CANCELLED)
    assert lab.living(A) == 0


async def test_a_late_sight_of_an_earlier_pod_does_not_hide_the_one_that_came_after_it(lab: KubeLab) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS)))
    await until(lab, A, lambda status: status.state is RunState.RUNNING)
    book = lab.kubernetes._trackers[A]
    now = book.pods["worker", 0]
    assert not book.note(replace(now, uid="earlier", version=now.version - 1))
    assert book.pods["worker", 0] is now
    assert book.note(replace(now, uid="later", version=now.version + 1))


# -- gates


@pytest.fixture
async def racks(kube: FakeKube) -> AsyncIterator[tuple[KubeLab, FakeNodes]]:
    """Two racks of two nodes: two places in the first, which fit a single member best, and four in the second."""
    nodes = FakeNodes(kube)
    for number in range(4):
        has = {"cpu": "1", "pods": "5"} if number < 2 else {"cpu": "2", "pods": "110"}
        nodes.add_node(f"node-{number}", {"memory": "8Gi", **has}, {RACK: f"rack-{number // 2}"})
    capacity = {"levels": [{"level": "rack", "label": RACK}]}
    lab = KubeLab(plain_access(kube.url), NAMESPACE, living=lambda _: 0, open_gate=nodes.open_gate, capacity=capacity)
    await lab.open()
    yield lab, nodes
    await lab.close()
    nodes.close()


def racks_of(lab: KubeLab, run: str) -> set[str]:
    return {f"rack-{int(one.node.removeprefix('node-')) // 2}" for one in lab.runtime.held()[run].members if one.node}


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_gang_whose_gates_were_not_all_opened_stays_in_one_rack(
    racks: tuple[KubeLab, FakeNodes], kube: FakeKube, failures: int
) -> None:
    lab, _ = racks
    kube.fail_next("patch", "pods", 500, failures)
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=3, cpu="1"), topology={"required": "rack"}))
    await until_state(lab, A, RunState.RUNNING)
    assert len(racks_of(lab, A)) == 1


async def test_a_gang_in_a_rack_grows_there(racks: tuple[KubeLab, FakeNodes]) -> None:
    lab, _ = racks
    await lab.runtime.start(
        start_run(lab, A, Part(RUNS, count=3, of_role={"minReplicas": 3}, cpu="1"), topology={"required": "rack"})
    )
    await until_state(lab, A, RunState.RUNNING)
    await lab.runtime.resize(resize_run(A, 4))
    await until(lab, A, is_at(4))
    assert len(racks_of(lab, A)) == 1


def _order_of_a_job(container: dict[str, Any], pods: int = 1) -> StartRun:
    """Return the order to start a Job of Kubernetes."""
    metadata = {"name": "pi", "annotations": {"trainmaster.dev/queue": "default"}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    spec = translated(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {"parallelism": pods, "completions": pods, "template": template},
        }
    ).spec
    return StartRun(
        run=A,
        job=A[:-3],
        queue="default",
        attempt=1,
        token=1,
        generation=1,
        spec=spec,
        sizes={"main": pods},
        placement_timeout_seconds=300,
    )


async def test_the_output_of_ended_pods_is_read_before_their_object_is_deleted_with_them(
    kube: FakeKube, closed_lab: KubeLab
) -> None:
    """The submitter of a RayJob ends like that, while the head still runs: nothing follows its output before."""
    jobs = Resource("batch/v1", "jobs")
    lab = closed_lab
    await lab.open()
    await lab.runtime.start(_order_of_a_job({"name": "main", "image": "sim"}, pods=2))
    await until(lab, A, lambda status: "has made 0 of the 2 pods" in (status.message or ""))
    job = await lab.api.get(jobs, NAMESPACE, A)
    metadata, spec = job["spec"]["template"]["metadata"], job["spec"]["template"]["spec"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": A, "uid": job["metadata"]["uid"], "controller": True}
    uids = []
    for index, word in enumerate(("succeed", "run")):
        labels = {**metadata["labels"], "batch.kubernetes.io/job-completion-index": str(index)}
        one = {**metadata, "name": f"{A}-{index}-x", "labels": labels, "ownerReferences": [owner]}
        containers = [{**spec["containers"][0], "command": ["sim", word]}]
        made = await lab.api.create(PODS, NAMESPACE, {"metadata": one, "spec": {**spec, "containers": containers}})
        uids.append(made["metadata"]["uid"])
    await until(lab, A, lambda status: {one.state for one in status.members} == {"succeeded", "running"})
    kube.logs.write(uids[0], "main", "the result")
    status = {"conditions": [{"type": "Complete", "status": "True"}], "succeeded": 1}
    await lab.api.call("PATCH", f"{jobs.path(NAMESPACE, A)}/status", body={"status": status}, content_type=MERGE_PATCH)
    assert (await until_over(lab, A)).state is RunState.SUCCEEDED
    kube.logs.drop(uids[0])  # as soon as a pod is removed, no node has its output
    ended = next(one.index for one in lab.runtime.held()[A].members if one.state == "succeeded")
    assert (await lab.runtime.read_log(A, "main", ended, 0, 100)).data == b"the result\n"


async def test_a_run_ends_whose_object_was_gone_before_any_watch_had_said_so(
    kube: FakeKube, closed_lab: KubeLab
) -> None:
    jobs = Resource("batch/v1", "jobs")
    kube.deny("watch", "jobs")
    lab = closed_lab
    await lab.open()
    await lab.runtime.start(_order_of_a_job({"name": "main", "image": "perl:5.34.0"}))
    await until(lab, A, lambda status: "has made 0 of the 1 pods" in (status.message or ""))
    await lab.api.delete(jobs, NAMESPACE, A)
    await lab.runtime.stop(stop_run(A))
    assert (await until_over(lab, A)).state is RunState.CANCELLED
