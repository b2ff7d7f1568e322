"""Pods by the Kubernetes API whose objects have names of their own: pods of groups are created and deleted; others are jobs."""

from collections.abc import Sequence
from typing import NamedTuple

import orjson
from fastapi import Response

from trainmaster.protocol.errors import Mistake
from trainmaster.workload_kinds.pod_groups import GroupError, group_of, without_group
from trainmaster_dispatcher.api.context import note
from trainmaster_dispatcher.api.kube import job_calls
from trainmaster_dispatcher.api.kube.bodies import Desired
from trainmaster_dispatcher.api.kube.calls import Deletion, DryRunError, deleted, json, shown
from trainmaster_dispatcher.api.kube.job_calls import JobCall
from trainmaster_dispatcher.api.kube.objects import Wire
from trainmaster_dispatcher.api.kube.pods import grouped_pod, is_submitted_pod, pod_object, submitted_pod
from trainmaster_dispatcher.api.kube.resources import PODS
from trainmaster_dispatcher.domain import managed_fields
from trainmaster_dispatcher.services import job_members, job_objects, pod_groups
from trainmaster_dispatcher.services.job_members import JobMember
from trainmaster_dispatcher.services.job_objects import ReadJob
from trainmaster_dispatcher.services.pod_groups import GroupedSubmission
from trainmaster_dispatcher.services.submission_parsing import mistaken
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.pod_groups import GroupedPod


class NamedPod(NamedTuple):
    """A pod: a member of a job, a job that was submitted as a pod, with its member once it has a run, or a pod of a group.

    ``job`` is None of a group that is not complete.
    """

    job: ReadJob | None
    member: JobMember | None
    grouped: GroupedPod | None = None

    @property
    def owner(self) -> str:
        """Return the id of its job; while it has none, the name of its group."""
        if self.job is not None:
            return str(self.job.line["id"])
        return "" if self.grouped is None else f"the pod group {self.grouped.group!r}"

    @property
    def why(self) -> str:
        """Return why it has no run."""
        if self.grouped is not None and self.job is None:
            return pod_groups.missing(self.grouped)
        reason = None if self.job is None else self.job.reason
        return "no run of it has begun" if reason is None else reason.sentence

    def item(self) -> Wire:
        """Return its object."""
        if self.grouped is not None:
            return grouped_pod(self.grouped, self.job, self.member)
        if self.job is None:
            raise LookupError("a pod without a job is one of a group")
        if is_submitted_pod(self.job):
            return submitted_pod(self.job, self.member)
        if self.member is None:
            raise LookupError(f"job {self.job.key} has no such member")
        return pod_object(self.member)


def member_among(pod: GroupedPod, members: Sequence[JobMember]) -> JobMember | None:
    return next((one for one in members if (one.role_name, one.index) == (pod.role, pod.member)), None)


async def of_group(tx: Transaction, pod: GroupedPod) -> NamedPod:
    if pod.job_id is None:
        return NamedPod(None, None, pod)
    job = (await job_objects.read(tx, [pod.job_id]))[pod.job_id]
    members = (await job_members.of_jobs(tx, [job])).get(job.key, [])
    return NamedPod(job, member_among(pod, members), pod)


async def create_grouped(
    call: JobCall, wanted: Desired, managers: managed_fields.Managers, queue: str
) -> Response | None:
    """Create a pod that names a group, and submit the group's job if it is the last one; answer with it. Returns None for a pod that
    names none. Raises ProblemError.
    """
    try:
        group = group_of(wanted.labels, wanted.annotations)
    except GroupError as error:
        raise mistaken(error.mistake) from error
    if group is None:
        return None
    if not wanted.name:
        raise mistaken(Mistake(path="metadata.name", message="is needed for a pod of a group"))
    alone = wanted._replace(labels=without_group(wanted.labels), annotations=without_group(wanted.annotations))
    body = orjson.dumps(call.of.submission(alone, queue))
    state, caller = call.state, call.caller
    clusters = await state.admissions.known()
    prepared = await state.parser.prepare(body, caller.key_id, call.request, clusters)
    given = GroupedSubmission(
        caller=caller,
        namespace=call.namespace,
        name=wanted.name,
        group=group,
        labels=wanted.labels,
        annotations=wanted.annotations,
        spec=wanted.spec,
        managed_fields=managed_fields.write(managers, call.of.resource.group_version),
        prepared=prepared,
        clusters=clusters,
    )
    try:
        async with state.stores.database.transaction() as tx:
            created = await pod_groups.create(tx, state.stores, given)
            await note(tx, caller, "submit", created.job or wanted.name, {"pod": wanted.name, "group": group.name})
            item = (await of_group(tx, created.pod)).item()
            if call.writing.is_dry:
                raise DryRunError(item)
    except DryRunError as undone:
        item = undone.item
    return shown(call.request, item, PODS, 201)


async def delete_pod(call: JobCall, name: str) -> Response:
    """Delete a pod: the job that it is, or a pod of a group. Raises ProblemError."""
    state, caller = call.state, call.caller
    deletion = await Deletion.read(call.request, call.writing)
    try:
        async with state.stores.database.transaction() as tx:
            for grouped in await pod_groups.named(tx, caller, call.namespace, name):
                before = (await of_group(tx, grouped)).item()
                deletion.check(PODS, before)
                await pod_groups.delete(tx, state.stores, caller, grouped, deletion.grace)
                await note(tx, caller, "cancel", name, {"deleted": name, "group": grouped.group})
                after = await pod_groups.named(tx, caller, call.namespace, name)
                item = (await of_group(tx, after[0])).item() if after else None
                if deletion.is_dry:
                    raise DryRunError(item or before)
                return deleted(PODS, before) if item is None else json(item)
    except DryRunError as undone:
        return json(undone.item)
    return await job_calls.delete_job(call, name)
