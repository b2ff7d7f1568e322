"""Calls about jobs by the Kubernetes API, as whichever resource: read, watched, created, applied, patched, replaced and deleted.

A change is one transaction with its line of the audit; a job is created as by the REST API, in a group with others.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import orjson
from fastapi import Request, Response

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.ids import BadIdError, parse_job_id
from trainmaster.workload_kinds.specification import NamedQueue
from trainmaster_dispatcher.api.asgi import client_address, request_id
from trainmaster_dispatcher.api.context import State, note
from trainmaster_dispatcher.api.kube.bodies import (
    Desired,
    PatchType,
    desired,
    patched,
    read_patch,
)
from trainmaster_dispatcher.api.kube.calls import (
    Deletion,
    DryRunError,
    Listing,
    ListToken,
    add_warning,
    applied_by,
    check_address,
    check_preconditions,
    deleted,
    json,
    listed,
    person,
    selected,
    shown,
    wants_table,
)
from trainmaster_dispatcher.api.kube.job_changes import check_name
from trainmaster_dispatcher.api.kube.job_resources import JobResource
from trainmaster_dispatcher.api.kube.job_selection import JOB_FIELDS, conditions_of, filter_of, values_of
from trainmaster_dispatcher.api.kube.job_watches import WatchedJobs
from trainmaster_dispatcher.api.kube.object_calls import After, ObjectCall, change_or_create, check_applies
from trainmaster_dispatcher.api.kube.objects import ListMetadata, Wire, schedule_uid
from trainmaster_dispatcher.api.kube.selectors import parse_labels
from trainmaster_dispatcher.api.kube.tables import Included
from trainmaster_dispatcher.api.kube.watching import watch_jobs
from trainmaster_dispatcher.domain import managed_fields
from trainmaster_dispatcher.services import auditing, job_objects
from trainmaster_dispatcher.services.group_commit import ByItselfError, PendingSubmission
from trainmaster_dispatcher.services.job_objects import JobObjectChange, ReadJob
from trainmaster_dispatcher.services.submission_parsing import mistaken
from trainmaster_dispatcher.services.submit import ObjectMetadata, Submission, Submitted, already_exists, submit_one
from trainmaster_dispatcher.store import job_objects as store
from trainmaster_dispatcher.store import schedules as schedule_store
from trainmaster_dispatcher.store import versions
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.schedules import ScheduleRow

_DELETED_AT_ONCE = 100
_MOST_WHOLE_JOBS = 100
"""The most jobs of a page with their specifications; the client asks for the next page by the token of the list."""


async def show_job(of: JobResource, request: Request, state: State, namespace: str, name: str) -> Response:
    """Answer with the object of a job. Raises ProblemError NOT_FOUND."""
    caller = await person(request)
    async with state.stores.database.reading() as tx:
        found = await job_objects.show(tx, caller, namespace, name, of.kind)
    return shown(request, of.item(found), of.resource)


@dataclass(frozen=True, slots=True)
class JobCall(ObjectCall):
    """A call that changes jobs of a namespace, as objects of a resource."""

    of: JobResource
    creator: "Creator | None" = None
    """Creates what is no job by itself."""

    async def wanted(self) -> Desired:
        """Return what the object in the body wants. Raises ProblemError."""
        return self.desired(await self.body())

    def desired(self, value: Wire) -> Desired:
        """Return what an object wants. Raises ProblemError INVALID_SPEC with each mistake."""
        resource = self.of.resource
        return self.of.cleaned(desired(value, resource.group_version, resource.kind))


Creator = Callable[[JobCall, Desired, managed_fields.Managers, str], Awaitable[Response | None]]
"""Creates an object in a queue, by its path, and answers with it; returns None for one that is a job by itself."""


async def create_job(call: JobCall) -> Response:
    """Submit the job of an object; answer with the object. Raises ProblemError."""
    wanted = await call.wanted()
    check_name(wanted)
    return await _create(call, wanted, call.updated({}, wanted.fields(), {}).managers)


async def replace_job(call: JobCall, name: str) -> Response:
    """Replace the object of a job; answer with the object. Raises ProblemError."""
    wanted = await call.wanted()

    def after(before: Wire, managers: managed_fields.Managers) -> managed_fields.ManagedObject:
        check_preconditions(call.of.resource, before, wanted)
        fields = wanted.fields() if wanted.spec else {**wanted.fields(), "spec": before["spec"]}
        return call.updated(call.of.fields_of(before), fields, managers)

    check_address(wanted, name, call.namespace)
    return await _change(call, name, after)


async def patch_job(call: JobCall, name: str) -> Response:
    """Patch the object of a job, or apply it; answer with the object. Raises ProblemError."""
    content_type = call.request.headers.get("content-type", "")
    kind, patch = read_patch(await call.request.body(), content_type, call.of.patch_types)
    if kind is PatchType.APPLY:
        return await _apply(call, name, patch)

    def after(before: Wire, managers: managed_fields.Managers) -> managed_fields.ManagedObject:
        given = patched(kind, before, patch)
        wanted = call.desired(given)
        check_address(wanted, name, call.namespace)
        check_preconditions(call.of.resource, before, wanted)
        return call.updated(call.of.fields_of(before), wanted.fields(), managers)

    return await _change(call, name, after)


async def _apply(call: JobCall, name: str, patch: Wire) -> Response:
    """Apply an object as a server-side apply does, and create it where it does not exist."""
    check_applies(call.writing)
    wanted = call.addressed(call.desired(patch), name)
    check_name(wanted)

    def after(before: Wire, managers: managed_fields.Managers) -> managed_fields.ManagedObject:
        check_preconditions(call.of.resource, before, wanted)
        return applied_by(call.writing, call.of.fields_of(before), wanted.fields(), managers)

    def create() -> Awaitable[Response]:
        return _create(call, wanted, applied_by(call.writing, {}, wanted.fields(), {}).managers)

    return await change_or_create(_change(call, name, after), create)


async def delete_job(call: JobCall, name: str) -> Response:
    """Delete the object of a job, which is cancelled. Raises ProblemError."""
    deletion = await Deletion.read(call.request, call.writing)
    state, caller = call.state, call.caller
    try:
        async with state.stores.database.transaction() as tx:
            locked = await job_objects.lock(tx, caller, call.namespace, name, call.of.kind)
            job = locked.job
            before = call.of.item(job)
            deletion.check(call.of.resource, before)
            await job_objects.delete(tx, state.stores, caller, locked, deletion.grace)
            await note(tx, caller, "cancel", str(job.line["id"]), {"deleted": name})
            after = (await job_objects.read(tx, [job.key])).get(job.key)
            item = before if after is None else call.of.item(after)
            if deletion.is_dry:
                raise DryRunError(item)
    except DryRunError as undone:
        return json(undone.item)
    if after is None or after.is_gone:
        return deleted(call.of.resource, before)
    return json(item)


async def delete_jobs(call: JobCall, wanted: Listing) -> Response:
    """Delete the objects of a namespace that selectors select, newest first, some in each transaction. Raises ProblemError: what was
    deleted until then stays deleted.
    """
    deletion = await Deletion.read(call.request, call.writing)
    state, caller = call.state, call.caller
    values, labels = values_of(wanted), conditions_of(parse_labels(wanted.labels))
    cursor: str | None = None
    while True:
        async with state.stores.database.reading() as tx:
            filtered = await filter_of(tx, caller, call.namespace, values)
            if filtered is None:
                break
            page = await job_objects.page(
                tx, caller, filtered, labels, cursor, _DELETED_AT_ONCE, is_whole=False, kind=call.of.kind
            )
        names = {job.name for job in page.jobs}
        if name := values.get("metadata.name"):
            names &= {name}
        if names and not deletion.is_dry:
            async with state.stores.database.transaction() as tx:
                for locked in await job_objects.lock_all(tx, caller, call.namespace, sorted(names), call.of.kind):
                    await job_objects.delete(tx, state.stores, caller, locked, deletion.grace)
                    await note(tx, caller, "cancel", str(locked.job.line["id"]), {"deleted": locked.job.name})
        cursor = page.following
        if cursor is None:
            break
    details = {"group": call.of.resource.group, "kind": call.of.resource.plural}
    return json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})


class QueuePlace(NamedTuple):
    """The queue of an object that is created, and whether its namespace is also that of others."""

    queue: str
    is_shared: bool


def _may_be_id(name: str) -> bool:
    """Return whether a job may have this id."""
    try:
        parse_job_id(name)
    except BadIdError:
        return False
    return True


def place_of(
    leaves: Sequence[store.LeafQueue], caller: Caller, namespace: str, named: NamedQueue | None, unnamed: str
) -> QueuePlace:
    """Return the place of an object that is created in a namespace. ``unnamed``: the path by which it could name its queue.

    Raises ProblemError NOT_FOUND or INVALID_SPEC.
    """
    queues = [one.path for one in leaves if caller.may_use(one.path)]
    if not queues:
        raise ProblemError(
            Code.NOT_FOUND,
            f'namespaces "{namespace}" not found: there is no queue with this namespace that takes jobs of {caller.name!r};'
            " see kubectl get namespaces",
        )
    if named is not None:
        return QueuePlace(_queue_of(queues, namespace, named), len(queues) > 1)
    if len(queues) > 1:
        message = f"is needed: the namespace {namespace!r} is that of {len(queues)} queues: {', '.join(queues)}"
        raise mistaken(Mistake(path=unnamed, message=message))
    return QueuePlace(queues[0], is_shared=False)


def _queue_of(queues: Sequence[str], namespace: str, named: NamedQueue) -> str:
    """Return the queue of a namespace that an object names. Raises ProblemError INVALID_SPEC if it has none of the name."""
    if named.value in queues:
        return named.value
    ends = [one for one in queues if named.is_local and one.rpartition("/")[2] == named.value]
    if len(ends) == 1:
        return ends[0]
    message = (
        f"{named.value[:100]!r} is no queue of the namespace {namespace!r}, which has: {', '.join(queues[:20])};"
        " kubectl get namespaces shows which queue has which namespace"
    )
    raise mistaken(Mistake(path=named.path, message=message))


async def _create(call: JobCall, wanted: Desired, managers: managed_fields.Managers) -> Response:
    """Submit a job by its object; answer with the object."""
    state, caller, namespace = call.state, call.caller, call.namespace
    if wanted.namespace not in ("", namespace):
        check_address(wanted, wanted.name, namespace)
    leaves = await state.namespaces.queues(namespace)
    place = place_of(leaves, caller, namespace, call.of.queue(wanted), call.of.queue_path)
    # Whether a name is free in its queue is known when the job is stored. A job without a name has its id as that of its object.
    if wanted.name and (place.is_shared or _may_be_id(wanted.name)):
        async with state.stores.database.reading() as tx:
            if await job_objects.show_all(tx, caller, namespace, wanted.name):
                raise already_exists(wanted.name, call.of.kind.name)
    queue = place.queue
    if call.creator is not None and (special := await call.creator(call, wanted, managers, queue)) is not None:
        return special
    body = orjson.dumps(call.of.submission(wanted, queue))
    try:
        prepared = await state.parser.prepare(body, caller.key_id, call.request, await state.admissions.known())
    except ProblemError as error:
        raise call.of.error(error) from error
    metadata = ObjectMetadata(
        wanted.name or None,
        orjson.dumps(wanted.spec),
        orjson.dumps(wanted.annotations) if wanted.annotations else None,
        orjson.dumps(managed_fields.write(managers, call.of.resource.group_version)),
        call.of.kind.name,
    )
    given = Submission(caller, prepared, None, metadata)
    owner = await _owner_of(call, wanted) if wanted.owners else None
    if call.writing.is_dry:
        item = await _try_out(call, given)
    elif owner is not None:
        item = await _submitted_of(call, given, owner)
    else:
        item = await _submitted(call, given)
    answer = shown(call.request, item, call.of.resource, 201)
    if prepared.named:
        for one in await state.admissions.warnings(caller, prepared.named):
            add_warning(answer, f"{call.of.warning_path(one.path)}: {one.message}")
    return answer


async def _owner_of(call: JobCall, wanted: Desired) -> ScheduleRow:
    """Return the schedule that a new object names as its owner. Raises ProblemError INVALID_SPEC for one of another namespace."""
    (owner,) = wanted.owners
    async with call.state.stores.database.reading() as tx:
        found = await schedule_store.named_schedules(tx, str(owner["name"]), namespace=call.namespace)
    for row in found:
        if call.caller.may_use(row.queue) and schedule_uid(row.id, row.kind) == owner["uid"]:
            return row
    message = f"no schedule {str(owner['name'])[:60]!r} of this namespace has this uid; leave it out"
    raise mistaken(Mistake(path="metadata.ownerReferences", message=message))


async def _submitted_of(call: JobCall, given: Submission, owner: ScheduleRow) -> Wire:
    """Store a job that a schedule owns, as somebody asked for it; return its object."""
    state, caller = call.state, call.caller
    async with state.stores.database.transaction() as tx:
        submitted = await submit_one(tx, state.stores, given)
        await schedule_store.add_jobs(tx, [schedule_store.MadeJob(submitted.first, owner.id, None)])
        await schedule_store.touch(tx, [owner.id])
        details = {**auditing.jobs_of(submitted.ids), "schedule": f"{owner.queue}/{owner.name}"}
        await note(tx, caller, "submit", auditing.number_of_jobs(1), details)
        job = (await job_objects.read(tx, [submitted.first]))[submitted.first]
    return call.of.item(job)


async def _submitted(call: JobCall, given: Submission) -> Wire:
    """Store a job, in a group with others if possible; return its object."""
    state, caller = call.state, call.caller
    pending = PendingSubmission(given, None, b"", request_id.get(), client_address.get())
    if state.group_commits.takes(pending):
        with suppress(ByItselfError):
            stored = await state.group_commits.submit(pending)
            return call.of.item(_made(call, given, stored.submitted))
    async with state.stores.database.transaction() as tx:
        submitted = await submit_one(tx, state.stores, given)
        await note(tx, caller, "submit", auditing.number_of_jobs(1), auditing.jobs_of(submitted.ids))
    return call.of.item(_made(call, given, submitted))


def _made(call: JobCall, given: Submission, submitted: Submitted) -> ReadJob:
    """Return a job that was just stored, without a read of it, which would take as long as storing it did."""
    made = job_objects.fresh(given, submitted)
    return replace(made, metadata=made.metadata._replace(namespace=call.namespace))


async def _try_out(call: JobCall, given: Submission) -> Wire:
    """Store a job and undo it; return the object that it would be."""
    state = call.state
    try:
        async with state.stores.database.transaction() as tx:
            key = (await submit_one(tx, state.stores, given)).first
            raise DryRunError(call.of.item((await job_objects.read(tx, [key]))[key]))
    except DryRunError as undone:
        return undone.item


async def _change(call: JobCall, name: str, after: After) -> Response:
    """Change a job's object to what ``after`` returns for it and its managers; answer with the object."""
    state, caller = call.state, call.caller
    try:
        async with state.stores.database.transaction() as tx:
            locked = await job_objects.lock(tx, caller, call.namespace, name, call.of.kind)
            job = locked.job
            before = item = call.of.item(job)
            is_managed = call.of.is_managed(job)
            managers = managed_fields.read(job.metadata.managed_fields if is_managed else None)
            done: managed_fields.ManagedObject = after(before, managers)
            change = call.of.change(job, before, done.value)
            if not is_managed:
                change = replace(change, spec=None)
            elif done.managers != managers:
                entries = managed_fields.write(done.managers, call.of.resource.group_version)
                change = replace(change, managed_fields=entries)
            if change != JobObjectChange():
                changed = await job_objects.change(tx, state.stores, caller, locked, change)
                await note(tx, caller, "patch", str(job.line["id"]), _audited(change))
                item = call.of.item(changed)
            if call.writing.is_dry:
                raise DryRunError(item)
    except DryRunError as undone:
        item = undone.item
    return shown(call.request, item, call.of.resource)


def _audited(change: JobObjectChange) -> dict[str, Any]:
    """Return a change as the audit records it."""
    found: dict[str, Any] = {} if change.patch is None else change.patch.to_wire()
    if change.action is not None:
        found["action"] = change.action.value
    if change.labels is not None:
        found["labels"] = change.labels
    if change.annotations is not None:
        found["annotations"] = sorted(change.annotations)
    return found


# -- lists


async def list_jobs(
    of: JobResource, request: Request, state: State, wanted: Listing, namespace: str | None
) -> Response:
    """Answer with a page of jobs as objects, or with a watch of them. Raises ProblemError."""
    caller = await person(request)
    values = values_of(wanted)
    labels = parse_labels(wanted.labels)
    if wanted.is_watch:
        chosen = WatchedJobs(of, caller, namespace, labels, values, wants_table(request), wanted.included)
        return await watch_jobs(request, state, wanted, chosen)
    token = ListToken.read(wanted.following)
    place = values.get("metadata.namespace", namespace)
    async with state.stores.database.reading() as tx:
        version = token.version or (await versions.horizon(tx)).version
        if name := values.get("metadata.name"):
            items = [of.item(one) for one in await job_objects.show_all(tx, caller, place, name, of.kind)]
            items = selected(items, wanted, JOB_FIELDS, of.resource.plural)
            return listed(request, wanted, items, of.resource, ListMetadata(version))
        filtered = await filter_of(tx, caller, namespace, values)
        if filtered is None:
            return listed(request, wanted, [], of.resource, ListMetadata(version))
        is_whole = not wants_table(request) or wanted.included is Included.OBJECT
        limit = min(wanted.limit, _MOST_WHOLE_JOBS) if is_whole else wanted.limit
        page = await job_objects.page(
            tx, caller, filtered, conditions_of(labels), token.cursor, limit, is_whole=is_whole, kind=of.kind
        )
    items = [of.item(job) for job in page.jobs]
    following = ListToken(version, page.following).written()
    return listed(request, wanted, items, of.resource, ListMetadata(version, following))
