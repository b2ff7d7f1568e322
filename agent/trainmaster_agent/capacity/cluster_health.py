"""Counts of nodes in trouble: not ready, flapping, or with device errors. It reads no objects itself."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from trainmaster.protocol.agent import MOST_TROUBLED, ClusterHealth, TroubledNode
from trainmaster_agent.capacity.nodes import NodeState

FLAPPING_SECONDS = 3600.0
FLAPPING_RETURNS = 3
"""A node flaps if it became ready again this often within ``FLAPPING_SECONDS``."""


class _SeenNode(NamedTuple):
    state: NodeState
    device_error: str


class ClusterHealthLedger:
    """The states of all nodes of a cluster, and when they became ready again. ``clock``: seconds; only differences matter."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._nodes: dict[str, _SeenNode] = {}
        self._returns: dict[str, deque[float]] = {}
        """By node: when it became ready again, at most the last ``FLAPPING_RETURNS`` times. A node that was removed and is created
        again counts on."""
        self._reported: ClusterHealth | None = None
        self._has_changed = True

    def put(self, name: str, state: NodeState, device_error: str) -> None:
        """Take the state of a node."""
        before, now = self._nodes.get(name), _SeenNode(state, device_error)
        if before == now:
            return
        self._nodes[name] = now
        self._has_changed = True
        if (
            before is not None
            and before.state is NodeState.NOT_READY
            and state in (NodeState.READY, NodeState.CORDONED)
        ):
            self._returns.setdefault(name, deque(maxlen=FLAPPING_RETURNS)).append(self._clock())

    def drop(self, name: str) -> None:
        """Forget a node that does not exist any more."""
        if self._nodes.pop(name, None) is not None:
            self._has_changed = True

    def _flapping(self) -> set[str]:
        since = self._clock() - FLAPPING_SECONDS
        for name in [name for name, times in self._returns.items() if times[-1] < since]:
            del self._returns[name]
        return {
            name
            for name, times in self._returns.items()
            if len(times) == FLAPPING_RETURNS and times[0] >= since and name in self._nodes
        }

    def report(self) -> ClusterHealth:
        """Return the counts; nodes that Trainmaster must not use are left out. The same object while nothing has changed."""
        flapping = self._flapping()
        if not self._has_changed and self._reported is not None and len(flapping) == self._reported.flapping:
            return self._reported
        self._has_changed = False
        used = {name: seen for name, seen in self._nodes.items() if seen.state is not NodeState.IGNORED}
        flapping &= used.keys()
        states = [seen.state for seen in used.values()]
        self._reported = ClusterHealth(
            ready=states.count(NodeState.READY),
            cordoned=states.count(NodeState.CORDONED),
            not_ready=states.count(NodeState.NOT_READY),
            flapping=len(flapping),
            device_errors=sum(bool(seen.device_error) for seen in used.values()),
            troubled=tuple(_troubled(used.items(), flapping)),
        )
        return self._reported


def _troubled(nodes: Iterable[tuple[str, _SeenNode]], flapping: set[str]) -> Iterable[TroubledNode]:
    found = [(name, seen) for name, seen in nodes if _is_troubled(name, seen, flapping)]
    for name, seen in sorted(found)[:MOST_TROUBLED]:
        troubles = ["not ready"] if seen.state is NodeState.NOT_READY else []
        if name in flapping:
            troubles.append(f"became ready again at least {FLAPPING_RETURNS} times in the last hour")
        if seen.device_error:
            troubles.append(seen.device_error)
        yield TroubledNode(node=name, trouble="; ".join(troubles))


def _is_troubled(name: str, seen: _SeenNode, flapping: set[str]) -> bool:
    return seen.state is NodeState.NOT_READY or name in flapping or bool(seen.device_error)
