"""What is said of clusters that start nothing while a restored store waits for reports."""

from trainmaster_dispatcher.domain.recovery import closed_by_recovery


def test_the_clusters_that_are_awaited_are_named() -> None:
    said = closed_by_recovery([{"name": "a"}, {"name": "b", "onlyQueues": []}])
    assert (
        "have reported what they run: a, b. If one of them is gone for good: trainmaster clusters declare-lost NAME"
        in said
    )


def test_once_none_is_awaited_nobody_is_told_to_declare_one_lost() -> None:
    said = closed_by_recovery([])
    assert "every cluster has reported what it runs" in said
    assert "declare-lost" not in said
