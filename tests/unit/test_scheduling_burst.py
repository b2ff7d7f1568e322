"""Bursting: when, where, how many and at what cost jobs go to public clusters, and what their reasons are while they do not."""

from collections import defaultdict
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import GPU, NOW, StateBuilder, gang, nodes, role, simple
from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster.protocol.prices import NANOS
from trainmaster.protocol.reasons import Token
from trainmaster.protocol.states import ClusterKind, Order
from trainmaster_dispatcher.domain.budgets import Span, window_at
from trainmaster_dispatcher.domain.burst_policies import policy_of
from trainmaster_dispatcher.domain.prices import MICROS, SPOT_LABELS
from trainmaster_dispatcher.scheduling.cycle.burst import BurstQuestion, BurstStart
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.queries.burst_preview import preview
from trainmaster_dispatcher.scheduling.queries.dry_run import try_out
from trainmaster_dispatcher.scheduling.queries.queue_position import quotas_of
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob

ALL = tuple(ClusterKind)
CORE = {"onDemand": {"cpu": 1}}
HOUR = 3600.0
SPOT = {"trainmaster.dev/spot": "true"}
WIDE: dict[str, Any] = {"queues": ["main"], "budget": {"day": 1000}, "timeLimit": "1h"}
ANY = {"budget": {"day": 1000}, "timeLimit": "1h"}


def full(**policy: Any) -> StateBuilder:
    """Return a private cluster without room, a public one with 8 cores at 1 an hour, and a policy that lets everything go."""
    builder = StateBuilder().cluster("own", nodes(1, cpu=4)).run("r", simple(cpu=4, limit=2 * HOUR), on="own")
    builder.cluster("rented", nodes(2, cpu=4), kind=ClusterKind.PUBLIC, prices=CORE)
    return builder.policy(**{**ANY, **policy})


def limited(hours: float = 1.0, **needs: Any) -> Any:
    """Return the shape of a job of one member that ends within ``hours``, its end included."""
    return simple(limit=hours * HOUR - 10, **(needs or {"cpu": 1}))


GOES: dict[str, StateBuilder] = {
    "where its own clusters are full": full().job("j"),
    "where it fits on none of its own": full().job("j", simple(cpu=4)).cluster("own", nodes(1, cpu=2)),
    "where there is no own cluster at all": full().job("j", gang(role(), kinds=(ClusterKind.PUBLIC,))),
    "where all its own have returned it": full().job("j", returned_by=("own",)),
    "once it has waited long enough": full(when={"after": "10m"}).job("j", age=601),
    "by the policy of a queue above": full()
    .queue("org/team")
    .policy("overflow", "org", **ANY)
    .job("j", queue="org/team"),
    "where it would have to wait too long": full(when={"expectedWait": "1h"}).job("j"),
    "where private clusters are full enough": full(when={"utilisation": {"above": 0.9}}).job("j"),
    "if its class is high enough": full(when={"classAtLeast": "normal"}).lasting("normal").job("j", of="high"),
    "with the last of the jobs": full(atMost={"jobs": 1}).job("j"),
    "with the last of the cores": full(atMost={"resources": {"cpu": 1}}).job("j"),
    "with the last part of a node": full(atMost={"nodes": 1}).job("j", simple(cpu=4)),
    "for the last of the money": full(budget={"hour": 1, "day": 1, "job": 1}).job("j", limited()),
    "with a limit of its queue": full(timeLimit=None).queue("main", time_limit=60).job("j"),
    "within the hours": full(hours=[{"start": "00:00", "end": "00:20"}]).job("j"),
    "beside a policy that does not take it": full(paused=True).policy("second", **ANY).job("j"),
    "though its queue has a quota": full().queue("main", limits={"cpu": 5, "cpu@kind=public": 1}).job("j"),
}


@pytest.mark.parametrize("sentence", GOES)
def test_a_job_goes(sentence: str) -> None:
    assert GOES[sentence].cycle().where == {"j": "rented"}


STAYS: dict[str, tuple[StateBuilder, Token, str]] = {
    "without a policy": (
        StateBuilder()
        .cluster("own", nodes(1, cpu=4))
        .run("r", simple(cpu=4), on="own")
        .cluster("rented", nodes(), kind=ClusterKind.PUBLIC, prices=CORE)
        .job("j"),
        Token.INSUFFICIENT_CAPACITY,
        "its queue allows edge and private clusters, this one is public",
    ),
    "as its queue reaches public clusters by its policy alone": (
        full(paused=True).queue("main", kinds=ALL).job("j"),
        Token.INSUFFICIENT_CAPACITY,
        "By policy overflow it does not go to a public cluster: it is paused.",
    ),
    "without a time limit": (
        full(timeLimit=None).job("j"),
        Token.INSUFFICIENT_CAPACITY,
        "it takes jobs with a time limit: nothing else ends what they may cost",
    ),
    "with too long a time limit": (
        full().job("j", limited(5)),
        Token.INSUFFICIENT_CAPACITY,
        "it takes jobs of at most 1h, the limit of this one is 4h59m",
    ),
    "of a lower class": (
        full(when={"classAtLeast": "high"}).job("j"),
        Token.INSUFFICIENT_CAPACITY,
        "it takes jobs of class high and above, this one is normal",
    ),
    "before it has waited long enough": (
        full(when={"after": "10m"}).job("j", age=100),
        Token.BURST_NOT_YET,
        "it may go once it has waited 10m, at 1970-01-01T00:25:01Z",
    ),
    "as too large for public clusters, too, however long it waits": (
        full(when={"after": "10m"}).job("j", simple(cpu=5), age=100),
        Token.TOO_LARGE,
        "By policy overflow it does not go to a public cluster: rented: needs 5 cpu on one node, the best node has 4.",
    ),
    "as there is no public cluster, however long it waits": (
        full(when={"after": "10m"}, clusters=["other"]).job("j", age=100),
        Token.INSUFFICIENT_CAPACITY,
        "there is no public cluster named other",
    ),
    "while it starts soon enough on its own": (
        full(when={"expectedWait": "3h"}).job("j"),
        Token.BURST_NOT_YET,
        "it takes jobs that wait longer than 3h from now on, this one may start at 1970-01-01T02:16:40Z",
    ),
    "while private clusters are not full enough": (
        full(when={"utilisation": {"above": 0.9}}).cluster("second", nodes(4, cpu=1)).job("j", simple(cpu=2)),
        Token.BURST_NOT_YET,
        "it opens when private clusters are 90% in use, they are 50%",
    ),
    "outside the hours": (
        full(hours=[{"start": "18:00", "end": "06:00", "timeZone": "Europe/Berlin", "days": ["fri"]}]).job("j"),
        Token.BURST_NOT_YET,
        "it opens at 1970-01-02T17:00:00Z",
    ),
    "when so many jobs are there": (
        full(atMost={"jobs": 1}).job("a").job("j", simple(cpu=2)),
        Token.BURST_LIMIT,
        "1 job of at most 1 are at public clusters by it",
    ),
    "when so many nodes are in use": (
        full(atMost={"nodes": 1}).job("a", simple(cpu=2)).job("j", simple(cpu=3)),
        Token.BURST_LIMIT,
        "its jobs hold 0.5 of at most 1 nodes, this one needs 0.75",
    ),
    "when so many cores are in use": (
        full(atMost={"resources": {"cpu": 4}}).job("a", simple(cpu=2)).job("j", simple(cpu=3)),
        Token.BURST_LIMIT,
        "its jobs hold 2 of at most 4 cpu, this one needs 3",
    ),
    "when so many have just started": (
        full(atMost={"ramp": {"jobs": 1, "every": "5m"}}).job("a").job("j", simple(cpu=2)),
        Token.BURST_NOT_YET,
        "it lets 1 jobs start every 5m, the next one at 1970-01-01T00:21:40Z",
    ),
    "when the budget of a day is spent": (
        full(budget={"day": 5}).job("j", limited()).spent("overflow", "4.01"),
        Token.BURST_BUDGET,
        "the budget of 5.00 for a day is not enough: 4.01 was spent by runs that have ended, 0.00 is committed to live runs, and this"
        " one may cost 1.00 in it (1.00 an hour for 1h at most, its start and end included)",
    ),
    "when others may still cost so much": (
        full(budget={"day": 5}).job("a", limited(cpu=3)).job("j", limited(1, cpu="2500m")),
        Token.BURST_BUDGET,
        "0.00 was spent by runs that have ended, 3.00 is committed to live runs, and this one may cost 2.50 in it",
    ),
    "when it would cost too much for a job": (
        full(budget={"day": 500, "job": 2}).job("j", limited(cpu=3)),
        Token.BURST_BUDGET,
        "the budget of 2.00 for a job is not enough: this one may cost 3.00",
    ),
    "when earlier runs of it have cost too much": (
        full(budget={"day": 500, "job": 2}).job("j", limited(cpu=2)).spent("overflow", "0.5", job="j"),
        Token.BURST_BUDGET,
        "the budget of 2.00 for a job is not enough: earlier runs of it have cost 0.50 and this one may cost 2.00",
    ),
    "when public clusters are full, too": (
        full().run("p", simple(2, cpu=4), on="rented").job("j"),
        Token.INSUFFICIENT_CAPACITY,
        "does not go to a public cluster: rented: ",
    ),
    "where no budget can hold": (
        full().cluster("rented", nodes(2, cpu=4), kind=ClusterKind.PUBLIC).job("j"),
        Token.INSUFFICIENT_CAPACITY,
        "rented: it has no price book, so the cost there, which a budget bounds, is unknown",
    ),
    "to a cluster that the policy does not name": (
        full(clusters=["other"]).job("j"),
        Token.INSUFFICIENT_CAPACITY,
        "there is no public cluster named other",
    ),
    "over the quota of rented cores": (
        full().queue("main", limits={"cpu@kind=public": 1}).job("j", simple(cpu=2)),
        Token.INSUFFICIENT_CAPACITY,
        "rented: queue main uses 0 of its 1 cpu@kind=public; this job needs 2 more",
    ),
    "to spot nodes where it may not": (
        full(spot="never").cluster("rented", nodes(labels=SPOT), kind=ClusterKind.PUBLIC, prices=CORE).job("j"),
        Token.INSUFFICIENT_CAPACITY,
        "among the nodes that the policy allows",
    ),
}


@pytest.mark.parametrize("sentence", STAYS)
def test_a_job_stays(sentence: str) -> None:
    builder, token, words = STAYS[sentence]
    outcome = builder.cycle()
    assert "j" not in outcome.where
    reason = outcome.reason("j")
    verdicts = " ".join(verdict.sentence for verdict in reason.verdicts)
    assert words in f"{reason.sentence} {verdicts}"
    assert reason.token is token
    assert reason.advice


def test_a_job_that_every_cluster_has_returned_is_held() -> None:
    builder = full().job("j", returned_by=("own", "rented"))
    assert builder.cycle().held == {"j": "every cluster it could go to returned it: own, rented"}


def test_a_job_that_its_own_clusters_have_returned_waits_for_its_policy() -> None:
    builder = full(when={"after": "1h"}).job("j", returned_by=("own",))
    outcome = builder.cycle()
    assert (outcome.held, outcome.reason("j").token) == ({}, Token.BURST_NOT_YET)


def test_one_starts_on_its_own_cluster_as_soon_as_that_has_room() -> None:
    assert full().job("j").ended("r").cycle().where == {"j": "own"}


def test_nobody_goes_whose_turn_is_blocked_by_the_order_of_the_queue() -> None:
    builder = full(when={"after": "10m"}).queue("main", order=Order.STRICT).job("j").job("k", simple(cpu=2), age=-1)
    outcome = builder.cycle()
    assert outcome.where == {}
    assert outcome.reason("k").token is Token.BEHIND_OTHERS


def test_it_is_said_when_to_look_again() -> None:
    builder = full(when={"after": "10m"}).job("j", age=100)
    at = builder.cycle().plan.next_look
    assert at == pytest.approx(NOW + 500, abs=0.01)
    assert builder.later(at - NOW).cycle().where == {"j": "rented"}


def test_the_policy_of_the_nearest_queue_is_asked_first() -> None:
    builder = full(clusters=["rented"]).queue("org/team")
    builder.cluster("second", nodes(), kind=ClusterKind.PUBLIC, prices=CORE)
    builder.policy("overflow", "org", clusters=["rented"], **ANY).policy("near", "org/team", clusters=["second"], **ANY)
    assert builder.job("j", queue="org/team").cycle().where == {"j": "second"}


@pytest.mark.parametrize(("choose", "cluster"), [("order", "dear"), ("score", "cheap")])
def test_a_cluster_is_chosen_by_its_scores_or_in_the_order_of_the_policy(choose: str, cluster: str) -> None:
    builder = full(clusters=["dear", "cheap"], choose=choose)
    builder.cluster("dear", nodes(), kind=ClusterKind.PUBLIC, prices={"onDemand": {"cpu": 9}})
    builder.cluster("cheap", nodes(), kind=ClusterKind.PUBLIC, prices=CORE)
    assert builder.job("j").cycle().where == {"j": cluster}


def test_a_cluster_that_the_budget_cannot_pay_is_passed_over() -> None:
    builder = full(clusters=["dear", "cheap"], choose="order", budget={"hour": 2})
    builder.cluster("dear", nodes(), kind=ClusterKind.PUBLIC, prices={"onDemand": {"cpu": 9}})
    builder.cluster("cheap", nodes(), kind=ClusterKind.PUBLIC, prices=CORE)
    assert builder.job("j", limited()).cycle().where == {"j": "cheap"}


def test_a_gang_goes_in_a_smaller_size_where_the_larger_costs_too_much() -> None:
    elastic = gang(role(8, least=2, cpu=1), time_limit_seconds=HOUR - 10)
    start = full(budget={"hour": 2}).job("j", elastic).cycle().start("j")
    assert start.sizes == {"worker": 2}


@pytest.mark.parametrize(
    ("spot", "binding", "rate"),
    [
        ("never", tuple((name, "NotIn", tuple(sorted(SPOT_LABELS[name]))) for name in sorted(SPOT_LABELS)), 2 * NANOS),
        ("only", (("trainmaster.dev/spot", "In", ("true",)),), NANOS),
        ("allowed", (), 2 * NANOS),
    ],
)
def test_spot_nodes_are_used_as_the_policy_says(spot: str, binding: Any, rate: int) -> None:
    builder = full(spot=spot)
    groups = nodes(1, "steady", cpu=4), nodes(1, "spot", cpu=4, labels=SPOT)
    prices = {"onDemand": {"cpu": 2}, "spot": {"cpu": 1}}
    builder.cluster("rented", *groups, kind=ClusterKind.PUBLIC, prices=prices)
    granted = builder.job("j").cycle().start("j").granted
    assert granted is not None
    assert (granted.binding, granted.bounds.rate) == (binding, rate)


def test_a_policy_that_is_open_stays_so_until_private_clusters_are_emptier() -> None:
    rule = {"utilisation": {"above": 0.9, "until": 0.6}}
    builder = full(when=rule).run("s", on="own").cluster("own", nodes(10, cpu=1))
    # All ten cores are private: r has 4 of them, and so on.
    builder.run("r", simple(9, cpu=1), on="own").job("big", simple(cpu=2))
    assert builder.applied().where == {"big": "rented"}
    builder.ended("s").run("r", simple(7, cpu=1), on="own").job("next", simple(cpu=2))
    assert builder.applied().where == {"next": "rented"}
    builder.run("r", simple(5, cpu=1), on="own").job("last", simple(cpu=2))
    assert builder.applied().where == {}
    builder.run("r", simple(7, cpu=1), on="own")
    assert builder.applied().where == {}


def test_a_run_by_a_policy_does_not_grow() -> None:
    elastic = gang(role(8, least=2, cpu=1), time_limit_seconds=HOUR - 10)
    builder = full(budget={"hour": 2}).job("j", elastic)
    builder.applied()
    assert builder.later(600).cycle().plan.grows == []


def test_it_ends_by_its_bound_as_far_as_others_are_concerned() -> None:
    builder = full().job("j", simple(cpu=4))
    builder.applied()
    run = builder.state.runs[builder.ids["j"]]
    assert builder.state.ends_at(run) == NOW + HOUR + 10
    assert run.burst is not None
    assert run.burst.rate == 4 * NANOS


def test_what_policies_said_is_given_for_a_preview() -> None:
    builder, questions = full(atMost={"jobs": 1}).job("a").job("b", simple(cpu=2)), list[BurstQuestion]()
    decide(builder.engine, NOW, burst_questions=questions)
    assert [(one.job.name, isinstance(one.outcome, BurstStart)) for one in questions] == [("a", True), ("b", False)]


jobs = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([0.2, 0.5, 1.0, 3.0, 30.0]), st.floats(0, 7200), st.floats(0, 1)),
    max_size=14,
)
money = st.fixed_dictionaries(
    {
        "hour": st.sampled_from([None, "1", "2.5"]),
        "day": st.sampled_from(["3", "7"]),
        "job": st.sampled_from([None, "1.5"]),
    }
)


@given(jobs, money, st.sampled_from([None, 1, 2]), st.sampled_from([None, 3, 5]))
def test_no_plan_exceeds_a_budget_or_a_cap(
    given_jobs: list[tuple[int, float, float, float]],
    budget: dict[str, str | None],
    most_jobs: int | None,
    most_cores: int | None,
) -> None:
    at_most = {"jobs": most_jobs, "resources": {} if most_cores is None else {"cpu": most_cores}}
    builder = full(budget=budget, atMost=at_most, timeLimit=None)
    builder.run("r", simple(cpu=4), on="own")
    ends: dict[str, float] = {}
    lives: dict[str, tuple[float, float, int]] = {}
    for number, (cores, hours, _, _) in enumerate(given_jobs):
        builder.job(f"j{number}", limited(hours, cpu=cores))
    for _ in range(30):
        outcome = builder.applied()
        for start in outcome.plan.starts:
            assert start.granted is not None
            number = int(start.job.name[1:])
            cores, hours, _, part = given_jobs[number]
            ends[start.job.name] = builder.now + max(1.0, hours * HOUR * part)
            lives[start.job.name] = (builder.now, ends[start.job.name], cores)
        at_work = [name for name in ends if name in lives and builder.ids[name] in builder.state.runs]
        assert most_jobs is None or len(at_work) <= most_jobs
        assert most_cores is None or sum(lives[name][2] for name in at_work) <= most_cores
        due = [ends[name] for name in at_work]
        moment = min([*due, builder.now + 1800])
        builder.later(moment - builder.now)
        spent: dict[int, int] = dict(builder.state.spending.hours.get(1, {}))
        for name in at_work:
            if ends[name] <= builder.now:
                builder.ended(name)
                began, end, cores = lives[name]
                for hour, part in hours_of(began, end).items():
                    spent[hour] = spent.get(hour, 0) + round(cores * part * NANOS / HOUR)
        builder.state.spending = type(builder.state.spending)({1: spent})
    within: dict[Any, float] = defaultdict(float)
    for began, end, cores in lives.values():
        for hour, seconds in hours_of(began, end).items():
            for span in (Span.HOUR, Span.DAY):
                within[window_at(span, hour)] += cores * seconds / HOUR
    for window, cost in within.items():
        limit = budget[window.span.value]
        assert limit is None or cost <= float(limit) + 1e-6
    for began, end, cores in lives.values():
        assert budget["job"] is None or cores * (end - began) / HOUR <= float(budget["job"]) + 1e-6


def hours_of(begin: float, end: float) -> dict[int, float]:
    """Return the seconds between ``begin`` and ``end`` in each hour, by the hour's start in microseconds."""
    out: dict[int, float] = {}
    at = begin
    while at < end:
        hour = int(at // HOUR)
        until = min(end, (hour + 1) * HOUR)
        out[int(hour * HOUR) * MICROS] = until - at
        at = until
    return out


def test_gpus_are_capped_by_their_resource() -> None:
    builder = full(atMost={"resources": {GPU: 2}}, timeLimit="1h")
    builder.cluster("rented", nodes(2, cpu=8, gpu=2), kind=ClusterKind.PUBLIC, prices=CORE)
    builder.job("a", simple(cpu=1, gpu=2)).job("b", simple(cpu=2, gpu=1))
    outcome = builder.cycle()
    assert outcome.where == {"a": "rented"}
    assert outcome.reason("b").token is Token.BURST_LIMIT


def test_a_preview_of_other_policies_leaves_the_state_as_it_was() -> None:
    builder = full(budget={"hour": "0.1"}).job("j")
    before = builder.cycle().plan
    found = preview(builder.engine, NOW, [policy_of(1, BurstPolicySpec.model_validate({**WIDE, "name": "overflow"}))])
    assert [(one.goes, one.cluster, one.jobs) for one in found] == [(True, "rented", 1)]
    assert preview(builder.engine, NOW, [policy_of(-1, BurstPolicySpec.model_validate({**WIDE, "name": "new"}))])[
        0
    ].goes
    assert builder.cycle().plan == before
    assert before.starts == []


def test_a_preview_counts_jobs_alike_that_go_and_those_that_stay() -> None:
    builder = full(atMost={"jobs": 2}).jobs(5, "j")
    goes, stays = preview(builder.engine, NOW)
    assert (goes.goes, goes.jobs, goes.price_per_hour, goes.job.partition("-")[0]) == (True, 2, Decimal(1), "j1")
    assert (stays.goes, stays.jobs, stays.job.partition("-")[0]) == (False, 3, "j3")


def test_others_of_its_class_go_though_one_has_cost_too_much_already() -> None:
    builder = full(budget={"day": 500, "job": 2}).policy("second", **ANY, when={"after": "5d"})
    builder.job("a", limited(cpu=2)).job("b", limited(cpu=2)).spent("overflow", "0.5", job="a")
    assert builder.cycle().where == {"b": "rented"}


def test_others_of_its_class_go_though_one_of_higher_priority_has_just_come() -> None:
    builder = full(when={"after": "1h"}).job("old", age=7200).job("new", priority=1000)
    assert builder.cycle().where == {"old": "rented"}


def test_a_queue_that_keeps_its_order_does_not_wait_for_a_job_that_could_never_go() -> None:
    builder = full(budget={"day": 500, "job": 1}).queue("main", order=Order.STRICT)
    builder.job("huge", simple(2, limit=HOUR - 10, cpu=4)).job("small", simple(cpu=1), age=-1).ended("r")
    outcome = builder.cycle()
    assert outcome.where == {"small": "own"}
    assert outcome.reason("huge").token is Token.TOO_LARGE
    assert outcome.reason("huge").sentence.startswith(
        "It fits on no cluster but a public one, not even on an empty one; own: "
    )
    assert "the budget of 1.00 for a job is not enough" in outcome.reason("huge").sentence


def test_it_is_looked_at_again_when_enough_of_it_falls_into_the_next_day() -> None:
    builder = full(budget={"day": 8}, timeLimit=None).job("j", limited(10))
    outcome = builder.cycle()
    assert outcome.where == {}
    at = outcome.plan.next_look
    # Of ten hours eight fall into this day, if it begins eight hours before it ends.
    assert at == pytest.approx(86400 - 8 * HOUR, abs=1)
    assert builder.ended("r").run("r", simple(cpu=4), on="own").later(at - NOW + 1).cycle().where == {"j": "rented"}


def test_a_stream_of_jobs_by_a_policy_does_not_put_off_one_that_a_cluster_is_kept_for() -> None:
    builder = full(timeLimit="5m").queue("other", kinds=ALL)
    builder.cluster("own", nodes(1, cpu=4), cordoned=True)
    builder.run("p", simple(cpu=4, limit=HOUR), on="rented", placement={"nodes": {"worker": 1}})
    builder.job("wide", simple(2, cpu=4, limit=600), queue="other")
    at = builder.applied().plan.reservations[builder.ids["wide"]].at
    for number in range(40):
        builder.job(f"j{number}", simple(cpu="100m"))
        outcome = builder.applied()
        kept = outcome.plan.reservations.get(builder.ids["wide"])
        assert kept is None or kept.at <= at
        builder.later(100)
        if builder.now >= at:
            break


def test_members_are_not_moved_to_nodes_that_the_policy_does_not_allow_because_others_are_reserved() -> None:
    builder = full(spot="only").queue("vip")
    groups = nodes(1, "steady", cpu=4), nodes(1, "spot", cpu=4, labels=SPOT)
    prices = {"onDemand": {"cpu": 2}, "spot": {"cpu": 1}}
    builder.cluster("rented", *groups, kind=ClusterKind.PUBLIC, prices=prices)
    builder.reserved("r", 1, queue="vip", starts=0, ends=9000, on=("rented",), selector=tuple(SPOT.items()))
    assert builder.job("j").cycle().where == {}


def test_a_job_on_trial_is_told_that_it_could_run_by_a_policy() -> None:
    builder = full()
    job = WaitingJob(0, 0, "j", builder.queues["main"], 2, 0, 0, NOW, 0)
    trial = try_out(builder.engine, quotas_of(builder.engine, NOW), job, simple(2, cpu=4), NOW)
    assert trial is not None
    assert (trial.could_run, trial.starts_now, trial.cluster) == (True, True, "rented")


def test_what_members_cannot_use_does_not_count_towards_their_price() -> None:
    builder = full()
    groups = (
        nodes(1, "t4", cpu=4, gpu=1, labels={"model": "t4"}),
        nodes(1, "h100", cpu=4, gpu=1, labels={"model": "h100"}),
    )
    labelled = [one.model_copy(update={"labels": {**one.labels, "nvidia.com/gpu.product": one.name}}) for one in groups]
    prices = {"onDemand": {"devices": {f"{GPU}@product=t4": 1, f"{GPU}@product=h100": 30}}}
    builder.cluster("rented", *labelled, kind=ClusterKind.PUBLIC, prices=prices)
    granted = builder.job("j", gang(role(gpu=1, node_selector=(("model", "t4"),)))).cycle().start("j").granted
    assert granted is not None
    assert granted.bounds.rate == NANOS


def test_a_queue_without_a_policy_is_not_told_what_another_one_waits_for() -> None:
    builder = full(when={"after": "1h"}).queue("plain")
    builder.job("a", returned_by=("own",)).job("b", queue="plain", returned_by=("own",))
    outcome = builder.cycle()
    assert outcome.held.keys() == {"b"}
    assert outcome.reason("a").token is Token.BURST_NOT_YET
