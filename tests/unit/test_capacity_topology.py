"""Which topology levels a cluster has, and where its nodes are."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.test_capacity_inventory import inventory, node, only_group
from trainmaster_agent.capacity.config import CapacityConfig
from trainmaster_agent.capacity.hypernodes import HyperNodes
from trainmaster_agent.capacity.inventory import Kind
from trainmaster_agent.capacity.node_index import AllowedNodes
from trainmaster_agent.capacity.topology import levels_of

ZONE, RACK = "topology.kubernetes.io/zone", "topology.kubernetes.io/rack"
LABELS = {ZONE: "a", RACK: "r1", "example.com/hall": "h1"}


def topology(name: str, *labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"levels": [{"nodeLabel": label} for label in labels]}}


def hyper_node(name: str, tier: int, *members: tuple[str, dict[str, Any]], **spec: Any) -> dict[str, Any]:
    listed = [{"type": kind, "selector": selector} for kind, selector in members]
    return {"metadata": {"name": name}, "spec": {"tier": tier, "members": listed, **spec}}


def exact(name: str) -> dict[str, Any]:
    return {"exactMatch": {"name": name}}


def test_well_known_labels_make_the_path_from_wide_to_narrow() -> None:
    group = only_group(inventory(node(labels=LABELS)))
    assert group.topology == (("zone", "a"), ("rack", "r1"))
    assert group.labels[RACK] == "r1"  # jobs may select nodes by it


def test_a_level_that_a_node_knows_nothing_of_is_left_out_of_its_path() -> None:
    made = inventory(node("n1", labels=LABELS), node("n2", labels={ZONE: "a"}))
    assert {group.topology for group in made.report().groups} == {(("zone", "a"), ("rack", "r1")), (("zone", "a"),)}


def test_labels_that_come_later_change_the_paths_of_all_nodes() -> None:
    made = inventory(node("n1", labels={"topology.k8s.aws/network-node-layer-3": "x"}))
    assert only_group(made).topology == (("leaf", "x"),)
    made.topology_put(Kind.KUEUE_TOPOLOGY, topology("default", "topology.k8s.aws/network-node-layer-3", "late"))
    made.node_put(node("n1", labels={"topology.k8s.aws/network-node-layer-3": "x", "late": "y"}))
    assert only_group(made).topology == (("leaf", "x"), ("late", "y"))


def tpu_node(name: str, pool: str, topology: str | None, chips: str = "4") -> dict[str, Any]:
    labels = {"cloud.google.com/gke-nodepool": pool}
    if topology is not None:
        labels |= {"cloud.google.com/gke-tpu-topology": topology, "cloud.google.com/gke-accelerator-count": chips}
    return node(name, labels=labels)


def test_nodes_that_make_up_a_tpu_slice_are_one_domain() -> None:
    made = inventory(
        *(tpu_node(f"a{index}", "pool-a", "4x4") for index in range(4)),
        *(tpu_node(f"b{index}", "pool-b", "2x2x2") for index in range(2)),
    )
    assert {group.topology: group.count for group in made.report().groups} == {
        (("slice", "pool-a"),): 4,
        (("slice", "pool-b"),): 2,
    }
    assert made.level_labels() == {"slice": "cloud.google.com/gke-nodepool"}
    made.node_put(tpu_node("c0", "pool-c", "2x2"))
    assert made.nodes_of_level("slice") == AllowedNodes("cloud.google.com/gke-nodepool", ("pool-a", "pool-b"))


@pytest.mark.parametrize(
    ("topology", "chips"), [("2x2", "4"), ("2x4", "8"), ("1x1", "1"), ("", "4"), ("4xfour", "4"), ("4x4", "")]
)
def test_a_node_that_is_a_slice_of_its_own_has_no_domain_of_slices(topology: str, chips: str) -> None:
    made = inventory(tpu_node("alone", "pool-a", topology, chips), tpu_node("other", "pool-b", "4x4"))
    assert {group.topology for group in made.report().groups} == {(), (("slice", "pool-b"),)}


def test_a_level_that_is_configured_holds_for_all_nodes_with_its_label() -> None:
    level = {"level": "slice", "label": "cloud.google.com/gke-nodepool"}
    made = inventory(tpu_node("n1", "pool-a", "2x2"), tpu_node("n2", "pool-b", None), levels=[level])
    assert {group.topology for group in made.report().groups} == {(("slice", "pool-a"),), (("slice", "pool-b"),)}
    assert made.nodes_of_level("slice") is None


def test_node_pools_without_tpus_are_no_slices_and_split_no_group() -> None:
    made = inventory(tpu_node("n1", "pool-c", None), tpu_node("n2", "pool-d", None), tpu_node("n3", "pool-e", "4x4"))
    plain = next(group for group in made.report().groups if not group.topology)
    assert plain.count == 2
    assert "cloud.google.com/gke-nodepool" not in plain.labels


def test_configuration_wins_over_topology_objects_over_hyper_nodes_over_labels() -> None:
    configured = inventory(node(labels=LABELS), levels=[{"level": "rack", "label": "example.com/hall"}])
    found = inventory(node(labels=LABELS))
    for made in (configured, found):
        made.hyper_node_put(hyper_node("leaf-1", 1, ("Node", exact("n1"))))
    assert only_group(found).topology == (("tier-1", "leaf-1"),)
    for made in (configured, found):
        made.topology_put(Kind.KAI_TOPOLOGY, topology("a", "example.com/hall", "kubernetes.io/hostname"))
    assert only_group(found).topology == (("hall", "h1"),)
    assert only_group(configured).topology == (("rack", "h1"),)
    found.topology_drop(Kind.KAI_TOPOLOGY, "a")
    found.relisted(Kind.HYPER_NODE, ())
    assert only_group(found).topology == (("zone", "a"), ("rack", "r1"))


def test_a_topology_object_whose_labels_no_node_has_is_passed_over() -> None:
    made = inventory(node(labels=LABELS))
    made.topology_put(Kind.KUEUE_TOPOLOGY, topology("a", "cloud.google.com/gce-topology-block"))
    made.topology_put(Kind.KUEUE_TOPOLOGY, topology("b", "example.com/hall"))
    assert only_group(made).topology == (("hall", "h1"),)
    made.relisted(Kind.KUEUE_TOPOLOGY, ["a"])
    assert only_group(made).topology == (("zone", "a"), ("rack", "r1"))


def test_levels_have_their_usual_short_names() -> None:
    labels = [
        "cloud.provider.com/topology-block",
        "cloud.google.com/gce-topology-subblock",
        "example.com/topology-row",
        "other.com/rack",
        "kubernetes.io/hostname",
    ]
    levels = levels_of({"levels": [{"nodeLabel": label} for label in labels] + [{"nodeLabel": "x/y", "alias": "pdu"}]})
    assert [level.name for level in levels] == ["block", "rack", "row", "other.com/rack", "pdu"]


def test_hyper_nodes_name_members_exactly_by_pattern_and_by_labels() -> None:
    specs = {
        "leaf-1": hyper_node("", 1, ("Node", exact("n1")))["spec"],
        "leaf-2": hyper_node("", 1, ("Node", {"regexMatch": {"pattern": "^n[23]$"}}))["spec"],
        "leaf-3": hyper_node("", 1, ("Node", {"labelMatch": {"matchLabels": {"rack": "r3"}}}))["spec"],
        "spine-1": hyper_node("", 2, ("HyperNode", exact("leaf-1")), ("HyperNode", exact("leaf-2")))["spec"],
        "spine-2": hyper_node("", 2, ("HyperNode", {"regexMatch": {"pattern": "leaf-3"}}))["spec"],
        "top": hyper_node("", 3, ("HyperNode", {"regexMatch": {"pattern": "^spine-"}}), tierName="core")["spec"],
    }
    tree = HyperNodes(specs)
    assert tree.path("n1", {}) == (("core", "top"), ("tier-2", "spine-1"), ("tier-1", "leaf-1"))
    assert tree.path("n3", {}) == (("core", "top"), ("tier-2", "spine-1"), ("tier-1", "leaf-2"))
    assert tree.path("n9", {"rack": "r3"}) == (("core", "top"), ("tier-2", "spine-2"), ("tier-1", "leaf-3"))
    assert tree.path("n9", {}) == ()


def test_hyper_nodes_that_make_no_sense_do_no_harm() -> None:
    circle = {
        "a": hyper_node("", 1, ("HyperNode", exact("b")), ("Node", exact("n1")))["spec"],
        "b": hyper_node("", 1, ("HyperNode", exact("a")), ("Node", {"regexMatch": {"pattern": "("}}))["spec"],
        "c": hyper_node("", 2, ("Node", {"labelMatch": {"matchExpressions": [{"key": "x", "operator": "?"}]}}))["spec"],
    }
    assert HyperNodes(circle).path("n1", {}) == (("tier-1", "a"),)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"levels": [{"level": "host", "label": "kubernetes.io/hostname"}]}, "always the narrowest level"),
        ({"levels": [{"level": "rack", "label": "a"}, {"level": "rack", "label": "b"}]}, "'rack' is given twice"),
        ({"grid": {"cpu": "0"}}, "must be more than 0"),
        ({"mostGroup": 5}, "Extra inputs"),
    ],
)
def test_mistakes_in_the_configuration_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CapacityConfig.model_validate(wrong)


def test_a_grid_keeps_what_it_does_not_name() -> None:
    assert CapacityConfig.model_validate({"grid": {"cpu": "1"}}).steps() == (
        {"cpu": 1000, "memory": 2**30, "ephemeral-storage": 2**30},
        1,
    )
