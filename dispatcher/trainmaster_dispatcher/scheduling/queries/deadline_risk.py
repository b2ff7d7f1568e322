"""The queued jobs that will miss their deadlines even if they start now: an answer over a state, which is not changed."""

from math import inf

from trainmaster_dispatcher.domain.deadlines import is_at_risk
from trainmaster_dispatcher.scheduling.state.state import SchedulerState


def jobs_at_risk(state: SchedulerState, now: float, most: int) -> dict[int, float]:
    """Return, by job, the seconds that those are expected to run whose deadlines are at risk and that have no event about it; up to
    ``most``, of each class those with the earliest deadlines.

    The cost grows with the number of classes that have such deadlines and with the result, not with the number of jobs.
    """
    found: dict[int, float] = {}
    for key, dated in state.deadlines.items():
        expected = state.run_seconds(key).expected
        if expected == inf:
            continue
        for deadline, job_id in dated.irange((now,), (now + expected,)):
            if len(found) >= most:
                return found
            if is_at_risk(deadline, expected, now):
                found[job_id] = expected
    return found
