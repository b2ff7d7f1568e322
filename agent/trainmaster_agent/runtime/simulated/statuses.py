"""Status of a simulated run in the runtime port's form."""

from typing import Any

from trainmaster.fake_cluster.run import FakeRun
from trainmaster.protocol.agent import MemberReport, RunEnd
from trainmaster.protocol.results import read_results
from trainmaster.protocol.states import RunState
from trainmaster_agent.runtime.port import RunStatus


def status_of(run: FakeRun) -> RunStatus:
    """Return the current status of a run."""
    return RunStatus(
        run.id,
        run.generation,
        run.seq,
        run.state,
        run.message,
        _end_of(run),
        run.placement,
        _members_of(run),
        run.sizes,
        None,
        *_results_of(run),
    )


def _results_of(run: FakeRun) -> tuple[dict[str, Any] | None, str]:
    """Return what the member of rank 0 has left, if it ever ran."""
    if run.plan is None or not run.state.has_results or run.placed is None:
        return None, ""
    first = run.plan.roles[0]
    results, wrong = read_results(first.behaviour.results)
    return results, f"the results of {first.name}-0 {wrong}" if wrong else ""


def _end_of(run: FakeRun) -> RunEnd | None:
    verdict = run.verdict
    if verdict is None or not run.state.is_terminal or (run.state is RunState.SUCCEEDED and not verdict.message):
        return None
    member = None
    if verdict.role is not None and run.plan is not None:
        member = f"{run.plan.roles[verdict.role].name}-{verdict.index}"
    return RunEnd(
        category=verdict.category,
        exit_code=verdict.exit_code,
        signal=verdict.signal,
        member=member,
        message=verdict.message,
        lacks_room=verdict.lacks_room,
    )


def _members_of(run: FakeRun) -> tuple[MemberReport, ...]:
    return tuple(
        MemberReport(
            role=one.role,
            index=one.index,
            state=one.state,
            node=one.node,
            group=one.group,
            exit_code=one.exit_code,
            signal=one.signal,
            restarts=one.restarts,
        )
        for one in run.members()
    )
