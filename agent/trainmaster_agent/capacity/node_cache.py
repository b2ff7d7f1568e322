"""A node in the books: what it has, and the sums of what pods take of it."""

from collections.abc import Iterable

from trainmaster.protocol.quantities import Resources
from trainmaster_agent.capacity.groups import Alike
from trainmaster_agent.capacity.nodes import Amounts, NodeState, TaintKey, Zones
from trainmaster_agent.capacity.pods import Mark
from trainmaster_agent.capacity.topology import Path


class BoundPod:
    """A pod on its node."""

    __slots__ = ("host", "mark", "requests")

    def __init__(self, host: "Host", requests: Amounts, mark: Mark) -> None:
        self.host = host
        self.requests = requests
        self.mark = mark


class Host:
    """A node. It is in the books as long as there is a Node object or any pod that is bound to it."""

    __slots__ = (
        "alike",
        "allocatable",
        "face",
        "foreign",
        "label_keys",
        "label_values",
        "name",
        "own",
        "own_pods",
        "pinned",
        "pods",
        "slots",
        "state",
        "taints",
        "zones",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = NodeState.UNKNOWN
        self.label_keys: tuple[str, ...] = ()
        self.label_values: tuple[str, ...] = ()
        self.taints: tuple[TaintKey, ...] = ()
        self.allocatable: Amounts = ()
        self.slots = 0
        """How many pods it takes."""
        self.zones: Zones | None = None
        self.foreign: Resources = {}
        self.own: Resources = {}
        self.pinned: Resources = {}
        """What foreign pods may have of its NUMA zones at most."""
        self.pods = 0
        """All of them."""
        self.own_pods = 0
        self.face: tuple[tuple[tuple[str, str], ...], Path] | None = None
        """Labels to report, and topology; None: to be worked out."""
        self.alike: Alike | None = None
        """What it was by the last report; None: in no group."""

    @property
    def labels(self) -> dict[str, str]:
        return dict(zip(self.label_keys, self.label_values, strict=True))

    @property
    def is_offered(self) -> bool:
        """Whether it may be given members. Each takes a slot, and those that are used up are not told by amounts."""
        return self.state is NodeState.READY and self.pods < self.slots

    def add(self, pod: BoundPod, sign: int = 1) -> None:
        """Count a pod, or with ``sign`` -1 count it no more."""
        self.pods += sign
        if pod.mark & Mark.OWN:
            self.own_pods += sign
            _add(self.own, pod.requests, sign)
            return
        _add(self.foreign, pod.requests, sign)
        # Devices are of a zone whatever the quality of service.
        is_pinned = pod.mark & Mark.PINNED
        _add(self.pinned, pod.requests if is_pinned else [one for one in pod.requests if "/" in one[0]], sign)

    def free(self) -> Amounts:
        """Allocatable beside foreign pods, exactly; below zero where more is bound than there is."""
        foreign = self.foreign
        return tuple([(name, amount - foreign.get(name, 0)) for name, amount in self.allocatable])

    def zones_free(self) -> tuple[Amounts, ...]:
        """What each NUMA zone has beside foreign pods, never more than that.

        It is known how much of a zone is taken, and not by whom. Foreign pods have at most what all of them on this node ask for,
        so at most that is taken off each zone: with none of them, what our own members have is free, as everywhere in a report.
        """
        if self.zones is None:
            return ()
        pinned = self.pinned
        out = []
        for most, taken in self.zones.zones:
            used = dict(taken)
            out.append(tuple([(name, amount - min(used.get(name, 0), pinned.get(name, 0))) for name, amount in most]))
        return tuple(out)

    def free_now(self) -> Resources:
        """What is left beside all pods, ``pods`` themselves included."""
        left = {name: max(0, amount - self.own.get(name, 0)) for name, amount in self.free()}
        left["pods"] = max(0, self.slots - self.pods)
        return left


def _add(total: Resources, amounts: Iterable[tuple[str, int]], sign: int) -> None:
    for name, amount in amounts:
        left = total.get(name, 0) + sign * amount
        if left:
            total[name] = left
        else:
            del total[name]
