"""Arrays whose elements are jobs, over REST, on a real store and with the leading scheduler."""

import random
from collections import Counter
from typing import Any

import pytest

from tests.conftest import Service, job
from tests.integration.reported_runs import ReportedRuns
from tests.integration.rows import execute, rows, value
from tests.waiting import eventually
from trainmaster.protocol.agent import RunEnd
from trainmaster.protocol.ids import parse_job_id
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster_dispatcher.services.retention import Retention


def array_of(
    name: str = "sweep", *args: str, queue: str = "default", after: Any = None, **fields: Any
) -> dict[str, Any]:
    """Return an array of jobs; ``fields``: of the array, and ``job``: of the job."""
    more = fields.pop("job", {}) | ({"after": after} if after else {})
    spec = job(name, queue, array={"mode": "jobs", **fields}, **more)
    spec["roles"][0]["template"]["args"] = list(args)
    return spec


class ArrayOfJobs:
    """A submitted array, and the agent that runs the jobs of its elements."""

    def __init__(self, service: Service, runs: ReportedRuns, key: str) -> None:
        self.service, self.runs, self.id = service, runs, key

    async def jobs(self, **params: str) -> dict[int, str]:
        """Return the ids of the jobs of elements."""
        answer = await self.service.http.get(f"/v1/jobs/{self.id}/elements/jobs", params=params)
        assert answer.status_code == 200, answer.text
        return {one["element"]: one["id"] for one in answer.json()["jobs"]}

    async def have_jobs(self, *elements: int) -> dict[int, str]:
        """Wait until just these elements have jobs, and these have runs."""

        async def look() -> bool:
            return (await self.jobs()).keys() == set(elements)

        await eventually(look, 10)
        found = await self.jobs()
        await self.runs.have(*found.values())
        return found

    async def show(self) -> dict[str, Any]:
        return await self.service.job(self.id)

    async def elements(self) -> dict[str, Any]:
        answer = await self.service.http.get(f"/v1/jobs/{self.id}/elements")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def until(self, *states: str) -> dict[str, Any]:
        return await self.service.until(self.id, *states)

    async def counts(self, **wanted: int) -> None:
        """Wait until the numbers of its elements are these."""

        async def look() -> bool:
            found = (await self.show())["elements"]
            return {name: found[name] for name in wanted} == wanted

        await eventually(look, 10)

    async def act(self, action: str, body: Any = None, status: int = 200) -> dict[str, Any]:
        answer = await self.service.http.post(f"/v1/jobs/{self.id}/{action}", json=body)
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def why(self) -> dict[str, Any]:
        answer = await self.service.http.get(f"/v1/jobs/{self.id}/why")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


class Arrays:
    """Arrays of a test."""

    def __init__(self, service: Service, runs: ReportedRuns) -> None:
        self.service, self.runs = service, runs

    async def submit(self, *args: str, **fields: Any) -> ArrayOfJobs:
        answer = await self.service.http.post("/v1/jobs", json=array_of("sweep", *args, **fields))
        assert answer.status_code == 201, answer.text
        return ArrayOfJobs(self.service, self.runs, answer.json()["id"])


@pytest.fixture
async def arrays(service: Service) -> Arrays:
    return Arrays(service, await ReportedRuns(service).connect())


async def test_each_element_is_a_job_with_its_parameters_and_all_of_them_end_the_array(arrays: Arrays) -> None:
    array = await arrays.submit(
        "${element}", "${rate}", grid={"rate": [0.1, 0.2], "seed": [7]}, job={"retries": {"limit": 1}}
    )
    found = await array.have_jobs(0, 1)
    spec = arrays.runs.spec(found[1])
    assert spec["roles"][0]["template"]["args"] == ["1", "0.2"]
    assert "array" not in spec
    shown = await arrays.service.job(found[1])
    assert shown["elementOf"] == {"job": array.id, "element": 1}
    assert shown["parameters"] == {"rate": 0.2, "seed": 7, "element": 1}
    assert shown["labels"] == {"trainmaster.dev/array": array.id}
    assert (await array.show())["state"] == "queued"
    await arrays.runs.come_to(found[0], RunState.RUNNING)
    await array.until("running")
    await arrays.runs.end(found[0])
    await array.counts(count=2, succeeded=1)
    await arrays.runs.end(found[1])
    ended = await array.until("succeeded")
    assert ended["elements"] == {"count": 2, "succeeded": 2, "failed": 0, "cancelled": 0, "running": 0}
    assert "startedAt" in ended
    assert ended["runs"] == []


async def test_a_failed_element_is_shown_with_its_end_and_a_retry_runs_it_again_alone(arrays: Arrays) -> None:
    array = await arrays.submit(count=3)
    found = await array.have_jobs(0, 1, 2)
    await arrays.runs.end(found[0])
    await arrays.runs.end(
        found[1], failed=True, end=RunEnd(category=FailureCategory.EXIT, exit_code=3, message="no such file")
    )
    await arrays.runs.end(found[2])
    ended = await array.until("failed")
    assert ended["message"] == "1 of 3 elements failed (1)"
    shown = await array.elements()
    assert (shown["succeeded"], shown["failed"]) == ("0,2", "1")
    assert shown["failures"] == [{"element": 1, "exitCode": 3, "message": "no such file"}]
    await array.act("retry")

    async def again() -> bool:
        return (await array.jobs())[1] != found[1]

    await eventually(again, 10)
    fresh = await array.jobs()
    assert (fresh[0], fresh[2]) == (found[0], found[2])
    await arrays.runs.have(fresh[1])
    await arrays.runs.end(fresh[1])
    assert (await array.until("succeeded"))["elements"]["succeeded"] == 3


async def test_no_more_elements_are_open_than_max_running(arrays: Arrays) -> None:
    array = await arrays.submit(count=5, maxRunning=2)
    found = await array.have_jobs(0, 1)
    await arrays.runs.end(found[1])
    found = await array.have_jobs(0, 1, 2)
    for element in (0, 2):
        await arrays.runs.end(found[element])
    found = await array.have_jobs(0, 1, 2, 3, 4)
    for element in (3, 4):
        await arrays.runs.end(found[element])
    await array.until("succeeded")


async def test_an_array_of_a_million_elements_is_one_row_until_they_start(service: Service) -> None:
    answer = await service.http.post("/v1/jobs", json=array_of(count=1_000_000))
    array = ArrayOfJobs(service, ReportedRuns(service), answer.json()["id"])

    async def submitted() -> bool:
        return bool(await value(service.stores, "SELECT count(*) FROM element_jobs") == 1000)

    await eventually(submitted, 20)
    assert (await array.show())["elements"]["count"] == 1_000_000
    assert len(await array.jobs()) == 1000, "a page"
    assert (await array.jobs(elements="3,998-999999")).keys() == {3, 998, 999}
    reason = await array.why()
    assert reason["token"] == "Elements"
    assert reason["sentence"].startswith(
        "Its elements are jobs of their own: 0 of 1000000 run, 0 have succeeded; element 0 waits: The clusters"
    )
    await array.act("cancel")
    await array.until("cancelled")

    async def none_open() -> bool:
        return bool(await value(service.stores, "SELECT count(*) FROM jobs WHERE ended_at IS NULL") == 0)

    await eventually(none_open, 20)


async def test_a_cancel_ends_open_jobs_and_a_retry_waits_for_them(arrays: Arrays) -> None:
    array = await arrays.submit(count=3, maxRunning=2)
    found = await array.have_jobs(0, 1)
    await arrays.runs.come_to(found[0], RunState.RUNNING)
    await array.until("running")
    await array.act("cancel")
    await array.until("cancelling")
    await arrays.service.until(found[0], "cancelling")
    await arrays.runs.come_to(found[0], RunState.CANCELLED)
    await arrays.runs.come_to(found[1], RunState.CANCELLED)
    ended = await array.until("cancelled")
    assert ended["elements"]["cancelled"] == 2
    await array.act("retry")
    assert (await array.until("queued"))["elements"]["cancelled"] == 0


async def test_a_suspended_array_stops_its_jobs_and_resumes_them(arrays: Arrays) -> None:
    array = await arrays.submit(count=3, maxRunning=2)
    found = await array.have_jobs(0, 1)
    await arrays.runs.come_to(found[0], RunState.RUNNING)
    await array.until("running")
    await array.act("suspend")
    for element in (0, 1):
        await arrays.service.until(found[element], "suspending")
        await arrays.runs.come_to(found[element], RunState.SUSPENDED)
    held = await array.until("held")
    assert held["holdCause"] == "suspended"
    assert (await arrays.service.job(found[0]))["state"] == "held"
    await array.act("resume")
    for element in (0, 1):
        await arrays.runs.have_another(found[element])
        await arrays.runs.end(found[element])
    last = await array.have_jobs(0, 1, 2)
    await arrays.runs.end(last[2])
    await array.until("succeeded")


async def test_elements_can_be_cancelled_before_and_after_their_submission(arrays: Arrays) -> None:
    array = await arrays.submit(count=6, maxRunning=2)
    found = await array.have_jobs(0, 1)
    done = await array.act("elements/cancel", {"elements": "1,3-5"})
    assert done["cancelled"] == 4
    await arrays.service.until(found[1], "cancelling")
    await arrays.runs.come_to(found[1], RunState.CANCELLED)
    await arrays.runs.end(found[0])
    rest = await array.have_jobs(0, 1, 2)
    await arrays.runs.end(rest[2])
    ended = await array.until("succeeded")
    assert ended["elements"] == {"count": 6, "succeeded": 2, "failed": 0, "cancelled": 4, "running": 0}


async def test_a_stop_cancels_the_other_elements(arrays: Arrays) -> None:
    array = await arrays.submit(count=4, maxRunning=2, stopOn="firstFailure")
    found = await array.have_jobs(0, 1)
    await arrays.runs.end(found[0], failed=True)
    await arrays.service.until(found[1], "cancelling")
    await arrays.runs.come_to(found[1], RunState.CANCELLED)
    ended = await array.until("failed")
    assert ended["message"] == "1 of 4 elements failed (0); 2 were not run, as stopOn says"


async def test_a_failed_job_that_a_person_has_tried_again_counts_anew(arrays: Arrays) -> None:
    array = await arrays.submit(count=2)
    found = await array.have_jobs(0, 1)
    await arrays.runs.end(found[0], failed=True)
    await array.counts(failed=1)
    answer = await arrays.service.http.post(f"/v1/jobs/{found[0]}/retry")
    assert answer.status_code == 200, answer.text
    await array.counts(failed=0)
    await arrays.runs.have_another(found[0])
    await arrays.runs.end(found[0])
    await arrays.runs.end(found[1])
    assert (await array.until("succeeded"))["elements"]["succeeded"] == 2


async def test_results_of_elements_are_kept(arrays: Arrays) -> None:
    array = await arrays.submit(count=2, results=True)
    found = await array.have_jobs(0, 1)
    await arrays.runs.end(found[0], results={"loss": 0.5})
    await arrays.runs.end(found[1], results={"long": "x" * 1000})
    await array.until("succeeded")
    answer = await arrays.service.http.get(f"/v1/jobs/{array.id}/elements/results")
    assert answer.json()["results"] == [{"element": 0, "value": {"loss": 0.5}}]


async def test_the_jobs_of_elements_have_no_hooks_and_the_array_has_one_event_for_each_state(arrays: Arrays) -> None:
    settings = arrays.service.settings
    object.__setattr__(settings, "webhook_secret", type(settings.webhook_secret)("whsec_" + "a" * 40))
    array = await arrays.submit(
        count=1, job={"notify": [{"url": "https://hooks.example.com/x"}], "deadline": "2099-01-01T00:00:00Z"}
    )
    found = await array.have_jobs(0)
    spec = await value(
        arrays.service.stores,
        "SELECT spec FROM job_specs WHERE id = (SELECT spec_id FROM jobs WHERE id <> (SELECT min(id) FROM jobs))",
    )
    assert "notify" not in spec
    assert spec["deadline"] == "2099-01-01T00:00:00.000Z"
    await arrays.runs.end(found[0])
    assert "startedAt" in await array.until("succeeded"), "however soon it has ended"
    answer = await arrays.service.http.get(f"/v1/jobs/{array.id}/events")
    shown = [(one["kind"], one["states"]) for one in answer.json()["events"]]
    assert shown == [
        ("submitted", ["queued"]),
        ("elements.started", ["running"]),
        ("elements.ended", ["succeeded"]),
    ]
    assert await value(arrays.service.stores, "SELECT array_agg(job_id = (SELECT min(id) FROM jobs)) FROM outbox") == [
        True
    ]


async def test_an_array_whose_owner_lost_the_right_fails_and_says_why(service: Service) -> None:
    await ReportedRuns(service).connect()
    answer = await service.http.post("/v1/jobs", json=array_of(count=2, job={"suspend": True}))
    array = ArrayOfJobs(service, ReportedRuns(service), answer.json()["id"])
    await execute(service.stores, "UPDATE job_specs SET spec = jsonb_set(spec, '{priorityClass}', '\"gone\"')")
    await array.act("resume")
    ended = await array.until("failed")
    assert ended["message"].startswith(
        "the jobs of its elements cannot be submitted: there is no priority class 'gone'"
    )


async def test_while_its_queue_is_full_it_waits_and_says_so(arrays: Arrays) -> None:
    answer = await arrays.service.http.put("/v1/queues/small", json={"kind": "Queue", "path": "small", "maxQueued": 3})
    assert answer.status_code in (200, 201), answer.text
    array = await arrays.submit(count=5, queue="small", job={"roles": job(cpu="1000")["roles"]})

    async def refused() -> bool:
        return "no place for more jobs" in (await array.why())["sentence"]

    await eventually(refused, 10)
    assert 0 < len(await array.jobs()) <= 3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"count": 2, "slots": 2}, "array.slots goes with mode: tasks"),
        ({"count": 2, "retries": 1}, "give retries of the job, which each element has"),
        ({"count": 2, "timeLimit": "1m"}, "give timeLimit of the job"),
        ({"count": 2, "call": "a:b"}, "array.call goes with mode: tasks"),
        ({"count": 2, "mode": "other"}, "tasks"),
    ],
)
async def test_fields_of_tasks_are_refused(service: Service, fields: dict[str, Any], words: str) -> None:
    answer = await service.http.post("/v1/jobs", json=array_of(**fields))
    assert answer.status_code == 422, answer.text
    assert words in answer.text
    assert await value(service.stores, "SELECT count(*) FROM jobs") == 0


async def test_the_output_of_an_array_says_where_that_of_its_elements_is(arrays: Arrays) -> None:
    array = await arrays.submit(count=1)
    answer = await arrays.service.http.get(f"/v1/jobs/{array.id}/logs")
    assert f"trainmaster logs {array.id} --element 0" in answer.text


async def test_other_arrays_have_no_jobs_of_elements(service: Service) -> None:
    answer = await service.http.post("/v1/jobs", json=job(array={"count": 2}))
    found = await service.http.get(f"/v1/jobs/{answer.json()['id']}/elements/jobs")
    assert (found.status_code, found.json()["code"]) == (404, "not-found")
    many = await service.http.post("/v1/jobs", json=array_of(count=2))
    found = await service.http.get(f"/v1/jobs/{many.json()['id']}/elements/jobs", params={"elements": "2"})
    assert (found.status_code, found.json()["code"]) == (422, "invalid-parameter")


# -- elements that wait for those of another array


async def test_an_element_starts_after_that_of_the_other_array_with_its_index(arrays: Arrays) -> None:
    first = await arrays.submit(count=3)
    second = await arrays.submit(count=3, after=[{"job": first.id, "elementwise": True}])
    before = await first.have_jobs(0, 1, 2)
    assert await second.jobs() == {}
    assert first.id in (await second.why())["sentence"]
    await arrays.runs.end(before[1])
    own = await second.have_jobs(1)
    await arrays.runs.end(own[1])
    await arrays.runs.end(before[0], failed=True)
    await second.counts(succeeded=1, cancelled=1)
    await arrays.runs.end(before[2])
    own = await second.have_jobs(1, 2)
    await arrays.runs.end(own[2])
    await first.until("failed")
    ended = await second.until("failed")
    assert ended["message"] == "1 of 3 elements were not run, as those before them have not come to their state"


async def test_the_job_of_an_element_prefers_the_cluster_of_the_one_before_it(arrays: Arrays) -> None:
    first = await arrays.submit(count=2)
    second = await arrays.submit(count=2, after=[{"job": first.id, "elementwise": True}])
    third = await arrays.submit(count=1, after=[{"job": first.id}])
    for key in (await first.have_jobs(0, 1)).values():
        await arrays.runs.end(key)
    own = await second.have_jobs(0, 1)
    last = await third.have_jobs(0)
    for key in (*own.values(), *last.values()):
        sql = """
            SELECT predecessor_clusters = jsonb_build_object(c.id::text, 1.0) FROM jobs j, clusters c
            WHERE j.id = :key AND c.name = 'private'
        """
        assert await value(arrays.service.stores, sql, key=parse_job_id(key)[1]) is True


async def test_elements_may_be_held_and_wait_for_a_retry_of_those_before_them(arrays: Arrays) -> None:
    first = await arrays.submit(count=1)
    second = await arrays.submit(
        count=1, after=[{"job": first.id, "elementwise": True}], job={"onDependencyFailure": "hold"}
    )
    before = await first.have_jobs(0)
    await arrays.runs.end(before[0], failed=True)
    await first.until("failed")
    assert await second.jobs() == {}
    await first.act("retry")

    async def again() -> bool:
        return (await first.jobs())[0] != before[0]

    await eventually(again, 10)
    fresh = await first.jobs()
    await arrays.runs.have(fresh[0])
    await arrays.runs.end(fresh[0])
    own = await second.have_jobs(0)
    await arrays.runs.end(own[0])
    await second.until("succeeded")


async def test_two_arrays_of_one_submission_can_follow_each_other(arrays: Arrays) -> None:
    specs = [
        array_of("clean", count=2, after=[{"job": "work", "elementwise": True, "condition": "ended"}]),
        array_of("work", count=2),
    ]
    answer = await arrays.service.http.post("/v1/jobs", json={"jobs": specs})
    assert answer.status_code == 201, answer.text
    clean, work = (ArrayOfJobs(arrays.service, arrays.runs, one["id"]) for one in answer.json()["jobs"])
    before = await work.have_jobs(0, 1)
    await arrays.runs.end(before[0], failed=True)
    await clean.have_jobs(0)


@pytest.mark.parametrize(
    ("other", "own", "words"),
    [
        ({"count": 3}, {"count": 2}, "is an array of 3 elements, and this one has 2"),
        (None, {"count": 2}, "is no array, and this one has 2"),
        ({"count": 2}, None, "the job has to be an array with mode: jobs"),
    ],
)
async def test_only_arrays_of_one_size_follow_each_other_by_element(
    service: Service, other: dict[str, Any] | None, own: dict[str, Any] | None, words: str
) -> None:
    answer = await service.http.post("/v1/jobs", json=array_of(**other) if other else job())
    after = [{"job": answer.json()["id"], "elementwise": True}]
    answer = await service.http.post("/v1/jobs", json=array_of(**own, after=after) if own else job(after=after))
    assert answer.status_code == 422, answer.text
    assert words in answer.text


async def test_arrays_that_wait_for_each_other_are_refused(service: Service) -> None:
    specs = [
        array_of("a", count=2, after=[{"job": "b", "elementwise": True}]),
        array_of("b", count=2, after=[{"job": "a", "elementwise": True}]),
    ]
    answer = await service.http.post("/v1/jobs", json={"jobs": specs})
    assert answer.status_code == 422
    assert "these jobs wait for each other" in answer.text


# -- what stays true whatever happens


@pytest.mark.parametrize("seed", range(3))
async def test_each_element_counts_once_whatever_ends_and_whoever_acts(arrays: Arrays, seed: int) -> None:
    rng = random.Random(seed)
    array = await arrays.submit(count=30, maxRunning=4)
    expected: dict[int, str] = {}
    seen: dict[int, set[str]] = {}
    while len(expected) < 30:

        async def some_open() -> bool:
            return bool((await array.jobs()).keys() - expected.keys())

        await eventually(some_open, 10)
        found = await array.jobs()
        for element, key in found.items():
            seen.setdefault(element, set()).add(key)
        waiting = sorted(found.keys() - expected.keys())
        assert len(waiting) <= 4
        element = rng.choice(waiting)
        await arrays.runs.have(found[element])
        failed = rng.random() < 0.3
        await arrays.runs.end(found[element], failed=failed)
        expected[element] = "failed" if failed else "succeeded"
        if rng.random() < 0.1 and (unstarted := sorted(set(range(30)) - expected.keys() - found.keys())):
            cancelled = rng.choice(unstarted)
            done = await array.act("elements/cancel", {"elements": str(cancelled)})
            if done["cancelled"]:
                # it may have been submitted meanwhile, and is cancelled then
                expected[cancelled] = "cancelled"
                await _end_if_submitted(array, cancelled)
    ended = await array.until("failed", "succeeded")
    many = Counter(expected.values())
    assert {state: ended["elements"][state] for state in ("succeeded", "failed", "cancelled")} == {
        state: many[state] for state in ("succeeded", "failed", "cancelled")
    }
    assert all(len(keys) == 1 for keys in seen.values()), "no element had two jobs"


async def _end_if_submitted(array: ArrayOfJobs, element: int) -> None:
    found = await array.jobs(elements=str(element))
    if element in found:
        await array.service.until(found[element], "cancelling", "cancelled")
        if (await array.service.job(found[element]))["state"] != "cancelled":
            await array.runs.cancel(found[element])


async def test_retention_removes_an_array_with_its_rows_and_keeps_what_others_wait_for(arrays: Arrays) -> None:
    first = await arrays.submit(count=1)
    second = await arrays.submit(count=1, after=[{"job": first.id, "elementwise": True}])
    await arrays.runs.end((await first.have_jobs(0))[0])
    await first.until("succeeded")
    own = await second.have_jobs(0)
    stores = arrays.service.stores
    settings = arrays.service.settings.model_copy(update={"keep_jobs": "1s"})
    await execute(
        stores, "UPDATE jobs SET submitted_at = now() - interval '9 days', ended_at = ended_at - interval '8 days'"
    )
    await Retention(stores.database, settings).run()
    left = {row.name for row in await rows(arrays.service.stores, "SELECT DISTINCT name FROM jobs")}
    assert left == {"sweep"}
    assert await value(arrays.service.stores, "SELECT count(*) FROM arrays WHERE succeeded = 1") == 1, (
        "the first array stays"
    )
    await arrays.runs.end(own[0])
    await second.until("succeeded")
    await execute(arrays.service.stores, "UPDATE jobs SET ended_at = ended_at - interval '8 days'")
    await Retention(stores.database, settings).run()
    for table in ("jobs", "arrays", "array_blocks", "element_jobs", "array_predecessors", "array_wakes"):
        assert await value(stores, f"SELECT count(*) FROM {table}") == 0, table
