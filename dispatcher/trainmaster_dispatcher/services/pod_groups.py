"""Groups of pods that are created one by one: kept until all have been, and then submitted as one job in the same transaction.

No job exists before. What a pod asks is checked when it is created, as if it were a job by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.ids import job_id, parse_job_id
from trainmaster.protocol.states import JobActions
from trainmaster.workload_kinds.pod import POD
from trainmaster.workload_kinds.pod_groups import LABEL_PATH, TOTAL_PATH, GroupError, PodGroup, job_of
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster
from trainmaster_dispatcher.services import job_actions, job_objects
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.job_actions import Action
from trainmaster_dispatcher.services.submission_parsing import Most, PreparedSubmission, mistaken, prepare
from trainmaster_dispatcher.services.submit import (
    Submission,
    already_exists,
    check,
    job_actions_of,
    submit_one,
    taken_names,
)
from trainmaster_dispatcher.store import job_objects as object_store
from trainmaster_dispatcher.store import pod_groups as store
from trainmaster_dispatcher.store import tenants
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.pod_groups import GroupedPod, LivingGroup


@dataclass(frozen=True, slots=True)
class GroupedSubmission:
    """A pod that is created in a group. ``prepared``: the job that it would be by itself; ``clusters``: with their reports."""

    caller: Caller
    namespace: str
    name: str
    group: PodGroup
    labels: dict[str, str]
    annotations: dict[str, str]
    spec: dict[str, Any]
    managed_fields: Sequence[dict[str, Any]]
    prepared: PreparedSubmission
    clusters: tuple[Cluster, ...]


_MOST_WAITING = 10_000
"""The most pods of incomplete groups in a queue."""


class CreatedPod(NamedTuple):
    """A pod that was created, and the id of the job that its group became by it; None while pods are missing."""

    pod: GroupedPod
    job: str | None


async def create(tx: Transaction, stores: Stores, given: GroupedSubmission) -> CreatedPod:
    """Store a pod of a group, and the job of the group if it was the last one. Raises ProblemError."""
    queue = given.prepared.specs[0].queue
    # Locked before the check holds it: two transactions that hold it would wait for each other.
    locked = await tenants.lock_queue(tx, queue)
    await check(tx, stores, Submission(given.caller, given.prepared))
    if locked is None:
        raise ProblemError(Code.UNKNOWN_QUEUE, f"the queue {queue!r} was just removed")
    if await taken_names(tx, [(locked.id, given.name)]) or await store.named(tx, given.namespace, given.name):
        raise already_exists(given.name, POD.name)
    living = await store.living(tx, given.namespace, given.group.name)
    for one in living:
        _check_group(given, one, queue)
    name, total = given.group
    if await store.many_waiting(tx, locked.id) >= _MOST_WAITING:
        message = f"queue {queue!r} has {_MOST_WAITING} pods of incomplete groups, as many as it may: create or delete the rest"
        raise ProblemError(Code.QUEUE_FULL, message)
    group_id = living[0].id if living else await store.create(tx, locked.id, name, given.caller.name, total)
    spec = orjson.loads(given.prepared.specs[0].spec)
    specs = {**await store.job_specs(tx, group_id), given.name: spec}
    try:
        whole, members = job_of(given.group, specs)
    except GroupError as error:
        raise mistaken(error.mistake) from error
    new = store.NewGroupedPod(given.name, given.labels, given.annotations, given.spec, given.managed_fields, spec)
    await store.add(tx, group_id, locked.id, new)
    job = None
    if len(specs) == given.group.total:
        submitted = await submit_one(
            tx, stores, Submission(given.caller, prepare(orjson.dumps(whole), Most(clusters=given.clusters)))
        )
        (job,) = submitted.ids
        await store.complete(tx, group_id, parse_job_id(job)[1], members)
    (pod,) = await store.named(tx, given.namespace, given.name)
    return CreatedPod(pod, job)


def _check_group(given: GroupedSubmission, one: LivingGroup, queue: str) -> None:
    name = given.group.name
    if one.queue != queue:
        raise mistaken(
            Mistake(
                path=LABEL_PATH,
                message=f"is the name of a group of the queue {one.queue!r}, and this pod is of {queue!r}",
            )
        )
    if one.job_id is not None:
        raise ProblemError(
            Code.WRONG_STATE,
            f"the pod group {name!r} has all of its {one.total} pods, and runs as {job_id(one.job_name or '', one.job_id)};"
            " another group may have the name once that has ended",
        )
    if one.submitter != given.caller.name:
        raise ProblemError(Code.JOB_OF_ANOTHER, f"the pod group {name!r} is of {one.submitter!r}: give another name")
    if one.total != given.group.total:
        raise mistaken(
            Mistake(
                path=TOTAL_PATH, message=f"is {given.group.total}, and {one.total} in other pods of the group {name!r}"
            )
        )


def missing(pod: GroupedPod) -> str:
    """Return why a pod waits whose group has no job yet."""
    return f"pod group {pod.group!r} has {pod.many} of {pod.total} pods"


async def named(tx: Transaction, caller: Caller, namespace: str | None, name: str) -> list[GroupedPod]:
    """Return the pods of groups that have this name and that the caller may see."""
    return [one for one in await store.named(tx, namespace, name) if caller.may_use(one.queue)]


async def incomplete(tx: Transaction, caller: Caller, namespace: str | None) -> list[GroupedPod]:
    """Return the pods whose groups have no job yet and that the caller may see."""
    return [one for one in await store.incomplete(tx, namespace) if caller.may_use(one.queue)]


async def _check_submitter(tx: Transaction, caller: Caller, pod: GroupedPod) -> None:
    """Raise ProblemError JOB_OF_ANOTHER for a pod of another user, whose jobs the caller could not change either."""
    if caller.manages(pod.queue) or pod.submitter == caller.name:
        return
    queues = {row.spec.path: row for row in await tenants.QUEUES.every(tx)}
    if job_actions_of(pod.queue, queues) is JobActions.OWN:
        raise ProblemError(
            Code.JOB_OF_ANOTHER,
            f"the pod group {pod.group!r} is of {pod.submitter!r}, and queue {pod.queue!r} lets users change only their own jobs",
        )


async def delete(tx: Transaction, stores: Stores, caller: Caller, pod: GroupedPod, grace: float | None) -> None:
    """Delete a pod of a group, which the caller may see. A group without a job goes on without the pod; the job of a complete group is
    cancelled, since a gang is whole or does not run. Raises ProblemError JOB_OF_ANOTHER, or NOT_FOUND if the pod was just deleted.
    """
    await tenants.lock_queue(tx, pod.queue)
    found = await store.named(tx, pod.namespace, pod.name)
    if not found or found[0].group_id != pod.group_id:
        raise ProblemError(Code.NOT_FOUND, f'pods "{pod.name}" not found')
    key = found[0].job_id
    if key is None:
        await _check_submitter(tx, caller, found[0])
        await store.take_out(tx, pod.group_id, pod.name)
        return
    job = (await job_objects.read(tx, [key]))[key]
    is_last = await store.mark_deleted(tx, pod.group_id, pod.name)
    kind = JobEventKind.CHANGED
    if is_last and await object_store.mark_deleted(tx, key, job.queue_id):
        kind = JobEventKind.DELETED
    await job_actions.note_on(tx, stores, caller, key, {}, kind)
    if "endedAt" not in job.line:
        await job_actions.act(tx, stores, caller, str(job.line["id"]), Action.CANCEL, grace)
