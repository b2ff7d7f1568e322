"""Rows of jobs' files: what was uploaded for queues, what runs have left, and uploads under way. The data is in the file store."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from trainmaster.protocol.ids import RunRef
from trainmaster_dispatcher.store.database import Transaction

_QUEUE_LOCK = 1953653620
"""The first part of the advisory locks under which files are added to a queue."""


class StoredFiles(NamedTuple):
    """Files that were uploaded for a queue."""

    sha256: str
    size: int
    key: str


class Upload(NamedTuple):
    """An upload under way. ``job_id``, ``attempt`` and ``name``: of an output of a run."""

    id: str
    queue_id: int
    queue: str
    sha256: str
    size: int
    job_id: int | None
    attempt: int | None
    name: str | None


class Artifact(NamedTuple):
    """A stored output of a run."""

    name: str
    attempt: int
    sha256: str
    size: int
    key: str
    created_at: datetime


class ArtifactSource(NamedTuple):
    """A job whose artifacts others name: its outputs, and those that its last run has left, by their names."""

    id: int
    outputs: list[str]
    stored: list[str]
    has_element_jobs: bool


class NewArtifactInput(NamedTuple):
    """An input of a new job that is an artifact of another. ``input``: its place in the specification."""

    job_id: int
    input: int
    on_job_id: int
    name: str


class ArtifactInput(NamedTuple):
    """An input of a job that is an artifact of the last run of another.

    ``job``: the name of that job, None once it is removed; ``sha256``, ``size`` and ``key`` are None while there is no such artifact.
    """

    input: int
    on_job_id: int
    name: str
    job: str | None
    sha256: str | None
    size: int | None
    key: str | None


class RunWithFiles(NamedTuple):
    """A run on a cluster, with what its job says of files, in wire form. ``is_live``: it is the latest one, and has not ended."""

    queue_id: int
    queue: str
    inputs: list[dict[str, Any]] | None
    outputs: list[dict[str, Any]] | None
    is_live: bool
    is_stopping: bool


class EndedRun(NamedTuple):
    """A run with files. ``missing``: required outputs that are not stored."""

    job_id: int
    attempt: int
    problem: str
    missing: list[str]


class OldFiles(NamedTuple):
    """Files that nobody uses."""

    queue_id: int
    sha256: str


async def lock_queue(tx: Transaction, queue_id: int) -> None:
    """Let nobody else add files to a queue until the transaction ends."""
    await tx.run("SELECT pg_advisory_xact_lock(:first, :queue)", first=_QUEUE_LOCK, queue=queue_id)


async def bytes_of_queue(tx: Transaction, queue_id: int) -> int:
    """Return the bytes of all files and artifacts of a queue."""
    row = await tx.one(
        """
        SELECT coalesce((SELECT sum(size) FROM files WHERE queue_id = :queue), 0)
             + coalesce((SELECT sum(size) FROM artifacts WHERE queue_id = :queue), 0) AS bytes
        """,
        queue=queue_id,
    )
    return int(row.bytes)


async def find(tx: Transaction, queue_id: int, digests: Collection[str]) -> Mapping[str, StoredFiles]:
    """Return those of these files that a queue has, by SHA-256, and note that they are used: they stay for a while."""
    found = await tx.all_of(
        StoredFiles,
        """
        UPDATE files SET used_at = now() WHERE queue_id = :queue AND sha256 = ANY(:digests) RETURNING sha256, size, key
        """,
        queue=queue_id,
        digests=sorted(digests),
    )
    return {one.sha256: one for one in found}


async def look_up(tx: Transaction, queue_id: int, digests: Collection[str]) -> Mapping[str, StoredFiles]:
    """Return those of these files that a queue has, by SHA-256."""
    found = await tx.all_of(
        StoredFiles,
        "SELECT sha256, size, key FROM files WHERE queue_id = :queue AND sha256 = ANY(:digests)",
        queue=queue_id,
        digests=sorted(digests),
    )
    return {one.sha256: one for one in found}


async def add_files(tx: Transaction, queue_id: int, sha256: str, size: int, key: str) -> bool:
    """Store that a queue has files; return False where it has them already, by another upload."""
    return bool(
        await tx.run(
            """
            INSERT INTO files (queue_id, sha256, size, key) VALUES (:queue, :sha256, :size, :key) ON CONFLICT DO NOTHING
            """,
            queue=queue_id,
            sha256=sha256,
            size=size,
            key=key,
        )
    )


async def add_uses(tx: Transaction, uses: Iterable[tuple[int, str]]) -> None:
    """Store which files the specifications of new jobs name: pairs of a job and a SHA-256."""
    pairs = list(uses)
    await tx.run(
        """
        INSERT INTO file_uses (spec_id, queue_id, sha256)
        SELECT DISTINCT j.spec_id, j.queue_id, n.sha256
        FROM unnest(CAST(:jobs AS bigint[]), CAST(:digests AS text[])) AS n(job_id, sha256) JOIN jobs j ON j.id = n.job_id
        ON CONFLICT DO NOTHING
        """,
        jobs=[job for job, _ in pairs],
        digests=[digest for _, digest in pairs],
    )


# Uploads


async def begin_upload(tx: Transaction, upload: Upload) -> None:
    """Store an upload that begins."""
    await tx.run(
        """
        INSERT INTO file_uploads (id, queue_id, sha256, size, job_id, attempt, name)
        VALUES (:id, :queue, :sha256, :size, :job, :attempt, :name)
        """,
        id=upload.id,
        queue=upload.queue_id,
        sha256=upload.sha256,
        size=upload.size,
        job=upload.job_id,
        attempt=upload.attempt,
        name=upload.name,
    )


async def find_upload(tx: Transaction, upload: str) -> Upload | None:
    """Return an upload under way."""
    return await tx.first_of(
        Upload,
        """
        SELECT u.id, u.queue_id, q.path AS queue, u.sha256, u.size, u.job_id, u.attempt, u.name
        FROM file_uploads u JOIN queues q ON q.id = u.queue_id WHERE u.id = :id
        """,
        id=upload,
    )


async def end_upload(tx: Transaction, upload: str) -> bool:
    """Remove the row of an upload; return False if there is none any more."""
    return bool(await tx.run("DELETE FROM file_uploads WHERE id = :id", id=upload))


async def uploads_of_queue(tx: Transaction, queue_id: int) -> int:
    """Return the number of users' uploads under way for a queue."""
    row = await tx.one(
        "SELECT count(*) AS many FROM file_uploads WHERE queue_id = :queue AND job_id IS NULL", queue=queue_id
    )
    return int(row.many)


# Runs


async def run_with_files(tx: Transaction, ref: RunRef, cluster_id: int) -> RunWithFiles | None:
    """Return a run that is or was on a cluster, if its job has files."""
    return await tx.first_of(
        RunWithFiles,
        """
        SELECT j.queue_id, q.path AS queue, s.spec->'inputs' AS inputs, s.spec->'outputs' AS outputs,
               j.attempt = r.attempt AND r.ended_at IS NULL AS is_live, r.stop_cause IS NOT NULL AS is_stopping
        FROM runs r JOIN jobs j ON j.id = r.job_id JOIN job_specs s ON s.id = j.spec_id
        JOIN queues q ON q.id = j.queue_id
        WHERE r.job_id = :job AND r.attempt = :attempt AND r.cluster_id = :cluster AND (s.spec ? 'inputs' OR s.spec ? 'outputs')
        """,
        job=ref.job_key,
        attempt=ref.attempt,
        cluster=cluster_id,
    )


async def token_of_run(tx: Transaction, ref: RunRef, token: str, required: Sequence[str]) -> str:
    """Return the token of a run's members: ``token``, unless the run has one. ``required``: outputs without which it fails."""
    await tx.run(
        """
        INSERT INTO run_files (job_id, attempt, token, required) VALUES (:job, :attempt, :token, :required)
        ON CONFLICT DO NOTHING
        """,
        job=ref.job_key,
        attempt=ref.attempt,
        token=token,
        required=list(required),
    )
    row = await tx.one(
        "SELECT token FROM run_files WHERE job_id = :job AND attempt = :attempt", job=ref.job_key, attempt=ref.attempt
    )
    return str(row.token)


async def note_problem(tx: Transaction, ref: RunRef, problem: str) -> None:
    """Store why files of a run were not fetched or stored; the last reason counts."""
    await tx.run(
        "UPDATE run_files SET problem = :problem WHERE job_id = :job AND attempt = :attempt",
        job=ref.job_key,
        attempt=ref.attempt,
        problem=problem,
    )


async def ended_runs(tx: Transaction, refs: Collection[RunRef]) -> Sequence[EndedRun]:
    """Return those of these runs that have files, with what they lack."""
    return await tx.all_of(
        EndedRun,
        """
        SELECT f.job_id, f.attempt, f.problem,
               ARRAY(SELECT w FROM unnest(f.required) AS w WHERE NOT EXISTS (
                   SELECT 1 FROM artifacts a WHERE a.job_id = f.job_id AND a.attempt = f.attempt AND a.name = w)) AS missing
        FROM run_files f JOIN unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[])) AS n(job_id, attempt)
        ON n.job_id = f.job_id AND n.attempt = f.attempt
        """,
        jobs=[ref.job_key for ref in refs],
        attempts=[ref.attempt for ref in refs],
    )


# Artifacts


async def artifacts_of(tx: Transaction, job_id: int, attempt: int) -> Sequence[Artifact]:
    """Return the artifacts of a run, by name."""
    return await tx.all_of(
        Artifact,
        """
        SELECT name, attempt, sha256, size, key, created_at FROM artifacts
        WHERE job_id = :job AND attempt = :attempt ORDER BY name
        """,
        job=job_id,
        attempt=attempt,
    )


async def artifact_of(tx: Transaction, job_id: int, attempt: int, name: str) -> Artifact | None:
    """Return an artifact of a run."""
    return await tx.first_of(
        Artifact,
        """
        SELECT name, attempt, sha256, size, key, created_at FROM artifacts
        WHERE job_id = :job AND attempt = :attempt AND name = :name
        """,
        job=job_id,
        attempt=attempt,
        name=name,
    )


async def put_artifact(tx: Transaction, upload: Upload, key: str) -> None:
    """Store an output of a run in place of an earlier one of its name, whose data is removed later."""
    await tx.run(
        """
        INSERT INTO file_removals (key) SELECT key FROM artifacts
        WHERE job_id = :job AND attempt = :attempt AND name = :name ON CONFLICT DO NOTHING
        """,
        job=upload.job_id,
        attempt=upload.attempt,
        name=upload.name,
    )
    await tx.run(
        """
        INSERT INTO artifacts (job_id, attempt, name, queue_id, sha256, size, key)
        VALUES (:job, :attempt, :name, :queue, :sha256, :size, :key)
        ON CONFLICT (job_id, attempt, name) DO UPDATE
        SET sha256 = excluded.sha256, size = excluded.size, key = excluded.key, created_at = now()
        """,
        job=upload.job_id,
        attempt=upload.attempt,
        name=upload.name,
        queue=upload.queue_id,
        sha256=upload.sha256,
        size=upload.size,
        key=key,
    )


# Artifacts as inputs


async def artifact_sources(tx: Transaction, ids: Collection[int]) -> dict[int, ArtifactSource]:
    """Return what these jobs leave, by key."""
    found = await tx.all_of(
        ArtifactSource,
        """
        SELECT j.id, ARRAY(SELECT o->>'name' FROM jsonb_array_elements(s.spec->'outputs') o) AS outputs,
               ARRAY(SELECT a.name FROM artifacts a WHERE a.job_id = j.id AND a.attempt = j.attempt) AS stored,
               coalesce(j.has_element_jobs, false) AS has_element_jobs
        FROM jobs j JOIN job_specs s ON s.id = j.spec_id WHERE j.id = ANY(:ids)
        """,
        ids=sorted(ids),
    )
    return {one.id: one for one in found}


async def add_artifact_inputs(tx: Transaction, new: Iterable[NewArtifactInput]) -> None:
    """Store which artifacts of other jobs new jobs name."""
    lines = [b"%d\t%d\t%d\t%b\n" % (one.job_id, one.input, one.on_job_id, one.name.encode()) for one in new]
    await tx.copy("COPY artifact_inputs (job_id, input, on_job_id, name) FROM STDIN", lines)


async def artifact_inputs_of(tx: Transaction, job_id: int) -> Sequence[ArtifactInput]:
    """Return the inputs of a job that are artifacts of others, each as the last run of the other job has left it."""
    return await tx.all_of(
        ArtifactInput,
        """
        SELECT i.input, i.on_job_id, i.name, j.name AS job, a.sha256, a.size, a.key
        FROM artifact_inputs i LEFT JOIN jobs j ON j.id = i.on_job_id
        LEFT JOIN artifacts a ON a.job_id = j.id AND a.attempt = j.attempt AND a.name = i.name
        WHERE i.job_id = :job_id ORDER BY i.input
        """,
        job_id=job_id,
    )


async def jobs_named_for_later(tx: Transaction) -> list[str]:
    """Return how schedules, and workflows that have not ended, name the jobs whose artifacts their own jobs will get."""
    rows = await tx.all(
        """
        SELECT i->>'job' AS job FROM schedules s, jsonb_path_query(s.spec, '$.job.inputs[*]') i
        WHERE s.deleted_at IS NULL AND i->>'job' IS NOT NULL
        UNION SELECT i->>'job' FROM workflows w, jsonb_path_query(w.spec, '$.steps[*].job.inputs[*]') i
        WHERE w.ended_at IS NULL AND i->>'job' IS NOT NULL
        """
    )
    return [str(row.job) for row in rows]


# Removal


async def remove_later(tx: Transaction, keys: Iterable[str]) -> None:
    """Note data in the file store that nobody needs."""
    await tx.run(
        "INSERT INTO file_removals (key) SELECT unnest(CAST(:keys AS text[])) ON CONFLICT DO NOTHING", keys=list(keys)
    )


async def removals(tx: Transaction, limit: int) -> list[str]:
    """Return keys whose data is to be removed."""
    rows = await tx.all("SELECT key FROM file_removals ORDER BY created_at LIMIT :limit", limit=limit)
    return [str(row.key) for row in rows]


async def removed(tx: Transaction, keys: Sequence[str]) -> None:
    """Note that data was removed."""
    await tx.run("DELETE FROM file_removals WHERE key = ANY(:keys)", keys=list(keys))


async def remove_of_jobs(tx: Transaction, job_ids: Sequence[int]) -> None:
    """Remove the rows of jobs that are removed; their data is removed later."""
    await tx.run(
        """
        INSERT INTO file_removals (key) SELECT key FROM artifacts WHERE job_id = ANY(:ids)
        UNION SELECT id FROM file_uploads WHERE job_id = ANY(:ids) ON CONFLICT DO NOTHING
        """,
        ids=list(job_ids),
    )
    for table in ("artifacts", "file_uploads", "run_files"):
        await tx.run(f"DELETE FROM {table} WHERE job_id = ANY(:ids)", ids=list(job_ids))


async def remove_stray_rows(tx: Transaction, seconds: float, limit: int) -> bool:
    """Remove uploads that were never finished; return whether there may be more."""
    return (
        await tx.run(
            """
            WITH gone AS (
                DELETE FROM file_uploads WHERE id IN (
                    SELECT id FROM file_uploads WHERE created_at < now() - make_interval(secs => :seconds) LIMIT :limit)
                RETURNING id)
            INSERT INTO file_removals (key) SELECT id FROM gone ON CONFLICT DO NOTHING
            """,
            seconds=seconds,
            limit=limit,
        )
        >= limit
    )


async def remove_uses(tx: Transaction, seconds: float, limit: int) -> bool:
    """Remove the uses of specifications that were removed; return whether there may be more."""
    removed_rows = await tx.run(
        """
        DELETE FROM file_uses WHERE ctid = ANY(ARRAY(SELECT u.ctid FROM file_uses u
            WHERE NOT EXISTS (SELECT 1 FROM job_specs s WHERE s.id = u.spec_id) LIMIT :limit))
        """,
        limit=limit,
    )
    return removed_rows >= limit


async def remove_unused(tx: Transaction, seconds: float, limit: int) -> bool:
    """Remove files that no job, schedule or workflow names and that were not used for ``seconds``.

    Return whether there may be more. Who submits a job with them at the same time either sees them no more, or is waited for.
    """
    old = await tx.all_of(
        OldFiles,
        """
        SELECT f.queue_id, f.sha256 FROM files f WHERE f.used_at < now() - make_interval(secs => :seconds)
        AND NOT EXISTS (SELECT 1 FROM file_uses u WHERE u.queue_id = f.queue_id AND u.sha256 = f.sha256)
        AND NOT EXISTS (SELECT 1 FROM schedules s WHERE s.queue_id = f.queue_id AND s.deleted_at IS NULL
                        AND s.spec::text LIKE '%sha256:' || f.sha256 || '%')
        AND NOT EXISTS (SELECT 1 FROM workflows w WHERE w.queue_id = f.queue_id
                        AND w.spec::text LIKE '%sha256:' || f.sha256 || '%')
        ORDER BY f.used_at LIMIT :limit FOR UPDATE SKIP LOCKED
        """,
        seconds=seconds,
        limit=limit,
    )
    if old:
        await tx.run(
            """
            WITH gone AS (
                DELETE FROM files f USING unnest(CAST(:queues AS int[]), CAST(:digests AS text[])) AS n(queue_id, sha256)
                WHERE f.queue_id = n.queue_id AND f.sha256 = n.sha256 RETURNING f.key)
            INSERT INTO file_removals (key) SELECT key FROM gone ON CONFLICT DO NOTHING
            """,
            queues=[one.queue_id for one in old],
            digests=[one.sha256 for one in old],
        )
    return len(old) >= limit
