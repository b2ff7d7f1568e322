"""Schedules for tests: documents, and turns of the side job that deals with due times."""

from typing import Any

import httpx

from tests.conftest import Service
from tests.integration.rows import execute
from trainmaster_dispatcher.services.cluster_admissions import ClusterAdmissions
from trainmaster_dispatcher.services.schedule_firing import FiringTally, ScheduleFiring

ROLES = [{"name": "main", "replicas": 1, "template": {"command": ["true"], "resources": {"cpu": "1"}}}]
POD = {
    "restartPolicy": "Never",
    "containers": [{"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}}],
}


def a_schedule(name: str = "nightly", queue: str = "default", **fields: Any) -> dict[str, Any]:
    return {
        "kind": "Schedule",
        "name": name,
        "queue": queue,
        "schedule": "0 3 * * *",
        "job": {"roles": ROLES},
        **fields,
    }


def a_cron_job(name: str = "nightly", metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": {"template": {"spec": POD}}}, **spec},
    }


async def create(http: httpx.AsyncClient, document: dict[str, Any], **parameters: str) -> dict[str, Any]:
    made = await http.post("/v1/schedules", json=document, params=parameters)
    assert made.status_code == 201, made.text
    shown: dict[str, Any] = made.json()
    return shown


async def shown(service: Service, name: str = "nightly", **parameters: str) -> dict[str, Any]:
    found = await service.http.get(f"/v1/schedules/{name}", params=parameters)
    assert found.status_code == 200, found.text
    view: dict[str, Any] = found.json()
    return view


async def pass_time(service: Service, name: str = "nightly", **span: float) -> None:
    """Let it be later for a schedule: it counts due times from a moment that is that much longer ago."""
    seconds = sum(value * {"days": 86_400, "hours": 3600, "minutes": 60}[unit] for unit, value in span.items())
    await execute(
        service.stores,
        "UPDATE schedules SET counts_from = counts_from - make_interval(secs => :s), last_due = last_due - make_interval(secs => :s),"
        " next_look = CASE WHEN next_look IS NOT NULL THEN now() - interval '1 second' END, xid = pg_current_xact_id()"
        " WHERE name = :name",
        s=seconds,
        name=name,
    )
    # So had the due times before been, and the names of their jobs.
    await execute(
        service.stores,
        "UPDATE scheduled_jobs d SET due_at = due_at - make_interval(secs => :s) FROM schedules s"
        " WHERE s.id = d.schedule_id AND s.name = :name",
        s=seconds,
        name=name,
    )
    await execute(
        service.stores,
        "UPDATE job_objects o SET name = :name || '-' || floor(extract(epoch FROM d.due_at) / 60)::bigint"
        " FROM scheduled_jobs d JOIN schedules s ON s.id = d.schedule_id"
        " WHERE o.job_id = d.job_id AND d.due_at IS NOT NULL AND s.name = :name",
        name=name,
    )


async def turn(service: Service, batch: int = 500) -> FiringTally:
    """Deal with what is due, as the worker does."""
    admissions = ClusterAdmissions(service.stores)
    return await ScheduleFiring(service.stores, admissions.known, batch=batch).run()


async def events(service: Service, name: str = "nightly") -> list[tuple[str, str]]:
    """Return the events of a schedule by the Kubernetes API: reason and message."""
    found = await service.http.get(
        "/api/v1/namespaces/default/events", params={"fieldSelector": f"involvedObject.name={name}"}
    )
    assert found.status_code == 200, found.text
    return [(one["reason"], one["message"]) for one in found.json()["items"]]
