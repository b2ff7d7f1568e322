"""Blocked jobs: what is kept for them, and who may start before them."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import NOW, Outcome, StateBuilder, gang, nodes, role, simple
from trainmaster.protocol.reasons import Check, Tier, Token
from trainmaster.protocol.states import ClusterKind, FairBy, OrderBy
from trainmaster_dispatcher.scheduling.packing.gang_packing import Size
from trainmaster_dispatcher.scheduling.packing.release_timeline import ReleaseTimeline
from trainmaster_dispatcher.scheduling.state.reservation import Reservation


def busy(places: int = 4, *, taken: int = 3, until: float = 100) -> StateBuilder:
    """Return a cluster of ``places`` CPUs, of which ``taken`` are in use for ``until`` seconds more, and a gang that wants all."""
    builder = StateBuilder().cluster("c", nodes(places, cpu=1))
    return builder.run("there", simple(taken, limit=until), on="c").job("big", simple(places, limit=10))


MAY_PASS: dict[str, tuple[StateBuilder, list[str]]] = {
    "one that ends before the reserved time": (busy().job("small", simple(limit=100)), ["small"]),
    "not one that would run a second longer": (busy().job("small", simple(limit=101)), []),
    "not one without a limit": (busy().job("small", simple()), []),
    "one whose queue says how long it is counted on": (
        busy().queue("short", time_limit=60).job("small", simple(), queue="short"),
        ["small"],
    ),
    "one whose queue's parent says so": (
        busy().queue("short", time_limit=60).queue("short/a").job("small", simple(), queue="short/a"),
        ["small"],
    ),
    "a long one that fits beside the reserved gang": (
        busy(6, taken=4).job("big", simple(4, limit=10)).jobs(3, "long", simple()),
        ["long1", "long2"],
    ),
    "no more long ones than fit beside it": (
        busy(6, taken=3).job("big", simple(4, limit=10)).jobs(3, "long", simple()),
        ["long1", "long2"],
    ),
    "short ones in the place that long ones may not have": (
        busy(6, taken=3).job("big", simple(4, limit=10)).jobs(3, "long", simple()).job("short", simple(limit=5)),
        ["long1", "long2", "short"],
    ),
    "anybody elsewhere": (busy().cluster("d", nodes(1, cpu=1)).job("small", simple()), ["small"]),
    "one that is nearer to its turn": (busy().job("first", simple(), of="high"), ["first"]),
}


@pytest.mark.parametrize(("builder", "started"), MAY_PASS.values(), ids=MAY_PASS)
def test_before_a_blocked_job_may_start(builder: StateBuilder, started: list[str]) -> None:
    assert builder.cycle().started == started


def test_a_blocked_job_is_told_when_it_starts_at_the_latest_and_those_behind_it_whom_they_would_delay() -> None:
    outcome = busy().job("small", simple()).cycle()
    first = outcome.reason("big").details["first"]
    assert first["notAfter"] == "1970-01-01T00:18:20Z"
    assert (
        first["sentence"]
        == "It starts by 1970-01-01T00:18:20Z on c if runs there keep to their limits, and no other job gets its turn before it."
    )
    reason = outcome.reason("small")
    assert (reason.token, reason.tier) == (Token.RESERVED, Tier.CAPACITY)
    assert outcome.verdict("small", "c").check is Check.RESERVED
    assert "is kept for big-" in reason.sentence
    assert reason.sentence.endswith("from 1970-01-01T00:18:20Z on, and this job has no time limit.")


def test_the_blocked_job_starts_when_its_time_has_come() -> None:
    builder = busy().job("short", simple(limit=100)).job("long", simple())
    assert builder.applied().started == ["short"]
    builder.ended("there").ended("short").later(100)
    assert builder.applied().started == ["big"]


def test_a_run_that_should_have_ended_is_expected_to_end_any_moment() -> None:
    builder = StateBuilder().cluster("c", nodes(2, cpu=1)).run("over", simple(limit=50), on="c", ago=80)
    outcome = builder.job("big", simple(2, limit=10)).job("small", simple(limit=30)).cycle()
    assert outcome.started == []
    assert outcome.plan.reservations[builder.ids["big"]].at == NOW + 1


def test_each_cluster_is_kept_for_one_job() -> None:
    builder = StateBuilder()
    for name, until in (("a", 100), ("b", 200)):
        builder.cluster(name, nodes(2, cpu=1)).run(f"on-{name}", simple(limit=until), on=name)
    builder.job("one", simple(2, limit=10)).job("two", simple(2, limit=11)).job("three", simple(2, limit=12))
    reservations = builder.cycle().plan.reservations
    assert {job: (kept.cluster_id, kept.at - NOW) for job, kept in reservations.items()} == {
        builder.ids["one"]: (builder.clusters["a"], 100),
        builder.ids["two"]: (builder.clusters["b"], 200),
    }


@pytest.mark.parametrize(("elsewhere", "cluster"), [(95, "a"), (80, "b")])
def test_a_reservation_stays_unless_another_is_earlier_by_a_tenth(elsewhere: float, cluster: str) -> None:
    builder = StateBuilder().cluster("a", nodes(2, cpu=1)).cluster("b", nodes(2, cpu=1))
    builder.run("on-a", simple(limit=100), on="a").run("on-b", simple(limit=500), on="b")
    builder.job("big", simple(2, limit=10)).applied()
    assert builder.engine.carried.reservations[builder.ids["big"]].cluster_id == builder.clusters["a"]
    builder.ended("on-b").run("on-b", simple(limit=elsewhere), on="b").applied()
    assert builder.engine.carried.reservations[builder.ids["big"]].cluster_id == builder.clusters[cluster]


def test_only_who_lacks_room_reserves() -> None:
    """Neither a job over quota nor one whose cluster is closed keeps anything from others."""
    builder = (
        StateBuilder().queue("q", limits={"cpu": 1}).cluster("c", nodes(2, cpu=1)).run("there", simple(limit=9), on="c")
    )
    builder.job("over", simple(2, limit=9), queue="q").cluster("closed", nodes(2, cpu=1), cordoned=True)
    outcome = builder.job("small", simple()).cycle()
    assert outcome.started == ["small"]
    assert outcome.plan.reservations == {}


def test_room_is_found_at_the_time_when_a_rack_is_free() -> None:
    builder = StateBuilder().cluster(
        "c", nodes(2, "r1", cpu=1, at=(("rack", "r1"),)), nodes(2, "r2", cpu=1, at=(("rack", "r2"),))
    )
    for name, group, until in (("a", "r1", 50), ("b", "r2", 60), ("c", "r1", 70)):
        builder.run(name, simple(limit=until), on="c", placement={group: {"worker": 1}})
    builder.job("big", gang(role(2, cpu=1), required_level="rack", time_limit_seconds=5))
    kept = builder.cycle().plan.reservations[builder.ids["big"]]
    assert kept.at == NOW + 60, "at 50 s two places are free, but in two racks"


class TestEndless:
    """Where no end is known."""

    def builder(self, age: float) -> StateBuilder:
        builder = (
            StateBuilder().longest_wait("normal", 60).cluster("c", nodes(4, cpu=1)).run("there", simple(2), on="c")
        )
        return builder.job("big", simple(4), age=age)

    def test_nothing_is_kept_at_first(self) -> None:
        outcome = self.builder(age=59).jobs(2, "small", simple(), of="low").cycle()
        assert outcome.started == ["small1", "small2"]

    def test_after_the_longest_wait_all_that_is_freed_on_a_cluster_is_kept(self) -> None:
        builder = self.builder(age=61).job("small", simple(limit=1), of="low")
        outcome = builder.applied()
        assert outcome.started == []
        assert outcome.plan.reservations[builder.ids["big"]].at == inf
        assert outcome.reason("big").details["first"]["sentence"] == "What is freed on c is kept for it from now on."
        assert "what is freed there is kept for big-" in outcome.reason("small").sentence
        assert builder.ended("there").applied().started == ["big"]

    def test_other_groups_and_other_clusters_stay_open(self) -> None:
        builder = (
            self.builder(age=61)
            .cluster("c", nodes(4, cpu=1), nodes(1, "gpus", gpu=1))
            .cluster("d", nodes(1, cpu=1), kind=ClusterKind.EDGE)
        )
        started = builder.job("gpu", simple(gpu=1)).job("small", simple(), of="low").cycle().where
        assert started == {"gpu": "c", "small": "d"}


SEVERAL, ONE, ALL = simple(3), simple(), simple(4)
"""Shapes without a time limit."""


class TestPredicted:
    """Where the run times of equivalent jobs are known, and no job has a time limit."""

    def builder(self, *, ago: float = 0.0, age: float = 0.0) -> StateBuilder:
        """Return a cluster of 4 CPUs, of which 3 are predicted to be in use for 100 seconds, and a gang that wants all."""
        builder = StateBuilder().longest_wait("normal", 600).cluster("c", nodes(4, cpu=1))
        builder.run("there", SEVERAL, on="c", ago=ago, predicted=100.0).learnt(SEVERAL, 100.0)
        return builder.job("big", ALL, age=age)

    def kept(self, builder: StateBuilder, outcome: Outcome) -> Reservation:
        return outcome.plan.reservations[builder.ids["big"]]

    def test_a_blocked_job_is_told_when_it_is_expected_to_start_and_from_when_on_nothing_may_delay_it(self) -> None:
        builder = self.builder()
        outcome = builder.cycle()
        assert (self.kept(builder, outcome).at, self.kept(builder, outcome).is_sure) == (NOW + 100, False)
        first = outcome.reason("big").details["first"]
        assert first["expected"] == "1970-01-01T00:18:20Z"
        assert "notAfter" not in first
        assert first["sentence"] == (
            "It is expected to start at 1970-01-01T00:18:20Z on c if runs there take as long as such runs did before, or else as"
            " their limits allow, and no other job gets its turn before it."
        )

    @pytest.mark.parametrize(("took", "starts"), [(100.0, True), (101.0, False), (None, False)])
    def test_a_job_may_start_before_it_that_is_expected_to_end_in_time(self, took: float | None, starts: bool) -> None:
        builder = self.builder().job("small", ONE)
        if took is not None:
            builder.learnt(ONE, took)
        outcome = builder.cycle()
        assert outcome.started == (["small"] if starts else [])
        if starts:
            assert outcome.plan.starts[0].predicted_seconds == took
        elif took is not None:
            assert outcome.reason("small").sentence.endswith(
                "is expected to run until after that, as long as such jobs did before."
            )
        else:
            assert outcome.reason("small").sentence.endswith("this job has no time limit.")

    def test_a_time_limit_counts_where_it_is_shorter(self) -> None:
        limited = simple(limit=90)
        builder = self.builder().job("small", limited).learnt(limited, 500.0)
        (start,) = builder.cycle().plan.starts
        assert start.predicted_seconds is None

    def test_a_run_that_has_outlasted_its_prediction_is_expected_to_take_longer(self) -> None:
        builder = self.builder(ago=100)
        assert self.kept(builder, builder.applied()).at == NOW + 60
        builder.later(59).applied()
        assert self.kept(builder, builder.later(1).applied()).at == NOW + 60 + 300
        assert builder.completed("there").applied().started == ["big"]

    def test_predictions_are_not_trusted_beside_a_job_that_has_waited_for_the_longest_wait_of_its_class(self) -> None:
        builder = self.builder(age=601).job("small", ONE, of="low").learnt(ONE, 50.0)
        outcome = builder.cycle()
        assert outcome.started == []
        assert self.kept(builder, outcome) == Reservation(builder.ids["big"], "big", builder.clusters["c"], inf)

    def test_beside_such_a_job_only_a_time_limit_tells_when_a_run_ends(self) -> None:
        limited, early, late = simple(3, limit=300), simple(limit=290), simple(limit=310)
        builder = StateBuilder().longest_wait("normal", 600).cluster("c", nodes(4, cpu=1))
        builder.run("there", limited, on="c", predicted=100.0).job("big", ALL, age=601)
        builder.job("late", late, of="low").learnt(late, 50.0).job("early", early, of="low")
        outcome = builder.cycle()
        assert self.kept(builder, outcome) == Reservation(builder.ids["big"], "big", builder.clusters["c"], NOW + 300)
        assert outcome.started == ["early"]

    def test_the_reason_of_one_user_is_not_that_of_another_whose_jobs_take_less(self) -> None:
        builder = self.builder().job("long", ONE, user="ann", of="low").job("short", ONE, user="ben", of="low")
        builder.learnt(ONE, 1000.0, "ann").learnt(ONE, 50.0, "ben")
        outcome = builder.cycle()
        assert outcome.started == ["short"]
        assert outcome.reason("long").token is Token.RESERVED

    def test_the_shortest_go_first_behind_a_job_that_capacity_is_kept_for_and_none_but_it_by_age(self) -> None:
        long, short = simple(limit=90), simple(limit=40)
        builder = self.builder().queue("main", order_by=OrderBy.SHORTEST_BACKFILL).job("long", long).job("short", short)
        assert builder.cycle().started == ["short"], "one core is free, and the older one takes longer"
        assert builder.ended("big").cycle().started == ["long"], "nothing is kept, so the older one is next"

    def test_an_urgent_job_goes_before_shorter_ones(self) -> None:
        long, short = simple(limit=90), simple(limit=40)
        builder = self.builder(age=620).queue("main", order_by=OrderBy.SHORTEST_BACKFILL, fair_by=FairBy.NONE)
        builder.run("there", simple(3, limit=100), on="c").job("short", short).job("long", long, age=610)
        assert builder.cycle().started == ["long"]


@given(
    runs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 50)), max_size=12),
    untils=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    members=st.integers(1, 3),
)
def test_a_search_up_to_a_time_finds_what_one_without_an_end_finds_by_then(
    runs: list[tuple[int, int]], untils: list[int], members: int
) -> None:
    builder = StateBuilder().cluster("c", nodes(2, "g", cpu=4), nodes(1, "h", cpu=8))
    for number, (cpu, left) in enumerate(runs):
        shape = gang(role(1, cpu=cpu), time_limit_seconds=100.0 + left)
        builder.run(f"r{number}", shape, on="c", placement={"gh"[number % 2]: {"worker": 1}}, ago=100.0)
    shape_id, size = builder.shape(gang(role(members, cpu=4))), Size({"worker": members}, {"cpu": 4000 * members})

    def timeline() -> ReleaseTimeline:
        return ReleaseTimeline(builder.engine.layouts, builder.clusters["c"], NOW)

    exact = timeline().earliest(shape_id, size, NOW)
    cut = timeline()
    for until in untils:
        found = cut.earliest(shape_id, size, NOW, NOW + until)
        assert found == exact or (found == inf and exact > NOW + until)
    assert cut.earliest(shape_id, size, NOW) == exact
