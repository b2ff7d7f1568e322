"""CodeFlare's AppWrapper, objects that are queued and run as one: https://project-codeflare.github.io/appwrapper/

Its components are objects of kinds that are taken as jobs themselves, each read by its own kind, and Services between their pods. All
their pods are one gang. Its controller creates each component under the name that it has, so they are named after the run here.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from trainmaster.protocol.admission import check_metadata
from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.json_limits import JsonNode, path_step, shown
from trainmaster.workload_kinds.kind import (
    PodSet,
    Step,
    Wire,
    WorkloadEnd,
    WorkloadKind,
    at,
    conditions,
    node_at,
    number,
    refuse_set,
    role_name,
)
from trainmaster.workload_kinds.wrapped_services import check_mentions, check_service, rename_services, service_name

_PREFIX = "workload.codeflare.dev.appwrapper"
_SUCCESS_TTL, _FAILURE_DELAY = f"{_PREFIX}/successTTLDuration", f"{_PREFIX}/deletionOnFailureGracePeriodDuration"
_LABEL = "workload.codeflare.dev/appwrapper"
"""Label by which its controller counts the pods of an AppWrapper."""
_MOST_POD_SETS = 8
_INFERRED = frozenset(("Deployment", "Job", "JobSet", "Pod", "PyTorchJob", "RayCluster", "RayJob", "StatefulSet"))
"""Kinds whose pods its controller finds by itself; those of others have to be declared."""
_SUBMITTER: tuple[Step, ...] = ("spec", "submitterPodTemplate")
"""Path of pods that its controller does not count."""
_SELECTOR = ("spec", "selector")
"""Path of the selector of its own pods in a kind that has to have one."""
_FIELDS = frozenset(("annotations", "podSetInfos", "podSets", "template"))
_OF_OBJECTS = frozenset(("apiVersion", "kind", "metadata", "spec", "status"))
_OF_NAMES = ("generateName", "name", "namespace")
_OF_KUEUE = "is Kueue's to set: leave it out"
_AS_ONE = "cannot be honoured: an AppWrapper is suspended as a whole, by its own spec.suspend"
_ONE_MANAGER = (
    "cannot be honoured: the AppWrapper's own controller creates it, and that of its kind runs it; leave it out"
)
_NOT_KEPT = "cannot be honoured: a run that has failed leaves its cluster at once; leave it out"
_OTHER_NAMESPACE = "must be that of the AppWrapper, or left out"
_GONE = "cannot be honoured: pods that are removed at the end are missing to the controller of AppWrappers, which starts again"
_SET_BY_CONTROLLER = "is set by the controller of AppWrappers and must be left out"


class _Component(NamedTuple):
    """A component with pods: its index among all, its kind, and its object."""

    place: int
    kind: WorkloadKind
    template: JsonNode

    @property
    def name(self) -> str:
        metadata = at(self.template.value, ("metadata",))
        return str(at(metadata, ("name",)) or at(metadata, ("generateName",)) or self.kind.kind)


class AppWrapper(WorkloadKind):
    """An AppWrapper. ``kinds``: those that its components may have, beside Services."""

    api_version, kind, plural = "workload.codeflare.dev/v1beta2", "AppWrapper", "appwrappers"
    needs = "the AppWrapper controller of CodeFlare"
    name_labels = (_LABEL,)
    short_names = ("aw",)
    time_to_live_path = ()

    def __init__(self, kinds: Sequence[WorkloadKind]) -> None:
        self._kinds = {(one.api_version, one.kind): one for one in kinds}

    def pod_sets(self, manifest: JsonNode) -> list[PodSet]:
        found: list[PodSet] = []
        parts = self._parts(manifest)
        for part in parts:
            sets = part.kind.pod_sets(part.template)
            for one in sets:
                # Roles of an object by itself have the names of its kind; of several each needs one that says whose it is.
                base = one.role if len(parts) == 1 or len(sets) > 1 else part.name
                role = role_name(base, [other.role for other in found])
                found.append(one._replace(role=role, path=(*_path(part.place), *one.path)))
        return found

    def check(self, manifest: JsonNode) -> None:
        delay = manifest.get("metadata").get("annotations").get(_FAILURE_DELAY)
        if delay.is_set:
            delay.refuse(_NOT_KEPT)
        namespace = at(manifest.value, ("metadata", "namespace"))
        services = set[str]()
        many = 0
        for component in manifest.get("spec").get("components").items():
            component.only(_FIELDS)
            refuse_set(component, ("podSetInfos",), _OF_KUEUE)
            for _, node in component.get("annotations").entries():
                node.must_be_text()
            template = component.get("template")
            template.only(_OF_OBJECTS)
            _check_metadata(template.get("metadata"), namespace)
            kind = self._kind_of(template.value)
            if kind is not None:
                many += _check_part(kind, component)
            elif service_name(template.value) is not None:
                refuse_set(component, ("podSets",), "cannot be honoured: a Service has no pods")
                check_service(template, services)
            else:
                self._refuse_kind(template)
        if many > _MOST_POD_SETS:
            manifest.get("spec").get("components").refuse(
                f"has {many} sets of pods; an AppWrapper may have {_MOST_POD_SETS}"
            )

    def check_template(self, role: str, template: JsonNode, manifest: JsonNode) -> None:
        label = template.get("metadata").get("labels").get(_LABEL)
        if label.is_set:
            label.refuse(_SET_BY_CONTROLLER)
        check_mentions(template, frozenset(_services(manifest.value)))

    def completed(self, manifest: Wire) -> Wire:
        made = deepcopy(manifest)
        for component, kind in self._wrapped(made):
            component["template"] = kind.completed(component["template"])
        return made

    def demands(self, manifest: Mapping[str, Any], templates: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
        wrapped = [one for part, kind in self._wrapped(manifest) for one in kind.demands(part["template"], {})]
        return tuple(dict.fromkeys((self.capability, *wrapped)))

    def end_of(self, stored: Mapping[str, Any]) -> WorkloadEnd | None:
        phase = at(stored, ("status", "phase"))
        if phase == "Succeeded":
            return WorkloadEnd(True)
        if phase != "Failed":
            return None
        found = next((one for one in conditions(stored) if one.get("type") == "Unhealthy"), {})
        return WorkloadEnd(False, ": ".join(str(found[field]) for field in ("reason", "message") if found.get(field)))

    def ended_status(self, status: Mapping[str, Any], end: WorkloadEnd, reason: str, when: str) -> Wire:
        if end.has_succeeded:
            return {**status, "phase": "Succeeded"}
        given = status.get("conditions")
        kept = [one for one in given if at(one, ("type",)) != "Unhealthy"] if isinstance(given, list) else []
        unhealthy = {"type": "Unhealthy", "status": "True", "reason": reason, "message": end.message}
        return {**status, "phase": "Failed", "conditions": [*kept, {**unhealthy, "lastTransitionTime": when}]}

    def as_submitted(self, stored: Mapping[str, Any]) -> Wire:
        spec = super().as_submitted(stored)
        for component in _components({"spec": spec}):
            component.pop("podSetInfos", None)
        return spec

    def progress(self, status: Mapping[str, Any]) -> str:
        given = status.get("conditions")
        ready = [one for one in given if at(one, ("type",)) == "PodsReady"] if isinstance(given, list) else []
        pods = at(ready[0], ("message",)) if ready and status.get("phase") == "Running" else None
        return ": ".join(str(one) for one in (status.get("phase"), pods) if one)

    def runnable(self, manifest: Mapping[str, Any]) -> Wire:
        made = super().runnable(manifest)
        annotations = at(made, ("metadata", "annotations"))
        if isinstance(annotations, dict):
            annotations.pop(_SUCCESS_TTL, None)
        for component in _components(made):
            metadata = at(component, ("template", "metadata"))
            if isinstance(metadata, dict):
                metadata.pop("namespace", None)
        for component, kind in self._wrapped(made):
            component["template"] = kind.runnable(component["template"])
            if kind.kind not in _INFERRED and not component.get("podSets"):
                sets = _counted(kind.pod_sets(JsonNode(component["template"], "", [])))
                component["podSets"] = [{"path": path, "replicas": many} for path, many in sets.items()]
        return made

    def named(self, body: Wire, pods: Mapping[str, str]) -> Wire:
        made = deepcopy(body)
        name = made["metadata"]["name"]
        parts = [part.place for part in self._parts(JsonNode(made, "", []))]
        services: dict[str, str] = {}
        for index, component in enumerate(_components(made)):
            template = component["template"]
            # Controllers make longer names of that of an object, so one by itself has that of the AppWrapper.
            new = name if parts == [index] else f"{name}-{index}"
            service = service_name(template)
            if service is not None:
                services[service] = new
                template["spec"]["selector"] |= pods
            elif isinstance(own := at(template, (*_SELECTOR, "matchLabels")), dict):
                own |= pods
            kept = {key: value for key, value in (template.get("metadata") or {}).items() if key not in _OF_NAMES}
            template["metadata"] = {**kept, "name": new}
        for one in self.pod_sets(JsonNode(made, "", [])):
            rename_services(at(made, (*one.path, "spec")), services)
        for component in _components(made):
            governing = at(component, ("template", "spec", "serviceName"))
            if governing in services:
                component["template"]["spec"]["serviceName"] = services[governing]
        return made

    def _parts(self, manifest: JsonNode) -> list[_Component]:
        """Return the components that have pods."""
        templates = [one.get("template") for one in manifest.get("spec").get("components").items()]
        found = ((index, self._kind_of(one.value), one) for index, one in enumerate(templates))
        return [_Component(index, kind, template) for index, kind, template in found if kind is not None]

    def _wrapped(self, manifest: Mapping[str, Any]) -> list[tuple[Wire, WorkloadKind]]:
        """Return the components that have pods, as they are, and their kinds."""
        found = ((one, self._kind_of(one.get("template"))) for one in _components(manifest))
        return [(one, kind) for one, kind in found if kind is not None]

    def _kind_of(self, template: object) -> WorkloadKind | None:
        named = at(template, ("apiVersion",)), at(template, ("kind",))
        return self._kinds.get((str(named[0]), str(named[1])))

    def _refuse_kind(self, template: JsonNode) -> None:
        given = f"{shown(at(template.value, ('apiVersion',)))} {shown(at(template.value, ('kind',)))}"
        known = ", ".join(one.name for one in self._kinds.values())
        template.get("kind").refuse(f"{given} cannot be in an AppWrapper; there may be: {known}, and v1 Service")


def _path(index: int) -> tuple[Step, ...]:
    return ("spec", "components", index, "template")


def _components(manifest: Mapping[str, Any]) -> list[Wire]:
    found = at(manifest, ("spec", "components"))
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _services(manifest: Any) -> list[str]:
    names = (service_name(one.get("template")) for one in _components(manifest))
    return [name for name in names if name]


def _counted(sets: Sequence[PodSet]) -> dict[str, int]:
    """Return the numbers of pods by the paths of their templates, as the podSets of a component have them."""
    return {
        "template" + "".join(path_step(step, is_first=False) for step in one.path): one.replicas
        for one in sets
        if one.path != _SUBMITTER
    }


def _check_metadata(metadata: JsonNode, namespace: object) -> None:
    given = metadata.get("namespace")
    if given.is_set and given.value != namespace:
        given.refuse(_OTHER_NAMESPACE)
    for field in _OF_NAMES:
        if metadata.get(field).is_set:
            metadata.get(field).must_be_text()
    rest = {key: node.value for key, node in metadata.fields() if key not in _OF_NAMES}
    check_metadata(JsonNode(rest, metadata.path, metadata.mistakes))


def _check_part(kind: WorkloadKind, component: JsonNode) -> int:
    """Check a component with pods; return the number of its sets of pods."""
    template = component.get("template")
    kind.check(template)
    if kind.manager_path:
        refuse_set(template, kind.manager_path, _ONE_MANAGER)
    if kind.suspend_path:
        refuse_set(template, kind.suspend_path, _AS_ONE)
    refuse_set(template, ("spec", "shutdownAfterJobFinishes"), _GONE)
    clean = node_at(template, ("spec", "runPolicy", "cleanPodPolicy"))
    if clean.value not in (None, "None"):
        clean.refuse(_GONE)
    wrong: list[Mistake] = []
    sets = kind.pod_sets(JsonNode(template.value, "", wrong))
    if not wrong:
        _check_declared(kind, component.get("podSets"), _counted(sets))
    return len(sets)


def _check_declared(kind: WorkloadKind, declared: JsonNode, wanted: Mapping[str, int]) -> None:
    """Refuse numbers of pods that are not those of the object. ``wanted``: its numbers by path."""
    seen = set[str]()
    for one in declared.items():
        path, replicas = one.get("path"), one.get("replicas")
        text, count = str(path.value), len(one.mistakes)
        many = number(replicas, 1, least=0)
        if text in seen or (text not in wanted and many):
            path.refuse(f"must be one of the paths of the pods of this {kind.kind}, each once: {', '.join(wanted)}")
        elif wanted.get(text, 0) != many and len(one.mistakes) == count:
            replicas.refuse(f"must be {wanted[text]}, as the {kind.kind} itself says")
        seen.add(text)
    if seen and (missing := [path for path in wanted if path not in seen]):
        declared.refuse(f"must have all pods of the {kind.kind}, also those of {', '.join(missing)}")
