"""Questions of a caller about itself: ``kubectl auth can-i``, ``kubectl auth can-i --list`` and ``kubectl auth whoami``.

The answers follow from the roles of the caller and their queues, as do the rights themselves. Whether a job of somebody else may be
changed also depends on its queue (``jobActions``): the call itself says that.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fastapi import Request, Response

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.permissions import KIND_READ, KIND_WRITE, Permission
from trainmaster_dispatcher.api.context import App
from trainmaster_dispatcher.api.kube import discovery
from trainmaster_dispatcher.api.kube.bodies import Wire, read_object
from trainmaster_dispatcher.api.kube.calls import KubernetesRouter, json, somebody
from trainmaster_dispatcher.api.kube.resources import PODS, ApiResource
from trainmaster_dispatcher.store import job_objects
from trainmaster_dispatcher.store.job_objects import LeafQueue
from trainmaster_dispatcher.store.keys import Caller

router = KubernetesRouter()

_READ = ("get", "list", "watch")
_ANY = "*"
_SUBRESOURCES: Mapping[str, tuple[str, ...]] = {
    "log": ("get",),
    "exec": ("create", "get"),
    "attach": ("create", "get"),
    "portforward": ("create", "get"),
}
"""Verbs of the subresources of pods. Other resources have none."""
_OPEN = ("/api", "/api/*", "/apis", "/apis/*", "/healthz", "/metrics", "/openapi", "/openapi/*", "/readyz", "/version")
_CREATED = 201


class AccessQuestion(NamedTuple):
    """An action on a resource, as in a ``SelfSubjectAccessReview``. Empty texts: not given."""

    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> "AccessQuestion":
        """Return the attributes of a resource. Raises ProblemError INVALID_SPEC for what is no text."""
        found = [attributes.get(name, "") for name in ("verb", "group", "resource", "subresource", "namespace")]
        if not all(isinstance(one, str) for one in found):
            raise ProblemError(Code.INVALID_SPEC, "spec.resourceAttributes: has fields that are no text")
        return cls(*found)


def permission_for(resource: ApiResource, verb: str) -> Permission:
    """Return the permission that a verb of a resource needs."""
    is_read = verb in _READ
    if resource.declared is not None:
        kind = resource.declared.kind.kind
        return KIND_READ[kind] if is_read else KIND_WRITE[kind]
    if not resource.is_namespaced:
        return Permission.QUEUES_READ
    if is_read:
        return Permission.JOBS_READ
    return Permission.JOBS_SUBMIT if verb == "create" else Permission.JOBS_CHANGE


def verbs_of(caller: Caller, resource: ApiResource) -> tuple[str, ...]:
    """Return the verbs of a resource that a caller may use, in namespaces of its own if the resource has them."""
    return tuple(one for one in resource.verbs if caller.has(permission_for(resource, one)))


def _subresource_verbs(caller: Caller, name: str) -> tuple[str, ...]:
    permission = Permission.JOBS_READ if name == "log" else Permission.JOBS_CONNECT
    return _SUBRESOURCES.get(name, ()) if caller.has(permission) else ()


def judge(caller: Caller, question: AccessQuestion, queues: Sequence[LeafQueue]) -> str:
    """Return why a caller may not do something; empty where it may. ``queues``: those that jobs go to."""
    if question.resource == _ANY:
        return "" if caller.is_admin else "only admins may do everything"
    found = discovery.CORE_VERSIONS if not question.group else discovery.GROUPS.get(question.group, {})
    resource = next((one for every in found.values() for one in every if one.plural == question.resource), None)
    if resource is None:
        return f"this server has no resource {question.resource[:100]!r} in the group {question.group[:100]!r}"
    verbs = verbs_of(caller, resource)
    if question.subresource:
        verbs = _subresource_verbs(caller, question.subresource) if resource is PODS else ()
    if question.verb not in verbs and (question.verb != _ANY or verbs != resource.verbs):
        return f"{caller.title} with the role {caller.roles} has here: {', '.join(verbs) or 'nothing'}"
    if not resource.is_namespaced or caller.is_admin:
        return ""
    permission = permission_for(resource, question.verb)
    if question.subresource:
        permission = Permission.JOBS_READ if question.subresource == "log" else Permission.JOBS_CONNECT
    if not question.namespace:
        is_everywhere = caller.with_permission(permission).has_every_queue
        return "" if is_everywhere or question.verb in _READ else "name a namespace of a queue of the key"
    if any(one.namespace == question.namespace and caller.has(permission, one.path) for one in queues):
        return ""
    return f"no queue of the key has the namespace {question.namespace[:100]!r}"


def _rules(caller: Caller, paths: Sequence[str]) -> Iterator[Wire]:
    """Yield the rules of a caller, as RBAC has them. ``paths``: the queues of the namespace that the question is about."""
    groups = {"": discovery.CORE_VERSIONS, **discovery.GROUPS}

    def has(permission: Permission) -> bool:
        return any(caller.has(permission, path) for path in paths)

    for group, versions in groups.items():
        for one in (one for every in versions.values() for one in every):
            verbs = verbs_of(caller, one)
            if one.is_namespaced:
                verbs = tuple(verb for verb in verbs if has(permission_for(one, verb)))
            if verbs:
                yield {"verbs": list(verbs), "apiGroups": [group], "resources": [one.plural]}
    for name, verbs in _SUBRESOURCES.items():
        if has(Permission.JOBS_READ if name == "log" else Permission.JOBS_CONNECT):
            yield {"verbs": list(verbs), "apiGroups": [""], "resources": [f"{PODS.plural}/{name}"]}


async def _leaf_queues(state: App) -> Sequence[LeafQueue]:
    async with state.stores.database.reading() as tx:
        return await job_objects.leaf_queues(tx)


async def _review(request: Request, kind: str) -> tuple[Caller, Wire, Wire]:
    """Return the caller, the object and its specification. Raises ProblemError INVALID_SPEC for another kind."""
    caller = await somebody(request)
    item = read_object(await request.body(), request.headers.get("content-type", ""))
    spec = item.get("spec") or {}
    if item.get("kind", kind) != kind or not isinstance(spec, dict):
        raise ProblemError(Code.INVALID_SPEC, f"the body has to be an object of the kind {kind}")
    return caller, item, spec


@router.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
async def review_access(request: Request, state: App) -> Response:
    """Say whether the caller may do something."""
    caller, item, spec = await _review(request, "SelfSubjectAccessReview")
    paths, attributes = spec.get("nonResourceAttributes"), spec.get("resourceAttributes")
    if isinstance(paths, dict):
        path, verb = str(paths.get("path", "")), str(paths.get("verb", ""))
        is_open = any(path == one or (one.endswith("/*") and path.startswith(one[:-1])) for one in _OPEN)
        why = "" if is_open and verb == "get" else "this server has no such path, or it can only be read"
    elif isinstance(attributes, dict):
        why = judge(caller, AccessQuestion.of(attributes), await _leaf_queues(state))
    else:
        raise ProblemError(Code.INVALID_SPEC, "spec: has neither resourceAttributes nor nonResourceAttributes")
    return json(item | {"status": {"allowed": not why, **({"reason": why} if why else {})}}, _CREATED)


@router.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews")
async def review_rules(request: Request, state: App) -> Response:
    """List what the caller may do in a namespace."""
    caller, item, spec = await _review(request, "SelfSubjectRulesReview")
    paths = [one.path for one in await _leaf_queues(state) if one.namespace == spec.get("namespace")]
    status = {
        "resourceRules": list(_rules(caller, paths)),
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": list(_OPEN)}],
        "incomplete": False,
    }
    return json(item | {"status": status}, _CREATED)


@router.post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
async def review_self(request: Request) -> Response:
    """Say who the caller is."""
    caller, item, _ = await _review(request, "SelfSubjectReview")
    groups = [*caller.groups, f"trainmaster:{caller.role}", "system:authenticated"]
    return json(item | {"status": {"userInfo": {"username": caller.name, "groups": groups}}}, _CREATED)
