"""Who may have any product of a device leaves the scarce ones to those who can use no other."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import Outcome, StateBuilder, amounts, gang, nodes, role, simple
from trainmaster.protocol.agent import CapacityReport, NodeGroup, Taint
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.domain.weights import Weights
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.packing.best_fit import commonness, tightest
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import first_node
from trainmaster_dispatcher.scheduling.packing.node_buckets import NodeBucket
from trainmaster_dispatcher.scheduling.selection.scores.sparing import Scarcity
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster
from trainmaster_dispatcher.scheduling.state.demand import NO_DEMAND, waiting_jobs

ANY = simple(cpu=1, gpu=1)


def gpus(product: str, count: int = 1, *, gpu: int = 4, cpu: int = 32, name: str = "") -> NodeGroup:
    return nodes(count, name or product.lower(), labels={"nvidia.com/gpu.product": product}, cpu=cpu, gpu=gpu)


def report(*groups: NodeGroup) -> CapacityReport:
    return CapacityReport(groups=groups, runtime="r", scheduler="s")


def only(product: str, **needs: Any) -> Any:
    return gang(role(node_selector=(("nvidia.com/gpu.product", product),), **{"cpu": 1, "gpu": 1, **needs}))


def group_of(outcome: Outcome, job: str) -> str:
    (group,) = outcome.start(job).placement
    return group


def test_inside_a_cluster_it_takes_the_product_of_which_there_is_most() -> None:
    """Best fit alone would take the smaller nodes."""
    builder = StateBuilder().cluster("c", gpus("V100", 2, gpu=2, cpu=8), gpus("A100", 3)).job("j", ANY)
    assert group_of(builder.cycle(), "j") == "a100"


def test_the_scarce_product_is_taken_when_nothing_else_is_free() -> None:
    builder = StateBuilder().cluster("c", gpus("V100", 1), gpus("A100", 2)).jobs(12, "j", ANY)
    taken = [group_of(builder.cycle(), f"j{number}") for number in range(1, 13)]
    assert sorted(taken) == ["a100"] * 8 + ["v100"] * 4


def test_who_needs_the_scarce_product_finds_it() -> None:
    builder = StateBuilder().cluster("c", gpus("V100", 1, gpu=2), gpus("A100", 2)).jobs(8, "any", ANY)
    outcome = builder.jobs(2, "v", only("V100")).cycle()
    assert len(outcome.started) == 10


def test_what_is_common_does_not_change_as_it_fills() -> None:
    builder = StateBuilder().cluster("c", gpus("V100", 1), gpus("A100", 2)).jobs(6, "any", ANY)
    outcome = builder.cycle()
    assert {group_of(outcome, f"any{number}") for number in range(1, 7)} == {"a100"}


def test_idle_devices_of_another_sort_count_more() -> None:
    """A node with something that it has no use for is spared, however common its product is."""
    both = gpus("A100", 9)
    both = both.model_copy(update={"free": {**both.free, "rdma/hca": 4}})
    builder = StateBuilder().cluster("c", both, gpus("V100")).job("j", ANY)
    assert group_of(builder.cycle(), "j") == "v100"


def test_between_clusters_common_devices_go_first() -> None:
    builder = StateBuilder().cluster("a", gpus("V100")).cluster("b", gpus("A100", 4)).job("j", ANY)
    start = builder.cycle().start("j")
    assert builder.cycle().where == {"j": "b"}
    assert start.why == "b before a: fewer others ask for the devices that it takes there"
    assert {line["cluster"]: line["sparing"] for line in start.table} == {"b": 1.0, "a": 0.25}


def test_a_cluster_that_has_only_scarce_ones_left_comes_after_one_with_common_ones() -> None:
    builder = StateBuilder().cluster("a", gpus("V100"), gpus("A100", 1)).cluster("b", gpus("A100", 4))
    builder.run("r", simple(4, cpu=1, gpu=1), on="a", placement={"a100": {"worker": 4}}).job("j", ANY)
    assert builder.cycle().where == {"j": "b"}


def test_who_has_no_choice_goes_by_the_other_scores() -> None:
    builder = StateBuilder().cluster("a", gpus("V100")).cluster("b", gpus("A100", 4), gpus("V100"))
    start = builder.job("j", only("V100")).cycle().start("j")
    assert builder.cycle().where == {"j": "a"}
    assert all("sparing" not in line for line in start.table)


def test_who_needs_no_device_does_not_care() -> None:
    builder = StateBuilder().cluster("a", gpus("V100")).cluster("b", gpus("A100", 4)).job("j")
    assert builder.cycle().where == {"j": "a"}


def test_a_profile_may_leave_it_out() -> None:
    builder = (
        StateBuilder().profile("normal", Weights(0, 1, 0)).cluster("a", gpus("V100")).cluster("b", gpus("A100", 4))
    )
    assert builder.job("j", ANY).cycle().where == {"j": "a"}


def test_a_fleet_that_grows_changes_what_is_common() -> None:
    few, many = gpus("V100"), gpus("V100", 8)
    for group, cluster in ((few, "b"), (many, "a")):
        builder = StateBuilder().cluster("a", group).cluster("b", gpus("A100", 4)).job("j", ANY)
        assert builder.cycle().where == {"j": cluster}


@pytest.mark.parametrize("jobs", [1, 7, 40, 43])
def test_jobs_alike_leave_a_cluster_where_only_scarce_ones_are_left(jobs: int) -> None:
    builder = StateBuilder().cluster("a", gpus("A100", 2), gpus("V100", 6, gpu=1)).cluster("b", gpus("A100", 8))
    outcome = builder.jobs(jobs, "j", ANY).cycle()
    taken = [group_of(outcome, f"j{number}") for number in range(1, jobs + 1)]
    assert taken.count("v100") == max(0, jobs - 40)


def test_a_row_that_begins_on_two_products_goes_on_one_by_one() -> None:
    builder = StateBuilder().profile("normal", Weights(0, 1, 0, sparing=1))
    builder.cluster("a", gpus("A100", 5, gpu=1), gpus("V100", 4, gpu=1)).cluster("b", gpus("A100", 50, gpu=1))
    builder.run("r", simple(4, cpu=1, gpu=1), on="a", placement={"a100": {"worker": 4}})
    assert builder.jobs(2, "j", simple(2, cpu=1, gpu=1)).cycle().where == {"j1": "a", "j2": "b"}


def test_what_is_common_follows_taints_and_amounts_under_the_same_names() -> None:
    """An agent may call a group as before when it is not the same any more."""
    builder = StateBuilder().cluster("a", gpus("V100")).cluster("b", gpus("A100", 4)).job("j", ANY)
    assert builder.cycle().where == {"j": "b"}
    tainted = gpus("A100", 4).model_copy(update={"taints": (Taint(key="reserved"),)})
    builder.cluster("b", tainted)
    start = builder.cycle().start("j")
    assert (builder.cycle().where, "sparing" in start.table[0]) == ({"j": "a"}, False)


def test_a_product_that_pools_alone_can_bring_is_the_scarcest() -> None:
    sparing = Scarcity()
    cluster = Cluster(1, "c", ClusterKind.PRIVATE, report=report(gpus("A100", 4), gpus("V100")))
    sparing.take_in([cluster], [1], NO_DEMAND)
    coming = FreeCapacity({"+h100": (NodeBucket(gpus("H100"), gpus("H100").free, 1),)})
    assert sparing.part(ANY, coming) == 1 / 16


def test_a_product_that_jobs_name_is_spared_although_it_is_the_common_one() -> None:
    builder = StateBuilder().cluster("c", gpus("V100", 1), gpus("A100", 4)).job("any", ANY, age=10)
    assert group_of(builder.cycle(), "any") == "a100"
    builder = StateBuilder().cluster("c", gpus("V100", 1), gpus("A100", 4)).job("any", ANY, age=10)
    builder.jobs(16, "a", only("A100", gpu=2))
    assert group_of(builder.cycle(), "any") == "v100"


def test_what_runs_is_asked_for_too() -> None:
    builder = StateBuilder().cluster("c", gpus("V100", 1), gpus("A100", 4))
    builder.jobs(12, "w", only("A100", gpu=2))
    assert group_of(builder.job("any", ANY, age=10).cycle(), "any") == "a100"
    for number in range(4):
        builder.run(f"r{number}", only("A100", gpu=2), on="c", placement={"a100": {"worker": 1}})
    assert group_of(builder.cycle(), "any") == "v100"


def test_nodes_for_many_devices_are_spared_if_members_need_many() -> None:
    """The product of which there is most is not the one to take any more."""
    builder = StateBuilder().cluster("c", gpus("V100", 4, gpu=2), gpus("A100", 2, gpu=8)).job("any", ANY, age=10)
    assert group_of(builder.cycle(), "any") == "a100"
    builder.jobs(2, "eight", simple(cpu=1, gpu=8))
    outcome = builder.later(60).cycle()
    assert group_of(outcome, "any") == "v100"
    assert len(outcome.started) == 3


def test_jobs_are_counted_again_after_a_minute() -> None:
    builder = StateBuilder().cluster("a", gpus("V100")).cluster("b", gpus("A100", 4)).job("any", ANY, age=10)
    assert builder.cycle().where == {"any": "b"}
    builder.engine.carry_over(builder.cycle().plan)
    builder.jobs(16, "named", only("A100", gpu=2))
    assert builder.later(59).cycle().where["any"] == "b"
    assert builder.later(1).cycle().where["any"] == "a"


def test_jobs_that_have_ended_count_half_a_week_later() -> None:
    """Jobs that need a scarce product come and go; a long run that comes while nobody needs it would have it for days."""
    builder = StateBuilder().cluster("c", gpus("V100", 2), gpus("A100", 3)).jobs(8, "short", only("V100"))
    builder.run("eight", only("A100", gpu=4), on="c", placement={"a100": {"worker": 1}})
    builder.applied()
    for number in range(1, 9):
        builder.ended(f"short{number}")
    later = builder.later(3600).job("any", ANY).applied()
    assert group_of(later, "any") == "a100"
    needs = builder.engine.carried.demand.needs.values()
    week = builder.later(7 * 86_400 - 3600).applied()
    assert week.plan.starts == []
    halved = builder.engine.carried.demand.needs.values()
    assert sum(need.amount for need in needs) == pytest.approx(8 + 4 + 1, rel=0.01)
    assert sum(need.amount for need in halved) == pytest.approx((8 + 4 + 1) / 2, rel=0.01)


def test_a_job_that_was_returned_counts_once() -> None:
    builder = StateBuilder().cluster("c", gpus("V100", 1), gpus("A100", 4)).job("j", only("V100"))
    job = builder.state.jobs[builder.ids["j"]]
    for attempt in range(5):
        builder.state.put_waiting(replace(job, attempt=attempt))
        assert builder.later(120).applied().started == ["j"]
    builder.ended("j").later(120).applied()
    assert [need.amount for need in builder.engine.carried.demand.needs.values()] == [pytest.approx(1, rel=0.01)]


def test_a_few_devices_that_nobody_needs_do_not_make_the_others_look_equally_scarce() -> None:
    """One idle device of one sort is no measure for all others."""
    builder = StateBuilder().profile("normal", Weights(0, 1, 0, sparing=1))
    builder.cluster("full", gpus("T4", 1, gpu=1)).run("r", ANY, on="full", placement={"t4": {"worker": 1}})
    builder.cluster("a", gpus("V100")).cluster("b", gpus("A100", 8)).job("any", ANY, age=10)
    builder.jobs(8, "v", only("V100", gpu=2)).jobs(8, "named", only("A100", gpu=2))
    start = builder.cycle().start("any")
    assert {line["cluster"]: line["sparing"] for line in start.table} == {"b": 1.0, "a": 0.125}


def test_the_least_needs_are_forgotten() -> None:
    builder = StateBuilder().cluster("c", gpus("A100", 300))
    for number in range(210):
        labels = (("nvidia.com/gpu.product", "A100"), ("owner", f"u{number}"))
        builder.jobs(1 if number < 20 else 2, f"j{number}n", gang(role(node_selector=labels, cpu=1, gpu=1)))
    builder.applied()
    needs = builder.engine.carried.demand.needs.values()
    assert sorted(need.amount for need in needs) == [1] * 10 + [2] * 190


def test_a_question_counts_the_jobs_as_the_engine_does() -> None:
    builder = StateBuilder().cluster("a", gpus("V100")).cluster("b", gpus("A100", 4)).job("any", ANY, age=10)
    outcome = builder.jobs(16, "named", only("A100", gpu=2)).cycle()
    builder.engine.carry_over(outcome.plan)
    any_job = builder.state.jobs[builder.ids["any"]]
    fork = builder.later(300).engine.fork(waiting=[any_job])
    (start,) = decide(fork, builder.now).starts
    assert builder.state.clusters[start.cluster_id].name == outcome.where["any"] == "a"


sorts = st.lists(
    st.tuples(st.sampled_from(["A", "B", "C", ""]), st.integers(1, 3), st.integers(0, 4), st.integers(1, 16)),
    min_size=1,
    max_size=6,
)


@given(sorts, st.integers(1, 4), st.integers(1, 8))
def test_the_first_node_is_the_same_with_and_without_an_order(found: list[Any], gpu: int, cpu: int) -> None:
    groups = [
        gpus(product, count, gpu=has, cpu=cpus, name=f"g{number}")
        for number, (product, count, has, cpus) in enumerate(found)
    ]
    plain, ranked = (FreeCapacity.empty(report(*groups)) for _ in range(2))
    ranked.rank()
    one = role(cpu=cpu, gpu=gpu)
    slow, quick = first_node(one, plain), first_node(one, ranked)
    assert (slow and slow.group.name) == (quick and quick.group.name)
    if slow is not None:
        common = commonness(plain.groups, one.needs, plain.groups)
        fitting = [group for group in groups if group.free.get("cpu", 0) >= one.needs["cpu"]]
        fitting = [group for group in fitting if group.free.get("nvidia.com/gpu", 0) >= gpu]
        assert common.get(slow.group.name, 0) == max(common.get(group.name, 0) for group in fitting)
    assert tightest(plain.groups, amounts(cpu=100), plain.groups) is None


def test_of_many_kinds_of_jobs_some_stand_for_the_others() -> None:
    builder = StateBuilder().cluster("c", gpus("A100", 1))
    for number in range(1, 601):
        needs = gang(role(gpu=1 + number % 4, memory=number))  # of a period that evenly spread picks could miss
        builder.jobs(300 if number == 7 else 1 + number % 3, f"j{number}-", needs)
    state = builder.state
    counted = waiting_jobs(state)
    estimated = waiting_jobs(state, most=100)
    assert sum(counted.values()) == 300 + sum(1 + number % 3 for number in range(1, 601) if number != 7)
    assert len(counted) == 600
    assert len(estimated) < 250
    assert max(estimated.values()) == 300  # a large class is counted as it is

    def devices(jobs: Mapping[int, float]) -> dict[int, float]:
        found: defaultdict[int, float] = defaultdict(float)
        for shape_id, many in jobs.items():
            needed = state.shapes[shape_id].roles[0].needs["nvidia.com/gpu"]
            found[needed] += many
        return found

    exact = devices(counted)
    assert devices(estimated) == {needed: pytest.approx(many, rel=0.1) for needed, many in exact.items()}
