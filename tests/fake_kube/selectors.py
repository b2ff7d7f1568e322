"""Label and field selectors as they come in a query, read into predicates.

Grammar: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
"""

import re
from collections.abc import Callable, Iterator

from tests.fake_kube.errors import ApiError
from tests.fake_kube.objects import Object
from tests.fake_kube.resources import Resource

Selector = Callable[[Object], bool]
Labels = dict[str, str]

_REQUIREMENT = re.compile(
    r"""\s*(?:
        (?P<not>!)\s*(?P<absent>[^\s,!=()<>]+)
      | (?P<set_key>[^\s,!=()<>]+)\s+(?P<set_op>in|notin)\s*\((?P<values>[^()]*)\)
      | (?P<key>[^\s,!=()<>]+)\s*(?:(?P<op>==|=|!=)\s*(?P<value>[^\s,!=()<>]*))?
    )\s*(?:,|$)""",
    re.VERBOSE,
)
_FIELDS = {
    "pods": ("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "status.phase", "status.podIP"),
    "events": (
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.uid",
        "reason",
        "type",
    ),
    "namespaces": ("status.phase",),
    "nodes": ("spec.unschedulable",),
}


def read_label_selector(text: str) -> Selector:
    """Read equality, ``in``, ``notin``, presence and absence; raises ApiError 400 for what is none of these."""
    tests = list(_label_tests(text))
    return lambda value: all(test(value["metadata"].get("labels") or {}) for test in tests)


def read_field_selector(text: str, resource: Resource) -> Selector:
    """Read ``=``, ``==`` and ``!=`` on the fields that the resource is indexed by; raises ApiError 400 for others."""
    allowed = ("metadata.name", "metadata.namespace", *_FIELDS.get(resource.plural, ()))
    tests: list[Selector] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"\s*([^=!\s]+)\s*(==|=|!=)\s*(.*?)\s*", part)
        if match is None:
            raise ApiError(400, f"invalid selector: '{text}'; can't understand '{part}'")
        path, operator, wanted = match.groups()
        if path not in allowed:
            raise ApiError(
                400, f'Unable to find "{resource.id}" that match field selector: field label not supported: {path}'
            )
        tests.append(_field_test(path, wanted, operator != "!="))
    return lambda value: all(test(value) for test in tests)


def matches_labels(selector: Object | None, labels: Labels) -> bool:
    """Return whether a ``metav1.LabelSelector`` matches: none selects nothing, an empty one everything."""
    if selector is None:
        return False
    plain = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return plain and all(matches_expression(one, labels) for one in selector.get("matchExpressions") or ())


def matches_expression(expression: Object, labels: Labels) -> bool:
    """Return whether labels meet one requirement of a label selector, or of node affinity, which also has ``Gt`` and ``Lt``."""
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or []
    held = labels.get(key)
    match operator:
        case "In":
            return held in values
        case "NotIn":
            return held not in values
        case "Exists":
            return held is not None
        case "DoesNotExist":
            return held is None
        case "Gt" | "Lt":
            return _compares(operator, held, values)
        case _:
            return False


def _compares(operator: str, held: str | None, values: list[str]) -> bool:
    try:
        here, bound = int(held or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return here > bound if operator == "Gt" else here < bound


def _label_tests(text: str) -> Iterator[Callable[[Labels], bool]]:
    position = 0
    while position < len(text):
        match = _REQUIREMENT.match(text, position)
        if match is None or match.end() == position:
            raise ApiError(400, f"unable to parse requirement: couldn't parse the selector string {text!r}")
        position = match.end()
        yield _label_test(match)


def _label_test(match: re.Match[str]) -> Callable[[Labels], bool]:
    if absent := match["absent"]:
        return lambda labels: absent not in labels
    if key := match["set_key"]:
        values = {value.strip() for value in match["values"].split(",")}
        if match["set_op"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    key, value = match["key"], match["value"]
    match match["op"]:
        case None:
            return lambda labels: key in labels
        case "!=":
            return lambda labels: labels.get(key) != value
        case _:
            return lambda labels: labels.get(key) == value


def _field_test(path: str, wanted: str, equal: bool) -> Selector:
    steps = path.split(".")

    def test(value: Object) -> bool:
        part: object = value
        for step in steps:
            part = part.get(step) if isinstance(part, dict) else None
        held = str(part).lower() if isinstance(part, bool) else str(part or "")
        if path == "spec.unschedulable" and not held:
            held = "false"
        return (held == wanted) is equal

    return test
