"""The burst preview: what burst policies do now, and what others would do, over a fork of the engine."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from math import ceil, inf

from trainmaster.protocol.bursting import PolicyStatus, Preview, Standing
from trainmaster.protocol.device_parts import format_counted
from trainmaster.protocol.ids import job_id
from trainmaster.protocol.prices import NANOS
from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.domain.budgets import Commitment
from trainmaster_dispatcher.domain.burst_policies import BurstPolicy
from trainmaster_dispatcher.domain.prices import MICROS
from trainmaster_dispatcher.scheduling.cycle.burst import BurstQuestion, BurstStart, budget_states_of, fullness, held_by
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.selection.cluster_index import ClusterIndex
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

MOST_PREVIEWED = 20_000
"""The largest number of starts in a preview."""
MOST_SHOWN = 1000


def preview(engine: Engine, now: float, policies: Iterable[BurstPolicy] | None = None) -> list[Preview]:
    """Return the answers of policies for each class of jobs that reaches them now; ``policies``: as if only these existed.

    The engine is not changed.
    """
    fork = engine.fork(policies=policies)
    questions: list[BurstQuestion] = []
    decide(fork, now, MOST_PREVIEWED, questions)
    return _previews(fork.state, now, questions)[:MOST_SHOWN]


def _previews(state: SchedulerState, now: float, questions: Sequence[BurstQuestion]) -> list[Preview]:
    by_row: dict[tuple[object, ...], list[BurstQuestion]] = {}
    started: dict[object, int] = {}
    for one in questions:
        if isinstance(one.outcome, BurstStart):
            by_row.setdefault((one.key, one.policy.id, one.outcome.option.cluster.id), []).append(one)
            started[one.key] = started.get(one.key, 0) + 1
        else:
            by_row.setdefault((one.key, one.policy.id, None), []).append(one)
    out = []
    for row in by_row.values():
        first = row[0]
        waiting = len(state.waiting.get(first.key.queue_id, {}).get(first.key, ()))
        many = len(row) if isinstance(first.outcome, BurstStart) else max(1, waiting - started.get(first.key, 0))
        out.append(_preview(state, now, first, many))
    return out


def _preview(state: SchedulerState, now: float, one: BurstQuestion, many: int) -> Preview:
    outcome, job = one.outcome, one.job
    common = {
        "job": job_id(job.name, job.id),
        "jobs": many,
        "queue": state.queues[job.queue_id].path,
        "waited_seconds": round(max(0.0, now - job.waits_since), 3),
        "policy": one.policy.name,
    }
    if isinstance(outcome, BurstStart):
        bounds, option = outcome.granted.bounds, outcome.option
        most = Commitment(bounds.rate, 0, ceil(bounds.total * MICROS)).total
        return Preview(
            **common,
            goes=True,
            cluster=option.cluster.name,
            price_per_hour=_money(bounds.rate),
            at_most=_money(most),
            sentence="it goes now: its own clusters cannot start it, and the policy lets it",
        )
    at = None if outcome.at == inf else datetime.fromtimestamp(outcome.at, UTC)
    return Preview(**common, goes=False, sentence=outcome.sentence, at=at)


def statuses(engine: Engine, now: float) -> list[PolicyStatus]:
    """Return the status of each policy."""
    fork = engine.fork()
    fork.begin(now)
    state, index = fork.state, fork.index
    return [_status(state, index, policy, now) for policy in sorted(state.policies.values(), key=lambda one: one.name)]


def _status(state: SchedulerState, index: ClusterIndex, policy: BurstPolicy, now: float) -> PolicyStatus:
    runs = list(state.burst_runs.get(policy.id, {}).values())
    nodes, resources = 0.0, Resources()
    for run in runs:
        part, needs = held_by(state, run)
        nodes += part
        for name, amount in needs.items():
            resources[name] = resources.get(name, 0) + amount
    return PolicyStatus(
        name=policy.name,
        jobs=len(runs),
        nodes=round(nodes, 3),
        resources={name: format_counted(name, amount) for name, amount in sorted(resources.items())},
        budgets=tuple(
            Standing(
                span=one.window.span.value,
                limit=_money(one.limit),
                spent=_money(one.spent),
                committed=_money(one.committed),
                until=datetime.fromtimestamp(one.window.end / MICROS, UTC),
                forecast=_money(one.forecast.spent_at_end),
                reached_at=None if one.forecast.reached_at is None else _moment(one.forecast.reached_at),
            )
            for one in budget_states_of(state, policy, now)
        ),
        closed=_closed(policy, len(runs), now),
        utilisation=None if policy.utilisation is None else round(fullness(index), 4),
    )


def _closed(policy: BurstPolicy, jobs: int, now: float) -> str:
    if policy.paused:
        return "paused"
    opens = policy.opens_at(now)
    if opens > now:
        return (
            f"opens at {datetime.fromtimestamp(opens, UTC):%Y-%m-%dT%H:%MZ}" if opens < inf else "closed at all hours"
        )
    if policy.jobs is not None and jobs >= policy.jobs:
        return f"it runs {jobs} of at most {policy.jobs} jobs"
    return ""


def _moment(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / MICROS, UTC)


def _money(nanos: int) -> Decimal:
    return Decimal(nanos) / NANOS
