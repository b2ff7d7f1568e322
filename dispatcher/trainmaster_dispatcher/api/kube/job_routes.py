"""Jobs by the Kubernetes API: the routes of Jobs of this system, and those of the kinds of manifests as which jobs are submitted."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import Depends, Request, Response

from trainmaster_dispatcher.api.context import App, state_of
from trainmaster_dispatcher.api.kube import discovery, job_calls
from trainmaster_dispatcher.api.kube.calls import (
    PREFIX,
    KubernetesRouter,
    ListedBy,
    Writing,
    not_served,
    person,
    somebody,
)
from trainmaster_dispatcher.api.kube.job_calls import Creator, JobCall
from trainmaster_dispatcher.api.kube.job_resources import OWN_JOBS, SUBMITTED_PODS, WORKLOAD_RESOURCES, JobResource


class PodCalls(NamedTuple):
    """Calls about pods that are other ones than those about jobs."""

    create: Creator
    delete: Callable[[JobCall, str], Awaitable[Response]]


async def _own(request: Request) -> JobResource:
    return OWN_JOBS


async def _of_kind(request: Request) -> JobResource:
    """Return the resource of an address. Raises ProblemError NOT_FOUND or METHOD_NOT_ALLOWED."""
    group, api_version, plural = (request.path_params[name] for name in ("group", "api_version", "plural"))
    found = WORKLOAD_RESOURCES.get((group, api_version, plural))
    if found is None:
        await somebody(request)
        served = discovery.GROUPS.get(group, {}).get(api_version, [])
        raise not_served(is_known=plural in [one.plural for one in served])
    return found


def _router(
    prefix: str,
    plural: str,
    resource_of: Callable[[Request], Awaitable[JobResource]],
    checks: Sequence[Any] = (),
    *,
    pods: "PodCalls | None" = None,
) -> KubernetesRouter:
    """Return the routes of jobs as objects of the resource that ``resource_of`` finds. ``checks``: dependencies of those that change
    one; ``pods``: of pods, which are read by other routes.
    """
    deletes = job_calls.delete_job if pods is None else pods.delete
    made = KubernetesRouter()
    of_all = f"{prefix}/namespaces/{{namespace}}/{plural}"
    of_one = f"{of_all}/{{name}}"

    async def changing(request: Request) -> JobCall:
        of, caller, state = await resource_of(request), await person(request), await state_of(request)
        creator = None if pods is None else pods.create
        return JobCall(request, state, caller, request.path_params["namespace"], Writing(request), of, creator)

    @made.post(of_all)
    async def create(request: Request) -> Response:
        # Dependencies are resolved for each call: without any, more objects are created per second.
        return await job_calls.create_job(await changing(request))

    @made.put(of_one, dependencies=checks)
    async def replace(name: str, call: Annotated[JobCall, Depends(changing)]) -> Response:
        return await job_calls.replace_job(call, name)

    @made.patch(of_one, dependencies=checks)
    async def patch(name: str, call: Annotated[JobCall, Depends(changing)]) -> Response:
        return await job_calls.patch_job(call, name)

    @made.delete(of_one, dependencies=checks)
    async def delete(name: str, call: Annotated[JobCall, Depends(changing)]) -> Response:
        return await deletes(call, name)

    if pods is not None:
        return made

    @made.delete(of_all)
    async def delete_all(call: Annotated[JobCall, Depends(changing)], wanted: ListedBy) -> Response:
        return await job_calls.delete_jobs(call, wanted)

    @made.get(f"{prefix}/{plural}")
    async def list_all(
        of: Annotated[JobResource, Depends(resource_of)], request: Request, state: App, wanted: ListedBy
    ) -> Response:
        return await job_calls.list_jobs(of, request, state, wanted, None)

    @made.get(of_all)
    async def list_in_namespace(
        of: Annotated[JobResource, Depends(resource_of)], namespace: str, request: Request, state: App, wanted: ListedBy
    ) -> Response:
        return await job_calls.list_jobs(of, request, state, wanted, namespace)

    @made.get(of_one)
    async def show(
        of: Annotated[JobResource, Depends(resource_of)], namespace: str, name: str, request: Request, state: App
    ) -> Response:
        return await job_calls.show_job(of, request, state, namespace, name)

    return made


async def _of_pods(request: Request) -> JobResource:
    return SUBMITTED_PODS


def changes_of_pods(checks: Sequence[Any], pods: PodCalls) -> KubernetesRouter:
    """Return the routes by which pods are submitted and changed. ``checks``: dependencies of those that change one."""
    return _router("/api/v1", "pods", _of_pods, checks, pods=pods)


router = _router(PREFIX, "jobs", _own)
workload_router = _router("/apis/{group}/{api_version}", "{plural}", _of_kind)
"""Routes that match the addresses of other resources, too: to be included behind those."""
