"""Jobs that start after others, over REST: conditions, labels, jobs of one submission, and conditions that cannot be met."""

from typing import Any

import pytest

from tests.conftest import Service, job
from tests.integration.reported_runs import ReportedRuns
from tests.integration.rows import execute, picture, value
from tests.waiting import eventually
from trainmaster.protocol.ids import parse_job_id
from trainmaster.protocol.states import RunState


async def submitted(service: Service, *specs: dict[str, Any]) -> list[str]:
    answer = await service.http.post("/v1/jobs", json={"jobs": list(specs)})
    assert answer.status_code == 201, answer.text
    return [one["id"] for one in answer.json()["jobs"]]


def after(
    name: str, *predecessors: str | dict[str, Any], condition: str = "succeeded", **fields: Any
) -> dict[str, Any]:
    given = [{"job": one, "condition": condition} if isinstance(one, str) else one for one in predecessors]
    return job(name, after=given, **fields)


async def shown(service: Service, job_id: str) -> dict[str, Any]:
    answer = await service.http.get(f"/v1/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def states(service: Service, *ids: str) -> list[str]:
    found = [await shown(service, one) for one in ids]
    return [one["state"] if one["state"] != "held" else one["holdCause"] for one in found]


@pytest.fixture
async def runs(service: Service) -> ReportedRuns:
    return await ReportedRuns(service).connect()


async def test_a_job_starts_once_all_its_predecessors_have_succeeded(service: Service, runs: ReportedRuns) -> None:
    first, second = await submitted(service, job("first"), job("second"))
    await runs.starts(first, second)
    (last,) = await submitted(service, after("last", first, second))
    assert await states(service, last) == ["dependency"]
    await runs.end(first)
    assert await states(service, last) == ["dependency"]
    await runs.end(second)
    await runs.starts(last)


@pytest.mark.parametrize(
    ("condition", "failed", "starts"),
    [
        ("succeeded", False, True),
        ("succeeded", True, False),
        ("failed", True, True),
        ("failed", False, False),
        ("ended", True, True),
        ("ended", False, True),
        ("started", True, True),
    ],
)
async def test_a_condition_is_met_or_the_job_is_cancelled(
    service: Service, runs: ReportedRuns, condition: str, failed: bool, starts: bool
) -> None:
    (first,) = await submitted(service, job("first"))
    await runs.starts(first)
    (last,) = await submitted(service, after("last", first, condition=condition))
    await runs.end(first, failed=failed)
    if starts:
        await runs.starts(last)
        return
    await service.until(last, "cancelled")
    assert (await shown(service, last))["message"].startswith(f"{first} has {'failed' if failed else 'succeeded'}")


async def test_a_job_after_the_start_of_another_runs_beside_it(service: Service, runs: ReportedRuns) -> None:
    (server,) = await submitted(service, job("server"))
    await runs.starts(server)
    (client,) = await submitted(service, after("client", server, condition="started"))
    await runs.come_to(server, RunState.RUNNING)
    await runs.starts(client)
    assert await states(service, server) == ["running"]


async def test_jobs_of_one_submission_wait_for_each_other_by_name(service: Service, runs: ReportedRuns) -> None:
    train, prepare, report = await submitted(
        service, after("train", "prepare"), job("prepare"), after("report", "train", "prepare")
    )
    await runs.starts(prepare)
    assert await states(service, train, report) == ["dependency", "dependency"]
    await runs.end(prepare)
    await runs.starts(train)
    assert await states(service, report) == ["dependency"]
    await runs.end(train)
    await runs.starts(report)


async def test_the_end_of_a_chain_is_cancelled_with_its_beginning(service: Service, runs: ReportedRuns) -> None:
    first, *rest = await submitted(service, job("a"), after("b", "a"), after("c", "b"), after("d", "c"))
    await runs.starts(first)
    await runs.end(first, failed=True)
    for one in rest:
        await service.until(one, "cancelled")


async def test_a_job_waits_for_all_jobs_with_labels(service: Service, runs: ReportedRuns) -> None:
    labels = {"study": "lr"}
    trials = await submitted(service, *(job(f"trial-{number}", labels=labels) for number in range(3)))
    await runs.starts(*trials)
    (best,) = await submitted(service, after("best", {"labels": labels, "condition": "ended"}))
    (later,) = await submitted(service, job("later", labels=labels))  # was not there yet
    await runs.starts(later)
    for number, trial in enumerate(trials):
        assert await states(service, best) == ["dependency"]
        await runs.end(trial, failed=number == 1)
    await runs.starts(best)


async def test_a_job_that_is_to_be_held_waits_until_its_predecessor_succeeds_at_last(
    service: Service, runs: ReportedRuns
) -> None:
    (first,) = await submitted(service, job("first"))
    await runs.starts(first)
    (last,) = await submitted(service, after("last", first, onDependencyFailure="hold"))
    await runs.end(first, failed=True)

    async def says_so() -> bool:
        return "so it will not succeed" in str((await service.http.get(f"/v1/jobs/{last}/why")).json())

    await eventually(says_so)
    assert await states(service, last) == ["dependency"]
    await service.http.post(f"/v1/jobs/{first}/retry")
    await runs.starts(first)
    await runs.end(first)
    await runs.starts(last)


async def test_resume_starts_a_job_without_its_predecessors(service: Service, runs: ReportedRuns) -> None:
    (first,) = await submitted(service, job("first"))
    await runs.starts(first)
    (last,) = await submitted(service, after("last", first))
    assert (await service.http.post(f"/v1/jobs/{last}/resume")).status_code == 200
    await runs.starts(last)
    await runs.end(first, failed=True)
    await runs.end(last)


async def test_a_job_that_is_suspended_meanwhile_waits_on(service: Service, runs: ReportedRuns) -> None:
    (first,) = await submitted(service, job("first"))
    await runs.starts(first)
    (last,) = await submitted(service, after("last", first))
    await service.http.post(f"/v1/jobs/{last}/suspend")
    assert await states(service, last) == ["user"]
    await service.http.post(f"/v1/jobs/{last}/resume")
    assert await states(service, last) == ["dependency"]
    await service.http.post(f"/v1/jobs/{last}/suspend")
    await runs.end(first)
    assert await states(service, last) == ["user"]
    await service.http.post(f"/v1/jobs/{last}/resume")
    await runs.starts(last)


async def test_a_start_time_counts_after_the_predecessors(service: Service, runs: ReportedRuns) -> None:
    (first,) = await submitted(service, job("first"))
    await runs.starts(first)
    (last,) = await submitted(service, after("last", first, startAfter="2h"))
    await runs.end(first)

    async def waits_for_its_time() -> bool:
        return await states(service, last) == ["startTime"]

    await eventually(waits_for_its_time)
    await execute(service.stores, "UPDATE jobs SET hold_until = now() WHERE hold_until IS NOT NULL")
    await runs.starts(last)


async def test_why_names_what_it_waits_for(service: Service, runs: ReportedRuns) -> None:
    first, second, last = await submitted(service, job("first"), job("second"), after("last", "first", "second"))
    answer = (await service.http.get(f"/v1/jobs/{last}/why")).json()
    assert first in str(answer)
    assert "1 other" in str(answer)
    await runs.starts(first, second)
    await runs.end(first)
    answer = (await service.http.get(f"/v1/jobs/{last}/why")).json()
    assert second in str(answer)
    assert first not in str(answer)


async def test_what_cannot_be_waited_for_is_refused_with_its_path(service: Service, runs: ReportedRuns) -> None:
    (failed, succeeded) = await submitted(service, job("failed"), job("done"))
    await runs.starts(failed, succeeded)
    await runs.end(failed, failed=True)
    await runs.end(succeeded)
    before = await picture(service.stores)
    for specs, code, path, words in (
        ([after("x", "none-0000000")], "unknown-job", "jobs[0].after[0].job", "there is no job"),
        ([after("x", f"y{succeeded[4:]}")], "unknown-job", "jobs[0].after[0].job", "there is no job"),
        ([after("x", "nobody")], "unknown-job", "jobs[0].after[0].job", "name of another job"),
        ([after("x", failed)], "dependency-impossible", "jobs[0].after[0]", "will not succeed"),
        ([after("x", succeeded, condition="failed")], "dependency-impossible", "jobs[0].after[0]", "will not fail"),
        ([after("x", {"labels": {"a": "b"}})], "unknown-job", "jobs[0].after[0].labels", "no job that you may see"),
        ([after("x", {})], "invalid-spec", "jobs[0].after[0]", "exactly one of job, labels and group"),
        ([after("x", {"job": failed, "labels": {"a": "b"}})], "invalid-spec", "jobs[0].after[0]", "exactly one"),
        ([after("x", failed, condition="won")], "invalid-spec", "jobs[0].after[0].condition", "succeeded"),
        ([after("x", "x")], "invalid-spec", "jobs[0].after[0]", "cannot wait for itself"),
        ([after("x", "y"), after("y", "x")], "invalid-spec", "jobs[", "wait for each other"),
        ([after("x", "y"), job("y"), job("y")], "invalid-spec", "jobs[0].after[0].job", "2 jobs of this submission"),
    ):
        answer = await service.http.post("/v1/jobs", json={"jobs": specs})
        assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
        (mistake,) = answer.json()["mistakes"]
        assert mistake["path"].startswith(path), mistake
        assert words in mistake["message"], mistake
    assert await picture(service.stores) == before


async def test_what_has_happened_already_delays_nothing(service: Service, runs: ReportedRuns) -> None:
    (first,) = await submitted(service, job("first"))
    await runs.starts(first)
    await runs.end(first)
    (last,) = await submitted(service, after("last", first))
    await runs.starts(last)


async def test_both_sides_of_a_condition_are_shown(service: Service, runs: ReportedRuns) -> None:
    first, second, last = await submitted(
        service, job("first"), job("second"), after("last", "first", {"job": "second", "condition": "ended"})
    )
    await runs.starts(first, second)
    await runs.end(first)
    found = (await service.http.get(f"/v1/jobs/{last}/dependencies")).json()
    assert found["after"] == [
        {"job": second, "state": "dispatched", "condition": "ended", "conditionState": "waiting"},
        {"job": first, "state": "succeeded", "condition": "succeeded", "conditionState": "met"},
    ]
    assert (found["afterCount"], found["dependants"], found["dependantsCount"]) == (2, [], 0)
    found = (await service.http.get(f"/v1/jobs/{second}/dependencies")).json()
    assert found["dependants"] == [{"job": last, "state": "held", "condition": "ended", "conditionState": "waiting"}]


async def test_objects_of_kubernetes_are_found_by_their_names(service: Service, runs: ReportedRuns) -> None:
    objects = "/apis/trainmaster.dev/v1/namespaces/default/jobs"

    async def create(name: str, **spec: Any) -> str:
        roles = [{"name": "main", "template": {"command": ["true"], "resources": {"cpu": 1}}}]
        manifest = {
            "apiVersion": "trainmaster.dev/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {"roles": roles} | spec,
        }
        answer = await service.http.post(objects, json=manifest)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["status"]["id"])

    first = await create("the.first")
    last = await create("the.last", after=[{"job": "the.first"}])
    (other,) = await submitted(service, after("other", "the.first"))
    await runs.starts(first)
    assert await states(service, last, other) == ["dependency", "dependency"]
    await runs.end(first)
    await runs.starts(last, other)
    answer = await service.http.post("/v1/jobs", json=after("x", "the.none"))
    assert answer.json()["code"] == "unknown-job"


async def test_jobs_that_one_may_not_see_are_neither_waited_for_nor_told(service: Service) -> None:
    await service.http.put("/v1/queues/other", json={"path": "other"})
    (hidden,) = await submitted(service, job("hidden", "other", labels={"stage": "prep"}))
    key = (await service.http.post("/v1/keys", json={"name": "u", "role": "user", "queues": ["default"]})).json()["key"]
    mine = {"Authorization": f"Bearer {key}"}
    for entry in ({"labels": {"stage": "prep"}, "queue": "other"}, {"job": hidden}):
        answer = await service.http.post("/v1/jobs", json=after("x", entry), headers=mine)
        assert (answer.status_code, answer.json()["code"]) == (422, "unknown-job"), answer.text
    (own,) = await submitted(service, job("own"))
    await submitted(service, after("last", own, queue="other"))
    found = (await service.http.get(f"/v1/jobs/{own}/dependencies", headers=mine)).json()
    assert (found["dependants"], found["dependantsCount"]) == ([], 0)
    assert (await service.http.get(f"/v1/jobs/{own}/dependencies")).json()["dependantsCount"] == 1


async def test_a_dry_run_says_what_a_job_would_wait_for(service: Service) -> None:
    (first,) = await submitted(service, job("first"))
    for spec, cause in (
        (after("x", first), "dependency"),
        (job("x", startAfter="2h"), "startTime"),
        (job("x", suspend=True), "user"),
    ):
        answer = await service.http.post("/v1/jobs", json=spec, params={"dryRun": "true"})
        (tried,) = answer.json()["jobs"]
        assert (tried["held"], tried["holdCause"]) == (True, cause), answer.text


async def test_a_job_that_is_held_is_released_once_however_often_others_end(
    service: Service, runs: ReportedRuns
) -> None:
    """Ends of further predecessors write no more events of it."""
    first, second, third = await submitted(service, job("first"), job("second"), job("third"))
    await runs.starts(first, second, third)
    (last,) = await submitted(service, after("last", first, second, third, onDependencyFailure="hold"))

    async def events() -> list[str]:
        found = (await service.http.get(f"/v1/jobs/{last}/events")).json()["events"]
        return [one["kind"] for one in found]

    await runs.end(first, failed=True)

    async def is_told() -> bool:
        return "held" in await events()

    await eventually(is_told)
    before = await events()
    await runs.end(second)
    await runs.end(third, failed=True)
    other = (await submitted(service, job("other")))[0]
    await runs.starts(other)  # the scheduler has gone on
    assert await events() == before
    why = (await service.http.get(f"/v1/jobs/{last}/why")).json()
    assert f"trainmaster retry {first}" in why["advice"]


async def clusters_of(service: Service, *ids: str) -> list[str | None]:
    return [(await shown(service, one))["runs"][-1]["cluster"] for one in ids]


async def test_a_successor_goes_to_the_cluster_where_its_predecessor_ran(service: Service, runs: ReportedRuns) -> None:
    """Alone it would go to the private cluster; the last run of the predecessor counts, also one that failed."""
    edge = await ReportedRuns(service, "edge").connect()
    (first,) = await submitted(service, job("first", placement={"clusters": ["edge"]}))
    await edge.starts(first)
    last, beside, inside = await submitted(
        service,
        after("last", first, condition="ended"),
        job("beside"),
        after("inside", first, condition="ended", placement={"kinds": ["private"]}),
    )
    await runs.starts(beside)
    await edge.end(first, failed=True)
    await edge.starts(last)
    await runs.starts(inside)
    assert await clusters_of(service, first, last, beside, inside) == ["edge", "edge", "private", "private"]
    table = (await shown(service, last))["runs"][-1]["scores"]["table"]
    assert [(line["cluster"], line["predecessors"]) for line in table] == [("edge", 1.0), ("private", 0.0)]
    # Of ended predecessors, too, which a later submission names.
    (later,) = await submitted(service, after("later", first, condition="ended"))
    await edge.starts(later)


async def test_predecessors_that_never_ran_count_nothing(service: Service, runs: ReportedRuns) -> None:
    edge = await ReportedRuns(service, "edge").connect()
    first, never = await submitted(
        service, job("first", placement={"clusters": ["edge"]}), job("never", placement={"clusters": ["public"]})
    )
    await edge.starts(first)
    (last,) = await submitted(service, after("last", first, never, condition="ended"))
    assert (await service.http.post(f"/v1/jobs/{never}/cancel")).status_code == 200
    await edge.end(first)
    await edge.starts(last)
    cluster = await value(service.stores, "SELECT id FROM clusters WHERE name = 'edge'")
    assert await value(service.stores, "SELECT jsonb_object_agg(id, predecessor_clusters) FROM jobs") == {
        str(parse_job_id(first)[1]): None,
        str(parse_job_id(never)[1]): None,
        str(parse_job_id(last)[1]): {str(cluster): 1.0},
    }
