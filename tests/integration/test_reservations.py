"""Nodes that an admin reserves, from the document to who starts: over the api, the store, the feed and a real scheduler."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.conftest import Service
from tests.waiting import eventually
from trainmaster.protocol.tenants import QueueSpec


def window(queue: str, hours: float = 1.0, nodes: int = 1) -> dict[str, Any]:
    """Return a reservation of ``nodes`` nodes for a queue, from an hour ago until ``hours`` from now."""
    now = datetime.now(UTC)
    return {
        "name": "weekend",
        "queue": queue,
        "nodes": nodes,
        "clusters": ["private"],
        "start": (now - timedelta(hours=1)).isoformat(),
        "end": (now + timedelta(hours=hours)).isoformat(),
    }


async def test_reserved_nodes_are_for_their_queue_until_it_is_removed(service: Service) -> None:
    await service.http.put("/v1/queues/team", json=QueueSpec(path="team").to_wire())
    answer = await service.http.put("/v1/reservations/weekend", json=window("team"))
    assert answer.status_code == 201, answer.text
    agent = service.agent()
    await agent.connect(cpu=4)
    guest = await service.submit("guest", cpu="1")

    async def is_told() -> bool:
        reason = (await service.http.get(f"/v1/jobs/{guest}/why")).json()
        return bool(reason["token"] == "ReservedForQueue")

    await eventually(is_told)
    own = await service.submit("own", queue="team", cpu="1")
    await service.until(own, "dispatched")
    assert (await service.job(guest))["shownState"] == "queued"
    (shown,) = (await service.http.get("/v1/reservations")).json()["reservations"]
    assert (shown["name"], shown["queue"], shown["nodes"]) == ("weekend", "team", 1)
    assert (await service.http.get("/v1/reservations/weekend")).json() == shown
    refused = await service.http.delete("/v1/queues/team")
    assert (refused.status_code, refused.json()["code"]) == (409, "in-use")
    assert (await service.http.delete("/v1/reservations/weekend")).status_code == 204
    await service.until(guest, "dispatched")


async def test_a_queue_with_a_reservation_alone_is_kept(service: Service) -> None:
    await service.http.put("/v1/queues/team", json=QueueSpec(path="team").to_wire())
    await service.http.put("/v1/reservations/weekend", json=window("team"))
    refused = await service.http.delete("/v1/queues/team")
    assert (refused.status_code, refused.json()["detail"]) == (
        409,
        "nodes are reserved for queue 'team'; remove the reservation first",
    )
    await service.http.delete("/v1/reservations/weekend")
    assert (await service.http.delete("/v1/queues/team")).status_code == 204


async def test_a_reservation_that_is_changed_counts_as_it_is_now(service: Service) -> None:
    await service.http.put("/v1/queues/team", json=QueueSpec(path="team").to_wire())
    await service.http.put("/v1/reservations/weekend", json=window("team"))
    await service.agent().connect(cpu=4)
    guest = await service.submit("guest", cpu="1")
    answer = await service.http.put(
        "/v1/reservations/weekend", json=window("team", hours=1.0) | {"clusters": ["public"]}
    )
    assert answer.status_code == 200, answer.text
    await service.until(guest, "dispatched")
