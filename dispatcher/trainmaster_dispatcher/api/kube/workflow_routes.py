"""Workflows by the Kubernetes API. The same rows, rights, checks and audit as by REST."""

from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Depends, Request, Response

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.workload_kinds.specification import NamedQueue
from trainmaster_dispatcher.api.context import App, State, note
from trainmaster_dispatcher.api.kube.bodies import (
    Desired,
    PatchType,
    desired,
    fields_of,
    patched,
    read_patch,
)
from trainmaster_dispatcher.api.kube.calls import (
    OBJECT_FIELDS,
    PREFIX,
    Deletion,
    DryRunError,
    KubernetesRouter,
    ListedBy,
    Listing,
    WrittenBy,
    add_warning,
    applied_by,
    check_address,
    check_preconditions,
    deleted,
    json,
    person,
    selector,
    shown,
    wants_table,
)
from trainmaster_dispatcher.api.kube.job_calls import place_of
from trainmaster_dispatcher.api.kube.job_changes import check_name, checked_labels, of_object
from trainmaster_dispatcher.api.kube.object_calls import After, ObjectCall, change_or_create, check_applies
from trainmaster_dispatcher.api.kube.object_watches import ChosenObjects, ObjectFacts, list_objects, watch_objects
from trainmaster_dispatcher.api.kube.objects import Wire
from trainmaster_dispatcher.api.kube.resources import WORKFLOWS
from trainmaster_dispatcher.api.kube.selectors import refused
from trainmaster_dispatcher.api.kube.status import not_found
from trainmaster_dispatcher.api.kube.workflow_objects import check_fixed, document_of, workflow_object
from trainmaster_dispatcher.api.workflows import prepared_workflow
from trainmaster_dispatcher.domain import managed_fields
from trainmaster_dispatcher.services import workflow_objects, workflows
from trainmaster_dispatcher.services.submission_parsing import mistaken
from trainmaster_dispatcher.services.workflow_objects import ReadWorkflow
from trainmaster_dispatcher.services.workflow_parsing import of_workflow, read_workflow
from trainmaster_dispatcher.services.workflows import WorkflowWriting
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.workflows import ObjectFields, WorkflowRow

_FIELDS = {
    **OBJECT_FIELDS,
    "metadata.namespace": ("metadata", "namespace"),
    "status.state": ("status", "state"),
    "spec.queue": ("spec", "queue"),
}
_READ_AT_ONCE = 100
_OF_ALL = f"{PREFIX}/namespaces/{{namespace}}/{WORKFLOWS.plural}"
_OF_ONE = f"{_OF_ALL}/{{name}}"
router = KubernetesRouter()


@dataclass(frozen=True, slots=True)
class WorkflowCall(ObjectCall):
    """A call that changes workflows of a namespace, as objects."""

    def desired(self, value: Wire) -> Desired:
        """Return what an object wants. Raises ProblemError INVALID_SPEC."""
        wanted = desired(value, WORKFLOWS.group_version, WORKFLOWS.kind)
        if wanted.owners:
            raise mistaken(Mistake(path="metadata.ownerReferences", message="workflows have none; leave it out"))
        return wanted

    def changed(self, value: Wire, before: Wire) -> Desired:
        """Return what an object that exists wants. Raises ProblemError INVALID_SPEC, CONFLICT."""
        wanted = self.desired(value)
        check_address(wanted, before["metadata"]["name"], self.namespace)
        check_preconditions(WORKFLOWS, before, wanted)
        return wanted if wanted.spec else wanted._replace(spec=before["spec"])

    async def find(self, tx: Transaction, name: str, *, locks: bool = False) -> ReadWorkflow:
        """Return the workflow whose object has this name in the namespace. Raises ProblemError NOT_FOUND."""
        for one in await workflow_objects.named(tx, self.caller, name, self.namespace, locks=locks):
            return one
        raise not_found(WORKFLOWS.full_name, name)


async def _call(namespace: str, request: Request, state: App, writing: WrittenBy) -> WorkflowCall:
    return WorkflowCall(request, state, await person(request), namespace, writing)


_Changes = Annotated[WorkflowCall, Depends(_call)]


@dataclass(frozen=True, slots=True)
class ChosenWorkflows(ChosenObjects[ReadWorkflow]):
    """The workflows that a list or a watch is about."""

    def facts(self, one: ReadWorkflow) -> ObjectFacts:
        row = one.row
        return ObjectFacts(row.id, row.queue, row.namespace, row.created_xid, row.is_gone)

    def item(self, one: ReadWorkflow) -> Wire:
        return workflow_object(one)

    async def page(self, tx: Transaction, cursor: str | None) -> tuple[list[ReadWorkflow], str | None]:
        return await workflow_objects.page(tx, self.caller, self.namespace, cursor, _READ_AT_ONCE)


async def _list(request: Request, state: State, wanted: Listing, namespace: str | None) -> Response:
    """Answer with a page of workflows as objects, or with a watch of them. Raises ProblemError."""
    caller = await person(request)
    selects = selector(wanted, _FIELDS, WORKFLOWS.plural)
    chosen = ChosenWorkflows(WORKFLOWS, caller, namespace, selects, wanted, wants_table(request))
    if wanted.is_watch:
        return await watch_objects(request, state, chosen, state.workflow_changes)
    return await list_objects(request, state, chosen)


@router.get(f"{PREFIX}/{WORKFLOWS.plural}")
async def list_all_workflows(request: Request, state: App, wanted: ListedBy) -> Response:
    return await _list(request, state, wanted, None)


@router.get(_OF_ALL)
async def list_workflows_of_namespace(namespace: str, request: Request, state: App, wanted: ListedBy) -> Response:
    return await _list(request, state, wanted, namespace)


@router.get(_OF_ONE)
async def show_workflow_object(name: str, call: _Changes) -> Response:
    async with call.state.stores.database.reading() as tx:
        found = await call.find(tx, name)
    return shown(call.request, workflow_object(found), WORKFLOWS)


@router.post(_OF_ALL)
async def create_workflow_object(call: _Changes) -> Response:
    wanted = call.desired(await call.body())
    return await _create(call, wanted, call.updated({}, wanted.fields(), {}).managers)


@router.put(_OF_ONE)
async def replace_workflow_object(name: str, call: _Changes) -> Response:
    value = await call.body()

    def after(before: Wire, managers: managed_fields.Managers) -> managed_fields.ManagedObject:
        wanted = call.changed(value, before)
        return call.updated(fields_of(before), wanted.fields(), managers)

    return await _change(call, name, after)


@router.patch(_OF_ONE)
async def patch_workflow_object(name: str, call: _Changes) -> Response:
    kind, given = read_patch(await call.request.body(), call.request.headers.get("content-type", ""))
    if kind is PatchType.APPLY:
        return await _apply(call, name, given)

    def after(before: Wire, managers: managed_fields.Managers) -> managed_fields.ManagedObject:
        wanted = call.changed(patched(kind, before, given), before)
        return call.updated(fields_of(before), wanted.fields(), managers)

    return await _change(call, name, after)


@router.delete(_OF_ONE)
async def delete_workflow_object(name: str, call: _Changes) -> Response:
    """Delete the object of a workflow, which is cancelled unless it has ended."""
    deletion = await Deletion.read(call.request, call.writing)
    try:
        async with call.state.stores.database.transaction() as tx:
            found = await call.find(tx, name, locks=True)
            before = workflow_object(found)
            deletion.check(WORKFLOWS, before)
            if deletion.orphans and not found.row.state.is_terminal:
                raise refused("propagationPolicy", "Orphan means nothing here: the jobs of a workflow end with it")
            stores, runs_cleanup = call.state.stores, deletion.grace != 0
            after = await workflow_objects.delete(tx, stores, call.caller, found.row, runs_cleanup=runs_cleanup)
            await note(tx, call.caller, "cancel workflow", found.id, {"deleted": name})
            if deletion.is_dry:
                raise DryRunError(workflow_object(after))
    except DryRunError as undone:
        return json(undone.item)
    return deleted(WORKFLOWS, before) if after.row.is_gone else json(workflow_object(after))


async def _create(call: WorkflowCall, wanted: Desired, managers: managed_fields.Managers) -> Response:
    """Submit a workflow by its object; answer with the object."""
    check_name(wanted)
    check_address(wanted, wanted.name, call.namespace)
    state, caller, spec = call.state, call.caller, wanted.spec
    named = spec.get("queue")
    queue = None if named is None else NamedQueue(named if isinstance(named, str) else "", "spec.queue")
    leaves = await state.namespaces.queues(call.namespace)
    place = place_of(leaves, caller, call.namespace, queue, "spec.queue")
    writing, warnings = await _written(call, document_of(wanted, place.queue))
    entries = managed_fields.write(managers, WORKFLOWS.group_version)
    writing = replace(writing, fields=ObjectFields(wanted.name or None, wanted.annotations, entries))
    try:
        async with state.stores.database.transaction() as tx:
            # Whether a name is free in its queue is known when the workflow is stored.
            if place.is_shared or workflow_objects.may_be_id(wanted.name):
                await _check_free(tx, call, wanted.name)
            row = await _stored(tx, state, writing)
            (made,) = await workflow_objects.read(tx, [row])
            await note(tx, caller, "submit workflow", row.name, {"workflow": made.id})
            item = workflow_object(made)
            if call.writing.is_dry:
                raise DryRunError(item)
    except DryRunError as undone:
        item = undone.item
    answer = shown(call.request, item, WORKFLOWS, 201)
    for one in warnings:
        add_warning(answer, f"spec.{one['path']}: {one['message']}")
    return answer


async def _stored(tx: Transaction, state: State, writing: WorkflowWriting) -> WorkflowRow:
    """Store a workflow. Raises ProblemError with the paths of an object."""
    try:
        return await workflows.create(tx, state.stores, writing)
    except ProblemError as error:
        raise of_object(of_workflow(error)) from error


async def _check_free(tx: Transaction, call: WorkflowCall, name: str) -> None:
    """Raise ProblemError ALREADY_EXISTS where an object of the namespace has this name."""
    if name and await workflow_objects.named(tx, call.caller, name, call.namespace):
        raise ProblemError(Code.ALREADY_EXISTS, f'{WORKFLOWS.full_name} "{name}" already exists')


async def _written(call: WorkflowCall, value: Wire) -> tuple[WorkflowWriting, list[dict[str, str]]]:
    """Return the workflow of a document with its checked jobs, and warnings. Raises ProblemError with the paths of an object."""
    try:
        wanted = read_workflow(value)
        return await prepared_workflow(call.request, call.state, call.caller, call.caller, wanted, value)
    except ProblemError as error:
        raise of_object(error) from error


async def _change(call: WorkflowCall, name: str, after: After) -> Response:
    """Change the object of a workflow to what ``after`` returns for it and its managers; answer with the object."""
    try:
        async with call.state.stores.database.transaction() as tx:
            found = await call.find(tx, name, locks=True)
            row, item = found.row, workflow_object(found)
            managers = managed_fields.read(row.managed_fields)
            done = after(item, managers)
            fields = dict(done.value)
            check_fixed(row, fields.get("spec") or item["spec"])
            metadata = fields.get("metadata", {})
            labels, annotations = (dict(metadata.get(field, {})) for field in ("labels", "annotations"))
            is_same = (labels, annotations) == (row.labels or {}, row.annotations or {})
            if not is_same or done.managers != managers:
                entries = managed_fields.write(done.managers, WORKFLOWS.group_version)
                labels = checked_labels(labels)
                changed = await workflow_objects.change(tx, call.caller, row, labels, annotations, entries)
                details = {"labels": labels, "annotations": sorted(annotations)}
                await note(tx, call.caller, "patch workflow", found.id, details)
                item = workflow_object(changed)
            if call.writing.is_dry:
                raise DryRunError(item)
    except DryRunError as undone:
        item = undone.item
    return shown(call.request, item, WORKFLOWS)


async def _apply(call: WorkflowCall, name: str, patch: Wire) -> Response:
    """Apply an object as a server-side apply does, and create it where it does not exist."""
    check_applies(call.writing)
    wanted = call.addressed(call.desired(patch), name)

    def after(before: Wire, managers: managed_fields.Managers) -> managed_fields.ManagedObject:
        check_preconditions(WORKFLOWS, before, wanted)
        return applied_by(call.writing, fields_of(before), wanted.fields(), managers)

    def create() -> Awaitable[Response]:
        return _create(call, wanted, applied_by(call.writing, {}, wanted.fields(), {}).managers)

    return await change_or_create(_change(call, name, after), create)
