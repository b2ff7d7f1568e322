"""What applying a plan changes: jobs, events, runs; the same for the leader and for what-if studies."""

from dataclasses import replace

from trainmaster.protocol.reasons import Reason, Token
from trainmaster.protocol.states import HoldCause, JobState
from trainmaster_dispatcher.domain.job_machine import Job
from trainmaster_dispatcher.domain.run_orders import NO_ORDERS, RunOrders
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.scheduling.state.plan import Eviction, Growth, Hold, Plan, Start
from trainmaster_dispatcher.scheduling.state.writes import Writes, victims_of, writes_of

JOB = WaitingJob(1, 3, "train", 1, 2, 1, 0, 1000.0, 0)
RUNNING = Job(JobState.RUNNING, attempt=2)
START = Start(JOB, 7, {"worker": 2}, {"nodes": {"worker": 2}}, "c is the only cluster", ())
VICTIM = Eviction(5, 2, 7, "preempted for train")
SHRINK = Eviction(6, 2, 8, "gives 1 member back", {"worker": 3})
GROWTH = Growth(9, 2, 8, {"worker": 5}, {"nodes": {"worker": 5}})
SIZES = {5: {"worker": 1}, 6: {"worker": 4}, 9: {"worker": 4}}
JOBS = {1: Job(), 2: Job(), 5: RUNNING, 6: RUNNING, 9: RUNNING}


def test_a_start_dispatches_its_job_with_what_it_waited_for() -> None:
    waited = Reason(token=Token.QUEUE_LIMIT, tier=Token.QUEUE_LIMIT.tier, sentence="Queue a is full.", advice="Wait.")
    writes = writes_of(Plan(starts=[START]), JOBS, SIZES, cycle=4, waited={1: waited})
    (change,) = writes.jobs
    assert (change.kind, change.job.state, change.attempt, change.cluster_id) == (
        "dispatched",
        JobState.DISPATCHED,
        1,
        7,
    )
    assert change.details == {"cycle": 4, "waitedFor": {"token": "QueueLimit", "sentence": "Queue a is full."}}
    (start,) = writes.starts
    assert (start.start, start.attempt, start.orders) == (START, 1, NO_ORDERS)
    assert writes.clusters == {7}


def test_a_start_waits_as_long_as_its_slowest_victim_may_take_to_be_gone() -> None:
    start = replace(START, evicts=(VICTIM, SHRINK), awaits=5.0)
    writes = writes_of(Plan(starts=[start]), JOBS, SIZES, cycle=1, stop_seconds={5: 30.0, 6: 12.0})
    assert writes.starts[0].orders == RunOrders(awaits_seconds=30.0)
    assert (writes.stops, writes.shrinks) == ((VICTIM,), (SHRINK,))
    assert [change.kind for change in writes.jobs] == ["dispatched", "preempt", "resize"]
    assert writes_of(Plan(starts=[start]), JOBS, SIZES, cycle=1).starts[0].orders.awaits_seconds == 5.0


def test_a_run_that_ends_is_not_made_smaller_as_well() -> None:
    plan = Plan(stops=[VICTIM, VICTIM._replace(sizes={"worker": 0})])
    writes = writes_of(plan, JOBS, SIZES, cycle=1)
    assert (writes.stops, writes.shrinks) == ((VICTIM,), ())
    assert victims_of(plan) == plan.stops


def test_histories_tell_sizes_before_and_after() -> None:
    writes = writes_of(Plan(stops=[SHRINK], grows=[GROWTH]), JOBS, SIZES, cycle=1)
    smaller, larger = writes.jobs
    assert smaller.details == {"sizes": {"worker": 3}, "from": {"worker": 4}}
    assert smaller.message == "to 3 worker: gives 1 member back"
    assert larger.details == {"sizes": {"worker": 5}, "from": {"worker": 4}}
    assert {smaller.job, larger.job} == {RUNNING}
    assert writes.grows == (GROWTH,)


def test_a_job_that_is_held_says_why() -> None:
    (change,) = writes_of(
        Plan(holds=[Hold(replace(JOB, id=2), "every cluster returned it")]), JOBS, SIZES, cycle=1
    ).jobs
    assert (change.job.state, change.job.hold_cause) == (JobState.HELD, HoldCause.UNPLACEABLE)
    assert change.job.message == change.message == "every cluster returned it"


def test_a_plan_of_nothing_changes_nothing() -> None:
    assert writes_of(Plan(), {}, {}, cycle=1) == Writes((), (), (), (), ())
