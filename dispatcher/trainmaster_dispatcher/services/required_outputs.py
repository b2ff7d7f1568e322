"""Reports of runs that end: one that has succeeded without a required output has failed."""

from collections.abc import Mapping

from trainmaster.protocol.agent import RunEnd, RunReport
from trainmaster.protocol.ids import RunRef
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster_dispatcher.store import files as store
from trainmaster_dispatcher.store.database import Transaction


async def with_outputs(tx: Transaction, by_ref: Mapping[RunRef, RunReport]) -> Mapping[RunRef, RunReport]:
    """Return the reports: a run that has succeeded without a required output has failed, and what happened to files is said."""
    ended = [ref for ref, report in by_ref.items() if report.state in (RunState.SUCCEEDED, RunState.FAILED)]
    if not ended:
        return by_ref
    changed = dict(by_ref)
    for row in await store.ended_runs(tx, ended):
        ref = RunRef(row.job_id, row.attempt)
        report = by_ref[ref]
        if report.state is RunState.SUCCEEDED and row.missing:
            words = ", ".join(row.missing)
            problem = row.problem or f"the required output {words} was not stored"
            message = f"its commands have succeeded, but {problem}"
            end = RunEnd(category=FailureCategory.EXIT, message=message)
            changed[ref] = report.model_copy(update={"state": RunState.FAILED, "message": message, "end": end})
        elif report.state is RunState.FAILED and row.problem:
            message = f"{report.message}; {row.problem}" if report.message else row.problem
            changed[ref] = report.model_copy(update={"message": message})
    return changed
