"""Routes of what running jobs use."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Query, Response

from trainmaster.protocol.base import Name40, WrittenTime
from trainmaster.protocol.efficiency import EfficiencyAnswer, EfficiencyGroup
from trainmaster.protocol.errors import Code
from trainmaster.protocol.member_use import TopAnswer, TopGroup, TopSort, UseOfJob
from trainmaster_dispatcher.api.context import App, JobLister, UsageReader, answer
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.api.parameters import JobId, Limit, QueueFilter, SubmitterFilter
from trainmaster_dispatcher.services import efficiency, member_use

router = documented_router("/v1", "jobs")


@router.get("/top", **contract(gives=TopAnswer, refuses=(Code.UNKNOWN_QUEUE, Code.NOT_FOUND)))
async def show_top(
    state: App,
    caller: JobLister,
    queue: QueueFilter = None,
    cluster: Annotated[Name40 | None, Query(description="Only jobs that run on this cluster.")] = None,
    submitted_by: SubmitterFilter = None,
    gpus_idle: Annotated[
        bool,
        Query(
            alias="gpusIdle",
            description="Only jobs whose GPUs do nothing, by the policy `idleGpus` of their queue: those with `gpusIdleSince`.",
        ),
    ] = False,
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
            tx,
            caller,
            queue=queue,
            cluster=cluster,
            submitted_by=submitted_by,
            are_gpus_idle=gpus_idle,
            sort=sort,
            by=by,
            limit=limit,
        )
    return answer(found.model_dump(mode="json", by_alias=True, exclude_none=True))


@router.get("/jobs/{job_id}/use", **contract(gives=UseOfJob))
async def show_use(
    job_id: JobId,
    state: App,
    caller: JobLister,
    since: Annotated[
        WrittenTime | None,
        Query(description="Begin of the history; with `step` alone an hour ago. Without both there is no history."),
    ] = None,
    step: Annotated[
        int | None,
        Query(
            ge=10, le=86_400, description="Seconds of each value of the history; by default by its length, at least 30."
        ),
    ] = None,
) -> Response:
    """Show what the latest run of a job uses, and each of its members; to an owner, of a job on the owner's clusters.

    With `since` or `step`, also its history: a day as it was sampled, and 7 days in steps of 5 minutes.
    """
    wanted = since is not None or step is not None
    period = member_use.UsePeriod.of(since, step, datetime.now(UTC)) if wanted else None
    async with state.stores.database.reading() as tx:
        found = await member_use.of_job(tx, caller, job_id, period)
    body = found.model_dump(mode="json", by_alias=True, exclude_none=True)
    if found.series is not None:
        body["series"] = [one.model_dump(mode="json", by_alias=True) for one in found.series]
    return answer(body)


@router.get("/efficiency", **contract(gives=EfficiencyAnswer, refuses=(Code.UNKNOWN_QUEUE,)))
async def show_efficiency(
    state: App,
    caller: UsageReader,
    begin: Annotated[
        WrittenTime | None, Query(description="Begin of the time; by default 30 days before its end.")
    ] = None,
    end: Annotated[WrittenTime | None, Query(description="End of the time; by default now.")] = None,
    by: Annotated[
        EfficiencyGroup, Query(description="Sums of the runs of each queue, user, cluster or job.")
    ] = "queue",
    queue: QueueFilter = None,
    limit: Limit = 100,
) -> Response:
    """Show what runs of the caller's queues used beside what they requested, and requests that would suit recurring jobs.

    Runs count whole, by the time of their last sample.
    """
    until = end or datetime.now(UTC)
    async with state.stores.database.reading() as tx:
        found = await efficiency.report(
            tx,
            caller,
            begin or until - timedelta(days=30),
            until,
            by=by,
            queue=queue,
            currency=state.stores.settings.currency,
            limit=limit,
        )
    return answer(found.model_dump(mode="json", by_alias=True, exclude_none=True))
