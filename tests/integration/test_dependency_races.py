"""Jobs that are submitted while their predecessors end: none starts early, and none waits for ever."""

import asyncio
import random
from typing import Any

from tests.conftest import Service, job
from tests.waiting import eventually
from trainmaster.protocol.ids import parse_job_id
from trainmaster.protocol.states import JobState
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.jobs import Transition, lock, write

ROUNDS, PREDECESSORS, FOLLOWERS = 30, 4, 6


async def end_all(tx: Transaction, keys: list[int], state: JobState) -> None:
    """End queued jobs as runs of them would have."""
    records = await lock(tx, keys)
    moved = [
        Transition(
            record,
            record.job.moved(JobState.DISPATCHED).moved(state),
            JobEventKind.RUN_SUCCEEDED,
            (state.value,),
        )
        for record in records.values()
    ]
    await write(tx, moved)


async def held_by_jobs(service: Service, ids: list[str]) -> list[str]:
    found = [await service.job(one) for one in ids]
    return [one["id"] for one in found if one.get("holdCause") == "dependency"]


async def test_submissions_and_ends_at_the_same_moment(service: Service) -> None:
    """Predecessors end in transactions of their own, some as failed, while jobs that wait for some of them are submitted."""
    chance = random.Random(11)
    for _ in range(ROUNDS):
        answer = await service.http.post("/v1/jobs", json={"jobs": [job(f"p{n}") for n in range(PREDECESSORS)]})
        predecessors = [one["id"] for one in answer.json()["jobs"]]
        ends = {one: chance.choice([JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.FAILED]) for one in predecessors}
        wanted: dict[str, list[dict[str, str]]] = {}

        async def end(one: str, ends: dict[str, JobState] = ends) -> None:
            await asyncio.sleep(chance.random() * 0.02)
            async with service.stores.database.transaction() as tx:
                await end_all(tx, [parse_job_id(one)[1]], ends[one])

        async def submit(
            number: int, predecessors: list[str] = predecessors, wanted: dict[str, list[dict[str, str]]] = wanted
        ) -> None:
            await asyncio.sleep(chance.random() * 0.02)
            chosen = chance.sample(predecessors, chance.randint(1, PREDECESSORS))
            after = [{"job": one, "condition": chance.choice(["succeeded", "failed", "ended"])} for one in chosen]
            answer = await service.http.post("/v1/jobs", json=job(f"f{number}", after=after))
            if answer.status_code == 201:
                wanted[answer.json()["id"]] = after
            else:
                assert answer.json()["code"] == "dependency-impossible", answer.text

        await asyncio.gather(*(end(one) for one in predecessors), *(submit(number) for number in range(FOLLOWERS)))

        async def all_decided(wanted: dict[str, Any] = wanted) -> bool:
            return not await held_by_jobs(service, list(wanted))

        await eventually(all_decided, 20)
        for one, after in wanted.items():
            met = all(entry["condition"] in (ends[entry["job"]].value, "ended") for entry in after)
            assert (await service.job(one))["state"] == ("queued" if met else "cancelled"), (after, ends)


async def test_predecessors_that_end_at_the_same_moment_release_their_jobs_once(service: Service) -> None:
    answer = await service.http.post("/v1/jobs", json={"jobs": [job(f"p{n}") for n in range(20)]})
    predecessors = [one["id"] for one in answer.json()["jobs"]]
    after = [{"job": one} for one in predecessors]
    answer = await service.http.post("/v1/jobs", json={"jobs": [job(f"f{n}", after=after) for n in range(5)]})
    followers = [one["id"] for one in answer.json()["jobs"]]

    async def end(one: str) -> None:
        async with service.stores.database.transaction() as tx:
            await end_all(tx, [parse_job_id(one)[1]], JobState.SUCCEEDED)

    await asyncio.gather(*(end(one) for one in predecessors[:-1]))
    assert await held_by_jobs(service, followers) == followers
    await end(predecessors[-1])

    async def all_released() -> bool:
        return not await held_by_jobs(service, followers)

    await eventually(all_released, 20)
    for one in followers:
        events = (await service.http.get(f"/v1/jobs/{one}/events")).json()["events"]
        assert [event["kind"] for event in events].count("released") == 1
