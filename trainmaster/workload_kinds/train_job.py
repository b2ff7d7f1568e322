"""Kubeflow Trainer's TrainJob: https://github.com/kubeflow/trainer/tree/v2.3.0/docs

Its pods are those of a runtime, which the cluster has. A TrainJob patches their templates (``runtimePatches``), and sets what its
own fields are for. A role's pod template here has both: what a queue's policy, an option of ``submit`` or a cluster's placement
does to the template is then done to the pods, as far as the API of TrainJobs has a field for it.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from trainmaster.protocol.admission import check_metadata
from trainmaster.protocol.json_limits import JsonNode, shown
from trainmaster.workload_kinds.jobset import refuse_exclusive
from trainmaster.workload_kinds.kind import PodSet, Step, Wire, WorkloadKind, at, counts, node_at, number, refuse_set
from trainmaster.workload_kinds.training_runtimes import NODE, TrainingRuntime, requested

_PATCHER = "trainmaster.dev/agent"
"""Owner of the patch for jobs that no patch of the manifest has a pod template for."""
_JOBS: tuple[Step, ...] = ("trainingRuntimeSpec", "template", "spec", "replicatedJobs")
_POD: tuple[Step, ...] = ("template", "spec", "template")
_TOKEN_PATH, _NO_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount", "trainmaster-no-token"
_OF_POD = frozenset(
    (
        *("affinity", "containers", "imagePullSecrets", "initContainers", "nodeSelector", "schedulingGates"),
        *("securityContext", "serviceAccountName", "terminationGracePeriodSeconds", "tolerations", "volumes"),
    )
)
"""Fields of a pod that a patch may set."""
_OF_CONTAINER = frozenset(("env", "name", "securityContext", "volumeMounts"))
"""Fields of a container that a patch may set; ``env`` not of the one that the TrainJob's own fields are for."""
_LEFT_TO_RUNTIME = ("enableServiceLinks", "priorityClassName")
"""Fields that an agent sets in every pod, and that are the runtime's own here."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_NOT_PATCHED = "cannot be honoured: a TrainJob cannot set it in the pods of its runtime"
_TWICE = "cannot be honoured beside the pod template of the role {}, which sets it, or has to"
_ONE_SOURCE = "cannot be honoured: an initializer takes its environment from one Secret, as secretRef says"
_ON_CLUSTER = "must be set: the runtime's own number is on the cluster, and not known at submission"
_IN_NAMESPACE = (
    "cannot be honoured: it is in a namespace of one cluster, and the job may run on any; name a ClusterTrainingRuntime"
)
_GROUP = "trainer.kubeflow.org"
RUNTIMES = f"/apis/{_GROUP}/v1alpha1/clustertrainingruntimes"
"""Path of the runtimes of a cluster in its API."""


class _Part(NamedTuple):
    """A step of a TrainJob: the role and the job that it is, where the TrainJob sets it, and the fields of its container there."""

    role: str
    job: str
    owner: tuple[str, ...]
    fields: Mapping[str, str]
    """Names of fields of the TrainJob by those of the container that has the name of the job."""


_INITIALIZERS = tuple(
    _Part(name, f"{name}-initializer", ("initializer", name), {"env": "env", "envFrom": "secretRef"})
    for name in ("dataset", "model")
)
_TRAINER = _Part(
    "node",
    NODE,
    ("trainer",),
    {"args": "args", "command": "command", "env": "env", "image": "image", "resources": "resourcesPerNode"},
)
_PARTS: Mapping[str, _Part] = {part.role: part for part in (*_INITIALIZERS, _TRAINER)}


class TrainJob(WorkloadKind):
    """A TrainJob. Its nodes are a role, which waits for those of the initializers that it has."""

    api_version, kind, plural = f"{_GROUP}/v1alpha1", "TrainJob", "trainjobs"
    needs = (
        "Kubeflow Trainer of version 2.2 or newer, and gangs that are placed by native PodGroups or scheduling gates"
    )
    end_conditions = "Complete", "Failed"
    name_labels = ("jobset.sigs.k8s.io/jobset-name",)
    may_name_dispatcher = False
    time_to_live_path = ()

    def pod_sets(self, manifest: JsonNode) -> list[PodSet]:
        spec = manifest.get("spec")
        parts = _parts(spec.value)
        places = _places(spec.value, [part.job for part in parts])
        nodes = spec.get("trainer").get("numNodes")
        if not nodes.is_set:
            nodes.refuse(_ON_CLUSTER)
        many = number(nodes, 1)
        initializers = [PodSet(part.role, places[part.job], 1) for part in parts[:-1]]
        return [*initializers, PodSet(_TRAINER.role, places[_TRAINER.job], many, is_late=bool(initializers))]

    def check(self, manifest: JsonNode) -> None:
        spec = manifest.get("spec")
        _check_runtime(spec.get("runtimeRef"))
        refuse_set(manifest, ("spec", "podTemplateOverrides"), "is of older releases of Trainer: give runtimePatches")
        for part in _parts(spec.value):
            owner = node_at(spec, part.owner)
            for theirs in part.fields.values():
                if owner.get(theirs).is_set:
                    owner.get(theirs).refuse(_TWICE.format(part.role))
        known = [part.job for part in _parts(spec.value)]
        patched = set[str]()
        for patch in spec.get("runtimePatches").items():
            template = patch.get("trainingRuntimeSpec").get("template")
            _check_metadata(template.get("metadata"))
            for job in template.get("spec").get("replicatedJobs").items():
                _check_job(job, known, patched)

    def check_template(self, role: str, template: JsonNode, manifest: JsonNode) -> None:
        part, image = _PARTS[role], _runtime_image(manifest.get("spec").value)
        pod = template.get("spec")
        for name, node in pod.fields():
            if name not in _OF_POD and not (name == "automountServiceAccountToken" and node.value is False):
                node.refuse(_NOT_PATCHED)
        for container in (*pod.get("initContainers").items(), *pod.get("containers").items()):
            is_main = container.get("name").value == part.job
            own = part.fields.keys() if is_main else ()
            for name, node in container.fields():
                if name not in _OF_CONTAINER and name not in own and (name, node.value) != ("image", image):
                    node.refuse(_NOT_PATCHED)
                elif name == "envFrom" and _secret_of(node.value) is None:
                    node.refuse(_ONE_SOURCE)

    def completed(self, manifest: Wire) -> Wire:
        if not isinstance(manifest.get("spec"), dict):
            return manifest
        made = deepcopy(manifest)
        spec: Wire = made["spec"]
        parts = _parts(spec)
        for part, place in zip(parts, _places(spec, [part.job for part in parts]).values(), strict=True):
            if at(made, place) is None:
                _make_place(spec, part.job)
            _move_in(spec, part, at(made, place))
        return made

    def finished(self, body: Wire) -> Wire:
        made = deepcopy(body)
        parts = _parts(made.get("spec"))
        for part, place in zip(parts, _places(made.get("spec"), [one.job for one in parts]).values(), strict=True):
            pod = at(made, (*place, "spec"))
            if isinstance(pod, dict):
                _move_out(made["spec"], part, pod)
        return made

    def written_paths(self, role: str) -> Mapping[str, str]:
        part = _PARTS[role]
        owner = ".".join(("spec", *part.owner))
        return {f"spec.containers[0].{ours}": f"{owner}.{theirs}" for ours, theirs in part.fields.items()}

    def demands(self, manifest: Mapping[str, Any], templates: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
        spec = manifest.get("spec")
        main = _main_container(_TRAINER, at(templates.get(_TRAINER.role), ("spec",)))
        needed = TrainingRuntime(
            str(at(spec, ("runtimeRef", "name"))),
            frozenset(part.job for part in _parts(spec)),
            frozenset(requested(at(main, ("resources",)))),
        )
        return (self.capability, needed.capability)

    def takes_pod_fields(self, fields: Collection[str]) -> bool:
        return _OF_POD.issuperset(fields)

    def time_limit(self, manifest: JsonNode) -> int | None:
        seconds = manifest.get("spec").get("activeDeadlineSeconds")
        return None if seconds.value is None else number(seconds, 1)

    def progress(self, status: Mapping[str, Any]) -> str:
        jobs, percent = status.get("jobsStatus"), at(status, ("trainerStatus", "progressPercentage"))
        listed = [one for one in jobs if isinstance(one, Mapping)] if isinstance(jobs, list) else []
        named = [f"{one.get('name')}: {many}" for one in listed if (many := counts(one))]
        return "; ".join([*named, *([f"{percent} % done"] if isinstance(percent, int) else [])])


def _parts(spec: Any) -> list[_Part]:
    """Return the steps of a TrainJob, in the order in which they run."""
    return [*(part for part in _INITIALIZERS if at(spec, part.owner) is not None), _TRAINER]


def _job_patches(spec: Any) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """Yield the patches of jobs, and their paths in a manifest."""
    patches = at(spec, ("runtimePatches",))
    for index, patch in enumerate(patches) if isinstance(patches, list) else ():
        jobs = at(patch, _JOBS)
        for place, job in enumerate(jobs) if isinstance(jobs, list) else ():
            yield ("spec", "runtimePatches", index, *_JOBS, place), job


def _places(spec: Any, jobs: Sequence[str]) -> dict[str, tuple[Step, ...]]:
    """Return the paths of the pod templates of jobs: in the first patch that has one, else in ours, which comes last."""
    found: dict[str, tuple[Step, ...]] = {}
    for path, job in _job_patches(spec):
        name = at(job, ("name",))
        if isinstance(name, str) and at(job, _POD) is not None:
            found.setdefault(name, (*path, *_POD))
    patches = at(spec, ("runtimePatches",))
    given = patches if isinstance(patches, list) else []
    ours = next((index for index, one in enumerate(given) if at(one, ("manager",)) == _PATCHER), len(given))
    listed = at(given, (ours, *_JOBS))
    count = len(listed) if isinstance(listed, list) else 0
    for job in jobs:
        if job not in found:
            found[job] = ("spec", "runtimePatches", ours, *_JOBS, count, *_POD)
            count += 1
    return {job: found[job] for job in jobs}


def _make_place(spec: Wire, job: str) -> None:
    """Add a job without a pod template of its own to our patch. What has another shape than it should stays, to be refused."""
    patches = spec.setdefault("runtimePatches", [])
    if not isinstance(patches, list):
        return
    parent: Any = next((one for one in patches if at(one, ("manager",)) == _PATCHER), None)
    if parent is None:
        parent = {"manager": _PATCHER}
        patches.append(parent)
    for step in _JOBS[:-1]:
        parent = parent.setdefault(step, {})
        if not isinstance(parent, dict):
            return
    jobs = parent.setdefault(_JOBS[-1], [])
    if isinstance(jobs, list):
        jobs.append({"name": job, "template": {"spec": {"template": {"spec": {}}}}})


def _move_in(spec: Wire, part: _Part, template: Any) -> None:
    """Move what the fields of a TrainJob say of a container to its pod template, where it is the first."""
    owner, pod = at(spec, part.owner), template.setdefault("spec", {}) if isinstance(template, dict) else None
    if not isinstance(pod, dict) or not isinstance(pod.get("containers", []), list):
        return
    image, given = _runtime_image(spec), pod.get("containers", [])
    patched: Wire = next((one for one in given if at(one, ("name",)) == part.job), {})
    # What both set stays where it is, to be refused; but variables of both are set.
    moved = [
        (ours, theirs)
        for ours, theirs in part.fields.items()
        if isinstance(owner, dict) and theirs in owner and (ours not in patched or ours == "env")
    ]
    own = {ours: owner.pop(theirs) for ours, theirs in moved}
    if "envFrom" in own:
        own["envFrom"] = [{"secretRef": own["envFrom"]}]
    main = {"name": part.job, "image": image, **patched, **own}
    if isinstance(patched.get("env"), list) and isinstance(own.get("env"), list):
        main["env"] = [*patched["env"], *own["env"]]
    others = [one for one in given if one is not patched]
    pod["containers"] = [main, *others]
    inits = pod.get("initContainers")
    for one in (*others, *(inits if isinstance(inits, list) else ())):
        if isinstance(one, dict):
            one.setdefault("image", image)


def _move_out(spec: Wire, part: _Part, pod: Wire) -> None:
    """Move what the fields of a TrainJob are for from a pod template to them, and leave out what is the runtime's own."""
    image = _runtime_image(spec)
    for field in ("containers", "initContainers"):
        for one in pod.get(field) or ():
            if one.get("image") == image:
                del one["image"]
    for field in _LEFT_TO_RUNTIME:
        pod.pop(field, None)
    main = _main_container(part, pod)
    owner = at(spec, part.owner)
    if main is not None and isinstance(owner, dict):
        if "envFrom" in main:
            main["envFrom"] = _secret_of(main["envFrom"])
        owner |= {theirs: value for ours, theirs in part.fields.items() if (value := main.pop(ours, None))}
    if pod.pop("automountServiceAccountToken", None) is False:
        _cover_token(pod)


def _secret_of(sources: Any) -> Any:
    """Return the reference to the one Secret that a container takes variables from; None if there is more to it."""
    is_one = isinstance(sources, list) and len(sources) == 1
    secret = (
        at(sources[0], ("secretRef",)) if is_one and isinstance(sources[0], dict) and len(sources[0]) == 1 else None
    )
    return secret if isinstance(secret, dict) and secret.keys() == {"name"} else None


def _cover_token(pod: Wire) -> None:
    """Mount an empty volume where an API server would mount the token of the service account, which it then does not.

    A patch cannot say that no token is mounted.
    """
    containers = [*(pod.get("containers") or ()), *(pod.get("initContainers") or ())]
    bare = [
        one
        for one in containers
        if _TOKEN_PATH not in [at(mount, ("mountPath",)) for mount in one.get("volumeMounts") or ()]
    ]
    for one in bare:
        mount = {"name": _NO_TOKEN, "mountPath": _TOKEN_PATH, "readOnly": True}
        one["volumeMounts"] = [*(one.get("volumeMounts") or ()), mount]
    if bare:
        pod["volumes"] = [*(pod.get("volumes") or ()), {"name": _NO_TOKEN, "emptyDir": {}}]


def _main_container(part: _Part, pod: Any) -> Any:
    containers = at(pod, ("containers",))
    listed = containers if isinstance(containers, list) else []
    return next((one for one in listed if at(one, ("name",)) == part.job), None)


def _runtime_image(spec: Any) -> str:
    """Return what stands for the image that a runtime gives a container: a name by which a policy can allow it."""
    return f"{_GROUP}/clustertrainingruntime/{at(spec, ('runtimeRef', 'name'))}"


def _check_runtime(named: JsonNode) -> None:
    name, kind, group = (named.get(field) for field in ("name", "kind", "apiGroup"))
    if not isinstance(name.value, str) or not _NAME.fullmatch(name.value):
        name.refuse(f"must be the name of a ClusterTrainingRuntime, not {shown(name.value)}")
    if kind.value == "TrainingRuntime":
        kind.refuse(_IN_NAMESPACE)
    elif kind.value not in (None, "ClusterTrainingRuntime"):
        kind.refuse(f"must be ClusterTrainingRuntime, not {shown(kind.value)}")
    if group.value not in (None, _GROUP):
        group.refuse(f"must be {_GROUP}, not {shown(group.value)}")


def _check_metadata(metadata: JsonNode) -> None:
    check_metadata(metadata)
    refuse_exclusive(metadata)


def _check_job(job: JsonNode, known: Sequence[str], patched: set[str]) -> None:
    name, template = job.get("name"), job.get("template")
    _check_metadata(template.get("metadata"))
    if name.value not in known:
        initializer = next((part for part in _INITIALIZERS if part.job == name.value), None)
        field = (
            "" if initializer is None else f"; spec.{'.'.join(initializer.owner)} makes it one of them, even as {{}}"
        )
        name.refuse(f"cannot be honoured: the TrainJob is counted as the jobs {', '.join(known)}{field}")
        return
    pod = template.get("spec").get("template")
    if pod.is_set and str(name.value) in patched:
        pod.refuse("cannot be honoured: another patch has a pod template of the same job; give one for both")
    elif pod.is_set:
        patched.add(str(name.value))
