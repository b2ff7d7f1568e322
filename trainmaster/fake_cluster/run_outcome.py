"""Outcome of a run without outside events: drawn when its members start."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from trainmaster.fake_cluster.behaviour import Behaviour
from trainmaster.fake_cluster.plan import FakeSpec
from trainmaster.fake_cluster.run import SUCCEEDED, FakeEnd
from trainmaster.fake_cluster.seeded_random import DurationRange, draw
from trainmaster.protocol.states import FailureCategory, RunState

_NONE: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class FakeOutcome:
    """When and how a run ends by itself, when each role's members end, and which role's member restarts when.

    With ``regroups`` it does not end at ``at``: a member fails then, and all restart together, that many seconds after they
    have ended.
    """

    at: float
    verdict: FakeEnd
    role_ends: tuple[float, ...]
    restarts: tuple[tuple[float, int], ...] = ()
    rests: tuple[tuple[float, int], ...] = ()
    """Time and role of each member that has failed and waits for its restart."""
    regroups: float | None = None


def overdue(plan: FakeSpec) -> FakeEnd:
    """Return the end of a run whose time limit is over."""
    return FakeEnd(RunState.FAILED, f"its time limit of {plan.time_limit:g} s is over", FailureCategory.DEADLINE)


class OutcomeSampler:
    """Draws outcomes. ``speed`` shortens all times."""

    def __init__(self, seed: int, speed: float) -> None:
        self._seed = seed
        self._speed = speed

    def span(self, span: DurationRange, *words: object) -> float:
        """Return seconds drawn from a range."""
        part = 0.0 if span.least == span.most else draw(self._seed, *words)
        return span.at(part) / self._speed

    def start_time(self, run: str, plan: FakeSpec) -> float:
        """Return the start time of a gang: that of its slowest member."""
        return max(self.span(role.behaviour.start_time, run, role.name, "start") for role in plan.roles)

    def outcome(
        self,
        run: str,
        attempt: int,
        plan: FakeSpec,
        now: float,
        *,
        deadline: float = inf,
        regroups: int = 0,
        restarted: Mapping[int, int] = _NONE,
    ) -> FakeOutcome:
        """Return the outcome of a run whose members all start at ``now``, for the first time or again.

        ``regroups``: number of restarts of all; ``restarted``: by role, number of restarts of a member alone.
        """
        ends: list[float] = []
        restarts: list[tuple[float, int]] = []
        rests: list[tuple[float, int]] = []
        failed_at, failure = inf, SUCCEEDED
        regroup_at, pause = inf, 0.0
        for position, role in enumerate(plan.roles):
            does, again = role.behaviour, role.restarts
            length = self.span(does.run_time, run, role.name, "run")
            used = regroups if again.of_gang else restarted.get(position, 0)
            failures, left = max(0, does.member_failures - used), max(0, again.limit - used)
            waits = 0 if again.of_gang else min(failures, left)
            ends.append(now + length + waits * again.back_off)
            fails_at = ends[-1] if self._fails(run, role.name, attempt, does) else inf
            if failures and length < inf:
                moments = [
                    now + length * n / (failures + 1) + min(n - 1, waits) * again.back_off
                    for n in range(1, failures + 1)
                ]
                if again.of_gang and left:
                    if moments[0] < regroup_at:
                        regroup_at, pause = moments[0], again.back_off
                else:
                    restarts += [(moment + again.back_off, position) for moment in moments[:waits]]
                    rests += [(moment, position) for moment in moments[:waits] if again.back_off > 0]
                    fails_at = min([fails_at, *moments[waits : waits + 1]])
            if fails_at < failed_at:
                # The first member is the one that restarts, so that the same one fails in the end.
                index = 0 if does.member_failures else int(draw(self._seed, run, role.name, "who") * role.count)
                failed_at, failure = fails_at, self._failure(plan, position, index)
        deciding = None if plan.success is None else plan.position(plan.success)
        at = max(ends) if deciding is None else ends[deciding]
        verdict = SUCCEEDED
        if failed_at < inf and failed_at <= at:
            at, verdict = failed_at, failure
        regroup = regroup_at < at
        if regroup:
            at = regroup_at
        if deadline < at:
            at, verdict, regroup = deadline, overdue(plan), False
        return FakeOutcome(at, verdict, tuple(ends), tuple(restarts), tuple(rests), pause if regroup else None)

    def _fails(self, run: str, role: str, attempt: int, does: Behaviour) -> bool:
        if attempt <= does.fail_runs or does.fail >= 1:
            return True
        return does.fail > 0 and draw(self._seed, run, role, "fail") < does.fail

    def _failure(self, plan: FakeSpec, position: int, index: int) -> FakeEnd:
        role = plan.roles[position]
        does = role.behaviour
        how = f"exit code {does.exit_code}" if does.signal is None else f"signal {does.signal}"
        again = f" after {role.restarts.limit} restarts" if does.member_failures and role.restarts.limit else ""
        message = f"member {role.name}-{index} failed with {how}{again}"
        return FakeEnd(RunState.FAILED, message, does.category, does.exit_code, does.signal, position, index)
