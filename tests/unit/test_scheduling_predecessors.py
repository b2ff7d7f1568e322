"""Jobs that start after others prefer the clusters where these ran; a preference, never a condition."""

import pytest

from tests.unit.building import StateBuilder, gang, nodes, role
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.domain.weights import Weights


def fleet() -> StateBuilder:
    """Return three empty clusters, of which ``a`` is chosen where nothing else decides."""
    builder = StateBuilder()
    for name in "abc":
        builder.cluster(name, nodes(2, cpu=4))
    return builder


@pytest.mark.parametrize(
    ("after", "where"),
    [
        ({}, "a"),
        ({"b": 1.0}, "b"),
        ({"a": 0.25, "c": 0.75}, "c"),
        ({"b": 0.5, "c": 0.5}, "b"),
    ],
)
def test_a_job_goes_to_the_cluster_where_most_of_its_predecessors_ran(after: dict[str, float], where: str) -> None:
    assert fleet().job("j", after=after).cycle().where == {"j": where}


def test_equivalent_jobs_go_by_their_own_predecessors() -> None:
    """Jobs without predecessors stay one class, and so do those whose predecessors ran at the same clusters."""
    builder = fleet()
    for number, after in enumerate(({}, {"c": 1.0}, {}, {"b": 1.0}, {"c": 1.0})):
        builder.job(f"j{number}", after=after)
    assert len(builder.state.waiting[builder.queues["main"]]) == 3
    outcome = builder.cycle()
    assert outcome.where == {"j0": "a", "j1": "c", "j2": "a", "j3": "b", "j4": "c"}


def test_the_decision_shows_where_predecessors_ran() -> None:
    start = fleet().job("j", after={"b": 0.75}).cycle().start("j")
    assert [(line["cluster"], line["predecessors"]) for line in start.table] == [("b", 0.75), ("a", 0.0)]
    assert "more of the jobs that it starts after ran there" in start.why


def test_it_starts_elsewhere_where_that_cluster_has_no_room() -> None:
    builder = fleet().cluster("b", nodes(1, cpu=1)).run("other", on="b").job("j", after={"b": 1.0})
    assert builder.cycle().where == {"j": "a"}


def test_a_cluster_that_is_gone_or_closed_is_no_obstacle() -> None:
    builder = fleet().job("j", after={"b": 1.0})
    builder.state.drop_cluster(builder.clusters["b"])
    assert builder.cycle().where == {"j": "a"}


def test_a_successor_that_may_not_go_to_the_edge_is_placed_as_if_it_had_no_predecessor() -> None:
    shape = gang(role(), kinds=(ClusterKind.PRIVATE, ClusterKind.PUBLIC))
    builder = fleet().cluster("site", nodes(), kind=ClusterKind.EDGE)
    without = builder.job("j", shape).cycle().start("j")
    outcome = builder.job("j", shape, after={"site": 1.0}).cycle().start("j")
    assert (outcome.cluster_id, outcome.why) == (without.cluster_id, without.why)


def test_it_does_not_outweigh_own_machines() -> None:
    builder = fleet().queue("main", kinds=tuple(ClusterKind)).cluster("cloud", nodes(), kind=ClusterKind.PUBLIC)
    assert builder.job("j", after={"cloud": 1.0}).cycle().where == {"j": "a"}


def test_a_profile_without_the_score_counts_it_nothing() -> None:
    builder = fleet().queue("main", profile=Weights(kind=1.0)).job("j", after={"b": 1.0})
    assert builder.cycle().where == {"j": "a"}


def test_successors_that_are_blocked_share_their_reason() -> None:
    builder = StateBuilder().cluster("a", nodes(1, cpu=1)).run("other", on="a")
    builder.job("first").job("second", after={"a": 1.0})
    outcome = builder.cycle()
    keys = [builder.state.class_of(builder.ids[name]) for name in ("first", "second")]
    assert keys[0] != keys[1]
    assert keys[0].of_reason == keys[1].of_reason
    assert outcome.reason("first").token is outcome.reason("second").token
