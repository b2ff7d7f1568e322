"""The first things of a new installation, made in the store itself because no API key exists yet."""

from collections.abc import Sequence

from trainmaster.dispatcher.services import tenants
from trainmaster.dispatcher.services.settings import Settings
from trainmaster.dispatcher.services.stores import Stores
from trainmaster.dispatcher.store import keys
from trainmaster.protocol.states import KeyRole
from trainmaster.protocol.tenants import ClusterSpec, KeySpec, QueueSpec


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
    """What ``trainmaster up`` needs: clusters, queues where there are none, and keys with these secrets by name.

    The secret named ``admin`` is an admin's, every other one that of the agent of the cluster with that name.
    """
    stores = Stores.open(settings)
    try:
        async with stores.database.transaction() as tx:
            for cluster in clusters:
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
