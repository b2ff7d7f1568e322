"""Specifications of jobs from manifests of other APIs, and back: the object that is created on a cluster. Pure.

A specification has the manifest without its pod templates, which are those of its roles: what a queue's policy, the defaults of an
installation or a change of a job do to a role's template is then in the object, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from trainmaster.protocol.admission import check_metadata
from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.jobs import LONGEST_STOP_GRACE, JobSpec, WorkloadObject
from trainmaster.protocol.json_limits import JsonNode, is_too_large, path_step, shown
from trainmaster.workload_kinds.kind import (
    MANAGER,
    PodSet,
    Step,
    Wire,
    WorkloadKind,
    at,
    capability_of,
    node_at,
    put_template,
)
from trainmaster.workload_kinds.registry import KINDS, kind_of

QUEUE_KEY, PRIORITY_CLASS_KEY = "trainmaster.dev/queue", "trainmaster.dev/priority-class"
"""Labels or annotations of a manifest. A label cannot have the ``/`` between the parts of a path: it has ``.`` instead."""
_KUEUE_QUEUE, _KUEUE_PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
"""Labels of Kueue, which are understood as well."""
ORIGIN_CLUSTER, ORIGIN_UID = "trainmaster.dev/origin-cluster", "trainmaster.dev/origin-uid"
"""Labels of what was submitted from inside a cluster: the cluster, and the uid of its object there."""
ORIGIN_OBJECT, ORIGIN_SUSPENDED = "trainmaster.dev/origin", "trainmaster.dev/origin-suspended"
"""Annotations of the same: namespace and name of the object, and whether it wished to be suspended when that was last passed on."""
SCHEDULE_LABEL = "trainmaster.dev/schedule"
"""The label of jobs that a schedule has made: its name."""
_OURS = frozenset(
    (
        *(QUEUE_KEY, PRIORITY_CLASS_KEY, _KUEUE_QUEUE, _KUEUE_PRIORITY),
        *(ORIGIN_CLUSTER, ORIGIN_UID, ORIGIN_OBJECT, ORIGIN_SUSPENDED, SCHEDULE_LABEL),
    )
)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_NOT_OF_PODS = frozenset((*_OURS, _LAST_APPLIED))
_FROM_SERVER = frozenset(
    (
        *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "managedFields"),
        *("resourceVersion", "selfLink", "uid"),
    )
)
"""Metadata that an API server sets: it says nothing about what is wanted."""
_USED = frozenset(("annotations", "generateName", "labels", "name", "namespace"))
_DEFAULT_GRACE = 30
"""Seconds that Kubernetes gives a pod without a grace of its own."""
_LONGEST_JOB_NAME = 24
_DEFAULT_SCHEDULER = "default-scheduler"
_TOO_LARGE = "has too many values for an object of Kubernetes"


class Translation(NamedTuple):
    """The specification of a job, and by the begins of its paths those that the same values have in the manifest."""

    spec: Wire
    paths: Mapping[str, str]


class ManifestError(ValueError):
    """A manifest has mistakes."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__(mistakes[0].message)
        self.mistakes = tuple(mistakes)


def is_manifest(value: object) -> bool:
    """Return whether a document is meant for another API than the dispatcher's own."""
    return isinstance(value, Mapping) and isinstance(value.get("apiVersion"), str)


def translated(value: Mapping[str, Any]) -> Translation:
    """Return the specification that a manifest asks for. Raises ManifestError with each mistake."""
    kind = kind_of(value.get("apiVersion"), value.get("kind"))
    if kind is None:
        raise ManifestError([_not_taken(value)])
    if is_too_large(value):
        raise ManifestError([Mistake(path="", message=_TOO_LARGE)])
    try:
        return _translated(kind, kind.completed(without_nulls(value)))
    except RecursionError as error:
        raise ManifestError([Mistake(path="", message="mappings and lists are nested too deep")]) from error


def _translated(kind: WorkloadKind, manifest: Wire) -> Translation:
    mistakes: list[Mistake] = []
    root = JsonNode(manifest, "", mistakes)
    root.only(frozenset(("apiVersion", "kind", "metadata", "spec", "status")))
    metadata = root.get("metadata")
    _check_metadata(metadata)
    sets = kind.pod_sets(root)
    kind.check(root)
    _check_manager(kind, root)
    for one in sets:
        template = node_at(root, one.path)
        if not isinstance(template.value, dict):
            template.refuse("must be a pod template")
    if not sets and not mistakes:
        root.get("spec").refuse(f"has no pods: a {kind.kind} needs at least one")
    if mistakes:
        raise ManifestError(mistakes)
    return Translation(_specification(kind, manifest, sets, root), _paths(kind, sets))


def _specification(kind: WorkloadKind, manifest: Wire, sets: Sequence[PodSet], root: JsonNode) -> Wire:
    metadata: Wire = manifest.get("metadata") or {}
    labels, annotations = (metadata.get(field) or {} for field in ("labels", "annotations"))
    templates = [_template(_template_at(manifest, one)) for one in sets]
    queue = queue_of(labels, annotations)
    grace = max((_grace(one) for one in templates), default=_DEFAULT_GRACE)
    limit = kind.time_limit(root)
    spec: Wire = {
        "kind": "Job",
        "name": job_name(str(metadata.get("name") or metadata.get("generateName") or kind.kind)),
        "labels": dict(labels),
        "roles": [
            {"name": one.role, "replicas": one.replicas, "podTemplate": template}
            for one, template in zip(sets, templates, strict=True)
        ],
        "stopGrace": f"{grace}s",
        "workload": {"apiVersion": kind.api_version, "kind": kind.kind, "manifest": _rest(kind, manifest, sets)},
    }
    optional = {
        "queue": metadata.get("namespace") if queue is None else queue.value,
        "priorityClass": priority_class_of(labels, annotations),
        "timeLimit": None if limit is None else f"{limit}s",
        "suspend": bool(at(manifest, kind.suspend_path)) if kind.suspend_path else None,
    }
    return spec | {field: value for field, value in optional.items() if value}


class NamedQueue(NamedTuple):
    """The queue that a manifest names, and the path of the label or annotation that names it.

    ``is_local``: it may be the last part of the path of a queue of the manifest's namespace, as Kueue's local queues have names.
    """

    value: str
    path: str
    is_local: bool = False


def queue_of(labels: Mapping[str, str], annotations: Mapping[str, str]) -> NamedQueue | None:
    """Return the queue that a manifest's labels or annotations name; None if they name none."""
    if annotations.get(QUEUE_KEY):
        return NamedQueue(annotations[QUEUE_KEY], f'metadata.annotations["{QUEUE_KEY}"]')
    for key in (QUEUE_KEY, _KUEUE_QUEUE):
        if labels.get(key):
            is_local = key == _KUEUE_QUEUE
            return NamedQueue(labels[key].replace(".", "/"), f'metadata.labels["{key}"]', is_local)
    return None


def priority_class_of(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str | None:
    """Return the priority class that a manifest's labels or annotations name; None if they name none."""
    named = (annotations.get(PRIORITY_CLASS_KEY), labels.get(PRIORITY_CLASS_KEY), labels.get(_KUEUE_PRIORITY))
    return next(filter(None, named), None)


def job_name(name: str) -> str:
    """Return the name of the job of an object: as much of the object's name as a job's name may have."""
    kept = "".join(letter if letter.isalnum() else "-" for letter in name.lower() if letter.isascii())
    return kept[:_LONGEST_JOB_NAME].strip("-") or "job"


def _rest(kind: WorkloadKind, manifest: Wire, sets: Sequence[PodSet]) -> Wire:
    """Return what is kept of a manifest beside its pod templates."""
    kept = kind.runnable(manifest)
    for one in sets:
        put_template(kept, one, {})
    metadata: Wire = kept.get("metadata") or {}
    own = {
        "labels": {key: value for key, value in (metadata.get("labels") or {}).items() if key not in _OURS},
        "annotations": {
            key: value
            for key, value in (metadata.get("annotations") or {}).items()
            if key not in _OURS and key != _LAST_APPLIED
        },
    }
    return {"metadata": {field: value for field, value in own.items() if value}, "spec": kept.get("spec") or {}}


def check_workload(spec: JobSpec) -> tuple[Mistake, ...]:
    """Return a mistake for each role of a specification that is not the one that its manifest asks for; none without a manifest.

    A specification may be written by hand: a job must not be counted by other numbers of pods than its object creates.
    """
    workload = spec.workload
    if workload is None:
        return ()
    kind = kind_of(workload.api_version, workload.kind)
    if kind is None:
        return (Mistake(path="workload.kind", message=_not_taken(workload.to_wire()).message),)
    if is_too_large(workload.manifest):
        return (Mistake(path="workload.manifest", message=_TOO_LARGE),)
    mistakes: list[Mistake] = []
    root = JsonNode(workload.manifest, "workload.manifest", mistakes)
    root.only(frozenset(("metadata", "spec")))
    check_metadata(root.get("metadata"))
    sets = kind.pod_sets(root)
    kind.check(root)
    if mistakes:
        return tuple(mistakes)
    wanted = [(one.role, one.replicas) for one in sets]
    if [(role.name, role.replicas) for role in spec.roles] != wanted:
        shown_roles = ", ".join(f"{name} ({many})" for name, many in wanted)
        message = f"must be those of the {kind.kind}, with their numbers of members: {shown_roles}"
        return (Mistake(path="roles", message=message),)
    for index, role in enumerate(spec.roles):
        template = JsonNode(role.pod_template, f"roles[{index}].podTemplate", mistakes)
        kind.check_template(role.name, template, root)
    return (*_not_of_workloads(spec, kind), *mistakes)


def _not_of_workloads(spec: JobSpec, kind: WorkloadKind) -> Iterator[Mistake]:
    """Yield a mistake for each field of a specification that means nothing where another controller makes the pods."""
    message = f"cannot be honoured for a {kind.kind}: leave it out"
    for index, role in enumerate(spec.roles):
        if role.pod_template is None:
            yield Mistake(path=f"roles[{index}].template", message="must be a podTemplate, as of every workload")
        for field in ("min_replicas", "max_per_node", "member_failure"):
            if getattr(role, field) is not None:
                yield Mistake(path=f"roles[{index}].{_camel(field)}", message=message)
    for field in ("checkpoint", "elastic", "min_member", "success"):
        if getattr(spec, field) is not None:
            yield Mistake(path=_camel(field), message=message)


def capabilities_of(spec: JobSpec) -> tuple[str, ...]:
    """Return the capabilities that a cluster needs for the object as which a job runs; none without one."""
    workload = spec.workload
    if workload is None:
        return ()
    kind = kind_of(workload.api_version, workload.kind)
    if kind is None:
        return (capability_of(workload.api_version, workload.kind),)
    return kind.demands(workload.manifest, {role.name: role.pod_template or {} for role in spec.roles})


def late_roles(workload: WorkloadObject) -> frozenset[str]:
    """Return the roles whose pods are created only once the others run."""
    kind = kind_of(workload.api_version, workload.kind)
    return frozenset(one.role for one in _sets_of(kind, workload) if one.is_late)


def assembled(workload: WorkloadObject, templates: Mapping[str, Wire]) -> Wire:
    """Return the object to create on a cluster; ``templates``: pod templates by role. Raises KeyError for a role without one."""
    kind = kind_of(workload.api_version, workload.kind)
    made = deepcopy(workload.manifest)
    for one in _sets_of(kind, workload):
        put_template(made, one, templates[one.role])
    return {
        "apiVersion": workload.api_version,
        "kind": workload.kind,
        **(made if kind is None else kind.finished(made)),
    }


def _sets_of(kind: WorkloadKind | None, workload: WorkloadObject) -> list[PodSet]:
    return [] if kind is None else kind.pod_sets(JsonNode(workload.manifest, "", []))


def _not_taken(value: Mapping[str, Any]) -> Mistake:
    given = f"{shown(value.get('apiVersion'))} {shown(value.get('kind'))}"
    same = [one.api_version for one in KINDS if one.kind == value.get("kind")]
    if same:
        return Mistake(path="apiVersion", message=f"of {shown(value.get('kind'))} must be {' or '.join(same)}")
    known = ", ".join(one.name for one in KINDS)
    return Mistake(
        path="kind", message=f"{given} is not taken as a job; there are: {known}, and Job without apiVersion"
    )


def _check_metadata(metadata: JsonNode) -> None:
    for name, node in metadata.fields():
        if name in ("labels", "annotations"):
            for _, value in node.entries():
                value.must_be_text()
        elif name in _USED:
            node.must_be_text()
        elif name not in _FROM_SERVER:
            node.refuse("cannot be honoured: leave it out")


def _check_manager(kind: WorkloadKind, root: JsonNode) -> None:
    if not kind.manager_path:
        return
    manager = node_at(root, kind.manager_path)
    if manager.is_set and manager.value != MANAGER:
        manager.refuse(f"names another controller, {shown(manager.value)}; leave it out, or give {MANAGER}")


def _template_at(manifest: Wire, pods: PodSet) -> Wire:
    """Return the pod template of a set of pods, as it is written."""
    found: Wire = at(manifest, pods.path)
    if not pods.is_pod:
        return found
    metadata = found.get("metadata") or {}
    kept = {
        field: own
        for field in ("labels", "annotations")
        if (own := {key: value for key, value in (metadata.get(field) or {}).items() if key not in _NOT_OF_PODS})
    }
    return {"metadata": kept, "spec": found.get("spec")}


def _template(template: Wire) -> Wire:
    """Return a pod template as a role may have it: as in Kubernetes, its name counts for nothing."""
    made = {**template, "spec": secured(template.get("spec"))} if "spec" in template else dict(template)
    metadata = made.pop("metadata", None)
    if isinstance(metadata, Mapping):
        metadata = {field: value for field, value in metadata.items() if field not in ("name", *_FROM_SERVER)}
    return {"metadata": metadata, **made} if metadata else made


def secured(spec: Any) -> Any:
    """Return a pod's specification with what the Pod Security Standard *restricted* demands, wherever it says nothing about it.

    Manifests are rarely written with it in mind, and templates of roles have it, too. What a manifest sets is kept, for the policy
    of its queue to allow or refuse; but not the scheduler that an API server writes where none is named.
    """
    if not isinstance(spec, Mapping):
        return spec
    pod = spec.get("securityContext")
    made = dict(spec)
    if spec.get("schedulerName") == _DEFAULT_SCHEDULER:
        del made["schedulerName"]
    if pod is None or isinstance(pod, Mapping):
        pod = dict(pod or {})
        pod.setdefault("seccompProfile", {"type": "RuntimeDefault"})
        if "runAsUser" not in pod:
            pod.setdefault("runAsNonRoot", True)
        made["securityContext"] = pod
    for field in ("containers", "initContainers"):
        if isinstance(spec.get(field), list):
            made[field] = [_secured_container(one) for one in spec[field]]
    return made


def _secured_container(container: Any) -> Any:
    context = container.get("securityContext") if isinstance(container, Mapping) else ()
    if context is not None and not isinstance(context, Mapping):
        return container
    own = dict(context or {})
    if not own.get("privileged"):
        own.setdefault("allowPrivilegeEscalation", False)
    capabilities = own.get("capabilities", {})
    if isinstance(capabilities, Mapping):
        own["capabilities"] = {"drop": ["ALL"], **capabilities}
    return {**container, "securityContext": own}


def _grace(template: Wire) -> int:
    seconds = at(template, ("spec", "terminationGracePeriodSeconds"))
    given = seconds if isinstance(seconds, int) and not isinstance(seconds, bool) else _DEFAULT_GRACE
    return max(1, min(int(LONGEST_STOP_GRACE), given))


def _paths(kind: WorkloadKind | None, sets: Sequence[PodSet]) -> Mapping[str, str]:
    templates = {f"roles[{index}].podTemplate": _written(one.path) for index, one in enumerate(sets)}
    elsewhere = {
        f"roles[{index}].podTemplate.{path}": written
        for index, one in enumerate(sets)
        for path, written in (() if kind is None else kind.written_paths(one.role).items())
    }
    return {
        **templates,
        **elsewhere,
        "name": "metadata.name",
        "labels": "metadata.labels",
        "queue": f'metadata.annotations["{QUEUE_KEY}"]',
        "priorityClass": f'metadata.annotations["{PRIORITY_CLASS_KEY}"]',
        "timeLimit": "spec.activeDeadlineSeconds",
        "stopGrace": "spec",
        "roles": "spec",
        "workload.manifest": "",
        "workload": "spec",
    }


def paths_of(workload: WorkloadObject) -> Mapping[str, str]:
    """Return, by the begins of paths in a specification with a workload, those that the same values have in its manifest."""
    kind = kind_of(workload.api_version, workload.kind)
    return _paths(kind, _sets_of(kind, workload))


def path_in_manifest(path: str, paths: Mapping[str, str]) -> str:
    """Return the path in a manifest of a path in its specification."""
    for begin in sorted(paths, key=len, reverse=True):
        if path == begin or path.startswith((f"{begin}.", f"{begin}[")):
            rest = path[len(begin) :] if begin.startswith(("roles[", "labels", "workload.")) else ""
            return f"{paths[begin]}{rest}".removeprefix(".")
    return path


def _written(path: Sequence[Step]) -> str:
    return "".join(path_step(step, is_first=not index) for index, step in enumerate(path))


def _camel(field: str) -> str:
    first, *others = field.split("_")
    return first + "".join(one.capitalize() for one in others)


def without_nulls(value: Any) -> Any:
    """Return a copy without fields that are null: as in Kubernetes they are the same as fields that are not set."""
    if isinstance(value, Mapping):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value
