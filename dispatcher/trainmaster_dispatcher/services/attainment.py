"""Attainment of the waits that priority classes promise, for people: what is counted, and beside it what is not counted yet."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from trainmaster.protocol.attainment import AttainmentAnswer, AttainmentRow
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.tenants import PriorityClassSpec
from trainmaster_dispatcher.services.usage_ledger import promises_of
from trainmaster_dispatcher.services.usage_report import queue_ids_for
from trainmaster_dispatcher.store import attainment as store
from trainmaster_dispatcher.store import tenants, usage
from trainmaster_dispatcher.store.database import Database
from trainmaster_dispatcher.store.keys import Caller

_MOST_MONTHS = 60


@dataclass(frozen=True, slots=True)
class AttainmentQuestion:
    """The question: the months from ``begin`` until before ``end``, which begin months in UTC."""

    begin: datetime
    end: datetime
    queue: str | None = None

    @staticmethod
    def of(begin: datetime, end: datetime, queue: str | None) -> "AttainmentQuestion":
        """Return a question from the month of ``begin`` to the one of ``end``. Raises ProblemError INVALID_PARAMETER."""
        try:
            first, after = _month(begin), _month(_month(end) + timedelta(days=31))
        except OverflowError as error:  # in the first or the last months that a time can have
            message = f"begin and end must be within the years 1 to 9999; got {begin} and {end}"
            raise ProblemError(Code.INVALID_PARAMETER, message) from error
        months = 12 * (after.year - first.year) + after.month - first.month
        if not 0 < months <= _MOST_MONTHS or end < begin:
            raise ProblemError(
                Code.INVALID_PARAMETER,
                f"end must not be before begin, and they be in at most {_MOST_MONTHS} months; got {begin} and {end}",
            )
        return AttainmentQuestion(first, after, queue)


def _month(moment: datetime) -> datetime:
    """Return the begin of the month of a moment, in UTC."""
    return moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


@dataclass(slots=True)
class _Waits:
    met: int = 0
    missed: int = 0
    held: int = 0
    seconds_late: float = 0.0
    most_seconds_late: float = 0.0
    waiting: int = 0
    overdue: int = 0

    def add(self, more: store.ClassWaits) -> None:
        self.met += more.met
        self.missed += more.missed
        self.held += more.held
        self.seconds_late += more.seconds_late
        self.most_seconds_late = max(self.most_seconds_late, more.most_seconds_late)

    def row(self, since: int, queue: str, spec: PriorityClassSpec | None) -> AttainmentRow:
        counted = self.met + self.missed
        return AttainmentRow(
            since=datetime.fromtimestamp(since, UTC),
            queue=queue,
            priority_class="" if spec is None else spec.name,
            promise=None if spec is None else spec.longest_wait,
            met=self.met,
            missed=self.missed,
            held=self.held,
            attained=round(self.met / counted, 6) if counted else None,
            mean_seconds_late=round(self.seconds_late / self.missed, 3) if self.missed else None,
            most_seconds_late=round(self.most_seconds_late, 3) if self.missed else None,
            waiting=self.waiting,
            overdue=self.overdue,
        )


async def report(database: Database, caller: Caller, question: AttainmentQuestion) -> AttainmentAnswer:
    """Return how far promises were kept. Raises ProblemError UNKNOWN_QUEUE for a queue that does not exist or is not the caller's."""
    async with database.transaction() as tx:
        # Runs that are counted meanwhile must be neither missed nor reported twice.
        await usage.begin_snapshot(tx)
        queue_ids = await queue_ids_for(tx, caller, question.queue)
        promises = await promises_of(tx)
        classes = {row.id: row.spec for row in await tenants.CLASSES.every(tx)}
        paths = {row.id: row.spec.path for row in await tenants.QUEUES.every(tx)}
        found = [
            *await store.counted(tx, question.begin, question.end, queue_ids),
            *await store.not_counted(tx, promises, queue_ids),
        ]
        months = _by_month(question, found)
        now = int(_month(datetime.now(UTC)).timestamp())
        if question.begin.timestamp() <= now < question.end.timestamp():
            for one in await store.waiting(tx, promises, queue_ids):
                waits = months.setdefault((now, one.queue_id, one.class_id), _Waits())
                waits.waiting, waits.overdue = one.waiting, one.overdue
    rows = [
        waits.row(since, paths.get(queue_id, ""), classes.get(class_id))
        for (since, queue_id, class_id), waits in months.items()
    ]
    rows.sort(key=lambda row: (row.since, row.queue, row.priority_class))
    return AttainmentAnswer(begin=question.begin, end=question.end, rows=tuple(rows))


def _by_month(question: AttainmentQuestion, found: Iterable[store.ClassWaits]) -> dict[tuple[int, int, int], _Waits]:
    """Return the sums by month, queue and class."""
    months: dict[tuple[int, int, int], _Waits] = {}
    for one in found:
        if question.begin.timestamp() <= one.since < question.end.timestamp():
            months.setdefault((one.since, one.queue_id, one.class_id), _Waits()).add(one)
    return months
