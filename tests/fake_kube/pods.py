"""What the API server knows of pods in particular: defaults, what may change, and how long a deletion takes.

After pkg/registry/core/pod/strategy.go and ValidatePodUpdate of Kubernetes; validation is minimal on purpose.
"""

from dataclasses import replace
from datetime import timedelta

from tests.fake_kube import errors
from tests.fake_kube.objects import Object, copied, is_finished, node_of, now, rfc3339, set_condition
from tests.fake_kube.resources import PODS

_TOLERATED_SECONDS = 300
_MAY_CHANGE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def prepare(pod: Object) -> None:
    """Set defaults and the first status of a pod that is about to be created."""
    spec = pod["spec"]
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("securityContext", {})
    for container in [*spec["containers"], *(spec.get("initContainers") or [])]:
        resources = container.setdefault("resources", {})
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **(resources.get("requests") or {})}
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
    _tolerate_lost_nodes(spec)
    status = {"phase": "Pending", "qosClass": "Burstable"}
    if spec.get("schedulingGates"):
        message = "Scheduling is blocked due to non-empty scheduling gates"
        set_condition(status, "PodScheduled", "False", "SchedulingGated", message)
    pod["status"] = status


def check_new(pod: Object) -> None:
    """Check a new pod. Raises ApiError 422."""
    name, spec = pod["metadata"].get("name", ""), pod.get("spec") or {}
    if not spec.get("containers"):
        raise errors.invalid(PODS, name, "spec.containers", "Required value")
    for index, container in enumerate(spec["containers"]):
        if not container.get("name"):
            raise errors.invalid(PODS, name, f"spec.containers[{index}].name", "Required value")
    if spec.get("schedulingGates") and spec.get("nodeName"):
        why = "Forbidden: cannot be set until all schedulingGates have been cleared"
        raise errors.invalid(PODS, name, "spec.nodeName", why)


def check_change(new: Object, old: Object) -> None:
    """Check a change of a pod. Raises ApiError 422 if it changes a field of the spec that may not change."""
    name, after, before = new["metadata"]["name"], copied(new["spec"]), copied(old["spec"])
    _check_gates(name, after, before)
    _check_deadline(name, after, before)
    if all(one in (after.get("tolerations") or []) for one in before.get("tolerations") or []):
        after["tolerations"] = before.get("tolerations")
        before["tolerations"] = after["tolerations"]
    for kind in ("containers", "initContainers"):
        for one, other in zip(after.get(kind) or [], before.get(kind) or [], strict=False):
            one["image"] = other["image"] = other.get("image")
    if (before.get("terminationGracePeriodSeconds") or 0) < 0 and after.get("terminationGracePeriodSeconds") == 1:
        after["terminationGracePeriodSeconds"] = before["terminationGracePeriodSeconds"]
    if after != before:
        raise errors.invalid(PODS, name, "spec", f"Forbidden: {_MAY_CHANGE}")


def grace_of(pod: Object, requested: int | None) -> int:
    """Return the seconds from the first deletion to the end: none for a pod that runs nowhere."""
    if not node_of(pod) or is_finished(pod):
        return 0
    seconds: int | None = pod["spec"].get("terminationGracePeriodSeconds") if requested is None else requested
    return 1 if (seconds or 0) < 0 else seconds or 0


def bind(pod: Object, binding: Object) -> None:
    """Assign the pod to the binding's node, in place. Raises ApiError 409 or 422."""
    name = pod["metadata"]["name"]
    target = (binding.get("target") or {}).get("name")
    if not target:
        raise errors.invalid(PODS, name, "target.name", "Required value")
    if pod["metadata"].get("deletionTimestamp"):
        raise errors.conflict(_BINDING, name, f"pod {name} is being deleted, cannot be assigned to a host")
    if node := node_of(pod):
        raise errors.conflict(_BINDING, name, f'pod {name} is already assigned to node "{node}"')
    if pod["spec"].get("schedulingGates"):
        raise errors.conflict(_BINDING, name, f"pod {name} has non-empty .spec.schedulingGates")
    pod["spec"]["nodeName"] = target
    set_condition(pod["status"], "PodScheduled", "True")


def mark_deleting(value: Object, seconds: int) -> None:
    """Set the time of the deletion in place; the generation rises, so that controllers that compare it see the change."""
    metadata = value["metadata"]
    metadata["deletionTimestamp"] = rfc3339(now() + timedelta(seconds=seconds))
    metadata["deletionGracePeriodSeconds"] = seconds
    metadata["generation"] += 1


def _tolerate_lost_nodes(spec: Object) -> None:
    # The admission plugin DefaultTolerationSeconds.
    held = spec.setdefault("tolerations", [])
    for state in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{state}"
        if not any(one.get("key") in (key, None) and one.get("effect") in ("NoExecute", None) for one in held):
            held.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED_SECONDS}
            )


def _check_gates(name: str, after: Object, before: Object) -> None:
    held = [gate["name"] for gate in before.get("schedulingGates") or []]
    if any(gate["name"] not in held for gate in after.get("schedulingGates") or []):
        raise errors.invalid(
            PODS, name, "spec.schedulingGates", "Forbidden: only deletion is allowed, but found new ones"
        )
    if held:  # while a pod is gated, where it may go can be narrowed (KEP-3838)
        selector, narrower = before.get("nodeSelector") or {}, after.get("nodeSelector") or {}
        if all(narrower.get(key) == value for key, value in selector.items()):
            before["nodeSelector"] = after["nodeSelector"] = None
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        rules, narrowed = _node_rules(before), _node_rules(after)
        if rules.get(required) in (None, narrowed.get(required)):  # preferences may change
            for spec in (before, after):
                if set(spec.get("affinity") or {}) <= {"nodeAffinity"}:
                    spec.pop("affinity", None)
                else:
                    spec["affinity"]["nodeAffinity"] = None
    after["schedulingGates"] = before["schedulingGates"] = None


def _node_rules(spec: Object) -> Object:
    rules: Object = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return rules


def _check_deadline(name: str, after: Object, before: Object) -> None:
    held, wanted = before.get("activeDeadlineSeconds"), after.get("activeDeadlineSeconds")
    if held is not None and (wanted is None or wanted > held):
        why = f"Invalid value: {wanted}: must be less than or equal to previous value"
        raise errors.invalid(PODS, name, "spec.activeDeadlineSeconds", why)
    after["activeDeadlineSeconds"] = before["activeDeadlineSeconds"] = None


_BINDING = replace(PODS, plural="pods/binding")
