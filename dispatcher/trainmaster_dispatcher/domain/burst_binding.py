"""The specification that a cluster gets for a job that goes there by a burst policy. Pure."""

from collections.abc import Sequence
from typing import Any


def bound_spec(spec: dict[str, Any], limit: float, binding: Sequence[Sequence[Any]] = ()) -> dict[str, Any]:
    """Return the specification for the cluster: with a time limit, and its members bound to the nodes that the policy allows."""
    bound = dict(spec)
    bound.setdefault("timeLimit", f"{limit:.3f}s")
    if binding:
        bound["roles"] = [_bound_role(role, binding) for role in spec["roles"]]
    return bound


def _bound_role(role: dict[str, Any], binding: Sequence[Sequence[Any]]) -> dict[str, Any]:
    terms = [{"key": key, "operator": operator, "values": list(values)} for key, operator, values in binding]
    template, pod = role.get("template"), role.get("podTemplate")
    if template is not None:
        return {**role, "template": {**template, "nodeAffinity": [*template.get("nodeAffinity", ()), *terms]}}
    if pod is None:
        return role
    body = dict(pod.get("spec") or {})
    affinity = dict(body.get("affinity") or {})
    node = dict(affinity.get("nodeAffinity") or {})
    required = dict(node.get("requiredDuringSchedulingIgnoredDuringExecution") or {})
    # One of several terms has to hold, so each of them gets all of ours.
    choices = [one for one in required.get("nodeSelectorTerms") or () if one] or [{}]
    required["nodeSelectorTerms"] = [
        {**one, "matchExpressions": [*(one.get("matchExpressions") or ()), *terms]} for one in choices
    ]
    node["requiredDuringSchedulingIgnoredDuringExecution"] = required
    body["affinity"] = {**affinity, "nodeAffinity": node}
    return {**role, "podTemplate": {**pod, "spec": body}}
