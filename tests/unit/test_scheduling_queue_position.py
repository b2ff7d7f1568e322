"""The place of a waiting job, what it goes by, and trials of jobs that do not exist, which leave no trace."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import NOW, StateBuilder, gang, nodes, role, simple
from trainmaster.protocol.queue_position import Place, Trial
from trainmaster.protocol.reasons import Check, Tier, Token
from trainmaster.protocol.states import ClusterKind, FairBy, Order, OrderBy
from trainmaster_dispatcher.domain.shapes import Shape
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.queries.dry_run import TRIAL_JOB, try_out
from trainmaster_dispatcher.scheduling.queries.queue_position import place_of, quotas_of, usage_of
from trainmaster_dispatcher.scheduling.quotas.fair_share import head_of
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

CLASSES = {"low": 1, "normal": 2, "high": 3}


def placed(builder: StateBuilder, name: str) -> Place:
    place = place_of(builder.state, quotas_of(builder.engine, builder.now), builder.ids[name], builder.now)
    assert place is not None
    return place


def tried(
    builder: StateBuilder, shape: Shape | None = None, *, queue: str = "main", of: str = "normal", priority: int = 0
) -> Trial:
    """Return the trial of a job that would be submitted now."""
    job = WaitingJob(0, 0, "new", builder.queues[queue], CLASSES[of], 0, priority, builder.now, 0)
    trial = try_out(builder.engine, quotas_of(builder.engine, builder.now), job, shape or simple(), builder.now)
    assert trial is not None
    return trial


# What queues use


def test_usage_is_told_by_line_of_a_queue_and_all_below_it() -> None:
    builder = StateBuilder().queue("a", guaranteed={"cpu": 4}, weight=2.0).queue("a/x").queue("a/y")
    builder.queue("main", limits={"cpu@kind=edge": 9})
    builder.cluster("c", nodes(4, cpu=4)).cluster("e", nodes(1, cpu=4), kind=ClusterKind.EDGE)
    builder.run("r1", simple(cpu=2), on="c", queue="a/x").run("r2", simple(3, cpu=1), on="e", queue="a/y")
    builder.run("r3", simple(cpu=1), on="e", queue="main")
    usages = {one.queue: one for one in usage_of(builder.state, quotas_of(builder.engine, builder.now)).queues}
    assert list(usages) == ["a", "a/x", "a/y", "main"]
    assert (usages["a"].running, usages["a"].used) == (2, {"cpu": "5", "cpu@kind=edge": "3"})
    assert (usages["a/x"].running, usages["a/x"].used) == (1, {"cpu": "2"})
    assert (usages["main"].running, usages["main"].used) == (1, {"cpu": "1", "cpu@kind=edge": "1"})
    # Of all cores a uses 5 of 20, and one beyond its guarantee; of those at the edge 3 of 4, which nobody is guaranteed.
    assert (usages["a"].share, usages["a"].share_beyond_guarantee) == (0.375, 0.375)


def test_a_queue_that_uses_nothing_is_told_so() -> None:
    builder = StateBuilder().cluster("c", nodes())
    (main,) = usage_of(builder.state, quotas_of(builder.engine, builder.now)).queues
    assert (main.running, main.used, main.share, main.share_beyond_guarantee) == (0, {}, 0.0, 0.0)


# The place


def test_a_job_is_told_how_many_are_before_it_and_in_which_queue() -> None:
    builder = StateBuilder().queue("other").jobs(5, "elsewhere", queue="other").jobs(3, "j")
    place = placed(builder, "j2")
    assert (place.queue, place.position, place.jobs_ahead, place.jobs_in_queue) == ("main", 2, 1, 3)


def test_jobs_of_all_classes_and_shapes_of_the_queue_are_counted() -> None:
    builder = StateBuilder().job("high", of="high").job("big", simple(cpu=2), age=50).job("low", of="low", age=999)
    builder.job("j")
    assert [placed(builder, name).position for name in ("high", "big", "j", "low")] == [1, 2, 3, 4]


def test_jobs_that_can_never_run_are_ahead_of_nobody() -> None:
    builder = (
        StateBuilder().cluster("c", nodes(1, cpu=4)).job("huge", simple(cpu=99), age=90).job("full", simple(cpu=4))
    )
    builder.run("r", simple(cpu=4), on="c").job("j", simple(cpu=3))
    plan = decide(builder.engine, builder.now)
    quotas = quotas_of(builder.engine, builder.now)
    found = {
        name: place_of(builder.state, quotas, builder.ids[name], builder.now, plan.reasons)
        for name in ("huge", "full", "j")
    }
    assert {name: (place.position, place.jobs_ahead) for name, place in found.items() if place} == {
        "huge": (1, 0),
        "full": (1, 0),
        "j": (2, 1),
    }
    assert {(place.jobs_in_queue, place.jobs_that_cannot_run) for place in found.values() if place} == {(3, 1)}
    assert placed(builder, "j").position == 3, "without reasons, nothing is known of them"


def test_so_are_jobs_that_a_limit_keeps_from_ever_starting() -> None:
    builder = StateBuilder().queue("main", limits={"cpu": 2}).cluster("c", nodes(1, cpu=4))
    builder.job("never", simple(cpu=3), age=90).job("full", simple(cpu=2)).job("j", simple(cpu=1))
    plan = decide(builder.engine, builder.now)
    quotas = quotas_of(builder.engine, builder.now)
    of_never = next(reason for key, reason in plan.reasons.items() if reason.for_ever)
    assert (of_never.token, of_never.tier) == (Token.QUEUE_LIMIT, Tier.QUOTA)
    places = [
        place_of(builder.state, quotas, builder.ids[name], builder.now, plan.reasons) for name in ("never", "full", "j")
    ]
    assert [place.position for place in places if place] == [1, 1, 2]
    assert [place.jobs_that_cannot_run for place in places if place] == [1, 1, 1]


def test_a_trial_is_not_behind_jobs_that_can_never_run() -> None:
    builder = StateBuilder().cluster("c", nodes(1, cpu=4)).job("huge", simple(cpu=99))
    plan = decide(builder.engine, builder.now)
    job = WaitingJob(0, 0, "new", builder.queues["main"], CLASSES["normal"], 0, 0, builder.now, 0)
    trial = try_out(builder.engine, quotas_of(builder.engine, NOW), job, simple(), builder.now, plan.reasons)
    assert trial is not None
    assert (trial.place.position, trial.place.jobs_in_queue, trial.place.jobs_that_cannot_run) == (1, 2, 1)


def test_what_makes_the_key_is_told() -> None:
    builder = StateBuilder().longest_wait("normal", 100).job("j", age=30, priority=1)
    factors = placed(builder, "j").factors
    submitted = NOW - 30 + 0.001
    assert (factors.priority_class, factors.class_value, factors.priority) == ("normal", 100, 1)
    assert factors.seconds_earlier == 60
    assert factors.submitted_at == datetime.fromtimestamp(submitted, UTC)
    assert factors.urgent_at == datetime.fromtimestamp(submitted - 60 + 100, UTC)
    assert not factors.urgent
    assert placed(builder.later(11), "j").factors.urgent


def test_a_class_without_a_longest_wait_has_no_time_of_urgency() -> None:
    assert placed(StateBuilder().job("j"), "j").factors.urgent_at is None


def test_the_queues_are_told_from_the_root_with_their_turns_among_those_that_wait() -> None:
    builder = StateBuilder().cluster("c", nodes(1, cpu=10)).queue("a", weight=2, guaranteed={"cpu": 2}).queue("a/x")
    builder.queue("a/idle").queue("a/y").queue("b").run("r1", simple(cpu=4), on="c", queue="a/x")
    builder.job("j", queue="a/x").job("k", queue="a/y").job("l", queue="b")
    first, second = placed(builder, "j").factors.queues
    assert (first.queue, first.weight, first.rank, first.siblings) == ("a", 2.0, 2, 2)
    assert (first.share_beyond_guarantee, first.share) == pytest.approx((0.1, 0.2))
    assert (second.queue, second.rank, second.siblings) == ("a/x", 2, 2), "a/idle has nothing waiting"
    assert second.share == pytest.approx(0.4)
    assert [turn.rank for turn in placed(builder, "k").factors.queues] == [2, 1]


@pytest.mark.parametrize("name", ["running", "gone"])
def test_a_job_that_does_not_wait_has_no_place(name: str) -> None:
    builder = StateBuilder().cluster("c", nodes(1, cpu=4)).run("running", on="c")
    assert place_of(builder.state, quotas_of(builder.engine, NOW), builder.ids.get(name, 99), NOW) is None


def test_a_job_whose_queue_is_not_known_yet_has_no_place() -> None:
    builder = StateBuilder().queue("gone").job("j", queue="gone")
    builder.state.drop_queue(builder.queues["gone"])
    assert place_of(builder.state, quotas_of(builder.engine, NOW), builder.ids["j"], NOW) is None


waiting_jobs = st.lists(
    st.tuples(
        st.sampled_from(["low", "normal", "high"]),
        st.integers(1, 3),
        st.integers(-2, 2),
        st.floats(0, 400) | st.sampled_from([0.0, 60.0, 100.0]),
    ),
    min_size=1,
    max_size=40,
)


@given(waiting_jobs, st.sampled_from([None, 0.0, 100.0]), st.sampled_from([None, 60.0]))
def test_the_position_is_the_index_in_a_full_sort(
    given_jobs: list[tuple[str, int, int, float]], normal: float | None, low: float | None
) -> None:
    builder = StateBuilder()
    for of, seconds in (("normal", normal), ("low", low)):
        if seconds is not None:
            builder.longest_wait(of, seconds)
    for number, (of, cpu, priority, age) in enumerate(given_jobs):
        builder.job(f"j{number}", simple(cpu=cpu), of=of, priority=priority, age=age)
    jobs = builder.state.jobs.values()
    ordered = sorted(jobs, key=lambda job: head_of(builder.state.classes[job.class_id], job.key, NOW))
    found = {job.id: placed(builder, job.name).position for job in jobs}
    assert found == {job.id: index for index, job in enumerate(ordered, start=1)}


# Trials


def test_a_job_that_fits_would_start_at_once_and_is_told_where() -> None:
    builder = StateBuilder().cluster("c", nodes(1, cpu=2)).cluster("full", nodes(1, cpu=1)).run("r", on="full")
    trial = tried(builder)
    assert (trial.could_run, trial.starts_now, trial.cluster) == (True, True, "c")
    assert trial.why.startswith("c is the only cluster where it fits now")
    assert trial.fits_empty == ("c", "full")
    assert trial.fits_now == ("c",)
    assert trial.reason is None
    assert trial.place.position == 1


def test_a_job_that_lacks_room_is_told_its_place_and_until_when_it_starts() -> None:
    builder = StateBuilder().cluster("c", nodes(1, cpu=2)).run("r", simple(cpu=2, limit=500.0), on="c", ago=100)
    trial = tried(builder)
    assert (trial.could_run, trial.starts_now) == (True, False)
    assert (trial.cluster, trial.expected_start) == ("c", datetime.fromtimestamp(NOW + 400, UTC))
    assert trial.reason is not None
    assert trial.reason.token is Token.INSUFFICIENT_CAPACITY
    assert trial.why == trial.reason.sentence
    assert (trial.fits_empty, trial.fits_now) == (("c",), ())


def test_a_dry_run_expects_a_job_to_take_as_long_as_such_jobs_of_its_user_did() -> None:
    three, one = simple(3), simple()
    builder = StateBuilder().cluster("c", nodes(4, cpu=1)).run("r", three, on="c", predicted=100.0)
    builder.job("big", simple(4), age=1).learnt(one, 50.0).applied()
    assert tried(builder, one).starts_now
    builder.learnt(one, 500.0)
    trial = tried(builder, one)
    assert not trial.starts_now
    assert "is expected to run until after that" in trial.why
    waits = tried(builder, simple(4, limit=5))
    assert waits.expected_start is None, "the cluster is kept for another job"


def test_without_time_limits_nobody_knows_when() -> None:
    builder = StateBuilder().cluster("c", nodes(1, cpu=2)).run("r", simple(cpu=2), on="c")
    trial = tried(builder)
    assert trial.expected_start is None
    assert trial.cluster is None


def test_a_job_that_fits_nowhere_could_never_run() -> None:
    trial = tried(StateBuilder().cluster("c", nodes(1, cpu=2)), simple(cpu=64))
    assert not trial.could_run
    assert trial.reason is not None
    assert (trial.reason.token, trial.reason.tier) == (Token.TOO_LARGE, Tier.CANNOT_RUN)
    assert trial.reason.verdicts[0].check is Check.NEVER_FITS
    assert trial.fits_empty == ()


def test_that_it_could_never_run_is_told_before_what_passes() -> None:
    builder = StateBuilder().queue("held", held=True).queue("narrow", limits={"cpu": 1}).cluster("c", nodes(1, cpu=2))
    assert not tried(builder, simple(cpu=64), queue="held").could_run
    over = tried(builder, simple(cpu=2), queue="narrow")
    assert not over.could_run
    assert over.reason is not None
    assert over.reason.for_ever
    assert over.fits_empty == ("c",), "quota is another question"


@pytest.mark.parametrize(
    ("builder", "token"),
    [
        (StateBuilder().queue("q", held=True).cluster("c", nodes()), Token.QUEUE_HELD),
        (StateBuilder().queue("q", max_running=1).cluster("c", nodes()).run("r", on="c", queue="q"), Token.QUEUE_LIMIT),
        (StateBuilder().queue("q"), Token.NO_CLUSTERS),
        (StateBuilder().queue("q").cluster("c", silent=True), Token.UNREACHABLE),
        (StateBuilder().queue("q").cluster("c", nodes(), cordoned=True), Token.CORDONED),
    ],
    ids=lambda value: str(value) if isinstance(value, Token) else "",
)
def test_what_may_pass_makes_a_job_wait(builder: StateBuilder, token: Token) -> None:
    trial = tried(builder, queue="q")
    assert (trial.could_run, trial.starts_now) == (True, False)
    assert trial.reason is not None
    assert trial.reason.token is token


def test_it_does_not_start_on_what_is_kept_for_a_job_that_waits_longer() -> None:
    builder = StateBuilder().cluster("c", nodes(1, cpu=2)).run("r", simple(cpu=1, limit=500.0), on="c")
    builder.job("big", simple(cpu=2, limit=10.0), age=60)
    builder.applied()
    trial = tried(builder)
    assert (trial.starts_now, trial.place.position) == (False, 2)
    assert trial.reason is not None
    assert trial.reason.token is Token.RESERVED
    assert trial.fits_now == ("c",), "there is room, but not for it"
    assert tried(builder, simple(limit=60.0)).starts_now, "it ends before that"
    assert tried(builder, of="high").starts_now, "it goes before that"


def test_in_a_queue_that_keeps_its_order_it_stands_behind_a_blocked_job() -> None:
    builder = StateBuilder().queue("q", order=Order.STRICT).cluster("c", nodes(1, cpu=4)).cluster("d", nodes(1, cpu=4))
    builder.run("r", simple(cpu=2), on="c").run("s", simple(cpu=2), on="d").job(
        "huge", simple(cpu=4), queue="q", age=60
    )
    trial = tried(builder, queue="q")
    assert trial.reason is not None
    assert trial.reason.token is Token.BEHIND_OTHERS
    assert tried(builder, queue="q", of="high").starts_now


def test_it_is_told_how_many_runs_would_be_ended_for_it() -> None:
    builder = StateBuilder().cluster("c", nodes(1, cpu=2)).run("a", on="c", of="low").run("b", on="c", of="low")
    trial = tried(builder, simple(cpu=2), of="high")
    assert (trial.starts_now, trial.runs_ended) == (True, 2)
    assert trial.why == "c, where 2 runs end for it"


def test_the_place_counts_class_and_priority() -> None:
    builder = StateBuilder().jobs(3, "j", age=60).job("high", of="high")
    assert tried(builder).place.position == 5
    assert tried(builder, priority=2).place.position == 2
    assert tried(builder, of="low").place.position == 5
    assert tried(builder, of="high", priority=2).place.position == 1


def test_a_queue_or_class_that_is_not_known_yet_cannot_be_tried() -> None:
    builder = StateBuilder()
    job = WaitingJob(0, 0, "new", builder.queues["main"], 2, 0, 0, NOW, 0)
    quotas = quotas_of(builder.engine, NOW)
    assert try_out(builder.engine, quotas, replace(job, queue_id=99), simple(), NOW) is None
    assert try_out(builder.engine, quotas, replace(job, class_id=99), simple(), NOW) is None


# No trace

CACHES = ("_policies_of", "_groupings", "_access", "_flavors", "_ancestry", "_starts_when", "_changes")
"""What is worked out when it is first asked for, and what an engine takes."""


def picture(state: SchedulerState) -> dict[str, Any]:
    return {name: deepcopy(value) for name, value in vars(state).items() if name not in CACHES}


def order_of(state: SchedulerState) -> dict[int, list[Any]]:
    """Return the order of entries, as dictionaries are equal in any order."""
    return {queue: list(classes) for queue, classes in state.waiting.items()}


Make = Callable[[int], Shape]
MAKES: dict[str, Make] = {
    "small": lambda more: simple(cpu=f"{1000 + more}m"),
    "limited": lambda more: simple(cpu=f"{2000 + more}m", limit=60.0),
    "gang": lambda more: gang(role(2, cpu=f"{1000 + more}m"), role(1, "b", cpu=3)),
    "wide": lambda more: simple(3, cpu=f"{1000 + more}m"),
    "too large": lambda more: simple(cpu=f"{99_000 + more}m"),
}
QUEUES = ("main", "a/x", "a/y", "strict", "held")
Member = tuple[str, str, str, bool, int]
members = st.lists(
    st.tuples(
        st.sampled_from(QUEUES),
        st.sampled_from(sorted(CLASSES)),
        st.sampled_from(sorted(MAKES)),
        st.booleans(),
        st.integers(0, 300),
    ),
    max_size=12,
)


def world(given_members: list[Member], *, distinct: bool = False) -> StateBuilder:
    """Return jobs and runs in queues of all sorts. ``distinct``: no two jobs have the same shape."""
    builder = (
        StateBuilder().longest_wait("low", 100).queue("a/x", guaranteed={"cpu": 2}).queue("a/y", limits={"cpu": 3})
    )
    builder.queue("strict", order=Order.STRICT).queue("held", held=True)
    builder.cluster("c", nodes(2, cpu=4)).cluster("d", nodes(1, cpu=3)).cluster("e", silent=True)
    for number, (queue, of, make, runs, age) in enumerate(given_members, start=1):
        shape = MAKES[make](number if distinct else 0)
        if runs and make != "too large":
            builder.run(f"j{number}", shape, on="cd"[number % 2], queue=queue, of=of, ago=age)
        else:
            builder.job(f"j{number}", shape, queue=queue, of=of, age=age)
    return builder


one_more = (st.sampled_from(QUEUES), st.sampled_from(sorted(CLASSES)), st.sampled_from(sorted(MAKES)))


@given(members, *one_more)
def test_a_trial_leaves_the_state_as_it_was(given_members: list[Member], queue: str, of: str, make: str) -> None:
    builder = world(given_members)
    builder.applied()
    before, order, plan = picture(builder.state), order_of(builder.state), decide(builder.engine, NOW)
    waiting, index, shapes = builder.state.waiting, builder.engine.index, dict(builder.state.shapes)
    trial = tried(builder, MAKES[make](0), queue=queue, of=of)
    assert builder.state.waiting is waiting
    assert builder.engine.index is index
    assert picture(builder.state) == before
    assert order_of(builder.state) == order
    assert builder.state.shapes == shapes
    assert decide(builder.engine, NOW) == plan
    assert trial.fits_empty or not trial.starts_now


def settle(builder: StateBuilder) -> None:
    """Run cycles until nothing changes any more; runs that were asked to stop end."""
    while True:
        plan = builder.applied().plan
        stopping = [run.job_id for run in builder.state.runs.values() if run.is_stopping]
        if not plan.starts and not stopping:
            return
        for job_id in stopping:
            builder.state.drop_job(job_id)


@given(members, *one_more)
def test_what_is_said_to_start_in_a_settled_world_does_start_there(
    given_members: list[Member], queue: str, of: str, make: str
) -> None:
    builder, shape = world(given_members, distinct=True), MAKES[make](0)
    settle(builder)
    trial = tried(builder, shape, queue=queue, of=of)
    builder.job("new", shape, queue=queue, of=of)
    builder.state.put_waiting(replace(builder.state.jobs[builder.ids["new"]], waits_since=NOW))
    assert placed(builder, "new").position == trial.place.position
    outcome = builder.cycle()
    assert outcome.where.get("new") == (trial.cluster if trial.starts_now else None)
    if not trial.starts_now and trial.could_run:
        assert trial.reason is not None
        assert outcome.reason("new").token is trial.reason.token


def test_a_trial_that_fails_leaves_the_state_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = StateBuilder().cluster("c", nodes()).job("j")
    before = picture(builder.state)

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("trainmaster_dispatcher.scheduling.queries.dry_run.decide", broken)
    with pytest.raises(RuntimeError):
        tried(builder)
    assert picture(builder.state) == before
    assert TRIAL_JOB not in builder.state.jobs


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["normal", "low"]),
            st.sampled_from([None, 5.0, 60.0, 3600.0]),
            st.integers(-2, 2),
            st.floats(0, 10_000),
            st.sampled_from(["ann", "ben"]),
        ),
        min_size=1,
        max_size=25,
    ),
    st.sampled_from([None, 100.0]),
    st.booleans(),
)
def test_in_a_queue_by_slowdown_the_position_is_that_of_the_starts(
    given_jobs: list[tuple[str, float | None, int, float, str]], normal: float | None, is_shared: bool
) -> None:
    """One core becomes free again and again: who is told to be first starts."""
    builder = StateBuilder().queue("main", order_by=OrderBy.SLOWDOWN, fair_by=FairBy.USER if is_shared else FairBy.NONE)
    builder.cluster("c", nodes(1, cpu=1))
    if normal is not None:
        builder.longest_wait("normal", normal)
    for number, (of, limit, priority, age, user) in enumerate(given_jobs):
        shape = gang(role(1), time_limit_seconds=limit)
        builder.job(f"j{number}", shape, of=of, priority=priority, age=age, user=user)
    while builder.state.jobs:
        first = min(builder.state.jobs.values(), key=lambda job: placed(builder, job.name).position)
        (started,) = builder.cycle().started
        assert started == first.name
        builder.ended(started)


def test_by_slowdown_short_jobs_go_before_long_ones_that_have_waited_longer() -> None:
    builder = StateBuilder().queue("main", order_by=OrderBy.SLOWDOWN, time_limit=100.0).cluster("c", nodes(1, cpu=1))
    builder.job("day", gang(role(1), time_limit_seconds=86_400.0), age=3600)
    builder.job("minutes", gang(role(1), time_limit_seconds=600.0), age=600)
    builder.job("of its queue", age=101)
    outcome = builder.cycle()
    assert outcome.started == ["of its queue"]
    assert [placed(builder, name).position for name in ("day", "minutes", "of its queue")] == [3, 2, 1]
    assert [placed(builder, name).factors.slowdown for name in ("day", "minutes")] == [1.042, 2.0]
    builder.queue("main", order_by=OrderBy.AGE)
    assert builder.cycle().started == ["day"]
    assert placed(builder, "day").factors.slowdown is None


def test_by_slowdown_a_trial_has_the_position_that_its_run_time_gives_it() -> None:
    builder = StateBuilder().queue("main", order_by=OrderBy.SLOWDOWN).cluster("c", nodes(1, cpu=1))
    builder.job("hour", gang(role(1), time_limit_seconds=3600.0), age=3600)
    builder.job("day", gang(role(1), time_limit_seconds=86_400.0), age=3600)
    for limit, position in ((60.0, 3), (None, 3)):
        trial = tried(builder, gang(role(1), time_limit_seconds=limit))
        assert (trial.place.position, trial.place.jobs_in_queue) == (position, 3), limit
    builder.now += 100.0
    assert tried(builder, gang(role(1), time_limit_seconds=60.0)).place.factors.slowdown == 1.0


def test_by_slowdown_a_job_of_unknown_time_goes_last_of_its_class_until_it_is_urgent() -> None:
    builder = StateBuilder().queue("main", order_by=OrderBy.SLOWDOWN).cluster("c", nodes(1, cpu=1))
    builder.job("unknown", age=5000).job("known", gang(role(1), time_limit_seconds=600.0), age=1).job(
        "low", of="low", age=9000
    )
    assert builder.cycle().started == ["known"]
    assert placed(builder, "unknown").position == 2
    builder.longest_wait("normal", 4000.0)
    assert builder.cycle().started == ["unknown"]
