"""Placements that were assumed for runs, and that no longer hold when other runs have been reported on the same nodes.

Until its agent reports where the members of a run are, the run is counted in the node groups that it was planned on. The cluster's own
scheduler may have placed another run there. Then more members are counted in that group than its nodes take, and other nodes seem
free which the run needs. Such a run is counted where it fits now.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from trainmaster.protocol.device_parts import device_of, is_device
from trainmaster_dispatcher.scheduling.packing.free_capacity import ClusterLayouts, add_members
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, eligible_groups, fit
from trainmaster_dispatcher.scheduling.state.flavors import Product
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun, Placed, Sizes, freeze_placement, load_of
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

_MOST_TRIED = 8
"""The largest number of different runs of one group that are tried each time."""


class AssumedPlacements:
    """The runs of a state whose placement is only assumed, and which are counted elsewhere than they were planned.

    Where they are counted follows from the stored placements alone, whatever was counted before.
    """

    def __init__(self) -> None:
        self._moved: dict[int, list[tuple[LiveRun, LiveRun]]] = {}
        """By cluster: each such run as it was planned, and as it is counted."""

    def revise(self, layouts: ClusterLayouts, cluster_ids: Iterable[int]) -> None:
        """Count runs elsewhere whose placement is only assumed, and whose group has more members than its nodes take.

        ``cluster_ids``: the clusters whose runs or nodes have changed since the last call. The latest runs are moved first, as the
        cluster's own scheduler is likely to place them last. A run that fits nowhere else is counted as it was planned.
        """
        state = layouts.state
        for cluster_id in cluster_ids:
            for planned, counted in self._moved.pop(cluster_id, ()):
                run = state.runs.get(planned.job_id)
                if run is not None and run.is_assumed and run.placement is counted.placement:
                    state.put_run(replace(run, placement=planned.placement))
            if cluster_id not in state.clusters or not state.assumed_on.get(cluster_id):
                continue
            moved = [
                one
                for name in sorted(state.load.get(cluster_id, {}))
                if layouts.overflow(cluster_id, name)
                for one in _relieve(layouts, cluster_id, name)
            ]
            if moved:
                self._moved[cluster_id] = moved


def _relieve(layouts: ClusterLayouts, cluster_id: int, group: str) -> Iterator[tuple[LiveRun, LiveRun]]:
    """Move runs out of a group until its nodes take all the members that are left; yield each as it was and as it is counted now."""
    inside = [run for run in layouts.state.runs_on[cluster_id].values() if _is_in(run, group)]
    if any(run.is_stopping or run.leaving for run in inside):
        # The nodes are about to be free, perhaps for one of these runs.
        return
    assumed = [run for run in inside if run.is_assumed]
    assumed.sort(key=lambda run: (run.began_at, run.job_id), reverse=True)
    stuck = set[tuple[int, Sizes, Placed]]()
    tried = place = 0
    while place < len(assumed) and tried < _MOST_TRIED:
        run = assumed[place]
        place += 1
        overflow = layouts.overflow(cluster_id, group)
        if not overflow:
            break
        key = run.shape_id, run.sizes, run.placement
        if key in stuck:
            continue
        # An equivalent run fits nowhere else, either.
        stuck.add(key)
        if not _has_node_outside(layouts, run, group):
            continue
        tried += 1
        if layouts.overflow(cluster_id, group, dict(load_of(run))) >= overflow:
            continue
        moved = _elsewhere(layouts, run, group)
        if moved is not None:
            layouts.state.put_run(moved)
            yield run, moved
            # Runs that were tried before may fit now, as others are left in the group.
            assumed.remove(run)
            stuck.clear()
            place = 0


def _has_node_outside(layouts: ClusterLayouts, run: LiveRun, group: str) -> bool:
    """Return whether nodes of other groups have enough free for one member of each role: without that, nothing else need be tried."""
    state, empty = layouts.state, layouts.empty(run.cluster_id)
    load, product = state.load[run.cluster_id], _product_of(state, run)
    return all(
        any(
            one.takes_one(role)
            for name in eligible_groups(role, empty, product)
            if name != group
            for one in layouts.group(run.cluster_id, name, load.get(name))
        )
        for role in state.shapes[run.shape_id].roles
        if dict(run.sizes).get(role.name)
    )


def _is_in(run: LiveRun, group: str) -> bool:
    return any(name == group for name, _ in run.placement)


def _elsewhere(layouts: ClusterLayouts, run: LiveRun, group: str) -> LiveRun | None:
    """Return a run placed where it fits once its own members are subtracted; None unless that is in other groups alone."""
    state = layouts.state
    load = dict(state.load[run.cluster_id])
    add_members(load, load_of(run), -1)
    shape = state.shapes[run.shape_id]
    fitted = fit(shape, dict(run.sizes), layouts.under(run.cluster_id, load), _product_of(state, run))
    if not isinstance(fitted, Fitted) or group in fitted.placement:
        return None
    return replace(run, placement=freeze_placement(fitted.placement))


def _product_of(state: SchedulerState, run: LiveRun) -> Product | None:
    """Return the product of a device that the members of a run are bound to, because a quota depends on it."""
    for role in state.shapes[run.shape_id].roles:
        for name in role.needs:
            device = device_of(name) if is_device(name) else ""
            if device and state.flavors.products_matter(device):
                return Product(device, state.product_at(run.cluster_id, run.placement[0][0]))
    return None
