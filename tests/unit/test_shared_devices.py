"""Devices that members share by one claim: what is a mistake, and the members that share as one unit of the scheduler."""

import json
from itertools import product
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.building import NOW, StateBuilder, gang, nodes, role
from tests.unit.simulation_building import cluster, group, order, state, stop
from tests.unit.simulation_building import role as simulated_role
from tests.unit.test_capacity_inventory import inventory, node
from tests.unit.test_kubernetes_manifests import RUN
from tests.unit.whatif_building import declared, machine, ran
from trainmaster.cluster_model.capabilities import Capability
from trainmaster.cluster_model.packing import PackingShortfall
from trainmaster.protocol.agent import CapacityReport, NodeGroup, StartRun
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.states import ClusterKind, RunState
from trainmaster.protocol.tenants import ClusterSpec
from trainmaster.protocol.validation_errors import mistakes_of
from trainmaster_agent.capacity.inventory import Inventory
from trainmaster_agent.member_env import processes_per_member
from trainmaster_agent.runtime.kubernetes.node_capacity import NodeCapacity
from trainmaster_agent.runtime.kubernetes.node_plan import divide
from trainmaster_agent.runtime.kubernetes.run_spec import facts_of
from trainmaster_dispatcher.domain.member_use import RequestedAmounts, requested_by_role, requested_of
from trainmaster_dispatcher.domain.shapes import (
    RoleShape,
    Shape,
    count_members,
    count_units,
    shape_bytes,
    shape_from,
    shape_of,
)
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, Shortfall, fit, size_choices, take
from trainmaster_dispatcher.scheduling.packing.node_layout import NodeLayout
from trainmaster_dispatcher.scheduling.state.from_specs import unreadable_shape
from trainmaster_dispatcher.scheduling.state.member_nodes import MemberNodes, NodeMembers, RunOnNodes
from trainmaster_dispatcher.whatif.figures import figures_of
from trainmaster_dispatcher.whatif.trace import Trace, TraceJob

GPU = "deviceclass.resource.kubernetes.io/gpu"
SHARED = {"name": "gpu", "class": "gpu", "sharedBy": 2}


def spec(replicas: int = 4, *devices: dict[str, Any], **fields: Any) -> JobSpec:
    """Return a job of one role; ``fields``: of the role, except ``job``, those of the job."""
    of_job = fields.pop("job", {})
    template = {
        "image": "train:1",
        "command": ["train"],
        "resources": {"cpu": "1"},
        "devices": list(devices or [SHARED]),
        **fields.pop("template", {}),
    }
    roles = [{"name": "worker", "replicas": replicas, "template": template, **fields}]
    return JobSpec.model_validate({"name": "bert", "queue": "q", "roles": roles, **of_job})


def shape(replicas: int = 4, *devices: dict[str, Any], **fields: Any) -> Shape:
    return shape_from(json.loads(shape_bytes(spec(replicas, *devices, **fields))[0]))


def pair(size: int, *, cpu: int = 1, gpus: int = 1, many: int = 2) -> RoleShape:
    """Return a role of ``size`` units of ``many`` members with a core each."""
    needs = {"cpu": cpu * 1000 * many, GPU: gpus}
    return RoleShape("worker", size, size, needs, members_per_unit=many)


class TestMistakes:
    @pytest.mark.parametrize(
        ("replicas", "fields", "path", "words"),
        [
            (3, {}, "roles[0]", "replicas is a multiple of it, not 3"),
            (4, {"minReplicas": 2}, "roles[0]", "minReplicas 2 has to be left out"),
            (4, {"maxPerNode": 1}, "roles[0]", "maxPerNode is a multiple of sharedBy 2, not 1"),
            (4, {"maxPerNode": 3}, "roles[0]", "maxPerNode is a multiple of sharedBy 2, not 3"),
            (4, {"template": {"gpu": {"fraction": "0.5"}}}, "roles[0].template", "gpu, a part of one GPU"),
            (4, {"job": {"minMember": 2}}, "", "sharedBy cannot be combined with minMember"),
            (4, {"job": {"topology": {"exclusive": "node"}}}, "", "combined with topology.exclusive"),
            (4, {"job": {"topology": {"numa": "restricted"}}}, "", "combined with topology.numa restricted"),
            (4, {"job": {"topology": {"numa": "singleNode"}}}, "", "combined with topology.numa singleNode"),
            (4, {"job": {"placement": {"emulatedGang": False}}}, "", "combined with placement.emulatedGang false"),
        ],
    )
    def test_what_contradicts_a_shared_claim_is_named(
        self, replicas: int, fields: dict[str, Any], path: str, words: str
    ) -> None:
        with pytest.raises(ValidationError) as caught:
            spec(replicas, **fields)
        (mistake,) = mistakes_of(caught.value)
        assert mistake.path == path
        assert words in mistake.message

    def test_elastic_jobs_share_nothing(self) -> None:
        other = {"name": "other", "replicas": 2, "minReplicas": 1, "template": {"image": "a", "command": ["b"]}}
        roles = [*spec().to_wire()["roles"], other]
        with pytest.raises(ValidationError, match="sharedBy cannot be combined with elastic"):
            JobSpec.model_validate({"name": "bert", "queue": "q", "roles": roles, "elastic": {}})

    @pytest.mark.parametrize("many", [1, 0, 257])
    def test_a_claim_has_two_to_256_pods(self, many: int) -> None:
        with pytest.raises(ValidationError) as caught:
            spec(many or 1, {**SHARED, "sharedBy": many})
        assert {one.path for one in mistakes_of(caught.value)} == {"roles[0].template.devices[0].sharedBy"}

    def test_one_claim_is_shared_as_a_whole(self) -> None:
        with pytest.raises(ValidationError) as caught:
            spec(4, SHARED, {"name": "nic", "class": "nic"})
        (mistake,) = mistakes_of(caught.value)
        assert mistake.path == "roles[0].template.devices"
        assert "have the same sharedBy" in mistake.message

    def test_all_other_fields_go_with_it(self) -> None:
        job = spec(4, SHARED, {"name": "nic", "class": "nic", "sharedBy": 2}, minReplicas=4, maxPerNode=2)
        assert JobSpec.model_validate(job.to_wire()) == job
        restarts = {
            "memberFailure": {"action": "restartMember"},
            "topology": {"required": "rack", "numa": "bestEffort"},
        }
        assert spec(4, job=restarts).members == 4


class TestAmounts:
    def test_devices_are_counted_once_for_all_that_share_them(self) -> None:
        job = spec(4, SHARED, {"name": "more", "class": "gpu", "count": 2, "sharedBy": 2})
        (of_job,) = job.roles
        assert (of_job.amounts, of_job.unit_amounts) == ({"cpu": 1000, GPU: 3}, {"cpu": 2000, GPU: 3})
        assert shape_from(shape_of(job)).total == {"cpu": 4000, GPU: 6}

    def test_the_shape_counts_units_and_knows_the_members(self) -> None:
        found = shape(6, {**SHARED, "sharedBy": 3}, maxPerNode=3)
        (only,) = found.roles
        assert (only.replicas, only.least, only.max_per_node, only.members_per_unit) == (2, 2, 1, 3)
        assert (only.needs, found.least_members, found.members) == ({"cpu": 3000, GPU: 1}, 2, 6)
        assert found.members_per_unit == {"worker": 3}
        assert found.capabilities == ("devices", "gang", "maxPerNode", "sharedDevices")

    def test_jobs_without_shared_devices_have_the_shape_that_they_had(self) -> None:
        assert "membersPerUnit" not in shape_of(spec(4, {"name": "gpu", "class": "gpu"}))["roles"][0]
        assert shape(4, {"name": "gpu", "class": "gpu"}).capabilities == ("devices", "gang")

    def test_another_number_of_sharers_is_another_shape(self) -> None:
        bodies = {shape_bytes(spec(8, {**SHARED, "sharedBy": many})) for many in (2, 4, 8)}
        assert len(bodies) == 3

    @given(
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)),
        st.dictionaries(st.sampled_from("ab"), st.integers(1, 4)),
    )
    def test_units_have_all_their_members(self, units: dict[str, int], each: dict[str, int]) -> None:
        members = count_members(units, each)
        assert count_units(members, each) == units
        assert count_units({role: max(0, many - 1) for role, many in members.items()}, each) == {
            role: many - (each.get(role, 1) == 1 and many > 0) for role, many in units.items()
        }

    def test_a_shape_that_cannot_be_read_counts_what_is_known(self) -> None:
        found = unreadable_shape(shape_of(spec(6, {**SHARED, "sharedBy": 3})), "broken")
        (only,) = found.roles
        assert (only.replicas, only.needs, only.members_per_unit) == (2, {"cpu": 3000, GPU: 1}, 3)

    def test_gpus_that_members_share_are_requested_once(self) -> None:
        each = requested_by_role(shape_of(spec(4)))
        assert requested_of(each, {"worker": 4}) == RequestedAmounts(cpu=4000, gpu=2)
        assert requested_of(each, {"worker": 3}) == RequestedAmounts(cpu=3000, gpu=2)

    def test_a_launcher_starts_one_process_in_each_member_that_shares(self) -> None:
        assert processes_per_member(spec(4, {**SHARED, "count": 4})) == {"worker": 1}
        assert processes_per_member(spec(4, {"name": "gpu", "class": "gpu", "count": 4})) == {"worker": 4}


def free_of(*groups: NodeGroup) -> FreeCapacity:
    return FreeCapacity.empty(CapacityReport(groups=groups, runtime="kubernetes", scheduler="default"))


def fitted(of: Shape, free: FreeCapacity) -> Fitted | Shortfall:
    return fit(of, size_choices(of)[0].members, free)


def devices(count: int, name: str = "nodes", *, cpu: int = 8, gpus: int = 1) -> NodeGroup:
    return NodeGroup(name=name, count=count, free={"cpu": cpu * 1000, GPU: gpus})


class TestFit:
    def test_members_that_share_have_one_node(self) -> None:
        free = free_of(devices(2, cpu=3, gpus=1))
        outcome = fitted(gang(pair(2)), free)
        assert isinstance(outcome, Fitted)
        take(free, outcome)
        assert (outcome.placement, free.total()) == ({"nodes": {"worker": 2}}, {"cpu": 2000, GPU: 0})

    def test_a_node_with_the_device_needs_enough_for_all_of_them(self) -> None:
        outcome = fitted(gang(pair(1)), free_of(devices(2, cpu=1, gpus=8)))
        assert isinstance(outcome, Shortfall)
        assert outcome.sentence == "needs 2 cpu on one node for 2 members that share devices, the best node has 1"

    def test_the_words_count_members(self) -> None:
        outcome = fitted(gang(pair(3)), free_of(devices(2)))
        assert isinstance(outcome, Shortfall)
        assert outcome.sentence == "room for 4 of the 6 members of role 'worker', 2 that share devices on one node"

    def test_another_role_is_placed_beside_them(self) -> None:
        both = gang(pair(2), role(3, "loader", cpu=1))
        assert isinstance(fitted(both, free_of(devices(2, cpu=3), nodes(1, "plain", cpu=1))), Fitted)
        assert isinstance(fitted(both, free_of(devices(2, cpu=3))), Shortfall)

    @given(
        many=st.integers(2, 3),
        units=st.integers(1, 2),
        cpu=st.integers(0, 2),
        gpus=st.integers(1, 2),
        offered=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=3),
        loaders=st.integers(0, 1),
    )
    def test_it_fits_where_each_member_finds_a_node_with_its_claim(
        self, many: int, units: int, cpu: int, gpus: int, offered: list[tuple[int, int]], loaders: int
    ) -> None:
        groups = [devices(1, f"n{place}", cpu=cores, gpus=free) for place, (cores, free) in enumerate(offered)]
        roles = [pair(units, cpu=cpu, gpus=gpus, many=many), *([role(1, "loader", cpu=1)] if loaders else [])]
        outcome = fitted(gang(*roles), free_of(*groups))

        def is_possible(members: tuple[int, ...]) -> bool:
            own, loader = members[: units * many], members[units * many :]
            claims: dict[int, int] = {}
            for index, place in enumerate(own):
                if claims.setdefault(index // many, place) != place:
                    return False
            for place, (cores, free) in enumerate(offered):
                if own.count(place) * cpu + loader.count(place) > cores:
                    return False
                if gpus * sum(1 for one in claims.values() if one == place) > free:
                    return False
            return True

        places = product(range(len(offered)), repeat=units * many + loaders)
        assert isinstance(outcome, Fitted) == any(map(is_possible, places))
        if isinstance(outcome, Fitted):
            assert sum(of.get("worker", 0) for of in outcome.placement.values()) == units


class TestScheduling:
    def started(self, builder: StateBuilder) -> list[str]:
        return builder.cycle().started

    def test_quota_counts_the_devices_once_and_starts_count_members(self) -> None:
        builder = StateBuilder().queue("few", limits={GPU: 2})
        builder.cluster("north", devices(4, cpu=8, gpus=4))
        builder.job("first", gang(pair(2)), queue="few").job("second", gang(pair(1)), queue="few")
        outcome = builder.cycle()
        assert outcome.started == ["first"]
        start = outcome.start("first")
        assert (start.sizes, start.members) == ({"worker": 2}, {"worker": 4})
        assert start.member_placement == {"nodes": {"worker": 4}}
        assert f"uses 2 of its 2 {GPU}; this job needs 1 more" in outcome.reason("second").sentence

    def test_a_row_of_equivalent_jobs_counts_members_as_well(self) -> None:
        builder = StateBuilder().cluster("north", devices(4, cpu=8, gpus=1))
        builder.jobs(3, "pair", gang(pair(1)))
        outcome = builder.cycle()
        assert [start.members for start in outcome.plan.starts] == [{"worker": 2}] * 3
        assert [start.member_placement for start in outcome.plan.starts] == [{"nodes": {"worker": 2}}] * 3

    def test_capacity_is_released_as_it_was_taken(self) -> None:
        builder = StateBuilder().cluster("north", devices(1, cpu=4, gpus=2))
        builder.job("first", gang(pair(2))).job("second", gang(pair(2)))
        first = builder.cycle()
        assert first.started == ["first"]
        for start in first.plan.starts:
            builder.state.put_run(start.run(NOW))
        assert self.started(builder) == []
        builder.completed("first")
        assert self.started(builder) == ["second"]

    def test_nodes_of_members_are_those_of_units(self) -> None:
        builder = StateBuilder().cluster("north", devices(2, cpu=4, gpus=2))
        builder.job("first", gang(pair(2)))
        (start,) = builder.cycle().plan.starts
        builder.state.put_run(start.run(NOW))
        on = tuple(NodeMembers("nodes", f"node-{place}", "worker", 2) for place in range(2))
        reported = MemberNodes(NOW, {start.job.id: RunOnNodes(1, on)})
        key = start.cluster_id
        layout = NodeLayout(builder.engine.index.layouts, key, builder.state.load[key], reported)
        assert list(layout.nodes_of(start.job.id)) == [("nodes", "node-0"), ("nodes", "node-1")]
        assert sorted((one.free["cpu"], one.free[GPU], one.count) for one in layout.entries("nodes")) == [(2000, 1, 2)]


def ledger(*offered: tuple[str, int, int]) -> Inventory:
    """Return a ledger of nodes with a name, cores and devices."""
    return inventory(*(node(name, allocatable={"cpu": str(cpu), GPU: str(gpus)}) for name, cpu, gpus in offered))


class TestNodesOfMembers:
    PODS: ClassVar[dict[str, dict[str, object]]] = {"worker": {}}

    def found(self, made: Inventory, replicas: int = 4, sizes: int | None = None) -> dict[str, dict[str, int]] | str:
        facts = facts_of(self.start(replicas))
        capacity = NodeCapacity(made)
        outcome = capacity.find(RUN, facts, {"worker": sizes or replicas}, self.PODS, None)
        return outcome.sentence if isinstance(outcome, PackingShortfall) else outcome

    def start(self, replicas: int) -> StartRun:
        return StartRun(
            run=RUN,
            job=RUN.removesuffix("-r1"),
            queue="q",
            attempt=1,
            token=1,
            generation=1,
            spec=spec(replicas).to_wire(),
            sizes={"worker": replicas},
            placement_timeout_seconds=300,
        )

    def test_pairs_are_planned_on_one_node(self) -> None:
        assert self.found(ledger(("a", 3, 1), ("b", 3, 1))) == {"a": {"worker": 2}, "b": {"worker": 2}}
        assert self.found(ledger(("a", 1, 9), ("b", 4, 2))) == {"b": {"worker": 4}}

    def test_members_next_to_each_other_have_the_same_node(self) -> None:
        places = self.found(ledger(("a", 3, 1), ("b", 5, 2)), 6)
        assert isinstance(places, dict)
        nodes_of = divide([("worker", index) for index in range(6)], places)
        assert [nodes_of["worker", index] for index in (0, 2, 4)] == [nodes_of["worker", index] for index in (1, 3, 5)]

    def test_the_words_are_about_members(self) -> None:
        found = self.found(ledger(("a", 3, 1)))
        assert isinstance(found, str)
        assert "needs room for 2 times 2 members that share devices" in found

    def test_a_member_that_starts_again_needs_no_device_of_its_own(self) -> None:
        assert self.found(ledger(("a", 1, 0)), 4, 1) == {"a": {"worker": 1}}

    def test_what_is_reserved_counts_the_devices_once(self) -> None:
        made = ledger(("a", 8, 2))
        capacity, facts = NodeCapacity(made), facts_of(self.start(2))
        capacity.keep("other-r1", facts, {"a": {"worker": 2}})
        assert capacity.find(RUN, facts, {"worker": 2}, self.PODS, None) == {"a": {"worker": 2}}
        capacity.keep("third-r1", facts, {"a": {"worker": 2}})
        assert isinstance(capacity.find(RUN, facts, {"worker": 2}, self.PODS, None), PackingShortfall)

    def test_no_node_could_ever_take_a_pair(self) -> None:
        facts = facts_of(self.start(2))
        assert "1" in str(NodeCapacity(ledger(("a", 1, 1))).never(facts, self.PODS))
        assert NodeCapacity(ledger(("a", 2, 1))).never(facts, self.PODS) is None


class TestSimulatedClusters:
    def test_they_count_shared_devices_once(self) -> None:
        made = cluster(group(resources={"cpu": "4", GPU: "1"}))
        assert Capability.SHARED_DEVICES in made.report().capabilities
        shared = simulated_role(replicas=4, devices=[SHARED])
        made.start(order("a", shared), 0.0)
        made.start(order("b", simulated_role(replicas=2, devices=[SHARED])), 0.0)
        assert (state(made, "a"), state(made, "b")) == (RunState.RUNNING, RunState.PENDING)
        made.stop(stop("a", grace=0.0), 1.0)
        made.advance(2.0)
        assert state(made, "b") is RunState.RUNNING

    def test_a_simulation_starts_charges_and_uses_members_and_their_shared_devices(self) -> None:
        book = PriceBookSpec.model_validate({"name": "book", "onDemand": {"cpu": 3.6, "devices": {GPU: 36}}})
        priced = ClusterSpec(name="cloud", cluster_kind=ClusterKind.PUBLIC, price_book="book")
        machines = machine(2, "cloud", cpu="4", kind="public", more={GPU: "1"})
        fields = {"job": {"queue": "main", "labels": {"sim.trainmaster.dev/run-time": "100s"}}}
        jobs = tuple(TraceJob(number, 0.0, 100.0, spec(4, **fields)) for number in (1, 2))
        outcome = ran(Trace("jobs", jobs), machines, of=declared(clusters=[priced], books=[book]))
        assert [record.first_start for record in outcome.records] == [0, 100]
        figures = figures_of(outcome)
        # Twice 4 members with a core each and two devices for 100 s.
        assert figures.cost == pytest.approx(2 * 100 * (4 * 0.001 + 2 * 0.01))
        assert figures.clusters[0].used == {"cpu": 0.5, GPU: 1.0}
