"""Reads for the checks of an installation. None of them scans a large table."""

from collections.abc import Sequence
from typing import NamedTuple

from trainmaster_dispatcher.store.database import Transaction


class DatabaseFacts(NamedTuple):
    """Postgres as it is now. ``oldest``: seconds since the begin of the oldest open transaction, if any."""

    version: str
    size: int
    """Bytes."""
    sessions: int
    most_sessions: int
    oldest: float | None
    now: float
    """Seconds since the epoch by its clock."""
    replicas: int
    safe: bool
    """Whether a commit outlasts a crash."""


class LeadFacts(NamedTuple):
    """The scheduler that leads, and the seconds left of its lead; negative since the lead has ended."""

    holder: str
    left: float


class AgentFacts(NamedTuple):
    """The agent of a cluster: its release, and the seconds since its last contact; None if it never had any.

    ``returned``: the held jobs that it returned last, for other causes than room; ``example``, ``number`` and ``said``: name, key and
    message of the newest of them. ``closed``: why the cluster can start nothing now, as its agent says; else None.
    """

    cluster: str
    release: str
    age: float | None
    left: float | None
    quarantined: int
    returned: int
    example: str | None
    number: int | None
    said: str | None
    closed: str | None


async def database_facts(tx: Transaction) -> DatabaseFacts:
    return await tx.one_of(
        DatabaseFacts,
        """
        SELECT current_setting('server_version') AS version, pg_database_size(current_database()) AS size,
               (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS sessions,
               current_setting('max_connections')::int AS most_sessions,
               (SELECT extract(epoch FROM clock_timestamp() - min(xact_start))::float8 FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid()) AS oldest,
               extract(epoch FROM clock_timestamp())::float8 AS now,
               (SELECT count(*) FROM pg_stat_replication) AS replicas,
               current_setting('fsync')::bool AND current_setting('full_page_writes')::bool
               AND current_setting('synchronous_commit') <> 'off' AS safe
        """,
    )


async def lead_facts(tx: Transaction) -> LeadFacts:
    return await tx.one_of(
        LeadFacts,
        "SELECT holder, extract(epoch FROM expires_at - clock_timestamp())::float8 AS left FROM leadership",
    )


async def agent_facts(tx: Transaction) -> Sequence[AgentFacts]:
    """Return the agents of all clusters, by name."""
    return await tx.all_of(
        AgentFacts,
        """
        WITH returned AS (
            SELECT DISTINCT ON (r.cluster_id) r.cluster_id, j.name, j.id,
                   coalesce(r.result ->> 'message', r.result #>> '{end,message}') AS said,
                   count(*) OVER (PARTITION BY r.cluster_id) AS many
            FROM jobs j JOIN runs r ON r.job_id = j.id AND r.attempt = j.attempt
            WHERE j.ended_at IS NULL AND j.hold_cause = 'unplaceable' AND r.state = 'returned'
              AND NOT coalesce((r.result #>> '{end,lacksRoom}')::bool, false)
            ORDER BY r.cluster_id, r.ended_at DESC
        )
        SELECT c.name AS cluster, coalesce(k.agent_version, '') AS release,
               CASE WHEN k.contact_at > 'epoch' THEN extract(epoch FROM clock_timestamp() - k.contact_at)::float8 END AS age,
               CASE WHEN k.contact_at > 'epoch' THEN extract(epoch FROM k.lease_until - clock_timestamp())::float8 END AS left,
               (SELECT count(*) FROM quarantined_runs q WHERE q.cluster_id = c.id) AS quarantined,
               coalesce(r.many, 0) AS returned, r.name AS example, r.id AS number, r.said,
               nullif(p.report ->> 'closed', '') AS closed
        FROM clusters c LEFT JOIN cluster_contacts k ON k.cluster_id = c.id LEFT JOIN returned r ON r.cluster_id = c.id
             LEFT JOIN capacity p ON p.cluster_id = c.id
        WHERE c.removed_at IS NULL ORDER BY c.name
        """,
    )


async def revision(tx: Transaction) -> str:
    """Return the revision of the schema."""
    return str((await tx.one("SELECT version_num FROM alembic_version")).version_num)
