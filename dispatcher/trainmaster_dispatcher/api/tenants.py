"""Routes of queues, priority classes, reservations, keys and the audit."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import AwareDatetime

from trainmaster.protocol import answers
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.tenants import KeySpec, PriorityClassSpec, QueueSpec, ReservationSpec
from trainmaster_dispatcher.api.context import Admin, App, Person, State, answer, note, read_model
from trainmaster_dispatcher.api.declared import DeclaredKind, change
from trainmaster_dispatcher.api.openapi import contract
from trainmaster_dispatcher.services import job_queries, leader_queries, tenants
from trainmaster_dispatcher.store.keys import AuditFilter, Caller

router = APIRouter(prefix="/v1", tags=["tenants"])

Limit = Annotated[int, Query(ge=1, le=job_queries.MOST_PER_PAGE)]


def refuse_idempotency_key(request: Request) -> None:
    """For answers with a secret in them, which are not kept. Raises ProblemError."""
    if request.headers.get("idempotency-key") is not None:
        raise ProblemError(Code.INVALID_PARAMETER, "making a key takes no Idempotency-Key: its secret is not kept")


@router.get("/queues", **contract(gives=answers.QueueList))
async def list_queues(state: App, caller: Person, usage: bool = False) -> Response:
    """Queues that the caller may see, with jobs by state; with ``usage``, what each uses now as the leading scheduler counts it."""
    if usage:
        return answer(await leader_queries.queues(state.stores, state.leader, caller))
    async with state.stores.database.transaction() as tx:
        return answer({"queues": await job_queries.list_queues(tx, caller)})


async def _queues(state: State, caller: Caller) -> list[dict[str, Any]]:
    async with state.stores.database.transaction() as tx:
        return await job_queries.list_queues(tx, caller)


async def _priority_classes(state: State, _caller: Caller) -> list[dict[str, Any]]:
    async with state.stores.database.transaction() as tx:
        return await job_queries.list_classes(tx)


async def _reservations(state: State, caller: Caller) -> list[dict[str, Any]]:
    async with state.stores.database.transaction() as tx:
        return await job_queries.list_reservations(tx, caller)


DeclaredKind(
    name="queue",
    key="path",
    address="/queues",
    spec=QueueSpec,
    view=answers.QueueView,
    every=_queues,
    put=tenants.put_queue,
    delete=tenants.delete_queue,
    shows="One queue with its jobs by state.",
    puts="Make or change a queue.",
    deletes="Remove a queue that has neither jobs nor queues below it.",
).add_routes(router)

DeclaredKind(
    name="priority class",
    address="/priority-classes",
    listed="priorityClasses",
    list_view=answers.PriorityClassList,
    spec=PriorityClassSpec,
    view=PriorityClassSpec,
    every=_priority_classes,
    put=tenants.put_class,
    delete=tenants.delete_class,
    lists="All priority classes, highest first.",
    shows="One priority class.",
    puts="Make or change a priority class.",
    deletes="Remove a priority class that no job has.",
).add_routes(router)

DeclaredKind(
    name="reservation",
    address="/reservations",
    listed="reservations",
    list_view=answers.ReservationList,
    spec=ReservationSpec,
    view=ReservationSpec,
    every=_reservations,
    put=tenants.put_reservation,
    delete=tenants.delete_reservation,
    lists="Nodes that are reserved for the caller's queues, by the beginning of their windows, ended ones included.",
    shows="One reservation.",
    puts="Make or change a reservation.",
    deletes="Remove a reservation; what it kept is free for all.",
).add_routes(router)


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
