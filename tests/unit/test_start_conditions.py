"""Queues whose jobs start in some hours, on quiet clusters or at low prices only: what is accepted, and what a cycle decides."""

from datetime import UTC, datetime
from math import inf
from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.building import NOW, Outcome, StateBuilder, gang, nodes, role, simple
from trainmaster.protocol.agent import Pool
from trainmaster.protocol.reasons import Check, Token
from trainmaster.protocol.start_conditions import StartsWhenSpec
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.domain.shapes import Elasticity
from trainmaster_dispatcher.domain.start_conditions import all_open_at, start_conditions_of, words_on_hours
from trainmaster_dispatcher.scheduling.cycle.decide import decide

NIGHT = {"start": "20:00", "end": "06:00", "timeZone": "Europe/Berlin"}
WEEKEND = {"days": ["sat", "sun"], "timeZone": "Europe/Berlin"}
BELOW_HALF = {"utilisation": {"below": 0.5}}


def hours(*every: dict[str, Any]) -> Any:
    found = start_conditions_of(StartsWhenSpec.model_validate({"hours": list(every)}))
    assert found is not None
    return found.hours


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give at least one of utilisation, hours and price"),
        ({"utilisation": {"below": 0.5, "until": 0.4}}, "until must not be lower than below, which is 0.5"),
        ({"utilisation": {"below": 0}}, "greater than 0"),
        ({"price": {"below": 0}}, "must be above 0"),
        ({"hours": [{"start": "20:00", "timeZone": "Mars/Base"}]}, "there is no time zone 'Mars/Base'"),
        ({"hours": [{"start": "25:00"}]}, "is not a time of the day"),
        ({"weather": "fine"}, "Extra inputs are not permitted"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        StartsWhenSpec.model_validate(given)


@pytest.mark.parametrize(
    ("every", "now", "opens"),
    [
        ([hours(NIGHT)], "2037-01-07T19:00:00+00:00", None),
        ([hours(NIGHT)], "2037-01-07T12:00:00+00:00", "2037-01-07T19:00:00+00:00"),
        ([hours(NIGHT, WEEKEND)], "2037-01-10T12:00:00+00:00", None),
        ([hours(NIGHT), hours(WEEKEND)], "2037-01-07T20:00:00+00:00", "2037-01-09T23:00:00+00:00"),
        ([hours(NIGHT), hours(WEEKEND)], "2037-01-10T12:00:00+00:00", "2037-01-10T19:00:00+00:00"),
        ([hours({"start": "02:00", "end": "03:00"}), hours({"start": "04:00", "end": "05:00"})], "2037-01-07T00:00:00+00:00", ""),
        # In the night to 29 March 2037 the clock goes from 02:00 to 03:00 in Berlin, in that to 25 October back from 03:00 to 02:00.
        ([hours({**NIGHT, "start": "02:30", "end": "04:00"})], "2037-03-28T23:00:00+00:00", "2037-03-29T01:00:00+00:00"),
        ([hours({**NIGHT, "start": "06:00", "end": "07:00"})], "2037-10-24T22:00:00+00:00", "2037-10-25T05:00:00+00:00"),
    ],
)  # fmt: skip
def test_jobs_start_where_the_hours_of_all_queues_are_open(every: list[Any], now: str, opens: str | None) -> None:
    """None: they are open now; an empty text: never."""
    found = all_open_at(every, at(now))
    assert ("" if found == inf else utc(found)) == (now if opens is None else opens)


def test_hours_are_told_as_people_write_them() -> None:
    weekdays = {**NIGHT, "days": ["mon", "tue", "wed", "thu", "fri"]}
    some = {"start": "12:00", "end": "13:00", "days": ["mon", "wed"]}
    assert words_on_hours(hours(NIGHT)) == "20:00-06:00 Europe/Berlin"
    assert words_on_hours(hours(weekdays, some)) == "20:00-06:00 Europe/Berlin (Mon-Fri) and 12:00-13:00 UTC (Mon, Wed)"


def night(builder: StateBuilder, now: str) -> Outcome:
    builder.now = at(now)
    builder.state.lease_until = dict.fromkeys(builder.state.clusters, builder.now + 60)
    return builder.cycle()


def test_jobs_start_in_the_hours_of_their_queue_and_of_those_above() -> None:
    builder = (
        StateBuilder().queue("lab", starts_when={"hours": [NIGHT]}).queue("lab/a", starts_when={"hours": [WEEKEND]})
    )
    builder.queue("lab/b").cluster("c", nodes()).job("a", queue="lab/a").job("b", queue="lab/b").job("other")
    outcome = night(builder, "2037-01-07T12:00:00+00:00")  # a Wednesday
    assert outcome.started == ["other"]
    assert outcome.reason("b").sentence == (
        "Queue lab starts jobs at 20:00-06:00 Europe/Berlin only; the next time is 2037-01-07T19:00:00Z."
    )
    assert outcome.reason("a").sentence == (
        "Queue lab/a starts jobs at 00:00-24:00 Europe/Berlin (Sat-Sun) only; queue lab starts jobs at 20:00-06:00"
        " Europe/Berlin only; the next time is 2037-01-09T23:00:00Z."
    )
    assert utc(outcome.plan.next_look) == "2037-01-07T19:00:00+00:00"
    assert set(night(builder, "2037-01-07T19:00:00+00:00").started) == {"b", "other"}
    assert set(night(builder, "2037-01-09T23:00:00+00:00").started) == {"a", "b", "other"}


def test_runs_go_on_after_the_hours() -> None:
    builder = StateBuilder().queue("main", starts_when={"hours": [NIGHT]}).cluster("c", nodes()).run("r", on="c")
    assert not night(builder, "2037-01-07T12:00:00+00:00").plan.stops


def test_jobs_start_on_clusters_where_little_runs_one_after_the_other_until_enough_does() -> None:
    builder = StateBuilder().queue("idle", starts_when=BELOW_HALF)
    builder.cluster("a", nodes(1, cpu=4)).cluster("b", nodes(1, cpu=4)).run("r", simple(2), on="a").jobs(
        4, "j", queue="idle"
    )
    outcome = builder.cycle()
    assert outcome.where == {"j1": "b", "j2": "b"}
    for verdict in outcome.reason("j3").verdicts:
        assert verdict.check is Check.START_CONDITION
        assert verdict.sentence == "50% of it is in use, queue idle starts jobs there below 50%"


def test_between_the_two_limits_jobs_start_where_they_did_before() -> None:
    builder = StateBuilder().queue("idle", starts_when={"utilisation": {"below": 0.3, "until": 0.8}})
    builder.cluster("a", nodes(1, cpu=10)).cluster("b", nodes(1, cpu=10)).run("r", simple(4), on="b").jobs(
        9, "j", queue="idle"
    )
    outcome = builder.cycle()
    assert set(outcome.where.values()) == {"a"}
    assert len(outcome.started) == 8
    assert outcome.plan.quiet == frozenset()
    for number in range(5, 10):
        builder.ended(f"j{number}")
    assert len(builder.applied().started) == 4
    assert builder.job("soon", queue="idle").applied().where == {"soon": "a"}, (
        "4 of 10 are in use, and it was open before"
    )
    assert builder.applied().plan.quiet == frozenset(), "no job waits"
    later = builder.job("later", queue="idle").cycle()
    assert later.started == []
    assert "50% of it is in use, queue idle starts jobs there below 30%" in later.reason("later").sentence


def test_a_cluster_that_jobs_wait_for_stays_open_until_the_upper_limit() -> None:
    builder = StateBuilder().queue("idle", starts_when={"utilisation": {"below": 0.3, "until": 0.8}})
    builder.cluster("a", nodes(1, cpu=10)).run("r", simple(2), on="a").job("large", simple(9), queue="idle")
    assert builder.applied().reason("large").verdicts[0].check is Check.NO_ROOM
    builder.run("s", simple(3), on="a").job("small", queue="idle")
    assert builder.cycle().started == ["small"], "5 of 10 are in use, and it was open before"
    assert decide(StateBuilder().engine, NOW).quiet == frozenset()


@pytest.mark.parametrize("until", [{}, {"until": 1.0}])
def test_nothing_is_ended_or_kept_for_a_job_that_starts_where_little_runs(until: dict[str, float]) -> None:
    builder = StateBuilder().queue("main", starts_when={"utilisation": {"below": 0.5, **until}})
    builder.cluster("a", nodes(2, cpu=4)).run("r", simple(cpu=3), on="a", of="low")
    builder.job("j", simple(2, cpu=4), of="high")
    outcome = builder.cycle()
    assert (outcome.started, outcome.plan.stops, outcome.plan.reservations) == ([], [], {})
    builder.queue("main")
    assert builder.cycle().started == ["j"], "without the condition the other run is ended for it"


@pytest.mark.parametrize(("below", "where"), [("3", "cheap"), ("9", "cheap"), ("1.5", "free"), ("0.5", "free")])
def test_jobs_start_where_one_costs_less_for_an_hour(below: str, where: str) -> None:
    builder = StateBuilder().queue("main", starts_when={"price": {"below": below}})
    builder.cluster("cheap", nodes(), prices={"onDemand": {"cpu": 1}}).cluster(
        "dear", nodes(), prices={"onDemand": {"cpu": 8}}
    )
    shape = gang(role(2), selector=(("free", "no"),)) if where == "cheap" else simple(2)
    for name in ("cheap", "dear"):
        builder.cluster(name, nodes(), prices={"onDemand": {"cpu": 1 if name == "cheap" else 8}}, labels={"free": "no"})
    builder.cluster("free", nodes()).job("j", shape)
    assert builder.cycle().where == {"j": where}


def test_a_price_that_is_too_high_is_told() -> None:
    builder = StateBuilder().queue("main", starts_when={"price": {"below": "1.5"}})
    reason = builder.cluster("c", nodes(), prices={"onDemand": {"cpu": "1.25"}}).job("j", simple(2)).cycle().reason("j")
    assert (reason.token, reason.verdicts[0].sentence) == (
        Token.START_CONDITION,
        "it costs 2.50 an hour there, queue main starts jobs where one costs less than 1.50",
    )


def test_a_burst_policy_sends_no_job_where_the_condition_of_its_queue_is_not_met() -> None:
    builder = StateBuilder().queue("main", starts_when={"price": {"below": 2}})
    builder.cluster("cloud", nodes(), kind=ClusterKind.PUBLIC, prices={"onDemand": {"cpu": 5}})
    builder.policy(budget={"day": 1000}).job("j", simple(limit=3600.0))
    assert not builder.cycle().started
    builder.cluster("cloud", nodes(), kind=ClusterKind.PUBLIC, prices={"onDemand": {"cpu": 1}})
    assert builder.cycle().started == ["j"]


def test_a_cluster_whose_nodes_are_all_to_come_is_quiet() -> None:
    pool = Pool(most=4, **nodes(2, "big", cpu=8).model_dump())
    builder = StateBuilder().queue("main", starts_when=BELOW_HALF).cluster("c", pools=(pool,)).job("j")
    assert builder.cycle().start("j").pools == ("big",)


def test_elastic_runs_grow_only_while_jobs_of_their_queue_may_start() -> None:
    def grown(**queue: Any) -> bool:
        builder = StateBuilder().queue("main", **queue).cluster("c", nodes(1, cpu=8))
        elastic = gang(role(4, least=1), elastic=Elasticity(1, 0.0))
        return bool(builder.run("r", elastic, on="c", sizes={"worker": 1}, ago=100).cycle().plan.grows)

    assert grown()
    assert grown(starts_when={"price": {"below": 1}})
    assert not grown(starts_when=BELOW_HALF)
    assert not grown(starts_when={"hours": [{"start": "12:00", "end": "13:00"}]})


def test_other_queues_are_not_affected_by_a_job_that_waits_for_a_quiet_cluster() -> None:
    builder = (
        StateBuilder().queue("idle", starts_when=BELOW_HALF).cluster("a", nodes(1, cpu=4)).run("r", simple(2), on="a")
    )
    builder.job("first", queue="idle").job("second")
    assert builder.cycle().started == ["second"]
