"""Other sizes for a run that goes on, decided by the agent's own books. Pure but for the book it reads."""

from dataclasses import replace

from trainmaster.cluster_model.packing import PackingShortfall
from trainmaster.protocol.agent import ResizeRun
from trainmaster_agent.runtime.kubernetes.manifests import Manifests
from trainmaster_agent.runtime.kubernetes.node_capacity import NodeCapacity
from trainmaster_agent.runtime.kubernetes.record import Progress
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker

_PATIENCE = 20.0
"""Seconds that a new member may wait for the node that the books promised."""


def take_resize(
    book: RunTracker, resize: ResizeRun, room: NodeCapacity, manifests: Manifests, now: float
) -> Progress | None:
    """The record at other sizes; at its own, where new members find no room now. None for a wish that is old."""
    progress = book.record.progress
    if resize.generation <= progress.generation:
        return None
    before, wanted = book.sizes, dict(resize.sizes)
    placed = next((pod.node for pod in book.pods.values() if pod.node), "")
    if not placed:
        # It waits as a whole: another gang of it takes the place of this one.
        return replace(
            progress,
            generation=resize.generation,
            sizes=wanted,
            round=progress.round + 1 if book.pods else progress.round,
            created=False,
        )
    more = {role: max(0, count - before.get(role, 0)) for role, count in wanted.items()}
    if any(more.values()):
        pods = {role.name: role.pod for role in manifests.gang.roles}
        found = room.find(book.run, book.facts, more, pods, book.facts.spec.topology.required, placed)
        if isinstance(found, PackingShortfall):
            return replace(progress, generation=resize.generation, sizes=dict(before))
    again = dict(progress.again)
    for role, count in wanted.items():
        for index in range(before.get(role, 0), count):
            again[f"{role}-{index}"] = (0.0, "")
            book.newcomers[role, index] = now
    return replace(progress, generation=resize.generation, sizes=wanted, again=again)


def give_up(book: RunTracker, now: float) -> Progress | None:
    """The record at the size that has places, once new members have waited for a node for longer than a growth may take."""
    for member in [one for one in book.newcomers if (pod := book.pods.get(one)) is not None and pod.node]:
        del book.newcomers[member]
    if not book.newcomers:
        return None
    if now < late_growth(book):
        return None
    progress, sizes = book.record.progress, dict(book.sizes)
    for role, index in book.newcomers:
        # Members above it leave as well: a run has its lowest indexes.
        sizes[role] = min(sizes[role], index)
    again = {
        name: when
        for name, when in progress.again.items()
        if int(name.rpartition("-")[2]) < sizes[name.rpartition("-")[0]]
    }
    book.newcomers.clear()
    return replace(progress, sizes=sizes, again=again)


def late_growth(book: RunTracker) -> float:
    """When new members are given up; never where there are none."""
    return min(book.newcomers.values(), default=float("inf")) + _PATIENCE
