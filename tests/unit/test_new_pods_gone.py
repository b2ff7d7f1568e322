"""Pods that controllers make while their object is being removed: a run waits for none that is gone."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from tests.unit.test_workload_reconcile import RUN, facts, start_of
from trainmaster.protocol.states import RunState
from trainmaster_agent.capacity.config import CapacityConfig
from trainmaster_agent.capacity.inventory import Inventory
from trainmaster_agent.kube.pods import LABEL_INDEX, LABEL_ROLE, LABEL_RUN, see
from trainmaster_agent.placement.gates import Gates
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster_agent.runtime.kubernetes.event_handlers import EventHandlers, PodHandler
from trainmaster_agent.runtime.kubernetes.orphans import Orphans
from trainmaster_agent.runtime.kubernetes.record import LABEL_AGENT, KubeRunRecord
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker
from trainmaster_agent.runtime.port import RunStatus


def pod_of(uid: str, version: int, index: int | None = None, *, is_leaving: bool = False) -> dict[str, Any]:
    """Return a pod of the run, named as each of its successors."""
    labels = {LABEL_AGENT: "north", LABEL_RUN: RUN, LABEL_ROLE: "main"}
    times = {"creationTimestamp": f"2026-01-01T00:00:{version:02}Z"}
    if is_leaving:
        times["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    return {
        "metadata": {
            "name": "pi-0",
            "namespace": "jobs",
            "uid": uid,
            "resourceVersion": str(version),
            "labels": labels | ({} if index is None else {LABEL_INDEX: str(index)}),
            **times,
        },
        "spec": {"containers": [{"name": "main"}]},
        "status": {"phase": "Pending"},
    }


class Site:
    """The handlers of the watches of pods, and a run that they tell."""

    def __init__(self) -> None:
        self.tracker = RunTracker(
            KubeRunRecord(start_of({}, {"main": 1}), "jobs", 1), facts(), RunStatus(RUN, 1, 1, RunState.STOPPING)
        )
        self.looks: list[str] = []
        trackers: Mapping[str, RunTracker] = {RUN: self.tracker}
        handlers = EventHandlers(
            KubernetesCluster.model_validate({"cluster": "north", "jobNamespaces": ["jobs"]}),
            Gates(),
            trackers,
            cast(Orphans, _NoOrphans()),
            home="home",
            look_at=self.looks.append,
            lose_record=lambda _: None,
            is_known=lambda _: True,
            on_found=lambda *_: None,
            doubt=lambda _: None,
        )
        inventory = Inventory(CapacityConfig(), ("trainmaster.dev/cluster", "north"))
        none = cast(Any, None)  # what other watches than that of pods tell
        watched = handlers.watched(inventory, none, none, none, none, lambda: None)
        self.pods = cast(PodHandler, next(iter(watched)).handler)

    def answer(self, pod: dict[str, Any]) -> None:
        """Take the answer of the call that gave a pod its index."""
        sight = see(pod)
        assert sight is not None
        self.tracker.new_pods.pop(sight.uid, None)
        self.tracker.note(sight)


class _NoOrphans:
    def put(self, _: object) -> None: ...

    def drop(self, _: object) -> None: ...


@pytest.mark.parametrize("answer_is_first", [True, False])
def test_a_pod_that_was_removed_as_it_got_its_index_is_gone(answer_is_first: bool) -> None:
    """The API server removes a terminating pod when it is changed: the watch tells of the removal of a pod without an index."""
    site = Site()
    site.pods.put(pod_of("a", 1))
    assert list(site.tracker.new_pods) == ["a"]
    indexed = pod_of("a", 2, 0, is_leaving=True)
    if answer_is_first:
        site.answer(indexed)
        assert list(site.tracker.pods) == [("main", 0)]
    site.looks.clear()
    site.pods.drop(pod_of("a", 3))
    if not answer_is_first:
        site.answer(indexed)
    assert (site.tracker.pods, site.tracker.new_pods) == ({}, {})
    assert site.looks == [RUN]


def test_a_pod_whose_removal_no_watch_tells_of_is_gone_once_the_next_of_its_name_is_there() -> None:
    site = Site()
    site.pods.put(pod_of("a", 1))
    site.answer(pod_of("a", 2, 0, is_leaving=True))
    site.pods.put(pod_of("b", 4))
    assert (site.tracker.pods, list(site.tracker.new_pods)) == ({}, ["b"])
    site.pods.put(pod_of("b", 5, 0))
    site.pods.put(pod_of("c", 7))
    assert (site.tracker.pods, list(site.tracker.new_pods)) == ({}, ["c"])


def test_a_pod_that_got_an_index_is_a_member_until_it_is_gone() -> None:
    site = Site()
    site.pods.put(pod_of("a", 1))
    site.answer(pod_of("a", 2, 0))
    site.pods.put(pod_of("a", 2, 0))
    assert [one.uid for one in site.tracker.pods.values()] == ["a"]
    assert not site.tracker.new_pods
    site.pods.drop(pod_of("a", 3, 0))
    assert site.tracker.pods == {}
