"""The first things of a new installation, made in the store itself because no API key exists yet."""

from collections.abc import Sequence

from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.states import KeyRole
from trainmaster.protocol.tenants import ClusterSpec, DatasetSpec, KeySpec, PriorityClassSpec, QueueSpec
from trainmaster_dispatcher.services import bursting, pricing, tenants
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store import bursts, datasets, keys, prices
from trainmaster_dispatcher.store import tenants as tenant_store
from trainmaster_dispatcher.store.database import Transaction

Declared = QueueSpec | PriorityClassSpec | PriceBookSpec | ClusterSpec | DatasetSpec | BurstPolicySpec


async def make_first_key(settings: Settings, name: str) -> str:
    """A new admin's key."""
    stores = Stores.open(settings)
    try:
        async with stores.database.transaction() as tx:
            made = await tenants.make_key(tx, KeySpec(name=name, role=KeyRole.ADMIN))
            await keys.note_audit(tx, None, "make key", name, "")
        return str(made["key"])
    finally:
        await stores.close()


async def make_local_installation(
    settings: Settings, clusters: Sequence[ClusterSpec], secrets: dict[str, str], queues: Sequence[QueueSpec]
) -> None:
    """What ``trainmaster up`` needs: clusters that are not there, queues where there are none, and keys with these secrets by name.

    The secret named ``admin`` is an admin's, every other one that of the agent of the cluster with that name.
    """
    stores = Stores.open(settings)
    try:
        async with stores.database.transaction() as tx:
            for cluster in clusters:
                if await tenant_store.cluster_id(tx, cluster.name) is None:
                    await tenants.put_cluster(tx, cluster)
            if not await tenants.has_queues(tx):
                for queue in queues:
                    await tenants.put_queue(tx, queue)
            for name, secret in secrets.items():
                spec = KeySpec(name=name, role=KeyRole.ADMIN)
                if name != "admin":
                    spec = KeySpec(name=f"agent-{name}", role=KeyRole.AGENT, cluster=name)
                await tenants.make_key(tx, spec, secret)
    finally:
        await stores.close()


async def make_what_is_missing(
    settings: Settings, declared: Sequence[Declared], wanted: Sequence[tuple[KeySpec, str]]
) -> list[str]:
    """Make of these things and keys, with their secrets, those that are not there; a sentence for each one made.

    What is there stays as it is: an admin may have changed it since, or revoked the key. Raises ProblemError.
    """
    stores = Stores.open(settings)
    try:
        async with stores.database.transaction() as tx:
            told = [await _declare(tx, spec) for spec in sorted(declared, key=_turn)]
            known = {(row.name, row.hint) for row in await keys.listing(tx)}
            for spec, secret in wanted:
                if (spec.name, tenants.hint_of(secret)) not in known:
                    await tenants.make_key(tx, spec, secret)
                    told.append(await _made(tx, "key", spec.name))
    finally:
        await stores.close()
    return [sentence for sentence in told if sentence]


def _turn(spec: Declared) -> tuple[int, int]:
    """Each after those that it names: queues name priority classes and parents, clusters price books, policies all of them."""
    if isinstance(spec, QueueSpec):
        return 1, spec.path.count("/")
    if isinstance(spec, BurstPolicySpec | DatasetSpec):
        return 3, 0
    return (2, 0) if isinstance(spec, ClusterSpec) else (0, 0)


async def _declare(tx: Transaction, spec: Declared) -> str:
    if isinstance(spec, QueueSpec):
        if await tenant_store.queues_by_path(tx, [spec.path]):
            return ""
        await tenants.put_queue(tx, spec)
        return await _made(tx, "queue", spec.path)
    if isinstance(spec, PriorityClassSpec):
        if spec.name in [row.spec.name for row in await tenant_store.classes(tx)]:
            return ""
        await tenants.put_class(tx, spec)
        return await _made(tx, "priority class", spec.name)
    if isinstance(spec, PriceBookSpec):
        if await prices.has_book(tx, spec.name):
            return ""
        await pricing.put_book(tx, spec)
        return await _made(tx, "price book", spec.name)
    if isinstance(spec, DatasetSpec):
        if await datasets.has_dataset(tx, spec.name):
            return ""
        await tenants.put_dataset(tx, spec)
        return await _made(tx, "dataset", spec.name)
    if isinstance(spec, BurstPolicySpec):
        if await bursts.has_policy(tx, spec.name):
            return ""
        await bursting.put_policy(tx, spec)
        return await _made(tx, "burst policy", spec.name)
    if await tenant_store.cluster_id(tx, spec.name) is not None:
        return ""
    await tenants.put_cluster(tx, spec)
    return await _made(tx, "cluster", spec.name)


async def _made(tx: Transaction, what: str, name: str) -> str:
    await keys.note_audit(tx, None, f"make {what}", name, "")
    return f"made {what} {name}"
