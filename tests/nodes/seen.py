"""Records of scenarios: what users saw of the jobs of a test, as a property of its result for ``scripts/node-reference``."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from tests.nodes.fleet import Fleet
from tests.nodes.system import NodeSystem
from trainmaster.client.values import JobFilter

PROPERTY = "job"
_LAST_LINES = 2
"""Lines of a job's output that are recorded."""
_LONGEST = 400
"""Characters of a text that are recorded."""


def system_of(fixtures: Mapping[str, Any]) -> NodeSystem | None:
    """Return the system among the fixtures of a test; of two clusters, the first one: both have the same dispatcher."""
    fleet = fixtures.get("fleet")
    if isinstance(fleet, Fleet):
        return fleet.north
    system = fixtures.get("system")
    return system if isinstance(system, NodeSystem) else None


def jobs_seen(system: NodeSystem, since: datetime) -> Iterator[dict[str, Any]]:
    """Yield the state of each job that was submitted after a time, and what ``why``, ``logs`` and ``watch`` show; the oldest first."""
    for job in reversed(list(system.client.jobs(JobFilter(since=since)))):
        states = [state for event in system.client.events(job.id) for state in event.states]
        why = [*system.explained.pop(job.id, ()), system.client.why(job.id).sentence]
        lines = [line for line in system.output(job.id, "--tail", str(_LAST_LINES)).splitlines() if line.strip()]
        yield {
            "name": job.name,
            "state": str(job.state),
            "why": [_plain(text, job.id) for text in dict.fromkeys(why)],
            "logs": [_plain(line, job.id) for line in lines[-_LAST_LINES:]],
            "watch": states,
        }


def _plain(text: str, job: str) -> str:
    """Return a text with single spaces, without the job's id, and cut if it is long."""
    single = re.sub(r"\s+", " ", text).strip().replace(job, "JOB")
    return single if len(single) <= _LONGEST else f"{single[:_LONGEST]} ..."
