"""Routes of time series of the installation."""

from typing import Annotated

from fastapi import Query, Response

from trainmaster.protocol.base import Name40, QueuePath, WrittenTime
from trainmaster.protocol.errors import Code
from trainmaster.protocol.series import SeriesAnswer, SeriesBy, SeriesCatalogue
from trainmaster_dispatcher.api.context import App, ClusterReader, answer
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.services import series

router = documented_router("/v1", "series")


@router.get("/series", **contract(gives=SeriesAnswer, refuses=(Code.NOT_FOUND,)))
async def show_series(
    state: App,
    caller: ClusterReader,
    metric: Annotated[
        str,
        Query(min_length=1, max_length=100, description="Name of the metric, as `GET /v1/series/metrics` lists it."),
    ],
    by: Annotated[
        list[SeriesBy] | None,
        Query(
            max_length=4,
            description="Labels to keep, all without it; series that differ only in others are added up. `none` adds up all.",
        ),
    ] = None,
    cluster: Annotated[Name40 | None, Query(description="Only of this cluster.")] = None,
    queue: Annotated[QueuePath | None, Query(description="Only of this queue and of those below it.")] = None,
    depth: Annotated[
        int | None,
        Query(ge=0, le=10, description="The most levels below `queue`, or below the top of the tree; 0: only `queue`."),
    ] = None,
    product: Annotated[
        str | None,
        Query(min_length=1, max_length=253, description="Only of this product; `all`: of a queue's devices."),
    ] = None,
    policy: Annotated[Name40 | None, Query(description="Only of this burst policy.")] = None,
    since: Annotated[
        WrittenTime | None, Query(description="Begin of the time; by default six hours before `until`.")
    ] = None,
    until: Annotated[WrittenTime | None, Query(description="End of the time; by default now.")] = None,
    step: Annotated[
        int | None,
        Query(ge=60, le=86_400, description="Seconds of a step, a multiple of 60; by default as the time is long."),
    ] = None,
) -> Response:
    """Show how a metric of clusters, queues or burst policies went over time. Each value is the mean of its step, or the highest.

    Values of a minute are kept for a day, of ten minutes for 14 days, of an hour for a year.
    """
    wanted = series.SeriesQuery(metric, tuple(by or ()), cluster, queue, depth, product, policy, since, until, step)
    async with state.stores.database.reading() as tx:
        found = await series.query(tx, caller, wanted)
    return answer(found.model_dump(mode="json", by_alias=True))


@router.get("/series/metrics", **contract(gives=SeriesCatalogue))
async def list_series_metrics(state: App, caller: ClusterReader) -> Response:
    """List the metrics of which there are series, those that the caller may see."""
    return answer(series.catalogue(caller).model_dump(mode="json", by_alias=True))
