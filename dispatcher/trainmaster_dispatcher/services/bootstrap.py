"""The first objects of a new installation, created in the store itself because no API key exists yet."""

from collections.abc import Sequence

from trainmaster.protocol.declarations import ApplyOutcome
from trainmaster.protocol.documents import Document, Item
from trainmaster.protocol.states import KeyRole
from trainmaster.protocol.tenants import ClusterSpec, KeySpec, QueueSpec
from trainmaster_dispatcher.services import declared_kinds, tenants
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.declarations import apply_documents
from trainmaster_dispatcher.services.declared_documents import BY_WORD
from trainmaster_dispatcher.services.revisions import SYSTEM
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store import keys
from trainmaster_dispatcher.store.database import Transaction


async def make_first_key(settings: Settings, name: str) -> str:
    """Create an admin's first key and return its secret. Raises ProblemError CONFLICT where a valid key has the name."""
    stores = Stores.open(settings)
    try:
        async with stores.database.transaction() as tx:
            made = await tenants.make_named_key(tx, KeySpec(name=name, role=KeyRole.ADMIN))
            await keys.note_audit(tx, None, "make key", name, "")
        return str(made["key"])
    finally:
        await stores.close()


async def make_local_installation(
    settings: Settings, clusters: Sequence[ClusterSpec], secrets: dict[str, str], queues: Sequence[QueueSpec]
) -> list[str]:
    """Create what ``trainmaster up`` needs: missing clusters, queues where none exist, and keys with these secrets by name.

    The secret named ``admin`` is an admin's, every other secret that of the agent of the cluster with that name. Returns a sentence
    for a key that has another name because the store, maybe a restored one, has a valid key of its name.
    """
    stores = Stores.open(settings)
    sentences = []
    try:
        async with stores.database.transaction() as tx:
            for cluster in clusters:
                if not await declared_kinds.CLUSTER.table.exists(tx, cluster.name):
                    await declared_kinds.CLUSTER.put(tx, cluster)
            if not await declared_kinds.QUEUE.table.every(tx):
                for queue in queues:
                    await declared_kinds.QUEUE.put(tx, queue)
            for name, secret in secrets.items():
                if name != "admin":
                    agent = KeySpec(name=f"agent-{name}", role=KeyRole.AGENT, cluster=name)
                    await tenants.make_key(tx, agent, secret)
                    continue
                free, other = await _free_name(tx, name, secret)
                await tenants.make_key(tx, KeySpec(name=free, role=KeyRole.ADMIN), secret)
                if other is not None:
                    sentences.append(
                        f"key {other} of the store, {name}, is valid and not the one of this folder, which is {free};"
                        f" if nobody is to use it any more: trainmaster keys revoke {other}"
                    )
    finally:
        await stores.close()
    return sentences


async def _free_name(tx: Transaction, name: str, secret: str) -> tuple[str, int | None]:
    """Return a name for a person's key that no other valid key has; and the valid key that has ``name``, if it is another one."""
    if await keys.is_stored(tx, tenants.hash_key(secret)):
        return name, None
    first = await keys.valid_named(tx, name)
    if first is None:
        return name, None
    number = 2
    while await keys.valid_named(tx, f"{name}-{number}") is not None:
        number += 1
    return f"{name}-{number}", first


async def make_what_is_missing(
    settings: Settings, declared: Sequence[Item], wanted: Sequence[tuple[KeySpec, str]]
) -> list[str]:
    """Create those of these objects and keys that do not exist; return a sentence for each one created.

    Existing objects stay unchanged: an admin may have changed them,
    or revoked the key. Raises ProblemError.
    """
    stores = Stores.open(settings)
    try:
        async with stores.database.transaction() as tx:
            sentences = await _declare(tx, declared)
            for spec, secret in wanted:
                if await keys.is_stored(tx, tenants.hash_key(secret)):
                    continue
                free = spec.name
                if spec.role is not KeyRole.AGENT:
                    free, _ = await _free_name(tx, spec.name, secret)
                await tenants.make_key(tx, spec.model_copy(update={"name": free}), secret)
                sentences.append(await _made(tx, "key", free))
    finally:
        await stores.close()
    return sentences


async def _declare(tx: Transaction, declared: Sequence[Item]) -> list[str]:
    """Create those of these objects that do not exist. Nobody owns their fields: whoever applies them later may change them."""
    missing = [item for item in declared if not await BY_WORD[item.kind].table.exists(tx, item.name)]
    if not missing:
        return []
    documents = [Document({"kind": item.kind, **item.spec.to_wire()}, item.place) for item in missing]
    applied = await apply_documents(tx, documents, SYSTEM)
    for line in applied.audit:
        await keys.note_audit(tx, None, line.action, line.target, "", line.details)
    created = [one for one in applied.objects if one.outcome is ApplyOutcome.CREATED]
    return [f"made {BY_WORD[one.kind].kind.name} {one.name}" for one in created]


async def _made(tx: Transaction, what: str, name: str) -> str:
    await keys.note_audit(tx, None, f"make {what}", name, "")
    return f"made {what} {name}"
