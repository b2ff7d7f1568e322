"""Routes of queues, priority classes, reservations, keys and the audit."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import AwareDatetime

from trainmaster.protocol import answers
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.tenants import KeySpec, PriorityClassSpec, QueueSpec, ReservationSpec
from trainmaster_dispatcher.api.context import Admin, App, Person, State, answer, note, read_model
from trainmaster_dispatcher.api.openapi import contract
from trainmaster_dispatcher.services import auditing, job_queries, leader_queries, tenants
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import AuditFilter, Caller

router = APIRouter(prefix="/v1", tags=["tenants"])

Limit = Annotated[int, Query(ge=1, le=job_queries.MOST_PER_PAGE)]


def refuse_idempotency_key(request: Request) -> None:
    """For answers with a secret in them, which are not kept. Raises ProblemError."""
    if request.headers.get("idempotency-key") is not None:
        raise ProblemError(Code.INVALID_PARAMETER, "making a key takes no Idempotency-Key: its secret is not kept")


async def change(
    state: State, caller: Caller, action: str, target: str, work: Callable[[Transaction], Awaitable[None]]
) -> None:
    """Do a change of one object, with its line of the audit: the object before and after."""
    async with state.stores.database.transaction() as tx:
        before = await auditing.object_of(tx, action, target)
        await work(tx)
        details = auditing.change_of(before, await auditing.object_of(tx, action, target))
        await note(tx, caller, action, target, details)
    state.stores.tenants_changed()


def same_name(given: str, address: str, what: str) -> None:
    if given != address:
        raise ProblemError(Code.INVALID_SPEC, f"the body names {what} {given!r}, the address {address!r}")


def named(every: list[dict[str, Any]], name: str, what: str) -> Response:
    """The one of this name. Raises ProblemError NOT_FOUND."""
    found = next((one for one in every if one["name"] == name), None)
    if found is None:
        raise ProblemError(Code.NOT_FOUND, f"there is no {what} {name!r}")
    return answer(found)


@router.get("/queues", **contract(gives=answers.QueueList))
async def list_queues(state: App, caller: Person, usage: bool = False) -> Response:
    """Queues that the caller may see, with jobs by state; with ``usage``, what each uses now as the leading scheduler counts it."""
    if usage:
        return answer(await leader_queries.queues(state.stores, state.leader, caller))
    async with state.stores.database.transaction() as tx:
        return answer({"queues": await job_queries.list_queues(tx, caller)})


@router.get("/queues/{path:path}", **contract(gives=answers.QueueView))
async def show_queue(path: str, state: App, caller: Person) -> Response:
    """One queue with its jobs by state."""
    async with state.stores.database.transaction() as tx:
        found = [queue for queue in await job_queries.list_queues(tx, caller) if queue["path"] == path]
    if not found:
        raise ProblemError(Code.NOT_FOUND, f"there is no queue {path!r}")
    return answer(found[0])


@router.put("/queues/{path:path}", **contract(takes=QueueSpec, gives=QueueSpec))
async def put_queue(path: str, request: Request, state: App, caller: Admin) -> Response:
    """Make or change a queue."""
    spec = read_model(QueueSpec, await request.body())
    same_name(spec.path, path, "queue")
    await change(state, caller, "put queue", path, lambda tx: tenants.put_queue(tx, spec))
    return answer(spec.model_dump(mode="json", by_alias=True, exclude_none=True))


@router.delete("/queues/{path:path}", **contract(status=204))
async def delete_queue(path: str, state: App, caller: Admin) -> Response:
    """Remove a queue that has neither jobs nor queues below it."""
    await change(state, caller, "delete queue", path, lambda tx: tenants.delete_queue(tx, path))
    return Response(status_code=204)


@router.get("/priority-classes", **contract(gives=answers.PriorityClassList))
async def list_priority_classes(state: App, _caller: Person) -> Response:
    """All priority classes, highest first."""
    async with state.stores.database.transaction() as tx:
        return answer({"priorityClasses": await job_queries.list_classes(tx)})


@router.put("/priority-classes/{name}", **contract(takes=PriorityClassSpec, gives=PriorityClassSpec))
async def put_priority_class(name: str, request: Request, state: App, caller: Admin) -> Response:
    """Make or change a priority class."""
    spec = read_model(PriorityClassSpec, await request.body())
    same_name(spec.name, name, "priority class")
    await change(state, caller, "put priority class", name, lambda tx: tenants.put_class(tx, spec))
    return answer(spec.model_dump(mode="json", by_alias=True, exclude_none=True))


@router.delete("/priority-classes/{name}", **contract(status=204))
async def delete_priority_class(name: str, state: App, caller: Admin) -> Response:
    """Remove a priority class that no job has."""
    await change(state, caller, "delete priority class", name, lambda tx: tenants.delete_class(tx, name))
    return Response(status_code=204)


@router.get("/reservations", **contract(gives=answers.ReservationList))
async def list_reservations(state: App, caller: Person) -> Response:
    """Nodes that are reserved for the caller's queues, by the beginning of their windows, ended ones included."""
    async with state.stores.database.transaction() as tx:
        return answer({"reservations": await job_queries.list_reservations(tx, caller)})


@router.get("/reservations/{name}", **contract(gives=ReservationSpec))
async def show_reservation(name: str, state: App, caller: Person) -> Response:
    """One reservation."""
    async with state.stores.database.transaction() as tx:
        return named(await job_queries.list_reservations(tx, caller), name, "reservation")


@router.put("/reservations/{name}", **contract(takes=ReservationSpec, gives=ReservationSpec))
async def put_reservation(name: str, request: Request, state: App, caller: Admin) -> Response:
    """Make or change a reservation."""
    spec = read_model(ReservationSpec, await request.body())
    same_name(spec.name, name, "reservation")
    await change(state, caller, "put reservation", name, lambda tx: tenants.put_reservation(tx, spec))
    return answer(spec.model_dump(mode="json", by_alias=True, exclude_none=True))


@router.delete("/reservations/{name}", **contract(status=204))
async def delete_reservation(name: str, state: App, caller: Admin) -> Response:
    """Remove a reservation; what it kept is free for all."""
    await change(state, caller, "delete reservation", name, lambda tx: tenants.delete_reservation(tx, name))
    return Response(status_code=204)


@router.get("/keys", **contract(gives=answers.KeyList))
async def list_keys(state: App, _caller: Admin) -> Response:
    """All API keys, without their secrets."""
    async with state.stores.database.transaction() as tx:
        return answer({"keys": await tenants.list_keys(tx)})


@router.post("/keys", **contract(takes=KeySpec, gives=answers.NewKey, status=201))
async def make_key(request: Request, state: App, caller: Admin) -> Response:
    """Make an API key; the secret is in this answer and nowhere else.

    An Idempotency-Key is refused here, for the answer would have to be kept with the secret in it.
    """
    refuse_idempotency_key(request)
    spec = read_model(KeySpec, await request.body())
    async with state.stores.database.transaction() as tx:
        made = await tenants.make_key(tx, spec)
        await note(tx, caller, "make key", spec.name, {"id": made["id"], **spec.to_wire()})
    made_once = answer(made, 201)
    made_once.headers["Cache-Control"] = "no-store"
    return made_once


@router.delete("/keys/{key_id}", **contract(status=204))
async def revoke_key(key_id: int, state: App, caller: Admin) -> Response:
    """Revoke an API key; it is dead within two seconds."""
    await change(state, caller, "revoke key", str(key_id), lambda tx: tenants.revoke_key(tx, key_id))
    return Response(status_code=204)


@router.get("/audit", **contract(gives=answers.AuditPage))
async def list_audit(
    state: App,
    _caller: Admin,
    target: str | None = None,
    actor: str | None = None,
    action: str | None = None,
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
    cursor: str | None = None,
    limit: Limit = 100,
) -> Response:
    """Who changed what and what was refused, newest first."""
    wanted = AuditFilter(target, actor, action, since, until)
    async with state.stores.database.transaction() as tx:
        return answer(await job_queries.list_audit(tx, wanted, cursor, limit))
