"""Clusters are chosen by what they cost, too."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import GPU, Outcome, StateBuilder, gang, nodes, role, simple
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.domain.weights import BALANCED, Weights

CHEAPEST = Weights(kind=0, packing=0.1, money=10)
ALL = tuple(ClusterKind)


def core(price: float | str) -> dict[str, Any]:
    return {"onDemand": {"cpu": f"{float(price):.6f}"}}


def two(first: dict[str, Any] | None, second: dict[str, Any] | None, **queue: Any) -> StateBuilder:
    """Return clusters a and b, equal except for their prices, and queue main."""
    builder = StateBuilder().queue("main", **queue)
    return builder.cluster("a", nodes(2), prices=first).cluster("b", nodes(2), prices=second)


CHOSEN = {
    "of clusters alike the cheaper one": (two(core(2), core(1)).job("j"), "b"),
    "free before what costs": (two(core("0.01"), None).job("j"), "b"),
    "a little money does not outweigh that a cluster is one's own": (
        StateBuilder()
        .queue("main", kinds=ALL)
        .cluster("own", nodes(2), prices=core(1))
        .cluster("rented", nodes(2), kind=ClusterKind.PUBLIC)
        .job("j"),
        "own",
    ),
    "by the cheapest profile it does": (
        StateBuilder()
        .queue("main", kinds=ALL, profile=CHEAPEST)
        .cluster("own", nodes(2), prices=core(1))
        .cluster("rented", nodes(2), kind=ClusterKind.PUBLIC)
        .job("j"),
        "rented",
    ),
    "the profile of a queue above counts": (
        StateBuilder()
        .queue("org", profile=CHEAPEST)
        .queue("org/team", kinds=ALL)
        .cluster("own", nodes(2), prices=core(1))
        .cluster("rented", nodes(2), kind=ClusterKind.PUBLIC)
        .job("j", queue="org/team"),
        "rented",
    ),
    "the profile of a class comes before that of the queue": (
        StateBuilder()
        .queue("main", kinds=ALL, profile=CHEAPEST)
        .profile("normal", BALANCED)
        .cluster("own", nodes(2), prices=core(1))
        .cluster("rented", nodes(2), kind=ClusterKind.PUBLIC)
        .job("j"),
        "own",
    ),
    "the profile of a job comes before all": (
        StateBuilder()
        .queue("main", kinds=ALL)
        .profile("normal", BALANCED)
        .cluster("own", nodes(2), prices=core(1))
        .cluster("rented", nodes(2), kind=ClusterKind.PUBLIC)
        .job("j", gang(role(), weights=CHEAPEST)),
        "rented",
    ),
    "a product is charged at its own price": (
        StateBuilder()
        .cluster(
            "a",
            nodes(1, cpu=4, gpu=1, labels={"nvidia.com/gpu.product": "H100"}),
            prices={"onDemand": {"devices": {f"{GPU}@product=H100": 9, GPU: 1}}},
        )
        .cluster(
            "b",
            nodes(1, cpu=4, gpu=1, labels={"nvidia.com/gpu.product": "A100"}),
            prices={"onDemand": {"devices": {f"{GPU}@product=H100": 9, GPU: 1}}},
        )
        .job("j", simple(gpu=1, cpu=1)),
        "b",
    ),
    "spot nodes at the spot price": (
        two(
            {"onDemand": {"cpu": 3}, "spot": {"cpu": 2}},
            {"onDemand": {"cpu": 3}, "spot": {"cpu": 1}},
        )
        .cluster(
            "c",
            nodes(2, labels={"karpenter.sh/capacity-type": "spot"}),
            prices={"onDemand": {"cpu": 3}, "spot": {"cpu": 1}},
        )
        .job("j"),
        "c",
    ),
}


@pytest.mark.parametrize(("builder", "cluster"), CHOSEN.values(), ids=CHOSEN)
def test_the_cluster_that_is_taken(builder: StateBuilder, cluster: str) -> None:
    assert builder.cycle().where == {"j": cluster}


def test_the_decision_tells_what_it_is_expected_to_cost() -> None:
    """A job of two cores for half an hour at 3 a core-hour costs 3; without a limit an hour is counted."""
    start = two(core(3), core(8)).job("j", simple(2, limit=1800)).cycle().start("j")
    assert [(line["cluster"], line["cost"]) for line in start.table] == [("a", 3.0), ("b", 8.0)]
    assert start.why == "a before b: it is expected to cost 3.00 there and 8.00 on the other"
    unlimited = two(core(3), None).job("j", simple(2)).cycle().start("j")
    assert [(line["cluster"], line.get("cost")) for line in unlimited.table] == [("b", None), ("a", 6.0)]


amounts = st.integers(1, 4)
prices = st.one_of(st.none(), st.sampled_from([0.01, 0.5, 1.0, 3.0, 20.0, 500.0]))
clusters = st.lists(st.tuples(st.sampled_from(ALL), amounts, st.integers(1, 8), prices), min_size=2, max_size=4)
weights = st.builds(
    Weights, *(st.sampled_from([0.0, 0.5, 2.0, 10.0]) for _ in range(3)), sparing=st.sampled_from([0.0, 1.0])
)


def chosen(found: list[tuple[ClusterKind, int, int, float | None]], by: Weights, jobs: int = 1) -> Outcome:
    builder = StateBuilder().queue("main", kinds=ALL, profile=by)
    for number, (kind, count, cpu, price) in enumerate(found):
        builder.cluster(f"c{number}", nodes(count, cpu=cpu), kind=kind, prices=None if price is None else core(price))
    for number in range(jobs):
        builder.job(f"j{number}", simple(limit=3600 * (number + 1)))
    return builder.cycle()


@given(clusters, weights, st.integers(0, 3), st.floats(1.1, 100))
def test_a_higher_price_never_makes_a_cluster_more_likely(
    found: list[tuple[ClusterKind, int, int, float | None]], by: Weights, which: int, times: float
) -> None:
    which %= len(found)
    kind, count, cpu, price = found[which]
    dearer = [*found]
    dearer[which] = kind, count, cpu, (price or 0.01) * times
    before, after = chosen(found, by).where, chosen(dearer, by).where
    for job, cluster in after.items():
        if cluster == f"c{which}":
            assert before[job] == cluster


@given(clusters, st.sampled_from(["kind", "packing", "money"]))
def test_with_all_weights_but_one_at_zero_the_best_by_that_score_wins(
    found: list[tuple[ClusterKind, int, int, float | None]], name: str
) -> None:
    by = Weights(**{name: 1.0})
    builder = StateBuilder().queue("main", kinds=ALL, profile=by)
    for number, (kind, count, cpu, price) in enumerate(found):
        builder.cluster(f"c{number}", nodes(count, cpu=cpu), kind=kind, prices=None if price is None else core(price))
    start = builder.job("j").cycle().start("j")
    every = {line["cluster"]: line[name] for line in start.table}
    best = max(every.values())
    assert every[next(one.name for one in builder.state.clusters.values() if one.id == start.cluster_id)] == best
    assert start.table[0]["score"] == best


@given(clusters, weights, st.integers(1, 6))
def test_the_quick_way_and_the_long_one_choose_alike(
    found: list[tuple[ClusterKind, int, int, float | None]], by: Weights, jobs: int
) -> None:
    """A quota on a narrowed flavor makes the plan look at each cluster."""
    quick = chosen(found, by, jobs)
    builder = StateBuilder().queue("main", kinds=ALL, profile=by, limits={"cpu@kind=public": 10_000})
    for number, (kind, count, cpu, price) in enumerate(found):
        builder.cluster(f"c{number}", nodes(count, cpu=cpu), kind=kind, prices=None if price is None else core(price))
    for number in range(jobs):
        builder.job(f"j{number}", simple(limit=3600 * (number + 1)))
    assert builder.cycle().where == quick.where
