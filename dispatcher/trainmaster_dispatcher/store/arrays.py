"""Arrays: numbers and bitmaps of ended elements. What a bitmap means is in ``domain/arrays.py``.

A row of ``arrays`` is created when something is first stored of the array; whoever changes elements locks it first.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from trainmaster.protocol.arrays import ArrayCounts, ArrayStop, ElementResult, FailedElement, JobArray
from trainmaster.protocol.ids import RunRef
from trainmaster_dispatcher.domain.arrays import Block, from_bytes, to_bytes
from trainmaster_dispatcher.store.database import Transaction

PACK_RESULTS = 500
"""The most results in a row."""
MOST_FAILURES = 1000
"""The most failed elements of an array whose details are stored."""


class ArrayRow(NamedTuple):
    """An array as it is stored. ``running``: elements that ran at the agent's last report."""

    job_id: int
    token: str
    succeeded: int
    failed: int
    cancelled: int
    running: int

    @property
    def counts(self) -> ArrayCounts:
        return ArrayCounts(self.succeeded, self.failed, self.cancelled)


class ArraySpecRow(NamedTuple):
    """The array in a job's specification, in wire form, and the job's number of elements."""

    job_id: int
    elements: int
    array: dict[str, Any]

    def parsed(self) -> JobArray:
        return JobArray.model_validate(self.array)

    @property
    def stop(self) -> ArrayStop | None:
        """Numbers of ended elements at which the array ends early."""
        return self.parsed().stop


class BlockRow(NamedTuple):
    """Bitmaps of a block, as they are stored."""

    block: int
    succeeded: bytes
    failed: bytes
    cancelled: bytes


class FailureRow(NamedTuple):
    """The details of a failed element."""

    element: int
    exit_code: int | None
    signal: int | None
    message: str


class ResultsRow(NamedTuple):
    """Results of some elements. ``elements``: a JSON list of ``[element, value]``."""

    id: int
    elements: str


_ROW = "job_id, token, succeeded, failed, cancelled, running"


async def create(tx: Transaction, job_id: int, token: str) -> None:
    """Create the row of an array, unless it exists."""
    await tx.run(
        "INSERT INTO arrays (job_id, token) VALUES (:job, :token) ON CONFLICT DO NOTHING", job=job_id, token=token
    )


async def lock(tx: Transaction, job_id: int) -> ArrayRow | None:
    """Return an array, locked; None if it has no row."""
    return await tx.first_of(ArrayRow, f"SELECT {_ROW} FROM arrays WHERE job_id = :job FOR UPDATE", job=job_id)


async def rows(tx: Transaction, job_ids: Iterable[int]) -> Mapping[int, ArrayRow]:
    """Return those of these arrays that have a row, by job."""
    found = await tx.all_of(ArrayRow, f"SELECT {_ROW} FROM arrays WHERE job_id = ANY(:jobs)", jobs=sorted(set(job_ids)))
    return {row.job_id: row for row in found}


async def specs(tx: Transaction, job_ids: Iterable[int]) -> Mapping[int, ArraySpecRow]:
    """Return the arrays in the specifications of those of these jobs that have one, by job."""
    found = await tx.all_of(
        ArraySpecRow,
        """
        SELECT j.id AS job_id, j.elements, s.spec->'array' AS array FROM jobs j JOIN job_specs s ON s.id = j.spec_id
        WHERE j.id = ANY(:jobs) AND j.elements IS NOT NULL
        """,
        jobs=sorted(set(job_ids)),
    )
    return {row.job_id: row for row in found}


async def is_on_cluster(tx: Transaction, ref: RunRef, cluster_id: int) -> bool:
    """Return whether a run is or was on this cluster."""
    row = await tx.first(
        "SELECT 1 FROM runs WHERE job_id = :job AND attempt = :attempt AND cluster_id = :cluster",
        job=ref.job_key,
        attempt=ref.attempt,
        cluster=cluster_id,
    )
    return row is not None


async def is_latest(tx: Transaction, ref: RunRef) -> bool:
    """Return whether a run is the latest one of its job, and has not ended."""
    row = await tx.first(
        """
        SELECT 1 FROM runs r JOIN jobs j ON j.id = r.job_id
        WHERE r.job_id = :job AND r.attempt = :attempt AND j.attempt = r.attempt AND r.ended_at IS NULL
        """,
        job=ref.job_key,
        attempt=ref.attempt,
    )
    return row is not None


async def blocks(tx: Transaction, job_id: int, wanted: Iterable[int] | None = None) -> dict[int, Block]:
    """Return the blocks of an array in which something has ended; of ``wanted`` only, if it is given."""
    found = await tx.all_of(
        BlockRow,
        """
        SELECT block, succeeded, failed, cancelled FROM array_blocks
        WHERE job_id = :job AND (CAST(:blocks AS int[]) IS NULL OR block = ANY(CAST(:blocks AS int[]))) ORDER BY block
        """,
        job=job_id,
        blocks=None if wanted is None else sorted(wanted),
    )
    return {
        row.block: Block(*(from_bytes(bytes(bits)) for bits in (row.succeeded, row.failed, row.cancelled)))
        for row in found
    }


async def save(tx: Transaction, job_id: int, changed: Mapping[int, Block], counts: ArrayCounts, running: int) -> None:
    """Store blocks, and the numbers of the whole array; wake arrays whose elements wait for them. The array's row must be locked."""
    if changed:
        ordered = sorted(changed.items())
        await tx.run(
            """
            INSERT INTO array_blocks (job_id, block, succeeded, failed, cancelled)
            SELECT :job, * FROM unnest(CAST(:blocks AS int[]), CAST(:succeeded AS bytea[]), CAST(:failed AS bytea[]),
                                       CAST(:cancelled AS bytea[]))
            ON CONFLICT (job_id, block) DO UPDATE
            SET succeeded = excluded.succeeded, failed = excluded.failed, cancelled = excluded.cancelled
            """,
            job=job_id,
            blocks=[block for block, _ in ordered],
            succeeded=[to_bytes(bits.succeeded) for _, bits in ordered],
            failed=[to_bytes(bits.failed) for _, bits in ordered],
            cancelled=[to_bytes(bits.cancelled) for _, bits in ordered],
        )
        await tx.run(
            "INSERT INTO array_wakes (array_id) SELECT DISTINCT job_id FROM array_predecessors WHERE on_job_id = :job",
            job=job_id,
        )
    await tx.run(
        """
        UPDATE arrays SET succeeded = :succeeded, failed = :failed, cancelled = :cancelled, running = :running
        WHERE job_id = :job
        """,
        job=job_id,
        succeeded=counts.succeeded,
        failed=counts.failed,
        cancelled=counts.cancelled,
        running=running,
    )


async def add_failures(tx: Transaction, job_id: int, failed: Sequence[FailedElement]) -> None:
    """Store details of failed elements, as long as the array does not have many. The array's row must be locked."""
    await tx.run(
        """
        INSERT INTO array_failures (job_id, element, exit_code, signal, message)
        SELECT :job, * FROM unnest(CAST(:elements AS int[]), CAST(:codes AS int[]), CAST(:signals AS smallint[]),
                                   CAST(:messages AS text[]))
        LIMIT greatest(0, :most - (SELECT count(*) FROM array_failures WHERE job_id = :job))
        ON CONFLICT (job_id, element) DO UPDATE
        SET exit_code = excluded.exit_code, signal = excluded.signal, message = excluded.message
        """,
        job=job_id,
        elements=[one.element for one in failed],
        codes=[one.exit_code for one in failed],
        signals=[one.signal for one in failed],
        messages=[one.message.replace("\x00", "") for one in failed],
        most=MOST_FAILURES,
    )


async def failures(tx: Transaction, job_id: int, most: int) -> Sequence[FailureRow]:
    """Return what is known of failed elements, by element."""
    return await tx.all_of(
        FailureRow,
        """
        SELECT element, exit_code, signal, message FROM array_failures WHERE job_id = :job ORDER BY element LIMIT :most
        """,
        job=job_id,
        most=most,
    )


async def add_results(tx: Transaction, job_id: int, results: Sequence[ElementResult]) -> None:
    """Store what elements returned. The array's row must be locked, and none of these elements has a stored result."""
    packs = [
        "[" + ",".join(f"[{one.element},{one.value}]" for one in results[begin : begin + PACK_RESULTS]) + "]"
        for begin in range(0, len(results), PACK_RESULTS)
    ]
    await tx.run(
        "INSERT INTO array_results (job_id, elements) SELECT :job, * FROM unnest(CAST(:packs AS text[]))",
        job=job_id,
        packs=packs,
    )


async def results(tx: Transaction, job_id: int, after: int, most: int) -> Sequence[ResultsRow]:
    """Return rows of results behind the one with the id ``after``, in the order in which they came."""
    return await tx.all_of(
        ResultsRow,
        "SELECT id, elements FROM array_results WHERE job_id = :job AND id > :after ORDER BY id LIMIT :most",
        job=job_id,
        after=after,
        most=most,
    )


async def let_run_again(tx: Transaction, job_ids: Sequence[int]) -> None:
    """Let the failed and cancelled elements of arrays wait to be run again."""
    if not job_ids:
        return
    for statement in (
        "UPDATE arrays SET failed = 0, cancelled = 0, running = 0 WHERE job_id = ANY(:jobs)",
        "UPDATE array_blocks SET failed = '', cancelled = '' WHERE job_id = ANY(:jobs)",
        "DELETE FROM array_failures WHERE job_id = ANY(:jobs)",
    ):
        await tx.run(statement, jobs=sorted(job_ids))


async def none_runs(tx: Transaction, job_ids: Sequence[int]) -> None:
    """Note that no element of these arrays runs any more."""
    await tx.run("UPDATE arrays SET running = 0 WHERE job_id = ANY(:jobs) AND running > 0", jobs=sorted(job_ids))
