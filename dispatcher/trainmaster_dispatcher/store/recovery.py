"""The state of a recovery: a store that was restored from a backup and has forgotten what was written since."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.tenants import note_change

_SKIPPED = 1_000_000
"""By how much counters are raised, so that none of their values is given out for a second time."""


async def begin(tx: Transaction) -> int:
    """Enter a recovery; return the new store epoch.

    Whoever leads has to load everything anew. Keys of jobs and versions of desired states go on beyond those that may have been
    given out since the backup. Each agent begins a session, and is told everything again.
    """
    epoch = await tx.one(
        "UPDATE installation SET store_epoch = store_epoch + 1, recovering_since = clock_timestamp() RETURNING store_epoch"
    )
    await tx.run("UPDATE leadership SET token = token + :skipped, expires_at = 'epoch'", skipped=_SKIPPED)
    await tx.one(
        "SELECT setval(s.name, greatest(nextval(s.name), coalesce((SELECT max(id) FROM jobs), 0)) + :skipped)"
        " FROM (SELECT pg_get_serial_sequence('jobs', 'id')::regclass AS name) AS s",
        skipped=_SKIPPED,
    )
    await tx.run("UPDATE cluster_desired SET version = version + :skipped", skipped=_SKIPPED)
    await tx.run(
        "UPDATE runs SET desired_version = d.version FROM cluster_desired d"
        " WHERE d.cluster_id = runs.cluster_id AND runs.ended_at IS NULL"
    )
    await tx.run("DELETE FROM log_streams")
    await tx.run("DELETE FROM agent_sessions")
    await tx.run(
        "UPDATE cluster_contacts SET session = NULL, number = 0, lease_until = 'epoch', checked_at = NULL, recovered_at = NULL"
    )
    await note_change(tx, "cluster", 0)
    return int(epoch.store_epoch)


async def is_on(tx: Transaction) -> bool:
    row = await tx.one("SELECT recovering_since IS NOT NULL AS is_on FROM installation")
    return bool(row.is_on)


async def awaited(tx: Transaction) -> list[str]:
    """Return the clusters that a recovery waits for: those that had an agent which has not told yet all that it runs."""
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
    """The agent of a cluster has told all that it runs, or an admin has declared the cluster lost."""
    await tx.run("UPDATE cluster_contacts SET recovered_at = clock_timestamp() WHERE cluster_id = :id", id=cluster_id)
    await note_change(tx, "cluster", cluster_id)


async def finish(tx: Transaction) -> bool:
    """End the recovery; return whether there was one."""
    ended = await tx.run("UPDATE installation SET recovering_since = NULL WHERE recovering_since IS NOT NULL")
    if ended:
        await note_change(tx, "cluster", 0)
    return ended > 0


async def quarantine(tx: Transaction, cluster_id: int, held: Mapping[str, tuple[int, str]]) -> None:
    """Keep exactly these runs of a cluster as quarantined: fingerprint and state by run."""
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


async def quarantined(tx: Transaction, cluster_id: int) -> Sequence[Row[Any]]:
    """Return the quarantined runs of a cluster: ``run``, ``state``, ``stop``, ``created_at``."""
    return await tx.all(
        "SELECT run, state, stop, created_at FROM quarantined_runs WHERE cluster_id = :id ORDER BY run", id=cluster_id
    )


async def drop_others(tx: Transaction, cluster_id: int, held: Iterable[str]) -> None:
    """Forget quarantined runs of a cluster that its agent does not hold any more."""
    await tx.run(
        "DELETE FROM quarantined_runs WHERE cluster_id = :id AND NOT run = ANY(:runs)", id=cluster_id, runs=list(held)
    )


async def ask_stop(tx: Transaction, cluster_id: int, runs: Sequence[str]) -> list[str]:
    """Mark quarantined runs to be stopped: these, or with none named all of them. Return those that are marked."""
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
