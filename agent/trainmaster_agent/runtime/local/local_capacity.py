"""Capacity of the declared cluster, and its use by runs."""

from collections.abc import Mapping

from trainmaster.cluster_model.capabilities import WITHOUT_PODS, Capability
from trainmaster.cluster_model.numa_policies import STRICT_NUMA
from trainmaster.cluster_model.packing import Assignment, Need, Node, PackingShortfall, in_members, place
from trainmaster.protocol.agent import CapacityReport, NodeGroup, Taint
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.quantities import Resources, parse_resources
from trainmaster_agent.runtime.local.config import LocalCluster

PODS = "pods"
"""As on Kubernetes, a node has a maximum number of members. No member requests it by itself."""


_CAPABILITIES = tuple(sorted((*WITHOUT_PODS, Capability.ATTACH, Capability.EXEC, Capability.PORT_FORWARD)))


class LocalCapacity:
    """Accounting of the cluster: never more is assigned than its nodes declare."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._nodes: list[Node] = []
        self._group: dict[str, str] = {}
        self._report: list[NodeGroup] = []
        for name, nodes in zip(cluster.group_names, cluster.nodes, strict=True):
            amounts = parse_resources(nodes.allocatable)
            labels = {**nodes.topology, **nodes.labels}
            taints = tuple(Taint(key=taint.key, value=taint.value, effect=taint.effect) for taint in nodes.taints)
            topology = tuple(nodes.topology.items())
            self._report.append(
                NodeGroup(name=name, count=nodes.count, free=amounts, labels=labels, taints=taints, topology=topology)
            )
            amounts = amounts | {PODS: nodes.most_members}
            for number in range(nodes.count):
                node = Node(name if nodes.count == 1 else f"{name}-{number}", amounts, labels, taints, topology)
                self._nodes.append(node)
                self._group[node.name] = name
        self._used: dict[str, dict[str, Resources]] = {}
        self._free = {node.name: dict(node.allocatable) for node in self._nodes}

    def report(self) -> CapacityReport:
        """Return the capacity report for the dispatcher; our own members are never subtracted."""
        return CapacityReport(
            groups=tuple(self._report),
            runtime="local",
            scheduler="local",
            capabilities=_CAPABILITIES,
            dies_without_agent=True,
            datasets=self._cluster.datasets,
        )

    def find(self, spec: JobSpec, sizes: dict[str, int], *, empty: bool = False) -> Assignment | PackingShortfall:
        """Find nodes for the gang now, or, with ``empty``, if nothing else ran."""
        free = {node.name: node.allocatable for node in self._nodes} if empty else self._free
        needs = [
            Need.of(role, role.template, sizes.get(role.name, 0), {PODS: 1}) for role in spec.roles if role.template
        ]
        found: Assignment | PackingShortfall = PackingShortfall("")
        if spec.topology.required is None and spec.topology.preferred is not None:
            found = place(self._nodes, free, needs, spec.topology.preferred)
        if isinstance(found, PackingShortfall):
            found = place(self._nodes, free, needs, spec.topology.required)
        return found if isinstance(found, PackingShortfall) else in_members(found, needs)

    def lacks(self, spec: JobSpec) -> str | None:
        """Return what the job needs and this cluster will never have, other than capacity; None if there is nothing."""
        missing = sorted(set(spec.placement.datasets) - set(self._cluster.datasets))
        if missing:
            return f"the datasets {', '.join(missing)} are not here"
        if spec.topology.numa in STRICT_NUMA:
            return f"the local runtime cannot promise NUMA policy {spec.topology.numa}"
        return None

    def use(self, spec: JobSpec, nodes: Assignment) -> dict[str, Resources]:
        """Return the resources that a gang with these places takes of each node."""
        needs = {role.name: Need.of(role, role.template, 1, {PODS: 1}) for role in spec.roles if role.template}
        used: dict[str, Resources] = {}
        for node, roles in nodes.items():
            of_node = used.setdefault(node, {})
            for role, count in roles.items():
                units = -(-count // needs[role].members_per_unit)
                for name, amount in needs[role].resources.items():
                    of_node[name] = of_node.get(name, 0) + amount * units
        return used

    @property
    def group_of(self) -> Mapping[str, str]:
        """The group of each node, as reported."""
        return self._group

    def take(self, run: str, used: dict[str, Resources]) -> None:
        """Set the resources that a run uses; nodes that the configuration no longer has count for nothing."""
        self.give_back(run)
        self._used[run] = used
        self._move(used, -1)

    def give_back(self, run: str) -> None:
        self._move(self._used.pop(run, {}), +1)

    def _move(self, used: dict[str, Resources], sign: int) -> None:
        for node, amounts in used.items():
            free = self._free.get(node)
            if free is not None:
                for name, amount in amounts.items():
                    free[name] = free.get(name, 0) + sign * amount
