"""NUMA zones in the fit: what is said to fit finds its zones, and what does not is told by the zone that comes nearest."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import GPU, StateBuilder, amounts, gang, nodes, role
from trainmaster.cluster_model.numa_policies import STRICT_NUMA
from trainmaster.protocol.agent import CapacityReport, NodeGroup, Numa
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.reasons import Check
from trainmaster_dispatcher.domain.shapes import Shape, shape_from, shape_of
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, Shortfall, fit, fit_many, size_choices, take
from trainmaster_dispatcher.scheduling.packing.numa import after, holds, names_of, spread, zone_request, zones_of


def zoned(
    count: int = 1, name: str = "nodes", *, policy: str = "singleNode", zones: list[dict[str, int]], **more: Any
) -> NodeGroup:
    """Return a group of nodes with these NUMA zones, each of which has free the sum of its zones."""
    each = [amounts(**zone) for zone in zones]
    total: Resources = {}
    for zone in each:
        for resource, amount in zone.items():
            total[resource] = total.get(resource, 0) + amount
    group = nodes(count, name, **more)
    return group.model_copy(update={"free": total, "numa": Numa(policy=policy, zones=tuple(each))})


def bound(size: int = 1, numa: str = "singleNode", name: str = "worker", **needs: Any) -> Shape:
    return gang(role(size, name, numa=numa, **needs))


def room_of(*groups: NodeGroup) -> FreeCapacity:
    return FreeCapacity.empty(CapacityReport(groups=groups, runtime="kubernetes", scheduler="default"))


def fitted(shape: Shape, free: FreeCapacity) -> Fitted | Shortfall:
    return fit(shape, size_choices(shape)[0].members, free)


def sentence(shape: Shape, *groups: NodeGroup) -> str:
    outcome = fitted(shape, room_of(*groups))
    assert isinstance(outcome, Shortfall)
    return outcome.sentence


TWO_HALVES = [{"cpu": 8, "gpu": 4}, {"cpu": 8, "gpu": 4}]


class TestZones:
    def test_zones_are_sorted_with_devices_first(self) -> None:
        group = zoned(zones=[{"cpu": 8, "gpu": 4}, {"cpu": 16, "gpu": 2}])
        assert names_of(group) == (GPU, "cpu")
        assert zones_of(group) == ((2, 16_000), (4, 8_000))

    def test_a_member_takes_the_zone_that_it_leaves_fullest(self) -> None:
        group = zoned(zones=[{"cpu": 8, "gpu": 4}, {"cpu": 8, "gpu": 2}])
        request = zone_request(group, amounts(cpu=2, gpu=2), "singleNode")
        assert request is not None
        assert after(zones_of(group), request, 1) == ((0, 6_000), (4, 8_000))

    @pytest.mark.parametrize(("gpus", "many"), [(4, 2), (3, 2), (2, 4), (1, 8)])
    def test_how_many_members_find_a_zone(self, gpus: int, many: int) -> None:
        group = zoned(zones=[{"cpu": 16, "gpu": 4}, {"cpu": 16, "gpu": 4}])
        request = zone_request(group, amounts(cpu=1, gpu=gpus), "singleNode")
        assert request is not None
        assert holds(zones_of(group), request, 100) == many

    def test_restricted_asks_for_as_many_zones_as_an_empty_node_would_need(self) -> None:
        group = zoned(zones=TWO_HALVES)
        whole, half = (
            zone_request(group, amounts(gpu=8), "restricted"),
            zone_request(group, amounts(gpu=4), "restricted"),
        )
        assert whole is not None
        assert half is not None
        assert (whole.most, half.most) == (2, 1)
        assert zone_request(group, amounts(gpu=9), "restricted") is None

    def test_who_asks_for_nothing_takes_of_the_emptiest_first(self) -> None:
        group = zoned(zones=[{"cpu": 8}, {"cpu": 4}])
        assert spread(group, zones_of(group), amounts(cpu=2), 3) == ((0,), (6_000,))


class TestFit:
    def test_a_member_needs_one_zone_though_the_node_has_enough(self) -> None:
        group = zoned(zones=TWO_HALVES)
        assert isinstance(fitted(bound(gpu=4), room_of(group)), Fitted)
        assert sentence(bound(gpu=6), group) == "needs 6 nvidia.com/gpu in one NUMA zone, the best zone has 4"
        assert isinstance(fitted(bound(gpu=6, numa=""), room_of(group)), Fitted)

    def test_members_of_a_gang_share_zones_as_they_fit(self) -> None:
        group = zoned(zones=TWO_HALVES)
        assert isinstance(fitted(bound(2, gpu=3), room_of(group)), Fitted)
        assert sentence(bound(3, gpu=3), zoned(2, zones=[{"gpu": 4}])) == "room for 2 of the 3 members of role 'worker'"

    def test_restricted_members_may_span_zones_that_they_need(self) -> None:
        group = zoned(zones=TWO_HALVES)
        assert isinstance(fitted(bound(gpu=8, numa="restricted"), room_of(group)), Fitted)
        used = zoned(zones=[{"cpu": 8, "gpu": 4}, {"cpu": 8, "gpu": 1}])
        assert isinstance(fitted(bound(gpu=5, numa="restricted"), room_of(used)), Fitted)

    def test_devices_free_in_one_zone_and_cpu_in_another_are_no_zone(self) -> None:
        group = zoned(zones=[{"cpu": 0, "gpu": 4}, {"cpu": 8, "gpu": 0}])
        assert (
            sentence(bound(cpu=4, gpu=2), group)
            == "no node has the NUMA zones free that a member of role 'worker' needs"
        )

    @pytest.mark.parametrize(
        ("policy", "wanted", "fits"),
        [
            ("singleNode", "singleNode", True),
            ("singleNode", "restricted", True),
            ("restricted", "restricted", True),
            ("restricted", "singleNode", False),
            ("bestEffort", "restricted", False),
            ("none", "singleNode", False),
            ("none", "", True),
        ],
    )
    def test_the_nodes_must_keep_the_policy(self, policy: str, wanted: str, fits: bool) -> None:
        outcome = fitted(bound(gpu=1, numa=wanted), room_of(zoned(policy=policy, zones=TWO_HALVES)))
        assert isinstance(outcome, Fitted) is fits
        if isinstance(outcome, Shortfall):
            assert (
                outcome.sentence == f"no node with NUMA policy {wanted} matches what role 'worker' selects or tolerates"
            )

    def test_where_zones_are_not_reported_the_node_counts(self) -> None:
        assert isinstance(fitted(bound(gpu=8), room_of(nodes(gpu=8))), Fitted)

    def test_others_take_zones_too(self) -> None:
        free = room_of(zoned(zones=TWO_HALVES))
        spread = fitted(bound(gpu=5, numa=""), free)
        assert isinstance(spread, Fitted)
        take(free, spread)
        assert isinstance(fitted(bound(gpu=3), free), Fitted)
        assert isinstance(fitted(bound(gpu=4), free), Shortfall)

    def test_many_gangs_of_one_are_placed_as_one_after_the_other(self) -> None:
        shape = bound(gpu=3)
        gangs, _ = fit_many(shape.roles[0], 1, 10, room_of(zoned(3, zones=TWO_HALVES)))
        assert len(gangs) == 6


def as_bins(members: list[Resources], bins: list[Resources]) -> bool:
    """Return whether members fit into bins: every way is tried."""
    if not members:
        return True
    first, rest = members[0], members[1:]
    return any(
        as_bins(rest, [*bins[:n], {name: has - first.get(name, 0) for name, has in one.items()}, *bins[n + 1 :]])
        for n, one in enumerate(bins)
        if all(one.get(name, 0) >= amount for name, amount in first.items())
    )


zone = st.fixed_dictionaries({"cpu": st.integers(0, 4), "gpu": st.integers(0, 3)})
zoned_groups = st.lists(
    st.tuples(st.integers(1, 2), st.lists(zone, min_size=1, max_size=3)), min_size=1, max_size=2
).map(lambda rows: [zoned(count, f"g{n}", zones=zones) for n, (count, zones) in enumerate(rows)])
bound_roles = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(1, 2), st.sampled_from(["", "singleNode"])),
    min_size=1,
    max_size=2,
).map(
    lambda rows: gang(
        *(role(size, f"r{n}", cpu=cpu, gpu=gpu, numa=numa) for n, (size, cpu, gpu, numa) in enumerate(rows))
    )
)


@given(zoned_groups, bound_roles)
def test_what_is_said_to_fit_has_a_packing_into_zones(groups: list[NodeGroup], shape: Shape) -> None:
    free = room_of(*groups)
    outcome = fitted(shape, free)
    if not isinstance(outcome, Fitted):
        return
    every = [amounts(cpu=0, gpu=0) | part.needs for part in shape.roles for _ in range(part.replicas)]
    strict = [part.needs for part in shape.roles if part.numa for _ in range(part.replicas)]
    whole = [dict(group.free) for group in groups for _ in range(group.count)]
    zones = [dict(one) for group in groups if group.numa for _ in range(group.count) for one in group.numa.zones]
    assert as_bins(every, whole)
    assert as_bins(strict, zones)
    take(free, outcome)
    assert all(amount >= 0 for one in free.nodes for left in one.zones for amount in left)
    assert sum(one.count for one in free.nodes) == len(whole)


@given(zoned_groups, st.integers(1, 3), st.integers(0, 3), st.integers(1, 2))
def test_members_alike_find_zones_whenever_they_can(groups: list[NodeGroup], size: int, cpu: int, gpu: int) -> None:
    shape = bound(size, cpu=cpu, gpu=gpu)
    zones = [dict(one) for group in groups if group.numa for _ in range(group.count) for one in group.numa.zones]
    can = as_bins([shape.roles[0].needs] * size, zones)
    assert isinstance(fitted(shape, room_of(*groups)), Fitted) is can


class TestCycle:
    def cluster(self) -> StateBuilder:
        return StateBuilder().cluster("c", zoned(zones=TWO_HALVES), capabilities=("gang", "numa"))

    def test_a_run_of_ours_fills_its_zone(self) -> None:
        builder = self.cluster().run("first", bound(gpu=3), on="c", placement={"nodes": {"worker": 1}})
        outcome = builder.job("second", bound(gpu=3)).job("third", bound(gpu=2)).cycle()
        assert outcome.started == ["second"]
        verdict = outcome.verdict("third", "c")
        assert (verdict.check, verdict.sentence) == (
            Check.NO_ROOM,
            "needs 2 nvidia.com/gpu in one NUMA zone, the best zone has 1",
        )

    def test_it_starts_once_a_zone_is_free(self) -> None:
        builder = self.cluster()
        for name in ("first", "second"):
            builder.run(name, bound(gpu=3), on="c", placement={"nodes": {"worker": 1}})
        assert builder.job("third", bound(gpu=2)).cycle().started == []
        builder.ended("first")
        assert builder.cycle().started == ["third"]

    def test_what_no_zone_could_ever_hold_can_not_run_as_written(self) -> None:
        outcome = self.cluster().job("large", bound(gpu=6)).cycle()
        assert outcome.verdict("large", "c").check is Check.NEVER_FITS


def spec(numa: str) -> JobSpec:
    return JobSpec.model_validate(
        {
            "kind": "Job",
            "name": "j",
            "queue": "main",
            "topology": {"numa": numa},
            "roles": [{"name": "worker", "template": {"image": "i", "resources": {"cpu": "1"}}}],
        }
    )


@pytest.mark.parametrize("numa", ["none", "bestEffort", "restricted", "singleNode"])
def test_only_policies_that_a_node_has_to_keep_bind_members(numa: str) -> None:
    shape = shape_from(shape_of(spec(numa)))
    assert [part.numa for part in shape.roles] == [numa if numa in STRICT_NUMA else ""]
    assert ("numa" in shape.capabilities) is (numa in STRICT_NUMA)
