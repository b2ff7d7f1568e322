"""The specification that a cluster's agent gets of a job: the stored one with all changes by the run's orders. Pure.

Nothing else changes a specification on its way to an agent.
"""

from collections.abc import Collection, Mapping
from typing import Any

import orjson

from trainmaster.protocol.device_claims import claimed, device_resource
from trainmaster.protocol.parameters import substitute
from trainmaster.protocol.pod_requests import pod_requests
from trainmaster_dispatcher.domain.burst_binding import bound_spec
from trainmaster_dispatcher.domain.run_orders import NO_ORDERS, NarrowedDevice, RunOrders

_DATASETS = '"datasets"'
_SESSION = '"session"'


def may_name_datasets(spec: str) -> bool:
    """Return whether ``render`` has to know which datasets are declared. ``spec``: as it is stored, JSON text."""
    return _DATASETS in spec


def render(
    spec: str, orders: RunOrders, parameters: Mapping[str, Any] | None = None, declared: Collection[str] = ()
) -> bytes:
    """Return the specification as JSON text for the agent. ``spec``: as it is stored, JSON text too.

    ``parameters``: the values of a job that was submitted with a table of them. ``declared``: datasets of which the dispatcher knows
    where they are; an agent looks for all others that a job reads.
    """
    known = declared if may_name_datasets(spec) else ()
    is_plain = orders.narrowed is None and orders.burst is None and parameters is None and not known
    if is_plain and _SESSION not in spec:
        return spec.encode()  # read by nobody on the way, as it is for most jobs
    return orjson.dumps(apply_orders(orjson.loads(spec), orders, parameters, known))


def apply_orders(
    spec: dict[str, Any],
    orders: RunOrders = NO_ORDERS,
    parameters: Mapping[str, Any] | None = None,
    declared: Collection[str] = (),
) -> dict[str, Any]:
    """Return what ``render`` returns, for a specification in wire form, which is not changed."""
    if "session" in spec:  # terms that the dispatcher alone keeps, and agents of an earlier release do not know
        spec = {name: value for name, value in spec.items() if name != "session"}
    if declared and "placement" in spec:
        placement = spec["placement"]
        names = [name for name in placement.get("datasets", ()) if name not in declared]
        spec = spec | {"placement": placement | {"datasets": names}}
    if orders.burst is not None:
        binding = [(term.key, term.operator, term.values) for term in orders.burst.binding]
        spec = bound_spec(spec, orders.burst.limit_seconds, binding)
    if parameters is not None:
        spec = substitute(spec, dict(parameters))
    return spec if orders.narrowed is None else _narrowed(spec, orders.narrowed)


def _narrowed(spec: dict[str, Any], device: NarrowedDevice) -> dict[str, Any]:
    """Return the specification with members that take a device bound to the product that they are charged for."""
    return spec | {"roles": [_narrowed_role(role, device) for role in spec["roles"]]}


def _amounts(role: dict[str, Any], pod: dict[str, Any]) -> dict[str, int]:
    return pod_requests(pod) | claimed(pod, role.get("claimTemplates", {}))


def _narrowed_role(role: dict[str, Any], device: NarrowedDevice) -> dict[str, Any]:
    template, pod = role.get("template"), role.get("podTemplate")
    if template is not None:
        names = {
            *template.get("resources", {}),
            *(device_resource(one["class"]) for one in template.get("devices", ())),
        }
        if device.resource not in names:
            return role
        return role | {"template": template | {"nodeSelector": template.get("nodeSelector", {}) | device.selector}}
    body = (pod or {}).get("spec")
    if pod is None or body is None or device.resource not in _amounts(role, pod):
        return role
    body = body | {"nodeSelector": (body.get("nodeSelector") or {}) | device.selector}
    return role | {"podTemplate": pod | {"spec": body}}
