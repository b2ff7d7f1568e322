"""What dispatcher and agents have to agree on about a cluster: the same rule, asked from both sides."""

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import GPU, gang, nodes
from trainmaster.cluster_model.capabilities import WITHOUT_PODS, Capability
from trainmaster.cluster_model.device_products import PRODUCT_LABELS, product_label
from trainmaster.cluster_model.eligibility import pod_toleration
from trainmaster.cluster_model.gang_minimum import gang_minimum, split_minimum
from trainmaster.cluster_model.numa_policies import NumaPolicy, is_kept_by
from trainmaster.cluster_model.packing import Need, Node, PackingShortfall, place
from trainmaster.protocol.agent import HOST_LEVEL, CapacityReport, NodeGroup, Numa, StartRun, Taint
from trainmaster.protocol.jobs import AffinityTerm, JobSpec, Toleration, Topology
from trainmaster_agent.placement.port import Gang, GangRole
from trainmaster_agent.runtime.kubernetes.run_spec import facts_of
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape, shape_from, shape_of
from trainmaster_dispatcher.scheduling.packing.eligibility import allows
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, fit, size_choices

# The least members of a gang


def spec_of(roles: list[dict[str, Any]], **fields: Any) -> JobSpec:
    template = {"command": ["true"], "resources": {"cpu": "1"}}
    wire = {"kind": "Job", "name": "j", "queue": "q", "roles": [role | {"template": template} for role in roles]}
    return JobSpec.model_validate(wire | fields)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    roles = []
    for number in range(draw(st.integers(1, 4))):
        role: dict[str, Any] = {"name": f"r{number}", "replicas": draw(st.integers(1, 9))}
        if draw(st.booleans()):
            role["minReplicas"] = draw(st.integers(0, role["replicas"]))
        roles.append(role)
    fields = {"minMember": draw(st.integers(1, sum(role["replicas"] for role in roles)))} if draw(st.booleans()) else {}
    return spec_of(roles, **fields)


def gang_of(spec: JobSpec, sizes: dict[str, int]) -> Gang:
    """Return the gang that an agent makes of a run with these sizes."""
    numbers = {"attempt": 1, "token": 1, "generation": 1, "placementTimeoutSeconds": 1.0}
    start = StartRun.model_validate(
        {"run": "j-r1", "job": "j", "queue": "q", "spec": spec.to_wire(), "sizes": sizes, "pins": {}} | numbers
    )
    facts = facts_of(start)
    roles = tuple(GangRole(role.name, sizes[role.name], role.least, role.requests) for role in facts.roles.values())
    return Gang("j-r1", "default", "q", {}, {}, roles, facts.least)


@given(specs())
def test_an_agent_starts_a_gang_with_the_members_that_the_dispatcher_counted_on(spec: JobSpec) -> None:
    shape = shape_from(shape_of(spec))
    for size in size_choices(shape):
        counts = {role.name: count for role, count in gang_of(spec, size.members).quorum()}
        assert counts == size_choices(shape)[-1].members


@given(specs(), st.data())
def test_the_least_members_are_in_the_gang_and_enough(spec: JobSpec, data: st.DataObject) -> None:
    sizes = {role.name: data.draw(st.integers(0, role.replicas)) for role in spec.roles}
    least = gang_minimum(spec, sizes)
    counts = split_minimum([(name, sizes[name], least.roles[name]) for name in sizes], least.members)
    assert all(least.roles[name] <= counts[name] <= sizes[name] for name in sizes)
    assert sum(counts.values()) == min(sum(sizes.values()), max(least.members, sum(least.roles.values())))
    assert 1 <= least.members <= max(1, sum(sizes.values()))


SPLITS = {
    "in proportion": ([("server", 2, 1), ("worker", 8, 1)], 5, {"server": 1, "worker": 4}),
    "the larger remainder first": ([("a", 3, 1), ("b", 4, 1)], 4, {"a": 2, "b": 2}),
    "of equal remainders the first role's": ([("a", 3, 1), ("b", 3, 1)], 3, {"a": 2, "b": 1}),
    "what roles need comes first": ([("a", 4, 3), ("b", 4, 3)], 2, {"a": 3, "b": 3}),
    "no more than there are": ([("a", 2, 1), ("b", 1, 1)], 9, {"a": 2, "b": 1}),
}


@pytest.mark.parametrize(("roles", "members", "wanted"), SPLITS.values(), ids=SPLITS)
def test_the_least_members_are_split_over_roles(
    roles: list[tuple[str, int, int]], members: int, wanted: dict[str, int]
) -> None:
    assert split_minimum(roles, members) == wanted


# Names


def test_numa_policies_are_those_of_jobs_and_of_reports() -> None:
    for model, field in ((Topology, "numa"), (Numa, "policy")):
        assert get_args(model.model_fields[field].annotation) == tuple(policy.value for policy in NumaPolicy)


def test_a_node_keeps_a_policy_that_is_as_strict() -> None:
    kept = {
        (requested.value, node.value) for requested in NumaPolicy for node in NumaPolicy if is_kept_by(requested, node)
    }
    strict = {("restricted", "restricted"), ("restricted", "singleNode"), ("singleNode", "singleNode")}
    assert kept == strict | {(requested, node.value) for requested in ("none", "bestEffort") for node in NumaPolicy}


def test_capabilities_are_reported_by_their_names_alone() -> None:
    report = CapacityReport(groups=(), runtime="t", scheduler="t", capabilities=WITHOUT_PODS)
    data = report.model_dump(mode="json")["capabilities"]
    assert data == sorted(data) == [one.value for one in WITHOUT_PODS]
    assert all(Capability(name) for name in data)


def test_the_first_label_names_the_product() -> None:
    labels = {label: f"by {label}" for label in reversed(PRODUCT_LABELS)}
    assert product_label(labels) == "nvidia.com/gpu.product"
    assert product_label({"product": "x", "other": "y"}) == "product"
    assert product_label({"other": "y"}) == ""


def test_an_empty_field_of_a_pods_toleration_is_one_that_does_not_exist() -> None:
    assert pod_toleration({"operator": "Exists", "key": "", "effect": None}) == Toleration(operator="Exists")
    assert pod_toleration({"key": "gpu", "value": "", "tolerationSeconds": 3}) == Toleration(key="gpu")


# Nodes that members may be on

KEYS, VALUES = st.sampled_from(["disk", "zone"]), st.sampled_from(["a", "b", "3"])
LABELS = st.dictionaries(KEYS, VALUES)
TAINTS = st.lists(
    st.builds(
        Taint,
        key=KEYS,
        value=VALUES,
        effect=st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]),
    ),
    max_size=2,
).map(tuple)
TOLERATIONS = st.lists(
    st.builds(Toleration, key=KEYS, operator=st.just("Equal"), value=VALUES)
    | st.builds(Toleration, key=KEYS, operator=st.just("Exists"), effect=st.sampled_from(["", "NoSchedule"])),
    max_size=2,
).map(tuple)
TERMS = st.lists(
    st.builds(AffinityTerm, key=KEYS, operator=st.sampled_from(["In", "NotIn"]), values=st.tuples(VALUES))
    | st.builds(AffinityTerm, key=KEYS, operator=st.sampled_from(["Exists", "DoesNotExist"]))
    | st.builds(AffinityTerm, key=KEYS, operator=st.sampled_from(["Gt", "Lt"]), values=st.just(("2",))),
    max_size=2,
).map(tuple)


@given(LABELS, TAINTS, st.dictionaries(KEYS, VALUES, max_size=1), TERMS, TOLERATIONS)
def test_both_sides_let_a_member_on_the_same_nodes(
    labels: dict[str, str],
    taints: tuple[Taint, ...],
    selector: dict[str, str],
    terms: tuple[AffinityTerm, ...],
    tolerations: tuple[Toleration, ...],
) -> None:
    need = Need("r", 1, {"cpu": 1}, selector, terms, tolerations)
    node = Node("n", {"cpu": 1}, labels, taints)
    role = RoleShape("r", 1, 1, {"cpu": 1}, tuple(sorted(selector.items())), terms, tolerations)
    is_allowed = allows(role, NodeGroup(name="g", count=1, free={"cpu": 1}, labels=labels, taints=taints))
    assert need.suits(node) is is_allowed is (need.obstacle(node) is None)
    # By the words of Kubernetes' documentation, not by our code.
    hard = [taint for taint in taints if taint.effect in ("NoSchedule", "NoExecute")]
    assert is_allowed is (
        selector.items() <= labels.items()
        and all(term.holds(labels) for term in terms)
        and all(any(one.tolerates(t.key, t.value, t.effect) for one in tolerations) for t in hard)
    )


# Gangs on nodes

CORE = 1000


@st.composite
def roles(draw: st.DrawFn, name: str, exclusive: bool) -> RoleShape:
    needs = {"cpu": draw(st.integers(1, 5)) * CORE, "memory": draw(st.integers(0, 3)), GPU: draw(st.integers(0, 1))}
    replicas = draw(st.integers(1, 3))
    return RoleShape(
        name,
        replicas,
        replicas,
        {key: amount for key, amount in needs.items() if amount},
        node_selector=draw(st.sampled_from(((), (), (), (("disk", "ssd"),)))),
        tolerations=draw(st.sampled_from(((), (Toleration(key="gpu", operator="Exists"),)))),
        max_per_node=draw(st.sampled_from((None, None, 1, 2))),
        exclusive=exclusive,
    )


@st.composite
def gangs(draw: st.DrawFn, most_roles: int) -> Shape:
    exclusive = draw(st.sampled_from((False, False, True)))
    parts = tuple(draw(roles(f"r{number}", exclusive)) for number in range(draw(st.integers(1, most_roles))))
    level = draw(st.sampled_from((None, None, None, "rack", HOST_LEVEL)))
    return gang(*parts, required_level=level)


@st.composite
def node_groups(draw: st.DrawFn) -> list[NodeGroup]:
    return [
        nodes(
            draw(st.integers(1, 3)),
            f"g{number}",
            cpu=draw(st.integers(3, 14)),
            memory=draw(st.integers(2, 12)),
            gpu=draw(st.integers(0, 4)),
            at=(("zone", "z"), ("rack", draw(st.sampled_from("ab")))),
            labels=draw(st.sampled_from(({}, {"disk": "ssd"}))),
            taints=draw(st.sampled_from(((), (), (), (Taint(key="gpu"),)))),
            occupied=draw(st.sampled_from((False, False, True))),
        )
        for number in range(draw(st.integers(1, 4)))
    ]


def dispatcher_accepts(shape: Shape, groups: list[NodeGroup], *, in_order: bool) -> bool:
    """Return whether the dispatcher finds capacity for the gang. ``in_order``: in free capacity whose nodes are kept in order."""
    free = FreeCapacity.empty(CapacityReport(groups=tuple(groups), runtime="t", scheduler="t"))
    if in_order:
        free.rank()
    return isinstance(fit(shape, {role.name: role.replicas for role in shape.roles}, free), Fitted)


def nodes_of(groups: list[NodeGroup]) -> list[Node]:
    """Return each node of the groups, in their order."""
    return [
        Node(
            f"{group.name}-{number}",
            group.free,
            group.labels,
            group.taints,
            group.topology,
            is_occupied=group.occupied,
        )
        for group in groups
        for number in range(group.count)
    ]


def needs_of(shape: Shape) -> list[Need]:
    return [
        Need(
            role.name,
            role.replicas,
            role.needs,
            dict(role.node_selector),
            role.affinity,
            role.tolerations,
            role.max_per_node,
            exclusive=role.exclusive,
        )
        for role in shape.roles
    ]


@given(gangs(1), node_groups(), st.booleans(), st.data())
def test_nodes_take_a_gang_of_one_role_that_the_dispatcher_found_room_for_also_where_they_have_more(
    shape: Shape, groups: list[NodeGroup], in_order: bool, data: st.DataObject
) -> None:
    """Reported amounts are rounded down, and agents know their nodes in another order."""
    if not dispatcher_accepts(shape, groups, in_order=in_order):
        return
    there = data.draw(st.permutations(nodes_of(groups)))
    free = {
        node.name: {name: amount + data.draw(st.integers(0, 2)) * 500 for name, amount in node.allocatable.items()}
        for node in there
    }
    assert not isinstance(place(there, free, needs_of(shape), shape.required_level), PackingShortfall)


@given(gangs(5), node_groups(), st.booleans())
def test_nodes_take_every_gang_that_the_dispatcher_found_room_for_where_they_are_as_reported(
    shape: Shape, groups: list[NodeGroup], in_order: bool
) -> None:
    if not dispatcher_accepts(shape, groups, in_order=in_order):
        return
    there = nodes_of(groups)
    free = {node.name: node.allocatable for node in there}
    found = place(there, free, needs_of(shape), shape.required_level)
    assert not isinstance(found, PackingShortfall)
    # A real packing, and all of it.
    for node in there:
        taken = found.get(node.name, {})
        for name, amount in node.allocatable.items():
            assert sum(role.needs.get(name, 0) * taken.get(role.name, 0) for role in shape.roles) <= amount
        if shape.roles[0].exclusive and taken:
            assert sum(taken.values()) == 1
            assert not node.is_occupied
    for role in shape.roles:
        assert sum(taken.get(role.name, 0) for taken in found.values()) == role.replicas


def test_other_orders_of_roles_are_tried_on_nodes_as_by_the_dispatcher() -> None:
    """Largest member first puts ``b`` where only ``a`` could be; with ``a`` first both find place."""
    there = nodes_of([nodes(1, "ssd", cpu=4, labels={"disk": "ssd"}), nodes(1, "plain", cpu=5)])
    needs = [Need("a", 1, {"cpu": 3 * CORE}, {"disk": "ssd"}), Need("b", 1, {"cpu": 4 * CORE})]
    assert place(there, {node.name: node.allocatable for node in there}, needs) == {
        "ssd-0": {"a": 1},
        "plain-0": {"b": 1},
    }
