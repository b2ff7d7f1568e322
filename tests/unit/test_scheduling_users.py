"""Turns between the users of a queue: by what they use there, so that who submits first and most does not go first."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import NOW, StateBuilder, nodes, role, simple
from tests.unit.building import gang as gang_of
from trainmaster.protocol.queue_position import Place
from trainmaster.protocol.reasons import Token
from trainmaster.protocol.states import FairBy, Order
from trainmaster_dispatcher.domain.shapes import Elasticity
from trainmaster_dispatcher.scheduling.queries.queue_position import place_of, quotas_of
from trainmaster_dispatcher.scheduling.state.usage_decay import DecayedUsage


def world(cores: int, **queue: Any) -> StateBuilder:
    return StateBuilder().queue("main", **queue).cluster("c", nodes(cores, cpu=1))


def place(builder: StateBuilder, job: str) -> Place:
    found = place_of(builder.state, quotas_of(builder.engine, NOW), builder.ids[job], NOW)
    assert found is not None
    return found


def started_by(builder: StateBuilder) -> dict[str, int]:
    """Return how many jobs of each user start in one cycle."""
    out: dict[str, int] = {}
    for start in builder.cycle().plan.starts:
        out[start.job.user] = out.get(start.job.user, 0) + 1
    return out


def alice_before_bob(**queue: Any) -> StateBuilder:
    """Return a world in which Alice runs 3 of 4 cores, and her 6 jobs wait before the one of Bob."""
    builder = world(4, **queue)
    for number in range(3):
        builder.run(f"r{number}", on="c", user="alice")
    return builder.jobs(6, "alice", user="alice", age=100).job("bob", user="bob")


def test_the_one_job_of_a_user_is_not_behind_all_those_of_another() -> None:
    builder = alice_before_bob()
    assert builder.cycle().started == ["bob"]
    found = place(builder, "bob")
    assert (found.position, found.jobs_ahead, found.jobs_in_queue) == (1, 0, 7)
    turn = found.factors.user
    assert turn is not None
    assert (turn.user, turn.share, turn.rank, turn.users, turn.jobs_ahead) == ("bob", 0.0, 1, 2, 0)
    found = place(builder, "alice3")
    assert found.factors.user is not None
    assert (found.position, found.factors.user.rank, found.factors.user.jobs_ahead) == (4, 2, 2), (
        "two of her own, and Bob's"
    )


@pytest.mark.parametrize("queue", [{"fair_by": FairBy.NONE}, {"order": Order.STRICT}], ids=["none", "strict"])
def test_a_queue_that_does_not_share_its_turns_goes_by_age(queue: dict[str, Any]) -> None:
    builder = alice_before_bob(**queue)
    assert builder.cycle().started == ["alice1"]
    found = place(builder, "bob")
    assert (found.position, found.factors.user) == (7, None)


def test_what_a_queue_says_holds_for_those_below_that_say_nothing() -> None:
    builder = StateBuilder().queue("a", fair_by=FairBy.NONE).queue("a/x").queue("a/y", fair_by=FairBy.USER)
    builder.cluster("c", nodes(8, cpu=1))
    grouping = builder.state.grouping_of
    assert [grouping(builder.queues[path]).shares for path in ("a", "a/x", "a/y", "main")] == [False, False, True, True]


def test_users_get_equal_parts_of_what_is_free_and_those_with_a_weight_more() -> None:
    def free(**queue: Any) -> StateBuilder:
        return world(8, **queue).jobs(20, "a", user="ann", age=50).jobs(20, "b", user="ben")

    assert started_by(free()) == {"ann": 4, "ben": 4}
    assert started_by(free(user_weights={"ann": 3.0})) == {"ann": 6, "ben": 2}
    assert started_by(free(fair_by=FairBy.NONE)) == {"ann": 8}


def test_the_dominant_resource_of_each_counts() -> None:
    """Ghodsi et al. 2011, section 4.1: 9 cores and 18 GB; A's jobs need <1, 4>, B's <3, 1>: A runs 3 of them, B runs 2."""
    builder = StateBuilder().queue("main").cluster("c", nodes(1, cpu=9, memory="18Gi"))
    builder.jobs(9, "a", simple(cpu=1, memory="4Gi"), user="a").jobs(9, "b", simple(cpu=3, memory="1Gi"), user="b")
    assert started_by(builder) == {"a": 3, "b": 2}


def test_a_step_is_as_fine_as_between_queues() -> None:
    """Equal jobs start in rows, and no user gets ahead by more than one of them."""
    builder = StateBuilder().queue("main").cluster("c", nodes(64, cpu=64))
    builder.jobs(300, "a", user="ann", age=50).jobs(300, "b", user="ben")
    got = [start.job.user for start in builder.cycle(100).plan.starts]
    ahead = [got[: number + 1].count("ann") - got[: number + 1].count("ben") for number in range(100)]
    assert max(map(abs, ahead)) <= 4096 / 1024 + 1


def test_a_higher_class_goes_first_whoever_submitted_it_and_shares_decide_inside_a_class() -> None:
    builder = world(2).run("r", on="c", of="high", user="ann").job("low", of="low", user="ann", age=9)
    builder.job("other", of="low", user="ben").job("high", of="high", user="ann")
    assert builder.cycle().started == ["high"]
    assert builder.ended("high").cycle().started == ["other"]


def test_a_flood_that_has_waited_long_is_not_before_a_user_without_any_run() -> None:
    """Its jobs are urgent because their own user has too many of them."""
    builder = world(2).longest_wait("normal", 60).run("r", on="c", user="ann")
    builder.jobs(50, "flood", user="ann", age=4000).job("ben", user="ben")
    assert builder.cycle().started == ["ben"]
    assert place(builder, "ben").position == 1


def test_an_urgent_job_of_a_user_with_little_is_before_higher_classes() -> None:
    builder = world(2).longest_wait("low", 60).run("r", on="c", of="high", user="ann")
    builder.jobs(5, "high", of="high", user="ann").job("low", of="low", user="ben", age=61)
    assert builder.cycle().started == ["low"]
    found = place(builder, "low")
    assert (found.position, found.factors.urgent) == (1, True)


def test_a_gang_for_which_room_is_kept_gets_it_though_other_users_have_less() -> None:
    builder = world(4).longest_wait("normal", 60).run("r1", on="c", user="ann").run("r2", on="c", user="ann")
    builder.job("gang", simple(4), user="ann", age=100)
    assert builder.applied().started == []
    builder.jobs(9, "b", user="ben")
    assert builder.ended("r1").applied().started == []
    assert builder.ended("r2").later(1).applied().started == ["gang"]


def test_a_user_has_at_most_so_many_runs_in_a_queue_and_all_below_it() -> None:
    builder = StateBuilder().queue("top", max_running_per_user=2).queue("top/a").queue("top/b", fair_by=FairBy.NONE)
    builder.cluster("c", nodes(9, cpu=1)).run("r", on="c", queue="top/a", user="ann")
    builder.jobs(3, "x", queue="top/b", user="ann", age=9).jobs(3, "y", queue="top/b", user="ben")
    outcome = builder.applied()
    assert outcome.started == ["x1", "y1", "y2"]
    reason = builder.cycle().reason("x2")
    assert (reason.token, reason.sentence) == (Token.USER_LIMIT, "User ann runs 2 of at most 2 jobs in queue top.")
    assert builder.ended("r").cycle().started == ["x2"]
    assert set(builder.queue("top").cycle().started) == {"x2", "x3", "y3"}


def test_nothing_ends_for_a_limit_of_users() -> None:
    builder = world(4, max_running_per_user=1).run("r", on="c", of="low", user="ann").job("high", of="high", user="ann")
    outcome = builder.cycle()
    assert (outcome.plan.stops, outcome.started) == ([], [])
    assert outcome.reason("high").token is Token.USER_LIMIT


def test_a_limit_of_none_can_never_be_met() -> None:
    reason = world(4, max_running_per_user=0).job("j", user="ann").cycle().reason("j")
    assert (reason.token, reason.for_ever) == (Token.USER_LIMIT, True)


def test_past_usage_counts_between_users_too() -> None:
    builder = world(1).job("a", user="ann", age=9).job("b", user="ben")
    assert builder.cycle().started == ["a"]
    main = builder.queues["main"]
    nothing: DecayedUsage[tuple[int, str]] = DecayedUsage(3600.0, NOW, {})
    past = builder.state.past_of_users = nothing.advanced(NOW + 60, {(main, "ann"): 1.0})
    assert builder.cycle().started == ["b"]
    assert past.shares(NOW + 3660)[main, "ann"] == pytest.approx(past.levels[main, "ann"] / 2)


def test_jobs_are_ordered_anew_when_a_queue_is_changed() -> None:
    builder = alice_before_bob()
    state, main = builder.state, builder.state.queues[builder.queues["main"]]
    for fair_by, first in ((FairBy.NONE, "alice1"), (FairBy.USER, "bob"), (FairBy.NONE, "alice1"), (None, "bob")):
        state.put_queue(replace(main, fair_by=fair_by))
        assert builder.cycle().started == [first]
    state.put_queue(replace(main, fair_by=FairBy.NONE, max_running_per_user=3))
    assert builder.cycle().started == ["bob"], "Alice is at her limit"
    for job_id in list(state.jobs):
        state.drop_job(job_id)
    assert (state.waiting, state.heads) == ({}, {})


users = st.sampled_from(["ann", "ben", "cleo"])


@given(
    st.lists(users, max_size=8),
    st.lists(st.tuples(users, st.sampled_from(["low", "normal", "high"]), st.integers(0, 20)), min_size=1, max_size=12),
    st.dictionaries(users, st.sampled_from([0.5, 2.0])),
)
def test_the_position_told_is_the_place_in_the_order_of_starts(
    running: list[str], waiting: list[tuple[str, str, int]], weights: dict[str, float]
) -> None:
    """Oracle: a cycle that starts all of them, of jobs of one size."""
    builder = world(64, user_weights=weights)
    for number, user in enumerate(running):
        builder.run(f"r{number}", on="c", user=user)
    for number, (user, of, age) in enumerate(waiting):
        builder.job(f"j{number}", of=of, user=user, age=age)
    found = {job: place(builder, job).position for job in builder.ids if job.startswith("j")}
    assert found == {job: number for number, job in enumerate(builder.cycle().started, 1)}


def test_jobs_of_several_roles_count_as_a_whole() -> None:
    builder = world(16).job("big", gang_of(role(2), role(2, "b")), user="ann", age=9).jobs(4, "a", user="ann")
    builder.jobs(6, "b", user="ben")
    assert place(builder, "a1").position == 6, "big, and four of the other user, who then has as much"
    assert builder.cycle().started[:6] == ["big", "b1", "b2", "b3", "b4", "a1"]


def test_a_remembered_refusal_of_one_class_does_not_pass_by_the_turn_of_another_user() -> None:
    """Ann's high job is refused as in the cycle before; then Ben's high job is due, and only then her low one."""
    builder = (
        StateBuilder()
        .queue("main", limits={"cpu": 3})
        .cluster("c", nodes(2, cpu=4))
        .run("r", on="c", user="ben")
        .lasting("normal")
    )
    builder.job("high", simple(cpu=3), of="high", user="ann").job("low", simple(cpu=3), of="low", user="ann")
    builder.job("older", simple(cpu=3), of="high", user="ann")
    assert builder.applied().started == []
    builder.job("bens", of="high", user="ben")
    outcome = builder.cycle()
    assert outcome.started == ["bens"]
    assert "uses 1 of its 3 cpu" in outcome.reason("high").sentence
    assert "uses 2 of its 3 cpu" in outcome.reason("low").sentence


def test_a_limit_on_what_one_user_uses_counts_all_queues_below() -> None:
    builder = StateBuilder().queue("top", limits_per_user={"cpu": 2}).queue("top/a").queue("top/b", fair_by=FairBy.NONE)
    builder.cluster("c", nodes(9, cpu=1)).run("r", on="c", queue="top/b", user="ann")
    builder.jobs(2, "a", queue="top/a", user="ann").job("b", queue="top/b", user="ann").job(
        "n", queue="top/a", user="ben"
    )
    outcome = builder.cycle()
    assert sorted(outcome.started) == ["a1", "n"]
    for job in ("a2", "b"):
        reason = outcome.reason(job)
        assert (reason.token, reason.for_ever) == (Token.USER_LIMIT, False)
        assert reason.sentence == (
            "User ann uses 2 of the 2 cpu that each user may have in queue top; this job needs 1 more."
        )


def test_who_may_read_nothing_of_the_queue_does_not_read_what_its_user_has() -> None:
    builder = world(4, limits_per_user={"cpu": 1}).run("r", on="c", user="ann").job("j", user="ann")
    text = builder.cycle().reason("j", lambda _: False).sentence
    assert "1 of the 1" not in text
    assert "may not have enough cpu more" in text


def test_what_one_user_may_never_have_is_told_as_such() -> None:
    reason = world(4, limits_per_user={"cpu": 1}).job("j", simple(cpu=2), user="ann").cycle().reason("j")
    assert (reason.token, reason.for_ever) == (Token.USER_LIMIT, True)
    assert (
        reason.sentence == "It can never start in queue main: it needs 2 cpu, and each user may have 1 in queue main."
    )


def test_an_elastic_job_starts_and_grows_within_the_limit_of_its_user() -> None:
    shape = gang_of(role(6, least=1, cpu=1), elastic=Elasticity(1, 0.0), capabilities=("resize",))
    builder = world(9, limits_per_user={"cpu": 3}).job("j", shape, user="ann")
    (start,) = builder.applied().plan.starts
    sizes = [sum(start.sizes.values())]
    while grows := builder.later(60).applied().plan.grows:
        sizes.append(sum(grows[0].sizes.values()))
    assert sizes == [1, 2, 3]
    builder.queue("main", limits_per_user={"cpu": 4})
    (growth,) = builder.cycle().plan.grows
    assert sum(growth.sizes.values()) == 4
