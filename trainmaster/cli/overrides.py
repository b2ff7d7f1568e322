"""Options that replace parts of jobs' specifications: of ``run``, ``submit`` and ``rerun``. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from trainmaster.cli import completion
from trainmaster.cli.errors import UsageError
from trainmaster.protocol.states import ClusterKind, Condition

GPU = "nvidia.com/gpu"
"""The resource of ``--gpus``."""

JobName = Annotated[
    str | None, typer.Option("--name", help="Name of the job, at most 24 of a-z, 0-9 and -.", show_default=False)
]
Queue = Annotated[
    str | None, typer.Option("--queue", help="Queue of the job.", show_default=False, autocompletion=completion.leaves)
]
PriorityClass = Annotated[
    str | None,
    typer.Option("--priority-class", help="Priority class.", show_default=False, autocompletion=completion.classes),
]
Priority = Annotated[
    int | None,
    typer.Option(
        "--priority", min=-1000, max=1000, help="Order inside queue and class; higher goes first.", show_default=False
    ),
]
LabelPairs = Annotated[
    list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Label; may be repeated.", show_default=False)
]
EnvPairs = Annotated[
    list[str] | None,
    typer.Option(
        "--env", "-e", metavar="NAME=VALUE", help="Variable of all members; may be repeated.", show_default=False
    ),
]
TimeLimit = Annotated[
    str | None,
    typer.Option("--time-limit", metavar="TIME", help="Longest time of a run, such as 2h.", show_default=False),
]
StartAfter = Annotated[
    str | None,
    typer.Option(
        "--start-after",
        metavar="TIME",
        help="Time before which the job does not start: 2h from now, or 2037-01-01T08:00:00Z.",
        show_default=False,
    ),
]
DeadlineOption = Annotated[
    str | None,
    typer.Option(
        "--deadline",
        metavar="TIME",
        help="Time by which the job should have ended: 4h from now, or 2037-01-01T08:00:00Z.",
        show_default=False,
    ),
]
After = Annotated[
    list[str] | None,
    typer.Option(
        "--after",
        metavar="JOB[:CONDITION]",
        help="Start after this job has succeeded, or with :failed, :ended or :started; may be repeated.",
        show_default=False,
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="NAME",
        help="Group of jobs to which it belongs; the first job begins it.",
        show_default=False,
        autocompletion=completion.groups,
    ),
]
AfterGroup = Annotated[
    list[str] | None,
    typer.Option(
        "--after-group",
        metavar="NAME[:CONDITION]",
        help="Start after all jobs of this group have succeeded and it is closed, or with :failed or :ended; may be repeated.",
        show_default=False,
    ),
]
Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpus", metavar="N", help=f"GPUs of each member ({GPU}), or a part of one, such as 0.5.", show_default=False
    ),
]
Cpus = Annotated[
    str | None, typer.Option("--cpus", metavar="N", help="CPUs of each member, such as 4 or 500m.", show_default=False)
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="Memory of each member, such as 16Gi.", show_default=False),
]
Image = Annotated[
    str | None,
    typer.Option(
        "--image", help="Container image; Kubernetes clusters need one, local ones use none.", show_default=False
    ),
]
Replicas = Annotated[
    int | None, typer.Option("--replicas", min=1, help="Number of members, which start together.", show_default=False)
]
Kinds = Annotated[
    list[ClusterKind] | None,
    typer.Option("--kind", help="Only clusters of this kind; may be repeated.", show_default=False),
]
Clusters = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster", help="Only this cluster; may be repeated.", show_default=False, autocompletion=completion.clusters
    ),
]


def pairs_of(items: Sequence[str] | None, option: str, form: str = "KEY=VALUE") -> dict[str, str]:
    """Parse the values of an option such as ``--label``. Raises UsageError."""
    pairs = {}
    for item in items or ():
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} takes {form}, not {item!r}")
        pairs[key] = value
    return pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Values that replace those of a specification; None or empty leaves it as it is.

    Labels, variables, resources and the fields of ``placement`` are merged with those of the specification.
    """

    fields: Mapping[str, Any]
    labels: Mapping[str, str]
    env: Mapping[str, str]
    template: Mapping[str, Any]
    resources: Mapping[str, str]
    replicas: int | None = None
    placement: Mapping[str, Any]

    @property
    def change_anything(self) -> bool:
        """Return whether any value is given."""
        given = (self.fields, self.labels, self.env, self.template, self.resources, self.placement)
        return any(given) or self.replicas is not None

    def applied(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return a specification with these values. Raises UsageError where it has several roles and a value is for one."""
        out = {**spec, **self.fields}
        for name, values in (("labels", self.labels), ("placement", self.placement)):
            if values:
                present = spec.get(name)
                out[name] = {**(present if isinstance(present, Mapping) else {}), **values}
        roles = spec.get("roles")
        if isinstance(roles, list) and all(isinstance(role, Mapping) for role in roles):
            if len(roles) > 1 and (self.template or self.resources or self.replicas is not None):
                names = ", ".join(str(role.get("name")) for role in roles)
                raise UsageError(
                    f"the job has several roles: {names}; image, command, resources and replicas are changed in its file"
                )
            out["roles"] = [self._of_role(role) for role in roles]
        return out

    def _of_role(self, role: Mapping[str, Any]) -> dict[str, Any]:
        out = dict(role)
        if self.replicas is not None:
            out["replicas"] = self.replicas
        pod = out.get("podTemplate")
        if isinstance(pod, Mapping):
            if self.template or self.resources:
                raise UsageError("the job has a podTemplate; image, command and resources are changed in its file")
            if self.env:
                out["podTemplate"] = _with_pod_env(pod, self.env)
            return out
        template = out.get("template")
        if (template is None or isinstance(template, Mapping)) and (self.template or self.resources or self.env):
            made = {**(template or {}), **self.template}
            if GPU in self.resources:
                made.pop("gpu", None)
            elif "gpu" in self.template and isinstance(made.get("resources"), Mapping):
                made["resources"] = {name: amount for name, amount in made["resources"].items() if name != GPU}
            for name, values in (("env", self.env), ("resources", self.resources)):
                present = made.get(name)
                if values:
                    made[name] = {**(present if isinstance(present, Mapping) else {}), **values}
            out["template"] = made
        return out


def _with_pod_env(pod: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Return a pod template whose containers have these variables."""
    spec = pod.get("spec")
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(containers, list):
        return dict(pod)
    added = [{"name": name, "value": value} for name, value in env.items()]
    changed = []
    for one in containers:
        kept = (
            [item for item in one.get("env") or [] if item.get("name") not in env] if isinstance(one, Mapping) else []
        )
        changed.append({**one, "env": [*kept, *added]} if isinstance(one, Mapping) else one)
    return {**pod, "spec": {**spec, "containers": changed}}


def overrides(
    *,
    name: str | None = None,
    queue: str | None = None,
    priority: int | None = None,
    priority_class: str | None = None,
    labels: Sequence[str] | None = None,
    env: Sequence[str] | None = None,
    time_limit: str | None = None,
    start_after: str | None = None,
    deadline: str | None = None,
    after: Sequence[str] | None = None,
    after_group: Sequence[str] | None = None,
    group: str | None = None,
    gpus: str | None = None,
    cpus: str | None = None,
    memory: str | None = None,
    image: str | None = None,
    replicas: int | None = None,
    kinds: Sequence[ClusterKind] | None = None,
    clusters: Sequence[str] | None = None,
    command: Sequence[str] | None = None,
) -> Overrides:
    """Return the overrides of these options. Raises UsageError."""
    fields = {
        "name": name,
        "queue": queue,
        "priority": priority,
        "priorityClass": priority_class,
        "timeLimit": time_limit,
        "startAfter": start_after,
        "deadline": deadline,
        "group": group,
        "after": [*map(_predecessor, after or ()), *map(_awaited_group, after_group or ())] or None,
    }
    template: dict[str, Any] = {"image": image, "command": list(command) if command else None}
    if command:
        template["args"] = []
    if gpus is not None and _PART.fullmatch(gpus):
        template["gpu"], gpus = {"fraction": gpus}, None
    return Overrides(
        fields=_given(fields),
        labels=pairs_of(labels, "--label"),
        env=pairs_of(env, "--env", "NAME=VALUE"),
        template=_given(template),
        resources=_given({"cpu": cpus, "memory": memory, GPU: gpus}),
        replicas=replicas,
        placement=_given(
            {"kinds": [kind.value for kind in kinds or ()] or None, "clusters": list(clusters or ()) or None}
        ),
    )


def _predecessor(text: str) -> dict[str, str]:
    """Return the entry of ``after`` for ``JOB[:CONDITION]``. Raises UsageError."""
    job, colon, condition = text.partition(":")
    conditions = [one.value for one in Condition]
    if not job or (colon and condition not in conditions):
        raise UsageError(f"--after {text}: write JOB or JOB:CONDITION, where CONDITION is {', '.join(conditions)}")
    return {"job": job, **({"condition": condition} if condition else {})}


def _awaited_group(text: str) -> dict[str, str]:
    """Return the entry of ``after`` for ``NAME[:CONDITION]``. Raises UsageError."""
    group, colon, condition = text.partition(":")
    conditions = [one.value for one in Condition if one is not Condition.STARTED]
    if not group or (colon and condition not in conditions):
        raise UsageError(
            f"--after-group {text}: write NAME or NAME:CONDITION, where CONDITION is {', '.join(conditions)}"
        )
    return {"group": group, **({"condition": condition} if condition else {})}


_PART = re.compile(r"0?\.[0-9]+|[0-9]{1,3}m")
"""A quantity below 1."""


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
