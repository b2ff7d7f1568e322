"""Routes of data that admins declare."""

from typing import Any

from fastapi import APIRouter

from trainmaster.protocol import answers
from trainmaster.protocol.tenants import DatasetSpec
from trainmaster_dispatcher.api.context import State
from trainmaster_dispatcher.api.declared import DeclaredKind
from trainmaster_dispatcher.services import tenants
from trainmaster_dispatcher.store import datasets as store
from trainmaster_dispatcher.store.keys import Caller

router = APIRouter(prefix="/v1", tags=["datasets"])


async def _every(state: State, _caller: Caller) -> list[dict[str, Any]]:
    async with state.stores.database.transaction() as tx:
        return [one.model_dump(mode="json", by_alias=True) for one in await store.datasets(tx)]


DeclaredKind(
    name="dataset",
    address="/datasets",
    listed="datasets",
    list_view=answers.DatasetList,
    spec=DatasetSpec,
    view=DatasetSpec,
    every=_every,
    put=tenants.put_dataset,
    delete=tenants.delete_dataset,
    lists="All data that was declared.",
    shows="One dataset.",
    puts="Declare data, or change what was declared.",
    deletes="Forget what was declared; jobs that name it go where agents report it.",
).add_routes(router)
