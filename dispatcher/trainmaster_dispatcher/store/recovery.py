"""The state of a recovery: a store that was restored from a backup and has lost what was written since."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.declared import note_change
from trainmaster_dispatcher.store.feed_kinds import FeedKind

_SKIPPED = 1_000_000
"""The amount by which counters are raised, so that none of their values is used twice."""


class StoredQuarantine(NamedTuple):
    """A run that an agent holds and that the restored store does not have. ``stop``: whether an admin has ordered to stop the run."""

    run: str
    state: str
    """The run's state as its agent reported it."""
    stop: bool
    created_at: datetime


BEGINNING = (
    "UPDATE installation SET store_epoch = store_epoch + 1, recovering_since = clock_timestamp()",
    f"UPDATE leadership SET token = token + {_SKIPPED}, expires_at = 'epoch'",
    "SELECT setval(s.name, greatest(nextval(s.name), coalesce((SELECT max(id) FROM jobs), 0)) + " + str(_SKIPPED) + ")"
    " FROM (SELECT pg_get_serial_sequence('jobs', 'id')::regclass AS name) AS s",
    f"UPDATE cluster_desired SET version = version + {_SKIPPED}",
    "UPDATE runs SET desired_version = d.version FROM cluster_desired d"
    " WHERE d.cluster_id = runs.cluster_id AND runs.ended_at IS NULL",
    "DELETE FROM log_streams",
    "DELETE FROM member_streams",
    "DELETE FROM agent_sessions",
    "UPDATE cluster_contacts SET session = NULL, number = 0, lease_until = 'epoch', checked_at = NULL, recovered_at = NULL",
    # Not those of transactions that run beside this one: their numbers are below the first that is not given yet.
    "UPDATE events SET xid = NULL WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())",
    "DELETE FROM changes WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())",
    f"INSERT INTO changes (kind, ref) VALUES ('{FeedKind.CLUSTER.value}', 0)",
)
"""The statements that enter a recovery, for one transaction without a time-out.

The leader has to load everything again. Keys of jobs and versions of desired states continue beyond those that may have been
used since the backup. Each agent begins a session and receives its whole desired state again. A dump may be restored into another
server, whose transactions have lower numbers: rows of the feed that seem to be of its future would be awaited for as long.
"""


async def begin(tx: Transaction) -> int:
    """Enter a recovery; return the new store epoch."""
    await tx.run("SET LOCAL statement_timeout = 0")
    for statement in BEGINNING:
        await tx.run(statement)
    return await epoch(tx)


async def epoch(tx: Transaction) -> int:
    """Return the store epoch."""
    return int((await tx.one("SELECT store_epoch FROM installation")).store_epoch)


async def is_on(tx: Transaction) -> bool:
    row = await tx.one("SELECT recovering_since IS NOT NULL AS is_on FROM installation")
    return bool(row.is_on)


async def awaited(tx: Transaction) -> list[str]:
    """Return the clusters that a recovery waits for: those with an agent that has not yet reported all its runs."""
    rows = await tx.all(
        """
        SELECT c.name FROM installation i, clusters c JOIN cluster_contacts t ON t.cluster_id = c.id
        WHERE i.recovering_since IS NOT NULL AND c.removed_at IS NULL AND t.holder IS NOT NULL
          AND (t.recovered_at IS NULL OR t.recovered_at < i.recovering_since)
        ORDER BY c.name
        """
    )
    return [row.name for row in rows]


async def note_recovered(tx: Transaction, cluster_id: int) -> None:
    """Note that a cluster's agent has reported all its runs, or that an admin has declared the cluster lost."""
    await tx.run("UPDATE cluster_contacts SET recovered_at = clock_timestamp() WHERE cluster_id = :id", id=cluster_id)
    await note_change(tx, FeedKind.CLUSTER, cluster_id)


async def finish(tx: Transaction) -> bool:
    """End the recovery; return whether there was one."""
    ended = await tx.run("UPDATE installation SET recovering_since = NULL WHERE recovering_since IS NOT NULL")
    if ended:
        await note_change(tx, FeedKind.CLUSTER, 0)
    return ended > 0


async def quarantine(tx: Transaction, cluster_id: int, held: Mapping[str, tuple[int, str]]) -> None:
    """Store exactly these runs of a cluster as quarantined: fingerprint and state by run."""
    await drop_others(tx, cluster_id, held)
    await tx.run(
        """
        INSERT INTO quarantined_runs (cluster_id, run, digest, state)
        SELECT :id, run, digest, state
        FROM unnest(CAST(:runs AS text[]), CAST(:digests AS bigint[]), CAST(:states AS text[])) AS n(run, digest, state)
        ON CONFLICT (cluster_id, run) DO UPDATE SET state = excluded.state
        """,
        id=cluster_id,
        runs=list(held),
        digests=[digest for digest, _ in held.values()],
        states=[state for _, state in held.values()],
    )


async def quarantined(tx: Transaction, cluster_id: int) -> Sequence[StoredQuarantine]:
    """Return the quarantined runs of a cluster."""
    return await tx.all_of(
        StoredQuarantine,
        "SELECT run, state, stop, created_at FROM quarantined_runs WHERE cluster_id = :id ORDER BY run",
        id=cluster_id,
    )


async def drop_others(tx: Transaction, cluster_id: int, held: Iterable[str]) -> None:
    """Delete quarantined runs of a cluster that its agent no longer holds."""
    await tx.run(
        "DELETE FROM quarantined_runs WHERE cluster_id = :id AND NOT run = ANY(:runs)", id=cluster_id, runs=list(held)
    )


async def ask_stop(tx: Transaction, cluster_id: int, runs: Sequence[str]) -> list[str]:
    """Mark quarantined runs to be stopped; an empty ``runs`` means all of them. Return those that were marked."""
    rows = await tx.all(
        """
        UPDATE quarantined_runs SET stop = true
        WHERE cluster_id = :id AND (cardinality(CAST(:runs AS text[])) = 0 OR run = ANY(CAST(:runs AS text[]))) RETURNING run
        """,
        id=cluster_id,
        runs=list(runs),
    )
    await tx.run("UPDATE cluster_contacts SET checked_at = NULL WHERE cluster_id = :id", id=cluster_id)
    return sorted(row.run for row in rows)
