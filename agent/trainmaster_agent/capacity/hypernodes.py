"""Volcano's HyperNodes (topology.volcano.sh/v1alpha1): a tree of domains over nodes, as paths of nodes.

A HyperNode has a tier, the lowest being the tightest, and members: nodes or HyperNodes, by exact name, pattern or labels.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from trainmaster_agent.capacity.config import Selector


class _Loose(NamedTuple):
    """A HyperNode that selects some of its nodes by a pattern or by labels."""

    hyper_node: str
    pattern: re.Pattern[str] | None
    selector: Selector | None

    def has(self, node: str, labels: Mapping[str, str]) -> bool:
        if self.pattern is not None:
            return self.pattern.search(node) is not None
        return self.selector is not None and self.selector.holds(labels)


class HyperNodes:
    """``specs``: the ``spec`` of each HyperNode by its name."""

    def __init__(self, specs: Mapping[str, dict[str, Any]]) -> None:
        self._level: dict[str, tuple[int, str]] = {}
        self._parent: dict[str, str] = {}
        self._named: dict[str, list[str]] = {}
        self._loose: list[_Loose] = []
        for name, spec in sorted(specs.items()):
            tier = int(spec.get("tier") or 0)
            self._level[name] = (tier, spec.get("tierName") or f"tier-{tier}")
        for name, spec in sorted(specs.items()):
            for member in spec.get("members") or ():
                self._add(name, member.get("type"), member.get("selector") or {})

    def path(self, node: str, labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """Return the node's domains from wide to narrow. Of HyperNodes of one tier that claim the node, the first by name counts."""
        found: dict[str, None] = dict.fromkeys(self._named.get(node, ()))
        found |= dict.fromkeys(one.hyper_node for one in self._loose if one.has(node, labels))
        above = {name for start in found for name in self._upwards(start)}
        by_tier: dict[int, tuple[str, str]] = {}
        for name in sorted(above):
            tier, level = self._level[name]
            by_tier.setdefault(tier, (level, name))
        return tuple(by_tier[tier] for tier in sorted(by_tier, reverse=True))

    def _add(self, name: str, kind: str | None, selector: dict[str, Any]) -> None:
        exact = (selector.get("exactMatch") or {}).get("name")
        pattern = _pattern((selector.get("regexMatch") or {}).get("pattern"))
        if kind == "HyperNode":
            for child in self._children(exact, pattern):
                if self._level[child][0] < self._level[name][0]:
                    self._parent.setdefault(child, name)
        elif exact is not None:
            self._named.setdefault(exact, []).append(name)
        elif pattern is not None:
            self._loose.append(_Loose(name, pattern, None))
        elif "labelMatch" in selector:
            self._loose.append(_Loose(name, None, _selector(selector["labelMatch"])))

    def _children(self, exact: str | None, pattern: re.Pattern[str] | None) -> Iterator[str]:
        if exact is not None:
            yield from [exact] if exact in self._level else []
        elif pattern is not None:
            yield from [name for name in self._level if pattern.search(name)]

    def _upwards(self, name: str) -> Iterator[str]:
        """Yield the HyperNode and all its ancestors. Tiers rise on the way, so the walk ends."""
        at: str | None = name
        while at is not None:
            yield at
            at = self._parent.get(at)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    # Written for Go's regexp; a pattern that Python cannot compile matches nothing.
    try:
        return re.compile(text) if text else None
    except re.error:
        return None


def _selector(raw: dict[str, Any] | None) -> Selector | None:
    try:
        return None if raw is None else Selector.model_validate(raw)
    except ValidationError:
        return None
