"""Completed jobs as a workload for simulations."""

from datetime import datetime

from trainmaster.protocol.workload import Workload, WorkloadJob
from trainmaster_dispatcher.store import jobs as store
from trainmaster_dispatcher.store.database import Transaction

PAGE = 5000
"""Jobs that are read for one answer."""


async def workload(tx: Transaction, begin: datetime, end: datetime, before: int | None) -> Workload:
    """Return a page of the jobs that were submitted in this time, have ended and have run; the latest first."""
    last = await store.oldest_of_page(tx, before, PAGE)
    if last is None:
        return Workload()
    rows = [row for row in await store.workload(tx, begin, end, before, PAGE) if row.run is not None]
    jobs = tuple(
        WorkloadJob(
            job=row.id,
            submitted=row.submitted,
            waited=row.waited or 0.0,
            run=row.run,
            spec=row.spec_id,
            queue=row.queue,
            priority_class=row.priority_class,
            priority=row.priority,
            user=row.submitter or "",
        )
        for row in rows
    )
    specs = await store.specs(tx, sorted({row.spec_id for row in rows}))
    goes_on = last.submitted_at >= begin and last.many == PAGE
    return Workload(jobs=jobs, specs=specs, next=last.id if goes_on else None)
