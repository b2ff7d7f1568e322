"""Other sizes for live runs: what of a plan still may be, what the history tells, and what is stored."""

from collections.abc import Mapping

from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.domain import run_machine
from trainmaster_dispatcher.scheduling.state.plan import Eviction, Growth
from trainmaster_dispatcher.store.jobs import JobRecord, Transition
from trainmaster_dispatcher.store.runs import Resizing, RunRecord


def may_grow(one: Growth, run: RunRecord | None) -> bool:
    """Whether the run is still the one that was decided on, is not asked to stop or to shrink, and gets no smaller."""
    return (
        run is not None
        and run.ref.attempt == one.attempt
        and run.run.stop_cause is None
        and not run.is_shrinking
        and all(one.sizes.get(role, 0) >= size for role, size in run.sizes.items())
    )


def told_smaller(job: JobRecord, run: RunRecord, one: Eviction) -> Transition:
    """What the job's history tells of members given back."""
    return _told(job, run, one.sizes or {}, one.why)


def told_larger(job: JobRecord, run: RunRecord, one: Growth) -> Transition:
    """What the job's history tells of members added."""
    return _told(job, run, one.sizes, "it grows: nobody waits for the room")


def smaller(run: RunRecord, one: Eviction, desired_version: int) -> Resizing:
    """What is stored of a run that is to give members back."""
    return _resizing(run, one.sizes or {}, desired_version)


def larger(run: RunRecord, one: Growth, desired_version: int) -> Resizing:
    """What is stored of a run that is to get members, and of the node groups that they are meant for."""
    return _resizing(run, one.sizes, desired_version, one.placement)


def _told(job: JobRecord, run: RunRecord, sizes: Mapping[str, int], why: str) -> Transition:
    members = ", ".join(f"{size} {role}" for role, size in sorted(sizes.items()))
    return Transition(
        job,
        job.job,
        kind="resize",
        attempt=run.ref.attempt,
        cluster_id=run.cluster_id,
        actor="scheduler",
        message=f"to {members}: {why}",
        details={"sizes": dict(sizes), "from": dict(run.sizes)},
    )


def _resizing(
    run: RunRecord, sizes: dict[str, int], desired_version: int, assumed: dict[str, dict[str, int]] | None = None
) -> Resizing:
    generation = run_machine.ask_resize(run.run).generation
    # A run that its agent has not taken up yet holds nothing that would have to leave.
    holds = run.run.known or run.run.state is not RunState.LEASED
    return Resizing(run.ref, generation, sizes, desired_version, assumed, holds=holds)
