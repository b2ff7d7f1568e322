"""Resizing of a running run by the agent's own ledger. Pure but for the run that it reads."""

from dataclasses import replace

from trainmaster.cluster_model.packing import PackingShortfall
from trainmaster.protocol.agent import ResizeRun
from trainmaster_agent.runtime.kubernetes.manifests import Manifests
from trainmaster_agent.runtime.kubernetes.node_capacity import NodeCapacity
from trainmaster_agent.runtime.kubernetes.record import Progress
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker

_PATIENCE = 20.0
"""Seconds that a new member may wait for the node that the ledger showed as free."""


def take_resize(
    tracker: RunTracker, resize: ResizeRun, node_capacity: NodeCapacity, manifests: Manifests, now: float
) -> Progress | None:
    """Return the record at other sizes; at the current ones if new members do not fit now. None for an outdated order."""
    progress = tracker.record.progress
    if resize.generation <= progress.generation:
        return None
    before, wanted = tracker.sizes, dict(resize.sizes)
    placed = next((pod.node for pod in tracker.pods.values() if pod.node), "")
    if not placed:
        # The gang waits as a whole: one of the new size replaces it.
        return replace(
            progress,
            generation=resize.generation,
            sizes=wanted,
            round=progress.round + 1 if tracker.pods else progress.round,
            created=False,
        )
    more = {role: max(0, count - before.get(role, 0)) for role, count in wanted.items()}
    if any(more.values()):
        pods = {role.name: role.pod for role in manifests.gang.roles}
        found = node_capacity.find(tracker.run, tracker.facts, more, pods, tracker.facts.spec.topology.required, placed)
        if isinstance(found, PackingShortfall):
            return replace(progress, generation=resize.generation, sizes=dict(before))
    again = dict(progress.again)
    for role, count in wanted.items():
        for index in range(before.get(role, 0), count):
            again[f"{role}-{index}"] = (0.0, "")
            tracker.newcomers[role, index] = now
    return replace(progress, generation=resize.generation, sizes=wanted, again=again)


def give_up(tracker: RunTracker, now: float) -> Progress | None:
    """Return the record at the size that has nodes, once new members have waited too long for a node."""
    for member in [one for one in tracker.newcomers if (pod := tracker.pods.get(one)) is not None and pod.node]:
        del tracker.newcomers[member]
    if not tracker.newcomers:
        return None
    if now < late_growth(tracker):
        return None
    progress, sizes = tracker.record.progress, dict(tracker.sizes)
    for role, index in tracker.newcomers:
        # Members with higher indexes leave as well: a run has its lowest indexes.
        sizes[role] = min(sizes[role], index)
    again = {
        name: when
        for name, when in progress.again.items()
        if int(name.rpartition("-")[2]) < sizes[name.rpartition("-")[0]]
    }
    tracker.newcomers.clear()
    return replace(progress, sizes=sizes, again=again)


def late_growth(tracker: RunTracker) -> float:
    """Return when new members are given up; ``inf`` where there are none."""
    return min(tracker.newcomers.values(), default=float("inf")) + _PATIENCE
