"""Calls of the Kubernetes API: the caller, parameters of lists, answers as objects, lists and tables, and errors as Status objects."""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import orjson
from fastapi import APIRouter, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection
from starlette.routing import Match
from starlette.types import Message, Scope

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.permissions import Permission
from trainmaster.protocol.states import KeyRole
from trainmaster.protocol.validation_errors import mistake_of, own_errors, worded
from trainmaster_dispatcher.api.context import any_caller, note_refusal, readable, state_of, with_permission
from trainmaster_dispatcher.api.kube.bodies import Desired, read_options, yaml_or_json
from trainmaster_dispatcher.api.kube.objects import GROUP_VERSION, ListMetadata, list_of
from trainmaster_dispatcher.api.kube.resources import ApiResource
from trainmaster_dispatcher.api.kube.selectors import parse_fields, parse_labels, refused
from trainmaster_dispatcher.api.kube.status import status_of
from trainmaster_dispatcher.api.kube.tables import Included, table_of
from trainmaster_dispatcher.api.kube.unknown_fields import without_unknown
from trainmaster_dispatcher.domain import managed_fields
from trainmaster_dispatcher.services.submission_parsing import mistaken
from trainmaster_dispatcher.store.keys import Caller

PREFIX = f"/apis/{GROUP_VERSION}"
OBJECT_FIELDS = {"metadata.name": ("metadata", "name")}
MOST_ROWS = 1000
_DEFAULT_ROWS = 500
_PLACES = ("/api", "/openapi/", "/version")
"""The begins of all addresses of the Kubernetes API."""
_LENIENT = ("Warn", "Ignore")
"""Field validations with which unknown fields are left out. Both warn of them: nothing is left out in silence."""
Wire = dict[str, Any]


Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class KubernetesRouter(APIRouter):
    """A router that is passed over at once for other addresses: so it can come first, and neither API pays for the other's routes."""

    def __init__(self) -> None:
        super().__init__(include_in_schema=False, route_class=KubernetesRoute)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches(scope) if scope["path"].startswith(_PLACES) else (Match.NONE, {})


class KubernetesRoute(APIRoute):
    """A route whose errors are Status objects. Unknown fields are left out where the client wants a warning instead of an error."""

    def get_route_handler(self) -> Handler:
        handler = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            try:
                return await handler(request)
            except ProblemError as error:
                if request.query_params.get("fieldValidation") in _LENIENT:
                    return await _without_unknown_fields(request, error, handler)
                return refusal(request, error)
            except RequestValidationError as error:
                mistakes = tuple(mistake_of({**item, "loc": item["loc"][1:]}) for item in own_errors(error.errors()))
                return refusal(request, ProblemError(Code.INVALID_PARAMETER, worded(mistakes[0]), mistakes=mistakes))

        return guarded


async def _without_unknown_fields(request: Request, error: ProblemError, handler: Handler) -> Response:
    """Answer a call that failed with ``error`` without the unknown fields in its object, if there are any, and with warnings of them.

    Calls are tried again as long as other unknown fields are found, as one check may hide those of the next.
    """
    left_out: list[str] = []
    answer: Response | None = None
    try:
        item = yaml_or_json(await request.body())
        while answer is None:
            found = without_unknown(item, error.mistakes)
            if not found:
                return refusal(request, error)
            left_out += found
            try:
                answer = await handler(_with_body(request, orjson.dumps(item)))
            except ProblemError as next_error:
                error = next_error
    except ProblemError as wrong:
        return refusal(request, wrong)
    for path in left_out:
        add_warning(answer, f'unknown field "{path}"')
    return answer


def _with_body(request: Request, body: bytes) -> Request:
    """Return a call with another body in JSON."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, receive)


def add_warning(answer: Response, text: str) -> None:
    """Add a warning to an answer, which kubectl prints."""
    plain = " ".join(text.replace("\\", "").split()).encode("ascii", "replace").decode()
    quoted = plain[:500].replace('"', '\\"')
    answer.headers.append("Warning", f'299 - "{quoted}"')


class Listing:
    """The parameters of a call that lists objects or watches them. Raises ProblemError INVALID_PARAMETER."""

    def __init__(self, query: Mapping[str, str]) -> None:
        limit, seconds = (_whole(query, name) for name in ("limit", "timeoutSeconds"))
        included, version, initial = (
            query.get(name, "") for name in ("includeObject", "resourceVersion", "sendInitialEvents")
        )
        if included not in ("", *Included):
            raise refused("includeObject", f"must be one of {', '.join(Included)}")
        if version and not version.isdecimal():
            raise refused("resourceVersion", f"must be one that this API gave out, not {version[:100]!r}")
        if query.get("resourceVersionMatch") == "Exact" and version not in ("", "0"):
            raise ProblemError(Code.EXPIRED, f"no list of exactly the resource version {version} can be made any more")
        self.labels = query.get("labelSelector", "")
        self.fields = query.get("fieldSelector", "")
        self.limit = min(limit, MOST_ROWS) if limit > 0 else _DEFAULT_ROWS
        self.following = query.get("continue") or None
        self.included = Included(included or Included.METADATA)
        self.is_watch = is_true(query.get("watch", ""))
        self.version = int(version or 0)
        self.seconds = max(0, seconds)
        self.has_bookmarks = is_true(query.get("allowWatchBookmarks", ""))
        self.wants_initial = is_true(initial) if initial else None


def _whole(query: Mapping[str, str], name: str) -> int:
    """Return a parameter that is a whole number, 0 where it is not given. Raises ProblemError INVALID_PARAMETER."""
    text = query.get(name, "")
    if not text:
        return 0
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise refused(name, f"must be a whole number, not {text[:100]!r}")
    return int(text)


async def read_listing(request: Request) -> Listing:
    """Return the parameters of a call that lists objects. FastAPI calls no coroutine in a thread of its own, unlike a class."""
    return Listing(request.query_params)


ListedBy = Annotated[Listing, Depends(read_listing)]
"""The parameters of a call that lists objects or watches them."""


class ListToken(NamedTuple):
    """The ``continue`` of a list: the version of its first page, which all pages have, and the cursor of the next page."""

    version: int
    cursor: str | None

    def written(self) -> str | None:
        """Return the token as text, in which clients know no parts; None without a next page."""
        if self.cursor is None:
            return None
        return urlsafe_b64encode(f"{self.version}:{self.cursor}".encode()).decode().rstrip("=")

    @classmethod
    def read(cls, token: str | None) -> "ListToken":
        """Return what a token has; 0 and None without one. Raises ProblemError BAD_CURSOR."""
        if token is None:
            return cls(0, None)
        try:
            padded = token[:200].encode() + b"=" * (-len(token) % 4)
            version, _, cursor = urlsafe_b64decode(padded).decode().partition(":")
            return cls(int(version), cursor)
        except ValueError as error:
            raise ProblemError(Code.BAD_CURSOR, "the continue token is not one that this API gave out") from error


class Writing:
    """The parameters of a call that changes an object. Raises ProblemError INVALID_PARAMETER."""

    def __init__(self, request: Request) -> None:
        query = request.query_params
        dry_run, manager, validation, force = (
            query.get(name, "") for name in ("dryRun", "fieldManager", "fieldValidation", "force")
        )
        if dry_run not in ("", "All"):
            raise refused("dryRun", "must be All")
        if validation not in ("", "Ignore", "Warn", "Strict"):
            raise refused("fieldValidation", "must be one of Ignore, Warn, Strict")
        self.is_dry = dry_run == "All"
        self.manager = managed_fields.name_of(manager, request.headers.get("user-agent", ""))
        self.is_named = bool(manager)
        self.is_forced = is_true(force)


async def read_writing(request: Request) -> Writing:
    """Return the parameters of a call that changes an object."""
    return Writing(request)


WrittenBy = Annotated[Writing, Depends(read_writing)]
"""The parameters of a call that changes an object."""


class DryRunError(Exception):
    """The end of a dry run, with the object that it made."""

    def __init__(self, item: Wire) -> None:
        super().__init__()
        self.item = item


class Deletion:
    """The options of a deletion. ``grace``: the most seconds that members may take to end; None: as specified."""

    def __init__(self, options: Wire, seconds: Any, *, is_dry: bool, policy: str = "") -> None:
        self.grace = _grace(seconds)
        self.orphans = (options.get("propagationPolicy") or policy) == "Orphan" or options.get(
            "orphanDependents"
        ) is True
        """Whether what the object owns stays."""
        self.is_dry = is_dry or options.get("dryRun") == ["All"]
        expected = options.get("preconditions")
        self._expected: Wire = expected if isinstance(expected, dict) else {}

    @classmethod
    async def read(cls, request: Request, writing: Writing) -> "Deletion":
        """Return the options in the body and the parameters of a call. Raises ProblemError."""
        options = read_options(await request.body())
        seconds = options.get("gracePeriodSeconds", request.query_params.get("gracePeriodSeconds"))
        policy = request.query_params.get("propagationPolicy", "")
        return cls(options, seconds, is_dry=writing.is_dry, policy=policy)

    def check(self, resource: ApiResource, before: Wire) -> None:
        """Raise ProblemError CONFLICT unless the preconditions hold."""
        for field in ("uid", "resourceVersion"):
            if self._expected.get(field) not in (None, before["metadata"][field]):
                given = str(self._expected[field])[:100]
                raise conflict(resource, before["metadata"]["name"], f"the {field} in the precondition is {given!r}")


def _grace(seconds: Any) -> float | None:
    """Return the time that members may take to end, of the options of a deletion. Raises ProblemError INVALID_PARAMETER."""
    if seconds is None:
        return None
    try:
        found = int(seconds)
    except (TypeError, ValueError) as error:
        raise refused("gracePeriodSeconds", f"must be a number of seconds, not {str(seconds)[:100]!r}") from error
    return None if found < 0 else float(min(found, 600))


def now() -> str:
    """Return the time as managed fields have it."""
    return f"{datetime.now(UTC).isoformat()[:19]}Z"  # a tenth of the time of ``strftime``


def applied_by(
    writing: Writing, before: Wire, given: Wire, managers: managed_fields.Managers
) -> managed_fields.ManagedObject:
    """Return an object after a server-side apply of ``given``. Raises ProblemError CONFLICT with the fields that others manage."""
    done = managed_fields.applied(before, given, managers, writing.manager, now(), is_forced=writing.is_forced)
    if isinstance(done, list):
        mistakes = tuple(Mistake(path=".".join(one.path), message=f"is of {', '.join(one.managers)}") for one in done)
        raise ProblemError(Code.CONFLICT, managed_fields.conflict_message(done), mistakes=mistakes)
    return done


def is_true(text: str) -> bool:
    """Return whether a parameter of a call is true, as Go reads it."""
    return text in ("1", "t", "T", "true", "True", "TRUE")


def json(value: Any, status: int = 200) -> Response:
    return Response(readable(value), status_code=status, media_type="application/json")


_OF_METHODS = {"GET": Permission.JOBS_READ, "HEAD": Permission.JOBS_READ, "POST": Permission.JOBS_SUBMIT}
"""The permissions of calls about jobs; of other methods: that of changes."""


async def person(request: HTTPConnection, permission: Permission | None = None) -> Caller:
    """Return the caller with what it may use by a permission, without one that of jobs for the call's method; with ``kubectl --as``,
    the user on whose behalf the key acts.

    Raises ProblemError UNAUTHENTICATED, FORBIDDEN or INVALID_PARAMETER.
    """
    method = request.scope.get("method", "GET")
    return await _on_behalf(
        request, await with_permission(request, permission or _OF_METHODS.get(method, Permission.JOBS_CHANGE))
    )


async def somebody(request: HTTPConnection) -> Caller:
    """Return the caller with all its roles, as ``person`` does. Owners of clusters and agents have no use for this API."""
    caller = await any_caller(request)
    if caller.role in (KeyRole.OWNER, KeyRole.AGENT):
        raise ProblemError(
            Code.FORBIDDEN,
            f"this needs the permission {Permission.QUEUES_READ}; {caller.title} has the role {caller.roles}",
        )
    return await _on_behalf(request, caller)


async def _on_behalf(request: HTTPConnection, caller: Caller) -> Caller:
    user = request.headers.get("impersonate-user")
    for name in request.headers:
        if name.startswith("impersonate-") and (user is None or name != "impersonate-user"):
            header = name.title()
            raise refused(
                header, "means nothing here: the rights are those of the key; give Impersonate-User (--as) alone"
            )
    if user is None:
        return caller
    state = await state_of(request)
    on_behalf = state.stores.on_behalf
    if request.scope.get("method") == "GET":  # reading makes nobody known
        on_behalf.check(caller, user)
        return caller
    return await on_behalf.submitter(caller, user)


def not_served(*, is_known: bool = False) -> ProblemError:
    """Return the error for an address of nothing, or of something that cannot be changed, if ``is_known``: kubectl knows the words."""
    if is_known:
        return ProblemError(
            Code.METHOD_NOT_ALLOWED,
            "the server does not allow this method on the requested resource: what is here can be read, and is changed by REST or"
            " with the command trainmaster",
        )
    return ProblemError(Code.NOT_FOUND, "the server could not find the requested resource")


def refusal(request: HTTPConnection, error: ProblemError) -> Response:
    """Return an error as a Status."""
    note_refusal(request, error)
    answer = json(status_of(error), error.code.status)
    if error.retry_after is not None:
        answer.headers["Retry-After"] = str(error.pause_seconds)
    if error.code is Code.UNAUTHENTICATED:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def accepted(request: Request) -> Iterator[frozenset[str]]:
    """Yield the parameters of each kind of JSON that a client accepts, the preferred one first."""
    for one in request.headers.get("accept", "").split(","):
        kind, *parameters = (part.strip() for part in one.split(";"))
        if kind in ("application/json", "*/*"):
            yield frozenset(parameters)


def wants_table(request: Request) -> bool:
    return "as=Table" in next(accepted(request), frozenset[str]())


def selected(items: list[Wire], wanted: Listing, known: Mapping[str, tuple[str, ...]], resource: str) -> list[Wire]:
    """Return the objects that the selectors of a call select. Raises ProblemError INVALID_PARAMETER."""
    selects = selector(wanted, known, resource)
    return [item for item in items if selects(item)]


def selector(wanted: Listing, known: Mapping[str, tuple[str, ...]], resource: str) -> Callable[[Wire], bool]:
    """Return the function by which the selectors of a call select objects. Raises ProblemError INVALID_PARAMETER."""
    labels, fields = parse_labels(wanted.labels), parse_fields(wanted.fields, known, resource)

    def selects(item: Wire) -> bool:
        return all(one.holds(item["metadata"].get("labels", {})) for one in labels) and all(
            one.holds(_field_at(item, known[one.path])) for one in fields
        )

    return selects


def _field_at(item: Wire, path: tuple[str, ...]) -> str:
    found: Any = item
    for step in path:
        found = found.get(step, "") if isinstance(found, dict) else ""
    return str(found)


def listed(
    request: Request,
    wanted: Listing,
    items: list[Wire],
    resource: ApiResource,
    metadata: ListMetadata,
) -> Response:
    """Return a list of objects, as the client wants it: as a table, or as a list."""
    if wants_table(request):
        return json(table_of(resource.columns, items, wanted.included, metadata))
    return json(list_of(resource.kind, resource.group_version, items, metadata))


def shown(request: Request, item: Wire, resource: ApiResource, status: int = 200) -> Response:
    """Return one object, as the client wants it: as a table, or as it is."""
    if wants_table(request):
        item = table_of(resource.columns, [item], Included.METADATA, ListMetadata())
    return json(item, status)


def conflict(resource: ApiResource, name: str, why: str) -> ProblemError:
    message = f'Operation cannot be fulfilled on {resource.full_name} "{name}": {why}'
    return ProblemError(Code.CONFLICT, message)


def check_address(wanted: Desired, name: str, namespace: str = "") -> None:
    """Raise ProblemError INVALID_SPEC unless a body names the object of its address."""
    for field, given, expected in (("name", wanted.name, name), ("namespace", wanted.namespace, namespace)):
        if given not in ("", expected):
            raise mistaken(Mistake(path=f"metadata.{field}", message=f"is {given!r}, and {expected!r} in the address"))


def check_preconditions(resource: ApiResource, before: Wire, wanted: Desired) -> None:
    """Raise ProblemError CONFLICT where a body is about another version or another object than the one that exists."""
    metadata = before["metadata"]
    if wanted.version not in ("", metadata["resourceVersion"]):
        raise conflict(
            resource,
            metadata["name"],
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    if wanted.uid not in ("", metadata["uid"]):
        raise conflict(resource, metadata["name"], f"its uid is {metadata['uid']}, not {wanted.uid[:100]}")


def deleted(resource: ApiResource, before: Wire) -> Response:
    """Answer that an object is deleted."""
    details = {
        "name": before["metadata"]["name"],
        "group": resource.group,
        "kind": resource.plural,
        "uid": before["metadata"]["uid"],
    }
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
    return json(status)
