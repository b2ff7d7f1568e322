"""Where a job may go and which cluster is best for it: regions, data, edge, trouble, preferences and closeness."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import Outcome, StateBuilder, gang, nodes, role
from trainmaster.protocol.reasons import Token
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.domain.datasets import Dataset, Holder, moving
from trainmaster_dispatcher.domain.weights import Weights
from trainmaster_dispatcher.scheduling.selection.scores import SCORES
from trainmaster_dispatcher.scheduling.selection.scores.base import DependsOn

GIB = 2**30
EU, US = {"region": "eu"}, {"region": "us"}


def two(**more: Any) -> StateBuilder:
    """Return a cluster in region eu, one in us, and queue main with fields ``more``."""
    return StateBuilder().queue("main", **more).cluster("a-eu", nodes(), labels=EU).cluster("b-us", nodes(), labels=US)


def reading(*names: str, **fields: Any) -> Any:
    return gang(role(), datasets=names, **fields)


def images(**fields: Any) -> Dataset:
    return Dataset("images", 100 * GIB, **fields)


GOES: dict[str, tuple[StateBuilder, str]] = {
    "to the region that the job wants": (two().job("j", gang(role(), regions=("us",))), "b-us"),
    "to the region that its queue allows": (two(regions=("us",)).job("j"), "b-us"),
    "to the region that a queue above allows, too": (
        two().queue("org", regions=("us",)).queue("org/team", regions=("us", "eu")).job("j", queue="org/team"),
        "b-us",
    ),
    "to where its data must stay": (
        two().dataset(images(clusters=frozenset({"a-eu"}), regions=("us",), remote=True)).job("j", reading("images")),
        "b-us",
    ),
    "to where its data is declared to be": (
        two().dataset(images(clusters=frozenset({"b-us"}))).job("j", reading("images")),
        "b-us",
    ),
    "to where most of its data is": (
        two()
        .dataset(images(clusters=frozenset({"b-us"}), remote=True))
        .dataset(Dataset("text", GIB, frozenset({"a-eu"}), remote=True))
        .job("j", reading("images", "text")),
        "b-us",
    ),
    "to where its data comes for less": (
        StateBuilder()
        .profile("normal", Weights(0, 0, 1))
        .cluster("a", nodes(), uplink=GIB)
        .cluster("b", nodes(), datasets=("images",), prices={"egress": "0.10", "onDemand": {"cpu": 5}}, uplink=GIB)
        .dataset(images(remote=True))
        .job("j", reading("images")),
        "b",
    ),
    "to where its data is there sooner": (
        StateBuilder()
        .profile("normal", Weights(0, 0, 0, wait=1))
        .cluster("a", nodes(), uplink=GIB / 10)
        .cluster("b", nodes(), uplink=GIB)
        .cluster("c", nodes(), cordoned=True, datasets=("images",), uplink=10 * GIB)
        .dataset(images(remote=True))
        .job("j", reading("images")),
        "b",
    ),
    "away from trouble": (two().trouble("a-eu", 3.0).job("j"), "b-us"),
    "to the cluster that it prefers": (two().job("j", gang(role(), preferred=(((("region", "us"),), 1),))), "b-us"),
    "away from the runs of its queue": (
        two(profile=Weights(0, 0, 0, spread=1)).run("r", on="a-eu").run("s", on="a-eu").run("t", on="b-us").job("j"),
        "b-us",
    ),
    "to where it is in one rack": (
        StateBuilder()
        .cluster("a", *(nodes(1, f"r{n}", cpu=2, at=(("rack", f"r{n}"),)) for n in (1, 2)))
        .cluster("b", nodes(2, cpu=2, at=(("rack", "r1"),)))
        .job("j", gang(role(2, cpu=2), preferred_level="rack")),
        "b",
    ),
    "to the edge while it is connected": (
        StateBuilder()
        .cluster("e", nodes(), kind=ClusterKind.EDGE, connected=[{"start": "00:00", "end": "01:00"}])
        .job("j"),
        "e",
    ),
    "to the edge that is for its queue": (
        StateBuilder()
        .queue("factory/line")
        .cluster("a", nodes(), kind=ClusterKind.EDGE, only_queues=("shop",))
        .cluster("e", nodes(), kind=ClusterKind.EDGE, only_queues=("factory",))
        .job("j", queue="factory/line"),
        "e",
    ),
}


@pytest.mark.parametrize("sentence", GOES)
def test_a_job_goes(sentence: str) -> None:
    builder, cluster = GOES[sentence]
    assert builder.cycle().where == {"j": cluster}


STAYS: dict[str, tuple[StateBuilder, Token, str]] = {
    "where the job wants another region": (
        two().job("j", gang(role(), regions=("asia",))),
        Token.NO_CLUSTER_ALLOWED,
        "the job wants region asia, this one is in eu",
    ),
    "where its queue allows another one": (
        two(regions=("asia",)).job("j"),
        Token.NO_CLUSTER_ALLOWED,
        "its queue allows region asia, this one is in eu",
    ),
    "where its data may not leave its region": (
        StateBuilder()
        .cluster("a", nodes(), labels=US)
        .dataset(images(regions=("eu",), remote=True))
        .job("j", reading("images")),
        Token.NO_CLUSTER_ALLOWED,
        "dataset images stays in region eu, this one is in us",
    ),
    "where its data is not, and is not read from elsewhere": (
        two().dataset(images(clusters=frozenset({"c"}))).job("j", reading("images")),
        Token.NOT_SUPPORTED,
        "it does not have dataset images",
    ),
    "where its data is nowhere": (
        two().dataset(images(remote=True)).job("j", reading("images")),
        Token.NOT_SUPPORTED,
        "dataset images is on no cluster, so it cannot be moved there",
    ),
    "where nobody has declared its data": (
        two().job("j", reading("images")),
        Token.NOT_SUPPORTED,
        "it does not have dataset images",
    ),
    "at the edge until it is connected": (
        StateBuilder()
        .cluster("e", nodes(), kind=ClusterKind.EDGE, connected=[{"start": "18:00", "end": "06:00"}])
        .later(25200)
        .job("j"),
        Token.UNREACHABLE,
        "it is connected from 1970-01-01T18:00Z on, and nothing is sent there before",
    ),
    "at an edge that is for others": (
        StateBuilder().queue("shop").cluster("e", nodes(), kind=ClusterKind.EDGE, only_queues=("shop",)).job("j"),
        Token.NO_CLUSTER_ALLOWED,
        "it runs jobs of queue shop only",
    ),
}


@pytest.mark.parametrize("sentence", STAYS)
def test_a_job_stays(sentence: str) -> None:
    builder, token, words = STAYS[sentence]
    outcome = builder.cycle()
    assert outcome.started == []
    assert outcome.reason("j").token is token
    assert words in " ".join(verdict.sentence for verdict in outcome.reason("j").verdicts)


def test_a_policy_keeps_to_regions() -> None:
    builder = two(regions=("eu",)).cluster("a-eu", nodes(1, cpu="500m"), labels=EU)
    builder.cluster("rented", nodes(), kind=ClusterKind.PUBLIC, labels=US, prices={"onDemand": {"cpu": 1}})
    builder.policy(budget={"day": 10}, timeLimit="1h").job("j")
    outcome = builder.cycle()
    assert outcome.started == []
    assert outcome.verdict("j", "rented").sentence == "its queue allows region eu, this one is in us"


def test_the_decision_tells_what_it_costs_to_move_data_and_how_much_is_there() -> None:
    builder = StateBuilder().cluster("a", nodes()).cluster("b", nodes(), datasets=("text",), prices={"egress": "0.05"})
    builder.dataset(images(clusters=frozenset({"b"}), remote=True)).dataset(Dataset("text", 300 * GIB, remote=True))
    start = builder.job("j", reading("images", "text")).cycle().start("j")
    assert start.why == "b before a: more of its data is there"
    costs = {line["cluster"]: (line["data"], line.get("cost")) for line in start.table}
    assert costs == {"b": (1.0, None), "a": (0.0, 20.0)}


def test_data_comes_from_where_it_costs_least() -> None:
    here = Holder("here", frozenset(), 0.0, 10.0)
    dear, cheap = Holder("dear", frozenset({"d"}), 2.0, 100.0), Holder("cheap", frozenset({"d"}), 1.0, 4.0)
    found = moving(["d"], {"d": Dataset("d", 40, remote=True)}, here, [here, dear, cheap])
    assert found == (0.0, 40.0, 10.0)


names = st.sampled_from(sorted(SCORES))
regions = st.sampled_from(["eu", "us"])
one = st.tuples(
    st.sampled_from(list(ClusterKind)),
    st.integers(1, 3),
    st.sampled_from([None, 0.5, 5.0]),
    regions,
    st.sampled_from([0.0, 0.0, 2.0, 8.0]),
    st.sets(st.sampled_from(["images", "text"])),
    st.sampled_from([None, GIB, 100 * GIB]),
    st.integers(0, 2),
    st.sampled_from(["", "A", "B", "B"]),
)
clusters = st.lists(one, min_size=2, max_size=4)


def world(found: list[Any], by: Weights, shape: Any, **queue: Any) -> Outcome:
    builder = StateBuilder().queue("main", kinds=tuple(ClusterKind), profile=by, **queue)
    for number, (kind, count, price, region, trouble, data, uplink, runs, product) in enumerate(found):
        name = f"c{number}"
        prices = None if price is None else {"onDemand": {"cpu": price}, "egress": f"{price / 100:.4f}"}
        by_product = {"product": product} if product else {}
        groups = [
            nodes(1, f"n{rack}", cpu=6, gpu=3, labels=by_product, at=(("rack", f"r{rack}"),)) for rack in range(count)
        ]
        builder.cluster(
            name,
            *groups,
            kind=kind,
            prices=prices,
            labels={"region": region},
            datasets=tuple(sorted(data)),
            uplink=uplink,
        )
        builder.trouble(name, trouble)
        for index in range(runs):
            builder.run(f"{name}-{index}", on=name, placement={"n0": {"worker": 1}})
    for name, size in (("images", 100), ("text", 10)):
        builder.dataset(Dataset(name, size * GIB, frozenset({"c0"}), remote=True))
    return builder.job("j", shape).cycle()


SHAPE = gang(
    role(2, cpu=2, gpu=1),
    datasets=("images", "text"),
    preferred=(((("region", "us"),), 3),),
    preferred_level="rack",
)


@given(clusters, names)
def test_with_all_weights_but_one_at_zero_the_best_by_that_score_wins(found: list[Any], name: str) -> None:
    outcome = world(found, Weights(**{name: 1.0}), SHAPE)
    start = outcome.start("j")
    if any(name in line for line in start.table):
        every = {line["cluster"]: line[name] for line in start.table}
        assert every[outcome.where["j"]] == max(every.values()) == start.table[0]["score"]
    else:
        assert {line["score"] for line in start.table} == {1.0}


weights = st.builds(
    Weights,
    *(
        st.just({DependsOn.PLACEMENT: 1.0, DependsOn.QUEUE: 0.0}[score.depends_on])
        if score.depends_on in (DependsOn.PLACEMENT, DependsOn.QUEUE)
        else st.sampled_from([0.0, 0.5, 2.0])
        for score in SCORES.values()
    ),
)


@given(clusters, weights)
def test_the_quick_way_and_the_long_one_choose_alike(found: list[Any], by: Weights) -> None:
    """A quota on a narrowed flavor makes the plan look at each cluster."""
    shape = gang(role(2, cpu=2, gpu=1), datasets=("images", "text"), preferred=SHAPE.preferred)
    long = world(found, by, shape, limits={"cpu@kind=public": 10_000})
    quick = world(found, by, shape)
    assert quick.where == long.where
    assert quick.start("j").table[0]["score"] == long.start("j").table[0]["score"]


allowed = st.sets(regions, min_size=1)


@given(clusters, allowed, allowed, allowed)
def test_no_plan_breaks_a_rule_on_regions(found: list[Any], own: set[str], queues: set[str], data: set[str]) -> None:
    builder = StateBuilder().queue("main", kinds=tuple(ClusterKind), regions=tuple(queues))
    for number, item in enumerate(found):
        builder.cluster(f"c{number}", nodes(item[1]), kind=item[0], labels={"region": item[3]})
    builder.dataset(Dataset("images", GIB, frozenset({"c0"}), tuple(sorted(data)), remote=True))
    outcome = builder.job("j", reading("images", regions=tuple(sorted(own)))).cycle()
    fitting = {f"c{number}" for number, item in enumerate(found) if item[3] in own & queues & data}
    assert set(outcome.where.values()) <= fitting
    assert bool(outcome.where) == bool(fitting)
