"""The Kubernetes API beside jobs: discovery, schemas, namespaces and declared objects. Errors are Status objects.

It has an OpenAPI document of its own. Rights are those of the REST API, by the same services.
"""

from fastapi import Request, Response

from trainmaster.protocol.permissions import Permission
from trainmaster_dispatcher.api.context import App, State, readable
from trainmaster_dispatcher.api.kube import discovery, objects, schemas
from trainmaster_dispatcher.api.kube.calls import (
    OBJECT_FIELDS,
    KubernetesRouter,
    ListedBy,
    Wire,
    accepted,
    json,
    listed,
    not_served,
    person,
    selected,
    shown,
    somebody,
)
from trainmaster_dispatcher.api.kube.objects import ListMetadata
from trainmaster_dispatcher.api.kube.resources import CORE, NAMESPACES
from trainmaster_dispatcher.api.kube.status import not_found
from trainmaster_dispatcher.store import job_objects
from trainmaster_dispatcher.store.keys import Caller

router = KubernetesRouter()
_V2_MESSAGE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def _wants_aggregate(request: Request) -> bool:
    return any({"as=APIGroupDiscoveryList", "v=v2"} <= one for one in accepted(request))


def _discovered(request: Request, plain: Wire, aggregate: Wire) -> Response:
    if _wants_aggregate(request):
        kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        return Response(readable(aggregate), media_type=kind)
    return json(plain)


@router.get("/api")
async def core_versions(request: Request) -> Response:
    return _discovered(request, discovery.core_versions(), discovery.aggregated_core())


@router.get("/apis")
async def groups(request: Request) -> Response:
    return _discovered(request, discovery.groups(), discovery.aggregated_groups())


@router.get("/api/v1")
async def core_resources() -> Response:
    return json(discovery.resources(objects.VERSION, CORE))


@router.get("/apis/{name}")
async def group(name: str, request: Request) -> Response:
    if name not in discovery.GROUPS:
        await somebody(request)
        raise not_served()
    return json(discovery.group(name))


@router.get("/apis/{name}/{version}")
async def resources(name: str, version: str, request: Request) -> Response:
    found = discovery.GROUPS.get(name, {}).get(version)
    if found is None:
        await somebody(request)
        raise not_served()
    return json(discovery.resources(f"{name}/{version}", found))


@router.get("/version")
async def version() -> Response:
    return json(discovery.version())


@router.get("/openapi/v2")
async def version_2_document(request: Request) -> Response:
    if "protobuf" in request.headers.get("accept", ""):
        return Response(schemas.empty_message(), media_type=_V2_MESSAGE)
    return json(schemas.empty_document())


@router.get("/openapi/v3")
async def documents() -> Response:
    return json(schemas.root())


@router.get("/openapi/v3/apis/{name}/{version}")
async def document(name: str, version: str, request: Request) -> Response:
    if version not in discovery.GROUPS.get(name, {}):
        await somebody(request)
        raise not_served()
    return json(schemas.document(name, version))


@router.get("/openapi/v3/api/v1")
async def core_document() -> Response:
    return json(schemas.document("", objects.VERSION))


@router.get("/api/v1/namespaces")
async def list_namespaces(request: Request, state: App, wanted: ListedBy) -> Response:
    caller = await person(request, Permission.QUEUES_READ)
    found = await _namespaces(state, caller)
    items = [objects.namespace_object(name, queues) for name, queues in found.items()]
    items = selected(items, wanted, OBJECT_FIELDS, "namespaces")
    return listed(request, wanted, items, NAMESPACES, ListMetadata())


@router.get("/api/v1/namespaces/{name}")
async def show_namespace(name: str, request: Request, state: App) -> Response:
    found = await _namespaces(state, await person(request, Permission.QUEUES_READ))
    if name not in found:
        raise not_found(NAMESPACES.full_name, name)
    return shown(request, objects.namespace_object(name, found[name]), NAMESPACES)


@router.api_route("/api/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
@router.api_route("/apis/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
@router.api_route("/openapi/{path:path}", methods=["GET"])
async def others(path: str, request: Request) -> Response:
    """Refuse what does not exist."""
    await somebody(request)
    raise not_served(is_known=request.method != "GET")


async def _namespaces(state: State, caller: Caller) -> dict[str, list[str]]:
    """Return the namespaces of the queues that a caller may see, each with its queues."""
    async with state.stores.database.reading() as tx:
        queues = await job_objects.leaf_queues(tx)
    found: dict[str, list[str]] = {}
    for queue in queues:
        if caller.may_know(queue.path):
            found.setdefault(queue.namespace, []).append(queue.path)
    return dict(sorted(found.items()))
