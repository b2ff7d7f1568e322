"""Whether a pod template has the structure of a pod: known fields, their types, and what one field demands of another.

It says nothing of what a tenant may use: that is ``admission.py``. What passes here makes manifests that can be built and, as far as
fields can tell, that an API server takes. Rules: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
"""

import ipaddress
import re
from collections.abc import Callable, Iterable
from functools import partial

from trainmaster.protocol.json_limits import JsonNode, shown
from trainmaster.protocol.pod_types import POD_TYPES
from trainmaster.protocol.quantities import parse_quantity

_LONGEST_QUANTITY = 64
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9](-?[a-z0-9])*")
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")
_REQUIRED = {
    name: tuple(field for field, (_, is_required) in fields.items() if is_required)
    for name, fields in POD_TYPES.items()
}
_SUBSCRIPT = re.compile(r"metadata\.(?:labels|annotations)\['([^']*)'\]")
_MEMBER_RESOURCE = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-[0-9]+[KMGT]i)")
_NAMING = frozenset(("metadata.name", "metadata.namespace", "metadata.uid"))
_FILE_FIELDS = _NAMING | {"metadata.labels", "metadata.annotations"}
_ENVIRONMENT_FIELDS = _NAMING | {
    *("spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
}
_LONGEST_NAME, _LONGEST_PORT_NAME = 253, 15
_MOST_ANNOTATIONS = 256 * 1024
_RANGES = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "natural": (0, 2**31 - 1),
    "positive": (1, 2**31 - 1),
    "port": (1, 65535),
    "weight": (1, 100),
    "uid": (0, 2**31 - 1),
    "mode": (0, 0o777),
}


def check_structure(template: JsonNode) -> None:
    """Write what is wrong with the structure of a pod template (``metadata`` and ``spec``) as mistakes of its document."""
    template.only(frozenset(("metadata", "spec")))
    metadata = template.get("metadata")
    _labels(metadata.get("labels"))
    _annotations(metadata.get("annotations"))
    spec = template.get("spec")
    if not spec.is_set:
        spec.refuse("must be set")
    _check_type("PodSpec", spec)
    _check_names(spec)


def _check_type(name: str, node: JsonNode) -> None:
    types = POD_TYPES[name]
    if not isinstance(node.value, dict):
        node.fields()  # says what it is instead
        return
    for field, value in node.value.items():
        kind, is_required = types.get(field, ("", False))
        if value is None or _is_plain(kind, value):
            continue
        if kind:
            _check_kind(kind, node.get(field), is_required=is_required)
        elif isinstance(field, str):
            node.get(field).refuse("is not a field that is known here")
        else:
            node.refuse("has a field whose name is not a string")
    for field in _REQUIRED[name]:
        if node.value.get(field) is None:
            node.get(field).refuse("must be set")
    if name in _RULES:
        _RULES[name](node)


def _is_plain(kind: str, value: object) -> bool:
    """Whether a value is right at first sight, as nearly all are: a short way for what every submission waits for."""
    if kind == "str":
        return type(value) is str and value != "" and value.isascii()
    if kind == "bool":
        return type(value) is bool
    if kind == "[str]" and type(value) is list:
        return all(type(one) is str and one != "" and one.isascii() for one in value)
    return False


def _check_kind(kind: str, node: JsonNode, *, is_required: bool = False) -> None:
    if kind[0] == "[":
        for item in node.items():
            if item.is_set:
                _check_kind(kind[1:-1], item)
            else:
                item.refuse("must not be null")
    elif kind in POD_TYPES:
        _check_type(kind, node)
    elif kind in _RANGES:
        _whole(node, *_RANGES[kind])
    elif kind in _SCALARS:
        _SCALARS[kind](node)
    else:
        _one_of(node, kind.split("|"), empty=not is_required)


# -- scalars


def _text(node: JsonNode, *, empty: bool = False) -> str | None:
    text = node.text()
    if text is None:
        return None
    if not text and not empty:
        node.refuse("must not be empty")
        return None
    return None if _is_no_utf8(node, text) else text


def _is_no_utf8(node: JsonNode, text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        node.refuse("must be text that UTF-8 can write")
        return True
    return False


def _one_of(node: JsonNode, words: list[str], *, empty: bool) -> None:
    """Check a word; an empty one is the same as none to Kubernetes, where it may be left out."""
    text = node.text()
    if text is not None and text not in words and (text or not empty):
        node.refuse(f"must be one of {', '.join(words)}, not {shown(text)}")


def _whole(node: JsonNode, least: int, most: int) -> None:
    number = node.whole()
    if number is not None and not least <= number <= most:
        node.refuse(f"must be a whole number from {least} to {most}")


def _matching(node: JsonNode, pattern: re.Pattern[str], most: int, what: str, *, empty: bool = False) -> None:
    text = node.text()
    if text is None or (empty and not text):
        return
    if len(text) > most or not pattern.fullmatch(text):
        node.refuse(f"must be {what}, not {shown(text)}")


_label = partial(
    _matching, pattern=_LABEL, most=63, what="1 to 63 of a-z, 0-9 and '-' that neither begin nor end with '-'"
)
_name = partial(_matching, pattern=_NAME, most=_LONGEST_NAME, what="a name of an object of Kubernetes", empty=True)
_label_value = partial(
    _matching,
    pattern=_LABEL_NAME,
    most=63,
    what="a label value: up to 63 of A-Z, a-z, 0-9, '-', '_' and '.'",
    empty=True,
)
_port_name = partial(
    _matching,
    pattern=_PORT_NAME,
    most=_LONGEST_PORT_NAME,
    what="up to 15 of a-z, 0-9 and '-' with a letter",
    empty=True,
)


def _is_label_key(text: str) -> bool:
    domain, slash, name = text.rpartition("/")
    is_name = len(name) <= 63 and _LABEL_NAME.fullmatch(name) is not None
    return is_name and (not slash or (len(domain) <= _LONGEST_NAME and _NAME.fullmatch(domain) is not None))


def _label_key(node: JsonNode) -> None:
    text = node.text()
    if text is not None and not _is_label_key(text):
        node.refuse(f"must be a label key such as example.com/name, not {shown(text)}")


def _labels(node: JsonNode) -> None:
    for key, value in node.entries():
        if not _is_label_key(key):
            value.refuse("is not a label key such as example.com/name")
        value.must_be_text()
        if isinstance(value.value, str):
            _label_value(value)


def _annotations(node: JsonNode) -> None:
    size = 0
    for key, value in node.entries():
        if not _is_label_key(key.lower()):
            value.refuse("is not a key such as example.com/name")
        value.must_be_text()
        if isinstance(value.value, str) and not _is_no_utf8(value, value.value):
            size += len(key) + len(value.value.encode())
    if size > _MOST_ANNOTATIONS:
        node.refuse(f"must have at most {_MOST_ANNOTATIONS} bytes together")


def _texts(node: JsonNode) -> None:
    for key, value in node.entries():
        _is_no_utf8(value, key)
        value.must_be_text()
        _text(value, empty=True)


def _resources(node: JsonNode) -> None:
    """Check the names; the amounts are read by ``pod_requests.py``."""
    for name, value in node.entries():
        if not _is_label_key(name):
            value.refuse("is not the name of a resource, such as cpu or nvidia.com/gpu")


def _quantity(node: JsonNode) -> None:
    value = node.value
    text = (
        str(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63 else value
    )
    if not isinstance(text, str) or len(text) > _LONGEST_QUANTITY:
        node.refuse(f"must be a quantity such as 500m or 4Gi, not {shown(value)}")
        return
    try:
        parse_quantity("", text)
    except ValueError as error:
        node.refuse(str(error).encode("utf-8", "replace").decode())


def _quantities(node: JsonNode) -> None:
    _resources(node)
    for _, value in node.entries():
        _quantity(value)


def _port(node: JsonNode) -> None:
    if isinstance(node.value, str):
        _port_name(node)
        if not node.value:
            node.refuse("must be a port's number or name")
    else:
        _whole(node, 1, 65535)


def _environment_name(node: JsonNode) -> None:
    text = node.text()
    if text is not None and not (text.isascii() and text.isprintable() and text and "=" not in text):
        node.refuse(f"must be printable ASCII without '=', not {shown(text)}")


def _address(node: JsonNode) -> None:
    text = node.text()
    if text is None:
        return
    try:
        if ipaddress.ip_address(text).compressed != text.lower():
            node.refuse("must be an IP address in its usual form")
    except ValueError:
        node.refuse(f"must be an IP address, not {shown(text)}")


def _image(node: JsonNode) -> None:
    text = _text(node)
    if text is not None and text != text.strip():
        node.refuse("must not begin or end with a space")


def _search_domain(node: JsonNode) -> None:
    text = node.text()
    if text is not None and text != ".":
        plain = text.removesuffix(".").replace("_", "-")
        if len(plain) > _LONGEST_NAME or not _NAME.fullmatch(plain.strip("-")):
            node.refuse(f"must be the name of a domain, not {shown(text)}")


_SCALARS: dict[str, Callable[[JsonNode], object]] = {
    "any": lambda node: None,
    "str": _text,
    "text": partial(_text, empty=True),
    "bool": JsonNode.flag,
    "label": _label,
    "name": _name,
    "labelkey": _label_key,
    "labelvalue": _label_value,
    "portname": _port_name,
    "labels": _labels,
    "annotations": _annotations,
    "{str}": _texts,
    "resources": _resources,
    "quantity": _quantity,
    "{quantity}": _quantities,
    "intstr": _port,
    "env": _environment_name,
    "image": _image,
    "domain": _search_domain,
    "ip": _address,
}


# -- what one field demands of another


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
        if subscript is None or not _is_label_key(subscript[1]):
            path.refuse(f"is no field that a member can be given: {shown(path.value)}")
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
            _label_value(value)


def _node_selector(node: JsonNode) -> None:
    terms = node.get("nodeSelectorTerms")
    if isinstance(terms.value, list) and not terms.value:
        terms.refuse("must have at least one term")


def _toleration(node: JsonNode) -> None:
    key, operator, value = node.get("key"), node.get("operator").value, node.get("value")
    if isinstance(key.value, str) and key.value:
        _label_key(key)
    elif operator != "Exists":
        node.get("operator").refuse("must be Exists where no key is given")
    if operator == "Exists":
        if value.value:
            value.refuse("must be left out for operator Exists")
    elif isinstance(value.value, str):
        _label_value(value)
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
            continue  # told where amounts are read


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


_RULES: dict[str, Callable[[JsonNode], None]] = {
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


def _check_names(spec: JsonNode) -> None:
    """Names that must differ, and names of volumes that must be there."""
    seen: set[str] = set()
    volumes = {one.get("name").value for one in spec.get("volumes").items() if isinstance(one.get("name").value, str)}
    _unique(spec.get("volumes"), "name", "volume")
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
    if spec.get("ephemeralContainers").items():
        spec.get("ephemeralContainers").refuse("must be left out: they are added to pods that run already")
