"""What becomes of a run's members if nobody interferes: drawn the moment they start."""

from dataclasses import dataclass
from math import inf

from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster.simulation.behaviour import Behaviour
from trainmaster.simulation.chance import Span, draw
from trainmaster.simulation.plan import Plan
from trainmaster.simulation.run import SUCCEEDED, Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """When and how a run ends by itself, when each role's members do, and which role's member starts again when."""

    at: float
    verdict: Verdict
    role_ends: tuple[float, ...]
    restarts: tuple[tuple[float, int], ...] = ()


class Fate:
    """Draws outcomes. ``speed`` shortens all times."""

    def __init__(self, seed: int, speed: float) -> None:
        self._seed = seed
        self._speed = speed

    def span(self, span: Span, *words: object) -> float:
        """Seconds drawn from a span."""
        part = 0.0 if span.least == span.most else draw(self._seed, *words)
        return span.at(part) / self._speed

    def start_time(self, run: str, plan: Plan) -> float:
        """A gang has started when its slowest member has."""
        return max(self.span(role.behaviour.start_time, run, role.name, "start") for role in plan.roles)

    def outcome(self, run: str, attempt: int, plan: Plan, now: float) -> Outcome:
        """The outcome of a run whose members all start at ``now``."""
        ends: list[float] = []
        restarts: list[tuple[float, int]] = []
        failed_at, failure = inf, SUCCEEDED
        for position, role in enumerate(plan.roles):
            does = role.behaviour
            length = self.span(does.run_time, run, role.name, "run")
            ends.append(now + length)
            fails_at = now + length if self._fails(run, role.name, attempt, does) else inf
            if does.member_failures and length < inf:
                moments = [now + length * n / (does.member_failures + 1) for n in range(1, does.member_failures + 1)]
                restarts += [(moment, position) for moment in moments[: plan.restarts]]
                fails_at = min([fails_at, *moments[plan.restarts : plan.restarts + 1]])
            if fails_at < failed_at:
                # The member that starts again is the first one, so that the same one fails in the end.
                index = 0 if does.member_failures else int(draw(self._seed, run, role.name, "who") * role.count)
                failed_at, failure = fails_at, self._failure(plan, position, index)
        at = max(ends)
        verdict = SUCCEEDED
        if failed_at < inf and failed_at <= at:
            at, verdict = failed_at, failure
        if plan.time_limit is not None and now + plan.time_limit < at:
            message = f"its time limit of {plan.time_limit:g} s is over"
            at, verdict = now + plan.time_limit, Verdict(RunState.FAILED, message, FailureCategory.DEADLINE)
        return Outcome(at, verdict, tuple(ends), tuple(restarts))

    def _fails(self, run: str, role: str, attempt: int, does: Behaviour) -> bool:
        if attempt <= does.fail_runs or does.fail >= 1:
            return True
        return does.fail > 0 and draw(self._seed, run, role, "fail") < does.fail

    def _failure(self, plan: Plan, position: int, index: int) -> Verdict:
        role = plan.roles[position]
        does = role.behaviour
        how = f"exit code {does.exit_code}" if does.signal is None else f"signal {does.signal}"
        again = f" after {plan.restarts} restarts" if does.member_failures and plan.restarts else ""
        message = f"member {role.name}-{index} failed with {how}{again}"
        return Verdict(RunState.FAILED, message, does.category, does.exit_code, does.signal, position, index)
