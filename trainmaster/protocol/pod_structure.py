"""The structure of a pod template: known fields, their types, and what one field demands of another.

It says nothing of what a tenant may use: that is ``admission.py``. What passes here makes manifests that can be built and, as far as
fields can tell, that an API server takes. Rules: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
"""

from trainmaster.protocol.json_limits import JsonNode
from trainmaster.protocol.pod_rules import RULES, check_names
from trainmaster.protocol.pod_scalars import RANGES, SCALARS, check_annotations, check_labels, check_whole, check_word
from trainmaster.protocol.pod_types import POD_TYPES
from trainmaster.protocol.suggestions import did_you_mean

_REQUIRED = {
    name: tuple(field for field, (_, is_required) in fields.items() if is_required)
    for name, fields in POD_TYPES.items()
}


def check_structure(template: JsonNode) -> None:
    """Add mistakes to the document for wrong structure of a pod template (``metadata`` and ``spec``)."""
    template.only(frozenset(("metadata", "spec")))
    metadata = template.get("metadata")
    check_labels(metadata.get("labels"))
    check_annotations(metadata.get("annotations"))
    spec = template.get("spec")
    if not spec.is_set:
        spec.refuse("must be set")
    _check_type("PodSpec", spec)
    check_names(spec)


def _check_type(name: str, node: JsonNode) -> None:
    types = POD_TYPES[name]
    if not isinstance(node.value, dict):
        node.fields()  # adds a mistake that names the actual type
        return
    for field, value in node.value.items():
        kind, is_required = types.get(field, ("", False))
        if value is None or _is_plain(kind, value):
            continue
        if kind:
            _check_kind(kind, node.get(field), is_required=is_required)
        elif isinstance(field, str):
            node.get(field).refuse(f"is an unknown field{did_you_mean(field, types)}")
        else:
            node.refuse("has a field whose name is not a text")
    for field in _REQUIRED[name]:
        if node.value.get(field) is None:
            node.get(field).refuse("must be set")
    if name in RULES:
        RULES[name](node)


def _is_plain(kind: str, value: object) -> bool:
    """Return whether a value is valid at first sight, as nearly all are: a fast path, because every submission waits for it."""
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
    elif kind in RANGES:
        check_whole(node, *RANGES[kind])
    elif kind in SCALARS:
        SCALARS[kind](node)
    else:
        check_word(node, kind.split("|"), empty=not is_required)
