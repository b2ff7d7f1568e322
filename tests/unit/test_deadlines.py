"""Deadlines of jobs: how a job stands towards its own, which are at risk, the order of a queue that goes by them, and the output."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import NOW, StateBuilder, gang, nodes, role, simple
from trainmaster.cli.event_lines import transition
from trainmaster.cli.job_details import deadline_of
from trainmaster.protocol.durations import format_duration
from trainmaster.protocol.errors import ProblemError
from trainmaster.protocol.queue_position import Place
from trainmaster.protocol.states import DeadlineState, FairBy, JobState, OrderBy
from trainmaster.protocol.tenants import EventView, JobView
from trainmaster_dispatcher.domain.deadlines import DeadlineNote, is_at_risk, standing
from trainmaster_dispatcher.scheduling.queries.deadline_risk import jobs_at_risk
from trainmaster_dispatcher.scheduling.queries.queue_position import place_of, quotas_of
from trainmaster_dispatcher.scheduling.state.plan import runs_of
from trainmaster_dispatcher.services.submission_parsing import Most, check_deadlines, prepare
from trainmaster_dispatcher.store.database import dumps

AT = datetime(2026, 11, 30, 12, tzinfo=UTC)
EARLIER, LATER = AT - timedelta(minutes=5), AT + timedelta(minutes=5)


@pytest.mark.parametrize(
    ("note", "state", "ended", "now", "expected"),
    [
        (DeadlineNote.NONE, JobState.QUEUED, None, EARLIER, DeadlineState.AHEAD),
        (DeadlineNote.AT_RISK, JobState.QUEUED, None, EARLIER, DeadlineState.AT_RISK),
        (DeadlineNote.NONE, JobState.RUNNING, None, LATER, DeadlineState.MISSED),
        (DeadlineNote.MISSED, JobState.RUNNING, None, LATER, DeadlineState.MISSED),
        (DeadlineNote.AT_RISK, JobState.SUCCEEDED, EARLIER, LATER, DeadlineState.MET),
        (DeadlineNote.NONE, JobState.SUCCEEDED, LATER, LATER, DeadlineState.MISSED),
        (DeadlineNote.NONE, JobState.CANCELLED, LATER, LATER, DeadlineState.MISSED),
        (DeadlineNote.NONE, JobState.FAILED, EARLIER, LATER, None),
    ],
)
def test_a_job_stands_towards_its_deadline_by_its_end_or_by_the_time(
    note: DeadlineNote, state: JobState, ended: datetime | None, now: datetime, expected: DeadlineState | None
) -> None:
    assert standing(AT, note, state, ended, now) is expected


@pytest.mark.parametrize(
    ("deadline", "expected", "is_expected"),
    [(150.0, 50.1, True), (150.0, 50.0, False), (100.0, 50.0, False), (150.0, float("inf"), False)],
)
def test_a_deadline_is_at_risk_where_a_start_now_would_be_too_late(
    deadline: float, expected: float, is_expected: bool
) -> None:
    assert is_at_risk(deadline, expected, 100.0) is is_expected


# Submissions


def refused(*jobs: dict[str, Any], now: float = 1000.0) -> dict[str, str]:
    """Return the mistakes in jobs that are submitted together, by path."""
    whole = [
        {"name": "x", "queue": "q", "roles": [{"name": "m", "template": {"command": ["a"]}}]} | one for one in jobs
    ]
    prepared = prepare(dumps({"jobs": whole}).encode(), Most())
    try:
        check_deadlines(prepared, now)
    except ProblemError as error:
        return {one.path: one.message for one in error.mistakes}
    return {}


def test_a_deadline_may_be_nearer_than_the_time_limit() -> None:
    assert (
        refused({"deadline": "1h", "timeLimit": "2h"}, {"deadline": "1970-01-01T01:00:00Z", "startAfter": "1h"}) != {}
    )
    assert (
        refused({"deadline": "1h", "timeLimit": "2h"}, {"deadline": "1970-01-01T01:00:00Z", "startAfter": "1m"}) == {}
    )


@pytest.mark.parametrize("deadline", ["1970-01-01T00:10:00Z", "1970-01-01T00:16:40Z", "0s"])
def test_a_deadline_that_has_passed_is_refused(deadline: str) -> None:
    assert "has passed" in refused({}, {"deadline": deadline})["jobs[1].deadline"]


@pytest.mark.parametrize(
    ("deadline", "start"), [("1h", "1h"), ("1h", "2037-01-01T00:00:00Z"), ("1970-01-01T01:00:00Z", "2h")]
)
def test_a_deadline_that_is_not_after_the_start_time_is_refused(deadline: str, start: str) -> None:
    assert "startAfter" in refused({"deadline": deadline, "startAfter": start})["jobs[0].deadline"]


# Jobs at risk


def at_risk(builder: StateBuilder, most: int = 10) -> dict[str, float]:
    names = {job_id: name for name, job_id in builder.ids.items()}
    return {names[job_id]: seconds for job_id, seconds in jobs_at_risk(builder.state, builder.now, most).items()}


def test_jobs_are_at_risk_by_their_time_limit_until_their_run_time_is_predicted() -> None:
    builder = StateBuilder().queue("main").cluster("c", nodes(1, cpu=4))
    builder.job("late", simple(limit=100.0), deadline=90).job("in time", simple(limit=100.0), deadline=110)
    builder.job("passed", simple(limit=100.0), deadline=-1).job("no limit", deadline=1).job("none", simple(limit=100.0))
    assert at_risk(builder) == {"late": 100.0}
    builder.state.run_times.note("", builder.shape(simple(limit=100.0)), 50.0)
    assert at_risk(builder) == {}
    builder.now += 45.0
    assert at_risk(builder) == {"late": 50.0}
    builder.state.drop_job(builder.ids["late"])
    assert at_risk(builder) == {}


def test_of_many_jobs_at_risk_only_so_many_are_returned() -> None:
    builder = StateBuilder().queue("main").jobs(5, "j", simple(limit=100.0), deadline=50)
    assert len(at_risk(builder, 3)) == 3


def test_jobs_that_start_together_leave_no_deadline_behind() -> None:
    builder = StateBuilder().queue("main").cluster("c", nodes(1, cpu=8)).jobs(8, "j", simple(limit=10.0), deadline=5)
    assert len(at_risk(builder)) == 8
    starts = builder.cycle().plan.starts
    assert len(starts) == 8
    builder.state.put_runs(runs_of(starts, builder.now))
    assert builder.state.deadlines == {}


# The order of a queue


def placed(builder: StateBuilder, name: str) -> Place:
    place = place_of(builder.state, quotas_of(builder.engine, builder.now), builder.ids[name], builder.now)
    assert place is not None
    return place


def by_deadline(fair_by: FairBy = FairBy.NONE) -> StateBuilder:
    return StateBuilder().queue("main", order_by=OrderBy.DEADLINE, fair_by=fair_by).cluster("c", nodes(1, cpu=1))


JOBS = st.lists(
    st.tuples(
        st.sampled_from(["normal", "low"]),
        st.sampled_from([5.0, 60.0]),
        st.integers(-2, 2),
        st.integers(0, 10_000),
        st.sampled_from(["ann", "ben"]),
        st.none() | st.integers(-1000, 10_000),
    ),
    min_size=1,
    max_size=25,
)


@given(JOBS, st.sampled_from([None, 100.0]))
def test_the_order_by_deadlines_is_that_of_a_sort(
    given_jobs: list[tuple[str, float, int, int, str, int | None]], longest: float | None
) -> None:
    """One core becomes free again and again; jobs of one class have different deadlines, and one shape."""
    builder = by_deadline()
    if longest is not None:
        builder.longest_wait("normal", longest)
    wanted = []
    for number, (of, limit, priority, age, user, deadline) in enumerate(given_jobs):
        name, shape = f"j{number}", gang(role(1), time_limit_seconds=limit)
        builder.job(name, shape, of=of, priority=priority, age=age, user=user, deadline=deadline)
        at = (number + 1) / 1000 - age if deadline is None else deadline
        wanted.append((of == "low", deadline is None, at - 60 * priority, number, name))
    order = [one[-1] for one in sorted(wanted)]
    assert [placed(builder, name).position for name in order] == list(range(1, len(order) + 1))
    for name in order:
        # Capacity that is kept from cycle to cycle for who has waited long precedes the order.
        assert (builder.applied() if longest is None else builder.cycle()).started == [name]
        builder.ended(name)


@given(JOBS, st.sampled_from([None, 100.0]), st.booleans())
def test_in_a_queue_by_deadlines_the_position_is_that_of_the_starts(
    given_jobs: list[tuple[str, float, int, int, str, int | None]], longest: float | None, is_shared: bool
) -> None:
    builder = by_deadline(FairBy.USER if is_shared else FairBy.NONE)
    if longest is not None:
        builder.longest_wait("normal", longest)
    for number, (of, limit, priority, age, user, deadline) in enumerate(given_jobs):
        shape = gang(role(1), time_limit_seconds=limit)
        builder.job(f"j{number}", shape, of=of, priority=priority, age=age, user=user, deadline=deadline)
    while builder.state.jobs:
        first = min(builder.state.jobs.values(), key=lambda job: placed(builder, job.name).position)
        (started,) = (builder.applied() if longest is None else builder.cycle()).started
        assert started == first.name
        builder.ended(started)


def test_jobs_of_one_class_that_fit_together_start_by_their_deadlines() -> None:
    builder = StateBuilder().queue("main", order_by=OrderBy.DEADLINE).cluster("c", nodes(1, cpu=3))
    builder.job("none").job("late", deadline=90).job("soon", deadline=30).job("next", deadline=60)
    assert builder.cycle().started == ["soon", "next", "late"]
    assert placed(builder, "none").factors.deadline is None


def test_what_is_freed_is_kept_for_a_job_that_has_waited_long_also_in_a_queue_by_deadlines() -> None:
    builder = by_deadline().longest_wait("normal", 100.0).run("r", simple(limit=10.0), on="c")
    builder.job("waited", simple(limit=60.0), age=101)
    assert builder.applied().started == []
    builder.job("due", simple(limit=5.0), deadline=5).completed("r")
    assert placed(builder, "due").position == 1
    assert builder.applied().started == ["waited"]


def test_a_queue_that_goes_by_age_again_starts_the_oldest() -> None:
    builder = by_deadline().job("old", age=50).job("due", deadline=5)
    assert placed(builder, "due").position == 1
    assert placed(builder, "due").factors.deadline == datetime.fromtimestamp(NOW + 5, UTC)
    builder.queue("main", order_by=OrderBy.AGE)
    assert placed(builder, "due").position == 2
    assert placed(builder, "due").factors.deadline is None
    assert builder.cycle().started == ["old"]


def test_deadlines_count_nothing_where_the_queue_does_not_say_so() -> None:
    builder = StateBuilder().queue("main").cluster("c", nodes(1, cpu=1)).job("old", age=50).job("due", deadline=5)
    assert builder.cycle().started == ["old"]


def test_between_queues_the_age_of_jobs_decides_and_not_their_deadlines() -> None:
    for age, first in ((20, "due"), (5, "old")):
        builder = StateBuilder().queue("due", order_by=OrderBy.DEADLINE).queue("aged").cluster("c", nodes(1, cpu=1))
        builder.job("old", queue="aged", age=10).job("due", queue="due", age=age, deadline=3600)
        assert builder.cycle().started == [first]


def test_between_users_of_a_queue_by_deadlines_the_older_job_decides() -> None:
    for age, first in ((20, "far"), (5, "near")):
        builder = by_deadline(FairBy.USER)
        builder.job("near", age=10, user="ann", deadline=10).job("far", age=age, user="ben", deadline=3600)
        assert builder.cycle().started == [first]


# Output


def view(**fields: Any) -> JobView:
    return JobView.model_validate(
        {
            "id": "x-1",
            "name": "x",
            "queue": "q",
            "priorityClass": "normal",
            "priority": 0,
            "state": "queued",
            "shownState": "queued",
            "attempt": 0,
            "retriesUsed": 0,
            "version": 1,
            "submittedAt": EARLIER,
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("fields", "now", "words"),
    [
        ({"deadlineState": "ahead"}, EARLIER, ", in 5m"),
        ({"deadlineState": "atRisk"}, EARLIER, ", in 5m, at risk"),
        ({"deadlineState": "missed"}, LATER, ", missed since 5m"),
        ({"deadlineState": "missed", "endedAt": LATER}, LATER + timedelta(days=1), ", missed by 5m"),
        ({"deadlineState": "met", "endedAt": EARLIER}, LATER, ", met 5m before"),
        ({"endedAt": EARLIER}, LATER, ""),
    ],
)
def test_a_job_is_shown_with_how_long_is_left_or_by_how_much_it_was_missed(
    fields: dict[str, Any], now: datetime, words: str
) -> None:
    assert deadline_of(view(deadline=AT, **fields), now) == f"{AT.astimezone():%Y-%m-%d %H:%M:%S}{words}"
    assert deadline_of(view(), now) == ""


@pytest.mark.parametrize(
    ("kind", "words"), [("deadline.atRisk", "deadline at risk"), ("deadline.missed", "deadline missed")]
)
def test_an_event_about_a_deadline_is_a_line_with_its_message(kind: str, words: str) -> None:
    event = EventView(seq=2, at=AT, kind=kind, states=["queued"], message=f"it is in {format_duration(60)}")
    line = transition(event, AT)
    assert words in line
    assert line.endswith("it is in 1m")
    assert kind not in line
