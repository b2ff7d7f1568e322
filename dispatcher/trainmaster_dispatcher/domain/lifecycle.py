"""The joint state changes of a job and its live run.

    agent's report ──▶ run ──▶ follow ──▶ job          person's action ──▶ job ──▶ stop_for ──▶ run

A job follows the run of its current attempt only: reports on earlier ones change nothing.
"""

from trainmaster.protocol.jobs import Retries
from trainmaster.protocol.states import RunState, StopCause, Wish
from trainmaster_dispatcher.domain import job_machine, run_machine
from trainmaster_dispatcher.domain.job_machine import Job, RunEnding, Settled
from trainmaster_dispatcher.domain.run_machine import Run, RunOutcome

_STOPS = {Wish.CANCEL: StopCause.CANCEL, Wish.SUSPEND: StopCause.SUSPEND}


def follow(job: Job, number: int, outcome: RunOutcome, ending: RunEnding, retries: Retries, now: float) -> Settled:
    """Return the job after its run ``number`` took the applied ``outcome``. ``now`` in seconds since the epoch."""
    if job.attempt != number or not job.state.has_live_run:
        return Settled(job)
    if RunState.RUNNING in outcome.passed:
        job = job_machine.run_started(job)
    return job_machine.settle(job, ending, retries, now) if outcome.run.state.is_terminal else Settled(job)


def stop_for(job: Job, run: Run) -> Run:
    """Return the live run after an action on its job: a cancel or suspend asks it to stop."""
    return run if job.wish is None else run_machine.ask_stop(run, _STOPS[job.wish])


def give_up(run: Run) -> RunOutcome | None:
    """Return the outcome of declaring a run lost; None if it has ended already."""
    after = run_machine.give_up(run)
    if after == run:
        return None
    return RunOutcome(run_machine.ReportVerdict.APPLIED, after, run_machine.states_passed(run.state, after.state))
