"""Rules of a pod template: what one field demands of another. It checks no types; a field of a wrong type is passed over."""

import re
from collections.abc import Callable, Iterable
from functools import partial

from trainmaster.protocol.json_limits import JsonNode, shown
from trainmaster.protocol.pod_scalars import check_label_key, check_label_value, is_label_key
from trainmaster.protocol.quantities import parse_quantity

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")
_SUBSCRIPT = re.compile(r"metadata\.(?:labels|annotations)\['([^']*)'\]")
_MEMBER_RESOURCE = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-[0-9]+[KMGT]i)")
_NAMING = frozenset(("metadata.name", "metadata.namespace", "metadata.uid"))
_FILE_FIELDS = _NAMING | {"metadata.labels", "metadata.annotations"}
_ENVIRONMENT_FIELDS = _NAMING | {
    *("spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
}


def _exactly_one(node: JsonNode, *, of: Iterable[str] = (), but: Iterable[str] = (), what: str) -> None:
    found = [name for name, _ in node.fields() if (name in of if of else name not in but)]
    if isinstance(node.value, dict) and len(found) != 1:
        node.refuse(f"must have exactly one {what}")


def _at_most_one(node: JsonNode, first: str, second: str) -> None:
    if node.get(first).is_set and node.get(second).is_set:
        node.get(second).refuse(f"must be left out where {first} is set")


def _environment_item(node: JsonNode) -> None:
    if node.get("value").value:
        _at_most_one(node, "value", "valueFrom")


def _command(node: JsonNode) -> None:
    if not node.get("command").items():
        node.get("command").refuse("must have at least one word")


def _option(node: JsonNode) -> None:
    if not node.get("name").value:
        node.get("name").refuse("must be set")


def _field_in(node: JsonNode, words: frozenset[str]) -> None:
    path = node.get("fieldRef").get("fieldPath")
    if isinstance(path.value, str) and path.value not in words:
        subscript = _SUBSCRIPT.fullmatch(path.value)
        if subscript is None or not is_label_key(subscript[1]):
            path.refuse(f"is not a field that a member can receive: {shown(path.value)}")
    resource = node.get("resourceFieldRef").get("resource")
    if isinstance(resource.value, str) and not _MEMBER_RESOURCE.fullmatch(resource.value):
        resource.refuse(f"must be a limit or a request such as limits.cpu, not {shown(resource.value)}")


def _environment_source(node: JsonNode) -> None:
    _exactly_one(node, what="source")
    _field_in(node, _ENVIRONMENT_FIELDS)


def _downward_file(node: JsonNode) -> None:
    _relative_path(node)
    _exactly_one(node, of=("fieldRef", "resourceFieldRef"), what="of fieldRef and resourceFieldRef")
    _field_in(node, _FILE_FIELDS)


def _selector_values(node: JsonNode) -> None:
    operator, values = node.get("operator").value, node.get("values")
    items = values.value if isinstance(values.value, list) else []
    if operator in ("In", "NotIn") and not items:
        values.refuse(f"must have at least one value for operator {operator}")
    elif operator in ("Exists", "DoesNotExist") and items:
        values.refuse(f"must be left out for operator {operator}")
    elif operator in ("Gt", "Lt") and not (
        len(items) == 1 and isinstance(items[0], str) and _WHOLE_NUMBER.fullmatch(items[0])
    ):
        values.refuse(f"must be one whole number, as a string, for operator {operator}")


def _node_term(node: JsonNode) -> None:
    for item in node.get("matchFields").items():
        if item.get("key").value != "metadata.name":
            item.get("key").refuse("must be metadata.name, the only field of a node that can be matched")
    for item in node.get("matchExpressions").items():
        for value in item.get("values").items():
            check_label_value(value)


def _node_selector(node: JsonNode) -> None:
    terms = node.get("nodeSelectorTerms")
    if isinstance(terms.value, list) and not terms.value:
        terms.refuse("must have at least one term")


def _toleration(node: JsonNode) -> None:
    key, operator, value = node.get("key"), node.get("operator").value, node.get("value")
    if isinstance(key.value, str) and key.value:
        check_label_key(key)
    elif operator != "Exists":
        node.get("operator").refuse("must be Exists where no key is given")
    if operator == "Exists":
        if value.value:
            value.refuse("must be left out for operator Exists")
    elif isinstance(value.value, str):
        check_label_value(value)
    if node.get("tolerationSeconds").is_set and node.get("effect").value != "NoExecute":
        node.get("effect").refuse("must be NoExecute where tolerationSeconds is set")


def _probe(node: JsonNode) -> None:
    _exactly_one(node, of=("exec", "grpc", "httpGet", "tcpSocket"), what="of exec, grpc, httpGet and tcpSocket")


def _profile(node: JsonNode) -> None:
    is_local = node.get("type").value == "Localhost"
    if is_local and not node.get("localhostProfile").value:
        node.get("localhostProfile").refuse("must be set for type Localhost")
    elif not is_local and node.get("localhostProfile").is_set:
        node.get("localhostProfile").refuse("must be left out unless the type is Localhost")


def _resource_requirements(node: JsonNode) -> None:
    limits = dict(node.get("limits").entries())
    for name, request in node.get("requests").entries():
        limit = limits.get(name)
        if limit is None:
            continue
        try:
            if parse_quantity(name, str(request.value)) > parse_quantity(name, str(limit.value)):
                request.refuse(f"must be at most the limit of {name}")
        except ValueError:
            continue  # reported where amounts are read


def _claim(node: JsonNode) -> None:
    _exactly_one(node, but=("name",), what="of resourceClaimName and resourceClaimTemplateName")


def _relative_path(node: JsonNode) -> None:
    for field in ("path", "subPath", "subPathExpr"):
        text = node.get(field).value
        if isinstance(text, str) and (text.startswith("/") or ".." in text.split("/")):
            node.get(field).refuse("must be a relative path without '..'")


def _mount(node: JsonNode) -> None:
    _relative_path(node)
    _at_most_one(node, "subPath", "subPathExpr")
    path = node.get("mountPath").value
    if isinstance(path, str) and ":" in path:
        node.get("mountPath").refuse("must not contain ':'")


def _container(node: JsonNode) -> None:
    _unique(node.get("ports"), "name", "port")
    _unique(node.get("volumeMounts"), "mountPath", "mount")


def _unique(items: JsonNode, field: str, what: str) -> None:
    seen = set()
    for item in items.items():
        value = item.get(field).value
        if isinstance(value, str) and value:
            if value in seen:
                item.get(field).refuse(f"is the {field} of another {what}, too")
            seen.add(value)


RULES: dict[str, Callable[[JsonNode], None]] = {
    "Volume": partial(_exactly_one, but=("name",), what="type of volume"),
    "VolumeProjection": partial(_exactly_one, what="source"),
    "EnvVar": _environment_item,
    "EnvVarSource": _environment_source,
    "ExecAction": _command,
    "PodDNSConfigOption": _option,
    "EnvFromSource": partial(_exactly_one, but=("prefix",), what="source"),
    "LifecycleHandler": partial(_exactly_one, what="of exec, httpGet, sleep and tcpSocket"),
    "Probe": _probe,
    "NodeSelectorRequirement": _selector_values,
    "LabelSelectorRequirement": _selector_values,
    "NodeSelectorTerm": _node_term,
    "NodeSelector": _node_selector,
    "Toleration": _toleration,
    "SeccompProfile": _profile,
    "AppArmorProfile": _profile,
    "ResourceRequirements": _resource_requirements,
    "PodResourceClaim": _claim,
    "KeyToPath": _relative_path,
    "DownwardAPIVolumeFile": _downward_file,
    "VolumeMount": _mount,
    "Container": _container,
}


def check_names(spec: JsonNode) -> None:
    """Check that names are unique where they have to be, and that named volumes exist."""
    seen: set[str] = set()
    volumes = {one.get("name").value for one in spec.get("volumes").items() if isinstance(one.get("name").value, str)}
    _unique(spec.get("volumes"), "name", "volume")
    claims = {
        one.get("name").value for one in spec.get("resourceClaims").items() if isinstance(one.get("name").value, str)
    }
    _unique(spec.get("resourceClaims"), "name", "claim")
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind).items():
            name = container.get("name")
            if isinstance(name.value, str):
                if name.value in seen:
                    name.refuse("is the name of another container, too")
                seen.add(name.value)
            for used in ("volumeMounts", "volumeDevices"):
                for mount in container.get(used).items():
                    volume = mount.get("name")
                    if isinstance(volume.value, str) and volume.value not in volumes:
                        volume.refuse(f"names no volume of the pod: {shown(volume.value)}")
            for used_claim in container.get("resources").get("claims").items():
                claim = used_claim.get("name")
                if isinstance(claim.value, str) and claim.value not in claims:
                    claim.refuse(f"names no claim in resourceClaims of the pod: {shown(claim.value)}")
    if spec.get("ephemeralContainers").items():
        spec.get("ephemeralContainers").refuse(
            "must be left out: ephemeral containers can only be added to running pods"
        )
