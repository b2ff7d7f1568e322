"""Burst policies: their checks, what was spent by them, and the state of their budgets."""

import logging
from collections.abc import Collection, Container, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.prices import NANOS
from trainmaster.protocol.states import ClusterKind
from trainmaster.protocol.validation_errors import worded
from trainmaster_dispatcher.containment import Part, contained
from trainmaster_dispatcher.domain.budgets import Commitment, Span, windows
from trainmaster_dispatcher.domain.burst_policies import BurstPolicy, Spending
from trainmaster_dispatcher.domain.prices import MICROS
from trainmaster_dispatcher.scheduling.cycle.burst import BudgetState, budget_states_of
from trainmaster_dispatcher.scheduling.state.plan import Granted
from trainmaster_dispatcher.scheduling.state.state import SchedulerState
from trainmaster_dispatcher.services.references import (
    Checks,
    check_references,
    each_checked,
    names_like,
    unknown_clusters,
    unknown_queues,
)
from trainmaster_dispatcher.services.tenants import unknown_classes
from trainmaster_dispatcher.store import bursts as store
from trainmaster_dispatcher.store import tenants
from trainmaster_dispatcher.store.bursts import Warned
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.declared import Columns

log = logging.getLogger(__name__)


async def check_policies(tx: Transaction, specs: Sequence[BurstPolicySpec]) -> Checks:
    """Return no columns for each policy; or the error where it names a queue, class or cluster that does not exist, or a cluster
    that is not public.

    A paused policy may: it must be possible to pause a policy whatever has become of the objects that it names.
    """
    active = [spec for spec in specs if not spec.paused]
    if not active:
        return [{} for _ in specs]
    queues = await tenants.QUEUES.by_name(tx, [path for spec in active for path in spec.queues])
    kinds = {row.spec.name: row.spec.cluster_kind for row in await tenants.CLUSTERS.every(tx)}
    every_queue = await names_like(tx, tenants.QUEUES, [path for spec in active for path in spec.queues], queues)
    names_classes = any(spec.when.class_at_least is not None for spec in active)
    classes = [row.spec.name for row in await tenants.CLASSES.every(tx)] if names_classes else []
    return each_checked(
        specs, lambda spec: {} if spec.paused else _check_policy(spec, queues, every_queue, kinds, classes)
    )


def _check_policy(
    spec: BurstPolicySpec,
    queues: Container[str],
    every_queue: Collection[str],
    kinds: Mapping[str, ClusterKind],
    classes: Sequence[str],
) -> Columns:
    missing = unknown_queues(spec.queues, "queues", queues, every_queue)
    missing += unknown_clusters(spec.clusters, kinds, kinds)
    if spec.when.class_at_least is not None:
        missing += unknown_classes(classes, [("when.classAtLeast", spec.when.class_at_least)])
    check_references(missing)
    others = tuple(
        Mistake(path=f"clusters[{index}]", message=f"{name} is {kinds[name]}; a burst policy is for public clusters")
        for index, name in enumerate(spec.clusters)
        if kinds[name] is not ClusterKind.PUBLIC
    )
    if others:
        raise ProblemError(Code.INVALID_SPEC, worded(others[0]), mistakes=others)
    return {}


async def list_policies(tx: Transaction) -> list[dict[str, Any]]:
    return [row.as_declared() for row in await store.POLICIES.every(tx)]


async def load_spending(tx: Transaction, policies: Sequence[BurstPolicy]) -> Spending:
    """Return what ended runs by burst policies have cost, as far as it matters now."""
    hours: dict[int, dict[int, int]] = {}
    for row in await store.spent(tx):
        of_policy = hours.setdefault(row.policy_id, {})
        if row.cost is not None:
            of_policy[row.began] = of_policy.get(row.began, 0) + int(row.cost)
        elif row.rate is not None and row.ended is not None:
            commitment = Commitment(row.rate, row.began, row.ended)
            for window in windows(Span.HOUR, row.began, row.ended):
                of_policy[window.begin] = of_policy.get(window.begin, 0) + commitment.within(window)
    ramps = {one.id: one.ramp.every for one in policies if one.ramp is not None}
    starts = await store.recent_starts(tx, list(ramps), max(ramps.values())) if ramps else {}
    return Spending(hours, starts)


def bounds_of(granted: Granted) -> dict[str, Any]:
    """Return a run's bounds as they are stored: times in seconds, the rate in billionths for an hour."""
    wait, limit, grace, rate = granted.bounds
    return {"wait": wait, "limit": limit, "grace": grace, "rate": rate}


def explanation_of(granted: Granted) -> dict[str, Any]:
    """Return what the decision says of the policy, for people."""
    bounds = granted.bounds
    most = Commitment(bounds.rate, 0, int(bounds.total * MICROS)).total
    return {
        "policy": granted.policy,
        "perHour": as_money(bounds.rate),
        "atMost": as_money(most),
        "limitSeconds": bounds.limit,
    }


def as_money(nanos: int) -> str:
    return format((Decimal(nanos) / NANOS).normalize(), "f")


async def note_costs(tx: Transaction, costs: Mapping[tuple[int, int], int]) -> None:
    """Add the cost of counted runs by burst policies, by policy and hour."""
    if costs:
        await store.add_spent(tx, costs)


def budgets_used(state: SchedulerState, now: float) -> dict[tuple[str, ...], float]:
    """Return, by policy and span, the part of the budget that runs have spent until now."""
    return {
        (policy.name, one.window.span.value): one.spent / one.limit if one.limit else 1.0
        for policy in state.policies.values()
        for one in budget_states_of(state, policy, now)
    }


async def warn(tx: Transaction, state: SchedulerState, now: float) -> None:
    """Warn of budgets whose used part has reached a level for which a warning is wanted; once per level and window."""
    found = []
    for policy in state.policies.values():
        budget_states = list[BudgetState]()
        with contained(Part.BURST_POLICY, policy.name):
            budget_states = budget_states_of(state, policy, now)
        for budget_state in budget_states:
            for part in (*policy.warn_at, 1.0):
                if budget_state.limit and budget_state.spent >= part * budget_state.limit:
                    since = datetime.fromtimestamp(budget_state.window.begin / MICROS, UTC)
                    found.append(Warned(policy.id, budget_state.window.span.value, since, part))
    for one in await store.note_warnings(tx, found) if found else ():
        log.warning(
            "burst policy %s has used %.0f %% of its budget for this %s",
            state.policies[one.policy_id].name,
            100 * one.part,
            one.span,
            extra={"policy": state.policies[one.policy_id].name, "span": one.span, "part": one.part},
        )
