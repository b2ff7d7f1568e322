"""Preflight: what a cluster lacks for a run beyond its in-cluster scheduler's checks. Pure, over the agent's ledger."""

from trainmaster.protocol.quantities import Resources
from trainmaster_agent.capacity.quotas import PodTraits, Quotas
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster_agent.runtime.kubernetes.node_capacity import NodeCapacity
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker


def what_lacks(
    tracker: RunTracker, config: KubernetesCluster, node_capacity: NodeCapacity, quotas: Quotas
) -> str | None:
    """Return the datasets, nodes or quota that the run needs and waiting will not bring; None where nothing is lacking."""
    spec = tracker.facts.spec
    missing = sorted(set(spec.placement.datasets) - set(config.datasets))
    if missing:
        return f"this cluster does not have the datasets {', '.join(missing)}"
    manifests = tracker.manifests
    pods = {} if manifests is None else {role.name: role.pod for role in manifests.gang.roles}
    never = node_capacity.never(tracker.facts, pods)
    if never is not None:
        return never
    total: Resources = {}
    for role in tracker.facts.roles.values():
        for name, amount in node_capacity.gpu_parts.requested(role.requests).items():
            total[name] = total.get(name, 0) + amount * tracker.sizes.get(role.name, 0)
    return quotas.shortfall(
        tracker.record.namespace,
        total,
        sum(tracker.sizes.values()),
        limits=total if all(role.template is not None for role in spec.roles) else None,
        traits=PodTraits(
            terminating=tracker.facts.time_limit is not None, priority_class=config.placement.priority_class
        ),
    )
