"""Users who share a queue: turns by what each uses, a limit for each, and what ``why`` says of it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest

from tests.conftest import Service, job
from tests.integration.rows import execute, rows
from tests.waiting import eventually
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.services.feed_follower import Follower
from trainmaster_dispatcher.store import scheduling


@pytest.fixture
async def users(service: Service) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """Calls with the keys of two users of the queue ``default``."""
    async with AsyncExitStack() as stack:
        out = {}
        for name in ("ann", "ben"):
            made = await service.http.post("/v1/keys", json={"name": name, "role": "user", "queues": ["default"]})
            out[name] = await stack.enter_async_context(service.as_key(made.json()["key"]))
        yield out


async def submit(http: httpx.AsyncClient, name: str) -> str:
    answer = await http.post("/v1/jobs", json=job(name, "default", placement={"clusters": ["private"]}))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def counted(service: Service) -> bool:
    return bool(await rows(service.stores, "SELECT FROM user_usage WHERE submitter = 'ann'"))


async def why(http: httpx.AsyncClient, job_id: str) -> dict[str, object]:
    found: dict[str, object] = (await http.get(f"/v1/jobs/{job_id}/why")).json()
    return found


async def until_why(http: httpx.AsyncClient, job_id: str, token: str) -> dict[str, object]:
    async def is_so() -> bool:
        return (await why(http, job_id))["token"] == token

    await eventually(is_so)
    return await why(http, job_id)


async def test_the_next_turn_is_that_of_the_user_with_less(
    service: Service, users: dict[str, httpx.AsyncClient]
) -> None:
    ann, ben = users["ann"], users["ben"]
    agent = service.agent()
    await agent.connect(cpu=1)
    first = await submit(ann, "first")
    running = await agent.next_start()
    assert running["run"] == f"{first}-r1"
    await agent.report(running["run"], RunState.RUNNING, 1)
    others = [await submit(ann, f"a{number}") for number in range(3)]
    one = await submit(ben, "one")
    await until_why(ben, one, "InsufficientCapacity")

    async def is_placed() -> bool:
        return (await why(ben, one)).get("jobsInQueue") == 4

    await eventually(is_placed)
    found = await why(ben, one)
    assert (found["position"], found["jobsAhead"]) == (1, 0)
    factors = found["factors"]
    assert isinstance(factors, dict)
    turn = factors["user"]
    assert (turn["user"], turn["rank"], turn["users"], turn["share"], turn["jobsAhead"]) == ("ben", 1, 2, 0.0, 0)
    found = await why(ann, others[2])
    assert (found["position"], found["jobsAhead"]) == (4, 3)
    # What the job of ann has used is counted every 10 s; without it both would have used nothing when it ends.
    await eventually(lambda: counted(service), 30)
    tried = (await ben.post("/v1/jobs?dryRun=true", json=job("tried", "default"))).json()["jobs"][0]
    assert tried["trial"]["place"]["factors"]["user"]["user"] == "ben"
    await agent.report(running["run"], RunState.SUCCEEDED, 2)
    assert (await agent.next_start())["run"] == f"{one}-r1"


async def test_a_limit_of_users_holds_for_each_and_is_the_reason_of_that_user_alone(
    service: Service, users: dict[str, httpx.AsyncClient]
) -> None:
    ann, ben = users["ann"], users["ben"]
    put = await service.http.patch("/v1/queues/default", json={"maxRunningPerUser": 1})
    assert put.is_success, put.text
    agent = service.agent()
    await agent.connect(cpu=2)
    first, second = await submit(ann, "first"), await submit(ann, "second")
    assert (await agent.next_start())["run"] == f"{first}-r1"
    found = await until_why(ann, second, "UserLimit")
    assert found["sentence"] == "User ann runs 1 of at most 1 jobs in queue default."
    other = await submit(ben, "other")
    assert (await agent.next_start())["run"] == f"{other}-r1"
    stored = await rows(service.stores, "SELECT submitter, reason->>'token' AS token FROM user_reasons")
    assert [(row.submitter, row.token) for row in stored] == [("ann", "UserLimit")]
    # What the same class of others waits for was written since.
    await execute(
        service.stores,
        """INSERT INTO class_reasons (queue_id, class_id, shape_id, avoided, reason, cycle, at)
           SELECT queue_id, class_id, shape_id, avoided, jsonb_set(reason, '{token}', '"InsufficientCapacity"'), cycle + 1, now()
           FROM user_reasons""",
    )
    assert (await why(ann, second))["token"] == "UserLimit"
    assert (await service.http.patch("/v1/queues/default", json={"maxRunningPerUser": 2})).is_success
    await until_why(ann, second, "InsufficientCapacity")
    assert await rows(service.stores, "SELECT FROM user_reasons") == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"fairBy": "user", "order": "strict"}, "fairBy: user and order: strict contradict each other"),
        ({"fairBy": "group"}, "fairBy"),
        ({"userWeights": {"ann": 0}}, "userWeights.ann"),
        ({"maxRunningPerUser": -1}, "maxRunningPerUser"),
        ({"limitsPerUser": {"cpu": "many"}}, "limitsPerUser.cpu"),
        ({"limitsPerUser": {"cpu": "-1"}}, "limitsPerUser.cpu"),
        ({"limitsPerUser": {"cpu@kind=public": "1"}}, "limitsPerUser"),
        ({"orderBy": "size"}, "orderBy"),
    ],
)
async def test_what_makes_no_sense_is_refused(service: Service, fields: dict[str, object], words: str) -> None:
    answer = await service.http.put("/v1/queues/q", json={"path": "q", **fields})
    assert answer.status_code == 422
    assert words in answer.text


async def test_what_jobs_took_decides_the_order_by_slowdown_also_after_a_restart(
    service: Service, users: dict[str, httpx.AsyncClient]
) -> None:
    spec = {"orderBy": "slowdown", "fairBy": "none", "defaultTimeLimit": "1h"}
    assert (await service.http.patch("/v1/queues/default", json=spec)).is_success
    agent = service.agent()
    await agent.connect(cpu=1)
    ended = await submit(users["ben"], "before")
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    await submit(users["ann"], "older")
    quick = await submit(users["ben"], "quick")
    await agent.report(run, RunState.SUCCEEDED, 2)
    await service.until(ended, "succeeded")
    assert (await agent.next_start())["run"] == f"{quick}-r1"
    async with service.stores.database.transaction() as tx:
        (learnt,) = await scheduling.run_times(tx)
    assert (learnt.user, learnt.seconds < 30) == ("ben", True)
    follower = Follower()
    await follower.absorb(service.stores, 0.0)
    assert follower.state.run_times.predicted("ben", learnt.shape_id) == 10.0, "no prediction is shorter"
    (run_there,) = follower.state.runs.values()
    assert run_there.predicted_seconds == 10.0, "it was stored with the run"

    service.stores.settings.predict_run_times = False
    follower = Follower()
    await follower.absorb(service.stores, 0.0)
    (run_there,) = follower.state.runs.values()
    assert (bool(follower.state.run_times), run_there.predicted_seconds) == (False, None)
