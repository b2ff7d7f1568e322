"""Live runs, and the members that each puts on the node groups of its cluster. They count nothing over several runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from trainmaster.protocol.placement import MemberPlacement
from trainmaster_dispatcher.domain.burst_policies import BurstRun
from trainmaster_dispatcher.domain.shapes import Shape


class LoadKey(NamedTuple):
    """Equivalent members on a cluster: their node group, empty if unknown, their shape and role."""

    group: str
    shape_id: int
    role: str


Sizes = tuple[tuple[str, int], ...]
Placed = tuple[tuple[str, Sizes], ...]
"""Members by node group and role."""


@dataclass(slots=True)
class LiveRun:
    """A run that holds capacity. ``placement``: members by node group and role, reported or, until then, assumed.

    Members that share devices are counted here and in all of the scheduler's state as one, the unit of ``RoleShape``.

    Times are seconds since the epoch. A run must not be changed, though the class is not frozen: thousands are created in a second.
    """

    job_id: int
    queue_id: int
    shape_id: int
    cluster_id: int
    sizes: tuple[tuple[str, int], ...]
    placement: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    class_id: int = 0
    began_at: float = 0.0
    """The time when the run was sent to its cluster or, once it runs, when it started."""
    attempt: int = 1
    is_stopping: bool = False
    """Whether the run was ordered to stop, for whatever reason; its capacity is about to be released."""
    leaving: tuple[tuple[str, int], ...] = ()
    """By role: members that were ordered to leave and are still counted in ``sizes``."""
    resized_at: float = 0.0
    """The time when its sizes, or its requested sizes, last changed; 0 if never."""
    burst: BurstRun | None = None
    """The burst policy under which it is at a public cluster, if any."""
    user: str = ""
    """The name of the key that submitted its job."""
    is_assumed: bool = False
    """Whether its agent has not reported its placement yet."""
    predicted_seconds: float | None = None
    """How long it was predicted to run when it was sent, if that was less than its time limit."""
    load: tuple[tuple[LoadKey, int], ...] | None = field(default=None, init=False, compare=False, repr=False)
    """The cached result of ``load_of``."""


def load_of(run: LiveRun) -> tuple[tuple[LoadKey, int], ...]:
    """Return the load of a run on its cluster. Reports of its agent move members, but never count more members than the run has."""
    load = run.load
    if load is None:
        load = run.load = _load(run.shape_id, run.sizes, run.placement)
    return load


@lru_cache(maxsize=1 << 15)
def _load(shape_id: int, sizes: Sizes, placement: Placed) -> tuple[tuple[LoadKey, int], ...]:
    """Return the load, computed once for equivalent runs, of which there are many."""
    missing = dict(sizes)
    out = []
    for group, roles in placement:
        for role, count in roles:
            placed = min(max(count, 0), missing.get(role, 0))
            if placed:
                missing[role] -= placed
                out.append((LoadKey(group, shape_id, role), placed))
    out += [(LoadKey("", shape_id, role), count) for role, count in missing.items() if count]
    return tuple(out)


def surplus_of(run: LiveRun, shape: Shape) -> dict[str, int]:
    """Return, by role, the number of members that an elastic run could give back, besides those that are leaving already."""
    if shape.elastic is None or run.is_stopping:
        return {}
    least, leaving = {role.name: role.least for role in shape.roles}, dict(run.leaving)
    spare = {role: size - leaving.get(role, 0) - least.get(role, size) for role, size in run.sizes}
    return {role: count for role, count in spare.items() if count > 0}


def members_of(run: LiveRun, counts: Mapping[str, int]) -> tuple[tuple[LoadKey, int], ...]:
    """Return the ``counts`` members of a run that would leave, by role; their groups are guessed, the last ones first."""
    missing = dict(counts)
    out = []
    for key, count in sorted(load_of(run), reverse=True):
        taken = min(count, missing.get(key.role, 0))
        if taken:
            missing[key.role] -= taken
            out.append((key, taken))
    return tuple(out)


def freeze_placement(placement: MemberPlacement) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    return tuple(sorted((group, tuple(sorted(roles.items()))) for group, roles in placement.items()))
