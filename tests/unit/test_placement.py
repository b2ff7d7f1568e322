"""Gang placement on pretend nodes."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.cluster_model.packing import Assignment, Need, Node, PackingShortfall, place
from trainmaster.protocol.agent import HOST_LEVEL, Taint
from trainmaster.protocol.jobs import AffinityTerm, Toleration
from trainmaster.protocol.quantities import Resources

GPU = "nvidia.com/gpu"


def node(name: str, cpu: int = 4, *, gpu: int = 0, rack: str = "", zone: str = "a", **labels: str) -> Node:
    resources = {"cpu": cpu * 1000, **({GPU: gpu} if gpu else {})}
    topology = (("zone", zone), ("rack", rack)) if rack else ()
    return Node(name, resources, labels, (), topology)


def tainted(name: str, effect: str = "NoSchedule") -> Node:
    return Node(name, {"cpu": 4000}, {}, (Taint(key="only", value="gpu", effect=effect),))


def need(count: int = 1, cpu: int = 1, role: str = "worker", *, gpu: int = 0, **more: object) -> Need:
    resources = {"cpu": cpu * 1000, **({GPU: gpu} if gpu else {})}
    return Need(role, count, resources, **more)  # type: ignore[arg-type]


def put(nodes: list[Node], *needs: Need, free: dict[str, Resources] | None = None, level: str | None = None) -> object:
    found = place(nodes, free or {one.name: one.allocatable for one in nodes}, needs, level)
    return found.sentence if isinstance(found, PackingShortfall) else found


FITS: dict[str, tuple[list[Node], list[Need], str | None, Assignment]] = {
    "the tightest node is filled first": (
        [node("large", 8), node("small", 2)],
        [need(2)],
        None,
        {"small": {"worker": 2}},
    ),
    "the largest members are placed first": (
        [node("a", 4), node("b", 2)],
        [need(2, 1, "small"), need(1, 4, "big")],
        None,
        {"a": {"big": 1}, "b": {"small": 2}},
    ),
    "a gang spreads over nodes": ([node("a"), node("b")], [need(6)], None, {"a": {"worker": 4}, "b": {"worker": 2}}),
    "nodes with devices are left to those who need them": (
        [node("gpu", 4, gpu=8), node("plain", 16)],
        [need(1, 1)],
        None,
        {"plain": {"worker": 1}},
    ),
    "members that need nothing fit anywhere": ([node("a")], [Need("worker", 9, {})], None, {"a": {"worker": 9}}),
    "a role without members needs no place": ([node("a")], [need(0, 99)], None, {}),
    "a label is selected": (
        [node("a"), node("b", disk="ssd")],
        [need(node_selector={"disk": "ssd"})],
        None,
        {"b": {"worker": 1}},
    ),
    "one rack holds all members": (
        [node("a1", rack="r1"), node("b1", rack="r2"), node("b2", rack="r2")],
        [need(8)],
        "rack",
        {"b1": {"worker": 4}, "b2": {"worker": 4}},
    ),
    "the rack with least room that suffices is taken": (
        [node("a1", 8, rack="r1"), node("b1", 4, rack="r2")],
        [need(3)],
        "rack",
        {"b1": {"worker": 3}},
    ),
    "no more members on a node than may be": (
        [node("a", 8), node("b", 8), node("c", 8)],
        [need(3, max_per_node=1), need(4, 1, "pair", max_per_node=2)],
        None,
        {"a": {"worker": 1, "pair": 2}, "b": {"worker": 1, "pair": 2}, "c": {"worker": 1}},
    ),
    "the host is a topology level": ([node("a", 2), node("b", 4)], [need(3)], HOST_LEVEL, {"b": {"worker": 3}}),
}


@pytest.mark.parametrize("case", FITS)
def test_gangs_that_fit(case: str) -> None:
    nodes, needs, level, expected = FITS[case]
    assert put(nodes, *needs, level=level) == expected


SHORTFALLS: dict[str, tuple[list[Node], list[Need], str | None, str]] = {
    "a member larger than any node": (
        [node("a"), node("b", 2)],
        [need(1, 5)],
        None,
        "role worker needs 5 CPU on one node, the largest node has 4",
    ),
    "a device that no node has": (
        [node("a")],
        [need(1, 1, gpu=1)],
        None,
        "role worker needs 1 nvidia.com/gpu on one node, the largest node has 0",
    ),
    "too many members": (
        [node("a"), node("b")],
        [need(5, 2)],
        None,
        "role worker needs room for 5 members of cpu 2 each, there is room for 4",
    ),
    "too few nodes for members apart": (
        [node("a"), node("b")],
        [need(3, max_per_node=1)],
        None,
        "role worker needs room for 3 members of cpu 1 each, at most 1 on a node, there is room for 2",
    ),
    "no node at all": ([], [need()], None, "no node may take role worker: there is no node"),
    "a label that no node has": (
        [node("a")],
        [need(node_selector={"disk": "ssd"})],
        None,
        "no node may take role worker: a label disk=ssd is needed",
    ),
    "a taint that is not tolerated": (
        [tainted("a")],
        [need()],
        None,
        "no node may take role worker: taint only=gpu:NoSchedule is not tolerated",
    ),
    "no rack is large enough, and racks of the same name in two zones are two": (
        [node("a", rack="r1"), node("b", rack="r1", zone="b")],
        [need(5)],
        "rack",
        "no rack has room for all members; in b/r1, which is the emptiest, "
        "role worker needs room for 5 members of cpu 1 each, there is room for 4",
    ),
    "no node says where it is": (
        [node("a")],
        [need()],
        "rack",
        "all members must share one rack, and no node has a label for its rack",
    ),
}


@pytest.mark.parametrize("case", SHORTFALLS)
def test_gangs_that_do_not_fit(case: str) -> None:
    nodes, needs, level, expected = SHORTFALLS[case]
    assert put(nodes, *needs, level=level) == expected


def test_what_others_use_now_is_told_apart_from_what_the_nodes_have() -> None:
    sentence = put([node("a")], need(1, 3), free={"a": {"cpu": 2000}})
    assert sentence == "role worker needs 3 CPU on one node, the freest node has 2"


@pytest.mark.parametrize(
    ("toleration", "allowed"),
    [
        (Toleration(key="only", value="gpu"), True),
        (Toleration(key="only", value="gpu", effect="NoSchedule"), True),
        (Toleration(key="only", value="gpu", effect="NoExecute"), False),
        (Toleration(key="only", value="cpu"), False),
        (Toleration(key="only", operator="Exists"), True),
        (Toleration(operator="Exists"), True),
        (Toleration(key="other", operator="Exists"), False),
    ],
)
def test_tolerations_are_those_of_kubernetes(toleration: Toleration, allowed: bool) -> None:
    found = put([tainted("a")], need(tolerations=(toleration,)))
    assert (found == {"a": {"worker": 1}}) is allowed


def test_a_node_to_be_avoided_is_used_last() -> None:
    nodes = [tainted("avoided", "PreferNoSchedule"), node("b", 8)]
    assert put(nodes, need(1)) == {"b": {"worker": 1}}
    assert put(nodes[:1], need(1)) == {"avoided": {"worker": 1}}


@pytest.mark.parametrize(
    ("operator", "values", "names"),
    [
        ("In", ("a", "b"), {"a", "b"}),
        ("NotIn", ("a",), {"b", "none", "7"}),
        ("Exists", (), {"a", "b", "7"}),
        ("DoesNotExist", (), {"none"}),
        ("Gt", ("6",), {"7"}),
        ("Lt", ("8",), {"7"}),
        ("Lt", ("7",), set()),
    ],
)
def test_affinity_terms_are_those_of_kubernetes(operator: str, values: tuple[str, ...], names: set[str]) -> None:
    nodes = [node("none"), *(node(value, kind=value) for value in ("a", "b", "7"))]
    term = AffinityTerm(key="kind", operator=operator, values=values)
    found = {one.name for one in nodes if need(node_affinity=(term,)).obstacle(one) is None}
    assert found == names


amounts = st.integers(0, 4)
small_nodes = st.lists(st.tuples(amounts, amounts), min_size=1, max_size=3)
small_needs = st.lists(st.tuples(st.integers(1, 3), amounts, amounts), min_size=1, max_size=2)


def exists(free_amounts: list[tuple[int, int]], members: list[tuple[int, int]]) -> bool:
    """Return whether any packing exists, by trying all."""
    for assignment in product(range(len(free_amounts)), repeat=len(members)):
        left = [list(space) for space in free_amounts]
        for index, (one, two) in zip(assignment, members, strict=True):
            left[index][0] -= one
            left[index][1] -= two
        if all(amount >= 0 for space in left for amount in space):
            return True
    return False


@settings(max_examples=200, deadline=None)
@given(small_nodes, small_needs)
def test_what_is_said_to_fit_does_fit(free_amounts: list[tuple[int, int]], gang: list[tuple[int, int, int]]) -> None:
    nodes = [Node(f"n{number}", {"cpu": one, GPU: two}) for number, (one, two) in enumerate(free_amounts)]
    needs = [Need(f"r{number}", count, {"cpu": one, GPU: two}) for number, (count, one, two) in enumerate(gang)]
    free = {one.name: dict(one.allocatable) for one in nodes}
    found = place(nodes, free, needs)
    members = [(one, two) for count, one, two in gang for _ in range(count)]
    possible = exists(free_amounts, members)
    assert free == {one.name: one.allocatable for one in nodes}, "what is given is not changed"
    if isinstance(found, PackingShortfall):
        assert found.sentence
        assert not possible or len(gang) > 1, "identical members are packed whenever they can be"
        return
    assert possible
    for one in needs:
        assert sum(roles.get(one.role, 0) for roles in found.values()) == one.count
    for one_node in nodes:
        for name, amount in one_node.allocatable.items():
            taken = found.get(one_node.name, {})
            assert sum(taken.get(one.role, 0) * one.resources[name] for one in needs) <= amount
