"""A cached node: what it has, and the sums of what pods take from it."""

from collections.abc import Iterable

from trainmaster.protocol.device_parts import DEFAULT_DEVICE, part_resource
from trainmaster.protocol.quantities import Resources
from trainmaster_agent.capacity.device_classes import NO_DEVICES
from trainmaster_agent.capacity.groups import NodeTraits
from trainmaster_agent.capacity.hami_gpus import HamiGpu, Taken, in_use, left_of_gpus
from trainmaster_agent.capacity.nodes import Amounts, NodeState, TaintKey, Zones
from trainmaster_agent.capacity.pods import Mark
from trainmaster_agent.capacity.shared_gpus import Share
from trainmaster_agent.capacity.topology import Path


class BoundPod:
    """A pod that is bound to a node."""

    __slots__ = ("host", "mark", "requests", "share", "taken")

    def __init__(
        self,
        host: "Host",
        requests: Amounts,
        mark: Mark,
        share: Share | None = None,
        taken: tuple[Taken, ...] = (),
    ) -> None:
        """``share``: its place on a GPU that KAI shares. ``taken``: what HAMi gave it of GPUs."""
        self.host = host
        self.requests = requests
        self.mark = mark
        self.share = share
        self.taken = taken


class Host:
    """A cached node. Kept as long as its Node object exists or a pod is bound to it."""

    __slots__ = (
        "allocatable",
        "devices",
        "exclusive_pods",
        "face",
        "foreign",
        "foreign_pods",
        "hami_gpus",
        "label_keys",
        "label_values",
        "name",
        "own",
        "own_pinned",
        "own_pods",
        "per_node",
        "pinned",
        "pods",
        "sharers",
        "slots",
        "state",
        "taints",
        "traits",
        "unreported",
        "zones",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = NodeState.UNKNOWN
        self.label_keys: tuple[str, ...] = ()
        self.label_values: tuple[str, ...] = ()
        self.taints: tuple[TaintKey, ...] = ()
        self.allocatable: Amounts = ()
        self.devices = NO_DEVICES
        """Devices of Dynamic Resource Allocation."""
        self.slots = 0
        """The most pods it takes."""
        self.zones: Zones | None = None
        self.foreign: Resources = {}
        self.own: Resources = {}
        self.per_node: Resources = {}
        """Use of foreign pods that each node gets; part of ``foreign``."""
        self.pinned: Resources = {}
        """The most that foreign pods may use of its NUMA zones."""
        self.own_pinned: Resources = {}
        """The most that our members may use of its NUMA zones."""
        self.unreported: Resources = {}
        """The most that pods that came since the last report of its NUMA zones may use of them."""
        self.sharers: set[BoundPod] = set()
        """Pods on GPUs that KAI or HAMi share."""
        self.hami_gpus: tuple[HamiGpu, ...] = ()
        """GPUs that HAMi divides."""
        self.pods = 0
        """Number of all pods on it."""
        self.own_pods = 0
        self.exclusive_pods = 0
        """Number of our members that have the node for themselves."""
        self.foreign_pods = 0
        """Number of foreign pods, without those that each node gets."""
        self.face: tuple[tuple[tuple[str, str], ...], Path] | None = None
        """Labels to report, and topology; None: not computed yet."""
        self.traits: NodeTraits | None = None
        """Its traits in the last report; None: in no group."""

    @property
    def labels(self) -> dict[str, str]:
        return dict(zip(self.label_keys, self.label_values, strict=True))

    @property
    def is_offered(self) -> bool:
        """Return whether members may be placed on the node. Pod slots are checked here because amounts do not show them."""
        return self.state is NodeState.READY and self.pods < self.slots

    @property
    def is_occupied(self) -> bool:
        """Return whether foreign pods are on it, beside those that each node gets."""
        return self.foreign_pods > 0

    def add(self, pod: BoundPod, sign: int = 1) -> None:
        """Count a pod, or with ``sign`` -1 stop counting it."""
        self.pods += sign
        if pod.share is not None or pod.taken:
            (self.sharers.add if sign > 0 else self.sharers.discard)(pod)
        # Devices belong to a zone whatever the quality of service.
        is_pinned = pod.mark & Mark.PINNED
        pinned = pod.requests if is_pinned else [one for one in pod.requests if "/" in one[0]]
        if sign > 0:
            _add(self.unreported, pinned, 1)
        if pod.mark & Mark.OWN:
            self.own_pods += sign
            self.exclusive_pods += sign * bool(pod.mark & Mark.EXCLUSIVE)
            _add(self.own, pod.requests, sign)
            _add(self.own_pinned, pinned, sign)
            return
        _add(self.foreign, pod.requests, sign)
        if pod.mark & Mark.PER_NODE:
            _add(self.per_node, pod.requests, sign)
        else:
            self.foreign_pods += sign
        _add(self.pinned, pinned, sign)

    def free(self) -> Amounts:
        """Return the exact allocatable amounts beside foreign pods; below zero where more is bound than exists."""
        foreign = self.foreign
        found = [(name, amount - foreign.get(name, 0)) for name, amount in self.allocatable]
        if self.hami_gpus and self.sharers:
            used = in_use(self.hami_gpus, self.foreign_taken())
            found = [(name, amount - used * (name == DEFAULT_DEVICE)) for name, amount in found]
        if self.devices.usable:
            # Where a device plugin offers the same name, kube-scheduler allocates the plugin's devices.
            plugged = {name for name, _ in found}
            found = sorted([*found, *(one for one in self.devices.usable if one[0] not in plugged)])
        return tuple(found)

    def thousandths(self, *, now: bool) -> Resources:
        """Return what is left of GPUs that HAMi divides beside foreign pods, or, ``now``, beside all; nothing without any."""
        if not self.hami_gpus:
            return {}
        taken = self._taken() if now else self.foreign_taken()
        return {part_resource(DEFAULT_DEVICE): left_of_gpus(self.hami_gpus, taken)}

    def _taken(self) -> list[Taken]:
        return [one for pod in self.sharers for one in pod.taken]

    def foreign_taken(self) -> list[Taken]:
        """Return what foreign pods have of GPUs by HAMi."""
        return [one for pod in self.sharers if not pod.mark & Mark.OWN for one in pod.taken]

    def free_when_new(self) -> Amounts:
        """Return the exact amounts that a node like this one offers at first: beside the pods that each node gets."""
        per_node = self.per_node
        return tuple([(name, amount - per_node.get(name, 0)) for name, amount in self.allocatable])

    def zones_free(self) -> tuple[Amounts, ...]:
        """Return the free amounts of each NUMA zone beside foreign pods, as a lower bound.

        The zone's used amount is known, but not its owner. Foreign pods use at most what all of them on this node request, so at most
        that is subtracted from each zone; without foreign pods, what our own members use counts as free, as everywhere in a report.
        """
        if self.zones is None:
            return ()
        pinned = self.pinned
        out = []
        for most, taken in self.zones.zones:
            used = dict(taken)
            out.append(tuple([(name, amount - min(used.get(name, 0), pinned.get(name, 0))) for name, amount in most]))
        return tuple(out)

    def zones_now(self) -> tuple[Resources, ...]:
        """Return what is left in each NUMA zone beside all pods, as a lower bound.

        What the last report does not account for may be in any zone, so it is subtracted from each: what pods request beyond the used
        amounts, and what pods that came since then request, as the report may contain others that have ended.
        """
        if self.zones is None:
            return ()
        reported: Resources = {}
        for _, taken in self.zones.zones:
            _add(reported, taken, 1)
        unseen = {
            name: max(
                self.pinned.get(name, 0) + self.own_pinned.get(name, 0) - reported.get(name, 0),
                self.unreported.get(name, 0),
            )
            for name in {*self.pinned, *self.own_pinned, *self.unreported}
        }
        return tuple(
            {name: max(0, amount - dict(taken).get(name, 0) - max(0, unseen.get(name, 0))) for name, amount in most}
            for most, taken in self.zones.zones
        )

    def free_now(self) -> Resources:
        """Return the amounts left beside all pods; ``pods`` (slots) is one of them. Nothing is left beside an exclusive member."""
        if self.exclusive_pods:
            return {name: 0 for name, _ in self.free()} | {"pods": 0}
        own = self.own
        if self.devices.own:
            # Pods that have devices by claims do not request them by name.
            own = own | {name: max(amount, own.get(name, 0)) for name, amount in self.devices.own}
        left = {name: max(0, amount - own.get(name, 0)) for name, amount in self.free()}
        left["pods"] = max(0, self.slots - self.pods)
        if self.hami_gpus:
            # Parts that our members have are among no requests, and whole GPUs among those of others that HAMi gave none.
            used = in_use(self.hami_gpus, self._taken()) + self.foreign.get(DEFAULT_DEVICE, 0)
            left[DEFAULT_DEVICE] = max(0, len(self.hami_gpus) - used)
        return left | self.thousandths(now=True)


def _add(total: Resources, amounts: Iterable[tuple[str, int]], sign: int) -> None:
    for name, amount in amounts:
        left = total.get(name, 0) + sign * amount
        if left:
            total[name] = left
        else:
            del total[name]
