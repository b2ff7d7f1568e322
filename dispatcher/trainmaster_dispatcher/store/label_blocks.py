"""Blocks of jobs with consecutive keys, and the labels that all jobs of a block have.

An index finds the jobs that have a label, and none finds those that have not. A list of the latter, such as ``kubectl get jobs -l
'team!=vision'``, skips the blocks all of whose jobs have the label: of a million jobs of which few are listed, few blocks are read.
This is a zone map, as column stores have them. A side job finds the labels of a block once no job can come to it any more; until then,
and after the labels of a job of it have changed, nothing is known of the block, and its jobs are read.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from trainmaster_dispatcher.store.database import Transaction, dumps

BLOCK = 256
"""The number of keys of a block."""
_MOST_VALUES = 8
"""The most values that are known of a label that all jobs of a block have."""


class ExcludedLabel(NamedTuple):
    """A label that jobs must not have: with one of these values, or with None at all."""

    key: str
    values: tuple[str, ...] | None


class Candidates(NamedTuple):
    """Where jobs without some labels can be: at the keys from ``young`` on, which are in no block, and in these blocks, newest first.

    ``last``: the key of the newest job, 0 without jobs.
    """

    last: int
    young: int
    blocks: Sequence[int]


async def candidates(tx: Transaction, excluded: Sequence[ExcludedLabel], before: int | None) -> Candidates:
    """Return where jobs with none of these labels can be, of those with keys below ``before``."""
    skipped: list[str] = []
    parameters: dict[str, Any] = {"before": before}
    for number, one in enumerate(excluded):
        parameters[f"key_{number}"] = one.key
        if one.values is None:
            skipped.append(f"b.common ? :key_{number}")
        else:
            parameters[f"values_{number}"] = dumps(list(one.values))
            skipped.append(f"b.common -> :key_{number} <@ CAST(:values_{number} AS jsonb)")
    row = await tx.one(
        f"""
        SELECT coalesce((SELECT max(id) FROM jobs), 0) AS last,
               coalesce((SELECT (max(block) + 1) * {BLOCK} FROM label_blocks), 0) AS young,
               ARRAY(SELECT b.block FROM label_blocks b
                     WHERE (CAST(:before AS bigint) IS NULL OR b.block * {BLOCK} < :before)
                     AND NOT coalesce({" OR ".join(skipped)}, false) ORDER BY b.block DESC) AS blocks
        """,
        **parameters,
    )
    return Candidates(int(row.last), int(row.young), row.blocks)


async def begin(tx: Transaction, limit: int) -> bool:
    """Begin the next blocks, at most ``limit``, whose keys have all been given; return whether there may be more.

    Transactions that run now may still store jobs in them.
    """
    return (
        await tx.run(
            f"""
            INSERT INTO label_blocks (block, begun)
            SELECT b, pg_snapshot_xmax(pg_current_snapshot())
            FROM (SELECT (SELECT min(id) / {BLOCK} FROM jobs
                          WHERE id >= coalesce((SELECT (max(block) + 1) * {BLOCK} FROM label_blocks), 0)) AS first,
                         (SELECT (max(id) + 1) / {BLOCK} - 1 FROM jobs) AS last) at,
                 generate_series(at.first, least(at.last, at.first + :limit - 1)) b
            ON CONFLICT DO NOTHING
            """,
            limit=limit,
        )
        >= limit
    )


async def find_common(tx: Transaction, limit: int) -> bool:
    """Find the labels of blocks of which they are not known, at most ``limit``; return whether there may be more.

    Blocks without jobs are removed. The blocks are locked first, so that a change of labels that is stored meanwhile comes before the
    jobs are read, or makes them unknown afterwards.
    """
    rows = await tx.all(
        """
        SELECT block FROM label_blocks WHERE common IS NULL AND begun <= pg_snapshot_xmin(pg_current_snapshot())
        ORDER BY block LIMIT :limit FOR UPDATE SKIP LOCKED
        """,
        limit=limit,
    )
    blocks = [row.block for row in rows]
    if not blocks:
        return False
    await tx.run(
        f"""
        WITH many AS (SELECT b AS block, (SELECT count(*) FROM jobs j WHERE j.id >= b * {BLOCK} AND j.id < (b + 1) * {BLOCK}) AS jobs
                      FROM unnest(CAST(:blocks AS bigint[])) b),
        shared AS (
            SELECT m.block, l.key, count(*) AS jobs, array_agg(DISTINCT l.value) AS values FROM many m
            JOIN jobs j ON j.id >= m.block * {BLOCK} AND j.id < (m.block + 1) * {BLOCK}
            CROSS JOIN LATERAL jsonb_each_text(coalesce(j.labels, '{{}}')) l GROUP BY m.block, l.key),
        found AS (
            SELECT m.block, m.jobs, coalesce(jsonb_object_agg(s.key, CASE WHEN cardinality(s.values) <= {_MOST_VALUES}
                   THEN to_jsonb(s.values) END) FILTER (WHERE s.jobs = m.jobs), '{{}}') AS common
            FROM many m LEFT JOIN shared s ON s.block = m.block GROUP BY m.block, m.jobs),
        gone AS (DELETE FROM label_blocks WHERE block IN (SELECT block FROM found WHERE jobs = 0))
        UPDATE label_blocks b SET common = f.common FROM found f WHERE f.block = b.block AND f.jobs > 0
        """,
        blocks=blocks,
    )
    return len(blocks) >= limit


async def forget_common(tx: Transaction, job_id: int) -> None:
    """Record that the labels of a job change, which are stored in the same transaction. Waits for those who find common labels."""
    await tx.run("UPDATE label_blocks SET common = NULL WHERE block = :block", block=job_id // BLOCK)


async def remove_empty(tx: Transaction, gone: Sequence[int]) -> None:
    """Remove blocks in which there is no job any more, after these jobs were removed."""
    await tx.run(
        f"""
        DELETE FROM label_blocks b WHERE b.block = ANY(:blocks)
        AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id >= b.block * {BLOCK} AND j.id < (b.block + 1) * {BLOCK})
        """,
        blocks=sorted({one // BLOCK for one in gone}),
    )
