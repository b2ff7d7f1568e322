"""Lookup of refusals: a class is blocked like an equivalent one before it, without a new attempt."""

from collections.abc import Callable

from trainmaster.protocol.reasons import Reason
from trainmaster.protocol.states import Order
from trainmaster_dispatcher.scheduling.cycle.context import (
    CycleContext,
    closed_queue,
    terms_of,
)
from trainmaster_dispatcher.scheduling.cycle.feasibility import impossible, widest_access
from trainmaster_dispatcher.scheduling.state.declared_objects import Queue
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey
from trainmaster_dispatcher.scheduling.state.plan import Plan


def refusal_lookup(cycle: CycleContext, first: ClassKey, queue: Queue, plan: Plan) -> Callable[[ClassKey], bool] | None:
    """Return a predicate: whether a class of this queue is blocked like equivalent jobs before. It enters the reason in the plan.

    ``first``: the class that has its turn. The predicate is valid until something starts or is ended. None if quota, the queue's order
    or its state may give another reason first.
    """
    if cycle.quotas.tree.limits(queue.id):
        return _quota_refusal_lookup(cycle, queue, first.user, plan) if first in cycle.quota_refusals else None
    if not cycle.blocked:
        return None
    if queue.id not in cycle.blocked_in_queue:
        cycle.blocked_in_queue[queue.id] = _blocked_shapes_of(cycle, queue)
    blocked = cycle.blocked_in_queue[queue.id]
    helpless = cycle.victims.helpless(queue)
    if blocked is None or helpless is None:
        return None
    sizes_of, reasons, reason_of = cycle.index.sizes_of, plan.reasons, blocked.get
    by_class: dict[int, bool | None] = {}
    due, is_kept_for = cycle.reservations.due, cycle.consolidation.is_kept_for

    def is_refused(key: ClassKey) -> bool:
        reason = reason_of(key.shape_id)
        if reason is None or key.avoided or (due and key in due) or is_kept_for(key):
            return False
        class_id = key.class_id
        if class_id not in by_class:
            by_class[class_id] = helpless(class_id, None)
        is_helpless = by_class[class_id]
        if is_helpless or (is_helpless is None and helpless(class_id, sizes_of(key.shape_id)[-1])):
            reasons[key] = reason
            return True
        return False

    return is_refused


def _quota_refusal_lookup(
    cycle: CycleContext, queue: Queue, user: str, plan: Plan
) -> Callable[[ClassKey], bool] | None:
    """Return a predicate: whether quota refuses a class of this queue and user as in an earlier cycle. It enters the reason in the
    plan.

    The predicate is valid until something starts or is ended. None if its classes may have another reason, or more than quota decides.
    """
    state, quotas = cycle.index.state, cycle.quotas
    if (
        queue.order is Order.STRICT
        or quotas.tree.lending_limited
        or state.flavors.any_narrowed
        or closed_queue(cycle, queue) != ("", None)
        or state.starts_when(queue.id)
    ):
        return None
    helpless = cycle.victims.helpless_for_quota(queue)
    if helpless is None:
        return None
    usage, revision, known = quotas.usage_under_limits(queue.id, user), state.queue_revision, cycle.quota_refusals
    reasons, classes, sizes_of = plan.reasons, state.classes, cycle.index.sizes_of
    index, access, clusters = cycle.index, widest_access(state, queue), state.clusters
    by_class: dict[int, bool | None] = {}

    def is_refused(key: ClassKey) -> bool:
        refusal = known.get(key)
        if refusal is None or key.user != user or refusal.usage != usage or refusal.queue_revision != revision:
            return False
        cluster = clusters.get(refusal.possible_on)
        if cluster is None or impossible(index, access, key.shape_id, cluster) is not None:
            return False
        class_id = key.class_id
        if class_id not in by_class:
            by_class[class_id] = False if classes[class_id].fault else helpless(class_id, None)
        is_helpless = by_class[class_id]
        if is_helpless or (is_helpless is None and helpless(class_id, sizes_of(key.shape_id)[-1])):
            reasons[key] = refusal.reason
            return True
        return False

    return is_refused


def _blocked_shapes_of(cycle: CycleContext, queue: Queue) -> dict[int, Reason] | None:
    """Return the reasons of blocked shapes that hold for all jobs of a queue, by shape; None if another reason may come first."""
    state, tree = cycle.index.state, cycle.quotas.tree
    if (
        queue.order is Order.STRICT
        or tree.limits(queue.id)
        or tree.lending_limited
        or state.flavors.any_narrowed
        or state.policies_of(queue.id)
        or state.starts_when(queue.id)
        or not all(above.state.starts_jobs for above in state.ancestry(queue.id))
    ):
        return None
    return cycle.blocked_shapes.setdefault(terms_of(cycle, queue), {})
