"""`Quotas`: what the ResourceQuotas of the namespaces for jobs leave for a run.

A quota refuses pods one by one, and a gang with some pods refused would hold resources in vain. So the shortfall is reported before
any pod is created. ``status.used`` lags behind and other pods may come first: the API server decides.
Rules: https://kubernetes.io/docs/concepts/policy/resource-quotas/
"""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from trainmaster.protocol.quantities import Resources, format_apart, format_quantity, parse_quantity

_PODS = ("pods", "count/pods")
_NOT_OF_PODS = ("requests.storage",)


class PodTraits(NamedTuple):
    """Pod properties that scopes of quotas select by."""

    terminating: bool = False
    """Whether they have ``activeDeadlineSeconds``."""
    priority_class: str = ""
    best_effort: bool = False
    """Whether they neither request nor limit cores and memory."""


class _Quota(NamedTuple):
    name: str
    scopes: tuple[tuple[str, str, tuple[str, ...]], ...]
    """Name, operator, values."""
    lines: tuple[tuple[str, int, int], ...]
    """Name as in the quota, hard limit, used amount."""


class Quotas:
    """ResourceQuotas of a cluster, cached from a watch; takes objects as raw JSON."""

    def __init__(self) -> None:
        self._quotas: dict[str, dict[str, _Quota]] = {}

    def put(self, obj: dict[str, Any]) -> None:
        name = obj["metadata"]["name"]
        self._quotas.setdefault(obj["metadata"]["namespace"], {})[name] = _read(name, obj)

    def drop(self, key: str) -> None:
        """Drop a quota by its key ``namespace/name``."""
        namespace, _, name = key.partition("/")
        self._quotas.get(namespace, {}).pop(name, None)

    def relisted(self, keys: Collection[str]) -> None:
        """Drop the quotas that are not among ``keys``, after a listing has been put."""
        held = [f"{namespace}/{name}" for namespace, quotas in self._quotas.items() for name in quotas]
        for key in frozenset(held) - frozenset(keys):
            self.drop(key)

    def shortfall(
        self,
        namespace: str,
        requests: Resources,
        pods: int,
        limits: Resources | None = None,
        traits: PodTraits = PodTraits(),  # noqa: B008 - it never changes
    ) -> str | None:
        """Return a sentence naming what a quota lacks for a run; None if every quota suffices.

        ``requests`` and ``limits`` are the totals of all its pods. Without ``limits``, quotas on limits are not checked.
        """
        for _, quota in sorted(self._quotas.get(namespace, {}).items()):
            if not all(_holds(scope, traits) for scope in quota.scopes):
                continue
            for line, hard, used in quota.lines:
                need = _need(line, requests, pods, limits or {})
                left = max(0, hard - used)
                if need > left:
                    return f"quota {quota.name} in namespace {namespace}: {_words(line, hard, left, need)}"
        return None


def _words(line: str, hard: int, left: int, need: int) -> str:
    if line in _PODS:
        return f"{left} {'pod' if left == 1 else 'pods'} of {hard} {'is' if left == 1 else 'are'} left, the run needs {need}"
    resource = _resource(line)
    has, wants = format_apart(resource, left, need)
    return f"{has} of {format_quantity(resource, hard)} {line} are left, the run needs {wants}"


def _resource(line: str) -> str:
    return line.removeprefix("requests.").removeprefix("limits.")


def _need(line: str, requests: Resources, pods: int, limits: Resources) -> int:
    if line in _PODS:
        return pods
    return (limits if line.startswith("limits.") else requests).get(_resource(line), 0)


def _holds(scope: tuple[str, str, tuple[str, ...]], traits: PodTraits) -> bool:
    """Return whether a quota with this scope counts pods with ``traits``. Unknown scopes are taken to select other pods."""
    name, operator, values = scope
    match name:
        case "Terminating":
            return traits.terminating
        case "NotTerminating":
            return not traits.terminating
        case "BestEffort":
            return traits.best_effort
        case "NotBestEffort":
            return not traits.best_effort
        case "PriorityClass":
            return _selects(traits.priority_class, operator, values)
        case _:
            return False


def _selects(value: str, operator: str, values: tuple[str, ...]) -> bool:
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "DoesNotExist":
            return not value
        case _:
            return bool(value)


def _read(name: str, obj: dict[str, Any]) -> _Quota:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    # The status holds what the quota controller enforces; a new quota has none for a moment.
    hard, used = status.get("hard") or spec.get("hard") or {}, status.get("used") or {}
    selectors = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    scopes = (
        *[(scope, "Exists", ()) for scope in spec.get("scopes") or ()],
        *[(one["scopeName"], one["operator"], tuple(one.get("values") or ())) for one in selectors],
    )
    return _Quota(name, scopes, tuple(_lines(hard, used)))


def _lines(hard: dict[str, Any], used: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    for line, text in sorted(hard.items()):
        if line in _NOT_OF_PODS or (line.startswith("count/") and line not in _PODS):
            continue
        resource = "" if line in _PODS else _resource(line)
        try:
            yield line, parse_quantity(resource, str(text)), parse_quantity(resource, str(used.get(line, "0")))
        except ValueError:
            continue  # the API server decides
