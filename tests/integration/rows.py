"""Reads and writes of the store beside the services: what tests assert there, and how they let time pass for it."""

from datetime import date
from typing import Any

from tests.conftest import Service
from trainmaster_dispatcher.services import agent_reports
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.store.tables import metadata

_ALWAYS_MOVING = {"installation", "leadership", "cluster_contacts", "class_reasons", "series", "series_samples"}
"""Tables that heartbeats, cycles and samples write by themselves."""


async def rows(stores: Stores, sql: str, **parameters: Any) -> list[Any]:
    async with stores.database.transaction() as tx:
        return list(await tx.all(sql, **parameters))


async def value(stores: Stores, sql: str, **parameters: Any) -> Any:
    return (await rows(stores, sql, **parameters))[0][0]


async def execute(stores: Stores, sql: str, **parameters: Any) -> int:
    async with stores.database.transaction() as tx:
        return await tx.run(sql, **parameters)


async def picture(stores: Stores) -> dict[str, Any]:
    """Return the number of rows of each table, and the version of each job: equal pictures mean that nothing was changed."""
    tables = sorted(table.name for table in metadata.sorted_tables if table.name not in _ALWAYS_MOVING)
    # Refused calls are written into the audit a moment later, by themselves.
    narrowed = {"audit": " WHERE action <> 'refused'"}
    counts = " UNION ALL ".join(
        f"SELECT '{name}' AS name, count(*) AS many FROM {name}{narrowed.get(name, '')}" for name in tables
    )
    counted = {row.name: row.many for row in await rows(stores, counts)}
    versions = {row.id: row.version for row in await rows(stores, "SELECT id, version FROM jobs")}
    return {"rows": counted, "versions": versions}


async def age_contact(stores: Stores, cluster: str, seconds: float) -> None:
    """Move the cluster's last contact, and the end of its lease, back by ``seconds``."""
    await execute(
        stores,
        "UPDATE cluster_contacts SET contact_at = contact_at - make_interval(secs => :s),"
        " lease_until = lease_until - make_interval(secs => :s)"
        " WHERE cluster_id = (SELECT id FROM clusters WHERE name = :name)",
        s=seconds,
        name=cluster,
    )
    await execute(stores, "UPDATE runs SET leased_at = leased_at - make_interval(secs => :s)", s=seconds)
    await execute(
        stores,
        "UPDATE cluster_holders SET place_since = place_since - make_interval(secs => :s),"
        " contact_at = contact_at - make_interval(secs => :s)",
        s=seconds,
    )


async def age_service(stores: Stores, seconds: float = 60) -> None:
    """Make the service appear to have been up for ``seconds``."""
    await execute(stores, "UPDATE installation SET up_since = clock_timestamp() - make_interval(secs => :s)", s=seconds)


async def give_up_now(service: Service) -> int:
    """Do at once what the leader does on its timer; return how many runs it called lost."""
    token = await value(service.stores, "SELECT token FROM leadership")
    return await agent_reports.give_up_overdue(service.stores, token)


def partition_of(day: date) -> str:
    """Return the name of the events' partition of a day."""
    return f"events_{day:%Y%m%d}"
