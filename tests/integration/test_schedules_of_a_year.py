"""A nightly schedule over a year of a virtual clock, with both changes of the civil clock, dealt with by the worker's own code.

Postgres itself has the clock: a function ``now`` that comes before its own one on the search path of the worker's connections.
"""

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import event

from tests.conftest import Service
from tests.integration.rows import execute, rows
from tests.integration.scheduled import a_schedule, create
from trainmaster_dispatcher.services.cluster_admissions import ClusterAdmissions
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.schedule_firing import ScheduleFiring

_YEAR = 2037
_DAYS = [date(_YEAR, 1, 1) + timedelta(days=day) for day in range(365)]
_SECOND = timedelta(seconds=1)
_ZONES = {
    "Europe/Berlin": (date(_YEAR, 3, 29), date(_YEAR, 10, 25)),
    "America/New_York": (date(_YEAR, 3, 8), date(_YEAR, 11, 1)),
}
"""By zone, the days on which its clocks skip 02:30 and have it twice."""


class VirtualWorker:
    """A worker whose store has the time that the test sets."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self._admissions = ClusterAdmissions(stores)

    async def at(self, moment: datetime) -> int:
        """Let it be ``moment``, and deal with what is due; return how many jobs were submitted."""
        await execute(self.stores, "UPDATE virtual.clock SET at = :at", at=moment)
        return (await ScheduleFiring(self.stores, self._admissions.known).run()).submitted

    async def next_look(self, name: str) -> datetime:
        (row,) = await rows(self.stores, "SELECT next_look FROM schedules WHERE name = :name", name=name)
        found: datetime = row.next_look
        return found


def _use_virtual_clock(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("SET search_path = virtual, pg_catalog, public")
    cursor.close()
    connection.commit()


@pytest.fixture
async def worker(service: Service) -> AsyncIterator[VirtualWorker]:
    for statement in (
        "CREATE SCHEMA virtual",
        "CREATE TABLE virtual.clock (at timestamptz NOT NULL)",
        "INSERT INTO virtual.clock VALUES (now())",
        "CREATE FUNCTION virtual.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT at FROM virtual.clock'",
    ):
        await execute(service.stores, statement)
    stores = Stores.open(service.settings)
    event.listen(stores.database.engine.sync_engine, "connect", _use_virtual_clock)
    yield VirtualWorker(stores)
    await stores.close()


def _shown_by_the_clock(day: date, zone: ZoneInfo, skips: date) -> datetime:
    """Return the moment of 02:30 on a day: the first of two; on the day that has none, the end of the gap, 03:00."""
    return datetime.combine(day, time(3) if day == skips else time(2, 30), zone).astimezone(UTC)


@pytest.mark.parametrize("name", ["Europe/Berlin", pytest.param("America/New_York", marks=pytest.mark.deep)])
async def test_a_nightly_schedule_has_one_job_for_each_night_of_a_year(
    service: Service, worker: VirtualWorker, name: str
) -> None:
    zone, (skips, repeats) = ZoneInfo(name), _ZONES[name]
    await create(service.http, a_schedule(schedule="30 2 * * *", timeZone=name))
    begin = datetime(_YEAR, 1, 1, tzinfo=zone).astimezone(UTC)
    # It was made in the present; let it have been made at the begin of the year of the virtual clock.
    await execute(service.stores, "UPDATE schedules SET counts_from = :at, next_look = :at", at=begin)
    assert await worker.at(begin) == 0
    expected = [_shown_by_the_clock(day, zone, skips) for day in _DAYS]
    for day, due in zip(_DAYS, expected, strict=True):
        assert await worker.next_look("nightly") == due, day
        if day in (skips, repeats):
            # On these days the worker looks every ten minutes, in both of the hours that the clock shows twice.
            midnight = datetime.combine(day, time(0), zone).astimezone(UTC)
            looks = [midnight + timedelta(minutes=10 * look) for look in range(36)]
            made = [look for look in looks if await worker.at(look)]
            assert made == [due], day
            continue
        assert await worker.at(due - _SECOND) == 0, day
        assert await worker.at(due) == 1, day
    assert await worker.at(begin + timedelta(days=365)) == 0
    found = await rows(worker.stores, "SELECT due_at, job_id FROM scheduled_jobs ORDER BY due_at")
    assert [row.due_at for row in found] == expected
    assert len({row.job_id for row in found}) == len(expected)
    shown = {row.due_at.astimezone(zone).time() for row in found}
    assert shown == {time(2, 30), time(3)}
    offsets = {row.due_at.astimezone(zone).utcoffset() for row in found}
    assert len(offsets) == 2, "the year has summer and winter time"
    jobs = await rows(service.stores, "SELECT name FROM job_objects ORDER BY name")
    assert [row.name for row in jobs] == sorted(f"nightly-{int(due.timestamp()) // 60}" for due in expected)


async def test_a_worker_that_was_away_over_the_change_makes_up_for_the_newest_night(
    service: Service, worker: VirtualWorker
) -> None:
    zone = ZoneInfo("Europe/Berlin")
    await create(service.http, a_schedule(schedule="30 2 * * *", timeZone=zone.key))
    begin = datetime(_YEAR, 10, 24, tzinfo=zone).astimezone(UTC)
    await execute(service.stores, "UPDATE schedules SET counts_from = :at, next_look = :at", at=begin)
    # 24, 25 (02:30 comes twice) and 26 October.
    assert await worker.at(datetime(_YEAR, 10, 26, 12, tzinfo=zone)) == 1
    (row,) = await rows(worker.stores, "SELECT due_at FROM scheduled_jobs")
    assert row.due_at == datetime(_YEAR, 10, 26, 2, 30, tzinfo=zone)
    assert await worker.next_look("nightly") == datetime(_YEAR, 10, 27, 2, 30, tzinfo=zone)
