"""Warnings of a cluster about a run's object: the last one that concerns it."""

from typing import Any

from trainmaster_agent.runtime.kubernetes.object_warnings import last_warning

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
