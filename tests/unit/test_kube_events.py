"""Events of jobs as Kubernetes has them."""

from trainmaster_dispatcher.api.kube.events import folded


def event(name: str, message: str, at: str, reason: str = "RunStatus") -> dict[str, object]:
    return {
        "metadata": {"name": name},
        "involvedObject": {"name": "pi"},
        "type": "Normal",
        "reason": reason,
        "message": message,
        "count": 1,
        "firstTimestamp": at,
        "lastTimestamp": at,
    }


def test_events_that_are_the_same_in_a_row_are_one_with_its_count_first_and_last_moment() -> None:
    found = folded(
        [
            event("pi.1", "2 active", "10:00"),
            event("pi.2", "2 active", "10:01"),
            event("pi.3", "2 active", "10:03"),
            event("pi.4", "1 active", "10:04"),
            event("pi.5", "2 active", "10:05"),
        ]
    )
    assert [
        (one["metadata"]["name"], one["message"], one["count"], one["firstTimestamp"], one["lastTimestamp"])
        for one in found
    ] == [
        ("pi.1", "2 active", 3, "10:00", "10:03"),
        ("pi.4", "1 active", 1, "10:04", "10:04"),
        ("pi.5", "2 active", 1, "10:05", "10:05"),
    ]


def test_events_that_differ_in_their_reason_or_their_object_are_not_one() -> None:
    other = event("po.1", "2 active", "10:02") | {"involvedObject": {"name": "po"}}
    given = [event("pi.1", "2 active", "10:00"), event("pi.2", "2 active", "10:01", "RunRunning"), other]
    assert folded(given) == given
    assert folded([]) == []
