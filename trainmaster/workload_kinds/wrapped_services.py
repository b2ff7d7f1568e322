"""Services in an AppWrapper, by which its pods find each other. Pure.

A Service gets another name in each run, and selects the pods of its own run alone: what has its name in a pod template gets the new
one where it can be nothing else, and is refused elsewhere.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster.protocol.json_limits import JsonNode, shown
from trainmaster.workload_kinds.kind import Wire, at

_FIELDS = frozenset(
    (
        *("clusterIP", "internalTrafficPolicy", "ipFamilies", "ipFamilyPolicy", "ports", "publishNotReadyAddresses"),
        *("selector", "sessionAffinity", "sessionAffinityConfig", "type"),
    )
)
"""Fields of a Service that concern the pods of the run alone."""
_NO_WAY_IN = "cannot be honoured: a Service in an AppWrapper leads to its own pods, from inside the cluster"
_NO_ANNOTATIONS = "cannot be honoured: controllers of the cluster would act on it"
_NO_POD = "must name labels of the pods of this AppWrapper"
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_BEFORE = r"(?:--?[\w-]+=)?(?:[a-z][a-z0-9+.-]*://)?(?:[a-z0-9-]+\.)?"
"""What may stand before the name of a host: an option, a scheme, and the name of a pod of the Service."""
_BEHIND = r"(?::\d+)?(?:/.*)?"


def service_name(template: object) -> str | None:
    """Return the name of a Service that is a component; None of anything else."""
    if at(template, ("apiVersion",)) != "v1" or at(template, ("kind",)) != "Service":
        return None
    name = at(template, ("metadata", "name"))
    return name if isinstance(name, str) else ""


def check_service(template: JsonNode, others: set[str]) -> None:
    """Refuse everything of a Service that concerns others than the pods beside it. ``others``: names of Services before it."""
    name = template.get("metadata").get("name")
    if not isinstance(name.value, str) or not _NAME.fullmatch(name.value):
        name.refuse(f"must be the name of a Service, in lower-case letters, digits and '-', not {shown(name.value)}")
    elif name.value in others:
        name.refuse("is the name of another Service in this AppWrapper, too")
    else:
        others.add(name.value)
    for _, node in template.get("metadata").get("annotations").entries():
        node.refuse(_NO_ANNOTATIONS)
    spec = template.get("spec")
    for field, node in spec.fields():
        if field not in _FIELDS:
            node.refuse(_NO_WAY_IN)
    if spec.get("type").value not in (None, "", "ClusterIP"):
        spec.get("type").refuse(_NO_WAY_IN)
    if spec.get("clusterIP").value not in (None, "", "None"):
        spec.get("clusterIP").refuse("cannot be honoured: the cluster that runs it gives the address; None is taken")
    selector = spec.get("selector")
    if not selector.entries():
        selector.refuse(_NO_POD)
    for _, node in selector.entries():
        node.must_be_text()


def check_mentions(template: JsonNode, names: frozenset[str]) -> None:
    """Refuse each text of a pod template that has the name of a Service where it is not clear whether the Service is meant."""
    for node, is_value in _texts(template.get("spec")):
        for name in sorted(names):
            if renamed(str(node.value), {name: name}, is_value=is_value) is None:
                node.refuse(
                    f"names {shown(name)}, a Service of this AppWrapper, which has another name in each run: give it as the value of"
                    f" a variable, {name} or {name}:PORT, and use that as $(VARIABLE); if the Service is not meant, rename it"
                )


def rename_services(pod: Any, names: Mapping[str, str]) -> None:
    """Replace the names of Services in the specification of a pod. ``names``: new names by those that it has."""
    if at(pod, ("subdomain",)) in names:
        pod["subdomain"] = names[pod["subdomain"]]
    for container in _containers(pod):
        for one in container.get("env") or ():
            if isinstance(at(one, ("value",)), str):
                one["value"] = renamed(one["value"], names, is_value=True) or one["value"]
        for field in ("command", "args"):
            if isinstance(container.get(field), list):
                container[field] = [
                    (renamed(text, names, is_value=False) or text) if isinstance(text, str) else text
                    for text in container[field]
                ]


def renamed(text: str, names: Mapping[str, str], *, is_value: bool) -> str | None:
    """Return a text with the new names of Services; None if it has such a name where it may mean something else.

    ``is_value``: the text is the value of a variable, which may be the bare name; an argument with a name has an option, a scheme
    or a port beside it.
    """
    parts = [_renamed_part(part, names, is_value) for part in text.split(",")]
    return None if None in parts else ",".join(part for part in parts if part is not None)


def _renamed_part(part: str, names: Mapping[str, str], is_value: bool) -> str | None:
    meant = [name for name in names if re.search(f"(?<![A-Za-z0-9-]){re.escape(name)}(?![A-Za-z0-9-])", part)]
    if not meant:
        return part
    found = re.fullmatch(f"({_BEFORE}){re.escape(meant[0])}({_BEHIND})", part)
    if found is None or len(meant) > 1 or (part == meant[0] and not is_value):
        return None
    return f"{found[1]}{names[meant[0]]}{found[2]}"


def _texts(pod: JsonNode) -> Iterator[tuple[JsonNode, bool]]:
    """Yield the texts of the containers of a pod, and whether each is the value of a variable."""
    for field in ("containers", "initContainers"):
        for container in pod.get(field).items():
            for one in container.get("env").items():
                if isinstance(one.get("value").value, str):
                    yield one.get("value"), True
            for texts in ("command", "args"):
                yield from ((one, False) for one in container.get(texts).items() if isinstance(one.value, str))


def _containers(pod: Any) -> Iterator[Wire]:
    for field in ("containers", "initContainers"):
        for one in at(pod, (field,)) or ():
            if isinstance(one, dict):
                yield one
