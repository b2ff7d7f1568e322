"""The nodes of a cluster one by one, with the members that are on them, as far as agents have reported their nodes.

Everywhere else the members of a node group count as packed best-fit, which costs little and needs no report. The cluster's own
scheduler may have spread them, or runs may have ended that were beside others: then a gang fits by that count, and yet no node has
enough in one piece. Here runs can be removed and put back, to see which of them are in its way.
"""

from collections.abc import Iterable, Mapping, Sequence

from trainmaster_dispatcher.domain.shapes import RoleShape
from trainmaster_dispatcher.scheduling.packing.free_capacity import (
    ClusterLayouts,
    Load,
    numa_of_load,
    taken_by_load,
    under_members,
)
from trainmaster_dispatcher.scheduling.packing.node_buckets import NodeBucket
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun, LoadKey, load_of
from trainmaster_dispatcher.scheduling.state.member_nodes import MemberNodes

NodeKey = tuple[str, str]
"""A node group and a node of it."""
_Members = tuple[tuple[LoadKey, int], ...]


class NodeLayout:
    """The free amounts of each node of a cluster under a load. Members without a known node are packed best-fit beside the others."""

    def __init__(self, layouts: ClusterLayouts, cluster_id: int, load: Load, reported: MemberNodes) -> None:
        """``load``: the members on the cluster by node group, with those of all runs in ``reported`` that still run."""
        self._state = layouts.state
        self._empty = layouts.empty(cluster_id)
        self._on: dict[NodeKey, dict[int, _Members]] = {}
        """By node, then by job."""
        self._nodes: dict[str, list[str]] = {}
        """By group: its nodes with members."""
        self._of: dict[int, list[NodeKey]] = {}
        """By job."""
        self._left: dict[str, dict[LoadKey, int]] = {name: dict(members) for name, members in load.items()}
        """By group: the members without a known node."""
        self._unplaced: dict[int, list[tuple[LoadKey, int]]] = {}
        """By job: those of them that are its own."""
        self._gone: set[int] = set()
        self._buckets: dict[NodeKey, NodeBucket] = {}
        self._entries: dict[str, Sequence[NodeBucket]] = {}
        runs = layouts.state.runs_on.get(cluster_id, {})
        placed = {job_id: of for job_id, run in runs.items() if (of := self._on_nodes(run, reported))}
        nodes: dict[str, set[str]] = {}
        for of in placed.values():
            for group, node in of:
                nodes.setdefault(group, set()).add(node)
        # A group that has fewer nodes than have members was reported at another time than these: it stays packed.
        known = {name for name, of in nodes.items() if name in self._empty.groups and len(of) <= self._count(name)}
        for job_id, of in placed.items():
            self._place(runs[job_id], {place: members for place, members in of.items() if place[0] in known})

    def _on_nodes(self, run: LiveRun, reported: MemberNodes) -> dict[NodeKey, _Members]:
        """Return the members of a run by node; nothing where the report is of another attempt, or does not match the placement."""
        found = reported.runs.get(run.job_id)
        if found is None or found.attempt != run.attempt:
            return {}
        each = self._state.shapes[run.shape_id].members_per_unit
        left = dict(load_of(run))
        out: dict[NodeKey, _Members] = {}
        for one in found.members:
            key = LoadKey(one.group, run.shape_id, one.role)
            many = -(-one.many // each.get(one.role, 1))
            left[key] = left.get(key, 0) - many
            if left[key] < 0:
                return {}
            place = one.group, one.node
            out[place] = (*out.get(place, ()), (key, many))
        return out

    def _count(self, group: str) -> int:
        return sum(one.count for one in self._empty.groups[group])

    def _place(self, run: LiveRun, of: Mapping[NodeKey, _Members]) -> None:
        unplaced = dict(load_of(run))
        for place, members in of.items():
            if place not in self._on:
                self._on[place] = {}
                self._nodes.setdefault(place[0], []).append(place[1])
            self._on[place][run.job_id] = members
            self._of.setdefault(run.job_id, []).append(place)
            for key, count in members:
                unplaced[key] -= count
                self._change(key, -count)
        self._unplaced[run.job_id] = [(key, count) for key, count in unplaced.items() if count]

    def _change(self, key: LoadKey, many: int) -> None:
        """Add ``many`` members without a known node to the load of their group."""
        members = self._left.setdefault(key.group, {})
        members[key] = members.get(key, 0) + many
        if not members[key]:
            del members[key]

    def entries(self, group: str) -> Sequence[NodeBucket]:
        """Return the nodes of a group with what is free on each of them."""
        found = self._entries.get(group)
        if found is None:
            names = self._nodes.get(group, ())
            buckets = [self._bucket((group, name)) for name in names]
            buckets += [one.some(one.count - len(names)) for one in self._empty.groups[group]]
            found, left = _merged(buckets), self._left.get(group)
            if left:
                found = under_members(self._state, group, found, left, self._empty)
            self._entries[group] = found
        return found

    def _bucket(self, place: NodeKey) -> NodeBucket:
        found = self._buckets.get(place)
        if found is None:
            (first, *_) = self._empty.groups[place[0]]
            found = first.some(1)
            for job_id, members in self._on[place].items():
                if job_id not in self._gone:
                    found = self._less(found, members)
            self._buckets[place] = found
        return found

    def _less(self, bucket: NodeBucket, members: _Members) -> NodeBucket:
        for key, count in members:
            taken = taken_by_load(self._state, key, self._empty.groups)
            bucket = bucket.less(taken, count, 1, numa_of_load(self._state, key))
        return bucket

    def remove(self, job_id: int) -> None:
        """Count the run of a job as ended."""
        self._gone.add(job_id)
        self._forget(job_id, -1)

    def put_back(self, job_id: int) -> None:
        """Count the run of a job that was removed as running again."""
        self._gone.discard(job_id)
        self._forget(job_id, 1)

    def _forget(self, job_id: int, sign: int) -> None:
        for key, count in self._unplaced.get(job_id, load_of(self._state.runs[job_id])):
            self._change(key, sign * count)
            self._entries.pop(key.group, None)
        for place in self._of.get(job_id, ()):
            self._buckets.pop(place, None)
            self._entries.pop(place[0], None)

    def nodes_of(self, job_id: int) -> Iterable[NodeKey]:
        """Return the known nodes of a job's run."""
        return self._of.get(job_id, ())

    def helps(self, job_id: int, roles: Iterable[RoleShape]) -> bool:
        """Return whether a node takes more members of any of these roles since the run of the job was removed.

        True also where the run has members without a known node.
        """
        if job_id not in self._of or self._unplaced[job_id]:
            return True
        of = tuple(roles)
        return any(self._takes_more(place, job_id, of) for place in self._of[job_id])

    def _takes_more(self, place: NodeKey, job_id: int, roles: Iterable[RoleShape]) -> bool:
        after = self._bucket(place)
        before = self._less(after, self._on[place][job_id])
        return any(after.holds_of(one) > max(before.holds_of(one), 0) for one in roles)


def _merged(buckets: Iterable[NodeBucket]) -> list[NodeBucket]:
    """Return these nodes with one entry for all that have the same free amounts."""
    found: dict[tuple[object, ...], NodeBucket] = {}
    for one in buckets:
        if one.count:
            amounts = (*sorted(one.free.items()), one.zones, one.open)
            same = found.get(amounts)
            found[amounts] = one if same is None else same.some(same.count + one.count)
    return list(found.values())
