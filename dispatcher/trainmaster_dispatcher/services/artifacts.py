"""Artifacts: the outputs that runs of jobs have left.

Addresses of the file store go to the caller alone: no log, event or explanation has them.
"""

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.files import PART_BYTES, ArtifactAnswer, ArtifactsOfJob, ArtifactView
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.files import file_store
from trainmaster_dispatcher.services.job_actions import find_job
from trainmaster_dispatcher.store import files as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller


async def listed(tx: Transaction, caller: Caller, job: str, attempt: int | None) -> ArtifactsOfJob:
    """Return the artifacts of a job's last run, or of the one of ``attempt``. Raises ProblemError."""
    found = await find_job(tx, caller, job)
    of = found.attempt if attempt is None else attempt
    rows = await store.artifacts_of(tx, found.id, of)
    return ArtifactsOfJob(job=job, attempt=of, artifacts=tuple(_view(row) for row in rows))


def _view(row: store.Artifact) -> ArtifactView:
    return ArtifactView(name=row.name, attempt=row.attempt, size=row.size, sha256=row.sha256, created_at=row.created_at)


async def find_artifact(tx: Transaction, caller: Caller, job: str, name: str, attempt: int | None) -> store.Artifact:
    """Return an artifact of a job's last run, or of the one of ``attempt``. Raises ProblemError NOT_FOUND."""
    found = await find_job(tx, caller, job)
    of = found.attempt if attempt is None else attempt
    row = await store.artifact_of(tx, found.id, of, name)
    if row is None:
        there = [one.name for one in await store.artifacts_of(tx, found.id, of)]
        words = f"there are: {', '.join(there)}" if there else "it has none"
        raise ProblemError(Code.NOT_FOUND, f"run {of} of job {job!r} has no artifact {name[:100]!r}; {words}")
    return row


async def show(stores: Stores, caller: Caller, job: str, name: str, attempt: int | None) -> ArtifactAnswer:
    """Return an artifact with the address of its data. Raises ProblemError."""
    async with stores.database.reading() as tx:
        row = await find_artifact(tx, caller, job, name, attempt)
    files = file_store(stores)
    url = await files.download_url(row.key)
    return ArtifactAnswer(
        name=row.name,
        attempt=row.attempt,
        size=row.size,
        sha256=row.sha256,
        created_at=row.created_at,
        url=url,
        part_bytes=PART_BYTES if url is None else None,
    )


async def read(
    stores: Stores, caller: Caller, job: str, name: str, attempt: int | None, offset: int, limit: int
) -> bytes:
    """Return a part of an artifact's archive. Raises ProblemError."""
    async with stores.database.reading() as tx:
        row = await find_artifact(tx, caller, job, name, attempt)
    files = file_store(stores)
    return await files.read(row.key, offset, limit)
