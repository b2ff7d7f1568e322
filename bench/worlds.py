"""Scheduler states of made-up worlds: as large as a benchmark wants them, and the same for the same seed.

What decides on a node (cores, or devices where it has some) comes in 8, 4, 2 and 1 parts of a multiple of 8, and memory is always
more than enough. Members of such sizes pack without a gap, so a full world is full whoever lays it out, and what is free can be
said in starts. Each node has half a core that nobody is small enough to use.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, cycle
from typing import Self

from trainmaster.protocol.agent import CapacityReport, NodeGroup, Taint
from trainmaster.protocol.jobs import Toleration
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster, PriorityClass, Queue
from trainmaster_dispatcher.scheduling.state.flavors import Flavor, Quota
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun, freeze_placement
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

NOW = 1_800_000_000.0
"""The time of every world, in seconds since the epoch."""

GPU = "nvidia.com/gpu"
GIB = 2**30
ROLE = "main"
LOW, NORMAL, HIGH = 1, 2, 3
"""Keys of the priority classes."""

_CLASSES = (NORMAL, HIGH, NORMAL, LOW, NORMAL)
"""Of kinds, in turns."""

CORES, GPUS, CORES_PER_GPU = 32, 8, 8
"""Of a node; one with devices has cores for each of them."""

_SPARE_CORE = 500
_MOST_GIB_PER_CORE = 4
_NODE_GIB_PER_CORE = 5
_TEAMS = 25
"""Leaves of the tree below one queue."""
_DEVICE_GROUPS = 5
"""One group in this many has devices."""
_GANG = 64
_GANG_SECONDS = 14_400.0
_GANGS_PER_RACK = 2
_BROKEN_RACKS = 3
"""One rack in this many has free capacity, but not for a gang."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a world is. ``groups`` are node groups of each cluster, ``starts`` is how many jobs there is room for."""

    jobs: int = 1_000_000
    queues: int = 1_000
    kinds: int = 1_000
    clusters: int = 100
    groups: int = 100
    starts: int = 200_000
    seed: int = 1

    def scaled(self, scale: float) -> Self:
        """Return the size multiplied by ``scale`` in everything but the groups of a cluster; a few of each remain."""

        def of(value: int, least: int) -> int:
            return max(min(value, least), round(value * scale))

        return replace(
            self,
            jobs=of(self.jobs, 20),
            queues=of(self.queues, 2),
            kinds=of(self.kinds, 20),
            clusters=of(self.clusters, 4),
            starts=of(self.starts, 10),
        )


@dataclass(frozen=True, slots=True)
class Kind:
    """The requests of equivalent jobs. ``units`` of what decides, cores or devices, and all ``needs``, are per member."""

    members: int
    units: int
    needs: Resources = field(hash=False)
    class_id: int = NORMAL
    time_limit: float | None = None
    level: str | None = None

    @property
    def takes_devices(self) -> bool:
        return GPU in self.needs

    def shape(self) -> Shape:
        tolerations = (Toleration(key=GPU, operator="Exists"),) if self.takes_devices else ()
        role = RoleShape(ROLE, self.members, self.members, self.needs, tolerations=tolerations)
        return Shape((role,), self.members, required_level=self.level, time_limit_seconds=self.time_limit)


def make_kinds(many: int, chance: random.Random, *, devices: bool = True) -> list[Kind]:
    """Return kinds that all differ. One in ten takes devices; one in ten is a gang, of members with one unit each.

    A job takes 1, 2, 4 or 8 units, and those come in turns in every priority class, so that the jobs that are started first are
    as large on average as all of them.
    """
    memory = chance.sample(range(GIB, _MOST_GIB_PER_CORE * GIB), many)
    kinds = []
    for number in range(many):
        takes_devices = devices and number % 10 == 9
        turn, total = divmod(number // 10 if takes_devices else number, 4)
        members, units = (2**total, 1) if number % 10 == 5 else (1, 2**total)
        cores = units * CORES_PER_GPU if takes_devices else units
        needs = {"cpu": cores * 1000, "memory": cores * memory[number]} | ({GPU: units} if takes_devices else {})
        time_limit = chance.choice((None, None, 3600.0, 14_400.0, 86_400.0))
        kinds.append(Kind(members, units, needs, _CLASSES[turn % len(_CLASSES)], time_limit))
    return kinds


def popularity(many: int) -> list[float]:
    """Return the cumulated weights of Zipf's law: the n-th kind is asked for 1/n as often as the first."""
    return list(accumulate(1 / rank for rank in range(1, many + 1)))


@dataclass(slots=True)
class Changes:
    """What happens between two cycles, in the order in which it is to be put into the state."""

    clusters: list[Cluster] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    submitted: list[WaitingJob] = field(default_factory=list)

    def put(self, state: SchedulerState) -> None:
        for cluster in self.clusters:
            state.put_cluster(cluster)
        for job_id in self.ended:
            state.drop_job(job_id)
        for job in self.submitted:
            state.put_waiting(job)


class World:
    """A state, and what is needed to let more happen in it."""

    def __init__(self, kinds: Sequence[Kind], weights: Sequence[float], chance: random.Random) -> None:
        self.engine = Engine()
        self.state = self.engine.state
        self.kinds = kinds
        self.chance = chance
        self.leaves: list[int] = []
        self.own_kinds = False
        """Whether each kind comes from one queue only; else all of them come from all queues."""
        self.batch: frozenset[int] = frozenset()
        """Leaves where every job is of the lowest class, whatever its kind."""
        self._weights = weights
        self._next_id = 1
        self._reports = 0
        for class_id, name, value in ((LOW, "low", -100), (NORMAL, "normal", 0), (HIGH, "high", 100)):
            self.state.put_class(PriorityClass(class_id, name, value))
        for number, kind in enumerate(kinds, start=1):
            self.state.put_shape(number, kind.shape())

    def add_queues(self, many: int, name: str = "org", quotas: dict[Flavor, Quota] | None = None) -> list[int]:
        """Add ``many`` leaves, 25 of them below one queue, each with these quotas; return their keys."""
        made = []
        for number in range(many):
            if number % _TEAMS == 0:
                path = f"{name}{number // _TEAMS}"
                parent = self._add_queue(path, None, {})
            made.append(self._add_queue(f"{path}/team{number % _TEAMS}", parent, quotas or {}))
        self.leaves += made
        return made

    def _add_queue(self, path: str, parent_id: int | None, quotas: dict[Flavor, Quota]) -> int:
        key = len(self.state.queues) + 1
        self.state.put_queue(Queue(key, path, parent_id, quotas=quotas))
        return key

    def add_cluster(self, groups: Iterable[NodeGroup]) -> Cluster:
        number = len(self.state.clusters) + 1
        report = CapacityReport(groups=tuple(groups), runtime="simulated", scheduler="simulated")
        cluster = Cluster(number, f"c{number}", ClusterKind.PRIVATE, {"name": f"c{number}"}, report=report)
        self.state.put_cluster(cluster)
        self.state.lease_until[number] = NOW + 15
        return cluster

    def add_run(self, cluster: Cluster, group: str, queue_id: int, kind: int, class_id: int) -> None:
        """Add a live run of one member in one node group, begun within its time limit or the last hour."""
        limit = self.kinds[kind].time_limit or 3600.0
        self.state.put_run(
            LiveRun(
                job_id=self._take_id(),
                queue_id=queue_id,
                shape_id=kind + 1,
                cluster_id=cluster.id,
                sizes=((ROLE, 1),),
                placement=freeze_placement({group: {ROLE: 1}}),
                class_id=class_id,
                began_at=NOW - limit * self.chance.random(),
            )
        )

    def job(self, kind: int, queue_id: int, submitted_at: float) -> WaitingJob:
        job_id = self._take_id()
        # Each name is a text of its own, as it is when it comes from the store.
        class_id = LOW if queue_id in self.batch else self.kinds[kind].class_id
        return WaitingJob(job_id, 1, f"job-{job_id}", queue_id, class_id, kind + 1, 0, submitted_at, 0)

    def picked(self, many: int) -> Iterator[tuple[int, int]]:
        """Yield kinds, by their popularity, and the queues that ask for them."""
        for kind in self.chance.choices(range(len(self.kinds)), cum_weights=self._weights, k=many):
            yield kind, self.leaves[kind % len(self.leaves)] if self.own_kinds else self.chance.choice(self.leaves)

    def submit(self, picked: Iterable[tuple[int, int]]) -> None:
        """Add waiting jobs, a hundredth of a second apart."""
        for kind, queue_id in picked:
            self.state.put_waiting(self.job(kind, queue_id, NOW - 100_000 + self._next_id / 100))

    def happens(self, now: float, *, ends: int = 0, submits: int = 0, reports: int = 0) -> Changes:
        """Return runs that end, jobs that are submitted, and clusters that report a little more or less; nothing is put yet."""
        ended = self.chance.sample(sorted(self.state.runs), min(ends, len(self.state.runs)))
        submitted = [self.job(kind, queue_id, now) for kind, queue_id in self.picked(submits)]
        return Changes([self._reported() for _ in range(reports)], ended, submitted)

    def _reported(self) -> Cluster:
        """Return the next cluster, whose first group has a tenth of a core more on each node than before, or less."""
        keys = sorted(self.state.clusters)
        cluster = self.state.clusters[keys[self._reports % len(keys)]]
        more = 100 if self._reports // len(keys) % 2 == 0 else -100
        self._reports += 1
        assert cluster.report is not None
        first, *others = cluster.report.groups
        first = first.model_copy(update={"free": first.free | {"cpu": first.free["cpu"] + more}})
        return replace(cluster, report=cluster.report.model_copy(update={"groups": (first, *others)}))

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1


def make(size: Size, *, own_kinds: bool = False, all_distinct: bool = False, full: bool = False) -> World:
    """Return a world: queues that are owed half of everything in equal parts, and jobs of kinds that follow Zipf's law.

    ``own_kinds``: each kind comes from one queue only. ``all_distinct``: each job is of a kind of its own. ``full``: live runs fill
    the clusters, of all queues equally, and no job may start: each queue has more than it is owed, and a third of them nothing but
    the lowest class, the others only runs of the highest.
    """
    chance = random.Random(size.seed)
    kinds = make_kinds(size.jobs if all_distinct else size.kinds, chance)
    weights = [float(number) for number in range(1, len(kinds) + 1)] if all_distinct else popularity(len(kinds))
    world = World(kinds, weights, chance)
    world.own_kinds = own_kinds
    whole = _needed(kinds, weights, size.starts)
    owed = {Flavor(name): Quota(guaranteed=amount // 2 // size.queues) for name, amount in whole.items()}
    world.add_queues(size.queues, quotas=owed)
    for groups in _fleet(size, kinds, weights):
        world.add_cluster(groups)
    if full:
        world.batch = frozenset(world.leaves[::3])
        _fill(world, weights)
    each_once = ((kind, chance.choice(world.leaves)) for kind in range(size.jobs))
    world.submit(each_once if all_distinct else world.picked(size.jobs))
    return world


def gangs(size: Size) -> World:
    """Return a world of gangs of 64 members with one device each that want one rack. A rack has room for two, or for none.

    ``groups`` are racks; ``starts`` is what they have room for.
    """
    chance = random.Random(size.seed)
    memory = chance.sample(range(GIB, _MOST_GIB_PER_CORE * GIB), size.kinds)
    kinds = [
        Kind(_GANG, 1, _on_devices(1, CORES_PER_GPU * each), level="rack", time_limit=_GANG_SECONDS) for each in memory
    ]
    whole_node = Kind(1, GPUS, _on_devices(GPUS, GPUS * CORES_PER_GPU * GIB), time_limit=_GANG_SECONDS)
    weights = popularity(len(kinds))
    world = World([*kinds, whole_node], [*weights, weights[-1]], chance)
    world.add_queues(size.queues)
    nodes = _GANGS_PER_RACK * _GANG // GPUS
    for _ in range(size.clusters):
        cluster = world.add_cluster(_group(number, nodes, devices=True) for number in range(size.groups))
        for number in range(_BROKEN_RACKS - 1, size.groups, _BROKEN_RACKS):
            for _ in range(nodes // 2 + 1):
                world.add_run(cluster, f"g{number}", chance.choice(world.leaves), len(kinds), NORMAL)
    world.submit(world.picked(size.jobs))
    return world


def reclaim_storm(size: Size) -> World:
    """Return a world where half of the queues are owed everything and have waiting jobs; the others borrow all, a core per run.

    ``starts`` is the number of these runs, and all have to go: the jobs that wait ask for twice as much.
    """
    chance = random.Random(size.seed)
    small = Kind(1, 1, {"cpu": 1000, "memory": GIB}, LOW)
    kinds = [small, *(Kind(1, 8, {"cpu": 8000, "memory": (8 + number) * GIB}) for number in range(size.kinds))]
    world = World(kinds, [0.0, *popularity(size.kinds)], chance)
    half = size.queues // 2
    owed = world.add_queues(half, "owed", {Flavor("cpu"): Quota(guaranteed=size.starts * 1000 // half)})
    world.leaves = []
    borrowers = world.add_queues(size.queues - half, "borrowing")
    many = size.clusters * size.groups
    nodes = _dealt(-(-size.starts // CORES), many)
    for first in range(0, many, size.groups):
        counts = nodes[first : first + size.groups]
        cluster = world.add_cluster(_group(number, count, devices=False) for number, count in enumerate(counts))
        for number, count in enumerate(counts):
            for _ in range(count * CORES):
                world.add_run(cluster, f"g{number}", chance.choice(borrowers), 0, LOW)
    world.leaves = owed
    world.submit(world.picked(size.jobs))
    return world


def _on_devices(gpus: int, memory: int) -> Resources:
    return {"cpu": gpus * CORES_PER_GPU * 1000, "memory": memory, GPU: gpus}


def _needed(kinds: Sequence[Kind], weights: Sequence[float], starts: int) -> Resources:
    """Return what ``starts`` jobs need on average."""
    out: Resources = {}
    before = 0.0
    for kind, weight in zip(kinds, weights, strict=True):
        part = (weight - before) / weights[-1] * starts * kind.members
        before = weight
        for name, amount in kind.needs.items():
            out[name] = out.get(name, 0) + round(amount * part)
    return out


def _fleet(size: Size, kinds: Sequence[Kind], weights: Sequence[float]) -> Iterator[list[NodeGroup]]:
    """Yield the groups of each cluster: the capacity that ``starts`` jobs need, with the right part of it on nodes with devices."""
    whole = _needed(kinds, weights, size.starts)
    devices = whole.get(GPU, 0)
    cores = whole["cpu"] // 1000 - devices * CORES_PER_GPU
    many = size.clusters * size.groups
    with_devices = [number for number in range(many) if devices and number % _DEVICE_GROUPS == _DEVICE_GROUPS - 1]
    without = sorted(set(range(many)) - set(with_devices))
    counts = dict(zip(with_devices, _dealt(-(-devices // GPUS), len(with_devices)), strict=True))
    counts |= zip(without, _dealt(-(-cores // CORES), len(without)), strict=True)
    has_devices = set(with_devices)
    for first in range(0, many, size.groups):
        yield [
            _group(number, counts[first + number], devices=first + number in has_devices)
            for number in range(size.groups)
        ]


def _dealt(total: int, hands: int) -> list[int]:
    """Return ``total`` in nearly equal parts, of at least one."""
    return [max(1, total // hands + (number < total % hands)) for number in range(hands)]


def _group(number: int, count: int, *, devices: bool) -> NodeGroup:
    """Return equivalent nodes in a rack of their own."""
    cores = GPUS * CORES_PER_GPU if devices else CORES
    free = {"cpu": cores * 1000 + _SPARE_CORE, "memory": cores * _NODE_GIB_PER_CORE * GIB}
    return NodeGroup(
        name=f"g{number}",
        count=count,
        free=free | ({GPU: GPUS} if devices else {}),
        labels={"pool": f"p{number % 4}"} | ({"nvidia.com/gpu.product": "H100"} if devices else {}),
        taints=(Taint(key=GPU),) if devices else (),
        topology=(("zone", f"z{number % 3}"), ("rack", f"r{number}")),
    )


def _fill(world: World, weights: Sequence[float]) -> None:
    """Start runs of one member each, of popular kinds before others, until every cluster is full."""
    groups = [
        (cluster, group)
        for cluster in world.state.clusters.values()
        for group in (cluster.report.groups if cluster.report is not None else ())
    ]
    for devices in (False, True):
        single = [
            (number, kind)
            for number, kind in enumerate(world.kinds)
            if kind.members == 1 and kind.takes_devices is devices
        ]
        # By what is left on the node: the kinds that still fit, and their weights added up.
        fitting = {left: [number for number, kind in single if kind.units <= left] for left in range(1, CORES + 1)}
        added = {
            left: list(accumulate(weights[number] - (weights[number - 1] if number else 0.0) for number in numbers))
            for left, numbers in fitting.items()
        }
        # Each size is dealt out in turn, so that all queues use nearly the same.
        dealt = {kind.units: cycle(world.leaves) for _, kind in single}
        for cluster, group in groups:
            if (GPU in group.free) is not devices:
                continue
            for _ in range(group.count):
                left = GPUS if devices else CORES
                while left:
                    number = world.chance.choices(fitting[left], cum_weights=added[left])[0]
                    units = world.kinds[number].units
                    queue_id = next(dealt[units])
                    world.add_run(cluster, group.name, queue_id, number, LOW if queue_id in world.batch else HIGH)
                    left -= units
