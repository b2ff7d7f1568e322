"""Schedules by the Kubernetes API: Schedules of this system, and CronJobs. The same rows, rights, checks and audit as by REST."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Response

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster_dispatcher.api.context import App, State, note
from trainmaster_dispatcher.api.kube.bodies import Desired, PatchType, desired, patched, read_patch
from trainmaster_dispatcher.api.kube.calls import (
    OBJECT_FIELDS,
    PREFIX,
    Deletion,
    DryRunError,
    KubernetesRouter,
    ListedBy,
    Listing,
    WrittenBy,
    applied_by,
    check_address,
    check_preconditions,
    conflict,
    deleted,
    json,
    person,
    selector,
    shown,
    wants_table,
)
from trainmaster_dispatcher.api.kube.job_calls import place_of
from trainmaster_dispatcher.api.kube.object_calls import After, ObjectCall, change_or_create, check_applies
from trainmaster_dispatcher.api.kube.object_watches import ChosenObjects, ObjectFacts, list_objects, watch_objects
from trainmaster_dispatcher.api.kube.objects import Wire
from trainmaster_dispatcher.api.kube.schedule_objects import (
    CRON_JOB_OBJECTS,
    OWN_SCHEDULES,
    QUEUE_ANNOTATION,
    ScheduleResource,
    without_own,
)
from trainmaster_dispatcher.api.kube.status import not_found
from trainmaster_dispatcher.api.schedules import prepared_job
from trainmaster_dispatcher.domain import managed_fields
from trainmaster_dispatcher.services import auditing, schedules
from trainmaster_dispatcher.services.schedule_parsing import of_schedule
from trainmaster_dispatcher.services.schedules import ReadSchedule, ScheduleWriting
from trainmaster_dispatcher.services.submission_parsing import mistaken
from trainmaster_dispatcher.store import schedules as store
from trainmaster_dispatcher.store.database import Transaction

_FIELDS = {**OBJECT_FIELDS, "metadata.namespace": ("metadata", "namespace")}
_READ_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class ScheduleCall(ObjectCall):
    """A call that changes schedules of a namespace, as objects of a resource."""

    of: ScheduleResource

    def desired(self, value: Wire) -> Desired:
        """Return what an object wants. Raises ProblemError INVALID_SPEC."""
        wanted = desired(value, self.of.resource.group_version, self.of.resource.kind)
        if wanted.owners:
            raise mistaken(Mistake(path="metadata.ownerReferences", message="schedules have none; leave it out"))
        return wanted

    def changed(self, value: Wire, before: Wire) -> Desired:
        """Return what an object that exists wants, without what the dispatcher sets. Raises ProblemError INVALID_SPEC, CONFLICT."""
        wanted = self.desired(value)
        check_address(wanted, before["metadata"]["name"], self.namespace)
        check_preconditions(self.of.resource, before, wanted)
        queue, named = before["metadata"]["annotations"][QUEUE_ANNOTATION], self.of.queue(wanted)
        is_same = named is None or named.value == queue or (named.is_local and queue.rpartition("/")[2] == named.value)
        if named is not None and not is_same:
            raise mistaken(Mistake(path=named.path, message=f"is fixed: the queue of the schedule is {queue!r}"))
        return wanted._replace(annotations=without_own(wanted.annotations))

    async def find(self, tx: Transaction, name: str, *, locks: bool = False) -> ReadSchedule:
        """Return the schedule of this name in the namespace. Raises ProblemError NOT_FOUND."""
        rows = await store.named_schedules(tx, name, namespace=self.namespace, locks=locks)
        found = await schedules.read(tx, [row for row in rows if self.caller.may_use(row.queue)])
        for one in found:
            if self.of.has(one):
                return one
        raise not_found(self.of.resource.full_name, name)

    async def writing_of(self, wanted: Desired, queue: str, managers: managed_fields.Managers) -> ScheduleWriting:
        """Return what is written of an object, with its job checked. Raises ProblemError."""
        schedule = self.of.wanted(wanted, queue)
        try:
            prepared = await prepared_job(self.request, self.state, self.caller, schedule)
        except ProblemError as error:
            raise self.of_object(error) from error
        entries = managed_fields.write(managers, self.of.resource.group_version)
        return ScheduleWriting(schedule, self.caller, prepared, managed_fields=entries)

    def of_object(self, error: ProblemError) -> ProblemError:
        """Return an error with the paths of an object: those of a Schedule's fields are below ``spec``."""
        if self.of.kind is not None or not error.mistakes:
            return error
        mistakes = tuple(
            Mistake(path=one.path if one.path.startswith("metadata") else f"spec.{one.path}", message=one.message)
            for one in error.mistakes
        )
        return ProblemError(error.code, f"spec.{error.detail}", mistakes=mistakes, retry_after=error.retry_after)


async def _create(call: ScheduleCall, wanted: Desired, managers: managed_fields.Managers) -> Response:
    if not wanted.name:
        raise mistaken(Mistake(path="metadata.name", message="is missing; schedules are given no generated names"))
    check_address(wanted, wanted.name, call.namespace)
    state, of = call.state, call.of
    leaves = await state.namespaces.queues(call.namespace)
    place = place_of(leaves, call.caller, call.namespace, of.queue(wanted), of.queue_path)
    wanted = wanted._replace(annotations=without_own(wanted.annotations))
    writing = await call.writing_of(wanted, place.queue, managers)
    try:
        async with state.stores.database.transaction() as tx:
            if place.is_shared and await store.named_schedules(tx, wanted.name, namespace=call.namespace):
                raise ProblemError(Code.ALREADY_EXISTS, f'{of.resource.full_name} "{wanted.name}" already exists')
            row = await _checked(call, writing, lambda: schedules.create(tx, state.stores, writing))
            (made,) = await schedules.read(tx, [row])
            await note(tx, call.caller, "put schedule", f"{row.queue}/{row.name}", auditing.change_of(None, row.spec))
            item = of.item(made)
            if call.writing.is_dry:
                raise DryRunError(item)
    except DryRunError as undone:
        item = undone.item
    return shown(call.request, item, of.resource, 201)


async def _checked(call: ScheduleCall, writing: ScheduleWriting, work: Callable[[], Any]) -> Any:
    """Do a change; its errors have the paths that fields have in an object."""
    try:
        return await work()
    except ProblemError as error:
        if error.code in (Code.ALREADY_EXISTS, Code.CONFLICT):
            raise
        raise call.of_object(of_schedule(error, writing.wanted.kind, writing.wanted.spec)) from error


async def _change(call: ScheduleCall, name: str, after: After) -> Response:
    """Change an object to what ``after`` returns for it and its managers; answer with the object."""
    state, of = call.state, call.of
    async with state.stores.database.reading() as tx:
        seen = await call.find(tx, name)
    of.check_changes(seen)
    # Its job is checked before the row is locked; if somebody changes it meanwhile, the call is to be repeated.
    item = of.item(seen)
    managers = managed_fields.read(seen.row.managed_fields)
    done = after(item, managers)
    wanted = _wanted_of(name, dict(done.value))
    if wanted.fields() == of.fields_of(item) and done.managers == managers:
        return shown(call.request, item, of.resource)
    writing = await call.writing_of(wanted, seen.row.queue, done.managers)
    try:
        async with state.stores.database.transaction() as tx:
            before = await call.find(tx, name, locks=True)
            if (before.row.id, before.row.spec, before.row.generation) != (
                seen.row.id,
                seen.row.spec,
                seen.row.generation,
            ):
                raise conflict(of.resource, name, "the object has been modified; please try again")
            row = await _checked(call, writing, lambda: schedules.change(tx, state.stores, before.row, writing))
            (changed,) = await schedules.read(tx, [row])
            details = auditing.change_of(before.row.spec, row.spec)
            await note(tx, call.caller, "put schedule", f"{row.queue}/{row.name}", details)
            item = of.item(changed)
            if call.writing.is_dry:
                raise DryRunError(item)
    except DryRunError as undone:
        item = undone.item
    return shown(call.request, item, of.resource)


def _wanted_of(name: str, fields: Wire) -> Desired:
    metadata = fields.get("metadata", {})
    labels, annotations = (dict(metadata.get(field, {})) for field in ("labels", "annotations"))
    return Desired(name, "", "", labels, annotations, dict(fields.get("spec", {})), "", "")


def _router(prefix: str, of: ScheduleResource) -> KubernetesRouter:
    """Return the routes of schedules as objects of a resource."""
    made = KubernetesRouter()
    plural = of.resource.plural
    of_all = f"{prefix}/namespaces/{{namespace}}/{plural}"
    of_one = f"{of_all}/{{name}}"

    async def changing(namespace: str, request: Request, state: App, writing: WrittenBy) -> ScheduleCall:
        return ScheduleCall(request, state, await person(request), namespace, writing, of)

    changes = Annotated[ScheduleCall, Depends(changing)]

    @made.get(f"{prefix}/{plural}")
    async def list_all(request: Request, state: App, wanted: ListedBy) -> Response:
        return await _list(of, request, state, wanted, None)

    @made.get(of_all)
    async def list_in_namespace(namespace: str, request: Request, state: App, wanted: ListedBy) -> Response:
        return await _list(of, request, state, wanted, namespace)

    @made.get(of_one)
    async def show(name: str, call: changes) -> Response:
        async with call.state.stores.database.reading() as tx:
            found = await call.find(tx, name)
        return shown(call.request, of.item(found), of.resource)

    @made.post(of_all)
    async def create(call: changes) -> Response:
        wanted = call.desired(await call.body())
        cleaned = wanted._replace(annotations=without_own(wanted.annotations))
        return await _create(call, wanted, call.updated({}, cleaned.fields(), {}).managers)

    @made.put(of_one)
    async def replace(name: str, call: changes) -> Response:
        value = await call.body()

        def after(before: Wire, managers: managed_fields.Managers) -> managed_fields.ManagedObject:
            wanted = call.changed(value, before)
            return call.updated(of.fields_of(before), wanted.fields(), managers)

        return await _change(call, name, after)

    @made.patch(of_one)
    async def patch(name: str, call: changes) -> Response:
        content_type = call.request.headers.get("content-type", "")
        kind, given = read_patch(await call.request.body(), content_type, of.patch_types)
        if kind is PatchType.APPLY:
            return await _apply(call, name, given)

        def after(before: Wire, managers: managed_fields.Managers) -> managed_fields.ManagedObject:
            wanted = call.changed(patched(kind, before, given), before)
            return call.updated(of.fields_of(before), wanted.fields(), managers)

        return await _change(call, name, after)

    @made.delete(of_one)
    async def delete(name: str, call: changes) -> Response:
        return await _delete(call, name)

    return made


async def _apply(call: ScheduleCall, name: str, patch: Wire) -> Response:
    """Apply an object as a server-side apply does, and create it where it does not exist."""
    check_applies(call.writing)
    wanted = call.addressed(call.desired(patch), name)

    def after(before: Wire, managers: managed_fields.Managers) -> managed_fields.ManagedObject:
        cleaned = call.changed({**patch, "metadata": {**(patch.get("metadata") or {}), "name": name}}, before)
        return applied_by(call.writing, call.of.fields_of(before), cleaned.fields(), managers)

    def create() -> Awaitable[Response]:
        cleaned = wanted._replace(annotations=without_own(wanted.annotations))
        return _create(call, wanted, applied_by(call.writing, {}, cleaned.fields(), {}).managers)

    return await change_or_create(_change(call, name, after), create)


async def _delete(call: ScheduleCall, name: str) -> Response:
    """Delete a schedule, and soon after it its jobs, unless they are to be orphans."""
    deletion = await Deletion.read(call.request, call.writing)
    try:
        async with call.state.stores.database.transaction() as tx:
            found = await call.find(tx, name, locks=True)
            before = call.of.item(found)
            deletion.check(call.of.resource, before)
            row = found.row
            await schedules.delete(tx, call.caller, row, keeps_jobs=deletion.orphans)
            details = {**auditing.change_of(row.spec, None), "keepJobs": deletion.orphans}
            await note(tx, call.caller, "delete schedule", f"{row.queue}/{row.name}", details)
            if deletion.is_dry:
                raise DryRunError(before)
    except DryRunError as undone:
        return json(undone.item)
    return deleted(call.of.resource, before)


@dataclass(frozen=True, slots=True)
class ChosenSchedules(ChosenObjects[ReadSchedule]):
    """The schedules that a list or a watch is about."""

    of: ScheduleResource

    def facts(self, one: ReadSchedule) -> ObjectFacts:
        row = one.row
        return ObjectFacts(row.id, row.queue, row.namespace, row.created_xid, row.deleted_at is not None)

    def has(self, one: ReadSchedule) -> bool:
        return self.of.has(one)

    def item(self, one: ReadSchedule) -> Wire:
        return self.of.item(one)

    async def page(self, tx: Transaction, cursor: str | None) -> tuple[list[ReadSchedule], str | None]:
        return await schedules.page(tx, self.caller, None, cursor, _READ_AT_ONCE, self.of.kind)


async def _list(
    of: ScheduleResource, request: Request, state: State, wanted: Listing, namespace: str | None
) -> Response:
    """Answer with a page of schedules as objects, or with a watch of them. Raises ProblemError."""
    caller = await person(request)
    selects = selector(wanted, _FIELDS, of.resource.plural)
    chosen = ChosenSchedules(of.resource, caller, namespace, selects, wanted, wants_table(request), of)
    if wanted.is_watch:
        return await watch_objects(request, state, chosen, state.schedule_changes)
    return await list_objects(request, state, chosen)


router = _router(PREFIX, OWN_SCHEDULES)
cron_job_router = _router("/apis/batch/v1", CRON_JOB_OBJECTS)
