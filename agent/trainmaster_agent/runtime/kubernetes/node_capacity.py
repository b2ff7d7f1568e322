"""Free capacity by the agent's own ledger: whether a gang could ever fit, and, where gangs are emulated, whether it fits now."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain

from trainmaster.cluster_model.eligibility import pod_toleration
from trainmaster.cluster_model.numa_policies import NumaPolicy
from trainmaster.cluster_model.numa_zones import NodeZones
from trainmaster.cluster_model.packing import Assignment, Need, Node, PackingShortfall, in_members, place
from trainmaster.protocol.agent import HOST_LEVEL
from trainmaster.protocol.jobs import AffinityTerm
from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.quantities import Resources
from trainmaster_agent.capacity.inventory import Inventory
from trainmaster_agent.capacity.node_index import AllowedNodes, UsableNode, UsableZones
from trainmaster_agent.capacity.shared_gpus import GpuParts
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.runtime.kubernetes.run_spec import Facts

_SORTS_SECONDS = 1.0


class NodeCapacity:
    """Assigns nodes by the agent's ledger. Reserves capacity for gangs that were assigned nodes but are not bound yet."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self.binds_zones = False
        """Whether members with a NUMA policy get nodes by the ledger of zones, as no scheduler looks after that."""
        self._kept: dict[str, dict[str, Resources]] = {}
        """By run: the capacity reserved on each node."""
        self._alone: set[str] = set()
        """Those of these runs whose members have nodes for themselves."""
        self._sorts: tuple[list[Node], dict[str, Resources]] = [], {}
        self._sorts_until = 0.0

    @property
    def count(self) -> int:
        """Return the number of nodes."""
        return self._inventory.node_count

    def never(self, facts: Facts, pods: Mapping[str, Mapping[str, object]]) -> str | None:
        """Return why no node could take a member even with none of ours running; None if nodes could, or may come."""
        if self._inventory.has_pools():
            return None
        if self._lack(facts, pods) is None:
            return None
        # A node that has just joined may change the answer: a refusal is based on the nodes of this moment.
        self._sorts_until = 0.0
        return self._lack(facts, pods)

    def _lack(self, facts: Facts, pods: Mapping[str, Mapping[str, object]]) -> str | None:
        nodes, free = self._unlike_nodes()
        for role in facts.roles.values():
            (need,) = self._needs(facts, {role.name: role.members_per_claim}, pods)
            if any(need.suits(node) and need.count_fitting_on(node, free[node.name], {}) for node in nodes):
                continue  # ``place`` would sort all nodes to find the best one
            found = place(nodes, free, [need])
            if isinstance(found, PackingShortfall):
                return found.sentence
        return None

    def _unlike_nodes(self) -> tuple[list[Node], dict[str, Resources]]:
        """Return one node of each kind and its capacity without our members; computed once a second at most."""
        now = time.monotonic()
        if now < self._sorts_until:
            return self._sorts
        kinds: dict[tuple[object, ...], Node] = {}
        for name, labels, taints, path, _, allocatable, usable, is_occupied, _ in self._inventory.standing():
            zones = None if usable is None else NodeZones.of(usable.policy, usable.allocatable, usable.allocatable)
            key = (tuple(labels.items()), taints, path, tuple(allocatable.items()), zones, is_occupied)
            kinds.setdefault(key, Node(name, allocatable, labels, taints, path, zones, is_occupied))
        self._sorts = list(kinds.values()), {node.name: node.allocatable for node in kinds.values()}
        self._sorts_until = now + _SORTS_SECONDS
        return self._sorts

    def find(
        self,
        run: str,
        facts: Facts,
        sizes: Mapping[str, int],
        pods: Mapping[str, Mapping[str, object]],
        level: str | None,
        beside: str = "",
    ) -> Assignment | PackingShortfall:
        """Find nodes for ``sizes`` members now, beside all pods and all capacity reserved for other gangs.

        They are in one domain of the level that the job prefers, if there is one with room, and always in one of ``level``.

        ``beside``: a node with a member of the gang, in whose domain of ``level`` the others have to be.
        """
        needs = self._needs(facts, sizes, pods)
        if len(needs) == 1 and level is None and facts.spec.topology.preferred is None:
            found = place(*self._few(run, needs[0]), needs)
            if not isinstance(found, PackingShortfall):
                return in_members(found, needs)  # else all nodes are looked at, for the words
        nodes, free = self._ledger(run)
        preferred = facts.spec.topology.preferred
        if preferred is not None and preferred != level:
            close = place(_around(_around(nodes, beside, level), beside, preferred), free, needs, preferred)
            if not isinstance(close, PackingShortfall) and _shares(nodes, close, level):
                return in_members(close, needs)
        found = place(_around(nodes, beside, level), free, needs, level)
        return found if isinstance(found, PackingShortfall) else in_members(found, needs)

    def follow(
        self,
        run: str,
        facts: Facts,
        plan: MemberPlacement,
        pods: Mapping[str, Mapping[str, object]],
        level: str | None,
    ) -> Assignment | None:
        """Find nodes now in the node groups of the dispatcher's plan; None if they do not have the room, or there is no plan."""
        found: Assignment = {}
        for group, roles in plan.items():
            needs = self._needs(facts, roles, pods)
            few = len(needs) == 1 and level is None
            nodes, free = self._few(run, needs[0], group) if few else self._ledger(run, group)
            part = place(nodes, free, needs, level)
            if isinstance(part, PackingShortfall):
                return None
            found |= in_members(part, needs)
        return found or None

    def _ledger(self, run: str, group: str | None = None) -> tuple[list[Node], dict[str, Resources]]:
        """Return the nodes that take members, of a node group or all, and their free amounts beside all pods and what is reserved for
        other runs than this.
        """
        nodes: list[Node] = []
        free: dict[str, Resources] = {}
        taken, whole = self._promised(but=run), self._whole_nodes(but=run)
        for of, sort in self._inventory.sorts():
            if group is None or of == group:
                for usable in sort.values():
                    node, free[node.name] = _beside(usable, taken.get(usable.name), is_whole=usable.name in whole)
                    nodes.append(node)
        return nodes, free

    def _few(self, run: str, need: Need, group: str | None = None) -> tuple[list[Node], dict[str, Resources]]:
        """Return as much of the ledger as one role needs: of nodes with the same capacity no more than it has members."""
        nodes: list[Node] = []
        free: dict[str, Resources] = {}
        taken, whole = self._promised(but=run), self._whole_nodes(but=run)
        for of, sort in self._inventory.sorts():
            if (group is not None and of != group) or not need.count_fitting(next(iter(sort.values())).free):
                continue
            missing = need.count
            promised = [(name, sort[name]) for name in taken if name in sort]
            for name, usable in chain(promised, sort.items()):  # those of which some is promised differ from each other
                if name in free:
                    continue
                node, left = _beside(usable, taken.get(name), is_whole=name in whole)
                if need.suits(node):
                    nodes.append(node)
                    free[name] = left
                    missing -= name not in taken
                    if not missing:
                        break
        return nodes, free

    def _needs(self, facts: Facts, sizes: Mapping[str, int], pods: Mapping[str, Mapping[str, object]]) -> list[Need]:
        """Return what the members of each role need of nodes; those that share devices count as one."""
        numa = facts.spec.topology.numa if self.binds_zones else NumaPolicy.NONE
        needs = []
        for role in facts.roles.values():
            if not (count := sizes.get(role.name)):
                continue
            # Fewer than share a claim are members that start again: the others have the devices.
            many = role.members_per_claim if count % role.members_per_claim == 0 else 1
            amounts = role.used_by(many) if many == role.members_per_claim else role.own
            most = None if role.max_per_node is None else max(1, role.max_per_node // many)
            need = _need(role.name, count // many, self.gpu_parts.on_node(amounts), pods[role.name], most, numa)
            resources = need.resources | {"pods": many}
            needs.append(replace(need, resources=resources, exclusive=facts.is_exclusive, members_per_unit=many))
        return needs

    @property
    def gpu_parts(self) -> GpuParts:
        """Return the way in which members get parts of GPUs."""
        return self._inventory.gpu_parts

    def keep(self, run: str, facts: Facts, places: Assignment) -> None:
        """Reserve these nodes' capacity for a run."""
        self._kept[run] = {
            node: _total(
                (self.gpu_parts.on_node(facts.roles[role].used_by(count)), count) for role, count in roles.items()
            )
            for node, roles in places.items()
        }
        if facts.is_exclusive:
            self._alone.add(run)

    def settle(self, run: str, pods: Iterable[PodSight], *, has_run: bool) -> None:
        """Drop the reservation once all members have nodes, because then the pods themselves are counted.

        ``has_run``: the gang was complete, so that no more pods are awaited than exist.
        """
        kept = self._kept.get(run)
        if kept is None:
            return
        placed = [pod.node for pod in pods]
        if all(placed) and (has_run or len(placed) >= sum(amounts["pods"] for amounts in kept.values())):
            self.drop(run)

    def drop(self, run: str) -> None:
        self._kept.pop(run, None)
        self._alone.discard(run)

    def label(self, node: str, key: str) -> str | None:
        """Return a label of a node."""
        return self._inventory.labels_of(node).get(key)

    def enforcing(self, numa: str) -> AllowedNodes | None:
        """Return the nodes that hold members to the NUMA policy ``numa``; None where members need not be kept on them."""
        names = self._inventory.nodes_enforcing(numa)
        if names is None:
            return None
        return AllowedNodes(HOST_LEVEL, tuple(self.label(name, HOST_LEVEL) or name for name in names))

    def of_level(self, level: str) -> AllowedNodes | None:
        """Return the nodes that have a domain of a level; None where the label of the level says it."""
        return self._inventory.nodes_of_level(level)

    def domain(self, places: Assignment, level: str) -> Mapping[str, str]:
        """Return the path of the domain at ``level`` that contains all of these places."""
        node = next(iter(places))
        usable, found = self._inventory.usable(node), {}
        for key, value in () if usable is None else usable.path:
            found[key] = value
            if key == level:
                break
        return found

    def _promised(self, but: str) -> dict[str, Resources]:
        total: dict[str, Resources] = {}
        for run, places in self._kept.items():
            if run == but:
                continue
            for node, amounts in places.items():
                into = total.setdefault(node, {})
                for name, amount in amounts.items():
                    into[name] = into.get(name, 0) + amount
        return total

    def _whole_nodes(self, but: str) -> set[str]:
        """Return the nodes that are reserved completely, for members of other runs than ``but``."""
        return {node for run in self._alone if run != but for node in self._kept[run]}


def _total(parts: Iterable[tuple[Resources, int]]) -> Resources:
    """Return the sums; ``parts``: what members use together, and their number."""
    total: Resources = {"pods": 0}
    for used, count in parts:
        total["pods"] += count
        for name, amount in used.items():
            total[name] = total.get(name, 0) + amount
    return total


def _around(nodes: list[Node], beside: str, level: str | None) -> list[Node]:
    """Return the nodes in the domain of ``level`` that the node ``beside`` is in; all without a level or such a node."""
    if level is None or not beside:
        return nodes
    domain = next((node.domain(level) for node in nodes if node.name == beside), None)
    return [node for node in nodes if node.domain(level) == domain]


def _shares(nodes: list[Node], places: Assignment, level: str | None) -> bool:
    """Return whether all of these places are in one domain of ``level``."""
    return level is None or len({node.domain(level) for node in nodes if node.name in places}) == 1


def _beside(usable: UsableNode, promised: Resources | None, *, is_whole: bool) -> tuple[Node, Resources]:
    """Return a node, and what it has free beside what is promised to members that are not bound yet; ``is_whole``: all of it is."""
    name, labels, taints, path, free, allocatable, zones, is_occupied, has_members = usable
    left = None if zones is None else _zones(zones, promised or {})
    node = Node(name, allocatable, labels, taints, path, left, is_occupied, has_members or promised is not None)
    if is_whole:
        return node, dict.fromkeys(free, 0)
    if promised is None:
        return node, free
    return node, {resource: max(0, amount - promised.get(resource, 0)) for resource, amount in free.items()}


def _zones(usable: UsableZones, promised: Resources) -> NodeZones:
    """Return the zones of a node; what is promised to members that are not bound yet may come to be in any of them."""
    free = [{name: max(0, amount - promised.get(name, 0)) for name, amount in zone.items()} for zone in usable.free]
    return NodeZones.of(usable.policy, usable.allocatable, free)


def _need(role: str, count: int, requests: Resources, pod: Mapping[str, object], apart: int | None, numa: str) -> Need:
    """Return what a member needs of its node, from its manifest."""
    spec: dict[str, object] = dict(pod)
    terms: list[AffinityTerm] = []
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}  # type: ignore[attr-defined]
    required = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or []
    if len(required) == 1:
        # Of several terms any one is enough; the ledger ignores them, the scheduler does not.
        terms = [
            AffinityTerm(key=one["key"], operator=one["operator"], values=tuple(one.get("values") or ()))
            for one in required[0].get("matchExpressions") or []
        ]
    return Need(
        role,
        count,
        {**requests, "pods": 1},
        node_selector=dict(spec.get("nodeSelector") or {}),  # type: ignore[call-overload]
        node_affinity=tuple(terms),
        tolerations=tuple(pod_toleration(one) for one in spec.get("tolerations") or ()),  # type: ignore[attr-defined]
        max_per_node=apart,
        numa=numa,
    )
