"""Events of a cluster about a run's objects: the last warning that concerns one, and the last words about a gang."""

from collections.abc import AsyncIterator
from typing import Any, cast

from tests.unit.test_workload_reconcile import facts, start_of
from trainmaster.protocol.states import RunState
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import ForbiddenError
from trainmaster_agent.placement.kai import Kai
from trainmaster_agent.placement.volcano import Volcano
from trainmaster_agent.runtime.kubernetes.object_warnings import last_warning, read_words
from trainmaster_agent.runtime.kubernetes.record import KubeRunRecord
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker
from trainmaster_agent.runtime.port import RunStatus

RUN = "pi-7k2p9xq-r1"


def event(of: str, message: str, kind: str = "Job", **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"creationTimestamp": "2026-11-01T10:00:00Z"},
        "involvedObject": {"kind": kind, "name": of},
        "reason": "FailedCreate",
        "message": message,
        **more,
    }


def test_is_that_of_the_object_or_of_what_was_made_for_it() -> None:
    assert last_warning([event(RUN, "no account", "JobSet")], RUN) == f"JobSet {RUN}: FailedCreate: no account"
    assert (
        last_warning([event(f"{RUN}-workers-0", "no account")], RUN) == f"Job {RUN}-workers-0: FailedCreate: no account"
    )


def test_is_not_that_of_another_run_or_of_a_pod() -> None:
    others = [
        event(f"{RUN}0", "other run"),
        event(f"{RUN}-0", "a pod", "Pod"),
        event("x", "foreign"),
        {"reason": "none"},
    ]
    assert last_warning(others, RUN) == ""


def test_is_the_one_seen_last() -> None:
    events = [
        event(RUN, "first", lastTimestamp="2026-11-01T10:00:05Z"),
        event(RUN, "repeated", eventTime="2026-11-01T10:00:01.5Z", series={"lastObservedTime": "2026-11-01T10:00:09Z"}),
        event(RUN, "second", eventTime="2026-11-01T10:00:07.5Z"),
    ]
    assert last_warning(events, RUN).endswith("repeated")
    assert last_warning([*events, event(RUN, "without a time of its own")], RUN).endswith("repeated")


def test_is_short() -> None:
    assert len(last_warning([event(RUN, "x" * 5000)], RUN)) <= 400


class Events:
    """An API server that has events about one object, and may not be asked for them."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self.events = list(events)
        self.readings: list[str] = []
        self.is_forbidden = False

    async def pages(
        self, resource: object, namespace: str, *, fields: str
    ) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        self.readings.append(fields)
        if self.is_forbidden:
            raise ForbiddenError(403, "events is forbidden")
        yield self.events, "1"


def group(phase: str) -> dict[str, Any]:
    return {"kind": "PodGroup", "metadata": {"name": RUN}, "status": {"phase": phase}}


async def test_the_last_event_about_a_gang_is_read_now_and_then_while_its_queue_holds_it_back() -> None:
    tracker = RunTracker(
        KubeRunRecord(start_of({}, {"main": 1}), "jobs", 1), facts(), RunStatus(RUN, 1, 1, RunState.PENDING)
    )
    events = Events(
        event(RUN, "queue resource quota insufficient: insufficient cpu", lastTimestamp="2026-11-01T10:00:09Z"),
        event(RUN, "earlier", lastTimestamp="2026-11-01T10:00:01Z"),
    )
    words = []
    for now, phase in (
        (0, "Pending"),
        (1, "Pending"),
        (2, "Pending"),
        (11, "Pending"),
        (12, "Pending"),
        (13, "Inqueue"),
    ):
        fields = Volcano().explained_by_events([group(phase)])
        await read_words(cast(ApiServer, events), tracker, fields, float(now))
        words.append(tracker.warning)
    said = "queue resource quota insufficient: insufficient cpu"
    assert words == ["", "", said, said, said, ""]
    fields = f"type=Normal,reason=Unschedulable,involvedObject.kind=PodGroup,involvedObject.name={RUN}"
    assert events.readings == [fields] * 2
    assert Kai().explained_by_events([group("Pending")]) == ""


async def test_events_that_may_not_be_read_are_no_reason_for_anything() -> None:
    tracker = RunTracker(
        KubeRunRecord(start_of({}, {"main": 1}), "jobs", 1), facts(), RunStatus(RUN, 1, 1, RunState.PENDING)
    )
    events = Events()
    events.is_forbidden = True
    for now in (0.0, 2.0):
        await read_words(cast(ApiServer, events), tracker, "type=Normal", now)
    assert (tracker.warning, len(events.readings)) == ("", 1)
