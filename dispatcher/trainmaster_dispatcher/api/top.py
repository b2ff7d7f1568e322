"""Routes of what running jobs use."""

from typing import Annotated

from fastapi import Query, Response

from trainmaster.protocol.base import Name40
from trainmaster.protocol.errors import Code
from trainmaster.protocol.member_use import TopAnswer, TopGroup, TopSort, UseOfJob
from trainmaster_dispatcher.api.context import App, JobLister, answer
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.api.parameters import JobId, Limit, QueueFilter, SubmitterFilter
from trainmaster_dispatcher.services import member_use

router = documented_router("/v1", "jobs")


@router.get("/top", **contract(gives=TopAnswer, refuses=(Code.UNKNOWN_QUEUE, Code.NOT_FOUND)))
async def show_top(
    state: App,
    caller: JobLister,
    queue: QueueFilter = None,
    cluster: Annotated[Name40 | None, Query(description="Only jobs that run on this cluster.")] = None,
    submitted_by: SubmitterFilter = None,
    sort: Annotated[
        TopSort,
        Query(
            description="The most cores, memory or GPUs first; `idle`: the smallest part of the requested GPUs, else cores, first."
        ),
    ] = "cpu",
    by: Annotated[
        TopGroup | None, Query(description="Sums of the jobs of each queue, cluster or user, in place of the jobs.")
    ] = None,
    limit: Limit = 100,
) -> Response:
    """Show running jobs with what they use, beside what they requested. An owner sees those on the owner's clusters."""
    async with state.stores.database.reading() as tx:
        found = await member_use.top(
            tx, caller, queue=queue, cluster=cluster, submitted_by=submitted_by, sort=sort, by=by, limit=limit
        )
    return answer(found.model_dump(mode="json", by_alias=True, exclude_none=True))


@router.get("/jobs/{job_id}/use", **contract(gives=UseOfJob))
async def show_use(job_id: JobId, state: App, caller: JobLister) -> Response:
    """Show what the latest run of a job uses, and each of its members; to an owner, of a job on the owner's clusters."""
    async with state.stores.database.reading() as tx:
        found = await member_use.of_job(tx, caller, job_id)
    return answer(found.model_dump(mode="json", by_alias=True, exclude_none=True))
