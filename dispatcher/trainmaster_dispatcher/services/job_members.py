"""The members of jobs' latest runs, as agents have reported them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster.protocol.parameters import substitute
from trainmaster_dispatcher.services.job_objects import ReadJob
from trainmaster_dispatcher.store import jobs, runs
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.runs import LatestRun


@dataclass(frozen=True, slots=True)
class JobMember:
    """A member of a run. ``state``: as in an agent's report; ``role``: its role as specified; ``text``: what the agent says of it."""

    job: ReadJob
    run: LatestRun
    role: Mapping[str, Any]
    index: int
    state: str
    node: str = ""
    exit_code: int | None = None
    restarts: int = 0
    text: str = ""

    @property
    def role_name(self) -> str:
        return str(self.role["name"])


async def of_jobs(tx: Transaction, wanted: Sequence[ReadJob], most: int | None = None) -> dict[int, list[JobMember]]:
    """Return the members of the latest run of each of these jobs, in their order; jobs without a run have none.

    ``most``: as soon as there are as many, the jobs that follow are left out.
    """
    found = await runs.latest(tx, [job.key for job in wanted])
    rows = {row.id: row for row in await jobs.views(tx, list(found))}
    specs = await jobs.specs(tx, {row.spec_id for row in rows.values()})
    members: dict[int, list[JobMember]] = {}
    many = 0
    for job in wanted:
        if most is not None and many >= most:
            break
        members[job.key] = []
        if (row := rows.get(job.key)) is not None:
            spec: Mapping[str, Any] = specs.get(row.spec_id, {})
            if row.parameters is not None:
                spec = substitute(dict(spec), row.parameters)
            members[job.key] = list(_members(job, found[job.key], spec))
            many += len(members[job.key])
    return members


def _members(job: ReadJob, run: LatestRun, spec: Mapping[str, Any]) -> Iterator[JobMember]:
    """Yield the members of a run: those that were reported, and those that are to come, by their numbers."""
    reported = {(one["role"], one["index"]): one for one in (run.result or {}).get("members", ())}
    for role in spec.get("roles", ()):
        placed = sum(group.get(role["name"], 0) for group in run.placement.values())
        for index in range(placed or int(role.get("replicas", 1))):
            one = reported.get((role["name"], index), {})
            yield JobMember(
                job,
                run,
                role,
                index,
                str(one.get("state") or _STATES.get(run.state.value, "pending")),
                str(one.get("node", "")),
                one.get("exitCode"),
                int(one.get("restarts", 0)),
                str(one.get("message", "")),
            )


_STATES = {
    "running": "running",
    "stopping": "running",
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "stopped",
    "suspended": "stopped",
    "preempted": "stopped",
    "returned": "stopped",
    "lost": "failed",
}
"""The state of a member that its agent has not told of, by the state of its run."""
