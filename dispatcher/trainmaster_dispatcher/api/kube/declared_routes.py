"""Declared objects by the Kubernetes API: read, watched, and by admins created, applied, patched, replaced and deleted.

A change is that of the REST API, by the same services: with its revision, its line of the audit, and the owners of its fields, who
are the managers of them here.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from fastapi import Depends, Request, Response
from pydantic import ValidationError

from trainmaster.protocol.base import Strict
from trainmaster.protocol.documents import Document
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.permissions import KIND_READ, KIND_WRITE
from trainmaster.protocol.resource_kinds import QUEUE
from trainmaster.protocol.validation_errors import mistakes_of
from trainmaster_dispatcher.api.context import App, State, note, note_changes
from trainmaster_dispatcher.api.kube import objects
from trainmaster_dispatcher.api.kube.bodies import (
    Desired,
    PatchType,
    desired,
    fields_of,
    patched,
    read_object,
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
    Wire,
    Writing,
    WrittenBy,
    check_address,
    check_preconditions,
    deleted,
    json,
    listed,
    person,
    selected,
    selector,
    shown,
    wants_table,
)
from trainmaster_dispatcher.api.kube.declared_views import DeclaredView, declared_object, declared_uid, meaning
from trainmaster_dispatcher.api.kube.job_watches import WatchEvent, frame
from trainmaster_dispatcher.api.kube.object_calls import check_applies
from trainmaster_dispatcher.api.kube.objects import ListMetadata
from trainmaster_dispatcher.api.kube.resources import RESOURCES, ApiResource
from trainmaster_dispatcher.api.kube.status import not_found
from trainmaster_dispatcher.api.kube.tables import table_of
from trainmaster_dispatcher.api.kube.watching import WatchTerms, bookmark, start_of, streaming
from trainmaster_dispatcher.api.limits import CountedStream, StreamKind
from trainmaster_dispatcher.domain.declared_fields import changed_fields, overlaid, value_at
from trainmaster_dispatcher.domain.redaction import rendered_json
from trainmaster_dispatcher.services import auditing, declarations
from trainmaster_dispatcher.services.declarations import ApplyTerms
from trainmaster_dispatcher.services.declared import DeclaredKind
from trainmaster_dispatcher.services.revisions import Author
from trainmaster_dispatcher.services.submission_parsing import mistaken
from trainmaster_dispatcher.store import declared, declared_metadata
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.declarations import ObjectName
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.redis_channels import wait_set

log = logging.getLogger(__name__)

router = KubernetesRouter()

_LOOK_SECONDS = 1.0
_ALL = f"{PREFIX}/{{plural}}"
_ONE = f"{PREFIX}/{{plural}}/{{name}}"
Kind = DeclaredKind[Any, Any]


def declared_resource(plural: str) -> tuple[ApiResource, Kind]:
    """Return a resource of declared objects with their kind. Raises ProblemError NOT_FOUND."""
    resource = RESOURCES.get(plural)
    if resource is None or resource.declared is None:
        raise ProblemError(Code.NOT_FOUND, "the server could not find the requested resource")
    return resource, resource.declared


@router.get(_ALL)
async def list_declared(plural: str, request: Request, state: App, wanted: ListedBy) -> Response:
    resource, of = declared_resource(plural)
    caller = await person(request, KIND_READ[of.kind.kind])
    if wanted.is_watch:
        return await _watch(request, state, wanted, resource, caller)
    view = await state.declared_views.now(resource, of, caller, is_fresh=True)
    items = selected(view.values(), wanted, OBJECT_FIELDS, resource.plural)
    return listed(request, wanted, items, resource, ListMetadata(view.version))


@router.get(_ONE)
async def show_declared(plural: str, name: str, request: Request, state: App) -> Response:
    resource, of = declared_resource(plural)
    caller = await person(request, KIND_READ[of.kind.kind])
    view = await state.declared_views.now(resource, of, caller, is_fresh=True)
    if name not in view.items:
        raise not_found(resource.full_name, name)
    return shown(request, view.items[name][0], resource)


# -- changes


@dataclass(frozen=True, slots=True)
class DeclaredChange:
    """A call that changes objects of one kind."""

    request: Request
    state: State
    caller: Caller
    resource: ApiResource
    of: Kind
    writing: Writing

    def author(self, action: str) -> Author:
        """Return the author of the change: its manager owns the fields."""
        return Author(self.caller.name, self.writing.manager, action, self.caller)

    async def wanted(self) -> Desired:
        """Return what the object in the body wants. Raises ProblemError."""
        value = read_object(await self.request.body(), self.request.headers.get("content-type", ""))
        return desired(value, objects.GROUP_VERSION, self.resource.kind)

    def answer(self, item: Wire, *, is_new: bool = False) -> Response:
        """Return the object as the client wants it."""
        return shown(self.request, item, self.resource, 201 if is_new else 200)


async def _changing(plural: str, request: Request, state: App, writing: WrittenBy) -> DeclaredChange:
    """Return a call that changes declared objects. Raises ProblemError."""
    resource, of = declared_resource(plural)
    caller = await person(request, KIND_WRITE[of.kind.kind])
    return DeclaredChange(request, state, caller, resource, of, writing)


Changing = Annotated[DeclaredChange, Depends(_changing)]


@router.post(_ALL)
async def create_declared(call: Changing) -> Response:
    wanted = await call.wanted()
    if not wanted.name:
        raise mistaken(Mistake(path="metadata.name", message="is missing"))

    async def work(tx: Transaction, target: str, before: Wire | None) -> Wire:
        if before is not None:
            raise ProblemError(Code.ALREADY_EXISTS, f'{call.resource.full_name} "{wanted.name}" already exists')
        await call.of.put(tx, _parsed(call.of, target, wanted.spec), call.author("put"))
        return wanted.fields()

    return call.answer(await change_object(call, wanted.name, "put", work), is_new=True)


@router.put(_ONE)
async def replace_declared(name: str, call: Changing) -> Response:
    wanted = await call.wanted()
    check_address(wanted, name)

    async def work(tx: Transaction, target: str, before: Wire | None) -> Wire:
        check_preconditions(call.resource, existing_object(call.resource, name, before), wanted)
        await update_object(tx, call.of, target, wanted, call.author("put"))
        return wanted.fields()

    return call.answer(await change_object(call, name, "put", work))


@router.patch(_ONE)
async def patch_declared(name: str, call: Changing) -> Response:
    kind, patch = read_patch(await call.request.body(), call.request.headers.get("content-type", ""))
    if kind is PatchType.APPLY:
        return await _apply(call, name, patch)

    async def work(tx: Transaction, target: str, before: Wire | None) -> Wire:
        existing = existing_object(call.resource, name, before)
        wanted = desired(patched(kind, existing, patch), objects.GROUP_VERSION, call.resource.kind)
        check_address(wanted, name)
        check_preconditions(call.resource, existing, wanted)
        await update_object(tx, call.of, target, wanted, call.author("patch"))
        return wanted.fields()

    return call.answer(await change_object(call, name, "patch", work))


async def _apply(call: DeclaredChange, name: str, patch: Wire) -> Response:
    """Apply an object as a server-side apply does, and create it where it does not exist."""
    check_applies(call.writing)
    wanted = desired(patch, objects.GROUP_VERSION, call.resource.kind)
    check_address(wanted, name)
    is_new = False

    async def work(tx: Transaction, target: str, before: Wire | None) -> Wire:
        nonlocal is_new
        is_new = before is None
        if before is not None:
            check_preconditions(call.resource, before, wanted)
        kind = call.of.kind
        document = Document({**wanted.spec, "kind": kind.kind, kind.key: target}, "spec")
        terms = ApplyTerms(force=call.writing.is_forced)
        done = await declarations.apply_documents(tx, [document], call.author("apply"), terms)
        await note_changes(tx, call.caller, done.audit)
        return overlaid(fields_of(before), wanted.fields())

    item = await change_object(call, name, "apply", work)
    return call.answer(item, is_new=is_new)


@router.delete(_ONE)
async def delete_declared(name: str, call: Changing) -> Response:
    resource, of = call.resource, call.of
    if "delete" not in resource.verbs:
        raise ProblemError(
            Code.METHOD_NOT_ALLOWED,
            f"{resource.full_name} are not deleted here; see trainmaster {of.kind.command} --help",
        )
    deletion = await Deletion.read(call.request, call.writing)
    existing: Wire = {}
    target = _target(of, name)
    try:
        async with call.state.stores.database.transaction() as tx:
            await declared.lock(tx, f"{of.kind.name} {target}")
            existing = existing_object(resource, name, await _object(tx, resource, of, target))
            deletion.check(resource, existing)
            before = await of.find(tx, target)
            await of.delete(tx, target, call.author("delete"))
            await note(tx, call.caller, f"delete {of.kind.name}", target, auditing.change_of(before, None))
            if deletion.is_dry:
                raise DryRunError(existing)
    except DryRunError as undone:
        return json(undone.item)
    call.state.stores.tenants_changed()
    return deleted(resource, existing)


Work = Callable[[Transaction, str, Wire | None], Awaitable[Wire]]
"""A change in a transaction, given the name of the object of ours and the object before; returns what is managed of it afterwards."""


async def change_object(call: DeclaredChange, name: str, verb: str, work: Work) -> Wire:
    """Do a change of one object, with its line of the audit; return the object."""
    state, resource, of = call.state, call.resource, call.of
    target = _target(of, name)
    is_apply = verb == "apply"
    try:
        async with state.stores.database.transaction() as tx:
            if not is_apply:  # which takes its locks in an order of its own
                await declared.lock(tx, f"{of.kind.name} {target}")
            before = await of.find(tx, target)
            fields = await work(tx, target, await _object(tx, resource, of, target))
            after = await of.find(tx, target)
            if not is_apply and before != after:
                await note(tx, call.caller, f"{verb} {of.kind.name}", target, auditing.change_of(before, after))
            await _write_metadata(tx, of, target, fields)
            item = await _object(tx, resource, of, target)
            if item is None:
                raise ProblemError(Code.NOT_FOUND, f'{resource.full_name} "{name}" not found')
            if call.writing.is_dry:
                raise DryRunError(item)
    except DryRunError as undone:
        return undone.item
    except ProblemError as error:
        raise _of_object(error) from error
    state.stores.tenants_changed()
    view = await state.declared_views.now(resource, of, call.caller, is_fresh=False)
    seen = view.items[name][0] if name in view.items else {}
    return item | ({"status": seen["status"]} if "status" in seen else {})


def _target(of: Kind, name: str) -> str:
    """Return the name of an object of ours, of its name in Kubernetes."""
    return name.replace(".", "/") if of.kind.kind == QUEUE.kind else name


async def _object(tx: Transaction, resource: ApiResource, of: Kind, target: str) -> Wire | None:
    """Return an object as an admin sees it, without what is shown beside its specification."""
    found = (await of.table.by_name(tx, [target])).get(target)
    if found is None:
        return None
    known = (await declared_metadata.of_kind(tx, of.table, target))[target]
    managers = await declared_metadata.managers(tx, of.kind.kind, target)
    return declared_object(resource, of, found.as_declared(), known, managers.get(target, ()), is_admin=True)


def existing_object(resource: ApiResource, name: str, before: Wire | None) -> Wire:
    if before is None:
        raise not_found(resource.full_name, name)
    return before


def _parsed(of: Kind, target: str, spec: Wire) -> Strict:
    """Return a specification. Raises ProblemError INVALID_SPEC with each mistake."""
    if spec.get(of.kind.key, target) != target:
        raise mistaken(Mistake(path=of.kind.key, message=f"is {target!r} by the name of the object; leave it out"))
    try:
        found: Strict = of.kind.spec.model_validate(of.kind.spec.long_form({**spec, of.kind.key: target}))
    except ValidationError as error:
        raise mistaken(*(Mistake(path=one.path, message=one.message) for one in mistakes_of(error))) from error
    except ValueError as error:
        raise mistaken(Mistake(path="", message=str(error))) from error
    return found


async def update_object(tx: Transaction, of: Kind, target: str, wanted: Desired, author: Author) -> None:
    """Change an object to what is wanted, if that differs; the author owns the fields that differ."""
    spec = _parsed(of, target, wanted.spec)
    before = (await of.table.wire(tx, [target])).get(target, {})
    after = spec.to_wire()
    changed = changed_fields(before, after, without=("kind", of.kind.key))
    if not changed:
        return
    patch: Wire = {}
    for path in changed:
        level = patch
        for step in path[:-1]:
            level = level.setdefault(step, {})
        level[path[-1]] = value_at(after, path)
    await of.patch(tx, spec, author, patch)


async def _write_metadata(tx: Transaction, of: Kind, target: str, fields: Wire) -> None:
    """Store labels, annotations, and the specification as it was written if it means what is stored."""
    wire = (await of.table.wire(tx, [target])).get(target)
    metadata = fields.get("metadata", {})
    spec = fields.get("spec", {})
    await declared_metadata.write(
        tx,
        ObjectName(of.kind.kind, target),
        metadata.get("labels", {}),
        metadata.get("annotations", {}),
        spec if meaning(of, target, spec) == wire else None,
    )


def _of_object(error: ProblemError) -> ProblemError:
    """Return an error of a specification with the paths that its fields have in an object."""
    mistakes = tuple(Mistake(path=_path(one.path), message=one.message) for one in error.mistakes)
    if not mistakes:
        return error
    if error.code is Code.CONFLICT:
        parts = [f".{one.path}: {one.message}" for one in mistakes]
        many = "conflict" if len(parts) == 1 else "conflicts"
        message = f"Apply failed with {len(parts)} {many}: {'; '.join(parts)}"
        return ProblemError(error.code, message, mistakes=mistakes, extra=error.extra)
    return mistaken(*mistakes, code=error.code)


def _path(path: str) -> str:
    path = path.removeprefix("spec: ")
    if path == "name":
        return "metadata.name"
    return path if path.startswith(("spec", "metadata")) else f"spec.{path}" if path else "spec"


# -- watches


async def _watch(request: Request, state: State, wanted: Listing, resource: ApiResource, caller: Caller) -> Response:
    """Answer a watch of declared objects. Raises ProblemError EXPIRED for a version of another store or of one to come."""
    is_from_now = not wanted.version or bool(wanted.wants_initial)
    version = await start_of(state, 0 if is_from_now else wanted.version)
    changed = asyncio.Event()
    stream = state.limits.open_stream(request.scope, StreamKind.EVENTS, changed.set)
    selects = selector(wanted, OBJECT_FIELDS, resource.plural)
    form = _Form(resource, wanted, caller, selects, is_table=wants_table(request))
    return streaming(_events(state, form, version, stream, changed, sends_all=is_from_now))


class _Form:
    """The selection and the form of the objects of a watch."""

    def __init__(
        self,
        resource: ApiResource,
        wanted: Listing,
        caller: Caller,
        selects: Callable[[Wire], bool],
        *,
        is_table: bool,
    ) -> None:
        self.resource = resource
        self.wanted = wanted
        self.caller = caller
        self.selects = selects
        self.is_table = is_table

    def event(self, event: WatchEvent, item: Wire, raw: bytes | None = None) -> bytes:
        """Return one event, without what the caller may not read."""
        if self.is_table:
            raw = orjson.dumps(table_of(self.resource.columns, [item], self.wanted.included, ListMetadata()))
        return frame(event, rendered_json(raw or orjson.dumps(item), self.caller.may_use))

    def existing(self, now: DeclaredView) -> Iterable[bytes]:
        """Yield the objects that exist, and the end of them if the client wants to know it; nothing if it wants none."""
        if self.wanted.wants_initial is not False:
            yield from self.between(DeclaredView(0, 0, {}), now)
        if self.wanted.wants_initial:
            yield bookmark(now.version, self.resource, is_table=self.is_table, is_initial=True)

    def between(self, before: DeclaredView, after: DeclaredView) -> Iterable[bytes]:
        """Yield the events between two views. An object that is no longer selected is deleted to the watch."""
        for name, (item, raw) in after.items.items():
            old = before.items.get(name)
            if old is not None and old[1] == raw:
                continue
            was, is_now = old is not None and self.selects(old[0]), self.selects(item)
            if was or is_now:
                event = WatchEvent.MODIFIED if was and is_now else WatchEvent.ADDED if is_now else WatchEvent.DELETED
                yield self.event(event, item, raw)
        for name, (item, raw) in before.items.items():
            if name not in after.items and self.selects(item):
                yield self.event(WatchEvent.DELETED, item, raw)


async def _events(
    state: State, form: _Form, version: int, stream: CountedStream, changed: asyncio.Event, *, sends_all: bool
) -> AsyncIterator[bytes]:
    resource, of = form.resource, form.resource.declared
    if of is None:
        raise LookupError(f"{resource.plural} are not declared")
    terms = WatchTerms(form.wanted, stream)
    view = None if sends_all else state.declared_views.at(resource, form.caller, version)
    while not terms.is_over:
        try:
            now = await state.declared_views.now(resource, of, form.caller, is_fresh=view is None)
            if view is None:
                first = form.existing(now) if sends_all else await _since(state, form, of, version, now)
                yield b"".join(first)
            elif view is not now:
                yield b"".join(form.between(view, now))
            view = now
            if terms.is_bookmark_due(view.version):
                yield bookmark(view.version, resource, is_table=form.is_table)
        except ProblemError as error:
            log.warning("declared objects could not be read for a watch: %s", error)
        await wait_set(changed, _LOOK_SECONDS)
    if last := terms.last_words():
        yield last


async def _since(state: State, form: _Form, of: Kind, version: int, now: DeclaredView) -> list[bytes]:
    """Return what may have changed since a version whose view is not known: objects with that version or a later one, and removed
    ones; of a kind with more to show than what is declared, all, as that may have changed as well.
    """
    async with state.stores.database.reading() as tx:
        removed = await declared_metadata.removed_since(tx, of.kind.kind, version)
    found = [
        form.event(WatchEvent.MODIFIED, item, raw)
        for item, raw in now.items.values()
        if (of.shown is not None or int(item["metadata"]["resourceVersion"]) >= version) and form.selects(item)
    ]
    for one in removed if form.caller.is_admin else ():
        name = objects.object_name(one.name)
        uid = declared_uid(form.resource, name, one.created_at)
        if name not in now.items or now.items[name][0]["metadata"]["uid"] != uid:
            metadata = {"name": name, "uid": uid, "resourceVersion": str(now.version), "creationTimestamp": None}
            item = {"apiVersion": objects.GROUP_VERSION, "kind": form.resource.kind, "metadata": metadata, "spec": {}}
            found.append(form.event(WatchEvent.DELETED, item))
    return found
