"""Jobs by the Kubernetes API: the routes of Jobs of this system, and those of the kinds of manifests as which jobs are submitted."""

from typing import Annotated

from fastapi import Depends, Request, Response

from trainmaster_dispatcher.api.context import App
from trainmaster_dispatcher.api.kube import discovery, job_calls
from trainmaster_dispatcher.api.kube.calls import PREFIX, KubernetesRouter, ListedBy, WrittenBy, not_served, person
from trainmaster_dispatcher.api.kube.job_calls import JobCall
from trainmaster_dispatcher.api.kube.job_resources import OWN_JOBS, WORKLOAD_RESOURCES, JobResource

router = KubernetesRouter()
workload_router = KubernetesRouter()
"""Routes that match the addresses of other resources, too: to be included behind those."""

_ALL = f"{PREFIX}/namespaces/{{namespace}}/jobs"
_ONE = f"{_ALL}/{{name}}"
_EVERYWHERE_OF_KIND = "/apis/{group}/{api_version}/{plural}"
_ALL_OF_KIND = "/apis/{group}/{api_version}/namespaces/{namespace}/{plural}"
_ONE_OF_KIND = f"{_ALL_OF_KIND}/{{name}}"


async def _of_kind(group: str, api_version: str, plural: str, request: Request) -> JobResource:
    """Return the resource of an address. Raises ProblemError NOT_FOUND."""
    found = WORKLOAD_RESOURCES.get((group, api_version, plural))
    if found is None:
        await person(request)
        served = discovery.GROUPS.get(group, {}).get(api_version, [])
        raise not_served(is_known=plural in [one.plural for one in served])
    return found


_OfKind = Annotated[JobResource, Depends(_of_kind)]


async def _own_call(namespace: str, request: Request, state: App, writing: WrittenBy) -> JobCall:
    return JobCall(OWN_JOBS, request, state, await person(request), namespace, writing)


async def _call_of_kind(of: _OfKind, namespace: str, request: Request, state: App, writing: WrittenBy) -> JobCall:
    return JobCall(of, request, state, await person(request), namespace, writing)


_OwnCall = Annotated[JobCall, Depends(_own_call)]
_CallOfKind = Annotated[JobCall, Depends(_call_of_kind)]


@router.post(_ALL)
async def create_job(call: _OwnCall) -> Response:
    return await job_calls.create_job(call)


@router.get(f"{PREFIX}/jobs")
async def list_all_jobs(request: Request, state: App, wanted: ListedBy) -> Response:
    return await job_calls.list_jobs(OWN_JOBS, request, state, wanted, None)


@router.get(_ALL)
async def list_jobs(namespace: str, request: Request, state: App, wanted: ListedBy) -> Response:
    return await job_calls.list_jobs(OWN_JOBS, request, state, wanted, namespace)


@router.get(_ONE)
async def show_job(namespace: str, name: str, request: Request, state: App) -> Response:
    return await job_calls.show_job(OWN_JOBS, request, state, namespace, name)


@router.put(_ONE)
async def replace_job(name: str, call: _OwnCall) -> Response:
    return await job_calls.replace_job(call, name)


@router.patch(_ONE)
async def patch_job(name: str, call: _OwnCall) -> Response:
    return await job_calls.patch_job(call, name)


@router.delete(_ONE)
async def delete_job(name: str, call: _OwnCall) -> Response:
    return await job_calls.delete_job(call, name)


@workload_router.get(_EVERYWHERE_OF_KIND)
async def list_all_of_kind(of: _OfKind, request: Request, state: App, wanted: ListedBy) -> Response:
    return await job_calls.list_jobs(of, request, state, wanted, None)


@workload_router.get(_ALL_OF_KIND)
async def list_of_kind(of: _OfKind, namespace: str, request: Request, state: App, wanted: ListedBy) -> Response:
    return await job_calls.list_jobs(of, request, state, wanted, namespace)


@workload_router.get(_ONE_OF_KIND)
async def show_of_kind(of: _OfKind, namespace: str, name: str, request: Request, state: App) -> Response:
    return await job_calls.show_job(of, request, state, namespace, name)


@workload_router.post(_ALL_OF_KIND)
async def create_of_kind(call: _CallOfKind) -> Response:
    return await job_calls.create_job(call)


@workload_router.put(_ONE_OF_KIND)
async def replace_of_kind(name: str, call: _CallOfKind) -> Response:
    return await job_calls.replace_job(call, name)


@workload_router.patch(_ONE_OF_KIND)
async def patch_of_kind(name: str, call: _CallOfKind) -> Response:
    return await job_calls.patch_job(call, name)


@workload_router.delete(_ONE_OF_KIND)
async def delete_of_kind(name: str, call: _CallOfKind) -> Response:
    return await job_calls.delete_job(call, name)
