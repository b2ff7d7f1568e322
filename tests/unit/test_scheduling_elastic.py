"""Elastic runs: they start small, grow where nobody waits, and give back before anything ends."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.building import NOW, Outcome, StateBuilder, gang, nodes, role, simple
from trainmaster.protocol.reasons import Token
from trainmaster.protocol.states import QueueState
from trainmaster_dispatcher.domain.shapes import Elasticity, Shape
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.state.live_runs import members_of, surplus_of

LONG = 10_000.0


def elastic(most: int = 8, least: int = 2, step: int = 2, cool_down: float = 30.0) -> Shape:
    """Return an elastic gang of ``least`` to ``most`` workers of one CPU each."""
    return gang(role(most, least=least), elastic=Elasticity(step, cool_down))


def running(size: int, most: int = 8, *, places: int = 8, queue: str = "main") -> StateBuilder:
    """Return a cluster of ``places`` CPUs, and on it an elastic run ``e`` of ``size`` members that was never resized."""
    builder = StateBuilder().cluster("c", nodes(places, cpu=1))
    if queue != "main":
        builder.queue(queue)
    return builder.run("e", elastic(most), on="c", queue=queue, sizes={"worker": size}, placement=at(size), ago=LONG)


def at(size: int) -> dict[str, dict[str, int]]:
    return {"nodes": {"worker": size}}


def grows(outcome: Outcome) -> dict[str, int]:
    names = {number: name for name, number in outcome.ids.items()}
    return {names[one.job_id]: sum(one.sizes.values()) for one in outcome.plan.grows}


def gives(outcome: Outcome) -> dict[str, int | None]:
    """Return the number of members to which each preempted run shrinks; None for runs that end."""
    names = {number: name for name, number in outcome.ids.items()}
    leaving = [*outcome.plan.stops, *(one for start in outcome.plan.starts for one in start.evicts)]
    return {names[one.job_id]: None if one.sizes is None else sum(one.sizes.values()) for one in leaving}


def gone(builder: StateBuilder) -> None:
    """End the members that were asked to leave."""
    for job_id, run in list(builder.state.runs.items()):
        if run.leaving:
            left = dict(run.sizes)
            for name, many in run.leaving:
                left[name] -= many
            sizes = tuple(sorted(left.items()))
            builder.state.put_run(
                replace(builder.state.runs[job_id], sizes=sizes, placement=(("nodes", sizes),), leaving=())
            )


class TestStart:
    def test_it_starts_at_its_least_though_there_is_room_for_all(self) -> None:
        outcome = StateBuilder().cluster("c", nodes(8, cpu=1)).job("e", elastic()).cycle()
        assert outcome.start("e").sizes == {"worker": 2}
        assert outcome.plan.grows == []

    def test_it_goes_only_where_it_can_be_resized(self) -> None:
        builder = StateBuilder().cluster("rigid", nodes(8, cpu=1), capabilities=("gang",))
        outcome = builder.job("e", replace(elastic(), capabilities=("gang", "resize"))).cycle()
        assert outcome.reason("e").token is Token.NOT_SUPPORTED


class TestGrowth:
    def test_it_grows_a_step_at_a_time(self) -> None:
        builder = running(2)
        assert grows(builder.applied()) == {"e": 4}
        assert grows(builder.cycle()) == {}, "it cools down"
        assert grows(builder.later(29).cycle()) == {}
        assert grows(builder.later(1).applied()) == {"e": 6}
        assert grows(builder.later(30).applied()) == {"e": 8}
        assert grows(builder.later(LONG).cycle()) == {}, "it is whole"

    def test_the_last_step_may_be_shorter(self) -> None:
        assert grows(running(7).cycle()) == {"e": 8}

    def test_it_cools_down_after_its_start_too(self) -> None:
        builder = StateBuilder().cluster("c", nodes(8, cpu=1)).job("e", elastic())
        builder.applied()
        assert grows(builder.later(29).cycle()) == {}
        assert grows(builder.later(1).cycle()) == {"e": 4}

    def test_a_step_that_does_not_fit_as_a_whole_is_not_taken(self) -> None:
        assert grows(running(2, places=3).cycle()) == {}

    def test_roles_grow_in_step(self) -> None:
        shape = gang(role(9, "a", least=1), role(5, "b", least=1), elastic=Elasticity(1, 0.0))
        builder = StateBuilder().cluster("c", nodes(20, cpu=1))
        builder.run("e", shape, on="c", sizes={"a": 1, "b": 1}, ago=LONG)
        seen = []
        for _ in range(12):
            (growth,) = builder.applied().plan.grows
            seen.append((growth.sizes["a"], growth.sizes["b"]))
            builder.later(1)
        assert seen[:4] == [(2, 1), (2, 2), (3, 2), (4, 2)]
        assert seen[-1] == (9, 5)
        assert builder.cycle().plan.grows == []

    def test_who_was_resized_longest_ago_grows_first(self) -> None:
        builder = StateBuilder().cluster("c", nodes(6, cpu=1))
        for name, ago in (("a", 40.0), ("b", 50.0)):
            builder.run(name, elastic(), on="c", sizes={"worker": 2}, placement=at(2), ago=LONG, resized=ago)
        assert grows(builder.cycle()) == {"b": 4}

    def test_where_its_members_will_be_is_told_as_a_whole(self) -> None:
        (growth,) = running(2).cycle().plan.grows
        assert growth.placement == {"nodes": {"worker": 4}}

    @pytest.mark.parametrize(
        "why",
        ["a job waits for the capacity", "a job waits for quota", "its queue is at its limit", "its queue is held",
         "the cluster is cordoned", "the cluster is out of contact", "the agent can start nothing", "the runtime cannot",
         "it is stopping"],
    )  # fmt: skip
    def test_it_does_not_grow_if(self, why: str) -> None:
        builder = running(2)
        match why:
            case "a job waits for the capacity":
                builder.job("big", simple(7))
            case "a job waits for quota":
                builder.queue("main", limits={"cpu": 8}).job("big", simple(7))
            case "its queue is at its limit":
                builder.queue("main", limits={"cpu": 3})
            case "its queue is held":
                builder.queue("main", state=QueueState.HELD)
            case "the cluster is cordoned":
                builder.cluster("c", nodes(8, cpu=1), cordoned=True)
            case "the cluster is out of contact":
                builder.cluster("c", nodes(8, cpu=1), lease=-1)
            case "the agent can start nothing":
                builder.cluster("c", nodes(8, cpu=1), closed="the API server does not answer")
            case "the runtime cannot":
                builder.cluster("c", nodes(8, cpu=1), capabilities=("gang",))
            case "it is stopping":
                builder.state.put_run(replace(builder.state.runs[builder.ids["e"]], is_stopping=True))
        outcome = builder.cycle()
        assert grows(outcome) == {}
        assert gives(outcome) == {}

    def test_it_grows_though_a_job_waits_that_could_never_start(self) -> None:
        assert grows(running(2).job("huge", simple(99)).cycle()) == {"e": 4}

    def test_it_grows_though_a_job_waits_for_another_cluster(self) -> None:
        builder = running(2).cluster("d", nodes(3, cpu=1)).run("there", simple(3), on="d", placement=at(3))
        assert grows(builder.job("elsewhere", replace(simple(2), clusters=("d",))).cycle()) == {"e": 4}

    def test_it_grows_beside_queues_with_a_limit_on_running_jobs(self) -> None:
        builder = running(2).queue("main", max_running=1)
        assert grows(builder.cycle()) == {"e": 4}, "it is one run, however large"


class TestGivingBack:
    def test_it_gives_back_what_a_waiting_job_needs(self) -> None:
        outcome = running(8).job("j", simple(3)).cycle()
        assert (outcome.started, gives(outcome)) == (["j"], {"e": 2})
        assert outcome.start("j").why == "c, where one run shrinks for it"
        (one,) = outcome.start("j").evicts
        assert one.why.startswith("gives 6 of its members back: j-")

    def test_a_job_of_any_class_and_age_gets_it(self) -> None:
        assert gives(running(8).job("j", simple(2), of="low").cycle()) == {"e": 2}

    def test_what_it_needs_at_least_stays(self) -> None:
        outcome = running(8).job("j", simple(7)).cycle()
        assert (outcome.started, gives(outcome)) == ([], {})

    def test_nobody_gives_more_when_enough_is_leaving(self) -> None:
        builder = running(8).job("j", simple(3))
        builder.applied()
        outcome = builder.job("k", simple(3)).cycle()
        assert (outcome.started, gives(outcome)) == ([], {}), "six leave, and both fit then"
        gone(builder)
        assert builder.cycle().started == ["k"]

    def test_it_goes_before_any_run_ends(self) -> None:
        builder = running(6).run("low", simple(2), on="c", placement={"nodes": {"worker": 2}}, of="low", ago=LONG)
        assert gives(builder.job("j", simple(2), of="high").cycle()) == {"e": 2}

    def test_runs_end_where_it_is_not_enough(self) -> None:
        builder = running(4).run("low", simple(4), on="c", placement={"nodes": {"worker": 4}}, of="low", ago=LONG)
        assert gives(builder.job("j", simple(6), of="high").cycle()) == {"e": 2, "low": None}

    def test_it_may_end_as_a_whole_for_a_higher_class(self) -> None:
        assert gives(running(8).job("j", simple(8), of="high").cycle()) == {"e": None}

    def test_another_queue_does_not_push_it_below_its_guarantee(self) -> None:
        builder = running(8, queue="a").queue("b")
        builder.queue("a", guaranteed={"cpu": 8})
        assert gives(builder.job("j", simple(2), queue="b").cycle()) == {}
        builder.queue("a", guaranteed={"cpu": 2})
        assert gives(builder.job("j", simple(2), queue="b").cycle()) == {"e": 2}

    def test_its_own_queue_gets_it_within_the_guarantee(self) -> None:
        builder = running(8, queue="a").queue("a", guaranteed={"cpu": 8})
        assert gives(builder.job("j", simple(2), queue="a").cycle()) == {"e": 2}

    def test_it_gives_quota_back_too(self) -> None:
        builder = running(8, places=20).queue("main", limits={"cpu": 8}).job("j", simple(4))
        outcome = builder.applied()
        assert (outcome.started, gives(outcome)) == ([], {"e": 2})
        assert outcome.reason("j").token is Token.PREEMPTING
        assert builder.cycle().started == [], "as long as they are there, the limit holds"
        gone(builder)
        assert builder.cycle().started == ["j"]

    def test_the_run_that_has_grown_most_gives_first(self) -> None:
        builder = StateBuilder().cluster("c", nodes(12, cpu=1))
        for name, size in (("a", 5), ("b", 7)):
            builder.run(name, elastic(), on="c", sizes={"worker": size}, placement=at(size), ago=LONG)
        assert gives(builder.job("j", simple(3)).cycle()) == {"b": 2}


class TestTwoThatWait:
    """Of two jobs in one cycle, the second may not count on what the first was given."""

    def test_a_run_that_gives_back_does_not_end_as_well(self) -> None:
        builder = running(8).job("j1", simple(6), of="high").job("j2", simple(4), of="high")
        outcome = builder.cycle()
        leaving = [*outcome.plan.stops, *(one for start in outcome.plan.starts for one in start.evicts)]
        assert [(one.job_id, one.sizes) for one in leaving] == [(builder.ids["e"], {"worker": 2})]
        assert outcome.started == ["j1"]

    def test_members_that_leave_do_not_count_again_when_the_run_may_end(self) -> None:
        builder = running(8).job("j1", simple(6), of="high")
        builder.applied()
        outcome = builder.job("j2", simple(4), of="high").cycle()
        assert (outcome.started, gives(outcome)) == ([], {}), "two places would come free, and four are needed"
        assert gives(builder.job("j3", simple(2), of="high").cycle()) == {"e": None}

    def test_a_limit_on_running_jobs_takes_no_members_away(self) -> None:
        builder = running(8, places=20).queue("main", max_running=1).job("j", simple(1))
        assert gives(builder.cycle()) == {}


def test_where_quota_depends_on_products_it_grows_on_those_that_it_has() -> None:
    shape = gang(role(8, least=2, cpu=1, gpu=1), elastic=Elasticity(2, 0.0))
    builder = StateBuilder().queue("main", limits={"gpu@product=B": 9})
    a, b = (nodes(4, name, labels={"product": name}, cpu=1, gpu=1) for name in ("A", "B"))
    builder.cluster("c", a, b).run("e", shape, on="c", sizes={"worker": 2}, placement={"A": {"worker": 2}}, ago=LONG)
    (growth,) = builder.applied().plan.grows
    assert growth.placement == {"A": {"worker": 4}}
    assert builder.later(1).cycle().plan.grows == [], "there is room on B"


def test_a_role_of_one_size_never_grows_whatever_is_reported() -> None:
    shape = gang(role(4, "a", least=1), role(2, "b"), elastic=Elasticity(1, 0.0))
    builder = StateBuilder().cluster("c", nodes(9, cpu=1)).run("e", shape, on="c", sizes={"a": 4, "b": 1}, ago=LONG)
    assert builder.cycle().plan.grows == []


def test_members_leave_from_the_last_groups_and_never_more_than_are_there() -> None:
    builder = StateBuilder().cluster("c", nodes(4, "x", cpu=1), nodes(4, "y", cpu=1))
    builder.run("e", elastic(), on="c", sizes={"worker": 6}, placement={"x": {"worker": 4}, "y": {"worker": 2}})
    run = builder.state.runs[builder.ids["e"]]
    assert [(key.group, many) for key, many in members_of(run, {"worker": 3})] == [("y", 2), ("x", 1)]
    assert sum(many for _, many in members_of(run, {"worker": 99})) == 6
    assert surplus_of(run, elastic()) == {"worker": 4}
    assert surplus_of(replace(run, leaving=(("worker", 3),)), elastic()) == {"worker": 1}
    assert surplus_of(replace(run, is_stopping=True), elastic()) == {}


@given(
    st.lists(st.tuples(st.integers(2, 8), st.integers(0, 60)), max_size=4),
    st.lists(st.integers(1, 6), max_size=4),
    st.integers(8, 24),
)
@settings(max_examples=200)
def test_no_cycle_gives_out_more_than_there_is_or_takes_the_least_away(
    runs: list[tuple[int, int]], jobs: list[int], places: int
) -> None:
    builder = StateBuilder().cluster("c", nodes(places, cpu=1))
    taken = 0
    for number, (size, ago) in enumerate(runs):
        if taken + size <= places:
            taken += size
            builder.run(
                f"e{number}", elastic(), on="c", sizes={"worker": size}, placement=at(size), ago=LONG, resized=ago
            )
    for number, size in enumerate(jobs):
        builder.job(f"j{number}", simple(size))
    for _ in range(6):
        outcome = builder.applied()
        there = sum(
            sum(size for _, size in run.sizes) - sum(many for _, many in run.leaving)
            for run in builder.state.runs.values()
        )
        assert there <= places
        for run in builder.state.runs.values():
            least = sum(one.least for one in builder.state.shapes[run.shape_id].roles)
            assert sum(size for _, size in run.sizes) - sum(many for _, many in run.leaving) >= least
        if outcome.plan.grows:
            waits = [reason for reason in outcome.plan.reasons.values() if not reason.for_ever]
            assert waits == [], "nothing grows on the only cluster while somebody waits for it"
        gone(builder)
        builder.later(31)
    assert decide(builder.engine, NOW + 1000) is not None
