"""Planned nodes of members, which their pods prefer, so that the cluster's scheduler does not undo the dispatcher's packing.

The dispatcher plans a run on node groups, and keeps large blocks of nodes free for large gangs. kube-scheduler alone would spread the
members over the emptiest nodes. The agent finds nodes by the same best fit, within the groups of the plan, and each pod prefers its
own. The scheduler still decides: a preferred node that is taken, or that one of its filters excludes, delays nothing.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from trainmaster.cluster_model.packing import Assignment, PackingShortfall
from trainmaster_agent.runtime.kubernetes.manifests import Manifests
from trainmaster_agent.runtime.kubernetes.node_capacity import NodeCapacity
from trainmaster_agent.runtime.kubernetes.run_spec import Member
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker

_MOST_NODES = 1000
"""Nodes of a cluster in which gangs of several roles, or with a level, have planned nodes: all nodes are looked at for each."""


def find_nodes(
    tracker: RunTracker, manifests: Manifests, members: Sequence[Member], node_capacity: NodeCapacity
) -> dict[Member, str]:
    """Return the node of each of these members, and reserve it for them; nothing if there is no room for all of them now, or if the
    cluster has too many nodes to look at all of them.
    """
    facts = tracker.facts
    topology, level = facts.spec.topology, facts.spec.topology.required
    if node_capacity.count > _MOST_NODES and (len(facts.roles) > 1 or level or topology.preferred):
        return {}
    sizes = Counter(role for role, _ in members)
    if any(sizes[name] % role.members_per_claim for name, role in facts.roles.items()):
        return {}  # members that start again beside others that have their devices
    pods = {role.name: role.pod for role in manifests.gang.roles}
    at_work = next((pod.node for pod in tracker.pods.values() if pod.node), "")
    places: Assignment | PackingShortfall | None = None
    if not at_work and sizes == Counter(tracker.sizes):
        places = node_capacity.follow(tracker.run, facts, tracker.record.start.pins, pods, level)
    if places is None:
        places = node_capacity.find(tracker.run, facts, sizes, pods, level, at_work)
    if isinstance(places, PackingShortfall):
        return {}
    node_capacity.keep(tracker.run, facts, places)
    return divide(members, places)


def divide(members: Iterable[Member], places: Assignment) -> dict[Member, str]:
    """Return the node of each member: neighbours by index share one, as they mostly talk to each other."""
    nodes = {
        role: [node for node, roles in sorted(places.items()) for _ in range(roles.get(role, 0))]
        for role in {role for roles in places.values() for role in roles}
    }
    taken: Counter[str] = Counter()
    found: dict[Member, str] = {}
    for role, index in sorted(members):
        found[role, index] = nodes[role][taken[role]]
        taken[role] += 1
    return found
