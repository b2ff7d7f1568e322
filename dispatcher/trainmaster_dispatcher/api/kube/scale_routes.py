"""The subresource ``scale`` of declared objects that have a number of something: ``kubectl scale`` reads and sets it.

Jobs have none: their size is fixed once they are submitted, and the dispatcher sizes those that are elastic.
"""

from typing import Any

from fastapi import Request, Response

from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.permissions import KIND_READ
from trainmaster_dispatcher.api.context import App
from trainmaster_dispatcher.api.kube.bodies import (
    Desired,
    PatchType,
    desired,
    fields_of,
    patched,
    read_object,
    read_patch,
)
from trainmaster_dispatcher.api.kube.calls import (
    PREFIX,
    KubernetesRouter,
    Wire,
    check_address,
    check_preconditions,
    json,
    not_served,
    person,
)
from trainmaster_dispatcher.api.kube.declared_routes import (
    Changing,
    DeclaredChange,
    change_object,
    declared_resource,
    existing_object,
    update_object,
)
from trainmaster_dispatcher.api.kube.resources import ApiResource
from trainmaster_dispatcher.api.kube.status import not_found
from trainmaster_dispatcher.domain.declared_fields import overlaid
from trainmaster_dispatcher.services.submission_parsing import mistaken
from trainmaster_dispatcher.store.database import Transaction

router = KubernetesRouter()

SCALE_VERSION, SCALE_KIND = "autoscaling/v1", "Scale"
_SCALE = f"{PREFIX}/{{plural}}/{{name}}/scale"
_PATCHES = (PatchType.JSON, PatchType.MERGE)
_OF_OBJECT = ("name", "uid", "resourceVersion", "creationTimestamp")


def scale_of(item: Wire, count: str) -> Wire:
    """Return the scale of an object, whose field ``count`` has its replicas."""
    replicas = {"replicas": item["spec"][count]}
    return {
        "apiVersion": SCALE_VERSION,
        "kind": SCALE_KIND,
        "metadata": {key: item["metadata"][key] for key in _OF_OBJECT},
        "spec": replicas,
        "status": replicas,
    }


@router.get(_SCALE)
async def show_scale(plural: str, name: str, request: Request, state: App) -> Response:
    resource, of = declared_resource(plural)
    caller = await person(request, KIND_READ[of.kind.kind])
    _check_scaled(resource)
    view = await state.declared_views.now(resource, of, caller, is_fresh=True)
    if name not in view.items:
        raise not_found(resource.full_name, name)
    return json(scale_of(view.items[name][0], resource.count))


@router.put(_SCALE)
async def replace_scale(name: str, call: Changing) -> Response:
    value = read_object(await call.request.body(), call.request.headers.get("content-type", ""))
    return await _scaled(call, name, PatchType.MERGE, value, "put")


@router.patch(_SCALE)
async def patch_scale(name: str, call: Changing) -> Response:
    kind, patch = read_patch(await call.request.body(), call.request.headers.get("content-type", ""), _PATCHES)
    return await _scaled(call, name, kind, patch, "patch")


async def _scaled(call: DeclaredChange, name: str, kind: PatchType, patch: Any, verb: str) -> Response:
    """Change the number of an object by a patch of its scale; answer with the scale. Raises ProblemError."""
    _check_scaled(call.resource)
    count = call.resource.count

    async def work(tx: Transaction, target: str, before: Wire | None) -> Wire:
        existing = existing_object(call.resource, name, before)
        wanted = desired(patched(kind, scale_of(existing, count), patch), SCALE_VERSION, SCALE_KIND)
        check_address(wanted, name)
        check_preconditions(call.resource, existing, wanted)
        fields = overlaid(fields_of(existing), {"spec": {count: _replicas(wanted)}})
        changed = wanted._replace(spec=fields["spec"])
        await update_object(tx, call.of, target, changed, call.author(verb))
        return fields

    return json(scale_of(await change_object(call, name, verb, work), count))


def _replicas(wanted: Desired) -> int:
    unknown = [
        Mistake(path=f"spec.{field}", message="is no field of a scale") for field in wanted.spec if field != "replicas"
    ]
    replicas = wanted.spec.get("replicas")
    if unknown or isinstance(replicas, bool) or not isinstance(replicas, int):
        raise mistaken(*unknown or (Mistake(path="spec.replicas", message="must be a whole number"),))
    return replicas


def _check_scaled(resource: ApiResource) -> None:
    """Raise ProblemError NOT_FOUND for a resource without a number to scale."""
    if not resource.count:
        raise not_served()
