"""Selection of jobs by namespace, labels and fields, as the store selects them."""

from collections.abc import Mapping

from trainmaster_dispatcher.api.kube.calls import OBJECT_FIELDS, Listing
from trainmaster_dispatcher.api.kube.selectors import Operator, Requirement, parse_fields, refused
from trainmaster_dispatcher.services.job_actions import BulkFilter
from trainmaster_dispatcher.services.job_objects import ObjectFilter
from trainmaster_dispatcher.store import job_objects as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.jobs import LabelCondition
from trainmaster_dispatcher.store.keys import Caller

JOB_FIELDS = OBJECT_FIELDS | {
    "metadata.namespace": ("metadata", "namespace"),
    "status.state": ("status", "state"),
    "status.cluster": ("status", "cluster"),
}


def values_of(wanted: Listing) -> dict[str, str]:
    """Return the values by which a field selector selects jobs. Raises ProblemError INVALID_PARAMETER."""
    values: dict[str, str] = {}
    for field in parse_fields(wanted.fields, JOB_FIELDS, "jobs"):
        if field.is_negated:
            message = f"jobs are selected by field=value here, not by {field.path}!={field.value}"
            raise refused("fieldSelector", message)
        values[field.path] = field.value
    return values


def conditions_of(labels: tuple[Requirement, ...]) -> list[LabelCondition]:
    """Return a label selector as the store has it."""
    return [
        LabelCondition(
            one.key,
            None if one.operator in (Operator.EXISTS, Operator.EXISTS_NOT) else tuple(sorted(one.values)),
            one.operator in (Operator.NOT_IN, Operator.EXISTS_NOT),
        )
        for one in labels
    ]


async def filter_of(
    tx: Transaction, caller: Caller, namespace: str | None, values: Mapping[str, str]
) -> ObjectFilter | None:
    """Return the filter of a call that lists jobs; None if no job can match. Raises ProblemError."""
    place = values.get("metadata.namespace", namespace)
    if namespace is not None and place != namespace:
        return None
    queues = None
    if place is not None:
        queues = [one for one in await store.leaf_queues(tx, place) if caller.may_use(one.path)]
        if not queues:
            return None
    states = tuple(filter(None, [values.get("status.state")]))
    return ObjectFilter(BulkFilter(states=states, cluster=values.get("status.cluster")), queues)
