"""The Kubernetes API: discovery, schemas, and reading of all resources. Errors are Status objects.

It has an OpenAPI document of its own. Rights are those of the REST API, by the same services.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.states import KeyRole
from trainmaster.protocol.validation_errors import mistake_of, own_errors, worded
from trainmaster_dispatcher.api.context import App, State, any_caller, note_refusal, readable
from trainmaster_dispatcher.api.kube import discovery, objects, schemas
from trainmaster_dispatcher.api.kube.resources import JOBS, NAMESPACES, RESOURCES, ApiResource
from trainmaster_dispatcher.api.kube.selectors import Operator, Requirement, parse_fields, parse_labels, refused
from trainmaster_dispatcher.api.kube.status import not_found, status_of
from trainmaster_dispatcher.api.kube.tables import Included, TableColumn, table_of
from trainmaster_dispatcher.services import job_queries
from trainmaster_dispatcher.services.declared import DeclaredKind
from trainmaster_dispatcher.services.job_actions import BulkFilter
from trainmaster_dispatcher.store.keys import Caller

_GROUP = f"/apis/{objects.GROUP_VERSION}"
_MOST_ROWS = 1000
_MOST_WHOLE_JOBS = 100
"""The most jobs of a page with their specifications; the client asks for the next page by the token of the list."""
_DEFAULT_ROWS = 500
_OBJECT_FIELDS = {"metadata.name": ("metadata", "name")}
_JOB_FIELDS = _OBJECT_FIELDS | {
    "metadata.namespace": ("metadata", "namespace"),
    "status.state": ("status", "state"),
    "status.cluster": ("status", "cluster"),
}
Wire = dict[str, Any]


class KubernetesRoute(APIRoute):
    """A route whose errors are Status objects."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            try:
                return await handler(request)
            except ProblemError as error:
                return refusal(request, error)
            except RequestValidationError as error:
                mistakes = tuple(mistake_of({**item, "loc": item["loc"][1:]}) for item in own_errors(error.errors()))
                return refusal(request, ProblemError(Code.INVALID_PARAMETER, worded(mistakes[0]), mistakes=mistakes))

        return guarded


router = APIRouter(include_in_schema=False, route_class=KubernetesRoute)


class Listing:
    """The parameters of a call that lists objects. Raises ProblemError INVALID_PARAMETER."""

    def __init__(
        self,
        label_selector: Annotated[str, Query(alias="labelSelector")] = "",
        field_selector: Annotated[str, Query(alias="fieldSelector")] = "",
        limit: Annotated[int, Query()] = 0,
        following: Annotated[str, Query(alias="continue")] = "",
        included: Annotated[str, Query(alias="includeObject")] = "",
        watch: Annotated[str, Query()] = "",
    ) -> None:
        if watch in ("1", "true"):
            raise ProblemError(Code.METHOD_NOT_ALLOWED, "this API lists objects; it has no watch yet")
        if included not in ("", *Included):
            raise refused("includeObject", f"must be one of {', '.join(Included)}")
        self.labels = label_selector
        self.fields = field_selector
        self.limit = min(limit, _MOST_ROWS) if limit > 0 else _DEFAULT_ROWS
        self.following = following or None
        self.included = Included(included or Included.METADATA)


def json(value: Any, status: int = 200) -> Response:
    return Response(readable(value), status_code=status, media_type="application/json")


async def _person(request: Request) -> Caller:
    """Return the caller. Raises ProblemError UNAUTHENTICATED or FORBIDDEN."""
    caller = await any_caller(request)
    if caller.role not in (KeyRole.ADMIN, KeyRole.USER):
        raise ProblemError(
            Code.FORBIDDEN, f"this needs the role admin or user; the key {caller.name!r} has {caller.role}"
        )
    return caller


def refusal(request: Request, error: ProblemError) -> Response:
    """Return an error as a Status."""
    note_refusal(request, error)
    answer = json(status_of(error), error.code.status)
    if error.retry_after is not None:
        answer.headers["Retry-After"] = str(error.pause_seconds)
    if error.code is Code.UNAUTHENTICATED:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def _accepted(request: Request) -> Iterator[frozenset[str]]:
    """Yield the parameters of each kind of JSON that a client accepts, the preferred one first."""
    for one in request.headers.get("accept", "").split(","):
        kind, *parameters = (part.strip() for part in one.split(";"))
        if kind in ("application/json", "*/*"):
            yield frozenset(parameters)


def _wants_table(request: Request) -> bool:
    return "as=Table" in next(_accepted(request), frozenset[str]())


def _wants_aggregate(request: Request) -> bool:
    return any({"as=APIGroupDiscoveryList", "v=v2"} <= one for one in _accepted(request))


def _discovered(request: Request, plain: Wire, aggregate: Wire) -> Response:
    if _wants_aggregate(request):
        kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        return Response(readable(aggregate), media_type=kind)
    return json(plain)


@router.get("/api")
async def core_versions(request: Request) -> Response:
    return _discovered(request, discovery.core_versions(), discovery.aggregated("", [NAMESPACES]))


@router.get("/apis")
async def groups(request: Request) -> Response:
    return _discovered(request, discovery.groups(), discovery.aggregated(objects.GROUP, RESOURCES.values()))


@router.get("/api/v1")
async def core_resources() -> Response:
    return json(discovery.resources(objects.VERSION, [NAMESPACES]))


@router.get(f"/apis/{objects.GROUP}")
async def group() -> Response:
    return json(discovery.group())


@router.get(_GROUP)
async def resources() -> Response:
    return json(discovery.resources(objects.GROUP_VERSION, RESOURCES.values()))


@router.get("/version")
async def version() -> Response:
    return json(discovery.version())


@router.get("/openapi/v3")
async def documents() -> Response:
    return json(schemas.root())


@router.get(f"/openapi/v3{_GROUP}")
async def document() -> Response:
    return json(schemas.document())


@router.get("/api/v1/namespaces")
async def list_namespaces(request: Request, state: App, wanted: Annotated[Listing, Depends()]) -> Response:
    caller = await _person(request)
    found = await _namespaces(state, caller)
    items = [objects.namespace_object(name, queues) for name, queues in found.items()]
    return _list(request, wanted, _selected(items, wanted, _OBJECT_FIELDS, "namespaces"), NAMESPACES)


@router.get("/api/v1/namespaces/{name}")
async def show_namespace(name: str, request: Request, state: App) -> Response:
    found = await _namespaces(state, await _person(request))
    if name not in found:
        raise not_found(NAMESPACES.full_name, name)
    return _shown(request, objects.namespace_object(name, found[name]), NAMESPACES.columns)


@router.get(f"{_GROUP}/jobs")
async def list_all_jobs(request: Request, state: App, wanted: Annotated[Listing, Depends()]) -> Response:
    return await _list_jobs(request, state, wanted, None)


@router.get(f"{_GROUP}/namespaces/{{namespace}}/jobs")
async def list_jobs(namespace: str, request: Request, state: App, wanted: Annotated[Listing, Depends()]) -> Response:
    return await _list_jobs(request, state, wanted, namespace)


@router.get(f"{_GROUP}/namespaces/{{namespace}}/jobs/{{name}}")
async def show_job(namespace: str, name: str, request: Request, state: App) -> Response:
    caller = await _person(request)
    return _shown(request, await _job(state, caller, namespace, name), JOBS.columns)


@router.get(f"{_GROUP}/{{plural}}")
async def list_declared(plural: str, request: Request, state: App, wanted: Annotated[Listing, Depends()]) -> Response:
    resource, of = _declared(plural)
    items = _selected(
        await _every(resource, of, state, await _person(request)), wanted, _OBJECT_FIELDS, resource.plural
    )
    return _list(request, wanted, items, resource)


@router.get(f"{_GROUP}/{{plural}}/{{name}}")
async def show_declared(plural: str, name: str, request: Request, state: App) -> Response:
    resource, of = _declared(plural)
    for item in await _every(resource, of, state, await _person(request)):
        if item["metadata"]["name"] == name:
            return _shown(request, item, resource.columns)
    raise not_found(resource.full_name, name)


@router.api_route("/api/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
@router.api_route("/apis/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
@router.api_route("/openapi/{path:path}", methods=["GET"])
async def others(path: str, request: Request) -> Response:
    """Refuse what there is not: kubectl knows these words."""
    await _person(request)
    if request.method != "GET":
        raise ProblemError(
            Code.METHOD_NOT_ALLOWED,
            "the server does not allow this method on the requested resource: what is here can be read, and is changed by REST or"
            " with the command trainmaster",
        )
    raise ProblemError(Code.NOT_FOUND, "the server could not find the requested resource")


def _declared(plural: str) -> tuple[ApiResource, DeclaredKind[Any, Any]]:
    """Return a resource of declared objects with their kind. Raises ProblemError NOT_FOUND."""
    resource = RESOURCES.get(plural)
    if resource is None or resource.declared is None:
        raise ProblemError(Code.NOT_FOUND, "the server could not find the requested resource")
    return resource, resource.declared


async def _every(resource: ApiResource, of: DeclaredKind[Any, Any], state: State, caller: Caller) -> list[Wire]:
    """Return all objects of a declared kind that a caller may see, by name."""
    fields = frozenset(
        field.alias or name for name, field in of.kind.spec.model_fields.items() if name not in ("kind", "name")
    )
    found = [
        objects.declared_object(resource.kind, of.kind.name_in(one), one, fields)
        for one in await of.every(state.stores, state.leader, caller)
    ]
    return sorted(found, key=lambda one: str(one["metadata"]["name"]))


async def _namespaces(state: State, caller: Caller) -> dict[str, list[str]]:
    """Return the namespaces of the queues that a caller may see, each with its queues."""
    async with state.stores.database.reading() as tx:
        queues = await job_queries.leaf_queues(tx, caller)
    found: dict[str, list[str]] = {}
    for queue in queues:
        found.setdefault(objects.namespace_of(queue), []).append(queue)
    return dict(sorted(found.items()))


def _selected(items: list[Wire], wanted: Listing, known: Mapping[str, tuple[str, ...]], resource: str) -> list[Wire]:
    """Return the objects that the selectors of a call select. Raises ProblemError INVALID_PARAMETER."""
    labels, fields = parse_labels(wanted.labels), parse_fields(wanted.fields, known, resource)
    return [
        item
        for item in items
        if all(one.holds(item["metadata"].get("labels", {})) for one in labels)
        and all(one.holds(_field(item, known[one.path])) for one in fields)
    ]


def _field(item: Wire, path: tuple[str, ...]) -> str:
    found: Any = item
    for step in path:
        found = found.get(step, "") if isinstance(found, dict) else ""
    return str(found)


def _list(
    request: Request,
    wanted: Listing,
    items: list[Wire],
    resource: ApiResource,
    following: str | None = None,
) -> Response:
    if _wants_table(request):
        return json(table_of(resource.columns, items, wanted.included, following))
    return json(objects.list_of(resource.kind, resource.group_version, items, following))


def _shown(request: Request, item: Wire, columns: tuple[TableColumn, ...]) -> Response:
    return json(table_of(columns, [item], Included.METADATA, None) if _wants_table(request) else item)


async def _list_jobs(request: Request, state: State, wanted: Listing, namespace: str | None) -> Response:
    caller = await _person(request)
    values = _values(wanted)
    if name := values.get("metadata.name"):
        return await _one_job(request, state, caller, wanted, namespace, name)
    filtered = await _filter(state, caller, wanted, namespace, values)
    if filtered is None:
        return _list(request, wanted, [], JOBS)
    is_whole = not _wants_table(request) or wanted.included is Included.OBJECT
    async with state.stores.database.reading() as tx:
        if is_whole:
            limit = min(wanted.limit, _MOST_WHOLE_JOBS)
            page = await job_queries.list_whole_jobs(tx, caller, filtered, wanted.following, limit)
        else:
            page = await job_queries.list_jobs(tx, caller, filtered, wanted.following, wanted.limit)
    items = [objects.job_object(line, line.get("spec")) for line in page["jobs"]]
    return _list(request, wanted, items, JOBS, page["next"])


async def _one_job(
    request: Request, state: State, caller: Caller, wanted: Listing, namespace: str | None, name: str
) -> Response:
    """Return a list of the one job of this name, or of none: how kubectl asks for a job that it follows."""
    items = []
    try:
        items.append(await _job(state, caller, namespace, name))
    except ProblemError as error:
        if error.code is not Code.NOT_FOUND:
            raise
    items = _selected(items, wanted, _JOB_FIELDS, "jobs")
    return _list(request, wanted, items, JOBS)


def _values(wanted: Listing) -> dict[str, str]:
    """Return the values by which a field selector selects jobs. Raises ProblemError INVALID_PARAMETER."""
    values: dict[str, str] = {}
    for field in parse_fields(wanted.fields, _JOB_FIELDS, "jobs"):
        if field.is_negated:
            message = f"jobs are selected by field=value here, not by {field.path}!={field.value}"
            raise refused("fieldSelector", message)
        values[field.path] = field.value
    return values


async def _filter(
    state: State, caller: Caller, wanted: Listing, namespace: str | None, values: Mapping[str, str]
) -> BulkFilter | None:
    """Return the filter of a call that lists jobs; None if no job can match. Raises ProblemError."""
    labels = {label.key: _only_value(label) for label in parse_labels(wanted.labels)}
    place = values.get("metadata.namespace", namespace)
    if namespace is not None and place != namespace:
        return None
    queue = None
    if place is not None:
        queues = (await _namespaces(state, caller)).get(place, [])
        if not queues:
            return None
        queue = _only_queue(place, queues)
    return BulkFilter(
        queue=queue,
        states=tuple(filter(None, [values.get("status.state")])),
        cluster=values.get("status.cluster"),
        labels=labels,
    )


def _only_value(label: Requirement) -> str:
    if label.operator is not Operator.IN or len(label.values) != 1:
        raise refused("labelSelector", f"jobs are selected by key=value here, not by {label.operator} of {label.key}")
    return next(iter(label.values))


def _only_queue(namespace: str, queues: list[str]) -> str:
    if len(queues) > 1:
        raise ProblemError(
            Code.CONFLICT,
            f"the namespace {namespace!r} is that of {len(queues)} queues: {', '.join(queues)}; rename one of them",
        )
    return queues[0]


async def _job(state: State, caller: Caller, namespace: str | None, name: str) -> Wire:
    """Return a job. Raises ProblemError NOT_FOUND, also for one of another namespace."""
    async with state.stores.database.reading() as tx:
        try:
            found = await job_queries.show_job(tx, caller, name)
        except ProblemError as error:
            if error.code in (Code.NOT_FOUND, Code.BAD_ID):
                raise not_found(JOBS.full_name, name) from error
            raise
    if namespace not in (None, objects.namespace_of(found["queue"])):
        raise not_found(JOBS.full_name, name)
    return objects.job_object(found, found.get("spec"))
