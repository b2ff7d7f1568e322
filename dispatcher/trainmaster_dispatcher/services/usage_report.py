"""Usage and cost for people: what is counted, and beside it runs that are not counted yet, until now."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import chain
from typing import NamedTuple

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.prices import NANOS
from trainmaster.protocol.suggestions import suggestion
from trainmaster.protocol.usage import LABEL, Per, UsageAnswer, UsageRow
from trainmaster_dispatcher.containment import Part, contained
from trainmaster_dispatcher.domain.prices import MICROS, PricedResource
from trainmaster_dispatcher.domain.usage import HOUR, UsagePart, Used
from trainmaster_dispatcher.services.usage_ledger import RUNS, Charges, charges, parts_of
from trainmaster_dispatcher.store import keys, tenants
from trainmaster_dispatcher.store import usage as store
from trainmaster_dispatcher.store.database import Database, Transaction
from trainmaster_dispatcher.store.keys import Caller

MOST_ROWS = 50_000
_LONGEST = timedelta(days=366 * 5)
_COLUMN = {
    "queue": "queue_id",
    "user": "api_key_id",
    "cluster": "cluster_id",
    "kind": "cluster_id",
    "class": "class_id",
}
_UNITS = {"cpu": 1000, "memory": 2**30}


@dataclass(frozen=True, slots=True)
class UsageQuestion:
    """The question: whole hours from ``begin`` until before ``end``, split by ``per`` and by these dimensions."""

    begin: datetime
    end: datetime
    per: Per = "all"
    by: tuple[str, ...] = ()
    queue: str | None = None

    @staticmethod
    def of(begin: datetime, end: datetime, per: Per, by: Sequence[str], queue: str | None) -> "UsageQuestion":
        """Return a question; hours that are begun count as whole ones. Raises ProblemError INVALID_PARAMETER."""
        try:
            first = begin.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
            last = end.astimezone(UTC)
            if last.replace(minute=0, second=0, microsecond=0) != last:
                last = last.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        except OverflowError as error:  # in the first or the last hours that a time can have
            message = f"begin and end must be within the years 1 to 9999; got {begin} and {end}"
            raise ProblemError(Code.INVALID_PARAMETER, message) from error
        if not first < last <= first + _LONGEST:
            raise ProblemError(
                Code.INVALID_PARAMETER,
                f"end must be later than begin, by at most {_LONGEST.days} days; got {first} and {last}",
            )
        return UsageQuestion(first, last, per, tuple(dict.fromkeys(by)), queue)


@dataclass(slots=True)
class _UsageSum:
    amounts: dict[PricedResource, int] = field(default_factory=lambda: defaultdict(int))
    cost: int = 0
    charge: int = 0

    def add(self, fact: "_Fact") -> None:
        self.amounts[fact.place] += fact.amount
        self.cost += fact.cost
        self.charge += fact.charge

    def row(self, since: int, of: dict[str, str]) -> UsageRow:
        devices: dict[str, float] = defaultdict(float)
        hours = {"": 0.0, "cpu": 0.0, "memory": 0.0}
        runs = 0
        for place, amount in sorted(self.amounts.items()):
            if place == RUNS:
                runs += amount
            elif place.resource in hours:
                hours[place.resource] += amount / HOUR / _UNITS.get(place.resource, 1)
            else:
                devices[str(place._replace(spot=False))] += amount / HOUR
        return UsageRow(
            since=datetime.fromtimestamp(since / MICROS, UTC),
            of=of,
            runs=runs,
            cpu=round(hours["cpu"], 6),
            memory=round(hours["memory"], 6),
            devices={name: round(value, 6) for name, value in devices.items()},
            members=round(hours[""], 6),
            cost=_money(self.cost),
            charge=_money(self.charge),
        )


def _money(nanos: int) -> Decimal:
    return (Decimal(nanos) / NANOS).normalize() + 0


class _Fact(NamedTuple):
    """An amount of a resource with its dimensions; a dimension that was not requested is None."""

    since: int
    queue_id: int | None
    class_id: int | None
    api_key_id: int | None
    cluster_id: int | None
    labels: Mapping[str, str] | None
    place: PricedResource
    amount: int
    cost: int
    charge: int


async def report(
    database: Database, caller: Caller, question: UsageQuestion, currency: str, labels: Sequence[str]
) -> UsageAnswer:
    """Return the usage report. ``labels``: keys of labels that are counted apart.

    Raises ProblemError UNKNOWN_QUEUE for a queue that does not exist or is not the caller's, INVALID_PARAMETER for another label.
    """
    _check_labels(question.by, labels)
    columns = {_COLUMN.get(one, "labels") for one in question.by}
    async with database.transaction() as tx:
        # Runs that are counted meanwhile must be neither missed nor reported twice.
        await store.begin_snapshot(tx)
        queue_ids = await queue_ids_for(tx, caller, question.queue)
        name_of = await _names(tx, question.by)
        counted = await store.summed(tx, question.begin, question.end, question.per, columns, queue_ids)
        going_on = await store.going_on(tx, queue_ids)
        of = await charges(tx, going_on)
    # With many live runs this takes a while; other requests go on meanwhile.
    return await asyncio.to_thread(_answer, question, currency, name_of, counted, going_on, of)


def _answer(
    question: UsageQuestion,
    currency: str,
    name_of: Mapping[str, Callable[["_Fact"], str]],
    counted: Sequence[store.CountedUsage],
    going_on: Sequence[store.UsedRun],
    of: Charges,
) -> UsageAnswer:
    lines: dict[tuple[int, tuple[str, ...]], _UsageSum] = defaultdict(_UsageSum)
    total = _UsageSum()
    for fact in chain(_counted(counted), _going_on(going_on, of, question)):
        key = fact.since, tuple(name_of[one](fact) for one in question.by)
        lines[key].add(fact)
        total.add(fact)
    if len(lines) > MOST_ROWS:
        raise ProblemError(
            Code.INVALID_PARAMETER,
            f"the answer has {len(lines)} rows, at most {MOST_ROWS} are returned; ask for less time or fewer dimensions",
        )
    rows = [line.row(since, dict(zip(question.by, names, strict=True))) for (since, names), line in lines.items()]
    rows.sort(key=lambda row: (row.since, -row.cost, tuple(row.of.values())))
    begin = int(question.begin.timestamp()) * MICROS
    return UsageAnswer(
        currency=currency, begin=question.begin, end=question.end, rows=tuple(rows), total=total.row(begin, {})
    )


def _check_labels(by: Sequence[str], counted: Sequence[str]) -> None:
    for one in by:
        if one.startswith(LABEL) and one.removeprefix(LABEL) not in counted:
            hint = f"these are: {', '.join(counted)}" if counted else "none is"
            raise ProblemError(
                Code.INVALID_PARAMETER,
                f"usage is not counted by the label {one.removeprefix(LABEL)!r}, {hint};"
                " an admin names labels in TRAINMASTER_USAGE_LABELS",
            )


async def queue_ids_for(tx: Transaction, caller: Caller, queue: str | None) -> list[int] | None:
    """Return the keys of the queues to report; None for all."""
    if queue is not None:
        found = await tenants.queue_ids_below(tx, [queue])
        if not found or not caller.may_use(queue):
            known = [row.spec.path for row in await tenants.QUEUES.every(tx) if caller.may_use(row.spec.path)]
            message = f"there is no queue {queue!r}{suggestion(queue, known)}"
            raise ProblemError(Code.UNKNOWN_QUEUE, message, mistakes=(Mistake(path="queue", message=message),))
        return found
    return None if caller.has_every_queue else await tenants.queue_ids_below(tx, caller.queues)


async def _names(tx: Transaction, by: Sequence[str]) -> dict[str, Callable[[_Fact], str]]:
    """Return, by dimension, a function that names a fact's value."""
    found: dict[str, Callable[[_Fact], str]] = {}
    for one in by:
        if one == "queue":
            queues = {row.id: row.spec.path for row in await tenants.QUEUES.every(tx)}
            found[one] = lambda fact, queues=queues: queues.get(fact.queue_id, "")  # type: ignore[misc]
        elif one == "user":
            users = await keys.names(tx)
            found[one] = lambda fact, users=users: users.get(fact.api_key_id, "")  # type: ignore[misc]
        elif one == "class":
            classes = {row.id: row.spec.name for row in await tenants.CLASSES.every(tx)}
            found[one] = lambda fact, classes=classes: classes.get(fact.class_id, "")  # type: ignore[misc]
        elif one in ("cluster", "kind"):
            clusters = {row.id: (row.name if one == "cluster" else row.kind.value) for row in await store.clusters(tx)}
            found[one] = lambda fact, clusters=clusters: clusters.get(fact.cluster_id, "")  # type: ignore[misc]
        else:
            label = one.removeprefix(LABEL)
            found[one] = lambda fact, label=label: (fact.labels or {}).get(label, "")  # type: ignore[misc]
    return found


def _counted(rows: Sequence[store.CountedUsage]) -> Iterator[_Fact]:
    for row in rows:
        place = PricedResource(row.resource, row.product, row.spot)
        keys_of_row = row.since, row.queue_id, row.class_id, row.api_key_id, row.cluster_id, row.labels
        yield _Fact(*keys_of_row, place, int(row.amount), int(row.cost), int(row.charge))


def _going_on(rows: Sequence[store.UsedRun], of: Charges, question: UsageQuestion) -> Iterator[_Fact]:
    begin, end = (int(moment.timestamp()) * MICROS for moment in (question.begin, question.end))
    for row in rows:
        parts = list[tuple[UsagePart, Used]]()
        with contained(Part.RUN, f"attempt {row.attempt} of job {row.job_id}"):
            parts = list(parts_of(row, of))
        for part, used in parts:
            if begin <= part.hour < end:
                since = _begin_of(part.hour, question.per, begin)
                keys_of_row = since, row.queue_id, row.class_id, row.api_key_id, row.cluster_id, row.labels
                yield _Fact(*keys_of_row, part.place, used.amount, used.cost, used.charge(row.price_factor))


def _begin_of(hour: int, per: Per, begin: int) -> int:
    """Return when the hour, day or month of ``hour`` begins; ``begin`` where ``per`` is ``all``."""
    if per == "hour":
        return hour
    if per == "all":
        return begin
    moment = datetime.fromtimestamp(hour / MICROS, UTC).replace(hour=0)
    moment = moment.replace(day=1) if per == "month" else moment
    return int(moment.timestamp()) * MICROS
