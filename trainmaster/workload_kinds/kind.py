"""`WorkloadKind`: one kind of object that is taken as a job. Pure.

A kind reads a manifest: its pod templates with their numbers of pods, what of it cannot be honoured, and the state of an object on a
cluster. All else of a manifest is left to the kind's own controller.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from trainmaster.protocol.json_limits import JsonNode, shown
from trainmaster.protocol.states import FailureCategory

Wire = dict[str, Any]
Step = str | int

MANAGER = "trainmaster.dev/dispatcher"
"""The value of ``managedBy`` that names this system."""
NO_CLAIMS = "cannot be honoured: claims for volumes are made by the owner of the namespace; name one in the volumes of a pod template"
_LONGEST_ROLE = 12


class PodSet(NamedTuple):
    """Equal pods of a manifest: the role that they become, the path of their template, and how many run at a time."""

    role: str
    path: tuple[Step, ...]
    replicas: int
    is_late: bool = False
    """Whether they are created only once others run, so that no gang may wait for them."""
    is_pod: bool = False
    """Whether a pod is at the path, no template: its labels, annotations and specification are the template."""


class WorkloadEnd(NamedTuple):
    """The end of an object, by its status."""

    has_succeeded: bool
    message: str = ""
    category: FailureCategory | None = None
    """Category of the failure where the status tells it; None: that of the pods."""


class WorkloadKind(ABC):
    """A kind of object that is taken as a job. ``api_version``: group and version."""

    api_version: str
    kind: str
    plural: str
    needs: str = ""
    """What a cluster has to have for it, for people; empty where Kubernetes itself runs it."""
    ends: bool = True
    """Whether an object comes to an end by itself."""
    end_conditions: tuple[str, str] | None = None
    """Types of the conditions of an object that has succeeded and of one that has failed; None if it has none."""
    name_labels: tuple[str, ...] = ()
    """Labels by which its controller marks pods with the name of their object."""
    added_labels: tuple[str, ...] = ()
    """Labels that an API server adds to an object and to its pod templates."""
    short_names: tuple[str, ...] = ()
    may_name_dispatcher: bool = True
    """Whether the API of the kind lets an object name this system as its controller, if it names any."""
    is_built_in: bool = False
    """Whether Kubernetes itself has the kind, so that clients know the types of its fields."""
    is_made_by_agent: bool = False
    """Whether the agent makes its pods, as those of any job, and no object of the kind."""
    image_user: tuple[int, int] | None = None
    """User and group for which the images of its project are made; None where they are of no one user."""
    suspend_path: tuple[str, ...] = ("spec", "suspend")
    """Path of the field by which it is suspended; empty if it has none."""
    manager_path: tuple[str, ...] = ("spec", "managedBy")
    """Path of the field that names its controller; empty if it has none."""
    time_to_live_path: tuple[str, ...] = ("spec", "ttlSecondsAfterFinished")
    """Path of the seconds after which an ended object is deleted; empty if there are none."""

    @property
    def name(self) -> str:
        """Return its name for people, such as ``batch/v1 Job``."""
        return f"{self.api_version} {self.kind}"

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]

    @property
    def capability(self) -> str:
        """Return the capability that an agent reports where its cluster takes objects of this kind."""
        return capability_of(self.api_version, self.kind)

    @abstractmethod
    def pod_sets(self, manifest: JsonNode) -> list[PodSet]:
        """Return the pods of a manifest, role by role. Mistakes are added to the document."""

    def check(self, manifest: JsonNode) -> None:  # noqa: B027 - nothing has to be refused of most kinds
        """Add a mistake for everything in a manifest that cannot be honoured."""

    def check_template(self, role: str, template: JsonNode, manifest: JsonNode) -> None:  # noqa: B027 - most take any
        """Add a mistake for everything in the pod template of a role that an object of this kind cannot give its pods, or by which
        these would be other ones than those of the manifest.
        """

    def completed(self, manifest: Wire) -> Wire:
        """Return a manifest with the pod templates that its controller would make where it gives none."""
        return manifest

    def finished(self, body: Wire) -> Wire:
        """Return an object that has the pod templates of its roles as its API takes it, without what contradicts them."""
        return body

    def named(self, body: Wire, pods: Mapping[str, str]) -> Wire:
        """Return an object that has its name and labels on a cluster, with the names of all objects in it made of its own.

        ``pods``: the label that all its pods have, and no others.
        """
        return body

    def written_paths(self, role: str) -> Mapping[str, str]:
        """Return the paths in a manifest of what it has elsewhere than in the pod template of a role, by their paths there."""
        return {}

    def demands(self, manifest: Mapping[str, Any], templates: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
        """Return the capabilities that a cluster needs for an object; ``templates``: pod templates by role."""
        return (self.capability,)

    def takes_pod_fields(self, fields: Collection[str]) -> bool:
        """Return whether an object can give its pods these fields of their specification."""
        return True

    def time_limit(self, manifest: JsonNode) -> int | None:
        """Return the longest run in seconds that a manifest allows; None if it names none."""
        return None

    def end_of(self, stored: Mapping[str, Any]) -> WorkloadEnd | None:
        """Return how an object on a cluster has ended; None while it has not."""
        return None if self.end_conditions is None else end_by_conditions(stored, *self.end_conditions)

    def ended_status(self, status: Mapping[str, Any], end: WorkloadEnd, reason: str, when: str) -> Wire:
        """Return the status of an object whose job has ended, where its own controller has not said so: the job was cancelled, or
        never reached a cluster. ``reason``: one word; ``when``: a time as in Kubernetes.
        """
        if self.end_conditions is None:
            return dict(status)
        kept = [one for one in _listed(status.get("conditions")) if one.get("type") not in self.end_conditions]
        ended = {
            "type": self.end_conditions[not end.has_succeeded],
            "status": "True",
            "reason": reason,
            "message": end.message,
            "lastProbeTime": when,
            "lastTransitionTime": when,
        }
        return {**status, "conditions": [*kept, ended]}

    def as_submitted(self, stored: Mapping[str, Any]) -> Wire:
        """Return the specification of an object in an API server as its author wrote it: without what the server has added.

        Defaults that mean the same on every cluster stay.
        """
        return deepcopy(dict(stored.get("spec") or {}))

    def progress(self, status: Mapping[str, Any]) -> str:
        """Return how far an object is, by its status, in a few words; empty where it does not tell."""
        return ", ".join(str(one.get("type")) for one in conditions({"status": status}))

    def shown_spec(self, spec: Wire, pods: Mapping[str, str]) -> Wire:
        """Return a specification as an API server shows it. ``pods``: the label that all pods of the object have."""
        return spec

    def runnable(self, manifest: Mapping[str, Any]) -> Wire:
        """Return a manifest as it is created on a cluster: not suspended, run by the kind's own controller there, and deleted by
        the agent alone, once its end has been told.
        """
        made = deepcopy(dict(manifest))
        for path in (self.suspend_path, self.manager_path, self.time_to_live_path):
            parent = at(made, path[:-1]) if path else None
            if isinstance(parent, dict):
                parent.pop(path[-1], None)
        return made


def capability_of(api_version: str, kind: str) -> str:
    """Return the capability of clusters that take objects of a kind."""
    return f"workload:{api_version}/{kind}"


def at(value: Any, path: Sequence[Step]) -> Any:
    """Return the value at a path; None where there is none."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def put(value: Any, path: Sequence[Step], new: Any) -> None:
    """Replace the value at a path that exists."""
    at(value, path[:-1])[path[-1]] = new


def put_template(value: Any, pods: PodSet, new: Any) -> None:
    """Replace the pod template of a set of pods; of a pod, the fields that a template has."""
    if not pods.is_pod:
        put(value, pods.path, new)
        return
    pod = at(value, pods.path)
    metadata = {**(pod.get("metadata") or {}), **(new.get("metadata") or {})}
    pod |= {"metadata": metadata, "spec": new.get("spec", {})}


def node_at(node: JsonNode, path: Sequence[Step]) -> JsonNode:
    """Return the node at a path; an unset one where there is none."""
    for step in path:
        if isinstance(step, int):
            items = node.items()
            node = items[step] if step < len(items) else JsonNode(None, f"{node.path}[{step}]", node.mistakes)
        else:
            node = node.get(step)
    return node


def number(node: JsonNode, default: int, least: int = 1) -> int:
    """Return a whole number of at least ``least``, or the default where it is not set. Any other value is a mistake."""
    value = node.value
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        node.refuse(f"must be a whole number of at least {least}, not {shown(value)}")
        return max(default, least)
    return value


def refuse_set(manifest: JsonNode, path: Sequence[Step], message: str) -> None:
    """Refuse a field that is set to anything but null, false, or nothing."""
    node = node_at(manifest, path)
    if node.value not in (None, False, {}, []):
        node.refuse(message)


def _listed(found: Any) -> list[Mapping[str, Any]]:
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def counts(status: object) -> str:
    """Return the numbers of pods, or of Jobs, in a status for people, those that are not 0."""
    names = ("active", "ready", "succeeded", "failed")
    found = status if isinstance(status, Mapping) else {}
    return ", ".join(f"{found[name]} {name}" for name in names if found.get(name))


def conditions(stored: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the conditions of an object that hold."""
    for one in _listed(at(stored, ("status", "conditions"))):
        if one.get("status") == "True":
            yield one


def end_by_conditions(stored: Mapping[str, Any], succeeded: str, failed: str) -> WorkloadEnd | None:
    """Return how an object has ended by the types of its conditions."""
    for one in conditions(stored):
        if one.get("type") in (succeeded, failed):
            words = ": ".join(str(one[field]) for field in ("reason", "message") if one.get(field))
            is_late = "DeadlineExceeded" in str(one.get("reason") or "")
            category = FailureCategory.DEADLINE if is_late else None
            return WorkloadEnd(True) if one["type"] == succeeded else WorkloadEnd(False, words, category)
    return None


def role_name(name: object, others: Sequence[str]) -> str:
    """Return a name for a role: as much of a name in a manifest as a role's may have, and no other role's."""
    text = "".join(letter for letter in str(name).lower() if letter.isascii() and (letter.isalnum() or letter == "-"))
    base = text.strip("-")[:_LONGEST_ROLE].strip("-") or "pods"
    base = base if base[0].isalpha() else f"r{base}"[:_LONGEST_ROLE].strip("-")
    found, count = base, 1
    while found in others:
        count += 1
        found = f"{base[: _LONGEST_ROLE - len(str(count)) - 1].strip('-')}-{count}"
    return found
