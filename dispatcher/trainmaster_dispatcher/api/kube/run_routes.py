"""Runs of jobs by the Kubernetes API: read, listed and watched. What they have is that of the REST API."""

from collections.abc import Mapping, Sequence

from fastapi import Request, Response

from trainmaster_dispatcher.api.context import App
from trainmaster_dispatcher.api.kube.calls import PREFIX, KubernetesRouter, ListedBy, person, shown
from trainmaster_dispatcher.api.kube.job_parts import JobParts, list_parts
from trainmaster_dispatcher.api.kube.objects import Wire
from trainmaster_dispatcher.api.kube.resources import RUNS
from trainmaster_dispatcher.api.kube.runs import RUN_FIELDS, job_in, run_object
from trainmaster_dispatcher.api.kube.status import not_found
from trainmaster_dispatcher.services import job_objects, job_queries
from trainmaster_dispatcher.services.job_objects import ReadJob
from trainmaster_dispatcher.store.database import Transaction

router = KubernetesRouter()

_ALL = f"{PREFIX}/namespaces/{{namespace}}/runs"
_MAY_CHANGE = 2
"""The latest runs of a job that may have changed with it: one that has ended, and the next one."""


async def _runs(tx: Transaction, jobs: Sequence[ReadJob], most: int | None) -> Mapping[int, Sequence[Wire]]:
    found: dict[int, list[Wire]] = {}
    many = 0
    runs = await job_queries.runs_of(tx, {job.key: str(job.line["id"]) for job in jobs})
    for job in jobs:
        if most is not None and many >= most:
            break
        found[job.key] = [run_object(job, run) for run in runs.get(job.key, ())]
        many += len(found[job.key])
    return found


async def _changed(tx: Transaction, jobs: Sequence[ReadJob], most: int | None) -> Mapping[int, Sequence[Wire]]:
    runs = await _runs(tx, jobs, most)
    gone = {job.key for job in jobs if job.is_gone}
    return {key: of_job if key in gone else of_job[-_MAY_CHANGE:] for key, of_job in runs.items()}


def _jobs_in(name: str) -> frozenset[str]:
    found = job_in(name)
    return frozenset() if found is None else frozenset((found,))


_PARTS = JobParts(RUNS, RUN_FIELDS, _jobs_in, _runs, _changed)


@router.get(f"{PREFIX}/runs")
async def list_all_runs(request: Request, state: App, wanted: ListedBy) -> Response:
    return await list_parts(_PARTS, request, state, wanted, None)


@router.get(_ALL)
async def list_runs(namespace: str, request: Request, state: App, wanted: ListedBy) -> Response:
    return await list_parts(_PARTS, request, state, wanted, namespace)


@router.get(f"{_ALL}/{{name}}")
async def show_run(namespace: str, name: str, request: Request, state: App) -> Response:
    caller = await person(request)
    job = job_in(name)
    if job is not None:
        async with state.stores.database.reading() as tx:
            found = await _runs(tx, await job_objects.show_all(tx, caller, namespace, job), None)
        for item in (one for runs in found.values() for one in runs):
            if item["metadata"]["name"] == name:
                return shown(request, item, RUNS)
    raise not_found(RUNS.full_name, name)
