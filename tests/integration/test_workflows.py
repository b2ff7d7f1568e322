"""Workflows over REST, on a real store and with the leading scheduler: order, results, failures, cancel, resume, rights."""

from typing import Any

import pytest

from tests.conftest import Service, job
from tests.integration.reported_runs import ReportedRuns
from tests.integration.rows import execute, rows, value
from tests.waiting import eventually
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.services import workflows
from trainmaster_dispatcher.services.retention import Retention


def step(name: str, *args: str, after: tuple[Any, ...] = (), **fields: Any) -> dict[str, Any]:
    spec = job(name, **fields.pop("spec", {}))
    del spec["name"], spec["kind"], spec["queue"]
    spec["roles"][0]["template"]["args"] = list(args)
    return {"name": name, "after": list(after), "job": spec, **fields}


def workflow(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"kind": "Workflow", "name": "flow", "queue": "default", "steps": list(steps), **fields}


async def declare_queue(service: Service, path: str, **fields: Any) -> None:
    answer = await service.http.put(f"/v1/queues/{path}", json={"kind": "Queue", "path": path, **fields})
    assert answer.status_code in (200, 201), answer.text


class Flow:
    """A submitted workflow, and the agent that runs its jobs."""

    def __init__(self, service: Service, runs: ReportedRuns, key: str) -> None:
        self._service = service
        self.runs = runs
        self.id = key

    async def show(self) -> dict[str, Any]:
        answer = await self._service.http.get(f"/v1/workflows/{self.id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def step(self, name: str) -> dict[str, Any]:
        return next(one for one in (await self.show())["steps"] if one["name"] == name)

    async def states(self) -> dict[str, str]:
        return {one["name"]: one["state"] for one in (await self.show())["steps"]}

    async def until(self, state: str) -> dict[str, Any]:
        async def look() -> bool:
            return bool((await self.show())["state"] == state)

        await eventually(look, 10)
        return await self.show()

    async def job_of(self, name: str) -> str:
        """Wait until a step has a job whose run is started; return its id."""
        (found,) = await self.jobs_of(name, 1)
        return found

    async def jobs_of(self, name: str, many: int) -> list[str]:
        """Wait until a step has ``many`` jobs in all, and start those that are not."""

        async def look() -> bool:
            return len((await self.step(name))["ids"]) == many

        await eventually(look, 10)
        ids: list[str] = (await self.step(name))["ids"]
        await self.runs.have(*ids)
        return ids

    async def some_jobs_of(self, name: str, known: set[str]) -> list[str]:
        """Wait until a step has jobs beside the known ones, and these have runs; return them."""

        async def look() -> bool:
            return bool(set((await self.step(name))["ids"]) - known)

        await eventually(look, 10)
        fresh = sorted(set((await self.step(name))["ids"]) - known)
        await self.runs.have(*fresh)
        return fresh

    async def passes(self, name: str, **fields: Any) -> None:
        await self.runs.end(await self.job_of(name), **fields)

    async def act(self, action: str, body: Any = None, status: int = 200) -> dict[str, Any]:
        answer = await self._service.http.post(f"/v1/workflows/{self.id}/{action}", json=body)
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def arguments(self, job_id: str) -> list[str]:
        """Return the arguments with which the agent was told to start a job's first member."""
        found: list[str] = self.runs.spec(job_id)["roles"][0]["template"]["args"]
        return found


class Flows:
    """Workflows of a test."""

    def __init__(self, service: Service, runs: ReportedRuns) -> None:
        self._service = service
        self._runs = runs

    def of(self, key: str) -> Flow:
        return Flow(self._service, self._runs, key)

    async def submit(self, *steps: dict[str, Any], **fields: Any) -> Flow:
        answer = await self._service.http.post("/v1/workflows", json=workflow(*steps, **fields))
        assert answer.status_code == 201, answer.text
        assert answer.headers["location"] == f"/v1/workflows/{answer.json()['id']}"
        return Flow(self._service, self._runs, answer.json()["id"])


@pytest.fixture
async def flows(service: Service) -> Flows:
    return Flows(service, await ReportedRuns(service).connect())


async def test_steps_run_in_their_order_and_the_workflow_succeeds(flows: Flows) -> None:
    flow = await flows.submit(step("a"), step("b", after=("a",)), step("c", after=("a", "b")))
    assert (await flow.step("b"))["message"].startswith("step a, which is ")
    await flow.passes("a")
    assert (await flow.states())["c"] == "waiting"
    await flow.passes("b")
    await flow.passes("c")
    found = await flow.until("succeeded")
    assert {one["state"] for one in found["steps"]} == {"succeeded"}
    assert [one["total"] for one in found["steps"]] == [1, 1, 1]
    assert all("startedAt" in one and "endedAt" in one for one in found["steps"])


async def test_jobs_have_the_labels_of_their_workflow_and_are_listed_by_them(service: Service, flows: Flows) -> None:
    flow = await flows.submit(step("a"), labels={"team": "t"})
    found = await service.job(await flow.job_of("a"))
    assert found["labels"] == {"team": "t", "trainmaster.dev/workflow": flow.id, "trainmaster.dev/step": "a"}
    answer = await service.http.get("/v1/jobs", params={"label": f"trainmaster.dev/workflow={flow.id}"})
    assert [one["id"] for one in answer.json()["jobs"]] == [found["id"]]


async def test_results_of_a_step_reach_the_jobs_of_the_next_one(flows: Flows) -> None:
    flow = await flows.submit(
        step("plan"),
        step("train", "${item}", "${rate}", after=("plan",), forEach="${steps.plan.results.parts}"),
        step("report", "${steps.train.results.loss}", "${workflow.id}", after=("train",)),
        parameters={"rate": 0.1},
    )
    await flow.passes("plan", results={"parts": ["x", "y"]})
    jobs = await flow.jobs_of("train", 2)
    assert [await flow.arguments(one) for one in jobs] == [["x", "0.1"], ["y", "0.1"]]
    await flow.runs.end(jobs[0], results={"loss": 0.5})
    assert (await flow.states())["report"] == "waiting"
    await flow.runs.end(jobs[1], results={"loss": 0.25})
    assert await flow.arguments(await flow.job_of("report")) == ["[0.5,0.25]", flow.id]


async def test_a_result_that_is_missing_fails_the_step_and_says_so(flows: Flows) -> None:
    flow = await flows.submit(step("plan"), step("train", "${steps.plan.results.rate}", after=("plan",)))
    await flow.passes("plan", results={"other": 1})
    found = await flow.until("failed")
    assert found["steps"][1]["state"] == "failed"
    assert "has returned only other" in found["steps"][1]["message"]


async def test_elements_are_submitted_as_others_end(flows: Flows) -> None:
    flow = await flows.submit(step("fan", "${item}", forEach=[1, 2, 3, 4, 5], maxRunning=2))
    first = await flow.jobs_of("fan", 2)
    await flow.runs.end(first[0])
    second = await flow.jobs_of("fan", 3)
    for one in (*first[1:], *(set(second) - set(first))):
        await flow.runs.end(one)
    rest = set(await flow.jobs_of("fan", 5)) - set(second)
    for one in rest:
        await flow.runs.end(one)
    found = await flow.until("succeeded")
    assert found["steps"][0]["jobs"] == {"succeeded": 5}
    given = sorted([(await flow.arguments(one))[0] for one in found["steps"][0]["ids"]])
    assert given == ["1", "2", "3", "4", "5"], "each element has one job"


async def test_a_failure_stops_the_others_and_runs_what_mends_and_cleans_up(flows: Flows) -> None:
    flow = await flows.submit(
        step("a"),
        step("b", after=("a",)),
        step("side"),
        step("more", after=("side",)),
        step("mend", after=({"step": "a", "condition": "failed"},)),
        step("tidy", cleanup=True),
    )
    await flow.passes("a", failed=True, message="it broke")
    await flow.passes("mend")
    await flow.passes("side")
    await flow.passes("tidy")
    assert (await flow.until("failed"))["steps"][0]["message"] == "its job failed: it broke"
    assert await flow.states() == {
        "a": "failed",
        "b": "skipped",
        "side": "succeeded",
        "more": "skipped",
        "mend": "succeeded",
        "tidy": "succeeded",
    }


async def test_on_failure_cancel_cancels_the_other_jobs(service: Service, flows: Flows) -> None:
    flow = await flows.submit(step("a"), step("side"), onFailure="cancel")
    side = await flow.job_of("side")
    await flow.passes("a", failed=True)
    await service.until(side, "cancelling", "cancelled")
    await flow.runs.come_to(side, RunState.CANCELLED)
    found = await flow.until("failed")
    assert found["steps"][1]["state"] == "cancelled"


async def test_a_cancelled_workflow_cancels_its_jobs_and_runs_its_cleanup(service: Service, flows: Flows) -> None:
    flow = await flows.submit(step("a"), step("b", after=("a",)), step("tidy", cleanup=True))
    first = await flow.job_of("a")
    assert (await flow.act("cancel"))["isCancelling"] is True
    await service.until(first, "cancelling", "cancelled")
    await flow.runs.come_to(first, RunState.CANCELLED)
    await flow.passes("tidy")
    found = await flow.until("cancelled")
    assert await flow.states() == {"a": "cancelled", "b": "skipped", "tidy": "succeeded"}
    assert (await flow.act("cancel"))["endedAt"] == found["endedAt"], "again changes nothing"


async def test_a_cancel_without_cleanup_ends_at_once(service: Service, flows: Flows) -> None:
    flow = await flows.submit(step("a"), step("tidy", cleanup=True))
    first = await flow.job_of("a")
    await flow.act("cancel", {"cleanup": False})
    await service.until(first, "cancelling", "cancelled")
    await flow.runs.come_to(first, RunState.CANCELLED)
    await flow.until("cancelled")
    assert await flow.states() == {"a": "cancelled", "tidy": "skipped"}


async def test_resume_goes_on_from_the_failed_step_and_runs_no_job_twice(flows: Flows) -> None:
    flow = await flows.submit(
        step("a"),
        step("fan", "${item}", after=("a",), forEach=[1, 2]),
        step("c", after=("fan",)),
        step("tidy", cleanup=True),
        onFailure="continue",
    )
    await flow.passes("a")
    before = (await flow.step("a"))["ids"]
    good, bad = await flow.jobs_of("fan", 2)
    await flow.runs.end(good)
    await flow.runs.end(bad, failed=True)
    await flow.passes("tidy")
    await flow.until("failed")
    assert (await flow.act("resume"))["attempt"] == 2
    await flow.runs.have_another(bad)
    await flow.runs.end(bad)
    await flow.passes("c")
    await flow.passes("tidy")
    found = await flow.until("succeeded")
    assert (await flow.step("a"))["ids"] == before
    assert sorted((await flow.step("fan"))["ids"]) == sorted([good, bad])
    assert found["attempt"] == 2
    answer = await flow.act("resume", status=409)
    assert answer["code"] == "wrong-state"


async def test_a_step_that_the_queue_has_no_place_for_waits_and_says_so(service: Service, flows: Flows) -> None:
    await declare_queue(service, "default", maxQueued=1)
    filler = await service.submit("filler", cpu="1000")  # which fits nowhere
    flow = await flows.submit(step("a"))

    async def is_refused() -> bool:
        return "refused" in (await flow.step("a"))["message"]

    await eventually(is_refused, 10)
    assert "queue-full" in (await flow.step("a"))["message"]
    assert (await flow.show())["state"] == "running"
    assert (await service.http.post(f"/v1/jobs/{filler}/cancel")).status_code == 200
    await execute(service.stores, "UPDATE workflows SET next_look = now()")
    await flow.passes("a")
    await flow.until("succeeded")


async def test_a_step_with_more_jobs_than_its_queue_takes_gets_them_bit_by_bit(service: Service, flows: Flows) -> None:
    await declare_queue(service, "default", maxQueued=3)
    flow = await flows.submit(step("fan", "${item}", forEach=list(range(7))))
    done: set[str] = set()
    while len(done) < 7:
        for one in await flow.some_jobs_of("fan", done):
            await flow.runs.end(one)
            done.add(one)
        await execute(service.stores, "UPDATE workflows SET next_look = now() WHERE ended_at IS NULL")
    found = await flow.until("succeeded")
    assert found["steps"][0]["jobs"] == {"succeeded": 7}
    assert sorted([(await flow.arguments(one))[0] for one in done]) == [str(number) for number in range(7)]


async def test_rights_are_those_to_the_queues_of_all_steps(service: Service, flows: Flows) -> None:
    for path in ("open", "closed"):
        await declare_queue(service, path, jobActions="any")
    answer = await service.http.post("/v1/keys", json={"name": "ann", "role": "user", "queues": ["open"]})
    assert answer.status_code == 201, answer.text
    ann = service.as_key(answer.json()["key"])
    hidden = step("b", spec={"queue": "closed"}, after=("a",))
    hidden["job"]["queue"] = "closed"
    flow = await flows.submit(step("a"), hidden, queue="open")
    seen = (await ann.get(f"/v1/workflows/{flow.id}")).json()
    assert [one["message"] for one in seen["steps"]][1] == "its jobs are of another queue"
    refused = await ann.post(f"/v1/workflows/{flow.id}/cancel", json={})
    assert (refused.status_code, refused.json()["code"]) == (403, "job-of-another")
    plain = await flows.submit(step("a"), queue="open", name="plain")
    assert (await ann.post(f"/v1/workflows/{plain.id}/cancel", json={})).status_code == 200
    answer = await ann.post("/v1/workflows", json=workflow(step("a"), hidden, queue="open"))
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    answer = await ann.post("/v1/workflows", json=workflow({**step("a"), "job": hidden["job"]}, queue="closed"))
    assert answer.status_code == 403
    other = await flows.submit(step("a"), name="other")
    assert (await ann.get(f"/v1/workflows/{other.id}")).status_code == 404
    assert {one["name"] for one in (await ann.get("/v1/workflows")).json()["workflows"]} == {"flow", "plain"}
    await ann.aclose()


async def test_mistakes_in_jobs_have_the_place_that_they_have_in_the_workflow(service: Service) -> None:
    wrong = step("b")
    wrong["job"]["roles"][0]["replicas"] = -1
    answer = await service.http.post("/v1/workflows", json=workflow(step("a"), wrong))
    assert answer.status_code == 422, answer.text
    assert answer.json()["mistakes"][0]["path"] == "steps[1].job.roles[0].replicas"
    answer = await service.http.post("/v1/workflows", json=workflow(step("a"), queue="no/such"))
    assert answer.json()["code"] == "unknown-queue"
    assert (await service.http.get("/v1/workflows")).json()["workflows"] == []


async def test_warnings_name_what_may_be_a_mistyped_parameter(service: Service) -> None:
    body = workflow(step("a", "${raet}"), parameters={"rate": 1})
    answer = await service.http.post("/v1/workflows", json=body)
    assert answer.status_code == 201
    (warning,) = answer.json()["warnings"]
    assert warning["path"].startswith("steps[0].job.roles[0]")
    assert "rate" in warning["message"]


async def test_ids_that_are_none_and_workflows_that_do_not_exist(service: Service) -> None:
    answer = await service.http.get("/v1/workflows/bert-7k2p9xq")
    assert (answer.status_code, answer.json()["code"]) == (404, "bad-id")
    answer = await service.http.get("/v1/workflows/flow-w7k2p9xq")
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")


async def test_a_repeated_submission_with_the_same_key_makes_one_workflow(service: Service) -> None:
    body = workflow(step("a"))
    made = [await service.http.post("/v1/workflows", json=body, headers={"Idempotency-Key": "once"}) for _ in range(2)]
    assert made[0].json() == made[1].json()
    assert len((await service.http.get("/v1/workflows")).json()["workflows"]) == 1


async def test_workflows_are_listed_by_queue_and_state_and_in_pages(service: Service, flows: Flows) -> None:
    made = [(await flows.submit(step("a"), name=f"w{number}")).id for number in range(3)]
    page = (await service.http.get("/v1/workflows", params={"limit": 2})).json()
    rest = (await service.http.get("/v1/workflows", params={"limit": 2, "cursor": page["next"]})).json()
    assert [one["id"] for one in (*page["workflows"], *rest["workflows"])] == made[::-1]
    found = await service.http.get("/v1/workflows", params={"state": "succeeded", "queue": "default"})
    assert found.json()["workflows"] == []


async def test_a_store_that_fails_in_the_middle_leaves_no_step_half_submitted(service: Service, flows: Flows) -> None:
    """The row of a step cannot be written for a while: its jobs are not stored either, and come once it can."""
    flow = await flows.submit(step("a"), step("b", after=("a",)))
    first = await flow.job_of("a")
    await execute(
        service.stores,
        "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'no'; END $$ LANGUAGE plpgsql",
    )
    await execute(
        service.stores, "CREATE TRIGGER refuse BEFORE INSERT ON workflow_jobs FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    await flow.runs.end(first)
    other = await flows.submit(step("x"), name="other")

    async def was_tried() -> bool:
        sql = "SELECT count(*) = 2 FROM workflows WHERE next_look > now()"
        return bool(await value(service.stores, sql))

    await eventually(was_tried, 10)
    assert (await flow.step("b"))["ids"] == []
    answer = await service.http.get("/v1/jobs", params={"name": "b"})
    assert answer.json()["jobs"] == []
    await execute(service.stores, "DROP TRIGGER refuse ON workflow_jobs")
    await execute(service.stores, "UPDATE workflows SET next_look = now()")
    await flow.passes("b")
    await flow.until("succeeded")
    await other.job_of("x")


async def test_a_resume_is_refused_once_jobs_were_removed(service: Service, flows: Flows) -> None:
    flow = await flows.submit(step("fan", "${item}", forEach=[1, 2]), onFailure="continue")
    good, bad = await flow.jobs_of("fan", 2)
    await flow.runs.end(good)
    await flow.runs.end(bad, failed=True)
    await flow.until("failed")
    await execute(service.stores, "DELETE FROM workflow_jobs WHERE element = 0")
    answer = await flow.act("resume", status=409)
    assert (answer["code"], "jobs of step fan were removed" in answer["detail"]) == ("wrong-state", True)


async def test_a_workflow_is_removed_after_its_jobs_and_not_before_its_end(service: Service, flows: Flows) -> None:
    flow = await flows.submit(step("a"), step("b", after=("a",)))
    await flow.passes("a")
    await flow.job_of("b")
    settings = service.settings.model_copy(update={"keep_jobs": "1s"})
    await execute(service.stores, "UPDATE jobs SET ended_at = now() - interval '1 day' WHERE ended_at IS NOT NULL")

    async def clean() -> list[int]:
        await Retention(service.stores.database, settings).run()
        sql = "SELECT (SELECT count(*) FROM jobs) AS jobs, (SELECT count(*) FROM workflows) AS workflows"
        (found,) = await rows(service.stores, sql)
        return [found.jobs, found.workflows]

    assert await clean() == [2, 1], "jobs of a workflow that runs are kept"
    await flow.passes("b")
    await flow.until("succeeded")
    assert await clean() == [1, 1], "the first job ended a day ago"
    await execute(service.stores, "UPDATE jobs SET ended_at = now() - interval '1 day'")
    await execute(service.stores, "UPDATE workflows SET ended_at = now() - interval '1 day'")
    await clean()
    assert await clean() == [0, 0]
    assert await value(service.stores, "SELECT count(*) FROM workflow_steps") == 0


async def test_a_key_that_is_revoked_submits_no_further_steps(service: Service, flows: Flows) -> None:
    answer = await service.http.post("/v1/keys", json={"name": "ann", "role": "user", "queues": ["default"]})
    key = answer.json()
    ann = service.as_key(key["key"])
    made = await ann.post("/v1/workflows", json=workflow(step("a"), step("b", after=("a",))))
    assert made.status_code == 201, made.text
    flow = flows.of(made.json()["id"])
    first = await flow.job_of("a")
    assert (await service.http.delete(f"/v1/keys/{key['id']}")).status_code in (200, 204)
    await flow.runs.end(first)
    found = await flow.until("failed")
    assert "the API key 'ann' is not valid any more (forbidden)" in found["steps"][1]["message"]
    await ann.aclose()


async def test_a_job_that_is_retried_by_hand_counts_while_its_step_runs(service: Service, flows: Flows) -> None:
    flow = await flows.submit(step("fan", "${item}", forEach=[1, 2]), onFailure="continue")
    good, bad = await flow.jobs_of("fan", 2)
    await flow.runs.end(bad, failed=True)
    assert (await service.http.post(f"/v1/jobs/{bad}/retry")).status_code == 200
    await flow.runs.have_another(bad)
    await flow.runs.end(good)
    assert (await flow.states())["fan"] == "running"
    await flow.runs.end(bad)
    assert (await flow.until("succeeded"))["steps"][0]["jobs"] == {"succeeded": 2}


async def test_a_user_has_a_bound_of_running_workflows(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflows, "MOST_RUNNING", 2)
    made = [await service.http.post("/v1/workflows", json=workflow(step("a"))) for _ in range(3)]
    assert [one.status_code for one in made] == [201, 201, 429]
    assert made[2].json()["code"] == "queue-full"


async def test_a_step_goes_to_the_cluster_where_the_steps_before_it_ran(service: Service, flows: Flows) -> None:
    edge = await ReportedRuns(service, "edge").connect()
    spec = {"placement": {"clusters": ["edge"]}}
    flow = await flows.submit(
        step("first", spec=spec), step("fan", after=("first",), forEach=["a", "b"]), step("alone")
    )
    await flow.job_of("alone")
    (first,) = (await flow.step("first"))["ids"]
    await edge.starts(first)
    await edge.end(first)
    await eventually_started(edge, flow, "fan", 2)


async def eventually_started(runs: ReportedRuns, flow: Flow, name: str, many: int) -> None:
    """Wait until a step has ``many`` jobs, and these are started by an agent."""

    async def look() -> bool:
        return len((await flow.step(name))["ids"]) == many

    await eventually(look, 10)
    await runs.have(*(await flow.step(name))["ids"])
