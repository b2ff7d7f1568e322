"""Routes of data that admins declare."""

from typing import Any

from fastapi import APIRouter, Request, Response

from trainmaster.protocol import answers
from trainmaster.protocol.tenants import DatasetSpec
from trainmaster_dispatcher.api.context import Admin, App, Person, answer, read_model
from trainmaster_dispatcher.api.openapi import contract
from trainmaster_dispatcher.api.tenants import change, named, same_name
from trainmaster_dispatcher.services import tenants
from trainmaster_dispatcher.store import datasets as store
from trainmaster_dispatcher.store.database import Transaction

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])


async def _every(tx: Transaction) -> list[dict[str, Any]]:
    return [one.model_dump(mode="json", by_alias=True) for one in await store.datasets(tx)]


@router.get("", **contract(gives=answers.DatasetList))
async def list_datasets(state: App, _caller: Person) -> Response:
    """All data that was declared."""
    async with state.stores.database.transaction() as tx:
        return answer({"datasets": await _every(tx)})


@router.get("/{name}", **contract(gives=DatasetSpec))
async def show_dataset(name: str, state: App, _caller: Person) -> Response:
    """One dataset."""
    async with state.stores.database.transaction() as tx:
        return named(await _every(tx), name, "dataset")


@router.put("/{name}", **contract(takes=DatasetSpec, gives=DatasetSpec))
async def put_dataset(name: str, request: Request, state: App, caller: Admin) -> Response:
    """Declare data, or change what was declared."""
    spec = read_model(DatasetSpec, await request.body())
    same_name(spec.name, name, "dataset")
    await change(state, caller, "put dataset", name, lambda tx: tenants.put_dataset(tx, spec))
    return answer(spec.model_dump(mode="json", by_alias=True, exclude_none=True))


@router.delete("/{name}", **contract(status=204))
async def delete_dataset(name: str, state: App, caller: Admin) -> Response:
    """Forget what was declared; jobs that name it go where agents report it."""
    await change(state, caller, "delete dataset", name, lambda tx: tenants.delete_dataset(tx, name))
    return Response(status_code=204)
