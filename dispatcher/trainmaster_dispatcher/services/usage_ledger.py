"""Usage and cost of runs: counted once for each run when it has ended, and computed for live runs.

Counting is a background task. A run and its count are written in one transaction, so that the run is counted exactly once, even after
an interruption; each run is charged at the prices of its time.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from trainmaster.protocol.agent import CapacityReport, NodeGroup
from trainmaster.protocol.device_parts import device_of, is_device, is_part, part_in_thousandths, part_resource
from trainmaster.protocol.durations import parse_duration
from trainmaster_dispatcher.containment import Part, contained, is_of_the_store, isolate, note
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.domain.prices import INSTANCE_LABEL, NO_PRICES, PricedResource, PriceHistory, is_spot
from trainmaster_dispatcher.domain.shapes import Shape, count_units, shape_from
from trainmaster_dispatcher.domain.usage import HOUR, Resize, UsagePart, UsageSpan, Used, by_group, holdings, usage_of
from trainmaster_dispatcher.scheduling.state.flavors import product_of
from trainmaster_dispatcher.services import bursting, pricing
from trainmaster_dispatcher.store import attainment, prices, scheduling, tenants
from trainmaster_dispatcher.store import usage as store
from trainmaster_dispatcher.store.database import Database, Transaction
from trainmaster_dispatcher.store.usage import Bucket, UsedRun

BATCH = 2000
RUNS = PricedResource("runs")
"""Counts runs that have had nodes, in the hour of their end."""


class ChargedGroup(NamedTuple):
    """Properties of a node group by which runs there are charged. ``memory``: bytes of each shared device; 0 if unknown."""

    product: str = ""
    is_spot: bool = False
    memory: int = 0
    instance: str = ""

    @classmethod
    def of(cls, group: NodeGroup) -> "ChargedGroup":
        memory = group.sharing.memory if group.sharing is not None else 0
        return cls(product_of(group), is_spot(group.labels), memory, group.labels.get(INSTANCE_LABEL, ""))


@dataclass(slots=True)
class Charges:
    """Data needed to compute the usage of runs, read once for many of them."""

    prices: Mapping[int, PriceHistory]
    groups: Mapping[int, Mapping[str, "ChargedGroup"]]
    """By cluster and node group."""
    shapes: Mapping[int, Shape]
    resizes: Mapping[tuple[int, int], Sequence[tuple[Resize, Mapping[str, int] | None]]]
    """By job and attempt, in order, each with the sizes before it where they were recorded."""
    unknown: Mapping[int, Exception] = field(default_factory=dict)
    """By cluster: why its prices or its node groups cannot be read. The cluster's runs cannot be charged until that is fixed."""
    _amounts: dict[tuple[Any, ...], tuple[dict[PricedResource, int], int]] = field(default_factory=dict)

    def of(self, row: UsedRun) -> dict[UsagePart, Used]:
        """Return the usage of a run of ``store.usage`` until its ``ended``; nothing where its members never had nodes."""
        if row.began is None:
            return {}
        if (error := self.unknown.get(row.cluster_id)) is not None:
            raise error
        resizes = self.resizes.get((row.job_id, row.attempt), ())
        first = next((before for _, before in resizes if before is not None), row.sizes)
        stretches = []
        for begin, end, sizes in holdings(row.began, row.ended, first, [resize for resize, _ in resizes]):
            amounts, members = self._needs(row, sizes)
            stretches.append(UsageSpan(begin, end, amounts, members))
        return usage_of(stretches, self.prices.get(row.cluster_id, NO_PRICES))

    def is_priced(self, row: UsedRun) -> bool:
        """Return whether the cluster of a run had prices while the run's members had nodes."""
        history = self.prices.get(row.cluster_id, NO_PRICES)
        return row.began is not None and not all(one.is_free for *_, one in history.pieces(row.began, row.ended))

    def _needs(self, row: UsedRun, sizes: Mapping[str, int]) -> tuple[dict[PricedResource, int], int]:
        key = row.cluster_id, row.shape_id, orjson.dumps([sizes, row.placement])
        found = self._amounts.get(key)
        if found is None:
            groups = self.groups.get(row.cluster_id, {})
            unknown = ChargedGroup(memory=min((one.memory for one in groups.values() if one.memory), default=0))
            shape = self.shapes[row.shape_id]
            roles = {role.name: role.needs for role in shape.roles}
            amounts: dict[PricedResource, int] = {}
            units = count_units(sizes, shape.members_per_unit)
            placed = {group: count_units(of, shape.members_per_unit) for group, of in row.placement.items()}
            for (group, role), count in by_group(units, placed).items():
                of_group = groups.get(group, unknown)
                for resource, amount in roles.get(role, {}).items():
                    name, each = resource, amount
                    if is_part(resource):
                        name = part_resource(device_of(resource))
                        each = part_in_thousandths(resource, amount, of_group.memory)
                    place = PricedResource(
                        name, of_group.product if is_device(name) else "", of_group.is_spot, of_group.instance
                    )
                    amounts[place] = amounts.get(place, 0) + each * count
            found = self._amounts[key] = amounts, sum(sizes.values())
        return found


async def charges(tx: Transaction, rows: Sequence[UsedRun]) -> Charges:
    """Return the data by which these runs are charged."""
    resizes: dict[tuple[int, int], list[tuple[Resize, Mapping[str, int] | None]]] = {}
    resized = {row.job_id for row in rows if row.was_resized}
    for row in await store.resizes(tx, resized) if resized else ():
        resize = Resize(row.at, row.sizes, is_wish=row.kind == JobEventKind.RESIZE)
        resizes.setdefault((row.job_id, row.attempt), []).append((resize, row.before))
    shapes = await store.shapes(tx, {row.shape_id for row in rows})
    groups, unknown = dict[int, Mapping[str, ChargedGroup]](), dict[int, Exception]()
    for cluster in await scheduling.clusters(tx, sorted({row.cluster_id for row in rows})):
        if cluster.report is not None:
            try:
                report = CapacityReport.model_validate(cluster.report)
                groups[cluster.id] = {one.name: ChargedGroup.of(one) for one in report.groups}
            except Exception as error:  # noqa: BLE001 - raised again for each run there
                unknown[cluster.id] = error
    readable = dict[int, Shape]()
    for key, body in shapes.items():
        with contained(Part.SHAPE, str(key)):
            readable[key] = shape_from(body)
    histories = await pricing.histories(tx, {row.cluster_id for row in rows})
    return Charges(histories.known, groups, readable, resizes, unknown | histories.unreadable)


class JobCost(NamedTuple):
    """Cost of the runs of a job until now, and the charge for them, in billionths of the currency of the prices. ``is_priced``:
    whether a cluster had prices while a run was there.
    """

    cost: int
    charge: int
    is_priced: bool


async def cost_of(tx: Transaction, job_id: int) -> JobCost | None:
    """Return the cost of a job, by the prices of the time of its runs; None where the cost of one of them cannot be computed.

    Raises ProblemError if the store does not answer.
    """
    rows = await store.of_job(tx, job_id)
    if not await prices.had_books(tx, {row.cluster_id for row in rows}):
        return JobCost(0, 0, is_priced=False)
    of = await charges(tx, rows)
    cost = charge = charged = 0
    is_priced = False
    for row in rows:
        with contained(Part.RUN, f"attempt {row.attempt} of job {row.job_id}"):
            for used in of.of(row).values():
                cost += used.cost
                charge += used.charge(row.price_factor)
            is_priced |= of.is_priced(row)
            charged += 1
    return JobCost(cost, charge, is_priced) if charged == len(rows) else None


class Accounting:
    """Counts runs that have ended. ``labels``: keys of jobs' labels that are counted apart; ``goes_on`` is called between batches."""

    def __init__(
        self,
        database: Database,
        labels: Sequence[str] = (),
        goes_on: Callable[[], bool] = lambda: True,
        batch: int = BATCH,
    ) -> None:
        self._database = database
        self._labels = frozenset(labels)
        self._goes_on = goes_on
        self._batch = batch
        self._left: set[tuple[int, int]] = set()

    async def run(self) -> int:
        """Count ended runs and return how many were counted.

        Raises ProblemError when the store is unreachable; what was counted until then stays counted.
        """
        total = 0
        self._left.clear()
        while self._goes_on():
            try:
                counted, looked_at = await self._count()
            except Exception as error:
                if is_of_the_store(error):
                    raise
                counted, looked_at = await self._count_apart()
            total += counted
            if looked_at < self._batch:
                break
        return total

    async def _count_apart(self) -> tuple[int, int]:
        """Count the next batch in ever smaller parts; runs that cannot be counted are left for later."""
        async with self._database.transaction() as tx:
            rows = await store.uncounted(tx, self._batch, without=self._left)
        found = [(row.job_id, row.attempt) for row in rows]
        done, failed = await isolate(found, self._count) if found else ([], [])
        for one in failed:
            self._leave(one.item, one.error)
        return sum(counted for counted, _ in done), len(found)

    def _leave(self, run: tuple[int, int], error: Exception) -> None:
        """Leave a run that cannot be counted for the next time."""
        self._left.add(run)
        note(Part.RUN, f"attempt {run[1]} of job {run[0]}", error)

    async def _count(self, among: Collection[tuple[int, int]] | None = None) -> tuple[int, int]:
        """Count the next batch, or these runs; return how many were counted, and how many were read."""
        async with self._database.transaction() as tx:
            if not await store.take_turn(tx):
                return 0, 0
            rows = await store.uncounted(tx, self._batch, among=among, without=self._left)
            if not rows:
                return 0, 0
            looked_at = len(rows)
            of = await charges(tx, rows)
            counted = []
            total: dict[Bucket, list[int]] = {}
            by_policy: dict[tuple[int, int], int] = {}
            costs: dict[tuple[int, int], int] = {}
            for row in rows:
                try:
                    parts, labels = list(parts_of(row, of)), kept_labels(row.labels, self._labels)
                except Exception as error:  # noqa: BLE001 - noted
                    self._leave((row.job_id, row.attempt), error)
                    continue
                counted.append((row.job_id, row.attempt))
                for part, used in parts:
                    bucket = Bucket(
                        *(part.hour, row.queue_id, row.class_id, row.api_key_id, row.cluster_id, labels),
                        *part.place[:3],
                    )
                    into = total.setdefault(bucket, [0, 0, 0])
                    into[0] += used.amount
                    into[1] += used.cost
                    into[2] += used.charge(row.price_factor)
                    if row.policy_id is not None:
                        costs[row.job_id, row.attempt] = costs.get((row.job_id, row.attempt), 0) + used.cost
                        by_policy[row.policy_id, part.hour] = by_policy.get((row.policy_id, part.hour), 0) + used.cost
            await store.add(tx, {bucket: (amount, cost, charge) for bucket, (amount, cost, charge) in total.items()})
            await attainment.count_first_starts(tx, counted, await promises_of(tx))
            await store.mark_counted(tx, counted, costs)
            await bursting.note_costs(tx, by_policy)
            return len(counted), looked_at


async def promises_of(tx: Transaction) -> dict[int, float]:
    """Return the wait in seconds that each class promises to bound; classes that promise nothing are left out."""
    return {
        row.id: parse_duration(row.spec.longest_wait)
        for row in await tenants.CLASSES.every(tx)
        if row.spec.longest_wait is not None
    }


def parts_of(row: UsedRun, of: Charges) -> Iterator[tuple[UsagePart, Used]]:
    """Yield the usage of a run of ``store.usage``, and once the run has ended the run itself."""
    yield from of.of(row).items()
    if row.began is not None and row.is_over:
        yield UsagePart(row.ended - row.ended % HOUR, RUNS), Used(1, 0)


def kept_labels(labels: Mapping[str, str] | None, keys: frozenset[str]) -> str:
    """Return the labels that are counted apart, as JSON with sorted keys."""
    kept = {key: value for key, value in (labels or {}).items() if key in keys}
    return orjson.dumps(kept, option=orjson.OPT_SORT_KEYS).decode()
