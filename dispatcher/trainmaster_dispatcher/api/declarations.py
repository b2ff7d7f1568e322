"""Routes of declared state as a whole: documents applied together, the history of objects, and the way back."""

from typing import Annotated, Any

from fastapi import Query, Request, Response

from trainmaster.protocol.declarations import (
    ApplyAnswer,
    ApplySpec,
    HistoryPage,
    RollbackAnswer,
    RollbackSpec,
)
from trainmaster.protocol.documents import Document
from trainmaster.protocol.errors import Code
from trainmaster.protocol.resource_kinds import Kind
from trainmaster_dispatcher.api.context import (
    App,
    AuditReader,
    Declarer,
    answer,
    note_changes,
    once,
    read_large_model,
    read_model,
    try_out,
)
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.api.parameters import Limit, NumberCursor
from trainmaster_dispatcher.services import declarations
from trainmaster_dispatcher.services.declarations import ApplyTerms
from trainmaster_dispatcher.services.revisions import Author
from trainmaster_dispatcher.store.database import Transaction

router = documented_router("/v1", "declarations")

_MOST_BYTES = 4 * 1024 * 1024
_REFERENCES = (
    Code.UNKNOWN_QUEUE,
    Code.UNKNOWN_PRIORITY_CLASS,
    Code.UNKNOWN_PRICE_BOOK,
    Code.UNKNOWN_CLUSTER,
    Code.NOT_FOUND,
    Code.IN_USE,
)

KindOfObject = Annotated[Kind, Query(description="Kind of the object.")]
NameOfObject = Annotated[
    str, Query(min_length=1, max_length=200, description="Name of the object; the path of a queue.")
]


@router.post(
    "/apply",
    **contract(
        takes=ApplySpec,
        gives=ApplyAnswer,
        is_once=True,
        refuses=(*_REFERENCES, Code.CONFLICT, Code.CLUSTER_IN_CONTACT),
    ),
)
async def apply_documents(request: Request, state: App, caller: Declarer) -> Response:
    """Apply documents in one transaction: create, change and, with ``prune``, remove objects.

    A document sets the fields that it has; the applier owns them from then on. Fields that it leaves out stay as they are, but for
    those that only this applier owns, which get their defaults. Fields that others own are a conflict (409), unless they are equal.
    """
    body = await request.body()
    spec = await read_large_model(ApplySpec, body, _MOST_BYTES)
    documents = [Document(value, f"documents[{index}]") for index, value in enumerate(spec.documents)]
    author = Author(caller.name, spec.applier or caller.name, "apply", caller)
    terms = ApplyTerms(spec.replace, spec.force, spec.prune)

    async def work(tx: Transaction) -> tuple[int, Any]:
        applied = await declarations.apply_documents(tx, documents, author, terms)
        await note_changes(tx, caller, applied.audit)
        value = ApplyAnswer(
            dry_run=spec.dry_run, applier=str(author.applier), objects=applied.objects, warnings=applied.warnings
        )
        return 200, value.model_dump(mode="json", by_alias=True)

    if spec.dry_run:
        return await try_out(request, state, caller, body, work)
    done = await once(request, state, caller, body, work)
    state.stores.tenants_changed()
    return done


@router.get("/history", **contract(gives=HistoryPage, refuses=(Code.NOT_FOUND,)))
async def list_revisions(
    state: App,
    _caller: AuditReader,
    kind: KindOfObject,
    name: NameOfObject,
    cursor: NumberCursor | None = None,
    limit: Limit = 100,
) -> Response:
    """List the revisions of a declared object, the latest first, also of a removed one."""
    async with state.stores.database.transaction() as tx:
        page = await declarations.history(tx, kind, name, cursor, limit)
    return answer(page.model_dump(mode="json", by_alias=True))


@router.post(
    "/rollback",
    **contract(takes=RollbackSpec, gives=RollbackAnswer, is_once=True, refuses=(*_REFERENCES, Code.CONFLICT)),
)
async def roll_back(request: Request, state: App, caller: Declarer) -> Response:
    """Return a declared object to an earlier revision; create it again if it was removed. The caller owns its fields then."""
    body = await request.body()
    spec = read_model(RollbackSpec, body)
    author = Author(caller.name, caller.name, "rollback", caller)

    async def work(tx: Transaction) -> tuple[int, Any]:
        done = await declarations.rollback(tx, spec.kind, spec.name, spec.revision, author)
        await note_changes(tx, caller, [done.audit])
        value = RollbackAnswer(dry_run=spec.dry_run, revision=done.revision, object=done.object)
        return 200, value.model_dump(mode="json", by_alias=True)

    if spec.dry_run:
        return await try_out(request, state, caller, body, work)
    done = await once(request, state, caller, body, work)
    state.stores.tenants_changed()
    return done
