"""Groups of jobs: their rows, the changes of their numbers, and their webhooks.

    submission, end or retry of jobs ──▶ a row of ``group_changes``, in its transaction ──▶ the leader adds it to the group's row

So those who submit and end jobs of one group do not wait for each other. A submission holds the row of its group with a lock that many
share; who closes the group waits for these.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from trainmaster.protocol.states import GroupState, JobState
from trainmaster_dispatcher.domain.groups import GroupFacts
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.tables import LIVE_JOB

Place = tuple[str, str]
"""A group by the path of its queue and its name."""
_MOST_FOLDED: Final = 20_000
"""The most changes that are added to groups in one transaction."""
_NUMBERS: Final = "total, succeeded, failed, cancelled"
_SUMS: Final = ", ".join(f"coalesce(sum({name}), 0)::bigint AS {name}" for name in _NUMBERS.split(", "))


class GroupRow(NamedTuple):
    """A group as it is stored. The numbers are those of all that is committed."""

    id: int
    queue_id: int
    queue: str
    name: str
    submitted_by: str | None
    submitted_through: str | None
    state: GroupState
    created_at: datetime
    closed_at: datetime | None
    ended_at: datetime | None
    notified_at: datetime | None
    total: int
    succeeded: int
    failed: int
    cancelled: int


class FoldedGroup(NamedTuple):
    """A group whose numbers are complete, as the leader looks at it."""

    id: int
    name: str
    state: GroupState
    is_closed: bool
    has_live: bool
    total: int
    succeeded: int
    failed: int
    cancelled: int

    @property
    def facts(self) -> GroupFacts:
        """The facts that decide its state."""
        return GroupFacts(*self[3:])


class NewGroup(NamedTuple):
    """A group that begins with a submission."""

    queue_id: int
    name: str
    api_key_id: int


class GroupChange(NamedTuple):
    """A change of the numbers of a group."""

    group_id: int
    total: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0


_SELECTED: Final = f"""
    SELECT g.id, g.queue_id, q.path AS queue, g.name, k.name AS submitted_by, t.name AS submitted_through, g.state, g.created_at,
           g.closed_at, g.ended_at, g.notified_at, g.total + c.total AS total, g.succeeded + c.succeeded AS succeeded,
           g.failed + c.failed AS failed, g.cancelled + c.cancelled AS cancelled
    FROM job_groups g JOIN queues q ON q.id = g.queue_id LEFT JOIN api_keys k ON k.id = g.api_key_id
    LEFT JOIN api_keys t ON t.id = k.through_id
    CROSS JOIN LATERAL (SELECT {_SUMS} FROM group_changes WHERE group_id = g.id) c
"""


async def named(tx: Transaction, name: str, queue_ids: Sequence[int] | None, limit: int) -> Sequence[GroupRow]:
    """Return the groups of this name in some queues, by the paths of these; ``queue_ids`` None: in all queues."""
    rows = await tx.all_of(
        GroupRow,
        f"""
        {_SELECTED} WHERE g.name = :name AND (CAST(:queues AS int[]) IS NULL OR g.queue_id = ANY(CAST(:queues AS int[])))
        ORDER BY q.path LIMIT :limit
        """,
        name=name,
        queues=None if queue_ids is None else list(queue_ids),
        limit=limit,
    )
    return [_typed(row) for row in rows]


def _typed(row: GroupRow) -> GroupRow:
    return row._replace(state=GroupState(row.state))


async def find(tx: Transaction, group_id: int) -> GroupRow | None:
    row = await tx.first_of(GroupRow, f"{_SELECTED} WHERE g.id = :id", id=group_id)
    return None if row is None else _typed(row)


async def page(
    tx: Transaction, queue_ids: Sequence[int] | None, states: Sequence[GroupState], before: int | None, limit: int
) -> Sequence[GroupRow]:
    """Return a page of groups, newest first; of these queues, or of all with None, and in these states, or in all with none."""
    rows = await tx.all_of(
        GroupRow,
        f"""
        {_SELECTED}
        WHERE (CAST(:queues AS int[]) IS NULL OR g.queue_id = ANY(CAST(:queues AS int[])))
        AND (:before = 0 OR g.id < :before) AND (cardinality(CAST(:states AS text[])) = 0 OR g.state = ANY(CAST(:states AS text[])))
        ORDER BY g.id DESC LIMIT :limit
        """,
        queues=None if queue_ids is None else list(queue_ids),
        before=before or 0,
        states=[one.value for one in states],
        limit=limit,
    )
    return [_typed(row) for row in rows]


async def unfinished(tx: Transaction, group_id: int) -> dict[str, int]:
    """Return the number of unfinished jobs of a group by state, as people see it."""
    rows = await tx.all(
        f"""
        SELECT coalesce(wish::text, state::text) AS state, count(*) AS many FROM jobs WHERE group_id = :id AND {LIVE_JOB}
        GROUP BY 1 ORDER BY 1
        """,
        id=group_id,
    )
    return {row.state: row.many for row in rows}


class HeldGroup(NamedTuple):
    """A group whose row a submission holds."""

    id: int
    queue: str
    name: str
    state: GroupState
    is_closed: bool
    submitted_by: str | None
    submitted_through: str | None


async def hold(
    tx: Transaction, places: Iterable[Place], *, closes: bool = False, awaits: bool = False
) -> dict[Place, HeldGroup]:
    """Return those of these groups that exist; none is closed until the transaction ends, but by itself with ``closes``, and with
    ``awaits`` none ends.
    """
    wanted = sorted(set(places))
    lock = "UPDATE" if closes else "SHARE" if awaits else "KEY SHARE"
    rows = await tx.all(
        f"""
        SELECT g.id, q.path AS queue, g.name, g.state, g.closed_at IS NOT NULL AS is_closed, g.api_key_id
        FROM unnest(CAST(:paths AS text[]), CAST(:names AS text[])) AS n(path, name)
        JOIN queues q ON q.path = n.path JOIN job_groups g ON g.queue_id = q.id AND g.name = n.name ORDER BY g.id FOR {lock} OF g
        """,
        paths=[path for path, _ in wanted],
        names=[name for _, name in wanted],
    )
    if not rows:
        return {}
    keys = await tx.all(
        """
        SELECT k.id, k.name, t.name AS through FROM api_keys k LEFT JOIN api_keys t ON t.id = k.through_id WHERE k.id = ANY(:ids)
        """,
        ids=sorted({row.api_key_id for row in rows}),
    )
    who = {row.id: (row.name, row.through) for row in keys}
    return {
        (row.queue, row.name): HeldGroup(
            row.id, row.queue, row.name, GroupState(row.state), row.is_closed, *who.get(row.api_key_id, (None, None))
        )
        for row in rows
    }


async def lock(tx: Transaction, group_id: int) -> None:
    """Wait for submissions to a group; there are none until the transaction ends."""
    await tx.all("SELECT 1 FROM job_groups WHERE id = :id FOR UPDATE", id=group_id)


async def begin(tx: Transaction, fresh: Iterable[NewGroup]) -> dict[tuple[int, str], int]:
    """Create those of these groups that do not exist; return the ids of the created ones, by queue and name."""
    rows = await tx.all(
        """
        INSERT INTO job_groups (queue_id, name, api_key_id)
        SELECT n.queue, n.name, n.key FROM json_to_recordset(CAST(:rows AS json)) AS n(queue int, name text, key int)
        ORDER BY n.queue, n.name ON CONFLICT (queue_id, name) DO NOTHING RETURNING id, queue_id, name
        """,
        rows=dumps([{"queue": one.queue_id, "name": one.name, "key": one.api_key_id} for one in fresh]),
    )
    return {(row.queue_id, row.name): int(row.id) for row in rows}


async def note(tx: Transaction, changes: Sequence[GroupChange]) -> None:
    """Store changes of the numbers of groups; the leader looks at these groups."""
    if changes:
        await tx.run(
            f"""
            INSERT INTO group_changes (group_id, {_NUMBERS})
            SELECT * FROM json_to_recordset(CAST(:rows AS json))
                AS n(group_id bigint, total int, succeeded int, failed int, cancelled int)
            """,
            rows=dumps([one._asdict() for one in changes]),
        )


async def add_hooks(tx: Transaction, hooks: Iterable[tuple[int, str]]) -> None:
    """Store that these addresses get a message when their groups have ended; each address gets one."""
    rows = sorted(set(hooks))
    await tx.run(
        """
        INSERT INTO group_hooks (group_id, url)
        SELECT n.id, n.url FROM unnest(CAST(:ids AS bigint[]), CAST(:urls AS text[])) AS n(id, url) ORDER BY 1, 2
        ON CONFLICT DO NOTHING
        """,
        ids=[group_id for group_id, _ in rows],
        urls=[url for _, url in rows],
    )


async def most_hooks(tx: Transaction, group_ids: Iterable[int]) -> int:
    """Return the number of webhooks of that of these groups that has the most."""
    row = await tx.one(
        """
        SELECT coalesce(max(many), 0) AS many FROM (
            SELECT count(*) AS many FROM group_hooks WHERE group_id = ANY(:ids) GROUP BY group_id) AS h
        """,
        ids=sorted(set(group_ids)),
    )
    return int(row.many)


async def close(tx: Transaction, group_ids: Iterable[int]) -> None:
    """Close those of these groups that are open, whose rows are locked, and let the leader look at them."""
    ids = sorted(set(group_ids))
    await tx.run(
        "UPDATE job_groups SET closed_at = now(), state = 'closed', changed_at = now() WHERE id = ANY(:ids) AND closed_at IS NULL",
        ids=ids,
    )
    await note(tx, [GroupChange(one) for one in ids])


# -- the leader's part


async def due(tx: Transaction, limit: int) -> list[int]:
    """Return ids of groups whose numbers have changed, those first that changed first."""
    rows = await tx.all(
        """
        SELECT group_id FROM group_changes GROUP BY group_id ORDER BY min(id) LIMIT :limit
        """,
        limit=limit,
    )
    return [int(row.group_id) for row in rows]


async def fold(tx: Transaction, group_ids: Sequence[int]) -> list[FoldedGroup]:
    """Add the changes of these groups to their rows, and lock these; return those of which all changes are added. Groups that others
    have locked are left out.

    All of it is read as of one moment, when the rows are locked: the jobs of a group that is closed then are all known.
    """
    held = await tx.all(
        "SELECT id FROM job_groups WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED",
        ids=list(group_ids),
    )
    if not held:
        return []
    rows = await tx.all(
        f"""
        WITH gone AS (
            DELETE FROM group_changes WHERE id IN (
                SELECT id FROM group_changes WHERE group_id = ANY(:ids) ORDER BY id LIMIT :limit)
            RETURNING group_id, {_NUMBERS}
        ), sums AS (
            SELECT group_id, {_SUMS} FROM gone GROUP BY group_id
        )
        UPDATE job_groups g SET total = g.total + s.total, succeeded = g.succeeded + s.succeeded, failed = g.failed + s.failed,
            cancelled = g.cancelled + s.cancelled, changed_at = now()
        FROM sums s WHERE g.id = s.group_id
        RETURNING g.id, g.name, g.state, g.closed_at IS NOT NULL AS is_closed,
            EXISTS (SELECT 1 FROM jobs j WHERE j.group_id = g.id AND j.{LIVE_JOB}) AS has_live,
            g.total, g.succeeded, g.failed, g.cancelled, (SELECT count(*) FROM gone) AS folded
        """,
        ids=[row.id for row in held],
        limit=_MOST_FOLDED,
    )
    return [FoldedGroup(*row[:-1])._replace(state=GroupState(row.state)) for row in rows if row.folded < _MOST_FOLDED]


async def stored_states(tx: Transaction, group_id: int) -> dict[JobState, int]:
    """Return the number of stored jobs of a group by state."""
    rows = await tx.all("SELECT state, count(*) AS many FROM jobs WHERE group_id = :id GROUP BY state", id=group_id)
    return {JobState(row.state): row.many for row in rows}


async def write_numbers(tx: Transaction, group_id: int, facts: GroupFacts) -> None:
    """Store the numbers of a group whose row is locked."""
    await tx.run(
        """
        UPDATE job_groups SET total = :total, succeeded = :succeeded, failed = :failed, cancelled = :cancelled WHERE id = :id
        """,
        id=group_id,
        total=facts.total,
        succeeded=facts.succeeded,
        failed=facts.failed,
        cancelled=facts.cancelled,
    )


async def write_states(tx: Transaction, states: Mapping[int, GroupState]) -> list[int]:
    """Store the states of groups whose rows are locked; return those that have ended for the first time."""
    rows = await tx.all(
        """
        WITH n AS MATERIALIZED (
            SELECT * FROM unnest(CAST(:ids AS bigint[]), CAST(:states AS text[]), CAST(:ended AS bool[])) AS n(id, state, ended)
        ), first AS (
            SELECT g.id FROM job_groups g JOIN n ON n.id = g.id WHERE n.ended AND g.notified_at IS NULL
        ), written AS (
            UPDATE job_groups g SET state = n.state, ended_at = CASE WHEN n.ended THEN now() END,
                notified_at = CASE WHEN n.ended THEN coalesce(g.notified_at, now()) ELSE g.notified_at END
            FROM n WHERE g.id = n.id
        )
        SELECT id FROM first ORDER BY id
        """,
        ids=list(states),
        states=[one.value for one in states.values()],
        ended=[one.is_terminal for one in states.values()],
    )
    return [int(row.id) for row in rows]


async def wake_forgotten(tx: Transaction, limit: int) -> int:
    """Let the leader look at closed groups without unfinished jobs at which nothing makes it look: an older release has ended the
    last jobs. Return how many.
    """
    return await tx.run(
        f"""
        INSERT INTO group_changes (group_id)
        SELECT g.id FROM job_groups g WHERE g.state = 'closed'
        AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.group_id = g.id AND j.{LIVE_JOB})
        AND NOT EXISTS (SELECT 1 FROM group_changes c WHERE c.group_id = g.id) ORDER BY g.id LIMIT :limit
        """,
        limit=limit,
    )


_UNUSED: Final = """
    NOT EXISTS (SELECT 1 FROM jobs j WHERE j.group_id = g.id)
    AND NOT EXISTS (SELECT 1 FROM group_changes c WHERE c.group_id = g.id)
    AND NOT EXISTS (SELECT 1 FROM group_dependencies d JOIN jobs j ON j.id = d.job_id WHERE d.group_id = g.id AND j.ended_at IS NULL)
    AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.group_id = g.id AND o.dead_at IS NULL)
"""


async def remove_old(tx: Transaction, seconds: float, limit: int) -> bool:
    """Remove groups of which nothing has changed for ``seconds`` and which have no jobs any more, no job that waits for them, and no
    message that is still to be delivered; return whether there may be more. A group to which somebody submits stays.
    """
    held = await tx.all(
        f"""
        SELECT g.id FROM job_groups g WHERE g.changed_at < now() - make_interval(secs => :seconds) AND {_UNUSED}
        ORDER BY g.id LIMIT :limit FOR UPDATE SKIP LOCKED
        """,
        seconds=seconds,
        limit=limit,
    )
    # Read again now that they are locked: a job may have come before.
    rows = await tx.all(
        f"DELETE FROM job_groups g WHERE g.id = ANY(:ids) AND {_UNUSED} RETURNING g.id", ids=[row.id for row in held]
    )
    gone = [int(row.id) for row in rows]
    if gone:
        for table in ("group_changes", "group_hooks", "group_dependencies", "outbox"):
            await tx.run(f"DELETE FROM {table} WHERE group_id = ANY(:ids)", ids=gone)
    return len(held) >= limit
