"""What a cluster lacks for a run, beyond what its in-cluster scheduler would say. Pure, over the agent's books."""

from trainmaster.protocol.quantities import Resources
from trainmaster_agent.capacity.quotas import PodTraits, Quotas
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster_agent.runtime.kubernetes.node_capacity import NodeCapacity
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker


def what_lacks(book: RunTracker, config: KubernetesCluster, room: NodeCapacity, quotas: Quotas) -> str | None:
    """Datasets, nodes or quota that it needs and will not get by waiting; None where nothing is lacking."""
    spec = book.facts.spec
    missing = sorted(set(spec.placement.datasets) - set(config.datasets))
    if missing:
        return f"the datasets {', '.join(missing)} are not here"
    manifests = book.manifests
    pods = {} if manifests is None else {role.name: role.pod for role in manifests.gang.roles}
    never = room.never(book.facts, pods)
    if never is not None:
        return never
    total: Resources = {}
    for role in book.facts.roles.values():
        for name, amount in role.requests.items():
            total[name] = total.get(name, 0) + amount * book.sizes.get(role.name, 0)
    return quotas.shortfall(
        book.record.namespace,
        total,
        sum(book.sizes.values()),
        limits=total if all(role.template is not None for role in spec.roles) else None,
        traits=PodTraits(terminating=book.facts.time_limit is not None, priority_class=config.placement.priority_class),
    )
