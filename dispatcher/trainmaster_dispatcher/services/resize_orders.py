"""Resizes of live runs: which resizes of a plan are still valid, and what is stored."""

from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.domain import run_machine
from trainmaster_dispatcher.scheduling.state.plan import Growth
from trainmaster_dispatcher.store.runs import Resizing, RunRecord


def may_grow(one: Growth, run: RunRecord | None) -> bool:
    """Return whether the run is still the one that was decided on, is not ordered to stop or to shrink, and gets no smaller."""
    return (
        run is not None
        and run.ref.attempt == one.attempt
        and run.run.stop_cause is None
        and not run.is_shrinking
        and all(one.sizes.get(role, 0) >= size for role, size in run.sizes.items())
    )


def resizing(run: RunRecord, sizes: dict[str, int], assumed: MemberPlacement | None, desired_version: int) -> Resizing:
    """Return what is stored of a run that is resized. ``assumed``: the placement of its members, for a growth."""
    generation = run_machine.ask_resize(run.run).generation
    # A run that its agent has not accepted yet holds no members that would have to leave.
    holds = run.run.known or run.run.state is not RunState.LEASED
    return Resizing(run.ref, generation, sizes, desired_version, assumed, holds=holds)
