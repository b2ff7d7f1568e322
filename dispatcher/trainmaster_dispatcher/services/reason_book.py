"""The choice of waiting jobs' reasons that are written with a plan."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from trainmaster.protocol.reasons import Reason, Token
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey
from trainmaster_dispatcher.scheduling.state.plan import Plan
from trainmaster_dispatcher.scheduling.state.state import SchedulerState
from trainmaster_dispatcher.services.feed_follower import ClassReason, Unwritten

_MOST_REASONS = 5000
"""Most reasons written with one plan; the others follow with the next plans."""
_MOST_BESIDE = 1000
"""Most reasons written with a plan by which runs start or end, which must not be delayed by many reasons."""
_FEW_REASONS = 500
_WORDS_SECONDS = 15.0
"""How long a reason keeps its wording while its token stays the same, if more than a few would be written again."""
_LEFT_OUT_SECONDS = 60.0


@dataclass(slots=True)
class ReasonBook:
    """The reasons as last stored, so that only changed ones are written again, and no more than a short transaction takes.

    A changed token is written at once. Changed wording for the same token, as free amounts change all the time, waits for a while
    where many reasons are affected.
    """

    stored: dict[ClassKey, Reason] = field(default_factory=dict)
    _stored_at: dict[ClassKey, float] = field(default_factory=dict)
    _decided_at: float = 0.0
    _left_out: dict[ClassKey, float] = field(default_factory=dict)
    """Classes whose reason could not be written, and until when the write is not tried again."""

    def changed(self, plan: Plan, now: float) -> dict[ClassKey, Reason]:
        """Return the reasons to write now; ``now`` is on any monotonic clock."""
        if self._left_out:
            self._left_out = {key: until for key, until in self._left_out.items() if until > now}
        stored = self.stored
        most = _MOST_BESIDE if plan.changes_anything else _MOST_REASONS
        equality: dict[tuple[int, int], bool] = {}
        out: dict[ClassKey, Reason] = {}
        reworded: dict[ClassKey, Reason] = {}
        for key, reason in plan.reasons.items():
            known = stored.get(key)
            if known is reason:
                continue
            if self._left_out and key in self._left_out:
                continue
            if known is None or known.token is not reason.token:
                out[key] = reason
                if len(out) >= most:
                    return out
                continue
            # Classes share their reasons, and comparing whole reasons is expensive.
            pair = (id(known), id(reason))
            same = equality.get(pair)
            if same is None:
                same = equality[pair] = known == reason
            if not same:
                reworded[key] = reason
        if len(reworded) > _FEW_REASONS:
            due = (key for key in reworded if now - self._stored_at[key] >= _WORDS_SECONDS)
            reworded = {key: reworded[key] for key in islice(due, most - len(out))}
        return out | reworded

    def leave_out(self, unwritten: Iterable[Unwritten], now: float) -> None:
        """Do not write the reasons of these classes for a while."""
        for one in unwritten:
            if isinstance(one.decision, ClassReason):
                self._left_out[one.decision.key] = now + _LEFT_OUT_SECONDS

    def waited(self, state: SchedulerState, plan: Plan) -> dict[int, Reason]:
        """Return, by job, the last reason to wait of the jobs that start; call it before the plan is applied to the state."""
        before = (start.job.id for start in plan.starts if start.job.waits_since < self._decided_at)
        found = ((job_id, self.stored.get(state.class_of(job_id))) for job_id in before)
        return {job_id: reason for job_id, reason in found if reason is not None}

    def waits(self, state: SchedulerState) -> Counter[str]:
        """Return the number of waiting jobs by the token of their reason."""
        out: Counter[str] = Counter()
        for classes in state.waiting.values():
            for key, jobs in classes.items():
                reason = self.stored.get(key)
                out[(Token.NOT_LOOKED_AT if reason is None else reason.token).value] += len(jobs)
        return out

    def note(self, plan: Plan, written: dict[ClassKey, Reason], now: float, decided_at: float = 0.0) -> None:
        """Mark ``written`` as stored; forget classes for which a complete plan has no reason.

        ``decided_at``: when the plan was made, in seconds since the epoch.
        """
        self._decided_at = decided_at
        self.stored |= written
        self._stored_at |= dict.fromkeys(written, now)
        if not plan.is_cut:
            for key in self.stored.keys() - plan.reasons.keys():
                del self.stored[key]
                del self._stored_at[key]
