"""Clusters on which a job can run at some time, whatever runs there now and whatever quota its queue has left."""

from trainmaster.protocol.reasons import Check, Reason, Tier, Verdict
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.scheduling.cycle import explain
from trainmaster_dispatcher.scheduling.selection.cluster_index import ClusterIndex, SchedulingKey
from trainmaster_dispatcher.scheduling.state.declared_objects import Access, Cluster, Queue
from trainmaster_dispatcher.scheduling.state.state import SchedulerState


def widest_access(state: SchedulerState, queue: Queue) -> Access:
    """Return the clusters that jobs of a queue may go to, public ones included to which a burst policy may send them."""
    access = state.access_of(queue)
    return access._replace(kinds=access.kinds | {ClusterKind.PUBLIC}) if state.policies_of(queue.id) else access


def impossible(index: ClusterIndex, access: Access, shape_id: int, cluster: Cluster) -> Verdict | None:
    """Return why a job can never run on a cluster; None if it can, be it on nodes that pools of the cluster could add."""
    found = index.not_allowed(SchedulingKey(shape_id, 1, access, ()), cluster) or index.never(shape_id, cluster)
    return None if found is not None and found.check is Check.NO_ROOM else found


def possible_cluster(index: ClusterIndex, queue: Queue, shape_id: int) -> Cluster | Reason | None:
    """Return the first cluster on which a job of a queue can run at some time, or why it can never run on any.

    None if it can run on none of those that there are, and that is not what keeps it from running for ever: there is no cluster.
    """
    access, verdicts = widest_access(index.state, queue), list[Verdict]()
    for cluster in index.clusters:
        verdict = impossible(index, access, shape_id, cluster)
        if verdict is None:
            return cluster
        verdicts.append(verdict)
    reason = explain.blocked(verdicts)
    return reason if reason.tier is Tier.CANNOT_RUN else None
