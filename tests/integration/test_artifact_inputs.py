"""Artifacts of jobs as inputs of others: what may be named, when a job starts, what its members read, and what retention keeps."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FakeAgent, Service, job
from tests.integration.rows import execute, picture, value
from tests.integration.test_authorization import make_key
from tests.integration.test_file_store import object_storage
from tests.integration.test_files import (
    RunOfFiles,
    client,
    code_of,
    local_agent,
    output_of,
    sha256,
    shell,
    started,
)
from tests.waiting import eventually
from trainmaster import AsyncClient
from trainmaster.cluster_model.capabilities import Capability
from trainmaster.protocol.files import PART_BYTES
from trainmaster.protocol.ids import parse_job_id
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.services.retention import Retention

__all__ = ["client", "object_storage"]
TAKES = ("gang", Capability.FILES, Capability.ARTIFACT_INPUTS, Capability.MEMBER_RESTART)
LEAVES = [{"name": "data", "path": "out"}]


@pytest.fixture
def more_settings(tmp_path: Path) -> dict[str, Any]:
    return {"files_store": f"file://{tmp_path}/files"}


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    connected = service.agent()
    await connected.connect(capabilities=TAKES)
    return connected


@pytest.fixture
async def local(service: Service, tmp_path: Path) -> AsyncIterator[Path]:
    async with local_agent(service, tmp_path / "state"):
        yield tmp_path / "state"


def gets(source: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"artifact": "data", "job": source, **fields}]


async def left(service: Service, agent: FakeAgent, data: bytes = b"data of the source", **fields: Any) -> str:
    """Submit a job that leaves an artifact and succeeds; return its id."""
    made, run = await started(service, agent, outputs=LEAVES, **fields)
    await run.store("data", data)
    await agent.report(run.run, RunState.SUCCEEDED, 2)
    await service.until(made, "succeeded")
    return made


async def live_run(agent: FakeAgent) -> RunOfFiles:
    """Report the next run as running; its agent has asked for the files."""
    run = RunOfFiles(agent, (await agent.next_start())["run"])
    await agent.report(run.run, RunState.RUNNING, 1)
    return run


async def declare_queue(service: Service, path: str) -> None:
    spec = {"kind": "Queue", "path": path, "allowedKinds": ["private", "public", "edge"]}
    assert (await service.http.put(f"/v1/queues/{path}", json=spec)).status_code in (200, 201)


# Submissions


@pytest.mark.parametrize(
    ("one", "words"),
    [
        ({}, "needs exactly one of files and artifact"),
        ({"files": f"sha256:{'0' * 64}", "artifact": "data", "job": "a"}, "needs exactly one of files and artifact"),
        ({"files": f"sha256:{'0' * 64}", "job": "a"}, "job goes with artifact"),
        ({"artifact": "data"}, "artifact needs job"),
        ({"artifact": "Data", "job": "a"}, "lower-case letters"),
        ({"artifact": "data", "job": "a", "path": "/in"}, "no path inside of the member's folder"),
        ({"artifact": "data", "step": "a"}, "step"),
    ],
)
async def test_mistakes_are_explained_and_change_nothing(service: Service, one: dict[str, Any], words: str) -> None:
    before = await picture(service.stores)
    answer = await service.http.post("/v1/jobs", json=job(inputs=[one]))
    assert code_of(answer) == (422, "invalid-spec")
    assert words in answer.text
    assert await picture(service.stores) == before


async def test_only_what_a_job_leaves_can_be_named(service: Service) -> None:
    source = await service.submit(outputs=LEAVES, suspend=True)
    before = await picture(service.stores)

    async def refused(one: dict[str, Any]) -> tuple[str, str, str]:
        answer = await service.http.post("/v1/jobs", json=job(inputs=[one]))
        assert answer.status_code == 422, answer.text
        (mistake,) = answer.json()["mistakes"]
        return answer.json()["code"], mistake["path"], mistake["message"]

    code, path, words = await refused({"artifact": "dat", "job": source})
    assert (code, path) == ("unknown-files", "inputs[0].artifact")
    assert words == f"job {source} has no output 'dat': it has data; did you mean 'data'?"
    for unknown in ("job-zzzzzzz", "prepare"):
        code, path, words = await refused({"artifact": "data", "job": unknown})
        assert (code, path) == ("unknown-job", "inputs[0].job"), words
    own = await service.http.post("/v1/jobs", json=job(outputs=LEAVES, inputs=gets("job")))
    assert own.json()["mistakes"] == [{"path": "inputs[0]", "message": "a job cannot wait for itself"}]
    assert await picture(service.stores) == before


async def test_a_job_that_has_ended_must_have_left_the_artifact(service: Service, agent: FakeAgent) -> None:
    made, run = await started(service, agent, outputs=[{"name": "data", "path": "out", "optional": True}])
    await agent.report(run.run, RunState.SUCCEEDED, 2)
    answer = await service.http.post("/v1/jobs", json=job(inputs=gets(made)))
    assert code_of(answer) == (422, "unknown-files")
    assert f"job {made} has succeeded, and its last run has left no artifact 'data'" in answer.text
    cancelled = await service.submit(outputs=LEAVES, suspend=True)
    await service.http.post(f"/v1/jobs/{cancelled}/cancel")
    answer = await service.http.post("/v1/jobs", json=job(inputs=gets(cancelled)))
    assert f"job {cancelled} was cancelled" in answer.text


async def test_what_a_failed_job_has_left_can_be_used(service: Service, agent: FakeAgent) -> None:
    made, run = await started(service, agent, outputs=LEAVES)
    await run.store("data", b"half")
    await agent.report(run.run, RunState.FAILED, 2, end={"category": "exit", "exitCode": 1})
    await service.until(made, "failed")
    await service.submit(name="next", inputs=gets(made))
    following = await live_run(agent)
    assert (await following.call("GET", "")).json()["inputs"][0]["sha256"] == sha256(b"half")


async def test_another_tenants_job_is_as_one_that_does_not_exist(service: Service, agent: FakeAgent) -> None:
    for path in ("red", "blue"):
        await declare_queue(service, path)
    blue = service.as_key(await make_key(service, "user", queues=["blue"]))
    both = service.as_key(await make_key(service, "user", queues=["blue", "red"]))
    source = await left(service, agent, queue="red")
    before = await picture(service.stores)
    answers = [
        await blue.post("/v1/jobs", json=job(queue="blue", inputs=[{"artifact": name, "job": source}]))
        for name in ("data", "none")
    ]
    for answer in answers:
        assert code_of(answer) == (422, "unknown-job")
        assert answer.json()["mistakes"] == [{"path": "inputs[0].job", "message": f"there is no job {source!r}"}]
    assert await picture(service.stores) == before
    other_queue = await both.post("/v1/jobs", json=job(queue="blue", inputs=gets(source)))
    assert other_queue.status_code == 201, other_queue.text
    run = await live_run(agent)
    assert (await run.call("GET", "/inputs/0", params={"offset": 0})).content == b"data of the source"


async def test_a_dry_run_checks_the_artifact_and_stores_nothing(service: Service) -> None:
    source = await service.submit(outputs=LEAVES, suspend=True)
    before = await picture(service.stores)
    tried = await service.http.post("/v1/jobs", params={"dryRun": True}, json=job(inputs=gets(source)))
    assert tried.status_code == 200, tried.text
    assert tried.json()["jobs"][0]["holdCause"] == "dependency"
    wrong = job(inputs=[{"artifact": "none", "job": source}])
    refused = await service.http.post("/v1/jobs", params={"dryRun": True}, json=wrong)
    assert code_of(refused) == (422, "unknown-files")
    assert await picture(service.stores) == before


# Order


async def test_a_job_waits_for_the_one_whose_artifact_it_gets(service: Service, agent: FakeAgent) -> None:
    source, run = await started(service, agent, outputs=LEAVES)
    made = await service.submit(name="next", inputs=gets(source, path="in"))
    assert (await service.job(made))["holdCause"] == "dependency"
    assert source in (await service.http.get(f"/v1/jobs/{made}/why")).text
    await run.store("data", b"first")
    await agent.report(run.run, RunState.SUCCEEDED, 2)
    following = await live_run(agent)
    state = (await following.call("GET", "")).json()
    assert state["inputs"] == [{"path": "in", "sha256": sha256(b"first"), "size": 5, "url": None}]
    assert (await following.call("GET", "/inputs/0", params={"offset": 2})).content == b"rst"
    assert "after" not in (await service.job(made))["spec"], "the specification is as it was written"


async def test_it_is_cancelled_where_that_one_does_not_succeed(service: Service, agent: FakeAgent) -> None:
    source, run = await started(service, agent, outputs=LEAVES)
    made = await service.submit(name="next", inputs=gets(source))
    await agent.report(run.run, RunState.FAILED, 2, end={"category": "exit", "exitCode": 1})
    found = await service.until(made, "cancelled")
    assert source in found["message"]


async def test_the_last_run_counts_after_a_retry(service: Service, agent: FakeAgent) -> None:
    source, run = await started(service, agent, outputs=LEAVES, retries={"limit": 1, "backOff": "0s"})
    made = await service.submit(name="next", inputs=gets(source))
    await run.store("data", b"of the first run")
    await agent.report(run.run, RunState.FAILED, 2, end={"category": "exit", "exitCode": 1})
    again = await live_run(agent)
    await again.call("GET", "")
    await again.store("data", b"of the second run")
    await agent.report(again.run, RunState.SUCCEEDED, 2)
    following = await live_run(agent)
    assert following.run.startswith(made)
    assert (await following.call("GET", "/inputs/0", params={"offset": 0})).content == b"of the second run"


async def test_another_condition_in_after_counts_instead(service: Service, agent: FakeAgent) -> None:
    source, run = await started(service, agent, outputs=LEAVES)
    made = await service.submit(name="next", inputs=gets(source), after=[{"job": source, "condition": "ended"}])
    early = await service.submit(name="early", inputs=gets(source), after=[{"job": source, "condition": "started"}])
    await agent.report(run.run, RunState.FAILED, 2, end={"category": "exit", "exitCode": 1, "message": "m"})
    assert (await service.until(early, "cancelled"))["state"] == "cancelled", "it needs more than the start"
    following = await live_run(agent)
    assert following.run.startswith(made)
    answer = await following.call("GET", "/inputs/0", 404, params={"offset": 0})
    assert f"the last run of job {source} has left no artifact 'data'" in answer.text


async def test_jobs_of_one_submission_name_each_other(service: Service, agent: FakeAgent) -> None:
    first = job("prepare", outputs=LEAVES)
    answer = await service.http.post("/v1/jobs", json={"jobs": [job("train", inputs=gets("prepare")), first]})
    assert answer.status_code == 201, answer.text
    train, prepare = (one["id"] for one in answer.json()["jobs"])
    assert (await service.job(train))["holdCause"] == "dependency"
    run = await live_run(agent)
    assert run.run.startswith(prepare)
    await run.call("GET", "")
    await run.store("data", b"prepared")
    await agent.report(run.run, RunState.SUCCEEDED, 2)
    following = await live_run(agent)
    assert (await following.call("GET", "/inputs/0", params={"offset": 0})).content == b"prepared"
    wrong = await service.http.post("/v1/jobs", json={"jobs": [job("train", inputs=gets("prepare")), job("prepare")]})
    assert code_of(wrong) == (422, "unknown-files")
    assert wrong.json()["mistakes"][0]["path"] == "jobs[0].inputs[0].artifact"
    cycle = [job(one, outputs=LEAVES, inputs=gets(other)) for one, other in (("a", "b"), ("b", "a"))]
    answer = await service.http.post("/v1/jobs", json={"jobs": cycle})
    assert answer.json()["mistakes"] == [
        {"path": "jobs[0].inputs[0]", "message": "these jobs wait for each other: a -> b -> a"}
    ]


async def test_each_job_of_a_table_of_parameters_gets_it(service: Service, agent: FakeAgent) -> None:
    source = await left(service, agent)
    train = job("train", inputs=gets(source))
    train["roles"][0]["template"]["args"] = ["${x}"]
    body = {"job": train, "parameters": [{"x": 1}, {"x": 2}]}
    answer = await service.http.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    for _ in range(2):
        run = await live_run(agent)
        assert (await run.call("GET", "")).json()["inputs"][0]["sha256"] == sha256(b"data of the source")
    assert await value(service.stores, "SELECT count(*) FROM artifact_inputs") == 2


async def test_the_jobs_of_an_arrays_elements_get_it(service: Service, agent: FakeAgent) -> None:
    array = job("sweep", array={"mode": "jobs", "count": 2}, inputs=gets("prepare"))
    answer = await service.http.post("/v1/jobs", json={"jobs": [job("prepare", outputs=LEAVES), array]})
    assert answer.status_code == 201, answer.text
    sweep = answer.json()["jobs"][1]["id"]
    run = await live_run(agent)
    await run.call("GET", "")
    await run.store("data", b"prepared")
    await agent.report(run.run, RunState.SUCCEEDED, 2)
    for _ in range(2):
        element = await live_run(agent)
        assert (await element.call("GET", "")).json()["inputs"][0]["sha256"] == sha256(b"prepared")
    named = await service.http.post("/v1/jobs", json=job(inputs=gets(sweep)))
    assert code_of(named) == (422, "unknown-files")
    assert "is an array of jobs" in named.text


# Workflows


def step(name: str, after: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    spec = job(name, **fields.pop("spec", {}))
    return {
        "name": name,
        "after": list(after),
        "job": {field: one for field, one in spec.items() if field not in ("name", "kind", "queue")},
        **fields,
    }


def flow(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "Workflow", "name": "flow", "queue": "default", "steps": list(steps)}


async def test_a_step_gets_what_an_earlier_one_has_left(service: Service, agent: FakeAgent) -> None:
    body = flow(
        step("prepare", spec={"outputs": LEAVES}),
        step("check", ("prepare",)),
        step("train", ("check",), spec={"inputs": [{"artifact": "data", "step": "prepare", "path": "in"}]}),
    )
    answer = await service.http.post("/v1/workflows", json=body)
    assert answer.status_code == 201, answer.text
    run = await live_run(agent)
    await run.call("GET", "")
    await run.store("data", b"prepared")
    await agent.report(run.run, RunState.SUCCEEDED, 2)
    await agent.report((await agent.next_start())["run"], RunState.SUCCEEDED, 2)
    following = await live_run(agent)
    state = (await following.call("GET", "")).json()
    assert state["inputs"] == [{"path": "in", "sha256": sha256(b"prepared"), "size": 8, "url": None}]
    train = following.run.rpartition("-r")[0]
    (own,) = (await service.job(train))["spec"]["inputs"]
    assert own == {"artifact": "data", "job": run.run.rpartition("-r")[0], "path": "in"}
    await agent.report(following.run, RunState.SUCCEEDED, 2)


async def test_a_step_after_a_failed_one_gets_what_that_has_left(service: Service, agent: FakeAgent) -> None:
    body = flow(
        step("train", spec={"outputs": LEAVES}, mayFail=True),
        {
            **step("mend", spec={"inputs": [{"artifact": "data", "step": "train"}]}, forEach=["a", "b"]),
            "after": [{"step": "train", "condition": "ended"}],
        },
    )
    assert (await service.http.post("/v1/workflows", json=body)).status_code == 201
    run = await live_run(agent)
    await run.call("GET", "")
    await run.store("data", b"half")
    await agent.report(run.run, RunState.FAILED, 2, end={"category": "exit", "exitCode": 1})
    for _ in range(2):
        following = await live_run(agent)
        assert (await following.call("GET", "")).json()["inputs"][0]["sha256"] == sha256(b"half")


async def test_a_workflow_may_get_the_artifact_of_a_job_by_its_id(service: Service, agent: FakeAgent) -> None:
    source = await left(service, agent)
    before = await picture(service.stores)
    wrong = await service.http.post("/v1/workflows", json=flow(step("train", spec={"inputs": gets("job-zzzzzzz")})))
    assert code_of(wrong) == (422, "unknown-job")
    assert wrong.json()["mistakes"][0]["path"] == "steps[0].job.inputs[0].job"
    assert await picture(service.stores) == before
    answer = await service.http.post("/v1/workflows", json=flow(step("train", spec={"inputs": gets(source)})))
    assert answer.status_code == 201, answer.text
    run = await live_run(agent)
    assert (await run.call("GET", "/inputs/0", params={"offset": 0})).content == b"data of the source"


# Runs


async def test_a_run_whose_artifact_is_gone_says_so_when_it_is_read(service: Service, agent: FakeAgent) -> None:
    source = await left(service, agent)
    made = await service.submit(name="next", inputs=gets(source))
    run = RunOfFiles(agent, (await agent.next_start())["run"])
    await execute(service.stores, "DELETE FROM jobs WHERE id = :key", key=parse_job_id(source)[1])
    assert len((await run.call("GET", "")).json()["token"]) > 30, "its agent can start it"
    answer = await run.call("GET", "/inputs/0", 404, params={"offset": 0})
    assert f"job {source}, whose artifact 'data' is an input, was removed" in answer.text
    await run.call("GET", "/inputs/1", 404, params={"offset": 0})
    await agent.report(run.run, RunState.FAILED, 2, end={"category": "exit", "exitCode": 81})
    await service.until(made, "failed")
    retried = await service.http.post(f"/v1/jobs/{made}/retry")
    assert retried.status_code == 200, retried.text


async def test_clusters_that_do_not_offer_it_get_no_such_job(service: Service, agent: FakeAgent) -> None:
    source = await left(service, agent)
    await agent.connect(capabilities=("gang", Capability.FILES, Capability.MEMBER_RESTART))
    made = await service.submit(name="next", inputs=gets(source))

    async def says_why() -> bool:
        return "artifactInputs" in (await service.http.get(f"/v1/jobs/{made}/why")).text

    await eventually(says_why)


# Retention


async def age(service: Service) -> None:
    await execute(service.stores, "UPDATE jobs SET submitted_at = submitted_at - interval '400 days'")
    await execute(service.stores, "UPDATE jobs SET ended_at = ended_at - interval '400 days'")
    await execute(service.stores, "UPDATE runs SET counted = true")


async def removed(service: Service) -> int:
    return (await Retention(service.stores.database, service.stores.settings).run()).jobs


async def test_a_job_stays_while_another_one_waits_to_get_its_artifact(service: Service, agent: FakeAgent) -> None:
    source = await left(service, agent)
    other = await left(service, agent)
    made = await service.submit(name="next", inputs=gets(source), suspend=True)
    await age(service)
    assert await removed(service) == 1, "nothing names the other one"
    assert (await service.http.get(f"/v1/jobs/{other}")).status_code == 404
    await service.http.post(f"/v1/jobs/{made}/resume")
    run = await live_run(agent)
    assert (await run.call("GET", "/inputs/0", params={"offset": 0})).content == b"data of the source"
    assert await removed(service) == 0, "its run may begin anew"
    await agent.report(run.run, RunState.SUCCEEDED, 2)
    await service.until(made, "succeeded")
    await age(service)
    assert await removed(service) == 2
    assert await value(service.stores, "SELECT count(*) FROM artifact_inputs") == 0
    assert await value(service.stores, "SELECT count(*) FROM artifacts") == 0


async def test_a_schedule_keeps_the_job_whose_artifact_its_jobs_get(service: Service, agent: FakeAgent) -> None:
    source = await left(service, agent)
    spec = {field: one for field, one in job(inputs=gets(source)).items() if field not in ("kind", "queue", "name")}
    schedule = {"kind": "Schedule", "name": "nightly", "queue": "default", "schedule": "0 3 * * *", "job": spec}
    wrong = await service.http.post("/v1/schedules", json={**schedule, "job": {**spec, "inputs": gets("job-zzzzzzz")}})
    assert code_of(wrong) == (422, "unknown-job")
    assert (await service.http.post("/v1/schedules", json=schedule)).status_code == 201
    await age(service)
    assert await removed(service) == 0
    assert (await service.http.delete("/v1/schedules/nightly")).status_code in (200, 204)
    assert await removed(service) == 1


async def test_a_running_workflow_keeps_the_job_whose_artifact_it_will_get(service: Service, agent: FakeAgent) -> None:
    source = await left(service, agent)
    body = flow(step("first", spec={"suspend": True}), step("train", ("first",), spec={"inputs": gets(source)}))
    made = (await service.http.post("/v1/workflows", json=body)).json()["id"]
    await age(service)
    assert await removed(service) == 0
    await service.http.post(f"/v1/workflows/{made}/cancel")

    async def has_ended() -> bool:
        return bool((await service.http.get(f"/v1/workflows/{made}")).json()["state"] == "cancelled")

    await eventually(has_ended)
    await age(service)
    assert await removed(service) >= 1
    assert (await service.http.get(f"/v1/jobs/{source}")).status_code == 404


# Real members


async def hand_over(service: Service, client: AsyncClient, tmp_path: Path) -> None:
    go = tmp_path / "go"
    await declare_queue(service, "other")
    noise = os.urandom(PART_BYTES + 10)
    await asyncio.to_thread((tmp_path / "noise").write_bytes, noise)
    command = (
        f"while [ ! -e {go} ]; do sleep 0.1; done; mkdir out; echo eleven rows > out/rows; cp {tmp_path}/noise out"
    )
    source = await service.submit(**shell(command, name="prepare", outputs=LEAVES))
    made = await service.submit(
        **shell(
            "cat in/rows; cp in/noise m",
            replicas=2,
            name="train",
            queue="other",
            inputs=gets(source, path="in"),
            outputs=[{"name": "model", "path": "m"}],
        )
    )
    assert (await service.job(made))["holdCause"] == "dependency"
    await asyncio.to_thread(go.touch)
    found = await service.until(made, "succeeded", "failed", "cancelled", seconds=60)
    assert found["state"] == "succeeded", found["message"] + await output_of(service, made)
    assert (await output_of(service, made)).count("eleven rows") == 2
    await client.download_artifact(made, "model", tmp_path / "got")
    assert (tmp_path / "got/m").read_bytes() == noise


async def test_a_folder_goes_from_one_job_to_members_of_another(
    service: Service, client: AsyncClient, local: Path, tmp_path: Path
) -> None:
    await hand_over(service, client, tmp_path)


async def test_a_run_fails_with_the_reason_where_the_artifact_is_missing(service: Service, local: Path) -> None:
    source = await service.submit(**shell("exit 3", name="prepare", outputs=LEAVES))
    made = await service.submit(
        **shell("true", name="train", inputs=gets(source), after=[{"job": source, "condition": "ended"}], suspend=True)
    )
    await service.until(source, "failed", seconds=60)
    await service.http.post(f"/v1/jobs/{made}/resume")
    found = await service.until(made, "succeeded", "failed", seconds=60)
    assert found["state"] == "failed"
    assert f"the last run of job {source} has left no artifact 'data'" in found["message"]


class TestOnObjectStorage:
    """Members fetch artifacts of other jobs at addresses of the storage."""

    @pytest.fixture
    def more_settings(self, object_storage: str, tmp_path: Path) -> dict[str, Any]:
        return {"files_store": f"s3://files/{tmp_path.name}"}

    async def test_a_folder_goes_from_one_job_to_members_of_another(
        self, service: Service, client: AsyncClient, local: Path, tmp_path: Path
    ) -> None:
        await hand_over(service, client, tmp_path)
