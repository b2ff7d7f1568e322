"""The endpoint at which the leader answers: whom, with what, and for how long."""

from collections.abc import AsyncIterator
from math import inf
from typing import Any

import httpx
import pytest

from tests.unit.building import NOW, StateBuilder, nodes, simple
from tests.waiting import eventually
from trainmaster.protocol.queue_position import StartForecast
from trainmaster_dispatcher.domain.wait_forecasts import JobKind
from trainmaster_dispatcher.scheduler import leader_api
from trainmaster_dispatcher.scheduler.leader_api import LeadingEngine, make_leader_api
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.queries.queue_position import Reasons, moment, quotas_of
from trainmaster_dispatcher.scheduling.queries.wait_forecaster import WaitForecaster

OURS = {"Authorization": "Bearer secret"}
ROLE = {"name": "main", "replicas": 1, "least": 1, "needs": {"cpu": 1000}}
QUESTION: dict[str, Any] = {
    "name": "new",
    "queueId": 1,
    "classId": 2,
    "priority": 0,
    "shape": {"roles": [ROLE], "leastMembers": 1},
}


class Leader:
    """What the endpoint looks at; ``looks`` is how often it may still be seen, None for ever."""

    def __init__(self) -> None:
        self.builder = StateBuilder().cluster("c", nodes(1, cpu=4)).jobs(3, "j", age=60)
        self.engine: Engine = self.builder.engine
        self.looks: int | None = None
        self.reasons: Reasons = {}
        self.forecaster = WaitForecaster()

    def __call__(self) -> LeadingEngine | None:
        if self.looks is not None:
            self.looks -= 1
            if self.looks < 0:
                return None
        return LeadingEngine(self.engine, NOW, self.reasons, self.forecaster)


@pytest.fixture
def leader() -> Leader:
    return Leader()


@pytest.fixture
async def http(leader: Leader) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(make_leader_api(leader, "secret"))
    async with httpx.AsyncClient(transport=transport, base_url="http://leader.test", headers=OURS) as client:
        yield client


async def test_a_place_is_told_by_the_key_of_the_job(http: httpx.AsyncClient) -> None:
    answer = await http.get("/place/2")
    assert (answer.status_code, answer.json()["position"], answer.json()["jobsInQueue"]) == (200, 2, 3)
    assert (await http.get("/place/99")).status_code == 404
    assert (await http.get("/place/x")).status_code == 404


async def test_a_place_has_by_when_it_is_likely_to_start(http: httpx.AsyncClient, leader: Leader) -> None:
    builder = leader.builder.run("r", simple(cpu=4, limit=100.0), on="c")
    leader.reasons = decide(builder.engine, NOW).reasons
    assert (await http.get("/place/3")).json()["forecast"] is None
    for _ in range(20):
        leader.forecaster._waits.note(JobKind.of(1, 0.25, inf), 1.0, 1.0)
    forecast = (await http.get("/place/3")).json()["forecast"]
    # Four cores: 400 core seconds run, and two jobs of unknown run time, which count as 600 seconds each, are before it.
    found = StartForecast.model_validate(forecast)
    assert found == StartForecast(half_by=moment(NOW + 400), most_by=moment(NOW + 400), jobs=20)


async def test_usage_is_told_of_every_queue(http: httpx.AsyncClient, leader: Leader) -> None:
    leader.builder.run("r", on="c")
    answer = await http.get("/usage")
    share = {"share": 0.25, "shareBeyondGuarantee": 0.25, "pastShare": 0.0}
    assert (answer.status_code, answer.json()) == (
        200,
        {"queues": [{"queue": "main", "running": 1, "used": {"cpu": "1"}} | share]},
    )
    leader.looks = 0
    assert (await http.get("/usage")).status_code == 503


async def test_trials_come_in_the_order_of_the_questions(http: httpx.AsyncClient) -> None:
    unknown, large = (
        QUESTION | {"queueId": 99},
        {**QUESTION, "shape": {"roles": [ROLE | {"needs": {"cpu": 9000}}], "leastMembers": 1}},
    )
    answer = await http.post("/try", json={"jobs": [QUESTION, unknown, large]})
    first, second, third = answer.json()["trials"]
    assert (first["startsNow"], first["place"]["position"]) == (True, 4)
    assert second is None
    assert third["couldRun"] is False


@pytest.mark.parametrize(
    "headers", [{"Authorization": ""}, {"Authorization": "Bearer secre"}, {"Authorization": "secret"}]
)
async def test_strangers_are_told_nothing(http: httpx.AsyncClient, leader: Leader, headers: dict[str, str]) -> None:
    leader.looks = 0
    assert (await http.get("/place/2", headers=headers)).status_code == 401
    assert (await http.get("/usage", headers=headers)).status_code == 401
    assert (await http.post("/try", headers=headers, json={"jobs": [QUESTION]})).status_code == 401
    assert leader.looks == 0, "not even whether it leads"


async def test_who_does_not_lead_refuses_also_in_the_middle_of_an_answer(
    http: httpx.AsyncClient, leader: Leader
) -> None:
    leader.looks = 1
    assert (await http.post("/try", json={"jobs": [QUESTION, QUESTION]})).status_code == 503
    leader.looks = 0
    assert (await http.get("/place/2")).status_code == 503


@pytest.mark.parametrize("body", [{"jobs": [{}]}, {}, [], {"jobs": [QUESTION] * 101}])
async def test_what_no_api_asks_is_refused(http: httpx.AsyncClient, body: Any) -> None:
    assert (await http.post("/try", json=body)).status_code == 422


async def test_questions_for_which_time_is_up_have_no_answer(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_api, "_TRY_SECONDS", -1.0)
    assert (await http.post("/try", json={"jobs": [QUESTION] * 2})).json() == {"trials": [None, None]}


async def test_shares_are_worked_out_once_for_the_questions_of_a_moment(
    http: httpx.AsyncClient, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Engine] = []

    def counted(engine: Engine, now: float) -> Any:
        made.append(engine)
        return quotas_of(engine, now)

    monkeypatch.setattr(leader_api, "quotas_of", counted)
    monkeypatch.setattr(leader_api, "_LEDGER_SECONDS", 0.2)
    for _ in range(3):
        await http.get("/place/2")
    assert len(made) == 1

    async def anew() -> bool:
        await http.get("/place/2")
        return len(made) > 1

    await eventually(anew)
    leader.engine = StateBuilder().job("other").engine
    await http.get("/place/1")
    assert made[-1] is leader.engine, "another state has other shares"
