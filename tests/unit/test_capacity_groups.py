"""How many groups there may be, and what is given up for that."""

from typing import Any

from tests.unit.test_capacity_inventory import inventory, node, only_group, pod

GIB = 2**30


def fleet(count: int, **labels: str) -> list[dict[str, Any]]:
    """Return nodes of 8 cores and 512 GiB, each with its own value of the label ``serial``."""
    return [
        node(f"n{i:02d}", labels={"serial": str(i), **labels}, allocatable={"cpu": "64", "memory": "512Gi"})
        for i in range(count)
    ]


def test_memory_is_told_less_exactly_before_cores_are() -> None:
    pods = [pod(f"p{i}", f"n{i:02d}", memory=f"{i + 1}Gi", cpu="1") for i in range(12)]
    report = inventory(*fleet(12), *pods, mostGroups=10).report()
    assert {(group.free["cpu"], group.free["memory"]) for group in report.groups} == {
        (63_000, 508 * GIB),
        (63_000, 504 * GIB),
        (63_000, 500 * GIB),
    }
    assert report.not_counted == (
        "less than cpu 0.5, memory 4Gi of each node, as there would be more than 10 node groups",
    )


def test_cores_are_told_less_exactly_where_memory_is_not_enough() -> None:
    pods = [pod(f"p{i}", f"n{i:02d}", cpu=f"{i + 1}") for i in range(12)]
    report = inventory(*fleet(12), *pods, mostGroups=10).report()
    assert sorted(group.free["cpu"] for group in report.groups) == [52_000, 54_000, 56_000, 58_000, 60_000, 62_000]


def test_a_label_that_tells_single_nodes_apart_is_given_up() -> None:
    made = inventory(*fleet(30, kind="a"), mostGroups=10, labels=["serial", "kind"])
    report = made.report()
    assert (only_group(made).count, only_group(made).labels) == (30, {"kind": "a"})
    assert report.not_counted[1:] == ("the node labels serial, for the same reason",)


def test_a_level_with_a_domain_for_each_node_is_given_up_after_the_labels() -> None:
    made = inventory(
        *fleet(30, kind="a"), mostGroups=10, labels=["kind"], levels=[{"level": "rack", "label": "serial"}]
    )
    report = made.report()
    assert (only_group(made).labels, only_group(made).topology) == ({}, ())
    assert report.not_counted[1:] == (
        "the node labels kind, serial, for the same reason",
        "the topology of nodes, for the same reason",
    )


def test_the_product_of_devices_is_never_given_up_and_the_smallest_groups_are_left_out() -> None:
    nodes = [node(f"n{i}", labels={"nvidia.com/gpu.product": f"P{min(i, 11)}"}) for i in range(14)]
    made = inventory(*nodes, mostGroups=10)
    report = made.report()
    assert len(report.groups) == 10
    assert sum(group.count for group in report.groups) == 12
    assert report.not_counted[-1] == "2 nodes of the smallest node groups"
    assert [made.group_of(f"n{i}") for i in range(14)].count(None) == 2


def test_it_is_exact_again_once_there_are_few() -> None:
    made = inventory(*fleet(12), mostGroups=10, labels=["serial"])
    assert made.report().not_counted
    for i in range(2, 12):
        made.node_drop(f"n{i:02d}")
    assert [group.labels["serial"] for group in sorted(made.report().groups, key=lambda g: g.labels["serial"])] == [
        "0",
        "1",
    ]
    assert made.report().not_counted == ()
